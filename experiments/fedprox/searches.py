"""Li et al. 2020: the searches that chose its values, and distributed SGD, on logistic regression.

The paper chooses mu from {0.001, 0.01, 0.1, 1} (section 5.3.2), and the learning rate with FedAvg,
E = 1 and no stragglers (section 5.1). It does not say by which measure; here it is the training
loss of the last round.

The MLSys slides claim that FedProx "can converge much faster than distributed SGD in practice",
without a number and without the learning rate of distributed SGD. Here it takes part with FedProx's
rate and with the best rate of a grid of its own.
"""

from functools import partial

from experiments.common import FEDAVG, HOW, ONE_STEP, chosen, fedprox, fedsgd
from experiments.engine.item import BEST, LOWEST, Claim, Comparison, Item, Line, Table
from experiments.engine.summaries import FINAL, MEAN, RISE, Summary
from experiments.fedprox.tasks import (
    IID,
    LOGISTIC,
    ONE_DRAW,
    PAPER,
    Task,
    feddane,
    mu_label,
    on_each,
    row,
    rows,
)

MUS = (0.001, 0.01, 0.1, 1.0)
SHARES = (0, 90)
BESIDE_THE_BEST = tuple(
    one
    for s in SHARES
    for one in on_each(
        [task for task in LOGISTIC if task is not IID],
        f"{{}}-mus-s{s}",
        BEST,
        "fedprox mu={}",
        f", {s} %",
    )
)
"""The mu with the lowest final loss, and the paper's, where the data are heterogeneous."""


def _mus(s: int, task: Task) -> tuple[Line, ...]:
    run = f"{task.key}-mus-s{s}"
    return tuple(Line(run, mu_label(mu), f"mu = {mu:g}") for mu in (0.0, *MUS))


SEARCH_MU = Item(
    "The search for FedProx's mu",
    f"{PAPER}, section 5.3.2",
    # short as measured; paper extrapolated from it by rounds and seeds
    {"short": 110, "paper": 1_500},
    {
        f"{task.key}-mus-s{s}": task.experiment(fedprox(0.0, *MUS), stragglers=s / 100)
        for s in SHARES
        for task in LOGISTIC
    },
    tuple(
        row(
            LOGISTIC,
            "train_loss",
            partial(_mus, s),
            f"{s} % stragglers",
            lambda task: f"{task.title}, the paper's {task.mu:g}",
        )
        for s in SHARES
    ),
    (
        chosen("The paper's mu is the best of {0.001, 0.01, 0.1, 1}.", BESIDE_THE_BEST),
        Claim(
            "The paper's mu is steadier than the best: the loss rises less.",
            "train_loss",
            RISE,
            BESIDE_THE_BEST,
        ),
    ),
    notes=(
        HOW,
        "The paper prints its choice for Synthetic(1, 1), MNIST and FEMNIST: 1; that for the other "
        "synthetic sets is the mu = 1 of Figure 2. IID data are drawn and not judged: the paper "
        "says that mu = 1 is slower there. It says neither with how many stragglers it searched "
        "nor by which measure; the second claim is ours, by what its figures show of mu > 0.",
        "Shakespeare (0.001) and Sent140 (0.01) are left out: their models are LSTMs.",
        ONE_DRAW,
    ),
)

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def _rate_experiment(task: Task) -> Table:
    run = task.experiment(FEDAVG, stragglers=0.0, epochs=1)
    return run | {"solver": run["solver"] | {"learning_rate": list(RATES)}}


def _same_rate(task: Task, method: str) -> str:
    return f"{method} learning_rate={task.learning_rate:g}"


SEARCH_RATES = Item(
    "The search for FedProx's learning rates",
    f"{PAPER}, section 5.1, appendix C.2",
    # short as measured; paper extrapolated from it by rounds and seeds
    {"short": 65, "paper": 600},
    {f"{task.key}-rates": _rate_experiment(task) for task in LOGISTIC},
    (
        row(
            LOGISTIC,
            "train_loss",
            lambda task: tuple(
                Line(f"{task.key}-rates", f"fedavg learning_rate={rate:g}", f"eta = {rate:g}")
                for rate in RATES
            ),
            "E = 1, FedAvg",
            lambda task: f"{task.title}, the paper's {task.learning_rate:g}",
        ),
    ),
    (
        chosen(
            "The paper's learning rate is the best for FedAvg with E = 1.",
            tuple(
                Comparison(
                    task.title,
                    Line(f"{task.key}-rates", f"{LOWEST}fedavg"),
                    Line(f"{task.key}-rates", _same_rate(task, "fedavg")),
                    task.note,
                )
                for task in LOGISTIC
            ),
        ),
    ),
    notes=(
        HOW,
        "The paper tunes the learning rate on FedAvg with E = 1 and without stragglers, and keeps "
        "it for all experiments with a data set, E = 20 included. It does not print its grid; ours "
        "has about two rates a decade and holds all of the paper's.",
        ONE_DRAW,
    ),
)

BEST_RATE = f"{LOWEST}fedsgd"


def _against_sgd(task: Task) -> tuple[Line, ...]:
    run = f"{task.key}-distributed-sgd"
    return (
        Line(run, BEST_RATE, "distributed SGD"),
        Line(run, _same_rate(task, "fedsgd"), "distributed SGD, the same eta"),
        Line(run, "fedavg", "FedAvg"),
        Line(run, mu_label(task.mu), "FedProx"),
        Line(run, "feddane mu=0", "FedDANE"),
    )


def _slower(text: str, measure: str, over: Summary, sgd: int, other: int = 3) -> Claim:
    """Distributed SGD against FedProx, or another method, by their places in `_against_sgd`."""

    def compared(task: Task) -> Comparison:
        lines = _against_sgd(task)
        sides = [lines[sgd]._replace(shown=""), lines[other]._replace(shown="")]
        greater, less = sides if measure == "train_loss" else sides[::-1]
        return Comparison(task.title, greater, less, task.note)

    return Claim(text, measure, over, tuple(compared(task) for task in LOGISTIC))


DISTRIBUTED_SGD = Item(
    "Distributed SGD beside FedProx and FedDANE",
    f"{PAPER}, slides of MLSys 2020, convergence analysis; sections 4 and 5, appendix B",
    # short as measured, most of it compilation; paper extrapolated from it by rounds and seeds
    {"short": 130, "paper": 1_500},
    {
        f"{task.key}-distributed-sgd": task.experiment(
            fedsgd(0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
            FEDAVG,
            fedprox(task.mu),
            feddane(0.0),
        )
        for task in LOGISTIC
    },
    rows(LOGISTIC, ("train_loss", "test_accuracy"), _against_sgd),
    (
        _slower(
            "FedProx can converge much faster than distributed SGD: with the same learning rate "
            "its loss lies below over the rounds.",
            "train_loss",
            MEAN,
            sgd=1,
        ),
        _slower(
            "With the same learning rate it is more accurate over the rounds.",
            "test_accuracy",
            MEAN,
            sgd=1,
        ),
        _slower(
            "Its loss lies below that of distributed SGD with the best rate of its own, too.",
            "train_loss",
            MEAN,
            sgd=0,
        ),
        _slower("And so at the last round.", "train_loss", FINAL, sgd=0),
        _slower(
            "FedAvg's loss lies below that of distributed SGD with the best rate of its own.",
            "train_loss",
            MEAN,
            sgd=0,
            other=2,
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
