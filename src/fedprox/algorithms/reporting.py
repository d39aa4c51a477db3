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
    local_update,
)
from fedprox.algorithms.lift import lift
from fedprox.model import Params

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

    inner = lift(algorithm, server=Reported, client=Remembered if all_clients else None)

    def message(
        state: Reported, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Any, Any]:
        sent, own_state = inner.client.message(state, hparams, context, solution)
        if not all_clients:
            return (sent, local_update(solution)), own_state
        ahead = jax.tree.map(jnp.subtract, solution.params, context.state.last)
        return (sent, ahead), own_state._replace(last=solution.params)

    def update(state: Reported, mean: tuple[Any, Params], hparams: HParams) -> Reported:
        sent, ahead = mean
        base, share = state.mean, hparams["participation"]
        if not all_clients:
            base, share = inner.server.params(state), jnp.ones_like(share)
        after: Reported = inner.server.update(state, sent, hparams)
        return after._replace(mean=add_scaled(base, share, ahead))

    def possible(hparams: HParams, mean: tuple[Any, Params], steps: jax.Array) -> jax.Array:
        assert algorithm.client.possible is not None
        return algorithm.client.possible(hparams, mean[0], steps)

    return inner._replace(
        client=inner.client._replace(
            message=message,
            size=lambda message: algorithm.client.size(message[0]),
            possible=None if algorithm.client.possible is None else possible,
        ),
        server=inner.server._replace(update=update, evaluated=lambda state: state.mean),
    )
