"""Verdicts on the papers' claims, from our measurements.

Each comparison is a Student's t-test on the paired differences, one for each seed. The comparisons
of an item are one family: Holm's correction keeps the chance that an item without any effect has a
verdict at `LEVEL`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from experiments.engine.item import AT_EACH_ROUND, BEST, LOWEST, Claim, Comparison
from experiments.engine.summaries import Series
from experiments.engine.sweeps import envelope, lowest, of_sweep

LEVEL = 0.05
"""The chance that an item whose comparisons all have no effect has a verdict, and so about the
number of verdicts that it has by chance."""

Verdict = Literal["holds", "does not hold", "within noise", "one seed", "one line"]
Measured = Mapping[str, Sequence[Series]]
"""An item's series by the name of the run."""


class Evidence(NamedTuple):
    """What the differences of a comparison say.

    Attributes:
        sign: Positive for the comparison, negative against it, 0 for neither.
        p: Two-sided p-value of that sign; NaN with one seed, which has none.
    """

    sign: float
    p: float


class JudgedComparison(NamedTuple):
    """A comparison with our numbers and the verdict.

    Attributes:
        comparison: The paper's comparison.
        labels: The labels of both sides.
        greater: Our number of the side that should be greater, shape (seeds,).
        less: Our number of the other side, shape (seeds,).
        evidence: What the differences say; None where both sides are the same line.
        verdict: Whether our numbers confirm the comparison; "one line" where both sides are the
            same line, such as the paper's choice and the best.
    """

    comparison: Comparison
    labels: tuple[str, str]
    greater: NDArray[np.float64]
    less: NDArray[np.float64]
    evidence: Evidence | None
    verdict: Verdict = "within noise"

    @property
    def differences(self) -> NDArray[np.float64]:
        """The differences greater - less for each seed; NaN where both sides have diverged."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.greater - self.less)


def judge(claims: Sequence[Claim], measured: Measured) -> list[list[JudgedComparison]]:
    """Judge all comparisons of an item's claims."""
    compared = [[_compared(claim, one, measured) for one in claim.comparisons] for claim in claims]
    found = iter(verdicts([one.evidence for group in compared for one in group]))
    return [[one._replace(verdict=next(found)) for one in group] for group in compared]


def _compared(claim: Claim, comparison: Comparison, measured: Measured) -> JudgedComparison:
    sides = [pick(measured[side.run], side.label) for side in (comparison.greater, comparison.less)]
    greater, less = (
        np.array([claim.over.of(series, claim.measure) for series in side]) for side in sides
    )
    labels = sides[0][0].label, sides[1][0].label
    one = JudgedComparison(comparison, labels, greater, less, None)
    if comparison.greater.run == comparison.less.run and labels[0] == labels[1]:
        if claim.alike is None:
            return one
        # a line is like itself, also where it diverged
        return one._replace(evidence=evidence_of(np.zeros(len(greater)), claim.alike))
    return one._replace(evidence=evidence_of(one.differences + claim.tolerance, claim.alike))


def evidence_of(differences: NDArray[np.float64], alike: float | None = None) -> Evidence:
    """Student's t-test of paired differences, one for each seed.

    If a difference is not finite, since a side diverged, the exact sign test takes its place. With
    `alike`, what is tested is whether the absolute mean is below it.

    >>> evidence_of(np.array([1.0, 1.1, 0.9]))
    Evidence(sign=1.0, p=0.003...)
    """
    count = len(differences)
    if np.isfinite(differences).all():
        deviation = float(differences.std(ddof=1)) if count > 1 else 0.0
        return evidence_of_summary(float(differences.mean()), deviation, count, alike)
    signs = np.sign(differences if alike is None else alike - np.abs(differences))
    signs = np.where(np.isnan(signs), 0.0 if alike is None else -1.0, signs)
    if (signs == signs[0]).all() and signs[0] != 0:
        return Evidence(float(signs[0]), 0.5 ** (count - 1) if count > 1 else math.nan)
    return Evidence(0.0, 1.0 if count > 1 else math.nan)


def evidence_of_summary(
    mean: float, deviation: float, count: int, alike: float | None = None
) -> Evidence:
    """Student's t-test of so many paired differences, from their mean and standard deviation."""
    margin = mean if alike is None else alike - abs(mean)
    error = deviation / math.sqrt(count)
    if count == 1:
        p = math.nan
    elif error == 0:
        p = 0.0 if margin else 1.0
    else:
        p = 2 * float(stdtr(count - 1, -abs(margin) / error))
    return Evidence(float(np.sign(margin)), p)


def verdicts(evidence: Sequence[Evidence | None]) -> list[Verdict]:
    """The verdicts of a family of comparisons, by Holm's method; None stands for one line.

    >>> verdicts([Evidence(1.0, 0.02), Evidence(-1.0, 0.03), Evidence(1.0, 0.01)])
    ['holds', 'does not hold', 'holds']
    >>> verdicts([Evidence(1.0, 0.03), Evidence(1.0, 0.04)])
    ['within noise', 'within noise']
    """
    found: list[Verdict] = [
        "one line" if one is None else "one seed" if math.isnan(one.p) else "within noise"
        for one in evidence
    ]
    family = sorted(
        (one.p, place, one.sign)
        for place, one in enumerate(evidence)
        if one is not None and not math.isnan(one.p)
    )
    for rank, (p, place, sign) in enumerate(family):
        if p > LEVEL / (len(family) - rank):
            break
        found[place] = "holds" if sign > 0 else "does not hold"
    return found


def pick(series: Sequence[Series], label: str) -> list[Series]:
    """The series of one label, by seed; see `Line` for what a label may be."""
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


def candidates(series: Sequence[Series], label: str) -> int:
    """How many lines a label chooses from, 1 if it names its line."""
    if label == BEST:
        return len({one.label for one in _above_zero(series)})
    if label.startswith(LOWEST):
        return len({one.label for one in of_sweep(series, label.removeprefix(LOWEST))})
    return 1


def best(series: Sequence[Series]) -> str:
    """The label of the mu above 0 with the lowest final training loss, mean over seeds."""
    return lowest(_above_zero(series))


def _above_zero(series: Sequence[Series]) -> list[Series]:
    return [
        one for one in series if one.label.startswith("fedprox mu=") and one.values["mu"][0] > 0
    ]
