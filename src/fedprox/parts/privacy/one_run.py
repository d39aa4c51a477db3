r"""A lower confidence bound of epsilon from one run with many canaries.

Each of :math:`m` canaries takes part or not, by a fair coin of its own. An auditor sees what the
run released, and guesses the coins of :math:`r` canaries, of which it leaves out those that it is
not sure of. If the run is :math:`(\epsilon, \delta)`-differentially private, at least :math:`v` of
the guesses are right with a probability of at most

.. math:: \Pr[W \geq v] + 2 m \delta \max_{1 \leq i \leq v} \frac{\Pr[v > W \geq v - i]}{i},
    \qquad W \sim \mathrm{Binomial}\Big(r, \frac{1}{1 + e^{-\epsilon}}\Big)

(Steinke, Nasr and Jagielski 2023, `Privacy Auditing with One (1) Training Run
<https://arxiv.org/abs/2305.08846>`_). An epsilon at which this is at most :math:`1 - c` is refuted
with confidence :math:`c`.

The bound of some guesses is computed by jax-privacy. It would also choose how many guesses count,
but on one side alone, and it corrects the significance for the thresholds that are left after a
look at the coins. Here the numbers of guesses are fixed before the run, on both sides and on one,
and the significance is divided by how many these are.

jax-privacy is imported inside functions: it is an extra, and takes a second.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import installing, require

SHARES = 1.0, 0.5, 0.25, 0.125, 0.0625
"""Shares of the canaries that are guessed on both sides; half of each are guessed on one."""


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


def auditing() -> Any:
    """jax-privacy's auditor, or `InputError` without the extra."""
    try:
        from jax_privacy import auditing
    except ImportError:
        line = f"an audit of privacy needs jax-privacy: {installing('jax-privacy')}"
    else:
        return auditing
    require(False, line)
    raise AssertionError


def lower_bound(guesses: Guesses, delta: float, significance: float) -> float:
    """The largest epsilon that some guesses refute at a significance; 0 if they refute none.

    >>> round(lower_bound(Guesses(1000, 1000, 700), 1e-5, 0.05), 4)
    0.7317
    """
    canaries, made, right = guesses
    if not right:
        return 0.0
    # a score of 1 is a guess, "in" if it is right; a score of 0 is none; there must be an "out"
    out = np.repeat([1.0, 0.0], [made - right, canaries - made])
    auditor = auditing().CanaryScoreAuditor(np.ones(right), out if len(out) else np.zeros(1))
    threshold = auditing().Explicit(1.0)
    return float(auditor.epsilon_one_run(significance, delta, threshold_strategy=threshold))


def guessed(scores: NDArray[np.float64], present: NDArray[np.bool_]) -> list[Guesses]:
    """Guesses of several numbers, on both sides and on one.

    Half of the guesses say that the canaries of the largest scores are in the run, and half that
    those of the smallest are not. Then the first half counts alone. Equal scores are ordered by
    their place, which says nothing of the coins.

    >>> guessed(np.array([3.0, -1.0, 2.0, 0.0]), np.array([True, False, False, False]))[:2]
    [Guesses(canaries=4, made=4, right=3), Guesses(canaries=4, made=2, right=1)]
    """
    ordered, canaries = present[np.argsort(scores, kind="stable")], len(scores)
    found = []
    for share in SHARES:
        half = max(1, int(share * canaries / 2))
        inside, outside = int(ordered[-half:].sum()), int((~ordered[:half]).sum())
        found += [Guesses(canaries, 2 * half, inside + outside), Guesses(canaries, half, inside)]
    return found


class Bound(NamedTuple):
    """The lower bound of epsilon that guesses give.

    Attributes:
        epsilon: The lower confidence bound.
        most: The bound if all guesses had been right.
        guesses: The guesses that give it.
    """

    epsilon: float
    most: float
    guesses: Guesses


def bound_of(tried: list[Guesses], delta: float, confidence: float) -> Bound:
    """The bound of the best of several numbers of guesses, corrected for all (Bonferroni)."""
    significance = (1 - confidence) / len(tried)
    found = [lower_bound(each, delta, significance) for each in tried]
    most = max(lower_bound(each._replace(right=each.made), delta, significance) for each in tried)
    best = max(range(len(tried)), key=lambda i: (found[i], tried[i].made))
    return Bound(found[best], most, tried[best])
