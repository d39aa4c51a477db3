r"""The theorems of FedProx and of FedDyn, a function for each.

FedProx (Li et al. 2020): Theorem 4 and what follows from it. Its condition is sufficient and not
necessary: a smaller mu may work as well. Lemma 3 of the paper's first draft bounds the variance of
    a cohort's mean by 1/K of its members' variance, which is exact for this sampling. Theorem 4
    uses 2/K. So Lemma 3 with K clients is Theorem 4 with 2 K, and one formula serves both. The
    paper prints
no proof for Theorem 6 and a few sentences for Remark 8; the functions give what follows from
Theorem 4, with its constants.

FedDyn (Acar et al. 2021): Theorems 1 to 4. They assume that K of N clients are drawn uniformly
without replacement in each round, that local problems are solved exactly, and that every client
counts once. They bound the error in

.. math:: f(w) = \frac{1}{N} \sum_k F_k(w).

They bound it for :math:`\gamma^t`, the mean of the models that the cohort of round t returns, not
for the server's model :math:`w^t`; :math:`\gamma^0 = w^0`. The symbols are the library's: N, K and
w stand for the paper's m, P and theta. Each theorem follows from a lemma of the form r V^t <=
V^{t-1} - kappa_0 e^{t-1}. V is a distance, in the nonconvex case f itself, plus kappa times a
dispersion of the clients. e is the error, and r = 1 but in the strongly convex case. The lemmas'
constants are those that their proofs' inequalities imply. The theorems round them up, so both
bounds are given.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

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


def _polynomial(constants: Constants) -> tuple[float, float, float, float]:
    """The numbers of rho mu mu_bar^2 = gain mu_bar^2 - noise mu mu_bar - drift mu_bar - bend mu."""
    clients, smoothness = constants.clients_per_round / 2, constants.smoothness
    # mu_bar times a bound of E||w_k - w^t||
    moved = constants.dissimilarity * (1 + constants.gamma)
    gain, noise = 1 - constants.gamma * constants.dissimilarity, moved / math.sqrt(clients)
    bend = smoothness * moved * moved * (0.5 + (2 * math.sqrt(clients) + 1) / clients)
    return gain, noise, smoothness * moved, bend


def rho(mu: float, constants: Constants) -> float:
    r"""The decrease of f in a round that Theorem 4 guarantees, over the squared gradient norm.

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

    Other statements have the same form with other constants. Lemma 3 of the paper's first draft has
    :math:`2 K` clients in place of :math:`K`. Theorem 11, and Lemma 5 of the draft, have the
    :math:`B` of `dissimilarity_bound`, and promise the decrease while
    :math:`\|\nabla f\|^2 \ge \epsilon`. Corollary 9 has a :math:`\gamma^t` for each round, the
    largest of all clients, drawn or not; `Record.gamma_max` is that of the cohort.

    Args:
        mu: Proximal weight, at least 0.
        constants: The other constants.

    Returns:
        rho; Theorem 4 guarantees nothing unless it is positive. -infinity if mu is at most
        :math:`L_-`.

    Raises:
        InputError: If mu is negative or not finite.

    Example:
        With L = 1, B = 1, K = 8, and mu = 20: 1/20 - 1/40 - 1/400 - 1/800 - 10/3200.

        >>> from fedprox.diagnostics import Constants, rho
        >>> round(rho(20.0, Constants(1.0, 1.0, clients_per_round=8)), 9)
        0.018125

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Theorem 4.
    """
    require_number("mu", mu)
    mu_bar = mu - constants.negative_curvature
    if mu_bar <= 0:
        return -math.inf
    gain, noise, drift, bend = _polynomial(constants)
    ratio = mu / mu_bar
    return (gain - noise * ratio - (drift + bend * ratio) / mu_bar) / mu


def mu_needed(constants: Constants) -> float | None:
    r"""The mu above which rho is positive.

    :math:`\rho \mu \bar\mu^2` is a quadratic in :math:`\bar\mu` that is negative at 0, with
    leading coefficient :math:`1 - \gamma B - B (1 + \gamma) \sqrt{2 / K}`. If that is positive,
    rho is positive exactly for mu above :math:`L_-` plus the positive root, and with
    :math:`L_- = 0` greatest at twice that; else it is positive for no mu. Remark 5 has a necessary
    condition, :math:`\gamma B < 1` and :math:`B / \sqrt{K} < 1`; this one also suffices.

    Args:
        constants: The constants besides mu.

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
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Theorem 4 and Remark 5.
    """
    below, (gain, noise, drift, bend) = constants.negative_curvature, _polynomial(constants)
    leading = gain - noise
    if leading <= 0:
        return None
    linear = noise * below + drift + bend
    root = (linear + math.hypot(linear, 2 * math.sqrt(leading * bend * below))) / (2 * leading)
    return below + root


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


class ConvexCase(NamedTuple):
    """The mu of Corollary 7 and its decrease rho."""

    mu: float
    rho: float


def convex_case(smoothness: float, dissimilarity: float) -> ConvexCase:
    r"""The convex case: :math:`\mu = 6 L B^2`, for which rho is about :math:`1 / (24 L B^2)`.

    It is for convex :math:`F_k`, exact local solutions, and :math:`1 \ll B \le \sqrt{K} / 2`. The
    second number is an approximation and not a bound. With :math:`K = 4 B^2` the rho of Theorem 4
    is smaller: 0.84 times it for large :math:`B`, 0.26 times for :math:`B = 3` and negative for
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


def rounds_needed(rho: float, gap: float, epsilon: float) -> int:
    r"""The rounds after which FedProx's mean squared gradient is at most epsilon.

    Let Theorem 4 hold in every round with the same :math:`\rho > 0`, and
    :math:`\Delta = f(w^0) - \min f`. The sum of its inequalities over the rounds gives

    .. math::
        \frac{1}{T} \sum_{t=0}^{T-1} E \|\nabla f(w^t)\|^2 \le \frac{\Delta}{\rho T} \le \epsilon
        \quad \text{for} \quad T \ge \frac{\Delta}{\rho \epsilon}.

    The theorem allows a :math:`B` that bounds :math:`B(w)` only where
    :math:`\|\nabla f(w)\|^2 > \epsilon` (Assumption 1). The sum then ends at the first :math:`w^t`
    with a smaller gradient: T bounds the expected number of rounds until then, not the mean above.

    Args:
        rho: :math:`\rho` of Theorem 4, above 0, in units of w^2 / F.
        gap: :math:`\Delta`, at least 0, in units of F.
        epsilon: :math:`\epsilon`, above 0, in units of F^2 / w^2.

    Returns:
        The least T of at least 1.

    Raises:
        InputError: If a number is out of range, or T is not finite.

    Example:
        >>> from fedprox.diagnostics import Constants, rho, rounds_needed
        >>> decrease = rho(11.0, Constants(1.0, 1.0, clients_per_round=8))
        >>> rounds_needed(decrease, gap=2.0, epsilon=0.01)
        8800

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Theorem 6; in its draft Corollary 8.
    """
    require_number("rho", rho, positive=True)
    require_number("gap", gap)
    require_number("epsilon", epsilon, positive=True)
    return max(1, _whole("rounds", gap / epsilon / rho))


class ConvexRate(NamedTuple):
    """The setting of Remark 8 and its rounds.

    Attributes:
        mu: The proximal weight of Corollary 7.
        clients_per_round: The fewest clients K for which Theorem 4 guarantees Corollary 7's rho.
        rounds: The rounds T.

    Example:
        >>> from fedprox.diagnostics import convex_rate
        >>> convex_rate(smoothness=1.0, gap=1.0, variance=0.0, epsilon=1.0)
        ConvexRate(mu=6.0, clients_per_round=16, rounds=24)
    """

    mu: float
    clients_per_round: int
    rounds: int


def convex_rate(smoothness: float, gap: float, variance: float, epsilon: float) -> ConvexRate:
    r"""The convex case's rounds, which are of the same order as those of SGD.

    Let the :math:`F_k` be convex and :math:`L`-smooth, local problems be solved exactly,
    :math:`E_k \|\nabla F_k - \nabla f\|^2 \le \sigma^2`, and :math:`\Delta = f(w^0) - \min f`. With
    :math:`B^2 = 1 + \sigma^2 / \epsilon` (Corollary 10), :math:`\mu = 6 L B^2` and
    :math:`\rho = 1 / (24 L B^2)` (Corollary 7), Theorem 6 gives

    .. math:: T = \frac{\Delta}{\rho \epsilon} =
        24 \Big(\frac{L \Delta}{\epsilon} + \frac{L \Delta \sigma^2}{\epsilon^2}\Big).

    SGD's order in the same assumptions is that in brackets (Ghadimi and Lan 2013). T bounds the
    expected rounds until :math:`\|\nabla f(w^t)\|^2 \le \epsilon`, as in `rounds_needed`.

    The equal order hides that :math:`K` has to grow with :math:`1 / \epsilon`. Corollary 7 says
    :math:`K \ge 4 B^2`, which is enough for its :math:`\rho` in the paper's first draft if
    :math:`B` is at least 2.2. Theorem 4 needs about :math:`4.5 B^2` clients for large :math:`B`,
    and 16 for :math:`B = 1`.

    Args:
        smoothness: L, above 0, in units of F / w^2.
        gap: :math:`\Delta`, at least 0, in units of F.
        variance: :math:`\sigma^2`, at least 0, in units of F^2 / w^2.
        epsilon: :math:`\epsilon`, above 0, in units of F^2 / w^2.

    Returns:
        The named tuple (mu, clients_per_round, rounds).

    Raises:
        InputError: If a number is out of range, or a result is not finite.

    Example:
        >>> from fedprox.diagnostics import convex_rate
        >>> convex_rate(smoothness=0.5, gap=2.0, variance=3.0, epsilon=1.0)
        ConvexRate(mu=12.0, clients_per_round=34, rounds=96)

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Remark 8, in its draft Remark 9; and
        Ghadimi and Lan, `Stochastic First- and Zeroth-Order Methods for Nonconvex Stochastic
        Programming <https://arxiv.org/abs/1309.5549>`_, SIAM Journal on Optimization, 2013.
    """
    require_number("gap", gap)
    b = dissimilarity_bound(variance, epsilon)
    mu = convex_case(smoothness, b).mu
    # 36 L B^2 (rho - 1 / (24 L B^2)) at mu = 6 L B^2, with s = sqrt(2 / K), is
    # 4 - 1 / B - (6 B + 2) s - s^2
    half = 3 * b + 1
    room = 4 - 1 / b
    s = room / (half + math.sqrt(half * half + room))
    rounds = _whole("rounds", 24 * smoothness * (gap / epsilon) * (1 + variance / epsilon))
    return ConvexRate(mu, _whole("clients_per_round", 2 / (s * s)), max(1, rounds))


def _whole(what: str, value: float) -> int:
    """The least whole number that is not below a value."""
    require(math.isfinite(value), f"{what}: the bound is {value}, beyond double precision")
    return math.ceil(value)


class FedDynBound(NamedTuple):
    r"""A bound of FedDyn's error after T rounds, and the constants that it comes from.

    Attributes:
        alpha: The weight :math:`\alpha` of FedDyn's regularizer, in units of F / w^2.
        kappa: :math:`\kappa` of the proof's lemma, the weight of the clients' dispersion.
        kappa_0: :math:`\kappa_0` of the proof's lemma, the weight of a round's error.
        bound: The bound that the proof gives, with `kappa` and `kappa_0`.
        printed: The theorem's own bound, whose constants are rounded up.

    Example:
        >>> from fedprox.diagnostics import FedDynBound
        >>> FedDynBound(alpha=30.0, kappa=0.01, kappa_0=0.02, bound=0.5, printed=1.5).bound
        0.5
    """

    alpha: float
    kappa: float
    kappa_0: float
    bound: float
    printed: float


def feddyn_convex(
    rounds: int,
    *,
    smoothness: float,
    clients: int,
    clients_per_round: int,
    squared_distance: float,
    squared_gradients: float,
    alpha: float | None = None,
) -> FedDynBound:
    r"""FedDyn's bound for convex objectives, which decreases as 1 / T.

    Let the :math:`F_k` be convex and :math:`L`-smooth, :math:`w^*` minimize :math:`f`, and
    :math:`\alpha \ge 25 L`. With :math:`D = \|w^0 - w^*\|^2` and
    :math:`G = \frac{1}{N} \sum_k \|\nabla F_k(w^*)\|^2`,

    .. math::
        E f\Big(\frac{1}{T} \sum_{t=0}^{T-1} \gamma^t\Big) - f(w^*)
        \le \frac{1}{T} \sum_{t=0}^{T-1} E f(\gamma^t) - f(w^*)
        \le \frac{D + \kappa G}{\kappa_0 T}
        \le \frac{1}{T} \Big(10 \alpha D + \frac{100 N}{\alpha K} G\Big),

    where

    .. math::
        \kappa = \frac{8 N}{\alpha K} \, \frac{L + \alpha}{\alpha^2 - 20 L^2}, \qquad
        \kappa_0 = \frac{2}{\alpha} \, \frac{\alpha^2 - 20 \alpha L - 40 L^2}{\alpha^2 - 20 L^2}.

    The proof needs :math:`\alpha > (10 + \sqrt{140}) L`, about 21.8 L; the theorem says 25 L. With
    25 L, the proof's constants are 3.6 and 31 in place of 10 and 100, and with a large
    :math:`\alpha` they are 1/2 and 4. :math:`G` is the clients' dispersion because FedDyn starts
    with :math:`g_k = 0`.

    Args:
        rounds: T, at least 1.
        smoothness: L, above 0, in units of F / w^2.
        clients: N, at least 1.
        clients_per_round: K, from 1 to N.
        squared_distance: D, at least 0, in units of w^2.
        squared_gradients: G, at least 0, in units of F^2 / w^2.
        alpha: :math:`\alpha`, at least 25 L. None for that of Theorem 1, :math:`30 L \sqrt{N / K}`.

    Returns:
        The constants and the bounds, which are in units of F.

    Raises:
        InputError: If a number is out of range.

    Example:
        With L = 1 and alpha = 40, kappa_0 is 2/40 * 760/1580. The proof's bound after 100 rounds
        is about a tenth of the printed one, 10 * 40 / 100.

        >>> from fedprox.diagnostics import feddyn_convex
        >>> found = feddyn_convex(100, smoothness=1.0, clients=10, clients_per_round=10, alpha=40.0,
        ...                       squared_distance=1.0, squared_gradients=0.0)
        >>> round(found.kappa_0, 9) == round(38 / 1580, 9), round(found.bound, 4), found.printed
        (True, 0.4158, 4.0)

    References:
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, Theorem 1 (page 5), and Theorem 2 with
        Lemma 1 (pages 28 and 29).
    """
    share = _share(rounds, smoothness, clients, clients_per_round)
    require_number("squared_distance", squared_distance)
    require_number("squared_gradients", squared_gradients)
    alpha = _alpha(alpha, 30 * smoothness / math.sqrt(share), 25 * smoothness, "25 L")
    u = smoothness / alpha
    z = 1 - 20 * u * u
    kappa = 8 * (1 + u) / (share * z) / alpha / alpha
    kappa_0 = 2 * (1 - 20 * u - 40 * u * u) / z / alpha
    bound = (squared_distance + kappa * squared_gradients) / kappa_0
    rounded = 10 * alpha * squared_distance + 100 / share * squared_gradients / alpha
    return _bound(alpha, kappa, kappa_0, bound / rounds, rounded / rounds)


def feddyn_strongly_convex(
    rounds: int,
    *,
    smoothness: float,
    strong_convexity: float,
    clients: int,
    clients_per_round: int,
    squared_distance: float,
    squared_gradients: float,
    alpha: float | None = None,
) -> FedDynBound:
    r"""FedDyn's bound for strongly convex objectives, which decreases geometrically.

    Let the :math:`F_k` be :math:`\mu`-strongly convex and :math:`L`-smooth, :math:`w^*` minimize
    :math:`f`, and :math:`\alpha \ge \max(5 \mu N / K, 30 L)`. With :math:`D` and :math:`G` as in
    `feddyn_convex`, :math:`r = 1 + \mu / \alpha` and :math:`R = \sum_{t=0}^{T-1} r^t`,

    .. math::
        E f\Big(\frac{1}{R} \sum_{t=0}^{T-1} r^t \gamma^t\Big) - f(w^*)
        \le \frac{1}{R} \sum_{t=0}^{T-1} r^t E f(\gamma^t) - f(w^*)
        \le \frac{D + \kappa G}{\kappa_0 R}
        \le \frac{1}{r^{T-1}} \Big(20 \alpha D + \frac{400 N}{\alpha K} G\Big),

    where

    .. math::
        \kappa &= \frac{8 N (L + \alpha)}{z}, \qquad
        \kappa_0 = \frac{2 z - 8 L (L + \alpha) (5 K (\alpha + \mu) - N \mu)}{\alpha z}, \\
        z &= \alpha^3 K + \alpha^2 \mu (K - N) - 20 L^2 K (\alpha + \mu) + 4 L^2 N \mu.

    The theorem replaces :math:`1 / R` by :math:`1 / r^{T-1}`, which is much larger while
    :math:`T < \alpha / \mu`: the proof's bound decreases as 1 / T in these rounds, and the
    theorem's hardly at all. With the least :math:`\alpha`, the proof's constants are at most 3.4
    and 36 in place of 20 and 400.

    Args:
        rounds: T, at least 1.
        smoothness: L, above 0, in units of F / w^2.
        strong_convexity: :math:`\mu`, above 0 and at most L, in units of F / w^2. It is no
            proximal weight.
        clients: N, at least 1.
        clients_per_round: K, from 1 to N.
        squared_distance: D, at least 0, in units of w^2.
        squared_gradients: G, at least 0, in units of F^2 / w^2.
        alpha: :math:`\alpha`, at least :math:`\max(5 \mu N / K, 30 L)`. None for that value, the
            one of Theorem 1.

    Returns:
        The constants and the bounds, which are in units of F.

    Raises:
        InputError: If a number is out of range.

    Example:
        The bound halves in about 21 rounds, since r = 31/30:

        >>> from fedprox.diagnostics import feddyn_strongly_convex
        >>> problem = dict(smoothness=1.0, strong_convexity=1.0, clients=10, clients_per_round=10,
        ...                squared_distance=1.0, squared_gradients=0.0)
        >>> late, later = (feddyn_strongly_convex(T, **problem) for T in (200, 221))
        >>> late.alpha, round(later.bound / late.bound, 2), round(later.printed / late.printed, 2)
        (30.0, 0.5, 0.5)

    References:
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, Theorem 1 (page 5), and Theorem 3 with
        Lemma 8 (pages 32 and 33).
    """
    share = _share(rounds, smoothness, clients, clients_per_round)
    require_number("strong_convexity", strong_convexity, positive=True, most=smoothness)
    require_number("squared_distance", squared_distance)
    require_number("squared_gradients", squared_gradients)
    least = max(5 * strong_convexity / share, 30 * smoothness)
    alpha = _alpha(alpha, least, least, "max(5 mu N / K, 30 L)")
    u, s = smoothness / alpha, strong_convexity / alpha
    # z in units of alpha^3 K
    z = 1 + s - s / share - 20 * u * u * (1 + s) + 4 * u * u * s / share
    kappa = 8 * (1 + u) / (share * z) / alpha / alpha
    kappa_0 = (2 - 8 * u * (1 + u) * (5 + 5 * s - s / share) / z) / alpha
    growth = math.log1p(s)
    # 1 / R = (r - 1) / (r^T - 1), without overflow
    one_over_sum = s * math.exp(-rounds * growth) / -math.expm1(-rounds * growth)
    bound = (squared_distance + kappa * squared_gradients) / kappa_0
    rounded = 20 * alpha * squared_distance + 400 / share * squared_gradients / alpha
    last = math.exp((1 - rounds) * growth)
    return _bound(alpha, kappa, kappa_0, bound * one_over_sum, rounded * last)


def feddyn_nonconvex(
    rounds: int,
    *,
    smoothness: float,
    clients: int,
    clients_per_round: int,
    gap: float,
    squared_distances: float,
    alpha: float | None = None,
) -> FedDynBound:
    r"""FedDyn's bound of the gradient for nonconvex objectives, which decreases as 1 / T.

    Let the :math:`F_k` be :math:`L`-smooth and :math:`\alpha \ge 20 L N / K`. With
    :math:`\Delta = f(w^0) - \min f` and
    :math:`C = \frac{1}{N} \sum_k \|w_k^0 - w^0\|^2`, where :math:`\nabla F_k(w_k^0) = 0`,

    .. math::
        \frac{1}{T} \sum_{t=0}^{T-1} E \|\nabla f(\gamma^t)\|^2
        \le \frac{\Delta + \kappa C}{\kappa_0 T}
        \le \frac{1}{T} \Big(3 \alpha \Delta + \frac{30 L^3 N}{\alpha K} C\Big),

    where

    .. math::
        \kappa &= \frac{4 L^3 K (2 N - K) (L + \alpha)}{\alpha z}, \qquad
        \kappa_0 = \frac{1}{2 \alpha} \Big(1 - \frac{4 L K^2 (L + \alpha)}{z}\Big), \\
        z &= \alpha^2 K^2 - 32 L^2 N^2 + 16 L^2 N K - 20 L^2 K^2.

    The input of the paper's Algorithm 1 (page 4) says :math:`\nabla F_k(w_k^0) = 0`, where
    :math:`w_k^0` is the model of a client before its first round. The proof (Lemma 11, pages 34 and
    35) bounds the distance of :math:`g_k`, which is 0 at first, to :math:`\nabla F_k(w^0)` by
    :math:`L \|w_k^0 - w^0\|`. So the bound holds if :math:`w_k^0` is a stationary point of
    :math:`F_k`, for example the one nearest to :math:`w^0`. If the input only sets the stored
    gradient to 0 and :math:`w_k^0 = w^0`, which would remove :math:`C`, the bound is false.

    Args:
        rounds: T, at least 1.
        smoothness: L, above 0, in units of F / w^2.
        clients: N, at least 1.
        clients_per_round: K, from 1 to N.
        gap: :math:`\Delta`, at least 0, in units of F.
        squared_distances: C, at least 0, in units of w^2.
        alpha: :math:`\alpha`, at least 20 L N / K. None for that of Theorem 1, 30 L N / K.

    Returns:
        The constants and the bounds, which are in units of F^2 / w^2.

    Raises:
        InputError: If a number is out of range.

    Example:
        With L = 1, K = N and alpha = 20, kappa_0 is 1/40 * (1 - 84/364).

        >>> from fedprox.diagnostics import feddyn_nonconvex
        >>> found = feddyn_nonconvex(10, smoothness=1.0, clients=5, clients_per_round=5, gap=1.0,
        ...                          squared_distances=0.0, alpha=20.0)
        >>> round(found.kappa_0 * 40, 4), round(found.bound, 3), found.printed
        (0.7692, 5.2, 6.0)

    References:
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, Theorem 1 (page 5), and Theorem 4 with
        Lemma 10 (pages 33 and 34; the proof's last line says Theorem 2, but means Theorem 4).
    """
    share = _share(rounds, smoothness, clients, clients_per_round)
    require_number("gap", gap)
    require_number("squared_distances", squared_distances)
    alpha = _alpha(alpha, 30 * smoothness / share, 20 * smoothness / share, "20 L N / K")
    u, v = smoothness / alpha, smoothness / alpha / share
    # z in units of alpha^2 K^2
    z = 1 - 32 * v * v + 16 * u * v - 20 * u * u
    kappa = 4 * smoothness * u * (2 * v - u) * (1 + u) / z
    kappa_0 = (1 - 4 * u * (1 + u) / z) / 2 / alpha
    bound = (gap + kappa * squared_distances) / kappa_0
    rounded = 3 * alpha * gap + 30 * smoothness * smoothness * v * squared_distances
    return _bound(alpha, kappa, kappa_0, bound / rounds, rounded / rounds)


def _share(rounds: int, smoothness: float, clients: int, clients_per_round: int) -> float:
    """K / N, after a check of what all theorems take."""
    require_whole("rounds", rounds)
    require_number("smoothness", smoothness, positive=True)
    require_whole("clients", clients)
    require_whole("clients_per_round", clients_per_round, most=clients)
    return clients_per_round / clients


def _alpha(given: float | None, default: float, least: float, formula: str) -> float:
    """The alpha given, or the default."""
    alpha = default if given is None else given
    require_number("alpha", alpha, positive=True)
    require(
        alpha >= least * (1 - 1e-9),  # the same formula may have been rounded in another order
        f"alpha = {alpha}; it must be at least {formula} = {least:g}",
    )
    return alpha


def _bound(*values: float) -> FedDynBound:
    """A bound of Python's floats, whatever numbers were given."""
    return FedDynBound(*map(float, values))
