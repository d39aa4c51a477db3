"""Distributed SGD (FedSGD) beside the methods of Li et al. 2020 and Acar et al. 2021.

The MLSys slides of Li et al. claim that FedProx "can converge much faster than distributed SGD in
practice"; Acar et al. (section 3) call distributed SGD "not competitive" and leave it out of their
tables. Neither prints a number, nor the learning rate of distributed SGD. Here it takes part with
FedProx's rate and with the best rate of a grid of its own.
"""

from collections.abc import Callable
from typing import NamedTuple

from fedprox.papers.common import FEDAVG, feddane, fedprox, measures_by_task, mu_label
from fedprox.papers.fedavg import FEDSGD
from fedprox.papers.feddyn import EVALUATED, SPLITS, SYNTHETIC, TABLE_2_MNIST, TABLE_6, share
from fedprox.papers.fedprox import FEMNIST, MNIST, ONE_DRAW
from fedprox.papers.fedprox import PAPER as FEDPROX_PAPER
from fedprox.papers.fedprox import SYNTHETIC as FEDPROX_SYNTHETIC
from fedprox.reproduce.item import (
    AT_EACH_ROUND,
    LOWEST,
    MOST_SEEDS,
    SHORT,
    Claim,
    Comparison,
    Curve,
    Entry,
    Item,
    Panel,
    Race,
    RaceRow,
    Row,
    Side,
    Table,
    Task,
)
from fedprox.reproduce.summaries import FINAL, MEAN, Summary
from fedprox.simulation.results.target import Target

BEST_FEDSGD = f"{AT_EACH_ROUND}fedsgd"
BEST_RATE = f"{LOWEST}fedsgd"
ONE_STEP = (
    "Distributed SGD is FedSGD: one step a round with the gradient of all rows of the round's "
    "clients."
)


def _fedsgd(*rates: float, **solver: float) -> Table:
    return FEDSGD | {"solver": {"learning_rate": list(rates), **solver}}


# ---------------------------------------------------------------- FedProx, on logistic regression

TASKS = (*FEDPROX_SYNTHETIC, MNIST, FEMNIST)
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def _run(task: Task) -> str:
    return f"{task.key}-distributed-sgd"


def _same_rate(task: Task) -> str:
    return f"fedsgd learning_rate={task.learning_rate:g}"


def _curves(task: Task) -> tuple[Curve, ...]:
    run = _run(task)
    return (
        Curve(run, BEST_RATE, "distributed SGD"),
        Curve(run, _same_rate(task), "distributed SGD, the same eta"),
        Curve(run, "fedavg", "FedAvg"),
        Curve(run, mu_label(task.mu), "FedProx"),
        Curve(run, "feddane mu=0", "FedDANE"),
    )


def _slower(
    text: str,
    measure: str,
    over: Summary,
    *,
    sgd: Callable[[Task], str],
    other: Callable[[Task], str] = lambda task: mu_label(task.mu),
) -> Claim:
    """Distributed SGD against FedProx, or another method."""

    def sides(task: Task) -> tuple[Side, Side]:
        pair = Side(_run(task), sgd(task)), Side(_run(task), other(task))
        return pair if measure == "train_loss" else pair[::-1]

    return Claim(
        text,
        measure,
        over,
        tuple(Comparison(task.title, *sides(task), task.note) for task in TASKS),
    )


def _best_rate(_: Task) -> str:
    return BEST_RATE


FEDPROX_ITEM = Item(
    "Distributed SGD beside FedProx and FedDANE",
    f"{FEDPROX_PAPER}, slides of MLSys 2020, convergence analysis; sections 4 and 5, appendix B",
    # short as measured, most of it compilation; paper extrapolated from it by rounds and seeds
    {"short": 130, "paper": 1_500},
    {
        _run(task): task.experiment(
            _fedsgd(*RATES), FEDAVG, fedprox(task.mu), feddane(0.0), stragglers=0.0
        )
        for task in TASKS
    },
    measures_by_task(TASKS, ("train_loss", "test_accuracy"), _curves),
    (
        _slower(
            "FedProx can converge much faster than distributed SGD: with the same learning rate "
            "its loss lies below over the rounds.",
            "train_loss",
            MEAN,
            sgd=_same_rate,
        ),
        _slower(
            "With the same learning rate it is more accurate over the rounds.",
            "test_accuracy",
            MEAN,
            sgd=_same_rate,
        ),
        _slower(
            "Its loss lies below that of distributed SGD with the best rate of its own, too.",
            "train_loss",
            MEAN,
            sgd=_best_rate,
        ),
        _slower("And so at the last round.", "train_loss", FINAL, sgd=_best_rate),
        _slower(
            "FedAvg's loss lies below that of distributed SGD with the best rate of its own.",
            "train_loss",
            MEAN,
            sgd=_best_rate,
            other=lambda _: "fedavg",
        ),
    ),
    notes=(
        ONE_STEP,
        "10 clients a round, no stragglers, E = 20 and the paper's learning rates and mu. FedDANE "
        "has mu = 0; a round of it communicates twice. The slides have the first claim alone; the "
        "others, which spell it out, are ours. In all its experiments with a data set the paper "
        "keeps one learning rate, tuned on FedAvg. The best rate of distributed SGD is that with "
        "the lowest final training loss; it favours distributed SGD, since FedProx keeps its own.",
        ONE_DRAW,
    ),
)

# ------------------------------------------------------- FedDyn, on its synthetic data and on MNIST


class Rival(NamedTuple):
    """A method beside distributed SGD: its label, its legend, and `[[method]]`."""

    label: str
    shown: str
    table: Table


_E10: Table = {"solver": {"epochs": 10}}


def _rivals(kind: str) -> tuple[Rival, ...]:
    """The methods of Table 6 with E = 10 and every alpha and mu of appendix A.1."""
    balance = kind == "type3"
    alphas = {"name": "feddyn", "alpha": [0.1, 0.01, 0.001], "balance": balance}
    return (
        Rival(f"{AT_EACH_ROUND}feddyn{' balanced' * balance}", "FedDyn", alphas | _E10),
        Rival(
            f"{AT_EACH_ROUND}scaffold", "SCAFFOLD", {"name": "scaffold", "solver": {"steps": 200}}
        ),
        Rival(f"{AT_EACH_ROUND}fedavg", "FedAvg", FEDAVG | _E10),
        Rival(f"{AT_EACH_ROUND}fedprox", "FedProx", fedprox(0.01, 0.0001) | _E10),
    )


def _synthetic_key(kind: str) -> str:
    return f"feddyn-synthetic-{kind}-distributed-sgd"


def _synthetic_run(kind: str) -> Table:
    """The run of Table 6 without its target, for 100 rounds."""
    whole = TABLE_6.runs[f"feddyn-synthetic-{kind}"]
    kept = {k: v for k, v in whole.items() if k not in ("target_loss", "stop_at_target", SHORT)}
    methods = [
        _fedsgd(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        *(rival.table for rival in _rivals(kind)),
    ]
    return kept | {"rounds": 100, "method": methods, SHORT: {"rounds": 20, MOST_SEEDS: 1}}


def _below(place: int, text: str) -> Claim:
    """A rival's loss below that of distributed SGD, over the rounds."""
    return Claim(
        text,
        "train_loss",
        MEAN,
        tuple(
            Comparison(
                title,
                Side(_synthetic_key(kind), BEST_FEDSGD),
                Side(_synthetic_key(kind), _rivals(kind)[place].label),
            )
            for kind, (title, *_) in SYNTHETIC.items()
        ),
    )


_MNIST_SPLITS = {"iid": (97.2, 31, 49), "dirichlet-0.3": (97.2, 37, 76)}
"""The lower accuracy of Table 2, and the models that FedDyn and FedAvg sent, at 10 %."""


def _digits_key(split: str) -> str:
    return f"feddyn-mnist-10-percent-{split}-distributed-sgd"


def _digits_run(split: str) -> Table:
    """FedDyn and FedAvg as in Table 2, and FedSGD, to the lower accuracy."""
    whole = TABLE_2_MNIST.runs[f"feddyn-mnist-10-percent-{split}"]
    by_name = {method["name"]: method for method in whole["method"]}
    return whole | {
        "rounds": 1_000,
        MOST_SEEDS: 1,
        "target_accuracy": share(_MNIST_SPLITS[split][0]),
        "method": [
            by_name["feddyn"],
            by_name["fedavg"],
            _fedsgd(0.1, 0.215, 0.464, 1.0, learning_rate_decay=1.0),
        ],
        SHORT: {"rounds": 20, "client_rows": 100, "evaluation": {"every": 2, "rows": 20}},
    }


FEDDYN_ITEM = Item(
    "Distributed SGD beside FedDyn and its rivals",
    f"{TABLE_6.source.partition(',')[0]}, section 3, comparison of methods",
    # short as measured, nearly all of it compilation; paper: 25 s a kind and seed, and on MNIST
    # 0.8 s a round of FedSGD with four rates
    {"short": 110, "paper": 2_600},
    {_synthetic_key(kind): _synthetic_run(kind) for kind in SYNTHETIC}
    | {_digits_key(split): _digits_run(split) for split in _MNIST_SPLITS},
    rows=(
        Row(
            "",
            tuple(
                Panel(
                    title,
                    "train_loss",
                    (
                        Curve(_synthetic_key(kind), BEST_FEDSGD, "distributed SGD"),
                        *(
                            Curve(_synthetic_key(kind), rival.label, rival.shown)
                            for rival in _rivals(kind)
                        ),
                    ),
                )
                for kind, (title, *_) in SYNTHETIC.items()
            ),
        ),
    ),
    claims=(
        _below(0, "Distributed SGD is not competitive with FedDyn: its loss lies above."),
        _below(1, "Nor with SCAFFOLD."),
        _below(2, "Nor with FedAvg."),
        _below(3, "Nor with FedProx."),
    ),
    races=(
        Race(
            ("FedDyn", "FedAvg", "distributed SGD"),
            tuple(
                RaceRow(
                    f"MNIST, 10 %, {SPLITS[split].title}",
                    Target("test_accuracy", share(percent)),
                    (
                        Entry(_digits_key(split), "feddyn", feddyn),
                        Entry(_digits_key(split), "fedavg", fedavg),
                        Entry(_digits_key(split), "fedsgd"),
                    ),
                    "short: 100 images of a client",
                )
                for split, (percent, feddyn, fedavg) in _MNIST_SPLITS.items()
            ),
            "models",
            "first column",
        ),
    ),
    notes=(
        f"{ONE_STEP} Here its line is the best of its learning rates at each round.",
        "The paper gives no number for distributed SGD. The synthetic data are those of Table 6, "
        "for 100 rounds; its methods have E = 10, or 200 steps, and are the best of both learning "
        "rates and of every alpha or mu of appendix A.1 at each round. On MNIST the paper's "
        "numbers are those of Table 2, to the lower accuracy; FedSGD's learning rate does not "
        "decay there.",
        EVALUATED,
    ),
)

FEDPROX_ITEMS = {"distributed-sgd": FEDPROX_ITEM}
FEDDYN_ITEMS = {"distributed-sgd": FEDDYN_ITEM}
