"""What is said of a comparison below its table: how to read the numbers, and what went wrong."""

import math
from collections.abc import Sequence

from fedprox.report.records import value_of
from fedprox.report.table import by_label
from fedprox.simulation.results.run import Run

EVALUATED = {
    "cohort": "the mean of the round's clients",
    "clients": "the mean of every client's last model",
}
"""The models that may be evaluated in place of the one that is sent out, by name."""


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
        f"epsilon is of (epsilon, {delta:g})-differential privacy of each client, for one run's "
        "models; losses, accuracies and the choice among runs are measured on clients' data and "
        "are outside the guarantee"
        for delta in sorted({run.final.delta for run in runs if run.final.delta is not None})
    ]
    if any(run.model_record is not run.final for run in runs):
        lines.append("figures are of each run's best model; summary.json names its round")
    return lines + _standard_errors(runs)


def _standard_errors(runs: Sequence[Run]) -> list[str]:
    """A line with the standard errors of estimates from a sample of clients."""
    finals = [run.final for run in runs if run.diverged_at is None]
    loss, accuracy = (
        max((e for r in finals if math.isfinite(e := value_of(r, name))), default=math.nan)
        for name in ("train_loss_se", "test_accuracy_se")
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


def warnings_on(runs: Sequence[Run], *, finished: bool = True) -> list[str]:
    """What went otherwise than planned, a line for each method and kind.

    Args:
        runs: The runs.
        finished: Whether the comparison ran to its end, so that a run that is shorter ended early.
    """
    return [
        f"{label}: {line}"
        for label, group in by_label(runs).items()
        for line in (
            _early_stops(group) if finished else "",
            _empty_rounds(group),
            _unsolved(group),
            _faulty(group),
            _unmeasured(group),
        )
        if line
    ]


def _early_stops(group: Sequence[Run]) -> str:
    ends = [run.final.round for run in group if run.diverged_at is None]
    if len(set(ends)) < 2:
        return ""
    last = all(run.model_record is run.final for run in group)
    shown = "; figures are of then" if last else ""
    return f"its seeds stopped after {', '.join(map(str, ends))} rounds{shown}"


def _empty_rounds(group: Sequence[Run]) -> str:
    empty = sum(run.empty_rounds for run in group)
    rounds = sum(run.final.round for run in group)
    private = any(run.final.epsilon is not None for run in group)
    effect = "added nothing but noise" if private else "left the model as it was"
    return f"no client took part in {empty} of {rounds} rounds, which {effect}" if empty else ""


def _unsolved(group: Sequence[Run]) -> str:
    records = [record for run in group for record in run.history[1:]]
    missed, solves = sum(r.unsolved for r in records), sum(r.solves for r in records)
    return (
        f"{missed} of {solves} measured local solves reached the solver's limit before its gamma"
        if missed
        else ""
    )


def _faulty(group: Sequence[Run]) -> str:
    updates = sum(run.faulty or 0 for run in group)
    records = [record for run in group for record in run.history]
    clients = len({name for record in records for name in record.faulty_clients or ()})
    of = f"{clients} client{'s' * (clients != 1)}"
    return f"{updates} faulty updates, of {of}; metrics.jsonl names them" if updates else ""


def _unmeasured(group: Sequence[Run]) -> str:
    most = max(record.unmeasured or 0 for run in group for record in run.history)
    return (
        f"evaluations leave out up to {most} clients whose loss or gradient is not finite"
        if most
        else ""
    )
