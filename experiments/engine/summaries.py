"""Summaries of a run's rounds by one number."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.simulation.results.target import Target

Numbers = NDArray[np.float64]

WORST = {"train_loss": np.inf, "test_accuracy": -np.inf, "gradient_variance": np.inf}

SMALLEST = 1e-7
"""Losses below this count as this where a logarithm is taken: float32 resolves no less near 1."""


class Series(NamedTuple):
    """The measurements of one run.

    Attributes:
        label: The method and its hyperparameters.
        seed: The scale's seed.
        rounds: Evaluated rounds, shape (n,), starting with 0, the initial model.
        values: Each measure at those rounds, shape (n,), by name; NaN where it is not finite.
        models: Models sent in a round, in units of a round of FedAvg.
    """

    label: str
    seed: int
    rounds: NDArray[np.int64]
    values: dict[str, Numbers]
    models: float = 1.0

    def along(self, axis: str) -> Numbers | NDArray[np.int64]:
        """The coordinates of the values on an axis, a key of `item.AXES`: shape (n,)."""
        return self.rounds if axis == "round" else self.values[axis]

    def rounds_to(self, target: Target) -> float | None:
        """Rounds until the run reaches a target, None if it never does; as `Run.rounds_to`."""
        return target.rounds(self.rounds.tolist(), self.values[target.measure].tolist())

    def of(self, measure: str) -> Numbers:
        """A measure, with its worst value where the loss is not finite (the model diverged)."""
        values = self.values[measure]
        if measure not in WORST:
            return values
        return np.where(np.isnan(self.values["train_loss"]), WORST[measure], values)


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


def _stopped(series: Series, measure: str) -> float:
    return float(series.values[measure][stop(series.of("train_loss")).place])


def _changes(series: Series, measure: str) -> Numbers:
    """The changes from one evaluation to the next, without the first tenth of the evaluations.

    They are infinite where the model diverged.
    """
    values = series.of(measure)
    settled = values[len(values) // 10 :]
    if not np.isfinite(settled).all():
        return np.array([np.inf, -np.inf])
    return np.diff(settled) if len(settled) > 1 else np.zeros(1)


def _rise(series: Series, measure: str) -> float:
    return float(np.maximum(_changes(series, measure), 0).mean())


def _fall(series: Series, measure: str) -> float:
    return float(np.maximum(-_changes(series, measure), 0).mean())


def _spread(series: Series, measure: str) -> float:
    changes = _changes(series, measure)
    return float(changes.std()) if np.isfinite(changes).all() else math.inf


def _mean_log(series: Series, measure: str) -> float:
    values = series.of(measure)[1:]
    return float(np.log10(np.maximum(values, SMALLEST)).mean())


FINAL = Summary("at the last round", lambda series, measure: float(series.of(measure)[-1]))
HIGHEST = Summary("at the best round", lambda series, measure: float(np.nanmax(series.of(measure))))
MEAN = Summary("mean over the rounds", lambda series, measure: float(series.of(measure)[1:].mean()))
RISE = Summary(
    "mean rise from one evaluation to the next, falls as zero, without the first tenth", _rise
)
FALL = Summary(
    "mean fall from one evaluation to the next, rises as zero, without the first tenth", _fall
)
SPREAD = Summary(
    "standard deviation of the changes from one evaluation to the next, without the first tenth",
    _spread,
)
MEAN_LOG = Summary("mean of log10 over the rounds", _mean_log)
"""The convergence rate: a loss that is c times another in every round has log10(c) more."""
RULE = Summary("where the run has converged or begun to diverge, or at the last round", _stopped)


HALFWAY = Summary(
    "at theta = 1/2",
    lambda series, measure: float(np.interp(0.5, series.along("theta"), series.of(measure))),
)


def _mean_classes(series: Series, measure: str) -> float:
    return float(np.average(series.along("classes"), weights=series.of(measure)))


CLASSES = Summary("as the mean number of classes", _mean_classes)


def at(round_: int) -> Summary:
    """The value at a round, or at the last evaluation before it."""

    def value(series: Series, measure: str) -> float:
        return float(series.of(measure)[np.searchsorted(series.rounds, round_, "right") - 1])

    return Summary(f"at round {round_}", value)
