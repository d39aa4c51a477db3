"""The table of a comparison."""

import io
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedprox.errors import require
from fedprox.measures import DRAWN, measure_of
from fedprox.report.records import has, highest, value_of
from fedprox.report.rows import by_label
from fedprox.results.run import Run
from fedprox.results.target import Target

WIDEST = 10_000
"""Width of a table as text, in characters, so that no cell is folded."""


class TextTable(Table):
    """A rich table whose `str` is its text, so that `print` shows it as a console does."""

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=WIDEST, color_system=None, force_jupyter=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    __repr__ = __str__


def grid(headers: Sequence[str | Text], *, left: int = 0, **columns: Any) -> TextTable:
    """A table without lines, of whose columns the first ones are aligned to the left."""
    shown = TextTable(box=None, pad_edge=False, header_style="bold")
    for place, header in enumerate(headers):
        shown.add_column(header, justify="left" if place < left else "right", **columns)
    return shown


def facts(rows: Iterable[Sequence[str]], style: str = "") -> TextTable:
    """A table of what was found, its value, and a note."""
    shown = TextTable(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True, style=style)
    shown.add_column(no_wrap=True, justify="right")
    for row in rows:
        shown.add_row(*row)
    return shown


def common_target(runs: Sequence[Run]) -> Target | None:
    """The highest whole per cent of test accuracy that all runs reach, without diverged runs.

    If all runs have validation accuracy, it is used instead. None if there is no such per cent.
    """
    compared = [run for run in runs if run.diverged_at is None]
    measure = "test_accuracy"
    if compared and all(run.validated for run in compared):
        measure = "validation_accuracy"
    best = min((highest(run.history, measure) for run in compared), default=math.nan)
    # the margin keeps 0.29 from becoming 28 per cent: 100 * 0.29 is just below 29
    per_cent = math.floor(100 * best + 1e-9) if best >= 0.01 else 0
    return Target(measure, per_cent / 100) if per_cent else None


def metrics_on_test_rows(runs: Sequence[Run]) -> list[str]:
    """The names of all metrics on test rows."""
    names = dict.fromkeys(name for run in runs for name in run.final.metrics)
    return [name for name in names if name.startswith("test_")]


def table(runs: Sequence[Run], target: Target | None = None) -> TextTable:
    """A table of results with one row for each method and its hyperparameters.

    Values are means over seeds, +- their standard deviation. With a single seed, +- is the standard
    error if evaluations read a sample of clients.

    Losses, accuracies and metrics are those of each run's parameters: of its last round, or of its
    best round if the run keeps that.

    Each of the model's metrics on test rows has a column. With validation rows, their accuracy has
    a column too, and the best accuracy is the test accuracy of the record with the highest
    validation accuracy. With `Evaluation(by_client=True)`, the mean test accuracy of the worst
    tenth of the clients has a column; if clients have models of their own, their accuracy has one.

    If clients have devices, the seconds by them until the target have a column.

    Models sent until the target are in units of one round of FedAvg. If a seed has not reached the
    target, rounds and models are those of all its rounds, with a "+".

    Runs of several comparisons share a row only if all of their settings but the seed are equal.
    Otherwise the rows say in which settings they differ, as in "fedavg · stragglers 0.5".

    Args:
        runs: The runs of one or more comparisons. The points of a sweep run together; their seconds
            are shown with the number of points.
        target: The target to which rounds are counted. If omitted, it is the highest whole per cent
            of test accuracy, or of validation accuracy with validation rows, that every run
            reaches.

    Returns:
        A `rich.table.Table` whose `str` is the table as text.

    Raises:
        InputError: If there are no runs, runs of one label are of experiments that differ in more
            than a few simple settings, or a run is given twice.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> runs = fp.simulate(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=1),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=2,
        ... )
        >>> [column.header for column in table(runs).columns][:3]
        ['method', 'train loss', 'test accuracy']
    """
    require(runs, "runs: none given; at least one is needed")
    target = target or common_target(runs)
    columns = _columns(runs, target)
    shown = grid(["method", *columns], left=1, overflow="fold")
    for label, group in by_label(runs).items():
        cells = {header: cell(group) for header, cell in columns.items()}
        diverged = [run for run in group if run.diverged_at is not None]
        if diverged:
            at = ", ".join(str(run.diverged_at) for run in diverged)
            who = "" if len(group) == 1 else f" ({len(diverged)} of {len(group)} seeds)"
            cells = {h: cell if h in OF_DIVERGED else "" for h, cell in cells.items()}
            cells["train loss"] = f"diverged at round {at}{who}"
        shown.add_row(Text(label), *cells.values())
    return shown


OF_DIVERGED = ("best accuracy", "epsilon", "seconds")
"""The columns that a diverged run has."""


def _columns(
    runs: Sequence[Run], target: Target | None
) -> dict[str, Callable[[Sequence[Run]], str]]:
    """The columns: for each header, a function of the runs of a row that makes its cell."""

    def known(name: str) -> bool:
        return any(has(run.final, name) for run in runs)

    columns: dict[str, Callable[[Sequence[Run]], str]]
    columns = {
        measure_of(name).header: partial(_measured, name)
        for name in DRAWN
        if measure_of(name).header and known(name)
    }
    columns["best accuracy"] = lambda group: spread(
        [100 * run.best_accuracy for run in group], "{:.2f}", " %"
    )
    for name in metrics_on_test_rows(runs):
        columns[name.replace("_", " ")] = partial(_measured, name)
    if known("epsilon"):
        columns["epsilon"] = _spent
    goal, until = target or "target", partial(_until, target)
    columns[f"rounds to {goal}"] = partial(until, Run.rounds_to, "round", "{:.1f}", "{}")
    if known("time"):
        columns[f"time to {goal}"] = partial(until, Run.time_to, "time", "{:.0f}", "{:.0f}")
    columns["models sent"] = partial(until, Run.models_to, "communication", "{:.1f}", "{}")
    columns["seconds"] = _seconds
    return columns


def _measured(name: str, group: Sequence[Run]) -> str:
    """A measure of the runs' models; that of a single run with its standard error if it has one."""
    finals = [run.model_record for run in group]
    values = [value_of(record, name) for record in finals]
    scale, form, unit = 1, "{:.4f}", ""
    if measure_of(name).percent:
        scale, form, unit = 100, "{:.2f}", " %"
    elif not all(value < 1e4 for value in values):
        form = "{:.2e}"
    text = spread([scale * value for value in values], form)
    error = value_of(finals[0], f"{name}_se")
    if len(group) == 1 and text != "-" and math.isfinite(error):
        text += " ± " + form.format(scale * error)
    return text if text == "-" else text + unit


def _seconds(group: Sequence[Run]) -> str:
    points = group[0].sweep_points
    seconds = f"{sum(run.run_seconds for run in group):.1f}"
    return f"{seconds} for {points}" if points > 1 else seconds


def _spent(group: Sequence[Run]) -> str:
    """The largest epsilon of some runs."""
    epsilons = [value_of(run.final, "epsilon") for run in group if has(run.final, "epsilon")]
    largest = max((math.inf if math.isnan(e) else e for e in epsilons), default=math.nan)
    return "-" if math.isnan(largest) else f"{largest:.3g}"


def _until(
    target: Target | None,
    reach: Callable[[Run, Target], float | None],
    name: str,
    form: str,
    form_of_missed: str,
    group: Sequence[Run],
) -> str:
    """A cost until the target; the whole one with a "+" where a run does not reach it."""
    if target is None:
        return ""
    costs = [reach(run, target) for run in group]
    if missed := [run.final for run, cost in zip(group, costs, strict=True) if cost is None]:
        return form_of_missed.format(max(getattr(record, name) or 0 for record in missed)) + "+"
    return spread([cost for cost in costs if cost is not None], form)


def spread(values: Sequence[float], form: str, unit: str = "") -> str:
    """Mean +- standard deviation, in the given form; "-" where a value is not finite.

    >>> spread([0.5, 1.5], "{:.1f}"), spread([50.0], "{:.0f}", " %")
    ('1.0 ± 0.7', '50 %')
    """
    if not all(map(math.isfinite, values)):
        return "-"
    text = form.format(fmean(values))
    if len(values) > 1:
        text += " ± " + form.format(stdev(values))
    return text + unit
