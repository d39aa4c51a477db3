"""Acar et al. 2021: the statistics of the data, Table 3 and Figure 3."""

from experiments.engine.item import (
    PARTS,
    Claim,
    Comparison,
    Item,
    Line,
    Panel,
    Row,
    Statistics,
    Table,
)
from experiments.engine.mixes import LABELS
from experiments.engine.summaries import CLASSES
from experiments.feddyn.settings import PAPER, SPLITS

TABLE_3 = Item(
    "Table 3: training and test examples",
    f"{PAPER}, Table 3, appendix A.2",
    {"short": 20, "paper": 40},
    statistics=tuple(
        Statistics(title, paper, data, note, PARTS)
        for title, paper, data, note in (
            ("CIFAR-10", (50_000, 10_000), {"name": "cifar-10"}, ""),
            ("MNIST", (60_000, 10_000), {"name": "mnist", "partition": "iid"}, ""),
            ("EMNIST-L", (48_000, 8_000), {"name": "emnist-l"}, ""),
            (
                "Shakespeare, IID",
                (200_000, 40_000),
                {"name": "shakespeare", "partition": "iid-2000", "clients": 100},
                "",
            ),
            (
                "Shakespeare, Non-IID",
                (200_000, 40_000),
                {"name": "shakespeare", "partition": "roles-2000", "clients": 100},
                "",
            ),
        )
    ),
    notes=(
        "Where EMNIST's letters are there without their official split, training and test images "
        "are divided anew, and there are fewer.",
    ),
)
MIXES: dict[str, Table] = {
    split: {"name": "mnist", **SPLITS[split][1]}
    for split in ("iid", "dirichlet-0.6", "dirichlet-0.3")
}


def _key(split: str) -> str:
    return f"feddyn-mnist-{split}-classes"


FIGURE_3 = Item(
    "Figure 3: the classes that make up 40, 60 and 80 % of a client's rows",
    f"{PAPER}, Figure 3, appendix A.2",
    {"short": 15, "paper": 30},
    rows=(
        Row(
            "",
            tuple(
                Panel(
                    f"MNIST, {label} of the rows",
                    "clients",
                    tuple(Line(_key(split), label, SPLITS[split][0]) for split in MIXES),
                    x="classes",
                )
                for label in LABELS
            ),
        ),
    ),
    claims=(
        Claim(
            "Fewer classes make up a client's rows, the smaller the concentration.",
            "clients",
            CLASSES,
            tuple(
                Comparison(
                    f"{label}: {SPLITS[greater][0]} above {SPLITS[less][0]}",
                    Line(_key(greater), label),
                    Line(_key(less), label),
                )
                for label in LABELS
                for greater, less in (("iid", "dirichlet-0.6"), ("dirichlet-0.6", "dirichlet-0.3"))
            ),
        ),
    ),
    mixes={_key(split): data for split, data in MIXES.items()},
    notes=(
        "The paper says that 4, 6 and 8 classes make up 40, 60 and 80 % of the rows with IID "
        "clients; that mostly 4 or 5 make up 80 % with Dirichlet (.6), and 3 or 4 with Dirichlet "
        "(.3) (appendix A.2); and about 5 and 3 (section 3).",
        "Training rows of 100 clients are counted. Each seed draws its own partition.",
    ),
)
