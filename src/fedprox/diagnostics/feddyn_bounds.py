r"""Bounds of FedDyn's error after T rounds: Theorems 1 to 4 of Acar et al. 2021.

The theorems assume that K of N clients are drawn uniformly without replacement in each round, that
local problems are solved exactly, and that every client counts once: they bound the error in

.. math:: f(w) = \frac{1}{N} \sum_k F_k(w).

They bound it for :math:`\gamma^t`, the mean of the models that the cohort of round t returns, not
for the server's model :math:`w^t`; :math:`\gamma^0 = w^0`. The symbols are the library's: N, K and
w stand for the paper's m, P and theta.

Each theorem follows from a lemma of the form r V^t <= V^{t-1} - kappa_0 e^{t-1}: V is a distance,
in the non-convex case f itself, plus kappa times a dispersion of the clients, e is the error, and
r = 1 but in the strongly convex case. The lemmas' constants are those that their proofs'
inequalities imply. The theorems round them up, so both bounds are given.
"""

import math
from typing import NamedTuple

from fedprox.errors import require, require_number, require_whole


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
    :math:`f`, and :math:`\alpha \ge \max(5 \mu N / K, 30 L)`. With
    :math:`D = \|w^0 - w^*\|^2`, :math:`G = \frac{1}{N} \sum_k \|\nabla F_k(w^*)\|^2`,
    :math:`r = 1 + \mu / \alpha` and :math:`R = \sum_{t=0}^{T-1} r^t`,

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
    if given is None:
        return default
    require_number("alpha", given, positive=True)
    require(
        given >= least * (1 - 1e-9),  # the same formula may have been rounded in another order
        f"alpha = {given}; it must be at least {formula} = {least:g}",
    )
    return given


def _bound(*values: float) -> FedDynBound:
    """A bound of Python's floats, whatever numbers were given."""
    return FedDynBound(*map(float, values))
