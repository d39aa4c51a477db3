"""Conditions under which theory promises that a round of FedProx decreases f: rho of Theorem 4.

Lemma 3 of the paper's first draft has no sqrt(2), and 2 sqrt(K) + 1 in place of 2 sqrt(2 K) + 2: it
bounds the variance of a cohort's mean by 1/K of its members' variance, which is exact for this
sampling, where the theorem uses 2/K. So Theorem 4 with K clients is Lemma 3 with K/2, and one
formula serves both, as it serves Theorem 11 and the draft's Lemma 5. The condition is sufficient,
not necessary: a smaller mu may work as well.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedprox.errors import require, require_number, require_whole


@dataclass(frozen=True)
class Constants:
    """The constants of Theorem 4 besides mu.

    Attributes:
        smoothness: L, the smoothness of the local objectives, above 0.
        dissimilarity: B, a bound of B(w^t), at least 1.
        clients_per_round: K, at least 1.
        negative_curvature: :math:`L_-`, from 0 to L: no Hessian of a local objective has an
            eigenvalue below :math:`-L_-`. It is 0 if all of them are convex.
        gamma: Inexactness of the local solutions (Definition 1), from 0 to 1.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> from fedprox.diagnostics import Constants
        >>> Constants(smoothness=1.0, dissimilarity=2.0, clients_per_round=10).gamma
        0.0
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
    # mu_bar times a bound of E||w_k - w^t||
    moved = constants.dissimilarity * (1 + constants.gamma)
    return _Polynomial(
        gain=1 - constants.gamma * constants.dissimilarity,
        noise=moved / math.sqrt(clients),
        drift=smoothness * moved,
        bend=smoothness * moved * moved * (0.5 + (2 * math.sqrt(clients) + 1) / clients),
    )


def rho(mu: float, constants: Constants, *, draft: bool = False) -> float:
    r"""The promised decrease of f in a round, in units of the squared gradient norm.

    Let the :math:`F_k` be :math:`L`-smooth with Hessians of at least :math:`-L_- I`,
    :math:`\bar\mu = \mu - L_- > 0`, :math:`B(w^t) \le B`, and all local solutions
    :math:`\gamma`-inexact. If :math:`K` clients are drawn with probabilities :math:`p_k`, with
    replacement, and the server takes their plain mean, then

    .. math:: E f(w^{t+1}) \le f(w^t) - \rho \|\nabla f(w^t)\|^2

    wherever the following is positive:

    .. math::
        \rho = \frac{1}{\mu} - \frac{\gamma B}{\mu}
        - \frac{B (1 + \gamma) \sqrt{2}}{\bar\mu \sqrt{K}}
        - \frac{L B (1 + \gamma)}{\bar\mu \mu}
        - \frac{L (1 + \gamma)^2 B^2}{2 \bar\mu^2}
        - \frac{L B^2 (1 + \gamma)^2}{\bar\mu^2 K} (2 \sqrt{2 K} + 2).

    Args:
        mu: Proximal weight, at least 0.
        constants: The other constants.
        draft: Whether to use Lemma 3 of the paper's first draft (its equation 3) instead.

    Returns:
        rho; nothing is promised unless it is positive. -infinity if mu is at most :math:`L_-`.

    Raises:
        InputError: If mu is negative or not finite.

    Example:
        With L = 1, B = 1, K = 8, and mu = 20: 1/20 - 1/40 - 1/400 - 1/800 - 10/3200. The draft with
        K = 4 gives the same.

        >>> from fedprox.diagnostics import Constants, rho
        >>> round(rho(20.0, Constants(1.0, 1.0, clients_per_round=8)), 9)
        0.018125
        >>> round(rho(20.0, Constants(1.0, 1.0, clients_per_round=4), draft=True), 9)
        0.018125

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Theorem 4.
    """
    require_number("mu", mu)
    mu_bar = mu - constants.negative_curvature
    if mu_bar <= 0:
        return -math.inf
    p = _polynomial(constants, draft=draft)
    ratio = mu / mu_bar
    return (p.gain - p.noise * ratio - (p.drift + p.bend * ratio) / mu_bar) / mu


def mu_needed(constants: Constants, *, draft: bool = False) -> float | None:
    r"""The mu above which rho is positive.

    :math:`\rho \mu \bar\mu^2` is a quadratic in :math:`\bar\mu` that is negative at 0, with
    leading coefficient :math:`1 - \gamma B - B (1 + \gamma) \sqrt{2 / K}`. If that is positive,
    rho is positive exactly for mu above :math:`L_-` plus the positive root; else for no mu.

    Args:
        constants: The constants besides mu.
        draft: Whether to use Lemma 3 of the paper's first draft instead of Theorem 4.

    Returns:
        The mu, or None if rho is positive for no mu.

    Example:
        With L = 1, B = 1, K = 8, rho is 1/(2 mu) - 2.75/mu^2.

        >>> from fedprox.diagnostics import Constants, mu_needed
        >>> mu_needed(Constants(smoothness=1.0, dissimilarity=1.0, clients_per_round=8))
        5.5
        >>> mu_needed(Constants(smoothness=1.0, dissimilarity=3.0, clients_per_round=8)) is None
        True

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Theorem 4.
    """
    p, below = _polynomial(constants, draft=draft), constants.negative_curvature
    leading = p.gain - p.noise
    if leading <= 0:
        return None
    linear = p.noise * below + p.drift + p.bend
    root = (linear + math.hypot(linear, 2 * math.sqrt(leading * p.bend * below))) / (2 * leading)
    return below + root


def best_mu(constants: Constants, *, draft: bool = False) -> float | None:
    r"""The mu with the largest rho.

    With :math:`L_- = 0` it is twice `mu_needed`. In general the derivative of rho, times
    :math:`\mu^2 \bar\mu^3`, is a cubic in :math:`\bar\mu` whose coefficients change sign once, so
    it has one positive root.

    Args:
        constants: The constants besides mu.
        draft: Whether to use Lemma 3 of the paper's first draft instead of Theorem 4.

    Returns:
        The mu, or None if rho is positive for no mu.

    Example:
        >>> from fedprox.diagnostics import Constants, best_mu
        >>> round(best_mu(Constants(1.0, dissimilarity=1.0, clients_per_round=8)), 9)
        11.0

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Theorem 4.
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
    # the sum of the roots' pairwise products is at most 0, so the other two have real parts <= 0
    return below + float(roots.real.max())


def decrease_possible(constants: Constants) -> bool:
    r"""Whether :math:`\gamma B < 1` and :math:`B / \sqrt{K} < 1`.

    Both are necessary for a positive rho, but they do not suffice: see `mu_needed`.

    Args:
        constants: The constants besides mu.

    Returns:
        Whether both inequalities hold.

    Example:
        >>> from fedprox.diagnostics import Constants, decrease_possible
        >>> decrease_possible(Constants(smoothness=1.0, dissimilarity=3.0, clients_per_round=10))
        True
        >>> decrease_possible(Constants(smoothness=1.0, dissimilarity=4.0, clients_per_round=10))
        False

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Remark 5; in its draft
        Remark 7.
    """
    ratio = constants.dissimilarity / math.sqrt(constants.clients_per_round)
    return constants.gamma * constants.dissimilarity < 1 and ratio < 1


class ConvexCase(NamedTuple):
    """The mu of Corollary 7 and its decrease rho."""

    mu: float
    rho: float


def convex_case(smoothness: float, dissimilarity: float) -> ConvexCase:
    r"""The convex case: :math:`\mu = 6 L B^2`, for which rho is about :math:`1 / (24 L B^2)`.

    It is for convex :math:`F_k`, exact local solutions, and :math:`1 \ll B \le \sqrt{K} / 2`. The
    second number is an approximation and not a bound: with :math:`K = 4 B^2` the rho of Theorem 4
    is smaller, 0.84 times it for large :math:`B`, 0.26 times for :math:`B = 3` and negative for
    :math:`B = 2`. `convex_rate` gives the clients that are enough.

    Args:
        smoothness: L, above 0.
        dissimilarity: B, at least 1.

    Returns:
        The named tuple (mu, rho).

    Raises:
        InputError: If L or B is out of range.

    Example:
        >>> from fedprox.diagnostics import convex_case
        >>> convex_case(0.5, 2.0) == (12.0, 1 / 48)
        True

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Corollary 7; in its draft
        Corollary 6.
    """
    constants = Constants(smoothness, dissimilarity, 1)
    scale = constants.smoothness * constants.dissimilarity * constants.dissimilarity
    return ConvexCase(6 * scale, 1 / (24 * scale))


def dissimilarity_bound(variance: float, epsilon: float) -> float:
    r"""A bound of B from a bound of the gradients' variance.

    .. math:: B \le \sqrt{1 + \sigma^2 / \epsilon} \quad
        \text{wherever} \quad \|\nabla f(w)\|^2 \ge \epsilon.

    Args:
        variance: :math:`\sigma^2`, a bound of :math:`E_k \|\nabla F_k - \nabla f\|^2`, at least 0.
        epsilon: The least :math:`\|\nabla f\|^2` of interest, above 0.

    Returns:
        The bound.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> from fedprox.diagnostics import dissimilarity_bound
        >>> dissimilarity_bound(3.0, 1.0)
        2.0

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Corollary 10; in its draft
        Corollary 4.
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
    draft: bool = False,
) -> float:
    r"""The rho of Theorem 4 with a bound of the gradients' variance in place of B.

    It is `rho` with the B of `dissimilarity_bound`. The decrease is promised while
    :math:`\|\nabla f\|^2 \ge \epsilon`. With `draft` it is Lemma 5 of the paper's first draft:

    .. math::
        \rho = \frac{1}{\mu} - \left( \frac{\gamma}{\mu}
        + \frac{1 + \gamma}{\bar\mu \sqrt{K}} + \frac{L (1 + \gamma)}{\bar\mu \mu} \right) B
        - \left( \frac{L (1 + \gamma)^2}{2 \bar\mu^2}
        + \frac{L (1 + \gamma)^2}{\bar\mu^2 K} (2 \sqrt{K} + 1) \right) B^2,
        \qquad B = \sqrt{1 + \frac{\sigma^2}{\epsilon}}.

    Args:
        mu: Proximal weight, at least 0.
        smoothness: L, above 0.
        variance: :math:`\sigma^2`, a bound of :math:`E_k \|\nabla F_k - \nabla f\|^2`, at least 0.
        epsilon: The least :math:`\|\nabla f\|^2` of interest, above 0.
        clients_per_round: K, at least 1.
        negative_curvature: :math:`L_-`, from 0 to L.
        gamma: Inexactness of the local solutions, from 0 to 1.
        draft: Whether to use Lemma 5 of the paper's first draft (section 4.2) instead of
            Theorem 11.

    Returns:
        rho; nothing is promised unless it is positive.

    Raises:
        InputError: If a number is out of range.

    Example:
        With B = 2, L = 1, K = 32, mu = 100: 1/100 - 1/200 - 2/10^4 - 2/10^4 - 4 * 18/32 / 10^4.

        >>> from fedprox.diagnostics import rho_bounded_variance
        >>> round(rho_bounded_variance(
        ...     100.0, smoothness=1.0, variance=3.0, epsilon=1.0, clients_per_round=32
        ... ), 9)
        0.004375

        The draft with K = 16 gives the same.

        >>> round(rho_bounded_variance(
        ...     100.0, smoothness=1.0, variance=3.0, epsilon=1.0, clients_per_round=16, draft=True
        ... ), 9)
        0.004375

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Theorem 11.
    """
    bound = dissimilarity_bound(variance, epsilon)
    constants = Constants(smoothness, bound, clients_per_round, negative_curvature, gamma)
    return rho(mu, constants, draft=draft)
