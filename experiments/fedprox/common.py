"""Parts of the items of both FedProx papers."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from experiments.engine.item import Comparison, Curve, Row, Side, Table, Task
from fedprox.datasets.statistics import FEDPROX, PAPERS

TOO_LONG = "an LSTM with E = 50, or for 1,000 rounds, takes many hours on two cores"
FEWER_LETTERS = "of `emnist_lowercase.npz` about half the paper's images"


def table_1(name: str, partition: str = "", *, paper: str = FEDPROX) -> tuple[Any, ...]:
    """A row of a paper's Table 1: clients, examples, and their mean and deviation by client."""
    return next(row[:4] for row in PAPERS[name, partition] if row.source.startswith(paper))


def feddane(*mu: float) -> Table:
    """`[[method]]` for FedDANE with one mu or a sweep."""
    return {"name": "feddane", "mu": list(mu)}


def mu_label(mu: float) -> str:
    """The label of FedProx's run with this mu."""
    return f"fedprox mu={mu:g}"


def two_mus(run: str, mu: float | str) -> tuple[Curve, Curve]:
    """FedProx's lines with mu = 0 and with another mu, which is given as a number or a label."""
    label = mu if isinstance(mu, str) else mu_label(mu)
    return (
        Curve(run, "fedprox mu=0", "FedProx, mu = 0"),
        Curve(run, label, "FedProx, mu > 0"),
    )


def synthetic_tasks(clients_per_round: int) -> tuple[Task, ...]:
    """The four synthetic sets, from IID to the most heterogeneous."""

    def task(key: str, title: str, **options: Any) -> Task:
        data = {"name": "synthetic", **options}
        return Task(f"synthetic-{key}", title, data, 0.01, 1.0, 200, clients_per_round)

    return (
        task("iid", "Synthetic IID", iid=True),
        *(task(f"{a:g}-{a:g}", f"Synthetic ({a:g}, {a:g})", alpha=a, beta=a) for a in (0, 0.5, 1)),
    )


def on_each(
    tasks: Sequence[Task], run: str, greater: str, less: str, suffix: str = ""
) -> tuple[Comparison, ...]:
    """The same comparison on several data sets.

    Args:
        tasks: The data sets; those that cannot be run are left out.
        run: Name of the run, with "{}" for the task's key.
        greater: Label of the greater side, with "{}" for the task's best mu.
        less: Label of the other side, with "{}" for the task's best mu.
        suffix: Text after the task's title in `where`.
    """
    return tuple(
        Comparison(
            f"{task.title}{suffix}",
            Side(run.format(task.key), greater.format(f"{task.mu:g}")),
            Side(run.format(task.key), less.format(f"{task.mu:g}")),
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
            Side(run.format(after.key), label),
            Side(run.format(before.key), label),
        )
        for before, after in itertools.pairwise(tasks)
    )


def measures_by_task(
    tasks: Sequence[Task], measures: Sequence[str], curves: Callable[[Task], tuple[Curve, ...]]
) -> tuple[Row, ...]:
    """A row for each measure, a column for each data set.

    Args:
        tasks: The columns.
        measures: The rows.
        curves: A function from a task to its lines.
    """
    return tuple(
        Row("", tuple(task.panel(measure, *curves(task)) for task in tasks)) for measure in measures
    )
