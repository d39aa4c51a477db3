"""The table of a comparison."""

import io
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedprox.errors import require
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.results.target import Target

WIDEST = 10_000
"""Width of a table as text, in characters, so that no cell is folded."""

MOST_SAID, LONGEST_SAID = 3, 20
"""The most settings that the name of a row says, and the most characters of one that is text."""


class TextTable(Table):
    """A rich table whose `str` is its text, so that `print` shows it as a console does."""

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=WIDEST, color_system=None, force_jupyter=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    __repr__ = __str__


RATE = "solver.learning_rate"
"""Name of the setting that is the run's own in a sweep."""


def by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each row or line: of one label and one experiment, one run for each seed.

    If the runs are of several experiments that differ in few and simple settings, the names of the
    rows say these settings.

    Raises:
        InputError: If runs of one label and seed cannot be told apart, or runs of one label are of
            experiments that differ in more.

    >>> known = dict(method="fedavg", hparams={}, learning_rate=0.1, seed=0, label="fedavg")
    >>> few, many = ({"systems": {"stragglers": share}} for share in (0.0, 0.5))
    >>> list(by_label([Run(**known, experiment=few), Run(**known, experiment=many)]))
    ['fedavg · stragglers 0', 'fedavg · stragglers 0.5']
    """
    settings = [_settings(run) for run in runs]
    # the runs of any comparison differ in these, which labels say
    own = {RATE, *(name for run in runs for name in run.hparams)}
    first: dict[str, dict[str, Any]] = {}
    different: dict[str, None] = {}
    for run, each in zip(runs, settings, strict=True):
        for name in [*each, *settings[0]]:
            other = first.setdefault(run.label, each) if name in own else settings[0]
            if each.get(name) != other.get(name):
                different[name] = None
    said = len(different) <= MOST_SAID and all(
        _is_simple(each.get(name)) for each in settings for name in different
    )
    grouped: dict[str, list[Run]] = {}
    experiments: dict[str, dict[str, Any]] = {}
    for run, each in zip(runs, settings, strict=True):
        row = run.label
        if said:
            row = " · ".join([row, *(_said(name, each.get(name)) for name in different)])
        known = experiments.setdefault(row, each)
        require(
            each == known,
            f"runs: those of {run.label!r} are of experiments that differ in "
            f"{', '.join(n for n in different if each.get(n) != known.get(n))}, which are no seeds "
            "to average over; give the runs of one experiment at a time",
        )
        require(
            run.seed not in [other.seed for other in grouped.setdefault(row, [])],
            f"runs: {row!r} with seed {run.seed} is given more than once, which are no seeds to "
            "average over; give each run once, and the runs of one experiment at a time",
        )
        grouped[row].append(run)
    return grouped


def _settings(run: Run) -> dict[str, Any]:
    """What seeds of one row share, by name; empty for a run that does not know its experiment."""
    if not run.experiment:
        return {}
    # methods are in the label; where client state is stored changes no result
    others = ("seed", "method", "versions", "client_store")
    settings: dict[str, Any] = {}
    for key, value in run.experiment.items():
        if isinstance(value, Mapping):
            settings |= {f"{key}.{name}": each for name, each in value.items()}
        elif key not in others:
            settings[key] = value
    if not isinstance(settings.get(RATE), str):  # the name of a schedule
        settings[RATE] = run.learning_rate
    return settings | run.hparams


def _is_simple(value: object) -> bool:
    """Whether a setting fits into the name of a row."""
    if isinstance(value, str):
        return len(value) <= LONGEST_SAID
    return value is None or isinstance(value, int | float)


def _said(name: str, value: object) -> str:
    """A setting in the name of a row."""
    section, _, key = name.rpartition(".")
    name = key if section in ("systems", "cohort", "solver") else name
    if value is None or isinstance(value, bool):
        text = {None: "none", True: "yes", False: "no"}[value]
    else:
        text = value if isinstance(value, str) else f"{value:g}"
    return f"{name.replace('_', ' ')} {text}"


def common_target(runs: Sequence[Run]) -> Target | None:
    """The highest whole per cent of test accuracy that all runs reach, without diverged runs.

    If all runs have validation accuracy, it is used instead. None if there is no such per cent.
    """
    compared = [run for run in runs if run.diverged_at is None]
    measure = "test_accuracy"
    if compared and all(run.validated for run in compared):
        measure = "validation_accuracy"
    reached = [_highest([r.value(measure) for r in run.history]) for run in compared]
    best = min(reached, default=math.nan)
    # the margin keeps 0.29 from becoming 28 per cent: 100 * 0.29 is just below 29
    per_cent = math.floor(100 * best + 1e-9) if best >= 0.01 else 0
    return Target(measure, per_cent / 100) if per_cent else None


def _highest(values: Sequence[float | None]) -> float:
    """The highest finite value; NaN if there is none."""
    return max((v for v in values if v is not None and math.isfinite(v)), default=math.nan)


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
        InputError: If runs of one label are of experiments that differ in more than a few simple
            settings, or a run is given twice.

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
    target = target or common_target(runs)
    shown = TextTable(box=None, pad_edge=False, header_style="bold")
    shown.add_column("method", overflow="fold")
    metrics = metrics_on_test_rows(runs)
    names = [name.replace("_", " ") for name in metrics]
    has_validation = any(run.validated for run in runs)
    headers = ["train loss", *["validation accuracy"] * has_validation]
    fair = any(run.final.client_accuracy_worst is not None for run in runs)
    own = any(run.final.personal_accuracy is not None for run in runs)
    headers += ["test accuracy", *["worst 10 %"] * fair, *["own models"] * own]
    headers += ["best accuracy", *names]
    headers += ["epsilon"] * (privacy := any(run.final.epsilon is not None for run in runs))
    for header in [*headers, f"rounds to {target or 'target'}", "models sent", "seconds"]:
        shown.add_column(header, justify="right", overflow="fold")
    has = Columns(metrics, has_validation, fair, own, privacy)
    for label, group in by_label(runs).items():
        shown.add_row(Text(label), *_row(group, target, has))
    return shown


EVALUATED = {
    "cohort": "the mean of the round's clients",
    "clients": "the mean of every client's last model",
}
"""The models that may be evaluated in place of the one that is sent out, by name."""


def evaluated_model_notes(runs: Sequence[Run]) -> list[str]:
    """A line for each evaluated model other than the one that is sent out."""
    names = dict.fromkeys(run.evaluated for run in runs)
    return [f'evaluated, as "{name}": {EVALUATED[name]}' for name in names if name in EVALUATED]


def align_histories(group: Sequence[Run]) -> tuple[Run, list[list[Record]]]:
    """The longest of some runs, and every run's records extended to that length.

    The last record of a run that stopped early, at its target or by divergence, is repeated.
    """
    longest = max(group, key=lambda run: len(run.history))
    length = len(longest.history)
    return longest, [run.history + [run.final] * (length - len(run.history)) for run in group]


def validation_notes(runs: Sequence[Run]) -> list[str]:
    """A line on the use of validation rows, if there are any."""
    if not any(run.validated for run in runs):
        return []
    return [
        "best accuracy is the test accuracy at the round of the highest validation accuracy: test "
        "rows choose nothing"
    ]


def sampling_notes(runs: Sequence[Run]) -> list[str]:
    """A line with the standard errors of estimates from a sample of clients."""
    finals = [run.final for run in runs if run.diverged_at is None]
    errors = [[r.train_loss_se for r in finals], [r.test_accuracy_se for r in finals]]
    loss, accuracy = (
        max((e for e in each if e is not None and math.isfinite(e)), default=math.nan)
        for each in errors
    )
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


def early_stop_notes(runs: Sequence[Run]) -> list[str]:
    """A line for each method whose seeds stopped after different rounds."""
    lines = []
    for label, group in by_label(runs).items():
        ends = [run.final.round for run in group if run.diverged_at is None]
        if len(set(ends)) > 1:
            rounds = ", ".join(map(str, ends))
            figures = (
                "; figures are of then" if all(r.model_record is r.final for r in group) else ""
            )
            lines.append(f"{label}: its seeds stopped after {rounds} rounds{figures}")
    return lines


def unsolved_notes(runs: Sequence[Run]) -> list[str]:
    """A line for each method whose solver reached its limit before its gamma."""
    lines = []
    for label, group in by_label(runs).items():
        records = [record for run in group for record in run.history[1:]]
        missed = sum(record.unsolved for record in records)
        solves = sum(record.solves for record in records)
        if missed:
            lines.append(
                f"{label}: {missed} of {solves} measured local solves reached the solver's limit "
                "before its gamma"
            )
    return lines


def empty_round_notes(runs: Sequence[Run]) -> list[str]:
    """A line for each method with rounds in which no client took part."""
    lines = []
    for label, group in by_label(runs).items():
        empty = sum(run.empty_rounds for run in group)
        if empty:
            rounds = sum(run.final.round for run in group)
            effect = "left the model as it was"
            if any(run.final.epsilon is not None for run in group):
                effect = "added nothing but noise"
            lines.append(
                f"{label}: no client took part in {empty} of {rounds} rounds, which {effect}"
            )
    return lines


def privacy_notes(runs: Sequence[Run]) -> list[str]:
    """A line that says what epsilon means and what it does not cover, if clients have privacy."""
    deltas = {run.final.delta for run in runs if run.final.delta is not None}
    return [
        f"epsilon is of (epsilon, {delta:g})-differential privacy of each client, for one run's "
        "models; losses, accuracies and the choice among runs are measured on clients' data and "
        "are outside the guarantee"
        for delta in sorted(deltas)
    ]


def fault_notes(runs: Sequence[Run]) -> list[str]:
    """A line for each method that had faulty updates, or clients that could not be measured."""
    lines = []
    for label, group in by_label(runs).items():
        updates = sum(run.faulty or 0 for run in group)
        records = [record for run in group for record in run.history]
        clients = {name for record in records for name in record.faulty_clients or ()}
        unmeasured = max(record.unmeasured or 0 for record in records)
        if updates:
            of = "1 client" if len(clients) == 1 else f"{len(clients)} clients"
            lines.append(f"{label}: {updates} faulty updates, of {of}; metrics.jsonl names them")
        if unmeasured:
            lines.append(
                f"{label}: evaluations leave out up to {unmeasured} clients whose loss or gradient "
                "is not finite"
            )
    return lines


def best_model_notes(runs: Sequence[Run]) -> list[str]:
    """A line that says that figures are of the best models, if they are not of the last ones."""
    if all(run.model_record is run.final for run in runs):
        return []
    return ["figures are of each run's best model; summary.json names its round"]


class Columns(NamedTuple):
    """The columns that a table has only if records have their values."""

    metrics: Sequence[str]
    validation: bool
    fairness: bool
    own: bool
    privacy: bool


def _row(group: Sequence[Run], target: Target | None, has: Columns) -> list[str]:
    seconds = f"{sum(run.run_seconds for run in group):.1f}"
    if group[0].sweep_points > 1:
        seconds += f" for {group[0].sweep_points}"
    spent = [_spent(group)] if has.privacy else []
    diverged = [run for run in group if run.diverged_at is not None]
    if diverged:
        at = ", ".join(str(run.diverged_at) for run in diverged)
        who = "" if len(group) == 1 else f" ({len(diverged)} of {len(group)} seeds)"
        return [
            f"diverged at round {at}{who}",
            *[""] * has.validation,
            "",
            *[""] * (has.fairness + has.own),
            _best(group),
            *[""] * len(has.metrics),
            *spent,
            "",
            "",
            seconds,
        ]
    small = all(run.model_record.train_loss < 1e4 for run in group)
    finals = [run.model_record for run in group]
    return [
        _estimate(
            [r.train_loss for r in finals],
            [r.train_loss_se for r in finals],
            "{:.4f}" if small else "{:.2e}",
        ),
        *(
            [spread([100 * _highest([r.validation_accuracy]) for r in finals], "{:.2f}", " %")]
            if has.validation
            else []
        ),
        _estimate(
            [100 * r.test_accuracy for r in finals],
            [None if r.test_accuracy_se is None else 100 * r.test_accuracy_se for r in finals],
            "{:.2f}",
            " %",
        ),
        *(
            [spread([100 * _highest([r.client_accuracy_worst]) for r in finals], "{:.2f}", " %")]
            if has.fairness
            else []
        ),
        *(
            [spread([100 * _highest([r.personal_accuracy]) for r in finals], "{:.2f}", " %")]
            if has.own
            else []
        ),
        _best(group),
        *(
            spread([r.metrics.get(name, math.nan) for r in finals], "{:.4f}")
            for name in has.metrics
        ),
        *spent,
        *_cost(group, target),
        seconds,
    ]


def _spent(group: Sequence[Run]) -> str:
    """The largest epsilon of some runs."""
    epsilons = [run.final.epsilon for run in group if run.final.epsilon is not None]
    largest = max((math.inf if math.isnan(e) else e for e in epsilons), default=math.nan)
    return "-" if math.isnan(largest) else f"{largest:.3g}"


def _best(group: Sequence[Run]) -> str:
    return spread([100 * run.best_accuracy for run in group], "{:.2f}", " %")


def _estimate(
    values: Sequence[float], errors: Sequence[float | None], form: str, unit: str = ""
) -> str:
    """As `spread`; a single value is shown with its standard error if it has one."""
    text = spread(values, form)
    error = errors[0] if len(errors) == 1 else None
    if text != "-" and error is not None and math.isfinite(error):
        text += " ± " + form.format(error)
    return text if text == "-" else text + unit


def _cost(group: Sequence[Run], target: Target | None) -> list[str]:
    """Rounds and models until the target."""
    if target is None:
        return ["", ""]
    rounds = [run.rounds_to(target) for run in group]
    if None in rounds:
        missed = [run.final for run, count in zip(group, rounds, strict=True) if count is None]
        last = max(missed, key=lambda record: record.round)
        return [f"{last.round}+", f"{last.communication}+"]
    models = [run.models_to(target) for run in group]
    return [spread([n for n in counts if n is not None], "{:.1f}") for counts in (rounds, models)]


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
