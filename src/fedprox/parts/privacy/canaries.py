r"""Canaries in a run with privacy: clients or rows whose traces an auditor looks for.

A canary takes part or not, by a fair coin. One that does not take part adds nothing to any sum, as
the guarantee says of neighbours. Where neighbours differ in a replaced client, it sends the
opposite in place of nothing.

A canary client sends one number, far above the clipping norm, at a place of the message that the
other clients leave at zero: their data could be such, and a guarantee is for all data. So the sum
at this place has the canary's clipped number, if it took part, and noise. The canaries of a pair
share a place and cancel each other. What is released is added up in the server's state, so the
compiled program is that of the audited run: the method's and the parts' functions, the sampling of
cohorts, the sum over lanes and devices, the noise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import (
    Algorithm,
    Batch,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    State,
)
from fedprox.algorithms.lift import lift
from fedprox.errors import require
from fedprox.federation import Federation
from fedprox.model import Params
from fedprox.parts.part import Columns, LocalGradient, Setting, StepsTaken
from fedprox.parts.privacy.examples import NoisedGradient
from fedprox.parts.privacy.setting import Privacy
from fedprox.precision import real_type

LOUD = 1e3
"""Norm of a canary client's message over the clipping norm."""

NO_CLASS, NO_NUMBER = -1, -(2.0**40)
"""The label of a row that is not there, if labels are whole numbers, or others."""


class Sums(NamedTuple):
    """A server's state, and the sums of what rounds released at the canaries' places, (places,)."""

    state: State
    released: jax.Array


@dataclass(frozen=True)
class Audited(Privacy):
    """Privacy in a run with canaries.

    Attributes:
        places: Place, counted from 1, of each of the last clients of the federation; negative if it
            sends a negative number. Empty if rows are canaries.
        present: Whether each of these takes part.
    """

    places: tuple[int, ...] = ()
    present: tuple[bool, ...] = ()

    def check(self, setting: Setting, sizes: NDArray[np.int64]) -> None:
        """Raise nothing: delta is that of the federation without canaries."""

    def columns(self, clients: NDArray[Any], federation: Federation) -> Columns:
        """The place of each canary among the clients, 0 for others, and whether one is absent."""
        if not self.of_clients:
            return {}
        place, absent = np.zeros((2, len(federation)), np.int64)
        first = len(federation) - len(self.places)
        place[first:], absent[first:] = self.places, ~np.array(self.present)
        return {"canary": place[clients], "absent": absent[clients]}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        """A client knows whether it is a canary."""
        del key
        return {name: numbers[name] for name in ("canary", "absent") if name in numbers}

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The private method, whose canaries send what they should."""
        if not self.of_clients:
            return method
        count, loud = max(map(abs, self.places)), LOUD * self.clip
        replaces = self.of_run(method, setting).replaces
        hidden = super().wrap(added_up(with_canaries(method, count, loud), count), setting)

        def message(
            state: State, hparams: HParams, context: ClientContext, solution: Solution
        ) -> tuple[Message, ClientState]:
            sent, own = hidden.client.message(state, hparams, context, solution)
            factor = jnp.where(context.columns["absent"] > 0, -1.0 if replaces else 0.0, 1.0)
            return jax.tree.map(lambda a: (factor * a).astype(a.dtype), sent), own

        return hidden._replace(client=hidden.client._replace(message=message))

    def local_gradient(self, taken: StepsTaken, evaluations: int) -> LocalGradient | None:
        """As of the audited setting, without rows that have no label."""
        hidden = super().local_gradient(taken, evaluations)
        if not isinstance(hidden, NoisedGradient):
            return hidden
        return Blanked(hidden.clip, hidden.noise)


@dataclass(frozen=True)
class Blanked(NoisedGradient):
    """The gradient of a mini-batch whose rows without a label add nothing."""

    def gradient(
        self, loss: Callable[..., jax.Array], params: Params, batch: Batch, given: Any
    ) -> Params:
        """The sum of the clipped gradients of rows that are there, over the expected size."""
        weights = jnp.where(is_there(batch.y), batch.weights, 0)
        return super().gradient(loss, params, batch._replace(weights=weights), given)


def no_label(y: Any) -> float:
    """The label of a row that is not there."""
    return NO_CLASS if jnp.issubdtype(y.dtype, jnp.integer) else NO_NUMBER


def is_there(y: jax.Array) -> jax.Array:
    """Which rows have a label, shape (B,)."""
    return (y != no_label(y)).reshape(len(y), -1).any(axis=1)


def with_canaries(method: Algorithm, count: int, loud: float) -> Algorithm:
    """The method whose canaries send a number at their place, which others leave at zero."""

    def message(
        state: State, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Message, ClientState]:
        sent, own = method.client.message(state, hparams, context, solution)
        return _replaced(sent, context.columns["canary"], count, loud), own

    return method._replace(client=method.client._replace(message=message))


def added_up(method: Algorithm, count: int) -> Algorithm:
    """The method whose server adds up what is released at the canaries' places."""

    def start(state: State, _: Params) -> Sums:
        return Sums(state, jnp.zeros(count, real_type()))

    inner = lift(method, server=start)

    def update(state: Sums, mean: Message, hparams: HParams) -> Sums:
        after: Sums = inner.server.update(state, mean, hparams)
        numbers = jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(mean)])
        released = numbers[:: _stride(mean, count)][:count].astype(real_type())
        return after._replace(released=state.released + released)

    return inner._replace(server=inner.server._replace(update=update))


def released_of(state: Any) -> NDArray[np.float64]:
    """The sums in a server's state, whatever is around them."""
    while not isinstance(state, Sums):
        state = state.state
    return np.asarray(state.released, np.float64)


def _stride(message: Message, count: int) -> int:
    """The distance of the canaries' places among the numbers of a message."""
    size = sum(leaf.size for leaf in jax.tree.leaves(message))
    require(
        count <= size,
        f"canaries: they need {count:,} places in a message, which has {size:,} numbers",
    )
    return size // count


def _replaced(message: Message, place: jax.Array, count: int, loud: float) -> Message:
    """What a client sends: a canary one number, another its message without the places of these."""
    stride, at, leaves = _stride(message, count), 0, []
    for leaf in jax.tree.leaves(message):
        number = at + jnp.arange(leaf.size)
        free = (number % stride != 0) | (number >= stride * count)
        here = number == stride * (jnp.abs(place) - 1)
        own = jnp.where(here, loud * jnp.sign(place), 0.0)
        honest = jnp.where(free, jnp.ravel(leaf), 0.0)
        leaves.append(jnp.where(place == 0, honest, own).reshape(leaf.shape).astype(leaf.dtype))
        at += leaf.size
    return jax.tree.unflatten(jax.tree.structure(message), leaves)
