"""Statistics of paired differences, one for each seed: Student's test, intervals, Holm."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
    from scipy.special import stdtr  # here, since it is slow to import

    margin = mean if alike is None else alike - abs(mean)
    error = deviation / math.sqrt(count)
    if count == 1:
        p = math.nan
    elif error == 0:
        p = 0.0 if margin else 1.0
    else:
        p = 2 * float(stdtr(count - 1, -abs(margin) / error))
    return Evidence(float(np.sign(margin)), p)


def interval(differences: NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Student's confidence interval of the mean difference.

    NaN with one seed, and where a difference is not finite.

    >>> low, high = interval(np.array([1.0, 2.0, 3.0]))
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    from scipy.special import stdtrit

    count = len(differences)
    if count == 1 or not np.isfinite(differences).all():
        return math.nan, math.nan
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    half = float(stdtrit(count - 1, (1 + level) / 2)) * error
    mean = float(differences.mean())
    return mean - half, mean + half


def holm(p: Sequence[float]) -> list[float]:
    """P-values with Holm's correction for all that are given; NaN is no test and stays.

    If those of at most `level` are called significant, the chance of a false one is at most
    `level`.

    >>> holm([0.03, 0.01, 0.02]), holm([0.04, math.nan])
    ([0.04, 0.03, 0.04], [0.04, nan])
    """
    corrected = list(p)
    tests = sorted((value, place) for place, value in enumerate(p) if not math.isnan(value))
    largest = 0.0
    for rank, (value, place) in enumerate(tests):
        largest = max(largest, min(1.0, (len(tests) - rank) * value))
        corrected[place] = largest
    return corrected
