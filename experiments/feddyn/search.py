"""The search that chose alpha in Acar et al. 2021, as sweeps on logistic regression.

The paper chooses from three or four values (appendix A) and does not say by which measure; here it
is the training loss of the last round.
"""

from experiments.common import HOW, chosen, without_target
from experiments.engine.item import (
    LOWEST,
    MOST_SEEDS,
    SHORT,
    Comparison,
    Item,
    Line,
    Panel,
    Row,
    Table,
)
from experiments.feddyn.digits import TABLES
from experiments.feddyn.settings import AS_IN_THE_CODE, EVALUATED, PAPER, SPLITS
from experiments.feddyn.synthetic import SYNTHETIC, TABLE_6

SYNTHETIC_ALPHAS = (0.1, 0.01, 0.001)
MNIST_ALPHAS = (0.001, 0.01, 0.03, 0.1)
MNIST_CHOICE = {"iid": 0.03, "dirichlet-0.6": 0.01, "dirichlet-0.3": 0.01}
"""The paper's alpha at 10 % participation, for its 2NN."""

CODE_ALPHA = 0.01
"""The alpha of the authors' example with synthetic data."""


def _alpha_label(alpha: float, *, balanced: bool = False) -> str:
    return f"feddyn{' balanced' * balanced} alpha={alpha:g}"


def _synthetic_run(kind: str) -> str:
    return f"feddyn-synthetic-{kind}-alphas"


def _synthetic_experiment(kind: str) -> Table:
    """FedDyn as in the authors' example: learning rate 0.1 and E = 10."""
    whole = without_target(TABLE_6.runs[f"feddyn-synthetic-{kind}"])
    del whole[SHORT]
    method = {"name": "feddyn", "alpha": list(SYNTHETIC_ALPHAS), "balance": kind == "type3"}
    solver = whole["solver"] | {"learning_rate": 0.1, "epochs": 10}
    return whole | {"rounds": 100, "solver": solver, "method": [method]}


def _digits_run(split: str) -> str:
    return f"feddyn-mnist-logistic-{split}-alphas"


def _digits_experiment(split: str) -> Table:
    """FedDyn as in Table 2 at 10 %, with logistic regression, for the search's 100 rounds."""
    return without_target(TABLES["table-2-mnist"].runs[f"feddyn-mnist-10-percent-{split}"]) | {
        "rounds": 100,
        MOST_SEEDS: 3,
        "model": {"name": "logistic"},
        "method": [{"name": "feddyn", "alpha": list(MNIST_ALPHAS), "solver": {"epochs": 50}}],
        SHORT: {"rounds": 10, MOST_SEEDS: 1, "client_rows": 100, "evaluation": {"rows": 20}},
    }


_SHORT_DIGITS = "short: 100 images of a client, a tenth of the rounds"
SEARCH_ALPHA = Item(
    "The search for FedDyn's alpha",
    f"{PAPER}, appendices A.1 and A.2",
    # short as measured; paper extrapolated from it by rounds, rows and seeds
    {"short": 35, "paper": 900},
    {_synthetic_run(kind): _synthetic_experiment(kind) for kind in SYNTHETIC}
    | {_digits_run(split): _digits_experiment(split) for split in MNIST_CHOICE},
    (
        Row(
            f"the code's {CODE_ALPHA:g}",
            tuple(
                Panel(
                    title,
                    "train_loss",
                    tuple(
                        Line(
                            _synthetic_run(kind),
                            _alpha_label(alpha, balanced=kind == "type3"),
                            f"alpha = {alpha:g}",
                        )
                        for alpha in SYNTHETIC_ALPHAS
                    ),
                )
                for kind, (title, *_) in SYNTHETIC.items()
            ),
        ),
        Row(
            "10 % of 100 clients",
            tuple(
                Panel(
                    f"MNIST, {SPLITS[split][0]}, the paper's {choice:g}",
                    "train_loss",
                    tuple(
                        Line(
                            _digits_run(split),
                            f"{_alpha_label(alpha)} epochs=50",
                            f"alpha = {alpha:g}",
                        )
                        for alpha in MNIST_ALPHAS
                    ),
                )
                for split, choice in MNIST_CHOICE.items()
            ),
        ),
    ),
    (
        chosen(
            "The alpha of the authors' example is the best of {0.1, 0.01, 0.001}.",
            tuple(
                Comparison(
                    title,
                    Line(_synthetic_run(kind), f"{LOWEST}feddyn"),
                    Line(_synthetic_run(kind), _alpha_label(CODE_ALPHA, balanced=kind == "type3")),
                )
                for kind, (title, *_) in SYNTHETIC.items()
            ),
        ),
        chosen(
            "The paper's alpha is the best of {0.001, 0.01, 0.03, 0.1}.",
            tuple(
                Comparison(
                    f"MNIST, {SPLITS[split][0]}",
                    Line(_digits_run(split), f"{LOWEST}feddyn"),
                    Line(_digits_run(split), f"{_alpha_label(choice)} epochs=50"),
                    _SHORT_DIGITS,
                )
                for split, choice in MNIST_CHOICE.items()
            ),
        ),
    ),
    notes=(
        HOW,
        "For the synthetic data the paper prints the range of alpha alone; the choice is that of "
        "the authors' example, whose learning rate, 0.1, and E = 10 are kept here, for 100 rounds.",
        "On MNIST the paper searches with full participation and its 2NN, for 100 rounds. Here a "
        "tenth of the clients takes part and the model is logistic regression, which is a tenth "
        "of the work and convex; learning rate 0.1 and E = 50 are the paper's.",
        EVALUATED,
        AS_IN_THE_CODE,
    ),
)
