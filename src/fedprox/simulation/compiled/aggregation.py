"""Aggregation of a round's updates: added as they arrive, screened one by one, or compared.

Without screening, a message is added to the mean when its job ends. If updates only have to be
finite, each is tested when its job ends, and then added or left out. If sizes are compared,
messages are stored in their clients' places until the last one has arrived.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms.base import ClientState, Message
from fedprox.precision import real_type
from fedprox.simulation.compiled.lanes import add_weighted, choose, put, total, where_lanes
from fedprox.simulation.config.faults import Faults
from fedprox.simulation.planning.batch_plan import Capacity
from fedprox.simulation.planning.jobs import Slots


def sound(*trees: Any) -> jax.Array:
    """1.0 if the sum of the squares of all numbers is finite, else 0.0.

    >>> float(sound(jnp.ones(3), None)), float(sound(jnp.array([0.0, jnp.nan])))
    (1.0, 0.0)
    """
    floats = [a for a in jax.tree.leaves(trees) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.isfinite(optax.tree.norm(floats, squared=True)).astype(real_type())


class Screened(NamedTuple):
    """Which updates of a round count, and how much.

    Attributes:
        scale: Factor of each update, 0 if it is left out, float32 (jobs, points).
        faulty: Whether each update is faulty, bool (jobs, points).
        counted: Weight of the updates that are not left out, float32 (points,); exactly 1 if no
            update is left out, or those left out count as zero.
    """

    scale: jax.Array
    faulty: jax.Array
    counted: jax.Array


def screen(
    faults: Faults,
    sound: jax.Array,
    size: jax.Array | None,
    weight: jax.Array,
    *,
    fixed: bool = False,
) -> Screened:
    """Find the faulty updates of a round.

    Args:
        faults: How faulty updates are treated.
        sound: 1 for finite updates, else 0, shape (jobs, points).
        size: Sizes of the updates, finite if the update is, shape (jobs, points); None if sizes are
            not compared.
        weight: Weights in the mean, 0 for slots without a job, shape (jobs,).
        fixed: Whether updates that are left out count as zero, so that the others keep their
            weight.

    >>> sizes = jnp.array([[1.0], [3.0], [2.0], [50.0]])
    >>> screen(Faults("clip"), jnp.ones((4, 1)), sizes, jnp.full(4, 0.25)).scale[:, 0].tolist()
    [1.0, 1.0, 1.0, 0.4000000059604645]
    """
    is_job = (weight > 0)[:, None]
    finite = is_job & (sound > 0)
    scale, beyond = finite.astype(real_type()), jnp.zeros_like(finite)
    if size is not None:
        ordered = jnp.sort(jnp.where(finite, size, jnp.inf), axis=0)
        middle = jnp.maximum(finite.sum(axis=0) - 1, 0) // 2
        median = jnp.take_along_axis(ordered, middle[None], axis=0)
        bound = jnp.where(median > 0, faults.norm * median, jnp.inf)
        beyond = finite & (size > bound)
        scale = jnp.where(beyond, bound / size if faults.policy == "clip" else 0.0, scale)
    counts = scale > 0
    counted = jnp.sum(weight[:, None] * counts, axis=0)
    all_count = (counts | ~is_job).all(axis=0)
    all_count |= fixed
    return Screened(scale, is_job & (~finite | beyond), jnp.where(all_count, 1.0, counted))


def scaled(scale: jax.Array, tree: Any) -> Any:
    """Scale times a tree; 0 where the scale is 0, even if the tree is NaN or infinite.

    Args:
        scale: The factors, shape (jobs, points).
        tree: Leaves (jobs, points, ...).
    """

    def one(a: jax.Array) -> jax.Array:
        s = scale.reshape(scale.shape + (1,) * (a.ndim - 2))
        return jnp.where(s > 0, s * a, 0)

    return jax.tree.map(one, tree)


def mean_of_others(sums: Any, counted: jax.Array) -> Any:
    """Sums over the counted updates, leaves (points, ...), divided by their weight (points,)."""
    divisor = jnp.where(counted > 0, counted, 1.0)
    return jax.tree.map(lambda a: a / divisor.reshape((-1,) + (1,) * (a.ndim - 1)), sums)


def screened_mean(
    faults: Faults, vectors: Any, weight: jax.Array, *, fixed: bool = False
) -> tuple[Any, Screened]:
    """The weighted mean of stacked vectors, and which of them count.

    Args:
        faults: How faulty vectors are treated.
        vectors: Leaves (jobs, points, ...).
        weight: Weights of the vectors (jobs,), 0 for slots without a vector.
        fixed: As in `screen`.
    """

    def every(f: Any) -> jax.Array:
        return jax.vmap(jax.vmap(f))(vectors)

    finite = every(sound)
    size = jnp.where(finite > 0, every(optax.tree.norm), 0) if faults.compares else None
    screened = screen(faults, finite, size, weight, fixed=fixed)
    parts = scaled(weight[:, None] * screened.scale, vectors)
    sums = jax.tree.map(lambda a: a.sum(axis=0), parts)
    return mean_of_others(sums, screened.counted), screened


class Arrived(NamedTuple):
    """The updates of the jobs that end with a segment, arrays with a leading axis of lanes.

    Attributes:
        slot: Slot of the job that ends, -1 for none.
        place: Place of its client's state on this device.
        weight: Weight of its message in the mean, 0 without a job and for a late client.
        messages: Messages, leaves (lanes, points, ...).
        client_state: New client states, leaves (lanes, points, ...).
    """

    slot: jax.Array
    place: jax.Array
    weight: jax.Array
    messages: Message
    client_state: ClientState


class Result(NamedTuple):
    """The aggregated updates of a round.

    Attributes:
        mean: The weighted mean of the messages, leaves (points, ...).
        client_state: The clients' new state, leaves (places, points, ...).
        counted: Weight of the updates that counted, (points,); None without screening.
        faulty: Which updates were faulty, bool (slots, points); None without screening.
    """

    mean: Message
    client_state: ClientState
    counted: jax.Array | None
    faulty: jax.Array | None


class Aggregation(NamedTuple):
    """How the updates of a round are aggregated, as functions of a method-specific `sums`.

    Attributes:
        begin: (messages of the lanes, client state) -> empty sums; only shapes matter.
        take: (sums, client state, arrived updates) -> new sums and client state.
        end: (sums, client state, the round's jobs) -> the result.
    """

    begin: Callable[[Message, ClientState], Any]
    take: Callable[[Any, ClientState, Arrived], tuple[Any, ClientState]]
    end: Callable[[Any, ClientState, Slots], Result]


def aggregation(
    faults: Faults | None,
    size: Callable[[Message], jax.Array],
    room: Capacity,
    *,
    fixed: bool = False,
) -> Aggregation:
    """The aggregation for a treatment of faulty updates.

    Args:
        faults: How faulty updates are treated; None means no screening.
        size: (message) -> its size.
        room: How much a round's arrays hold.
        fixed: Whether updates that are left out count as zero, so that the others keep their
            weight, as privacy and staleness require.
    """
    if faults is None:
        return _without_screening(room)
    if faults.compares:
        return _comparing_sizes(faults, size, room, fixed=fixed)
    return _screening_finite(faults, room, fixed=fixed)


def _zero_mean(messages: Message) -> Message:
    return jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), messages)


def _zeros_by_slot(messages: Message, room: Capacity) -> jax.Array:
    """Zeros of shape (slots, points)."""
    return jnp.zeros((room.slots, jax.tree.leaves(messages)[0].shape[1]))


def _without_screening(room: Capacity) -> Aggregation:
    """Add each message to the mean when it arrives."""

    def begin(messages: Message, client_state: ClientState) -> Message:
        del client_state
        return _zero_mean(messages)

    def take(mean: Message, client_state: ClientState, new: Arrived) -> tuple[Message, ClientState]:
        ended = new.slot >= 0
        messages = where_lanes(ended, new.messages, jax.tree.map(jnp.zeros_like, new.messages))
        mean = add_weighted(mean, new.weight, messages)
        place = jnp.where(ended, new.place, room.places)
        return mean, put(client_state, place, new.client_state)

    def end(mean: Message, client_state: ClientState, jobs: Slots) -> Result:
        del jobs
        return Result(total(mean), client_state, None, None)

    return Aggregation(begin, take, end)


def _screening_finite(faults: Faults, room: Capacity, *, fixed: bool) -> Aggregation:
    """Add each message to the mean when it arrives, if the update is finite."""

    def begin(messages: Message, client_state: ClientState) -> tuple[Message, jax.Array]:
        del client_state
        return _zero_mean(messages), _zeros_by_slot(messages, room)

    def take(
        sums: tuple[Message, jax.Array], client_state: ClientState, new: Arrived
    ) -> tuple[Any, ClientState]:
        mean, finite = sums
        ended, is_finite = new.slot >= 0, jax.vmap(jax.vmap(sound))(new.messages, new.client_state)
        mean = add_weighted(mean, new.weight, scaled(is_finite, new.messages))
        finite = put(finite, jnp.where(ended, new.slot, room.slots), is_finite)
        before = jax.tree.map(lambda a: a[new.place], client_state)
        after = choose(is_finite > 0, new.client_state, before)
        return (mean, finite), put(client_state, jnp.where(ended, new.place, room.places), after)

    def end(sums: tuple[Message, jax.Array], client_state: ClientState, jobs: Slots) -> Result:
        mean, finite = total(sums)
        screened = screen(faults, finite, None, jobs.weight, fixed=fixed)
        return Result(
            mean_of_others(mean, screened.counted), client_state, screened.counted, screened.faulty
        )

    return Aggregation(begin, take, end)


class _Waiting(NamedTuple):
    """Updates that are stored until the end of the round.

    Attributes:
        slot: Slot of each place's job, -1 for none, int32 (places,).
        messages: Messages, leaves (places, points, ...).
        client_state: New client states, leaves (places, points, ...).
        finite: 1 for the finite updates of this device, else 0, float32 (slots, points).
        size: Sizes of these updates, else 0, float32 (slots, points).
        weight: Weights of this device's updates, 0 for those that are late, float32 (slots,).
    """

    slot: jax.Array
    messages: Message
    client_state: ClientState
    finite: jax.Array
    size: jax.Array
    weight: jax.Array


def _comparing_sizes(
    faults: Faults, size: Callable[[Message], jax.Array], room: Capacity, *, fixed: bool
) -> Aggregation:
    """Store all updates of the round, and compare their sizes at its end."""

    def begin(messages: Message, client_state: ClientState) -> _Waiting:
        empty = jax.tree.map(lambda a: jnp.zeros((room.places, *a.shape[1:]), a.dtype), messages)
        state, zeros = jax.tree.map(jnp.zeros_like, client_state), _zeros_by_slot(messages, room)
        slot, weight = jnp.full(room.places, -1, jnp.int32), jnp.zeros(room.slots)
        return _Waiting(slot, empty, state, zeros, zeros, weight)

    def take(
        waiting: _Waiting, client_state: ClientState, new: Arrived
    ) -> tuple[_Waiting, ClientState]:
        ended, is_finite = new.slot >= 0, jax.vmap(jax.vmap(sound))(new.messages, new.client_state)
        sizes = jnp.where(is_finite > 0, jax.vmap(jax.vmap(size))(new.messages), 0)
        slot = jnp.where(ended, new.slot, room.slots)
        place = jnp.where(ended, new.place, room.places)
        by_place = put(waiting[:3], place, (new.slot, new.messages, new.client_state))
        by_slot = put(waiting[3:], slot, (is_finite, sizes, new.weight))
        return _Waiting(*by_place, *by_slot), client_state

    def end(waiting: _Waiting, client_state: ClientState, jobs: Slots) -> Result:
        del jobs  # their weights do not know who was late
        finite, sizes, weight = total(waiting[3:])
        screened = screen(faults, finite, sizes, weight, fixed=fixed)
        occupied = waiting.slot >= 0
        scale = jnp.where(occupied[:, None], screened.scale[waiting.slot], 0)
        weighted = scaled(weight[waiting.slot][:, None] * scale, waiting.messages)
        mean = total(jax.tree.map(lambda a: a.sum(axis=0), weighted))
        client_state = _interpolate(scale, client_state, waiting.client_state)
        return Result(
            mean_of_others(mean, screened.counted), client_state, screened.counted, screened.faulty
        )

    return Aggregation(begin, take, end)


def _interpolate(scale: jax.Array, before: ClientState, after: ClientState) -> ClientState:
    """The state before + scale (after - before), where scale has shape (places, points)."""

    def between_leaves(a: jax.Array, b: jax.Array) -> jax.Array:
        s = scale.reshape(scale.shape + (1,) * (a.ndim - 2))
        return a + s * (b - a) if jnp.issubdtype(a.dtype, jnp.inexact) else b

    between = choose(scale < 1, jax.tree.map(between_leaves, before, after), after)
    return choose(scale > 0, between, before)
