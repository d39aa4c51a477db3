"""Time to accuracy of rules that wait, drop, keep partial work or are asynchronous.

All rules see the same devices and have the same time, in which at most 20 clients are at work at
any moment. A device takes the time for its mini-batch steps, and for a message there and back as
long as the median client takes for an epoch. Each rule has as many settings: of the learning rate,
the epochs and its own parameters. Validation rows choose among them, test rows are reported.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from experiments.engine.item import (
    DEVICES,
    SECONDS,
    SHORT,
    Claim,
    Comparison,
    Entry,
    Item,
    Line,
    Panel,
    Race,
    RaceRow,
    Table,
    Values,
)
from experiments.engine.series import ACCURACY, VALIDATED
from experiments.engine.summaries import END, OVER_TIME, Summary
from fedprox.federation import Federation
from fedprox.results.target import Target

AT_WORK = 20
"""Clients that are at work at any moment at most."""

EPOCHS = (1, 10)
MUS = (0.01, 1.0)
"""Almost no proximal term, and the paper's best mu on these data sets."""

SPREAD = 1.0
"""Standard deviation of the logarithm of a step's seconds; their median is 1."""

RARE = 0.2
"""The share of the classes that are rare."""

LIMIT = 100_000
"""More rounds than any run reaches in its time."""

EVALUATIONS = 30
"""Evaluations of a run, about."""


def rare_share(federation: Federation) -> NDArray[np.float64]:
    """The share of each client's training rows whose class is rare, shape (clients,).

    Rare are the fifth of all classes, rounded up, that have the fewest training rows.
    """
    y, sizes = np.asarray(federation.train.y), federation.train.sizes
    classes, labels = np.unique(y, return_inverse=True)
    counts = np.bincount(labels, minlength=len(classes))
    rare = np.zeros(len(classes), bool)
    rare[np.argsort(counts, kind="stable")[: int(np.ceil(RARE * len(classes)))]] = True
    client = np.repeat(np.arange(len(sizes)), sizes)
    return np.bincount(client, weights=rare[labels], minlength=len(sizes)) / sizes


def tied_speeds(federation: Federation) -> Table:
    """`[population]` in which the devices of clients with more rows of rare classes are slower.

    The seconds of a step are the quantiles of the log-normal population, in the order of
    `rare_share`; equal shares are in a fixed random order. So the devices are those of that
    population, and only their owners differ.
    """
    share = rare_share(federation)
    order = np.lexsort((np.random.default_rng(0).permutation(len(share)), share))
    seconds = np.empty(len(share))
    seconds[order] = np.exp(SPREAD * ndtri((np.arange(len(share)) + 0.5) / len(share)))
    return {"step_seconds": seconds.tolist()}


class Task(NamedTuple):
    """A data set, and what differs with it.

    Attributes:
        key: Short name, for runs.
        title: Name in figures.
        data: `[data]` of an experiment.
        rates: Learning rates.
        epoch: Seconds that the median client takes for an epoch on the median device.
        lasts: The time of a run, in such epochs.
        target: Test accuracy whose time a table shows.
    """

    key: str
    title: str
    data: Table
    rates: tuple[float, ...]
    epoch: float
    lasts: int
    target: float


TASKS = (
    Task(
        "synthetic",
        "Synthetic(1,1)",
        {"name": "synthetic", "alpha": 1.0, "beta": 1.0, "clients": 100, "seed": 0},
        (0.01, 0.1),
        8.0,
        1000,
        0.6,
    ),
    Task("mnist", "MNIST", {"name": "mnist"}, (0.03, 0.1), 2.0, 500, 0.85),
    Task("femnist", "FEMNIST", {"name": "femnist"}, (0.01, 0.03), 2.0, 500, 0.75),
)

LOG_NORMAL: Table = {"step_seconds": {"median": 1.0, "spread": SPREAD}}
POPULATIONS: dict[str, Any] = {
    "equal": {"step_seconds": 1.0},
    "log-normal": LOG_NORMAL,
    "rare classes slow": tied_speeds,
}
"""By name, `[population]`, or what makes it of the federation."""

WAITS, DROPS, FIRST, PROX, NOVA, BUFFER = RULES = (
    "FedAvg, waits for all",
    "FedAvg, deadline and drop",
    "FedAvg, over-selection",
    "FedProx, deadline and partial work",
    "FedNova, deadline and partial work",
    "FedBuff",
)

COHORTS = (2, 5, 10, 20)
FIRSTS = {5: 4.0, 10: 2.0, 13: 1.5, 16: 1.25}
"""The first messages that end a round, and by how much the 20 that are drawn exceed them."""
DEADLINES = (0.75, 1.0, 2.0, 4.0)
"""Multiples of the time in which the median client does its epochs on the median device, messages
included."""
PROX_DEADLINES = (0.75, 2.0)
BUFFERS = (5, 10)
STALENESS = ("constant", "polynomial")


def runs_of(task: Task, population: str) -> dict[str, tuple[Table, dict[str, str]]]:
    """The experiments on a data set and population, by the end of their names.

    With each are the words before its labels, by the beginning of the label.
    """
    found: dict[str, tuple[Table, dict[str, str]]] = {}

    def add(name: str, every: float, rules: dict[str, str], **settings: Any) -> None:
        experiment = _experiment(task, population, epochs, max(round(every), 1), settings)
        found[f"{name}-e{epochs}"] = experiment, rules

    fedavg, fednova = {"name": "fedavg"}, {"name": "fednova"}
    for epochs in EPOCHS:
        words, whole = f"E={epochs}", (1 + epochs) * task.epoch
        rounds = task.lasts / (1 + epochs)  # of the median client's length
        for clients in COHORTS:
            add(
                f"waits-{clients}",
                rounds / 6 / EVALUATIONS,
                {"fedavg": f"{WAITS} K={clients} {words}"},
                cohort={"clients_per_round": clients},
                method=[fedavg],
            )
        for clients, factor in FIRSTS.items():
            add(
                f"first-{clients}",
                rounds * factor / 3 / EVALUATIONS,
                {"fedavg": f"{FIRST} K={clients} {words}"},
                cohort={"clients_per_round": clients, "over_selection": factor},
                method=[fedavg],
            )
        for deadline in DEADLINES:
            own = f"deadline={deadline:g} {words}"
            rules = {"fedavg": f"{DROPS} {own}", "fednova": f"{NOVA} {own}"}
            methods: list[Table] = [fedavg, fednova]
            if deadline in PROX_DEADLINES:
                rules["fedprox"] = f"{PROX} {own}"
                methods = [*methods, {"name": "fedprox", "mu": list(MUS)}]
            add(
                f"deadline-{deadline:g}",
                rounds / deadline / EVALUATIONS,
                rules,
                cohort={"clients_per_round": AT_WORK},
                systems={"deadline": deadline * whole},
                method=methods,
            )
        for buffer in BUFFERS:
            for staleness in STALENESS:
                add(
                    f"buffer-{buffer}-{staleness}",
                    rounds * AT_WORK / buffer / 2 / EVALUATIONS,
                    {"fedavg": f"{BUFFER} B={buffer} {staleness} {words}"},
                    cohort={"clients_per_round": AT_WORK},
                    asynchronous={
                        "buffer": buffer,
                        "staleness": staleness,
                        "most_staleness": 500,
                    },
                    method=[fedavg],
                )
    return found


def _experiment(task: Task, population: str, epochs: int, every: int, settings: Table) -> Table:
    devices = POPULATIONS[population]
    table: Table = {
        "rounds": LIMIT,
        "validation_share": 0.2,
        "data": task.data,
        "evaluation": {"gradients": False, "every": every, "rows": 20},
        "solver": {"learning_rate": list(task.rates), "batch_size": 10, "epochs": epochs},
        SECONDS: task.lasts * task.epoch,
        SHORT: {
            SECONDS: task.lasts * task.epoch / 5,
            "evaluation": {"every": max(every // 5, 1)},
        },
        **settings,
    }
    way = {"latency": task.epoch / 2}
    if callable(devices):
        return table | {DEVICES: lambda federation: devices(federation) | way}
    return table | {"population": devices | way}


def place(task: Task, population: str) -> str:
    """The name of the lines of a data set and population."""
    return f"{task.title}, {population}"


def line(task: Task, population: str, rule: str) -> Line:
    """A rule with the setting that validation rows choose."""
    return Line(place(task, population), f"{VALIDATED}{rule}")


def row(task: Task, population: str) -> tuple[str, tuple[Line, ...]]:
    """A row of a table with a column for each rule."""
    return place(task, population), tuple(line(task, population, rule) for rule in RULES)


def claim(task: Task, text: str, measure: str, over: Summary, less: str, *where: str) -> Claim:
    """That FedProx with partial work has more of a measure than another rule."""
    return Claim(
        text,
        measure,
        over,
        tuple(
            Comparison(place(task, p), line(task, p, PROX), line(task, p, less))
            for p in where or POPULATIONS
        ),
        by="by the claim",
    )


def study(task: Task, seconds: dict[str, float]) -> Item:
    """The study on a data set."""
    runs: dict[str, Table] = {}
    joined: dict[str, dict[str, dict[str, str]]] = {}
    each = {population: runs_of(task, population) for population in POPULATIONS}
    for name in each["equal"]:  # populations one after the other have the same programs
        for population in POPULATIONS:
            run = f"time-{task.key}-{population.split()[0]}-{name}"
            runs[run], rules = each[population][name]
            joined.setdefault(place(task, population), {})[run] = rules
    slow = tuple(population for population in POPULATIONS if population != "equal")
    return Item(
        f"Time to accuracy under the same devices: {task.title}",
        "A study of this library",
        seconds,
        runs,
        (
            tuple(
                Panel(
                    place(task, population),
                    ACCURACY,
                    (place(task, population),),
                    tuple(f"{VALIDATED}{rule}" for rule in RULES),
                    "time",
                )
                for population in POPULATIONS
            ),
        ),
        (
            *(
                claim(
                    task,
                    f"{PROX}, is more accurate over the time than {rule}.",
                    ACCURACY,
                    OVER_TIME,
                    rule,
                )
                for rule in RULES
                if rule != PROX
            ),
            claim(task, "At the end it is more accurate than FedBuff.", ACCURACY, END, BUFFER),
            *(
                claim(
                    task,
                    f"At the end it is more accurate on the slowest clients than {rule}.",
                    "slow_accuracy",
                    END,
                    rule,
                    *slow,
                )
                for rule in (DROPS, BUFFER)
            ),
        ),
        races=(
            Race(
                RULES,
                tuple(
                    RaceRow(
                        place(task, population),
                        Target(ACCURACY, task.target),
                        tuple(Entry(*line(task, population, rule)) for rule in RULES),
                    )
                    for population in POPULATIONS
                ),
                "seconds",
                "first column",
            ),
        ),
        values=(
            Values(
                "Test accuracy: mean over the time / at the end.",
                ((ACCURACY, OVER_TIME), (ACCURACY, END)),
                RULES,
                tuple(row(task, population) for population in POPULATIONS),
            ),
            Values(
                "Test accuracy at the end: the slowest fifth of the devices / the fastest fifth.",
                (("slow_accuracy", END), ("fast_accuracy", END)),
                RULES,
                tuple(row(task, population) for population in slow),
            ),
        ),
        joined=joined,
        notes=(
            f"At most {AT_WORK} clients are at work at any moment. A step takes 1 s on the median "
            f"device, a message there and back {task.epoch:g} s, about as long as the median "
            f"client's epoch, and a run {task.lasts * task.epoch:g} s. Slow and fast clients are "
            "told by their seconds per step. Their accuracy is that of the first model after the "
            "end.",
            "Each rule has 16 settings: 2 learning rates, 1 or 10 epochs, and 4 of its own. A "
            "fifth of each client's training rows chooses one of them for all seeds; test rows "
            "choose nothing. All seeds have one draw of the data; they differ in cohorts, "
            "mini-batches, initial models and, with log-normal speeds, devices.",
        ),
    )


# short as measured, most of it overhead; paper extrapolated from its first runs
ITEMS = {f"time-{task.key}": study(task, {"short": 300, "paper": 1200}) for task in TASKS}
