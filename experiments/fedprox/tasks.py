"""Li et al. 2020 and its draft: the data sets with their hyperparameters, and parts of items."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.common import FEDAVG, FEDPROX_PAPER, FEWER_TWEETS, SMALLER_MODEL, fedprox
from experiments.engine.item import MOST_SEEDS, Comparison, Line, Panel, Table
from fedprox.datasets import FEDPROX, PAPERS

PAPER = FEDPROX_PAPER
ONE_DRAW = (
    "The paper has one draw of each synthetic set, which its code does not seed; ours has one for "
    "each seed. In Synthetic(alpha, beta) alpha moves the scores of all classes alike, so that the "
    "sets differ in beta alone."
)
STRAGGLERS = (0, 50, 90)
"""Per cent of the clients."""


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
        model: `[model]` of an experiment.
        evaluation: `[evaluation]` of an experiment.
        options: Further keys of an experiment.
    """

    key: str
    title: str
    data: Table
    learning_rate: float
    mu: float
    rounds: int
    clients_per_round: int = 10
    note: str = ""
    model: Table = {"name": "logistic"}  # noqa: RUF012 (never changed)
    evaluation: Table = {}  # noqa: RUF012 (never changed)
    options: Table = {}  # noqa: RUF012 (never changed)

    def experiment(
        self,
        *methods: Table,
        stragglers: int = 0,
        epochs: int = 20,
        clients_per_round: int | None = None,
        sampling: str = "uniform",
    ) -> Table:
        """An experiment as TOML would hold it; batch 10, as in all figures of the papers."""
        clients = clients_per_round or self.clients_per_round
        return {
            "rounds": self.rounds,
            "data": self.data,
            "model": self.model,
            "evaluation": self.evaluation,
            "cohort": {"clients_per_round": clients, "sampling": sampling},
            "systems": {"stragglers": stragglers / 100},
            "solver": {"learning_rate": self.learning_rate, "batch_size": 10, "epochs": epochs},
            "method": list(methods),
            **self.options,
        }


def feddane(*mu: float) -> Table:
    """`[[method]]` for FedDANE with one mu or a sweep."""
    return {"name": "feddane", "mu": list(mu)}


def on_each(
    tasks: Sequence[Task], runs: str | tuple[str, str], greater: str, less: str, suffix: str = ""
) -> tuple[Comparison, ...]:
    """The same comparison on several data sets.

    Args:
        tasks: The data sets.
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
    *runs: str,
    labels: Sequence[str] = (),
    title: str = "{}",
) -> tuple[Panel, ...]:
    """A row of panels with a column for each data set.

    Args:
        tasks: The data sets.
        measure: The measure.
        runs: The runs of a panel, with "{}" for the task's key.
        labels: The lines of each run, with "{}" for the task's best mu; all of them if empty.
        title: Title of a panel, with "{}" for the task's.
    """
    return tuple(
        Panel(
            title.format(task.title),
            measure,
            tuple(run.format(task.key) for run in runs),
            tuple(label.format(f"{task.mu:g}") for label in labels),
        )
        for task in tasks
    )


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
    evaluation={"every": 2, "rows": 10},
    options={MOST_SEEDS: 1, "client_rows": 25},
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
    options={MOST_SEEDS: 1},
)
FIVE = (MOST, MNIST, FEMNIST, SHAKESPEARE, SENT140)
LOGISTIC = (*SYNTHETIC, MNIST, FEMNIST)
"""The data sets of logistic regression."""


def runs_of(
    tasks: Sequence[Task], stragglers: Sequence[int] = (0,), epochs: int = 20
) -> dict[str, Table]:
    """FedAvg (without stragglers it equals mu = 0), mu = 0, and with E = 20 the best mu."""

    def run(task: Task, s: int) -> Table:
        mus = (0.0, task.mu) if epochs == 20 else (0.0,)
        methods = [FEDAVG] if s else []
        return task.experiment(*methods, fedprox(*mus), stragglers=s, epochs=epochs)

    end = "" if epochs == 20 else f"-e{epochs}"
    return {f"{task.key}-s{s}{end}": run(task, s) for s in stragglers for task in tasks}
