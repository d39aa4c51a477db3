r"""A lower confidence bound of epsilon from one run with many canaries.

Each of :math:`m` canaries takes part or not, by a fair coin of its own. An auditor sees what the
run released, and guesses the coins of :math:`r` canaries, of which it leaves out those that it is
not sure of. If the run is :math:`(\epsilon, \delta)`-differentially private, at least :math:`v` of
the guesses are right with a probability of at most

.. math:: \Pr[W \geq v] + 2 m \delta \max_{1 \leq i \leq v} \frac{\Pr[v > W \geq v - i]}{i},
    \qquad W \sim \mathrm{Binomial}\Big(r, \frac{1}{1 + e^{-\epsilon}}\Big)

(Steinke, Nasr and Jagielski 2023, `Privacy Auditing with One (1) Training Run
<https://arxiv.org/abs/2305.08846>`_, Theorem 5.2 and the program of appendix D). An epsilon at
which this is at most :math:`1 - c` is refuted with confidence :math:`c`, with all smaller ones.

The auditor of jax-privacy 2.0 has the same bound for guesses on one side alone, and corrects its
choice of a threshold by the number of thresholds that it kept after looking at the scores. Here
numbers of guesses are fixed before the run, on both sides.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHARES = 1.0, 0.5, 0.25, 0.125, 0.0625
"""Shares of the canaries that are guessed; the best one counts, and all are corrected for it."""

MOST_EPSILON, PRECISION = 1e4, 1e-6
"""Where the search for a bound ends, and how exact it is."""


class Guesses(NamedTuple):
    """Guesses of canaries' coins.

    Attributes:
        canaries: How many canaries there are.
        made: How many were guessed.
        right: How many of these guesses are right.
    """

    canaries: int
    made: int
    right: int


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """The largest probability that as many guesses are right under a guarantee.

    Example:
        Ten right guesses of ten refute epsilon = 0:

        >>> p_value(Guesses(10, 10, 10), 0.0, 0.0) == 2.0**-10
        True
    """
    from scipy import special, stats

    canaries, made, right = guesses
    correct = special.expit(epsilon)
    tail = float(stats.binom.sf(right - 1, made, correct))
    if not delta:
        return tail
    fewer = np.arange(1, right + 1)
    below = stats.binom.sf(right - fewer - 1, made, correct) - tail
    slope = float(np.max(below / fewer, initial=0.0))
    return min(1.0, tail + 2 * canaries * delta * slope)


def lower_bound(guesses: Guesses, delta: float, significance: float) -> float:
    """The largest epsilon that some guesses refute at a significance; 0 if they refute none.

    Example:
        >>> round(lower_bound(Guesses(1000, 1000, 700), 0.0, 0.05), 2)
        0.73
    """

    def refuted(epsilon: float) -> bool:
        return p_value(guesses, epsilon, delta) <= significance

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high) and high < MOST_EPSILON:
        low, high = high, 2 * high
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def numbers_of_guesses(canaries: int) -> list[int]:
    """The numbers of guesses that are tried, even and at least 2.

    >>> numbers_of_guesses(100)
    [100, 50, 24, 12, 6]
    """
    return sorted({max(2, 2 * int(share * canaries / 2)) for share in SHARES}, reverse=True)


def guessed(scores: NDArray[np.float64], present: NDArray[np.bool_]) -> list[Guesses]:
    """Half of each number of guesses say that the canaries of the largest scores are in the run.

    The other half say that those of the smallest are not. Equal scores are ordered by their place,
    which says nothing of the coins.

    >>> guessed(np.array([3.0, -1.0, 2.0, 0.0]), np.array([True, False, False, False]))
    [Guesses(canaries=4, made=4, right=3), Guesses(canaries=4, made=2, right=2)]
    """
    ordered = present[np.argsort(scores, kind="stable")]
    found = []
    for made in numbers_of_guesses(len(scores)):
        half = made // 2
        right = int(ordered[-half:].sum() + (~ordered[:half]).sum())
        found.append(Guesses(len(scores), made, right))
    return found


class Bound(NamedTuple):
    """What guesses say of a guarantee.

    Attributes:
        epsilon: The lower confidence bound.
        guesses: The guesses that give it.
        p: The probability of such guesses, at most, if the guarantee holds.
        most: The bound if all guesses had been right.
    """

    epsilon: float
    guesses: Guesses
    p: float
    most: float


def bound_of(tried: list[Guesses], epsilon: float, delta: float, confidence: float) -> Bound:
    """The bound of the best of several numbers of guesses, corrected for all (Bonferroni)."""
    significance = (1 - confidence) / len(tried)
    found = [lower_bound(each, delta, significance) for each in tried]
    p = min(1.0, len(tried) * min(p_value(each, epsilon, delta) for each in tried))
    all_right = (Guesses(each.canaries, each.made, each.made) for each in tried)
    most = max(lower_bound(each, delta, significance) for each in all_right)
    best = max(range(len(tried)), key=lambda i: (found[i], tried[i].right / tried[i].made))
    return Bound(found[best], tried[best], p, most)
