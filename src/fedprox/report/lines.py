"""Lines of figures: a measure against another one, a line for each label, a value for each seed."""

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.report.records import value_of
from fedprox.results.run import Run

LOGARITHMIC_FROM = 20
"""Ratio of greatest to least value above which an axis is logarithmic."""

FEW_DECADES = 1000
"""That ratio from which a logarithmic axis has labels only at powers of ten, not at 2 and 5."""


class Line(NamedTuple):
    """One label's curve: x of shape (points,), and values of shape (seeds, points)."""

    label: str
    x: NDArray[np.float64]
    values: NDArray[np.float64]


def curves(groups: Mapping[str, Sequence[Run]], x: str, y: str) -> list[Line]:
    """A line for each label for which y is known.

    The last record of a run that stopped early, at its target or by divergence, is repeated. x is
    the mean over the longest runs. Against the time, which differs between seeds, values are
    interpolated, up to the end of the first run.
    """
    lines = []
    for label, group in groups.items():
        length = max(len(run.history) for run in group)
        if x == "time":
            known = [
                [[value_of(record, name) for record in run.history] for name in (x, y)]
                for run in group
            ]
            along = np.linspace(0.0, min(times[-1] for times, _ in known), length)
            values = np.array([np.interp(along, times, of_run) for times, of_run in known])
            if np.isfinite(values).any():
                lines.append(Line(label, along, values))
            continue
        longest = [run.history for run in group if len(run.history) == length]
        histories = [run.history + [run.final] * (length - len(run.history)) for run in group]
        along = np.mean([[value_of(record, x) for record in one] for one in longest], axis=0)
        values = np.array([[value_of(record, y) for record in one] for one in histories])
        if np.isfinite(values).any():
            lines.append(Line(label, along, values))
    return lines


def band(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Mean over seeds, and one sample standard deviation below and above it, as in the table.

    They have shape (points,), and are NaN where a seed's value is not finite.

    >>> [edge.tolist() for edge in band(np.array([[1.0, 2.0], [3.0, 2.0], [2.0, np.inf]]))]
    [[2.0, nan], [1.0, nan], [3.0, nan]]
    """
    known = np.where(np.isfinite(values), values, np.nan)
    mean = known.mean(axis=0)
    deviation = known.std(axis=0, ddof=1) if len(known) > 1 else np.zeros_like(mean)
    return mean, mean - deviation, mean + deviation


def explained(groups: Iterable[Sized]) -> str:
    """A sentence that explains lines of runs, one for each seed; empty if every line has one.

    >>> explained([range(5), range(5)])
    'Lines are means over 5 seeds, bands ± one standard deviation, as in the table.'
    """
    seeds = {len(group) for group in groups}
    if seeds <= {1}:
        return ""
    of = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    return f"Lines are means over {of} seeds, bands ± one standard deviation, as in the table."


def is_logarithmic(low: float, high: float) -> bool:
    """Whether an axis from `low` to `high` is logarithmic.

    >>> is_logarithmic(0.1, 1), is_logarithmic(0.1, 10), is_logarithmic(0, 1)
    (False, True, False)
    """
    return 0 < low * LOGARITHMIC_FROM < high


def limits(lines: Sequence[Line]) -> tuple[float, float]:
    """The least and the greatest finite value of some lines; NaN without any."""
    values = np.concatenate([line.values.ravel() for line in lines])
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if len(known) else (math.nan, math.nan)
