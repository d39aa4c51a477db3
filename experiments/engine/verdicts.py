"""Verdicts on the papers' claims, from our measurements.

Each comparison is a Student's t-test on the paired differences, one for each seed. The comparisons
of an item are one family: Holm's correction keeps the chance that an item without any effect has a
verdict at `LEVEL`.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

LEVEL = 0.05
"""The chance that an item whose comparisons all have no effect has a verdict, and so about the
number of verdicts that it has by chance."""

Verdict = Literal["holds", "does not hold", "within noise", "one seed", "one line"]


class Evidence(NamedTuple):
    """What the differences of a comparison say.

    Attributes:
        sign: Positive for the comparison, negative against it, 0 for neither.
        p: Two-sided p-value of that sign; NaN with one seed, which has none.
    """

    sign: float
    p: float


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
