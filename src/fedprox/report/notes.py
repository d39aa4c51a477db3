"""What is said of a comparison below its table: how to read the numbers, and what went wrong."""

import math
from collections.abc import Iterator, Sequence

from fedprox.report.records import has, highest, value_of
from fedprox.report.rows import by_label
from fedprox.results.run import Run

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


def notes_on(runs: Sequence[Run]) -> list[str]:
    """How to read the numbers: which models they are of, what is estimated, what epsilon means."""
    evaluated = dict.fromkeys(run.evaluated for run in runs)
    lines = [f'evaluated, as "{n}": {EVALUATED[n]}' for n in evaluated if n in EVALUATED]
    if any(run.validated for run in runs):
        lines.append(
            "best accuracy is the test accuracy at the round of the highest validation accuracy: "
            "test rows choose nothing"
        )
    lines += [
        f"epsilon is of (epsilon, {delta:g})-differential privacy of each client, or example with "
        'privacy.unit = "example", for one run\'s models; losses, accuracies and the choice among '
        "runs are measured on clients' data and are outside the guarantee"
        for delta in sorted({value_of(run.final, "delta") for run in runs if _private(run)})
    ]
    if (points := max(run.sweep_points for run in runs)) > 1:
        lines.append(
            f'seconds "for {points}" are those of {points} hyperparameter values together, which '
            "are trained at once"
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


def _standard_errors(runs: Sequence[Run]) -> list[str]:
    """A line with the standard errors of estimates from a sample of clients."""
    finals = [run.final for run in runs if run.diverged_at is None]
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
    """What went otherwise than planned, a line for each method and kind.

    In a comparison that ran to its end (`finished`), a run that is shorter ended early.
    """
    return [
        f"{label}: {line}"
        for label, group in by_label(runs).items()
        for line in _warnings(group, finished)
    ]


def _warnings(group: Sequence[Run], finished: bool) -> Iterator[str]:
    """What went otherwise than planned in the runs of a method."""
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
    ends = [run.final.round for run in group if run.diverged_at is None]
    if finished and len(set(ends)) > 1:
        last = all(run.model_record is run.final for run in group)
        shown = "; figures are of then" if last else ""
        yield f"its seeds stopped after {', '.join(map(str, ends))} rounds{shown}"
    if empty := sum(run.empty_rounds for run in group):
        rounds = sum(run.final.round for run in group)
        private = any(map(_private, group))
        effect = "added nothing but noise" if private else "left the model as it was"
        yield f"no client took part in {empty} of {rounds} rounds, which {effect}"
    measured = [record for run in group for record in run.history[1:]]
    if missed := sum(record.unsolved for record in measured):
        solves = sum(record.solves for record in measured)
        yield (
            f"{missed} of {solves} measured local solves reached the solver's limit before its "
            "gamma"
        )
    if updates := sum(run.faulty or 0 for run in group):
        clients = len({name for record in records for name in record.faulty_clients or ()})
        of = f"{clients} client{'s' * (clients != 1)}"
        yield f"{updates} faulty updates, of {of}; metrics.jsonl names them"
    if most := max(record.unmeasured or 0 for record in records):
        yield f"evaluations leave out up to {most} clients whose loss or gradient is not finite"
