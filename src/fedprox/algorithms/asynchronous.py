"""Asynchronous rounds as a transformation of a method: clients start from states of the past.

The engine runs the B updates of a server's step as the jobs of a round. Each client's context says
how many steps ago it started, and its local problem reads the server's state of that time from a
ring. Steps, weights and messages are the method's own.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    State,
)
from fedprox.algorithms.lift import lift
from fedprox.model import Params


class Versions(NamedTuple):
    """A method's state, and its states after the last steps.

    Attributes:
        state: The current state.
        past: State t at index t mod (the number of states), leaves (states, ...).
        step: t, an int32 scalar.
    """

    state: State
    past: Any
    step: jax.Array


def asynchronous(algorithm: Algorithm, most_staleness: int, *, models: bool) -> Algorithm:
    """The same method, whose clients start from the state that a column of their context tells."""
    count = most_staleness + 1

    def started(state: Versions, context: ClientContext) -> State:
        at = jnp.mod(state.step - context.columns["age"], count)
        return jax.tree.map(lambda a: a[at], state.past)

    def at_rate(hparams: HParams, context: ClientContext | None) -> HParams:
        if context is None:
            return hparams
        return {**hparams, "learning_rate": hparams["learning_rate"] * context.columns["rate"]}

    def versions(first: State, _: Params) -> Versions:
        past = jax.tree.map(lambda a: jnp.broadcast_to(a, (count, *jnp.shape(a))), first)
        return Versions(first, past, jnp.int32(0))

    inner = lift(algorithm, server=versions, seen=started, hparams=at_rate)

    def message(
        state: Versions, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Message, ClientState]:
        sent, own_state = inner.client.message(state, hparams, context, solution)
        if models:
            start, now = solution.problem.start, inner.server.params(state)
            sent = jax.tree.map(lambda m, a, b: m + (a - b), sent, start, now)
        return sent, own_state

    def update(state: Versions, mean: Message, hparams: HParams) -> Versions:
        after, step = inner.server.update(state, mean, hparams).state, state.step + 1
        past = jax.tree.map(lambda a, new: a.at[jnp.mod(step, count)].set(new), state.past, after)
        return Versions(after, past, step)

    return inner._replace(
        client=inner.client._replace(message=message),
        server=inner.server._replace(
            update=update,
            received=lambda state, context: algorithm.server.params(started(state, context)),
        ),
    )
