"""A method of which a run keeps all that methods can have: state of the server, of each client, and
gradients that a first cohort sends.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms import base
from fedprox.model import Params
from fedprox.subproblem import Subproblem


class State(NamedTuple):
    """The parameters, the mean of the clients' last updates, and a first cohort's gradient."""

    params: Params
    momentum: Params
    gradient: Params


def corrected(state: State, hparams: base.HParams, context: base.ClientContext) -> Subproblem:
    """FedDANE's problem, in whose linear term the client's momentum is replaced by the server's."""
    linear = jax.tree.map(
        lambda g, own, m, kept: 0.5 * (g - own) - 0.1 * (m - kept),
        *(state.gradient, context.gradient, state.momentum, context.state),
    )
    return Subproblem(state.params, linear=linear, mu=hparams["mu"], anchor=state.params)


def message(
    state: State, hparams: base.HParams, context: base.ClientContext, solution: base.Solution
) -> tuple[base.Pair, Params]:
    """Send the update, and its change since the client took part last."""
    del state, hparams
    update = base.local_update(solution)
    return (update, jax.tree.map(jnp.subtract, update, context.state)), update


def received(state: State, mean: base.Pair, hparams: base.HParams) -> State:
    """Add the mean update; and to the momentum the mean change, for the share that took part."""
    update, change = mean
    momentum = base.add_scaled(state.momentum, hparams["participation"], change)
    return State(base.add_scaled(state.params, 1.0, update), momentum, state.gradient)


def exchanged(state: State, gradient: Params, hparams: base.HParams) -> State:
    del hparams
    return state._replace(gradient=gradient)


def begun(params: Params) -> State:
    return State(params, base.zeros(params), base.zeros(params))


def everything() -> base.Algorithm:
    """The method, which experiment files can name."""
    return base.Algorithm(
        "everything",
        corrected,
        hparams={"mu": 0.1},
        stragglers="keep",
        client=base.OnClient(message, state=base.zeros),
        server=base.OnServer(received, begun, base.params_of),
        first=base.First(gradient=True, exchange=exchanged),
    )
