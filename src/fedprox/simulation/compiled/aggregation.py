"""Aggregation of a round's updates: added as they arrive, screened one by one, or compared.

Without screening, a message is added when its job ends. If updates only have to be
finite, each is tested when its job ends, and then added or left out. If sizes are compared,
messages are stored in their clients' places until the last one has arrived.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import ClientState, Message
from fedprox.messages.faults import Faults, scaled, screen, sound
from fedprox.simulation.compiled.lanes import add_weighted, choose, put, total, where_lanes
from fedprox.simulation.planning.batch_plan import Capacity
from fedprox.simulation.planning.jobs import Slots


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
        sums: The messages that count, times their weights, summed, leaves (points, ...).
        client_state: The clients' new state, leaves (places, points, ...).
        counted: Weight by which the sums are divided, (points,); None without screening.
        faulty: Which updates were faulty, bool (slots, points); None without screening.
    """

    sums: Message
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


def _no_sums(messages: Message) -> Message:
    return jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), messages)


def _zeros_by_slot(messages: Message, room: Capacity) -> jax.Array:
    """Zeros of shape (slots, points)."""
    return jnp.zeros((room.slots, jax.tree.leaves(messages)[0].shape[1]))


def _without_screening(room: Capacity) -> Aggregation:
    """Add each message when it arrives."""

    def begin(messages: Message, client_state: ClientState) -> Message:
        del client_state
        return _no_sums(messages)

    def take(sums: Message, client_state: ClientState, new: Arrived) -> tuple[Message, ClientState]:
        ended = new.slot >= 0
        messages = where_lanes(ended, new.messages, jax.tree.map(jnp.zeros_like, new.messages))
        sums = add_weighted(sums, new.weight, messages)
        place = jnp.where(ended, new.place, room.places)
        return sums, put(client_state, place, new.client_state)

    def end(sums: Message, client_state: ClientState, jobs: Slots) -> Result:
        del jobs
        return Result(total(sums), client_state, None, None)

    return Aggregation(begin, take, end)


def _screening_finite(faults: Faults, room: Capacity, *, fixed: bool) -> Aggregation:
    """Add each message when it arrives, if the update is finite."""

    def begin(messages: Message, client_state: ClientState) -> tuple[Message, jax.Array]:
        del client_state
        return _no_sums(messages), _zeros_by_slot(messages, room)

    def take(
        sums: tuple[Message, jax.Array], client_state: ClientState, new: Arrived
    ) -> tuple[Any, ClientState]:
        added, finite = sums
        ended, is_finite = new.slot >= 0, jax.vmap(jax.vmap(sound))(new.messages, new.client_state)
        added = add_weighted(added, new.weight, scaled(is_finite, new.messages))
        finite = put(finite, jnp.where(ended, new.slot, room.slots), is_finite)
        before = jax.tree.map(lambda a: a[new.place], client_state)
        after = choose(is_finite > 0, new.client_state, before)
        return (added, finite), put(client_state, jnp.where(ended, new.place, room.places), after)

    def end(sums: tuple[Message, jax.Array], client_state: ClientState, jobs: Slots) -> Result:
        added, finite = total(sums)
        screened = screen(faults, finite, None, jobs.weight, fixed=fixed)
        return Result(added, client_state, screened.counted, screened.faulty)

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
        sums = total(jax.tree.map(lambda a: a.sum(axis=0), weighted))
        client_state = _interpolate(scale, client_state, waiting.client_state)
        return Result(sums, client_state, screened.counted, screened.faulty)

    return Aggregation(begin, take, end)


def _interpolate(scale: jax.Array, before: ClientState, after: ClientState) -> ClientState:
    """The state before + scale (after - before), where scale has shape (places, points)."""

    def between_leaves(a: jax.Array, b: jax.Array) -> jax.Array:
        s = scale.reshape(scale.shape + (1,) * (a.ndim - 2))
        return a + s * (b - a) if jnp.issubdtype(a.dtype, jnp.inexact) else b

    between = choose(scale < 1, jax.tree.map(between_leaves, before, after), after)
    return choose(scale > 0, between, before)
