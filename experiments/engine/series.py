"""The measurements of runs, and how a label selects some of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.results.target import Target

Numbers = NDArray[np.float64]

LOSS, ACCURACY, VARIANCE = "train_loss", "test_accuracy", "gradient_variance"
VALIDATION = "validation_accuracy"

WORST = {LOSS: np.inf, ACCURACY: -np.inf, VALIDATION: -np.inf, VARIANCE: np.inf}

BEST = "fedprox best mu"
"""A label that selects the FedProx with mu > 0 whose final training loss is the lowest."""

LOWEST = "lowest of "
"""Before the common beginning of a sweep's labels: its line with the lowest final training loss."""

VALIDATED = "on validation rows the best of "
"""Before the common beginning of a sweep's labels: its line that validation rows choose.

It has the highest validation accuracy, mean over the devices' time, and over seeds."""

AT_EACH_ROUND = "at each round the best of "
"""Before the common beginning of a sweep's labels: its best value at each round, over all lines.

That is how McMahan et al. 2017 draw their curves (section 3)."""


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

    @property
    def diverged(self) -> bool:
        """Whether the last training loss is not finite."""
        return bool(np.isnan(self.values[LOSS][-1]))

    def along(self, axis: str) -> Numbers | NDArray[np.int64]:
        """The coordinates of the values on an axis, a key of `item.AXES`: shape (n,)."""
        return self.rounds if axis == "round" else self.values[axis]

    def rounds_to(self, target: Target) -> float | None:
        """Rounds until the run reaches a target, None if it never does; as `Run.rounds_to`."""
        return target.rounds(self.rounds.tolist(), self.values[target.measure].tolist())

    def time_to(self, target: Target) -> float | None:
        """The devices' time until the run reaches a target, None if it never does."""
        values = self.values[target.measure]
        return target.rounds(self.values["time"].tolist(), values.tolist())

    def until(self, seconds: float) -> "Series":
        """The run at the devices' time: the evaluations until then, the last of which is repeated.

        >>> values = {"time": np.array([0.0, 3.0, 6.0]), "mu": np.array([1.0, 2.0, 3.0])}
        >>> cut = Series("fedprox", 0, np.arange(3), values).until(4.0)
        >>> cut.values["time"].tolist(), cut.values["mu"].tolist()
        ([0.0, 3.0, 4.0], [1.0, 2.0, 2.0])
        """
        kept = np.flatnonzero(self.values["time"] <= seconds)
        places = np.append(kept, kept[-1])
        values = {name: each[places] for name, each in self.values.items()}
        values["time"][-1] = seconds
        return self._replace(rounds=self.rounds[places], values=values)

    def over_time(self, measure: str) -> float:
        """The mean of a measure over the devices' time."""
        times = self.values["time"]
        return float(self.of(measure)[:-1] @ np.diff(times) / times[-1])

    def of(self, measure: str) -> Numbers:
        """A measure, with its worst value where the loss is not finite (the model diverged)."""
        values = self.values[measure]
        if measure not in WORST:
            return values
        return np.where(np.isnan(self.values[LOSS]), WORST[measure], values)


Measured = Mapping[str, Sequence[Series]]
"""An item's series by the name of the run."""


def pick(series: Sequence[Series], label: str) -> list[Series]:
    """The series of one label, by seed.

    The label is that of a method, `BEST`, or the beginning of a sweep's labels after `LOWEST`,
    `VALIDATED` or `AT_EACH_ROUND`.

    Raises:
        KeyError: There is none.
    """
    lines = candidates(series, label)
    if label.startswith(AT_EACH_ROUND):
        return envelope(lines, label.removeprefix(AT_EACH_ROUND))
    labels = {one.label for one in lines}
    best = validated if label.startswith(VALIDATED) else lowest
    chosen = best(lines) if len(labels) > 1 else labels.pop()
    return sorted((one for one in lines if one.label == chosen), key=lambda one: one.seed)


def candidates(series: Sequence[Series], label: str) -> list[Series]:
    """The series among which a label selects.

    Raises:
        KeyError: There is none.
    """
    beginning = without_choice(label)
    if label == BEST:
        lines = [s for s in series if s.label.startswith("fedprox mu=") and s.values["mu"][0] > 0]
    elif beginning != label:
        return of_sweep(series, beginning)
    else:
        lines = [one for one in series if one.label == label]
    if not lines:
        raise KeyError(f"no {label!r} among {sorted({one.label for one in series})}")
    return lines


def without_choice(label: str) -> str:
    """A label without the words that choose among a sweep's lines.

    >>> without_choice("lowest of fedprox"), without_choice("fedprox mu=1")
    ('fedprox', 'fedprox mu=1')
    """
    for words in (LOWEST, VALIDATED, AT_EACH_ROUND):
        label = label.removeprefix(words)
    return label


def of_sweep(series: Sequence[Series], beginning: str) -> list[Series]:
    """The series whose labels begin with some whole words.

    Raises:
        KeyError: There is none.
    """
    lines = [one for one in series if f"{one.label} ".startswith(f"{beginning} ")]
    if not lines:
        raise KeyError(f"no {beginning!r} among {sorted({one.label for one in series})}")
    return lines


def lowest(lines: Sequence[Series]) -> str:
    """The label with the lowest final training loss, mean over seeds."""
    return _least(lines, lambda one: float(one.of(LOSS)[-1]))


def validated(lines: Sequence[Series]) -> str:
    """The label with the highest validation accuracy, mean over the devices' time and seeds."""
    return _least(lines, lambda one: -one.over_time(VALIDATION))


def _least(lines: Sequence[Series], score: Callable[[Series], float]) -> str:
    """The label with the lowest score, mean over seeds."""
    scores: dict[str, list[float]] = {}
    for one in lines:
        scores.setdefault(one.label, []).append(score(one))
    return min(scores, key=lambda label: float(np.mean(scores[label])))


def envelope(lines: Sequence[Series], beginning: str) -> list[Series]:
    """For each seed the lowest training loss and the highest test accuracy at each round.

    A line that has diverged, or has ended, does not count; the loss is NaN where none is left.

    Args:
        lines: The lines of a sweep.
        beginning: The beginning of their labels, which the new label repeats.
    """
    labels = {one.label for one in lines}
    count = len(labels)
    label = f"{beginning}, best of {count} at each round" if count > 1 else labels.pop()
    found = []
    for seed in sorted({one.seed for one in lines}):
        group = [one for one in lines if one.seed == seed]
        rounds = np.unique(np.concatenate([one.rounds for one in group]))
        loss = np.fmin.reduce([_spread_out(one, LOSS, rounds) for one in group])
        accuracy = np.fmax.reduce([_spread_out(one, ACCURACY, rounds) for one in group])
        values = {LOSS: np.where(np.isfinite(loss), loss, np.nan), ACCURACY: accuracy}
        found.append(Series(label, seed, rounds, values, group[0].models))
    return found


def _spread_out(line: Series, measure: str, rounds: NDArray[np.int64]) -> Numbers:
    """A line's values at some rounds, NaN where it has none."""
    values = np.full(len(rounds), np.nan)
    values[np.searchsorted(rounds, line.rounds)] = line.of(measure)
    return values
