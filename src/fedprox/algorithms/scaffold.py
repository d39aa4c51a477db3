"""SCAFFOLD: local steps corrected by the difference between the clients' gradients and their mean.

Karimireddy et al. 2020, Algorithm 1, as Acar et al. 2021 compare with it. Client k keeps a control
variate c_k, the server their mean c, all 0 at first; with K local steps of rate eta:

    w_k   = K steps of SGD on F_k(w) + <c - c_k, w>, from w^t
    c_k' = grad F_k(w^t)                                  option 1
         = c_k - c + (w^t - w_k) / (K eta)                option 2: the mean gradient on the way
    w^{t+1} = w^t + eta_g mean_{k in S_t} (w_k - w^t)
    c      <- c + (|S_t| / N) mean_{k in S_t} (c_k' - c_k)

Option 2 takes the steps that the client really took, at the rate that was in force in the round. It
is the mean of the gradients only for plain SGD; a clip or weight decay of the solver is part of
them.

It minimises the plain mean of the F_k. Model and control variate travel both ways, so that its
communication counts twice. How many local steps it takes is a matter of the solver:
`scaffold().with_solver(steps=600)`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    HParams,
    Solution,
    add_scaled,
    check_hparam,
    local_update,
    zeros,
)
from fedprox.errors import require, require_one_of
from fedprox.model import Params
from fedprox.solver import HParam, Solver
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The model w^t and the mean c of all clients' control variates."""

    params: Params
    control: Params


def init(params: Params) -> State:
    """All control variates are 0."""
    return State(params, zeros(params))


def corrected(state: State, hparams: HParams, context: ClientContext) -> Subproblem:
    """h_k(w) = F_k(w) + <c - c_k, w>, from w^t."""
    del hparams
    return Subproblem(state.params, linear=jax.tree.map(jnp.subtract, state.control, context.state))


def update(state: State, mean: tuple[Params, Params], hparams: HParams) -> State:
    """Move the model by the mean step, and c by the share of clients that took part."""
    step, change = mean
    return State(
        add_scaled(state.params, hparams["server_learning_rate"], step),
        add_scaled(state.control, hparams["participation"], change),
    )


def plain_sgd(solver: Solver) -> Solver:
    """The same solver, which must be SGD: with another, option 2 is no mean of gradients."""
    require(
        solver.optimizer is optax.sgd,
        "scaffold: option 2 needs solver.optimizer = sgd without options; it must be that, or "
        "option must be 1",
    )
    return solver


def scaffold(*, option: int = 2, server_learning_rate: HParam = 1.0) -> Algorithm:
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1), keeping stragglers' partial work.

    Args:
        option: How a client renews c_k: 1, its gradient at the model sent out, one more pass over
            its rows; or 2, the mean gradient on its way.
        server_learning_rate: eta_g, above 0, or several to sweep over.

    Raises:
        InputError: Another option, or eta_g <= 0.

    >>> scaffold().communication
    2
    """
    require_one_of("scaffold: option", option, (1, 2))
    rates = check_hparam("scaffold: server_learning_rate", server_learning_rate, positive=True)

    def message(
        state: State, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[tuple[Params, Params], Params]:
        """Send w_k - w^t and c_k' - c_k; keep c_k'."""
        step = local_update(solution)
        if option == 1:
            return (
                step,
                jax.tree.map(jnp.subtract, context.gradient, context.state),
            ), context.gradient
        length = solution.steps * hparams["learning_rate"]
        change = jax.tree.map(
            # a client that stops before its first step has met no gradient
            lambda c, s: jnp.where(length > 0, -c - s / jnp.where(length > 0, length, 1), 0),
            state.control,
            step,
        )
        return (step, change), add_scaled(context.state, 1, change)

    return Algorithm(
        "scaffold",
        corrected,
        hparams={"server_learning_rate": rates},
        stragglers="keep",
        variant="" if option == 2 else "option 1",
        average="clients",
        local=plain_sgd if option == 2 else lambda solver: solver,
        init=init,
        client_state=zeros,
        own_gradient=option == 1,
        message=message,
        update=update,
        params=lambda state: state.params,
        communication=2,
    )
