"""FedDyn: a local regulariser that moves, so that the clients' minima and the server's agree.

Acar et al. 2021, Algorithm 1 and equations 1 and 2. Client k keeps g_k, what grad F_k was at its
last model, 0 at first; the server keeps h, the mean of all g_k:

    w_k     ~= argmin_w F_k(w) - <g_k, w> + (alpha / 2) ||w - w^t||^2
    g_k     <- g_k - alpha (w_k - w^t)                          for k in S_t
    h       <- h - (alpha / N) sum_{k in S_t} (w_k - w^t)
    w^{t+1}  = mean_{k in S_t} w_k - h / alpha

For an exact w_k the first-order condition of the local problem is g_k = grad F_k(w_k). Where the
clients' models stand still, w_k = w^t = w and h = 0: the gradients at w add up to nothing, whatever
alpha is.

That point minimises the plain mean of the F_k. With `balance`, as in the authors' code, a client
with more rows is held less, alpha_k = alpha (mean n) / n_k in its local problem and in its g_k.
Then h is sum_k p_k g_k, and the point minimises sum_k p_k F_k.
"""

from typing import NamedTuple

import jax

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    HParams,
    Solution,
    add,
    add_scaled,
    check_hparam,
    local_update,
    zeros,
)
from fedprox.model import Params
from fedprox.solver import HParam
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The model w^t and the mean h of all clients' g_k, weighted by n_k with `balance`."""

    params: Params
    h: Params


def init(params: Params) -> State:
    """No client has a gradient yet."""
    return State(params, zeros(params))


def update(state: State, mean: Params, hparams: HParams) -> State:
    """W^{t+1} = mean_k w_k - h / alpha, with mean = mean_k (w_k - w^t)."""
    alpha = hparams["alpha"]
    h = add_scaled(state.h, -alpha * hparams["participation"], mean)
    together = add(state.params, mean, hparams)
    return State(add_scaled(together, -1 / alpha, h), h)


def feddyn(alpha: HParam, *, balance: bool = False) -> Algorithm:
    """FedDyn (Acar et al. 2021, Algorithm 1), keeping stragglers' partial work.

    Args:
        alpha: Weight of the regulariser, above 0, or several to sweep over.
        balance: Divide client k's alpha by n_k / mean n, as the authors' code does.

    Raises:
        InputError: alpha <= 0.

    >>> feddyn(alpha=[0.01, 0.1]).hparams["alpha"]
    (0.01, 0.1)
    """

    def alpha_of(hparams: HParams, context: ClientContext) -> jax.Array:
        return hparams["alpha"] / context.relative_size if balance else hparams["alpha"]

    def regularised(state: State, hparams: HParams, context: ClientContext) -> Subproblem:
        """h_k(w) = F_k(w) - <g_k, w> + (alpha / 2) ||w - w^t||^2, from w^t (equation 1)."""
        linear = jax.tree.map(lambda g: -g, context.state)
        return Subproblem(state.params, alpha_of(hparams, context), state.params, linear)

    def message(
        state: State, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Params, Params]:
        """Send w_k - w^t; keep g_k - alpha (w_k - w^t) (equation 2)."""
        del state
        step = local_update(solution)
        return step, add_scaled(context.state, -alpha_of(hparams, context), step)

    return Algorithm(
        "feddyn",
        regularised,
        hparams={"alpha": check_hparam("feddyn: alpha", alpha, positive=True)},
        stragglers="keep",
        variant="balanced" if balance else "",
        average="clients",
        init=init,
        client_state=zeros,
        message=message,
        update=update,
        params=lambda state: state.params,
    )
