"""Li et al. 2020 and its draft: the data sets with their hyperparameters, and parts of items."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from experiments.common import (
    FEDAVG,
    FEDPROX_PAPER,
    FEWER_TWEETS,
    SMALLER_MODEL,
    experiment,
    fedprox,
)
from experiments.engine.item import Comparison, Line, Panel, Row, Table
from fedprox.datasets.statistics import FEDPROX, PAPERS

PAPER = FEDPROX_PAPER
ONE_DRAW = (
    "The paper has one draw of each synthetic set, which its code does not seed; ours has one for "
    "each seed. In Synthetic(alpha, beta) alpha moves the scores of all classes alike, so that the "
    "sets differ in beta alone."
)
STRAGGLERS = (0.0, 0.5, 0.9)


class Task(NamedTuple):
    """A data set with its model and the hyperparameters that the paper tuned for it.

    Attributes:
        key: Short name, for runs.
        title: Name in figures.
        data: `[data]` of an experiment.
        learning_rate: The paper's learning rate (section 5.1, appendix C.2).
        mu: The paper's best mu (section 5.3.2).
        rounds: Rounds of the paper's figures.
        clients_per_round: Clients K of a round.
        note: How ours differs from the paper's, and what was scaled down.
        missing: Why the task cannot be run; "" if it can.
        model: `[model]` of an experiment.
        client_rows: Rows of each client that are used at most.
        evaluation: `[evaluation]` of an experiment.
        seeds: Most seeds to run; None for all of the scale.
    """

    key: str
    title: str
    data: Table
    learning_rate: float
    mu: float
    rounds: int
    clients_per_round: int = 10
    note: str = ""
    missing: str = ""
    model: Table = {"name": "logistic"}  # noqa: RUF012 (never changed)
    client_rows: int | None = None
    evaluation: Table = {}  # noqa: RUF012 (never changed)
    seeds: int | None = None

    def experiment(
        self,
        *methods: Table,
        stragglers: float = 0.0,
        epochs: int = 20,
        clients_per_round: int | None = None,
        sampling: str = "uniform",
        rounds: int | None = None,
    ) -> Table:
        """An experiment as TOML would hold it; batch 10, as in all figures of the papers."""
        limits: Table = {} if self.client_rows is None else {"client_rows": self.client_rows}
        clients = clients_per_round or self.clients_per_round
        return experiment(
            dict(self.data),
            dict(self.model),
            {"learning_rate": self.learning_rate, "batch_size": 10, "epochs": epochs},
            methods,
            rounds=rounds or self.rounds,
            cohort={"clients_per_round": clients, "sampling": sampling},
            evaluation=dict(self.evaluation),
            seeds=self.seeds,
            systems={"stragglers": stragglers},
            **limits,
        )


def feddane(*mu: float) -> Table:
    """`[[method]]` for FedDANE with one mu or a sweep."""
    return {"name": "feddane", "mu": list(mu)}


def mu_label(mu: float) -> str:
    """The label of FedProx's run with this mu."""
    return f"fedprox mu={mu:g}"


def two_mus(run: str, mu: float | str) -> tuple[Line, Line]:
    """FedProx's lines with mu = 0 and with another mu, which is given as a number or a label."""
    label = mu if isinstance(mu, str) else mu_label(mu)
    zero = Line(run, "fedprox mu=0", "FedProx, mu = 0")
    return zero, Line(run, label, "FedProx, mu > 0")


def on_each(
    tasks: Sequence[Task], runs: str | tuple[str, str], greater: str, less: str, suffix: str = ""
) -> tuple[Comparison, ...]:
    """The same comparison on several data sets.

    Args:
        tasks: The data sets; those that cannot be run are left out.
        runs: Name of the run, or of each side's, with "{}" for the task's key.
        greater: Label of the greater side, with "{}" for the task's best mu.
        less: Label of the other side, with "{}" for the task's best mu.
        suffix: Text after the task's title in `where`.
    """
    first, second = (runs, runs) if isinstance(runs, str) else runs
    return tuple(
        Comparison(
            f"{task.title}{suffix}",
            Line(first.format(task.key), greater.format(f"{task.mu:g}")),
            Line(second.format(task.key), less.format(f"{task.mu:g}")),
            task.note,
        )
        for task in tasks
        if not task.missing
    )


def each_above_previous(tasks: Sequence[Task], run: str, label: str) -> tuple[Comparison, ...]:
    """Each data set against the one before it, which should have the smaller value."""
    return tuple(
        Comparison(
            f"{after.title} above {before.title}",
            Line(run.format(after.key), label),
            Line(run.format(before.key), label),
        )
        for before, after in itertools.pairwise(tasks)
    )


def row(
    tasks: Sequence[Task],
    measure: str,
    lines: Callable[[Task], tuple[Line, ...]],
    label: str = "",
    title: Callable[[Task], str] = lambda task: task.title,
) -> Row:
    """A row of panels with a column for each data set, empty for those that cannot be run."""

    def panel(task: Task) -> Panel:
        return Panel(title(task), measure, () if task.missing else lines(task), task.missing)

    return Row(label, tuple(panel(task) for task in tasks))


def rows(
    tasks: Sequence[Task], measures: Sequence[str], lines: Callable[[Task], tuple[Line, ...]]
) -> tuple[Row, ...]:
    """A row for each measure, a column for each data set."""
    return tuple(row(tasks, measure, lines) for measure in measures)


def table_1(name: str, partition: str = "", *, paper: str = FEDPROX) -> tuple[Any, ...]:
    """A row of a paper's Table 1: clients, examples, and their mean and deviation by client."""
    return next(row[:4] for row in PAPERS[name, partition] if row.source.startswith(paper))


def synthetic_tasks(clients_per_round: int) -> tuple[Task, ...]:
    """The four synthetic sets, from IID to the most heterogeneous."""

    def task(key: str, title: str, **options: Any) -> Task:
        data = {"name": "synthetic", **options}
        return Task(f"synthetic-{key}", title, data, 0.01, 1.0, 200, clients_per_round)

    return (
        task("iid", "Synthetic IID", iid=True),
        *(task(f"{a:g}-{a:g}", f"Synthetic ({a:g}, {a:g})", alpha=a, beta=a) for a in (0, 0.5, 1)),
    )


SYNTHETIC = synthetic_tasks(10)
IID, HETEROGENEOUS, MOST = SYNTHETIC[0], SYNTHETIC[1:], SYNTHETIC[3]
FEWER_LETTERS = "of `emnist_lowercase.npz` about half the paper's images"
MNIST = Task("mnist", "MNIST", {"name": "mnist"}, 0.03, 1.0, 100)
FEMNIST = Task("femnist", "FEMNIST", {"name": "femnist"}, 0.003, 1.0, 200, note=FEWER_LETTERS)
SHAKESPEARE = Task(
    "shakespeare",
    "Shakespeare",
    {"name": "shakespeare"},
    0.8,
    0.001,
    40,
    note="25 windows of a role in place of 3,616, 10 of them measured",
    model={"name": "char-lstm"},
    client_rows=25,
    evaluation={"every": 2, "rows": 10},
    seeds=1,
)
SENT140 = Task(
    "sent140",
    "Sent140",
    {"name": "sent140", "vocabulary": 2000},
    0.3,
    0.01,
    200,
    note=f"200 rounds in place of 800, words as in the code, {FEWER_TWEETS}, {SMALLER_MODEL}",
    model={"name": "sentiment-lstm", "hidden": 100, "embedding": 50},
    evaluation={"every": 5},
    seeds=1,
)
FIVE = (MOST, MNIST, FEMNIST, SHAKESPEARE, SENT140)
LOGISTIC = (*SYNTHETIC, MNIST, FEMNIST)
"""The data sets of logistic regression."""


def run_key(task: Task, stragglers: float, epochs: int = 20) -> str:
    """The name of a run of `runs_of`."""
    return f"{task.key}-s{100 * stragglers:.0f}" + ("" if epochs == 20 else f"-e{epochs}")


def runs_of(
    tasks: Sequence[Task], stragglers: Sequence[float], epochs: int = 20
) -> dict[str, Table]:
    """FedAvg (without stragglers it equals mu = 0), mu = 0, and with E = 20 the best mu."""

    def run(task: Task, s: float) -> Table:
        mus = (0.0, task.mu) if epochs == 20 else (0.0,)
        methods = [FEDAVG] if s else []
        return task.experiment(*methods, fedprox(*mus), stragglers=s, epochs=epochs)

    return {run_key(task, s, epochs): run(task, s) for s in stragglers for task in tasks}
