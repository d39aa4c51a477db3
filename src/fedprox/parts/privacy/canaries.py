r"""Canaries in a run with privacy: clients or rows whose traces an auditor looks for.

A canary takes part or not, by a fair coin. One that does not take part adds nothing to any sum, as
the guarantee says of neighbours. Where neighbours differ in a replaced client, it sends the
opposite in place of nothing.

Each canary has a place of its own among the released numbers, which nobody else moves: data could
be such, and a guarantee is for all data. So what is released there is the canary's clipped number,
if it takes part, and noise. Some more places are left empty, and show the noise alone.

* A canary client sends one number at its place, and other clients send zero there. The audit sees a
  release where the server's update reads it.
* A canary row moves one of a few parameters that are added to the model, and is beside that a row
  like others. These parameters are a matrix that a row meets at two positions, as in a layer that
  reads a sequence. So gradients of rows are formed, bounded and summed as those of the model.

The number is far above the clipping norm. In one canary of eight it is so large that the norm
overflows. In as many rows it is the difference of two far larger numbers at the two positions,
which cancel.

The compiled program is that of a run: the method's and the parts' functions, the sampling, the
clipping, the sums over lanes and devices, the noise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from fedprox.model import Model, Params, rewritten
from fedprox.parts.part import Columns, LocalGradient, Setting, StepsTaken
from fedprox.parts.privacy.examples import NoisedGradient
from fedprox.parts.privacy.setting import Privacy
from fedprox.precision import real_type

LOUD, CANCELLING = 2.0**10, 2.0**24
"""Numbers of canaries over the clipping norm, and one from which it is left by cancelling."""

OVERFLOWING = 2.0**70
"""A number whose square single precision does not hold."""

ONE_OF = 8
"""One canary of so many has an overflowing number, and one row of so many cancelling ones."""

EMPTY = 64
"""Places without a canary."""

SURE = 1e6
"""The largest score of a canary in a round, over the noise."""

WIDTH = 8
"""Columns of the matrix whose numbers are the places of canary rows."""


def standardized(released: jax.Array, canaries: int) -> jax.Array:
    """The numbers at canaries' places over the noise, of which the empty places after them tell.

    >>> standardized(jnp.array([3.0, 0.0, jnp.inf, 1.0, -1.0]), 3).tolist()
    [3.0, 0.0, 1000000.0]
    """
    own, empty = released[:canaries], released[canaries:]
    noise = jnp.sqrt(jnp.mean(empty**2))
    over = jnp.where(own == 0, 0.0, own / noise)
    shown = jnp.clip(jnp.nan_to_num(over, nan=SURE, posinf=SURE, neginf=-SURE), -SURE, SURE)
    return jnp.where(jnp.isfinite(noise), shown, 0.0)


class Sums(NamedTuple):
    """A server's state, and the sums of the canaries' scores so far, (canaries,)."""

    state: State
    scores: jax.Array


@dataclass(frozen=True)
class Audited(Privacy):
    """Privacy in a run with canaries.

    Attributes:
        present: Whether each of the last clients of the federation takes part, which are canaries;
            empty if rows are canaries.
    """

    present: tuple[bool, ...] = ()

    def check(self, setting: Setting, sizes: NDArray[np.int64]) -> None:
        """Raise nothing: delta is that of the federation without canaries."""

    def columns(self, clients: NDArray[Any], federation: Federation) -> Columns:
        """Of clients the place of each canary from 1, its number, and whether it is absent."""
        if not self.of_clients:
            return {}
        count = len(self.present)
        place, number, absent = np.zeros((3, len(federation)))
        place[-count:], absent[-count:] = 1 + np.arange(count), ~np.array(self.present)
        number[-count:] = np.where(np.arange(count) % ONE_OF, LOUD * self.clip, OVERFLOWING)
        columns = {"canary": place.astype(np.int64), "number": number, "absent": absent > 0}
        return {name: of_all[clients] for name, of_all in columns.items()}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        """A client knows whether it is a canary."""
        del key
        names = "canary", "number", "absent"
        return {name: numbers[name] for name in names if name in numbers}

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The private method, whose canaries send what they should."""
        if not self.of_clients:
            return method
        count, replaces = len(self.present), self.of_run(method, setting).replaces
        seen = added_up(with_canaries(method, count), count)
        hidden = super().wrap(seen, setting)

        def message(
            state: State, hparams: HParams, context: ClientContext, solution: Solution
        ) -> tuple[Message, ClientState]:
            sent, own = hidden.client.message(state, hparams, context, solution)
            factor = jnp.where(context.columns["absent"], -1.0 if replaces else 0.0, 1.0)
            return jax.tree.map(lambda a: (factor * a).astype(a.dtype), sent), own

        return hidden._replace(client=hidden.client._replace(message=message))

    def local_gradient(self, taken: StepsTaken, evaluations: int) -> LocalGradient | None:
        """As of the audited setting, without rows that do not take part."""
        hidden = super().local_gradient(taken, evaluations)
        if not isinstance(hidden, NoisedGradient):
            return hidden
        return Blanked(hidden.clip, hidden.noise)


@dataclass(frozen=True)
class Blanked(NoisedGradient):
    """The gradient of a mini-batch in which canaries that do not take part add nothing."""

    def gradient(
        self, loss: Callable[..., jax.Array], params: Params, batch: Batch, given: Any
    ) -> Params:
        """The sum of the clipped gradients of rows that are there, over the expected size."""
        weights = jnp.where(batch.x["present"], batch.weights, 0)
        return super().gradient(loss, params, batch._replace(weights=weights), given)


def with_canaries(method: Algorithm, count: int) -> Algorithm:
    """The method whose canaries send a number at their place, which others leave at zero."""

    def message(
        state: State, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Message, ClientState]:
        sent, own = method.client.message(state, hparams, context, solution)
        if "canary" not in context.columns:  # where only its shape is asked for
            return sent, own
        place, number = context.columns["canary"], context.columns["number"]
        return _replaced(sent, place, number, count + EMPTY), own

    return method._replace(client=method.client._replace(message=message))


def added_up(method: Algorithm, count: int) -> Algorithm:
    """The method whose server adds up the canaries' scores of each round."""

    def start(state: State, _: Params) -> Sums:
        return Sums(state, jnp.zeros(count, real_type()))

    inner = lift(method, server=start)

    def update(state: Sums, mean: Message, hparams: HParams) -> Sums:
        after: Sums = inner.server.update(state, mean, hparams)
        numbers = jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(mean)])
        places = count + EMPTY
        released = numbers[:: _stride(mean, places)][:places].astype(real_type())
        return after._replace(scores=state.scores + standardized(released, count))

    return inner._replace(server=inner.server._replace(update=update))


def scores_of(state: Any) -> NDArray[np.float64]:
    """The sums in a server's state, whatever is around them."""
    while not isinstance(state, Sums):
        state = state.state
    return np.asarray(state.scores, np.float64)


def _stride(message: Message, places: int) -> int:
    """The distance of the places among the numbers of a message."""
    size = sum(leaf.size for leaf in jax.tree.leaves(message))
    require(
        places <= size,
        f"canaries: they need {places:,} places in a message, which has {size:,} numbers",
    )
    return size // places


def _replaced(message: Message, place: jax.Array, sent: jax.Array, places: int) -> Message:
    """A client's message: of a canary one number, of another its own without all the places."""
    stride, at, leaves = _stride(message, places), 0, []
    for leaf in jax.tree.leaves(message):
        number = at + jnp.arange(leaf.size)
        free = (number % stride != 0) | (number >= stride * places)
        own = jnp.where(number == stride * (place - 1), sent, 0.0)
        honest = jnp.where(free, jnp.ravel(leaf), 0.0)
        leaves.append(jnp.where(place == 0, honest, own).reshape(leaf.shape).astype(leaf.dtype))
        at += leaf.size
    return jax.tree.unflatten(jax.tree.structure(message), leaves)


def numbers_of_rows(canaries: int, clip: float) -> NDArray[np.float32]:
    """The numbers of each canary row at the two positions of its parameter, (canaries, 2).

    >>> numbers_of_rows(3, 1.0).sum(axis=1).tolist() == [2.0**70, 2.0**10, 2.0**10]
    True
    """
    numbers, kind = np.zeros((canaries, 2), np.float32), np.arange(canaries) % ONE_OF
    numbers[:, 0] = np.where(kind, clip * LOUD, OVERFLOWING)
    numbers[kind == 1] = clip * CANCELLING, clip * (LOUD - CANCELLING)
    return numbers


def with_places(model: Model, canaries: int) -> Model:
    """The model with parameters for canary rows, which no output depends on.

    Features are a dict with those of the model, "x", and what a canary is. The gradient of a row's
    loss is the model's own, and beside it the canary's numbers at its place.
    """
    rows, at = -(-(canaries + EMPTY) // WIDTH), 1 + bool(model.state)
    init = model.init if not model.state else getattr(model.init, "params")  # noqa: B009

    def start(key: jax.Array) -> Params:
        return joined(init(key), jnp.zeros((rows, WIDTH), real_type()))

    def inside(function: Callable[..., Any], moves: bool) -> Callable[..., Any]:
        def of_whole(whole: Whole, *given: Any) -> Any:
            x = given[at - 1]
            found = function(whole.own, *given[: at - 1], x["x"], *given[at:])
            return moving(found, whole.matrix, x["place"], x["numbers"]) if moves else found

        return of_whole

    changed = rewritten(model, lambda function: inside(function, moves=True))
    if model.representation:
        changed = replace(changed, representation=inside(model.representation, moves=False))
    return replace(changed, init=start, base=jax.tree_util.Partial(_whole, model.base))


class Whole(NamedTuple):
    """The parameters that a model's functions take, and the canaries' matrix."""

    own: Params
    matrix: jax.Array


MODEL = "the model"
"""The name of parameters without names, which no parameter of a dict has."""


def joined(params: Params, matrix: Any) -> Params:
    """Trained parameters beside the canaries' matrix; those of a dict keep their names.

    >>> joined({"w": 1}, 2), joined((1,), 2)
    ({'w': 1, 'canaries': 2}, {'the model': (1,), 'canaries': 2})
    """
    own = params if type(params) is dict else {MODEL: params}
    return {**own, "canaries": matrix}


def _whole(base: Callable[[Params], Params] | None, trained: dict[str, Params]) -> Whole:
    """The inverse of `joined`, and what the model's base makes of its parameters."""
    own = {name: part for name, part in trained.items() if name != "canaries"}
    params = own[MODEL] if list(own) == [MODEL] else own
    return Whole(base(params) if base else params, trained["canaries"])


@jax.custom_vjp
def moving(found: Any, matrix: jax.Array, place: jax.Array, numbers: jax.Array) -> Any:
    """The identity of `found`, whose gradient has the rows' numbers at their places of a matrix.

    So a loss has it whatever it is, and as if the rows' numbers were added to it once.
    """
    del matrix, place, numbers
    return found


def _moving(found: Any, matrix: jax.Array, place: jax.Array, numbers: jax.Array) -> Any:
    return found, (matrix, place, numbers)


def _moved(kept: Any, cotangent: Any) -> Any:
    matrix, place, numbers = kept
    row, column = jnp.divmod(place, WIDTH)
    first = numbers[:, :, None] * jax.nn.one_hot(row, len(matrix), dtype=matrix.dtype)[:, None]
    second = jax.nn.one_hot(column, WIDTH, dtype=matrix.dtype)[:, None]
    second = jnp.broadcast_to(second, (*numbers.shape, WIDTH))
    exact = jax.lax.Precision.HIGHEST
    gradient = jnp.einsum("bpm,bpn->mn", first, second, precision=exact)
    return cotangent, gradient, None, None


moving.defvjp(_moving, _moved)
