"""FedDyn (Acar et al. 2021): dynamic regularization makes the clients' minima agree with f's.

For an exact w_k the first-order condition of the local problem is g_k = grad F_k(w_k). At a fixed
point w_k = w^t = w and h = 0, so the clients' gradients at w sum to zero, whatever alpha is. That
point minimizes the plain mean of the F_k.

With `balance`, as in the authors' code, client k uses alpha_k = alpha (mean n) / n_k in its local
problem and in its g_k. Then h = sum_k p_k g_k, and the fixed point minimizes sum_k p_k F_k.
"""

from typing import NamedTuple

import jax

from fedprox.algorithms import base
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The parameters w^t and the mean h of all clients' g_k, weighted by n_k with `balance`."""

    params: Params
    h: Params


def update(state: State, mean: Params, hparams: base.HParams) -> State:
    """Equation of the server: w^{t+1} = mean_k w_k - h / alpha, with mean = mean_k (w_k - w^t)."""
    alpha = hparams["alpha"]
    h = base.add_scaled(state.h, -alpha * hparams["participation"], mean)
    averaged = base.add(state.params, mean, hparams)
    return State(base.add_scaled(averaged, -1 / alpha, h), h)


def feddyn(alpha: HParam, *, balance: bool = False) -> base.Algorithm:
    r"""FedDyn: a dynamic regularizer that aligns the clients' optima with the global one.

    Client :math:`k` keeps :math:`g_k` and the server :math:`h`, all zero at first. The client
    approximately minimizes

    .. math:: h_k(w) = F_k(w) - \langle g_k, w \rangle + \frac{\alpha}{2} \|w - w^t\|^2,

    starting from :math:`w^t`. With :math:`K` clients in the cohort :math:`S_t` and :math:`N` in
    all, then

    .. math::
        g_k &\leftarrow g_k - \alpha (w_k - w^t), \quad k \in S_t, \\
        h &\leftarrow h - \frac{\alpha}{N} \sum_{k \in S_t} (w_k - w^t), \\
        w^{t+1} &= \frac{1}{K} \sum_{k \in S_t} w_k - \frac{1}{\alpha} h.

    Stragglers' partial work is kept.

    Args:
        alpha: Weight of the regularizer, above 0. A sequence sweeps over its values.
        balance: Whether client :math:`k` uses :math:`\alpha \bar n / n_k` in place of
            :math:`\alpha`, as the authors' code does: the method then minimizes the mean weighted
            by rows, not the plain mean.

    Returns:
        An algorithm for :func:`fedprox.simulate`.

    Raises:
        InputError: If alpha is not above 0 or not finite.

    Example:
        >>> import fedprox as fp
        >>> fp.feddyn(alpha=[0.01, 0.1]).hparams["alpha"]
        (0.01, 0.1)

    References:
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, Algorithm 1 and equations 1 and 2.
    """

    def alpha_of(hparams: base.HParams, context: base.ClientContext) -> jax.Array:
        return hparams["alpha"] / context.relative_size if balance else hparams["alpha"]

    def regularised(state: State, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
        """Equation 1: h_k(w) = F_k(w) - <g_k, w> + (alpha / 2) ||w - w^t||^2, from w^t."""
        linear = jax.tree.map(lambda g: -g, context.state)
        return Subproblem(state.params, alpha_of(hparams, context), state.params, linear)

    def message(
        state: State, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[Params, Params]:
        """Send w_k - w^t; the next g_k is g_k - alpha (w_k - w^t) (equation 2)."""
        del state
        step = base.local_update(solution)
        return step, base.add_scaled(context.state, -alpha_of(hparams, context), step)

    return base.Algorithm(
        "feddyn",
        regularised,
        hparams={"alpha": base.check_hparam("feddyn: alpha", alpha, positive=True)},
        stragglers="keep",
        variant="balanced" if balance else "",
        average="clients",
        fixed={
            "server": "its model is the one that the clients' mean and h determine",
            "average": "h is the plain mean of the g_k; balance = True minimizes the mean by rows",
        },
        server=base.OnServer(
            init=lambda params: State(params, base.zeros(params)),
            update=update,
            params=base.params_of,
        ),
        client=base.OnClient(state=base.zeros, message=message, keeps_sent=True),
    )
