"""Tables, their files, the table of a comparison, and what is said below it."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedprox.errors import plural, require
from fedprox.measures import DRAWN, measure_of
from fedprox.parts.privacy.correlated import CORRELATIONS, Strategy
from fedprox.report.records import by_label, has, highest, number_of, without_diverged
from fedprox.results.run import Run
from fedprox.results.target import Target

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "∞": r"$\infty$",
    "<": r"$<$",
    ">": r"$>$",
    **{special: f"\\{special}" for special in "&%$#_{}"},
}
"""How LaTeX writes characters that it would read as commands, or that a font may lack."""


def latex(text: str) -> str:
    r"""A text for LaTeX.

    >>> print(latex("90 % of FedAvg_1 ± 0.1"))
    90 \% of FedAvg\_1 $\pm$ 0.1
    """
    return "".join(LATEX.get(character, character) for character in text)


def latex_table(caption: str, columns: str, header: Sequence[str], rows: Iterable[str]) -> str:
    r"""A `table` environment with the rules of the package booktabs; header and rows are LaTeX."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex(caption)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *header,
        r"\midrule",
        *(rf"{row} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def csv_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with the same keys as comma-separated values."""
    return csv_text(list(rows[0]), [list(row.values()) for row in rows])


def csv_text(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Rows as comma-separated values.

    >>> csv_text(["a", "b"], [[1, "x,y"]])
    'a,b\r\n1,"x,y"\r\n'
    """
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    writer.writerow(headers)
    writer.writerows(rows)
    return lines.getvalue()


class ReportTable(NamedTuple):
    """A table of the report, and its files where these are not made of its cells."""

    caption: str
    headers: Sequence[str]
    rows: list[list[str]]
    holds: Literal["numbers", "words"] = "numbers"
    csv: str = ""
    tex: str = ""

    @property
    def files(self) -> dict[str, str]:
        """The contents that the buttons of the table save, by the file's ending."""
        columns = "l" + ("r" if self.holds == "numbers" else "l") * (len(self.headers) - 1)
        header, *rows = (" & ".join(map(latex, row)) for row in (self.headers, *self.rows))
        return {
            "csv": self.csv or csv_text(self.headers, self.rows),
            "tex": self.tex or latex_table(self.caption, columns, [rf"{header} \\"], rows),
        }


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
    compared = without_diverged(runs)
    measure = "test_accuracy"
    if compared and all(run.validated for run in compared):
        measure = "validation_accuracy"
    best = min((highest(run.history, measure) for run in compared), default=math.nan)
    # noise may make an accuracy larger than 1; the margin keeps 0.29, of which 100 times is just
    # below 29, from becoming 28 per cent
    per_cent = math.floor(100 * min(best, 1.0) + 1e-9) if best >= 0.01 else 0
    return Target(measure, per_cent / 100) if per_cent else None


def metrics_on_test_rows(runs: Sequence[Run]) -> list[str]:
    """The names of all metrics on test rows."""
    names = dict.fromkeys(name for run in runs for name in run.final.metrics)
    return [name for name in names if name.startswith("test_")]


def table(runs: Sequence[Run], target: Target | None = None) -> TextTable:
    """A table of results with one row for each method and its hyperparameters.

    Values are means over seeds, +- their standard deviation. With a single seed, +- is the standard
    error if evaluations read a sample of clients.

    Losses, accuracies and metrics are of the model that each run keeps: of its last round, or of
    its best round (:class:`fedprox.Selection`).

    Each of the model's metrics on test rows has a column. With validation rows, their accuracy has
    a column too, and the best accuracy is the test accuracy of the record with the highest
    validation accuracy. With `Evaluation(by_client=True)`, the mean test accuracy of the worst
    tenth of the clients has a column; if clients have models of their own, their accuracy has one.

    If clients have devices, the seconds until the target have a column, by the devices' clocks.

    Communication until the target is in rounds of FedAvg: a model to each client of the cohort and
    one back. If a seed has not reached the target, its rounds and communication are those of all
    its rounds, with a "+".

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
    columns["best accuracy"] = lambda group: mean_and_spread(
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
    columns["communication"] = partial(until, Run.models_to, "communication", "{:.1f}", "{}")
    columns["seconds"] = _seconds
    return columns


def _measured(name: str, group: Sequence[Run]) -> str:
    """A measure of the runs' models; that of a single run with its standard error if it has one."""
    finals = [run.model_record for run in group]
    values = [number_of(record, name) for record in finals]
    scale, form, unit = 1, "{:.4f}", ""
    if measure_of(name).percent:
        scale, form, unit = 100, "{:.2f}", " %"
    elif not all(value < 1e4 for value in values):
        form = "{:.2e}"
    text = mean_and_spread([scale * value for value in values], form)
    error = number_of(finals[0], f"{name}_se")
    if len(group) == 1 and text != "-" and math.isfinite(error):
        text += " ± " + form.format(scale * error)
    return text if text == "-" else text + unit


def _seconds(group: Sequence[Run]) -> str:
    points = group[0].sweep_points
    seconds = f"{sum(run.run_seconds for run in group):.1f}"
    return f"{seconds} for {points}" if points > 1 else seconds


def _spent(group: Sequence[Run]) -> str:
    """The largest epsilon of some runs."""
    epsilons = [number_of(run.final, "epsilon") for run in group if has(run.final, "epsilon")]
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
    if not target:
        return ""
    costs = [reach(run, target) for run in group]
    if missed := [run.final for run, cost in zip(group, costs, strict=True) if cost is None]:
        return form_of_missed.format(max(getattr(record, name) or 0 for record in missed)) + "+"
    return mean_and_spread([cost for cost in costs if cost is not None], form)


def mean_and_spread(values: Sequence[float], form: str, unit: str = "") -> str:
    """Mean +- standard deviation, in the given form; "-" where a value is not finite.

    >>> mean_and_spread([0.5, 1.5], "{:.1f}"), mean_and_spread([50.0], "{:.0f}", " %")
    ('1.0 ± 0.7', '50 %')
    """
    if not all(map(math.isfinite, values)):
        return "-"
    text = form.format(fmean(values))
    if len(values) > 1:
        text += " ± " + form.format(stdev(values))
    return text + unit


EVALUATED = {
    "cohort": "the mean of the round's clients",
    "clients": "the mean of every client's last model",
}
"""The models that may be evaluated in place of the one that is sent out, by name."""

RISEN = 3
"""How many times its initial value a training loss ends at in a run that is warned of. Where few
clients take part, it may rise a little without a mistake."""


LONG = 1.0
"""Seconds of callbacks from which on they are said, if they are a tenth of the others too."""


def note_on_costs(runs: Sequence[Run], target: Target | None) -> list[str]:
    """The meaning of the columns that count until a target, the one of `table`, if there is one."""
    target = target or common_target(runs)
    if target is None:
        return []
    measure = target.measure.replace("_", " ", 1)
    return [
        f"rounds to {target}: until the {measure} reaches it; communication: until then, in rounds "
        "of FedAvg"
    ]


def notes_on(runs: Sequence[Run]) -> list[str]:
    """How to read the numbers: which models they are of, what is estimated, what epsilon means."""
    evaluated = dict.fromkeys(run.evaluated for run in runs)
    lines = [f'evaluated, as "{n}": {EVALUATED[n]}' for n in evaluated if n in EVALUATED]
    if any(run.validated for run in runs):
        lines.append(
            "best accuracy is the test accuracy at the round of the highest validation accuracy: "
            "test rows choose nothing"
        )
    lines += dict.fromkeys(_guarantee(run) for run in runs if _private(run))
    lines += dict.fromkeys(filter(None, map(_separated, runs)))
    if (points := max(run.sweep_points for run in runs)) > 1:
        lines.append(
            f'seconds "for {points}": one program trains {points} hyperparameter values at once, '
            "and this is their time together"
        )
    called = sum(run.callback_seconds / run.sweep_points for run in runs)
    others = sum(run.run_seconds / run.sweep_points for run in runs)
    if called >= max(LONG, others / 10):
        lines.append(f"seconds leave out {called:.1f} s of callbacks and loggers")
    if any(run.model_record is not run.final for run in runs):
        lines.append("figures are of each run's best model; summary.json names its round")
    return lines + _standard_errors(runs)


def _private(run: Run) -> bool:
    """Whether a run has privacy."""
    return has(run.final, "delta")


def _guarantee(run: Run) -> str:
    """The meaning of a private run's epsilon, and what is outside the guarantee."""
    privacy = run.experiment.get("privacy") or {}
    unit = "row" if privacy.get("unit") == "example" else "client"
    private, others = "models", "losses, accuracies and the choice among runs"
    if privacy.get("measures"):
        private, others = (
            "models, losses and accuracies",
            "counts of clients and the choice of a run",
        )
    delta = number_of(run.final, "delta")
    return (
        f"epsilon: a run's {private} are (epsilon, {delta:g})-differentially private "
        f"for each {unit}; {others} are outside the guarantee"
    )


def _separated(run: Run) -> str:
    """How noise is correlated, and what a client's rounds are apart; empty if they may be any."""
    separation = run.experiment.get("cohort", {}).get("min_separation")
    if not (_private(run) and separation):
        return ""
    strategy = Strategy(run.experiment["privacy"]["mechanism"], separation, run.final.round)
    most = plural(strategy.participations(run.final.round), "round")
    return (
        f"epsilon assumes {CORRELATIONS[strategy.kind]}, and that a client takes part in at most "
        f"{most}, at least {separation:,} apart"
    )


def _standard_errors(runs: Sequence[Run]) -> list[str]:
    """A line with the standard errors of estimates from a sample of clients."""
    finals = [run.final for run in without_diverged(runs)]
    loss, accuracy = (highest(finals, name) for name in ("train_loss_se", "test_accuracy_se"))
    if math.isnan(loss):
        return []
    of = f"{loss:.2g} of training loss"
    if math.isfinite(accuracy):
        of += f" and {100 * accuracy:.2g} % of test accuracy"
    single = all(len(group) == 1 for group in by_label(runs).values())
    shown = ", shown after ±," if single else ""
    return [
        f"train loss and test accuracy are estimates from a sample of clients: standard errors"
        f"{shown} of at most {of}; the sample is the same for all, so methods differ by less"
    ]


def warnings_on(runs: Sequence[Run], *, finished: bool = True) -> list[str]:
    """The warnings of runs, a line for each method and kind.

    In a comparison that ran to its end (`finished`), a run that is shorter ended early.
    """
    return [
        f"{label}: {line}"
        for label, group in by_label(runs).items()
        for line in _warnings(group, finished)
    ]


def _warnings(group: Sequence[Run], finished: bool) -> Iterator[str]:
    """The warnings of the runs of a method."""
    records = [record for run in group for record in run.history]
    known = [[r.train_loss for r in run.history if r.measured is not False] for run in group]
    losses = [(each[0], each[-1]) for each in known if each]
    if risen := [pair for pair in losses if not pair[1] <= RISEN * abs(pair[0])]:
        first, last = max(risen, key=lambda pair: math.inf if math.isnan(pair[1]) else pair[1])
        seeds = f" in {len(risen)} of {len(group)} seeds" * (len(group) > 1)
        to = f"{last:.4g}" if math.isfinite(last) else "a number that is not finite"
        noise = " or less noise" * any(map(_private, group))
        yield (
            f"training loss rose from {first:.4g} to {to}{seeds}; a smaller learning rate{noise} "
            "is the usual remedy"
        )
    ends = [run.final.round for run in without_diverged(group)]
    if finished and len(set(ends)) > 1:
        last = all(run.model_record is run.final for run in group)
        shown = "; figures are of then" if last else ""
        yield f"its seeds stopped after {', '.join(map(str, ends))} rounds{shown}"
    if empty := sum(run.empty_rounds for run in group):
        rounds = sum(run.final.round for run in group)
        private = any(map(_private, group))
        effect = "added nothing but noise" if private else "left the model as it was"
        yield f"no client took part in {empty} of {plural(rounds, 'round')}, which {effect}"
    measured = [record for run in group for record in run.history[1:]]
    if missed := sum(record.unsolved for record in measured):
        solves = sum(record.solves for record in measured)
        yield (
            f"{missed} of {solves} measured local solves reached the solver's limit before its "
            "gamma"
        )
    if updates := sum(run.faulty or 0 for run in group):
        clients = len({name for record in records for name in record.faulty_clients or ()})
        of = plural(clients, "client")
        yield f"{plural(updates, 'faulty update')}, of {of}; metrics.jsonl names them"
    if most := max(record.unmeasured or 0 for record in records):
        up_to = plural(most, "client")
        yield f"evaluations leave out up to {up_to} whose loss or gradient is not finite"
