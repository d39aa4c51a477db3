"""The table of a comparison."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from rich.table import Table

from fedprox.simulation.history import Run


def by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each method and its numbers, one per seed."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.label, []).append(run)
    return grouped


def common_target(runs: Sequence[Run]) -> float | None:
    """The highest whole per cent of test accuracy that every run reaches but those that diverged.

    None where there is no such per cent.
    """
    reached = [run.best_accuracy for run in runs if run.diverged_at is None]
    best = min(reached, default=math.nan)
    # the margin keeps 0.29 from becoming 28 per cent: 100 * 0.29 is just below 29
    return math.floor(100 * best + 1e-9) / 100 if best >= 0.01 else None


def table(runs: Sequence[Run], target_accuracy: float | None = None) -> Table:
    """One row for each method and its numbers: mean over seeds, +- their standard deviation.

    Communication is what all rounds together sent, in units of a round of FedAvg.

    Args:
        runs: The runs of a comparison. The points of a sweep run together; their seconds say for
            how many.
        target_accuracy: Test accuracy to count rounds to; the highest whole per cent that every
            run reaches where left out.
    """
    target = target_accuracy if target_accuracy is not None else common_target(runs)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("method", no_wrap=True)
    headers = ["train loss", "test accuracy", "best accuracy"]
    headers.append("rounds to target" if target is None else f"rounds to {100 * target:g} %")
    for header in [*headers, "communication", "seconds"]:
        shown.add_column(header, justify="right")
    for label, group in by_label(runs).items():
        shown.add_row(label, *_row(group, target))
    return shown


def unsolved(runs: Sequence[Run]) -> list[str]:
    """A line for each method whose solver came to its limit before its gamma."""
    lines = []
    for label, group in by_label(runs).items():
        records = [record for run in group for record in run.history[1:]]
        missed = sum(record.unsolved for record in records)
        solves = sum(record.solves for record in records)
        if missed:
            lines.append(
                f"{label}: {missed} of {solves} local solves measured came to the solver's limit "
                "before its gamma"
            )
    return lines


def _row(group: Sequence[Run], target: float | None) -> list[str]:
    seconds = f"{sum(run.run_seconds for run in group):.1f}"
    if group[0].sweep_points > 1:
        seconds += f" for {group[0].sweep_points}"
    diverged = [run for run in group if run.diverged_at is not None]
    if diverged:
        at = ", ".join(str(run.diverged_at) for run in diverged)
        who = "" if len(group) == 1 else f" ({len(diverged)} of {len(group)} seeds)"
        sent = _communication(group)
        return [f"diverged at round {at}{who}", "", _percent(group, "best"), "", sent, seconds]
    small = all(run.final.train_loss < 1e4 for run in group)
    return [
        spread([run.final.train_loss for run in group], "{:.4f}" if small else "{:.2e}"),
        _percent(group, "final"),
        _percent(group, "best"),
        _rounds(group, target),
        _communication(group),
        seconds,
    ]


def _communication(group: Sequence[Run]) -> str:
    return str(max(run.final.communication for run in group))


def _percent(group: Sequence[Run], which: str) -> str:
    values = [
        100 * (run.best_accuracy if which == "best" else run.final.test_accuracy) for run in group
    ]
    return spread(values, "{:.2f}", " %")


def _rounds(group: Sequence[Run], target: float | None) -> str:
    if target is None:
        return ""
    reached = [run.rounds_to(target) for run in group]
    if any(rounds is None for rounds in reached):
        return f"{max(run.final.round for run in group)}+"
    return spread([rounds for rounds in reached if rounds is not None], "{:.1f}")


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
