"""The search that chose alpha in Acar et al. 2021, as sweeps on logistic regression.

The paper chooses from three or four values (appendix A) and does not say by which measure; here it
is the training loss of the last round.
"""

from experiments.common import HOW, chosen, without_target
from experiments.engine.item import MOST_SEEDS, SHORT, Comparison, Item, Line, Panel, Table
from experiments.engine.series import LOSS, LOWEST
from experiments.feddyn.digits import TABLES
from experiments.feddyn.settings import AS_IN_THE_CODE, EVALUATED, PAPER, SPLITS
from experiments.feddyn.synthetic import SYNTHETIC, TABLE_6

CHOICES = {"iid": 0.03, "dirichlet-0.6": 0.01, "dirichlet-0.3": 0.01}
"""The paper's alpha at 10 % participation, for its 2NN on MNIST."""

CODE_ALPHA = 0.01
"""The alpha of the authors' example with synthetic data."""


def _synthetic(kind: str) -> Table:
    """FedDyn as in the authors' example: learning rate 0.1 and E = 10."""
    whole = without_target(TABLE_6.runs[f"feddyn-synthetic-{kind}"])
    del whole[SHORT]
    method = {"name": "feddyn", "alpha": [0.1, 0.01, 0.001], "balance": kind == "type3"}
    solver = whole["solver"] | {"learning_rate": 0.1, "epochs": 10}
    return whole | {"rounds": 100, "solver": solver, "method": [method]}


def _digits(split: str) -> Table:
    """FedDyn as in Table 2 at 10 %, with logistic regression, for the search's 100 rounds."""
    method = {"name": "feddyn", "alpha": [0.001, 0.01, 0.03, 0.1], "solver": {"epochs": 50}}
    return without_target(TABLES["table-2-mnist"].runs[f"feddyn-mnist-10-percent-{split}"]) | {
        "rounds": 100,
        MOST_SEEDS: 3,
        "model": {"name": "logistic"},
        "method": [method],
        SHORT: {"rounds": 10, MOST_SEEDS: 1, "client_rows": 100, "evaluation": {"rows": 20}},
    }


KINDS = {kind: f"feddyn-synthetic-{kind}-alphas" for kind in SYNTHETIC}
MNIST = {split: f"feddyn-mnist-logistic-{split}-alphas" for split in CHOICES}


def _beside_the_best(where: str, run: str, label: str) -> Comparison:
    return Comparison(where, Line(run, f"{LOWEST}feddyn"), Line(run, label))


SEARCH_ALPHA = Item(
    "The search for FedDyn's alpha",
    f"{PAPER}, appendices A.1 and A.2",
    # short as measured; paper extrapolated from it by rounds, rows and seeds
    {"short": 35, "paper": 900},
    {run: _synthetic(kind) for kind, run in KINDS.items()}
    | {run: _digits(split) for split, run in MNIST.items()},
    (
        tuple(Panel(SYNTHETIC[kind][0], LOSS, (run,)) for kind, run in KINDS.items()),
        tuple(Panel(f"MNIST, {SPLITS[s][0]}", LOSS, (run,)) for s, run in MNIST.items()),
    ),
    (
        chosen(
            "The alpha of the authors' example is the best of {0.1, 0.01, 0.001}.",
            tuple(
                _beside_the_best(
                    SYNTHETIC[kind][0],
                    run,
                    f"feddyn {'balanced ' * (kind == 'type3')}alpha={CODE_ALPHA:g}",
                )
                for kind, run in KINDS.items()
            ),
        ),
        chosen(
            "The paper's alpha is the best of {0.001, 0.01, 0.03, 0.1}.",
            tuple(
                _beside_the_best(
                    f"MNIST, {SPLITS[s][0]}", run, f"feddyn alpha={CHOICES[s]:g} epochs=50"
                )
                for s, run in MNIST.items()
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
