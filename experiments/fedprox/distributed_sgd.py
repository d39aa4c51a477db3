"""Distributed SGD (FedSGD) beside the methods of Li et al. 2020.

The MLSys slides claim that FedProx "can converge much faster than distributed SGD in practice",
without a number and without the learning rate of distributed SGD. Here it takes part with FedProx's
rate and with the best rate of a grid of its own.
"""

from collections.abc import Callable

from experiments.common import FEDAVG, ONE_STEP, fedprox, fedsgd
from experiments.engine.item import LOWEST, Claim, Comparison, Curve, Item, Side, Task
from experiments.engine.summaries import FINAL, MEAN, Summary
from experiments.fedprox.common import feddane, measures_by_task, mu_label
from experiments.fedprox.tasks import LOGISTIC, ONE_DRAW, PAPER

BEST_RATE = f"{LOWEST}fedsgd"
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
        tuple(Comparison(task.title, *sides(task), task.note) for task in LOGISTIC),
    )


def _best_rate(_: Task) -> str:
    return BEST_RATE


DISTRIBUTED_SGD = Item(
    "Distributed SGD beside FedProx and FedDANE",
    f"{PAPER}, slides of MLSys 2020, convergence analysis; sections 4 and 5, appendix B",
    # short as measured, most of it compilation; paper extrapolated from it by rounds and seeds
    {"short": 130, "paper": 1_500},
    {
        _run(task): task.experiment(
            fedsgd(*RATES), FEDAVG, fedprox(task.mu), feddane(0.0), stragglers=0.0
        )
        for task in LOGISTIC
    },
    measures_by_task(LOGISTIC, ("train_loss", "test_accuracy"), _curves),
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
