"""Which model evaluations read: the server's, the cohort's mean, or the mean of all clients'.

    "server"   w^t, the model that the server sends
    "cohort"   sum_{k in S_t} weight_k w_k, over the clients of the last round
    "clients"  the mean of every client's last model, w^0 for a client that has not taken part yet;
               with the weights of the method's own mean

Acar et al. 2021 report "the average model from all devices" (appendix A.2), also for FedAvg and
FedProx: the last of the three. The choice changes what is measured, not what a method does.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    Solution,
    State,
    add_scaled,
    inner_memory,
    local_update,
)
from fedprox.model import Params
from fedprox.subproblem import Subproblem

Evaluated = Literal["server", "cohort", "clients"]
"""The model that is evaluated."""


class Reported(NamedTuple):
    """A method's state and the mean that is evaluated in its place."""

    state: State
    mean: Params


class Remembered(NamedTuple):
    """A client's state of its method, and its last model."""

    state: ClientState
    last: Params


def reporting(algorithm: Algorithm, evaluated: Evaluated) -> Algorithm:
    """The same method, evaluated at another model than the server's.

    >>> from fedprox.algorithms.fedavg import fedavg
    >>> reporting(fedavg(), "clients").name
    'fedavg'
    """
    if evaluated == "server":
        return algorithm
    all_clients = evaluated == "clients"

    def inner(context: ClientContext) -> ClientContext:
        return context._replace(state=context.state.state) if all_clients else context

    def init(params: Params) -> Reported:
        return Reported(algorithm.init(params), params)

    def client_state(params: Params) -> Remembered:
        return Remembered(
            None if algorithm.client_state is None else algorithm.client_state(params), params
        )

    def subproblem(state: Reported, hparams: HParams, context: ClientContext) -> Subproblem:
        return algorithm.subproblem(state.state, hparams, inner(context))

    def message(
        state: Reported, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Any, Any]:
        sent, own_state = algorithm.message(state.state, hparams, inner(context), solution)
        if not all_clients:
            return (sent, local_update(solution)), own_state
        ahead = jax.tree.map(jnp.subtract, solution.params, context.state.last)
        return (sent, ahead), Remembered(own_state, solution.params)

    def update(state: Reported, mean: tuple[Any, Params], hparams: HParams) -> Reported:
        sent, ahead = mean
        base, share = state.mean, hparams["participation"]
        if not all_clients:
            base, share = algorithm.params(state.state), jnp.ones_like(share)
        return Reported(
            algorithm.update(state.state, sent, hparams), add_scaled(base, share, ahead)
        )

    def possible(hparams: HParams, mean: tuple[Any, Params], steps: jax.Array) -> jax.Array:
        assert algorithm.possible is not None
        return algorithm.possible(hparams, mean[0], steps)

    def exchange(state: Reported, gradient: Params, hparams: HParams) -> Reported:
        assert algorithm.exchange is not None
        return state._replace(state=algorithm.exchange(state.state, gradient, hparams))

    return algorithm._replace(
        subproblem=subproblem,
        init=init,
        client_state=client_state if all_clients else algorithm.client_state,
        message=message,
        size=lambda message: algorithm.size(message[0]),
        possible=None if algorithm.possible is None else possible,
        update=update,
        params=lambda state: algorithm.params(state.state),
        evaluated=lambda state: state.mean,
        exchange=None if algorithm.exchange is None else exchange,
        memory=inner_memory(algorithm.memory),
    )
