"""Acar et al. 2021: the statistics of the data, Table 3 and Figure 3."""

from pathlib import Path

import numpy as np

from experiments.engine.item import Claim, Comparison, Item, Line, Other, Panel, Statistics, Table
from experiments.engine.series import Series
from experiments.engine.summaries import Summary
from experiments.feddyn.settings import PAPER, SPLITS
from fedprox.experiment import load_data
from fedprox.report.data import SHARES, classes_for

TABLE_3 = Item(
    "Table 3: training and test examples",
    f"{PAPER}, Table 3, appendix A.2",
    {"short": 20, "paper": 40},
    statistics=(
        Statistics("CIFAR-10", (50_000, 10_000), {"name": "cifar-10"}),
        Statistics("MNIST", (60_000, 10_000), {"name": "mnist", "partition": "iid"}),
        Statistics("EMNIST-L", (48_000, 8_000), {"name": "emnist-l"}),
        *(
            Statistics(
                f"Shakespeare, {title}",
                (200_000, 40_000),
                {"name": "shakespeare", "partition": partition, "clients": 100},
            )
            for title, partition in (("IID", "iid-2000"), ("Non-IID", "roles-2000"))
        ),
    ),
    notes=(
        "Where EMNIST's letters are there without their official split, training and test images "
        "are divided anew, and there are fewer.",
    ),
)

LABELS = tuple(f"{100 * share:.0f} %" for share in SHARES)
"""The labels of the series of `classes`."""

MEAN_CLASSES = Summary(
    "as the mean number of classes",
    lambda series, measure: float(np.average(series.along("classes"), weights=series.of(measure))),
)


def classes(experiment: Table, seed: int, data_dir: Path | None = None) -> list[Series]:
    """For each share of a client's rows, how many clients need 1, 2, ... classes for it.

    Args:
        experiment: An experiment with `[data]` alone.
        seed: Seed of the partition.
        data_dir: Folder with data files.

    Returns:
        A series for each of `SHARES`, with "classes" and "clients", which count training rows.

    Raises:
        InputError: The data are refused or missing, or labels are not classes.
    """
    federation, _ = load_data(experiment["data"] | {"seed": seed}, data_dir)
    numbers = np.arange(1, federation.classes + 1)
    series = []
    for label, share in zip(LABELS, SHARES, strict=True):
        needed = classes_for(federation, share, "train")
        clients = np.bincount(needed, minlength=federation.classes + 1)[1:]
        values = {"classes": numbers.astype(float), "clients": clients.astype(float)}
        series.append(Series(label, seed, numbers, values))
    return series


MIXES = {split: f"feddyn-mnist-{split}-classes" for split in SPLITS}

FIGURE_3 = Item(
    "Figure 3: the classes that make up 40, 60 and 80 % of a client's rows",
    f"{PAPER}, Figure 3, appendix A.2",
    {"short": 15, "paper": 30},
    panels=(
        tuple(
            Panel(
                f"MNIST, {label} of the rows",
                "clients",
                tuple(MIXES.values()),
                (label,),
                x="classes",
            )
            for label in LABELS
        ),
    ),
    claims=(
        Claim(
            "Fewer classes make up a client's rows, the smaller the concentration.",
            "clients",
            MEAN_CLASSES,
            tuple(
                Comparison(
                    f"{label}: {SPLITS[greater][0]} above {SPLITS[less][0]}",
                    Line(MIXES[greater], label),
                    Line(MIXES[less], label),
                )
                for label in LABELS
                for greater, less in (("iid", "dirichlet-0.6"), ("dirichlet-0.6", "dirichlet-0.3"))
            ),
        ),
    ),
    others={
        run: Other({"data": {"name": "mnist", **SPLITS[split][1]}}, classes)
        for split, run in MIXES.items()
    },
    notes=(
        "The paper says that 4, 6 and 8 classes make up 40, 60 and 80 % of the rows with IID "
        "clients; that mostly 4 or 5 make up 80 % with Dirichlet (.6), and 3 or 4 with Dirichlet "
        "(.3) (appendix A.2); and about 5 and 3 (section 3).",
        "Training rows of 100 clients are counted. Each seed draws its own partition.",
    ),
)
