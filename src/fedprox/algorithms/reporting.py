"""Another model for evaluations than the server's: the cohort's mean, or that of all clients.

* "server": w^t, the model that the server sends.
* "cohort": sum_{k in S_t} weight_k w_k, over the clients of the last round.
* "clients": The mean of every client's last model, with the weights of the method's own mean. A
  client that has not taken part yet counts with w^0.

Acar et al. 2021 report "the average model from all devices" (appendix A.2), also for FedAvg and
FedProx: the last of the three. The choice changes what is measured, not what a method does.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.algorithms.lift import lift
from fedprox.model import Params

Evaluated = Literal["server", "cohort", "clients"]
"""The model that is evaluated."""


class Reported(NamedTuple):
    """A method's state and the mean that is evaluated in its place."""

    state: base.State
    mean: Params


class Remembered(NamedTuple):
    """A client's state of its method, and its last model."""

    state: base.ClientState
    last: Params


def reporting(algorithm: base.Algorithm, evaluated: Evaluated) -> base.Algorithm:
    """The same method, evaluated at another model than the server's.

    >>> from fedprox.algorithms.fedavg import fedavg
    >>> reporting(fedavg(), "clients").name
    'fedavg'
    """
    if evaluated == "server":
        return algorithm
    all_clients = evaluated == "clients"
    inner = lift(algorithm, server=Reported, client=Remembered if all_clients else None)
    size, possible = algorithm.client.size, algorithm.client.possible

    def message(
        state: Reported, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
    ) -> tuple[Any, Any]:
        sent, own_state = inner.client.message(state, hparams, context, solution)
        if not all_clients:
            return (sent, base.local_update(solution)), own_state
        ahead = jax.tree.map(jnp.subtract, solution.params, context.state.last)
        return (sent, ahead), own_state._replace(last=solution.params)

    def update(state: Reported, mean: tuple[Any, Params], hparams: base.HParams) -> Reported:
        sent, ahead = mean
        before, share = state.mean, hparams["participation"]
        if not all_clients:
            before, share = inner.server.params(state), jnp.ones_like(share)
        after: Reported = inner.server.update(state, sent, hparams)
        return after._replace(mean=base.add_scaled(before, share, ahead))

    return inner._replace(
        client=inner.client._replace(
            message=message,
            size=lambda message: size(message[0]),
            possible=possible and (lambda hparams, mean, most: possible(hparams, mean[0], most)),
        ),
        server=inner.server._replace(update=update, evaluated=lambda state: state.mean),
    )
