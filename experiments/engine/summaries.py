"""Summaries of a run's rounds by one number."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from experiments.engine.series import LOSS, Numbers, Series


class Summary(NamedTuple):
    """A way to summarize: its name in tables, and a function of a run and a measure."""

    text: str
    of: Callable[[Series, str], float]


class Stop(NamedTuple):
    """The evaluation at which a run is judged: its index, and the reason."""

    place: int
    why: Literal["converged", "diverged", "last round"]


def stop(losses: Numbers) -> Stop:
    """The evaluation at which the paper reads a run's accuracy (Li et al. 2020, appendix C.3.2).

    It is the first at which the run has converged, |f_t - f_{t-1}| < 0.0001, or started to diverge,
    f_t - f_{t-10} > 1, or else the last round. A loss that is not finite has diverged.

    Args:
        losses: f at rounds 0, 1, 2, ..., shape (rounds + 1,).

    >>> stop(np.array([2.0, 1.0, 0.5, 0.49999, 0.4]))
    Stop(place=3, why='converged')
    >>> stop(np.array([2.0, 1.0, np.inf, 0.5]))
    Stop(place=2, why='diverged')
    """
    for t, loss in enumerate(losses):
        if not math.isfinite(loss) or (t >= 10 and loss - losses[t - 10] > 1):
            return Stop(t, "diverged")
        if t >= 1 and abs(loss - losses[t - 1]) < 0.0001:
            return Stop(t, "converged")
    return Stop(len(losses) - 1, "last round")


def _rise(series: Series, measure: str) -> float:
    values = series.of(measure)
    settled = values[len(values) // 10 :]
    if not np.isfinite(settled).all():
        return math.inf
    return float(np.maximum(np.diff(settled), 0).mean()) if len(settled) > 1 else 0.0


FINAL = Summary("at the last round", lambda series, measure: float(series.of(measure)[-1]))
MEAN = Summary("mean over the rounds", lambda series, measure: float(series.of(measure)[1:].mean()))
END = FINAL._replace(text="at the end of the devices' time")
OVER_TIME = Summary(
    "mean over the devices' time", lambda series, measure: series.over_time(measure)
)
RISE = Summary(
    "mean rise from one evaluation to the next, falls as zero, without the first tenth", _rise
)
RULE = Summary(
    "where the run has converged or begun to diverge, or at the last round",
    lambda series, measure: float(series.values[measure][stop(series.of(LOSS)).place]),
)


def at(round_: int) -> Summary:
    """The value at a round, or at the last evaluation before it."""

    def value(series: Series, measure: str) -> float:
        return float(series.of(measure)[np.searchsorted(series.rounds, round_, "right") - 1])

    return Summary(f"at round {round_}", value)
