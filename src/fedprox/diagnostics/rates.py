"""FedProx's rates: how many rounds the decrease of Theorem 4 takes to a small gradient.

The paper prints no proof for Theorem 6, a few sentences for Remark 8 (section 4.2 and appendix A.3)
and two lines for Corollary 9. The functions give what follows from Theorem 4, with its constants,
and say where that is less than the statement.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fedprox.diagnostics.certificate import (
    Constants,
    convex_case,
    dissimilarity_bound,
    rho,
)
from fedprox.errors import as_float, require, require_number


def rounds_needed(rho: float, gap: float, epsilon: float) -> int:
    r"""The rounds after which FedProx's mean squared gradient is at most epsilon.

    Let Theorem 4 hold in every round with the same :math:`\rho > 0`, and
    :math:`\Delta = f(w^0) - \min f`. The sum of its inequalities over the rounds gives

    .. math::
        \frac{1}{T} \sum_{t=0}^{T-1} E \|\nabla f(w^t)\|^2 \le \frac{\Delta}{\rho T} \le \epsilon
        \quad \text{for} \quad T \ge \frac{\Delta}{\rho \epsilon}.

    The paper states :math:`T = O(\Delta / (\rho \epsilon))`; the constant is 1.

    The theorem allows a :math:`B` that bounds :math:`B(w)` only where
    :math:`\|\nabla f(w)\|^2 > \epsilon` (Assumption 1). Theorem 4 then says nothing about the
    rounds after the first :math:`w^t` with a smaller gradient, and the sum ends there: T bounds the
    expected number of rounds until then, not the mean above.

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
    return _rounds(gap / epsilon / rho)


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

    SGD's order in the same assumptions is that in brackets (Ghadimi and Lan 2013). As in
    `rounds_needed`, T bounds the expected number of rounds until
    :math:`\|\nabla f(w^t)\|^2 \le \epsilon`.

    The equal order hides that :math:`K` has to grow with :math:`1 / \epsilon`. Corollary 7 says
    :math:`B \le \sqrt{K} / 2`, that is :math:`K \ge 4 B^2`, which is enough for its :math:`\rho`
    in the paper's first draft if :math:`B` is at least 2.2. Theorem 4 has twice the variance of a
    cohort and needs about :math:`4.5 B^2` clients for large :math:`B`, and 16 for :math:`B = 1`.

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
    case = convex_case(smoothness, b)
    # 36 L B^2 (rho - 1 / (24 L B^2)) at mu = 6 L B^2, with s = sqrt(2 / K), is
    # 4 - 1 / B - (6 B + 2) s - s^2
    half = 3 * b + 1
    room = 4 - 1 / b
    s = room / (half + math.sqrt(half * half + room))
    return ConvexRate(
        case.mu,
        _whole("clients_per_round", 2 / (s * s)),
        _rounds(24 * smoothness * (gap / epsilon) * (1 + variance / epsilon)),
    )


def rho_by_round(mu: float, constants: Constants, gammas: Sequence[float]) -> list[float]:
    r"""The rho of each round if the inexactness varies: Theorem 4 with the round's gamma.

    .. math::
        E f(w^{t+1}) \le f(w^t) - \rho^t \|\nabla f(w^t)\|^2, \qquad
        \rho^t = \rho \text{ with } \gamma = \gamma^t = \max_k \gamma_k^t.

    `Record.gamma_max` is the :math:`\gamma^t` of a run's round, so a history gives a run's
    :math:`\rho^t`. The corollary takes the maximum over the round's cohort. Its proof takes means
    over all clients, whoever is drawn, so it needs the maximum over all of them: a cohort's maximum
    can be too small, and :math:`\rho^t` too large, if the other clients would solve their problems
    worse.

    Args:
        mu: Proximal weight, at least 0.
        constants: The other constants. Their gamma is not used.
        gammas: :math:`\gamma^t` of each round, at least 0. Above 1 nothing is promised.

    Returns:
        :math:`\rho^t` of each round; nothing is promised unless it is positive. -infinity if
        :math:`\gamma^t > 1` or :math:`\mu \le L_-`.

    Raises:
        InputError: If mu is negative, or a gamma is negative or NaN.

    Example:
        The gammas of a run are `[record.gamma_max for record in run.history[1:]]`, if every round
        is evaluated. The first record has none, since no client has trained.

        >>> from fedprox.diagnostics import Constants, rho_by_round
        >>> constants = Constants(smoothness=1.0, dissimilarity=1.0, clients_per_round=8)
        >>> [round(value, 4) for value in rho_by_round(20.0, constants, [0.0, 0.1, 0.3, 2.0])]
        [0.0181, 0.0095, -0.0081, -inf]

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Corollary 9.
    """
    for t, gamma in enumerate(gammas):
        require(
            as_float(gamma) >= 0,
            f"gammas[{t}] = {gamma}; it must be at least 0 (a record has none if no client "
            "trained or gradients were not measured)",
        )
    return [
        rho(mu, replace(constants, gamma=gamma)) if gamma <= 1 else -math.inf for gamma in gammas
    ]


def _rounds(value: float) -> int:
    return max(1, _whole("rounds", value))


def _whole(what: str, value: float) -> int:
    """The least whole number that is not below a value."""
    require(math.isfinite(value), f"{what}: the bound is {value}, beyond double precision")
    return math.ceil(value)
