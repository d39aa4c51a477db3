"""Verdicts on the papers' claims, from our measurements."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.engine.item import AT_EACH_ROUND, BEST, LOWEST, Claim, Comparison
from experiments.engine.summaries import Series
from experiments.engine.sweeps import envelope, lowest, of_sweep

Verdict = Literal["holds", "does not hold", "within noise", "one line"]
Measured = Mapping[str, Sequence[Series]]
"""An item's series by the name of the run."""


class JudgedComparison(NamedTuple):
    """A comparison with our numbers and the verdict.

    Attributes:
        comparison: The paper's comparison.
        labels: The labels of both sides.
        greater: Our number of the side that should be greater, shape (seeds,).
        less: Our number of the other side, shape (seeds,).
        verdict: Whether our numbers confirm the comparison; "one line" where both sides are the
            same line, such as the paper's choice and the best.
    """

    comparison: Comparison
    labels: tuple[str, str]
    greater: NDArray[np.float64]
    less: NDArray[np.float64]
    verdict: Verdict

    @property
    def differences(self) -> NDArray[np.float64]:
        """The differences greater - less for each seed; NaN where both sides have diverged."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.greater - self.less)


def judge(claim: Claim, measured: Measured) -> list[JudgedComparison]:
    """Judge all comparisons of a claim."""
    judged = []
    for comparison in claim.comparisons:
        sides = [
            pick(measured[side.run], side.label) for side in (comparison.greater, comparison.less)
        ]
        greater, less = (
            np.array([claim.over.of(series, claim.measure) for series in side]) for side in sides
        )
        unjudged = JudgedComparison(
            comparison, (sides[0][0].label, sides[1][0].label), greater, less, "within noise"
        )
        differences = unjudged.differences + claim.tolerance
        same = comparison.greater.run == comparison.less.run and len(set(unjudged.labels)) == 1
        found = verdict(differences, claim.alike)
        if same and claim.alike is None:
            found = "one line"
        judged.append(unjudged._replace(verdict=found))
    return judged


def verdict(differences: NDArray[np.float64], alike: float | None = None) -> Verdict:
    """The verdict from paired differences, one for each seed.

    A claim holds, or does not hold, if their mean is two standard errors from zero, or if all of
    five or more have the same sign (by chance that happens once in 16). The sign of a single seed
    decides, because its noise is unknown. If a difference is infinite (one side diverged) or NaN
    (both did), all must have the same sign. With `alike`, the absolute mean must be below it.

    >>> verdict(np.array([1.0, 1.1, 0.9])), verdict(np.array([1.0, -1.1]))
    ('holds', 'within noise')
    """
    count = len(differences)
    finite = np.isfinite(differences).all()
    if alike is not None:
        if not finite:
            return "does not hold"
        return _beyond(alike - abs(float(differences.mean())), _noise(differences))
    if (count >= 5 or not finite) and ((differences > 0).all() or (differences < 0).all()):
        return "holds" if differences[0] > 0 else "does not hold"
    if not finite:
        return "within noise"
    return _beyond(float(differences.mean()), _noise(differences))


def _noise(differences: NDArray[np.float64]) -> float:
    """Two standard errors of the mean; 0 for a single seed."""
    count = len(differences)
    return 2 * float(differences.std(ddof=1)) / math.sqrt(count) if count > 1 else 0.0


def _beyond(mean: float, noise: float) -> Verdict:
    if abs(mean) <= noise:
        return "within noise"
    return "holds" if mean > 0 else "does not hold"


def pick(series: Sequence[Series], label: str) -> list[Series]:
    """The series of one label, by seed; see `Curve` for what a label may be."""
    if label.startswith(AT_EACH_ROUND):
        beginning = label.removeprefix(AT_EACH_ROUND)
        return envelope(of_sweep(series, beginning), beginning)
    if label.startswith(LOWEST):
        chosen = lowest(of_sweep(series, label.removeprefix(LOWEST)))
    else:
        chosen = best(series) if label == BEST else label
    group = sorted((s for s in series if s.label == chosen), key=lambda s: s.seed)
    if not group:
        raise KeyError(f"no {label!r} among {sorted({s.label for s in series})}")
    return group


def best(series: Sequence[Series]) -> str:
    """The label of the mu above 0 with the lowest final training loss, mean over seeds."""
    return lowest(
        [one for one in series if one.label.startswith("fedprox mu=") and one.values["mu"][0] > 0]
    )
