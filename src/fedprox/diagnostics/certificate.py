"""When theory promises that a round of FedProx lowers f: rho of Theorem 4 and what follows from it.

If the F_k are L-smooth with Hessians of at least -L_- I, mu_bar = mu - L_- > 0, B(w^t) <= B, all
local solutions are gamma-inexact, and K clients are drawn with probabilities p_k, with replacement,
and their answers averaged plainly, then

    E f(w^{t+1}) <= f(w^t) - rho ||grad f(w^t)||^2

where, wherever it is positive (Li et al. 2020, Theorem 4),

    rho = 1/mu - gamma B/mu - B (1 + gamma) sqrt(2) / (mu_bar sqrt(K))
          - L B (1 + gamma) / (mu_bar mu) - L (1 + gamma)^2 B^2 / (2 mu_bar^2)
          - L B^2 (1 + gamma)^2 (2 sqrt(2 K) + 2) / (mu_bar^2 K).

Lemma 3 of the paper's first draft has no sqrt(2), and 2 sqrt(K) + 1 for 2 sqrt(2 K) + 2: it bounds
the scatter of a cohort's mean by 1/K of that of its members, which is exact for this sampling,
where the theorem takes 2/K. So Theorem 4 with K clients is Lemma 3 with K/2, and here they are
one formula. The condition is sufficient and not necessary: a mu without it may work as well.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedprox.errors import require, require_number, require_whole


@dataclass(frozen=True)
class Constants:
    """What the bound depends on besides mu.

    Attributes:
        smoothness: L, above 0.
        dissimilarity: B, at least 1.
        clients_per_round: K.
        negative_curvature: L_-, from 0 to L; 0 where all F_k are convex.
        gamma: How inexact local solutions are, from 0 to 1 (Definition 1).

    Raises:
        InputError: A number out of range.
    """

    smoothness: float
    dissimilarity: float
    clients_per_round: int
    negative_curvature: float = 0.0
    gamma: float = 0.0

    def __post_init__(self) -> None:
        require_number("smoothness", self.smoothness, positive=True)
        require_number("dissimilarity", self.dissimilarity)
        require(self.dissimilarity >= 1, f"dissimilarity = {self.dissimilarity}; it is at least 1")
        require_whole("clients_per_round", self.clients_per_round)
        require_number("negative_curvature", self.negative_curvature, most=self.smoothness)
        require_number("gamma", self.gamma, most=1)


class _Polynomial(NamedTuple):
    """rho mu mu_bar^2 = gain mu_bar^2 - noise mu mu_bar - drift mu_bar - bend mu."""

    gain: float
    noise: float
    drift: float
    bend: float


def _polynomial(constants: Constants, *, draft: bool) -> _Polynomial:
    clients = constants.clients_per_round if draft else constants.clients_per_round / 2
    smoothness = constants.smoothness
    moved = constants.dissimilarity * (
        1 + constants.gamma
    )  # mu_bar times a bound of E||w_k - w^t||
    return _Polynomial(
        gain=1 - constants.gamma * constants.dissimilarity,
        noise=moved / math.sqrt(clients),
        drift=smoothness * moved,
        bend=smoothness * moved * moved * (0.5 + (2 * math.sqrt(clients) + 1) / clients),
    )


def rho(mu: float, constants: Constants, *, draft: bool = False) -> float:
    """The promised decrease of f in a round, in units of ||grad f||^2 (Li et al. 2020, Theorem 4).

    Args:
        mu: Weight of the proximal term.
        constants: What else the bound depends on.
        draft: Lemma 3 of the paper's first draft (its equation 3) in place of Theorem 4.

    Returns:
        rho; nothing is promised where it is not positive. -infinity where mu <= L_-.

    Raises:
        InputError: mu is not a finite number of at least 0.

    With L = 1, B = 1, K = 8: 1/20 - 1/40 - 1/400 - 1/800 - 10/3200 at mu = 20.

    >>> constants = Constants(smoothness=1.0, dissimilarity=1.0, clients_per_round=8)
    >>> round(rho(20.0, constants), 9)
    0.018125

    K = 4 in the draft, where 1/sqrt(K) = 1/2 and (2 sqrt(K) + 1)/K = 5/4, comes to the same.

    >>> round(rho(20.0, Constants(1.0, 1.0, clients_per_round=4), draft=True), 9)
    0.018125
    """
    require_number("mu", mu)
    mu_bar = mu - constants.negative_curvature
    if mu_bar <= 0:
        return -math.inf
    p = _polynomial(constants, draft=draft)
    ratio = mu / mu_bar
    return (p.gain - p.noise * ratio - (p.drift + p.bend * ratio) / mu_bar) / mu


def mu_needed(constants: Constants, *, draft: bool = False) -> float | None:
    """The mu above which rho is positive, or None where no mu makes it so.

    rho mu mu_bar^2 is a quadratic in mu_bar that is negative at 0; its leading coefficient is
    1 - gamma B - B (1 + gamma) sqrt(2/K). So rho is positive for some mu exactly where that is,
    and then for every mu above L_- + the one positive root, and for no other.

    Args:
        constants: What the bound depends on.
        draft: Lemma 3 of the paper's first draft in place of Theorem 4.

    With L = 1, B = 1, K = 8 rho is 1/(2 mu) - 2.75/mu^2.

    >>> mu_needed(Constants(smoothness=1.0, dissimilarity=1.0, clients_per_round=8))
    5.5
    >>> mu_needed(Constants(smoothness=1.0, dissimilarity=3.0, clients_per_round=8)) is None
    True
    """
    p, below = _polynomial(constants, draft=draft), constants.negative_curvature
    leading = p.gain - p.noise
    if leading <= 0:
        return None
    linear = p.noise * below + p.drift + p.bend
    root = (linear + math.hypot(linear, 2 * math.sqrt(leading * p.bend * below))) / (2 * leading)
    return below + root


def best_mu(constants: Constants, *, draft: bool = False) -> float | None:
    """The mu with the largest rho, or None where no mu makes rho positive.

    Where L_- = 0 it is twice `mu_needed`. In general the derivative of rho, times
    mu^2 mu_bar^3, is a cubic in mu_bar whose coefficients change sign once, so that it has one
    positive root.

    Args:
        constants: What the bound depends on.
        draft: Lemma 3 of the paper's first draft in place of Theorem 4.

    >>> round(best_mu(Constants(smoothness=1.0, dissimilarity=1.0, clients_per_round=8)), 9)
    11.0
    """
    if mu_needed(constants, draft=draft) is None:
        return None
    p, below = _polynomial(constants, draft=draft), constants.negative_curvature
    roots = np.roots(
        [
            p.noise - p.gain,
            2 * (p.noise * below + p.drift + p.bend),
            p.noise * below**2 + p.drift * below + 4 * p.bend * below,
            2 * p.bend * below**2,
        ]
    )
    # the sum of the roots' products in pairs is at most 0, so the real parts of the other two are
    return below + float(roots.real.max())


def remark_5(constants: Constants) -> bool:
    """Whether gamma B < 1 and B / sqrt(K) < 1, without which rho > 0 for no mu (Remark 5).

    They do not suffice: see `mu_needed` for what does.

    >>> remark_5(Constants(smoothness=1.0, dissimilarity=3.0, clients_per_round=10))
    True
    >>> remark_5(Constants(smoothness=1.0, dissimilarity=4.0, clients_per_round=10))
    False
    """
    ratio = constants.dissimilarity / math.sqrt(constants.clients_per_round)
    return constants.gamma * constants.dissimilarity < 1 and ratio < 1


class ConvexCase(NamedTuple):
    """Corollary 7's `mu` and the decrease `rho` that goes with it."""

    mu: float
    rho: float


def corollary_7(smoothness: float, dissimilarity: float) -> ConvexCase:
    """The convex case: mu = 6 L B^2, with which rho is about 1 / (24 L B^2).

    For convex F_k, exact local solutions and 1 << B <= sqrt(K) / 2 (Li et al. 2020, Corollary 7).

    Args:
        smoothness: L.
        dissimilarity: B.

    Raises:
        InputError: L <= 0 or B < 1.

    >>> corollary_7(0.5, 2.0) == (12.0, 1 / 48)
    True
    """
    constants = Constants(smoothness, dissimilarity, 1)
    scale = constants.smoothness * constants.dissimilarity * constants.dissimilarity
    return ConvexCase(6 * scale, 1 / (24 * scale))


def dissimilarity_bound(variance: float, epsilon: float) -> float:
    """B <= sqrt(1 + sigma^2 / epsilon), wherever ||grad f||^2 >= epsilon (Corollary 10).

    Args:
        variance: sigma^2, a bound of E_k ||grad F_k - grad f||^2.
        epsilon: Least ||grad f||^2 that matters, above 0.

    Raises:
        InputError: A number out of range.

    >>> dissimilarity_bound(3.0, 1.0)
    2.0
    """
    require_number("variance", variance)
    require_number("epsilon", epsilon, positive=True)
    return math.sqrt(1 + variance / epsilon)


def rho_bounded_variance(
    mu: float,
    *,
    smoothness: float,
    variance: float,
    epsilon: float,
    clients_per_round: int,
    negative_curvature: float = 0.0,
    gamma: float = 0.0,
) -> float:
    """The rho of Theorem 4 where the gradients' variance is bounded in place of B.

    Li et al. 2020, Theorem 11: B = sqrt(1 + sigma^2 / epsilon), and the decrease is promised
    while ||grad f||^2 >= epsilon.

    Args:
        mu: Weight of the proximal term.
        smoothness: L.
        variance: sigma^2, a bound of E_k ||grad F_k - grad f||^2.
        epsilon: Least ||grad f||^2 that matters.
        clients_per_round: K.
        negative_curvature: L_-.
        gamma: How inexact local solutions are.

    Raises:
        InputError: A number out of range.

    With B = 2, L = 1, K = 32: 1/100 - 1/200 - 2/10^4 - 2/10^4 - 4 * 18/32 / 10^4 at mu = 100.

    >>> round(rho_bounded_variance(
    ...     100.0, smoothness=1.0, variance=3.0, epsilon=1.0, clients_per_round=32
    ... ), 9)
    0.004375
    """
    bound = dissimilarity_bound(variance, epsilon)
    return rho(mu, Constants(smoothness, bound, clients_per_round, negative_curvature, gamma))
