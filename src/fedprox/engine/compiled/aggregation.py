"""Collecting a round's updates: added as they arrive, screened one by one, or read together.

Without screening, a message is added when its job ends. If updates only have to be
finite, each is tested when its job ends, and then added or left out. If sizes are compared, or a
part reads all messages together, they are stored in their clients' places until the last one has
arrived. Parts read them in the order of the draw.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import ClientState, Message
from fedprox.devices.mesh import AXIS
from fedprox.engine.compiled.lanes import (
    T,
    add_weighted,
    choose,
    entries,
    put,
    total,
    where_lanes,
    zeros_like,
)
from fedprox.engine.planning.batch_plan import Capacity
from fedprox.engine.planning.jobs import Slots
from fedprox.parts.part import Reduction, Screened, beside, scaled, sound, times


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
    """The updates of a round.

    Attributes:
        sums: The messages that count, times their weights, summed, leaves (points, ...).
        client_state: The clients' new state, leaves (places, points, ...).
        screened: Which updates (slots, points) count, and the weight by which the sums are divided;
            None without screening.
    """

    sums: Message
    client_state: ClientState
    screened: Screened | None


class Collector(NamedTuple):
    """How the updates of a round are collected, as functions of `sums` of some kind.

    Attributes:
        begin: (messages of the lanes, client state) -> empty sums; only shapes matter.
        take: (sums, client state, arrived updates) -> new sums and client state.
        end: (sums, client state, the round's jobs, its random key) -> the result.
    """

    begin: Callable[[Message, ClientState], Any]
    take: Callable[[Any, ClientState, Arrived], tuple[Any, ClientState]]
    end: Callable[[Any, ClientState, Slots, jax.Array | None], Result]


def collector(
    reduction: Reduction, size: Callable[[Message], jax.Array], room: Capacity
) -> Collector:
    """How a round's updates are collected, given the size of a message."""
    if reduction.stores:
        return _storing(reduction, size, room)
    return _adding(reduction, room)


def _zeros_by_slot(messages: Message, room: Capacity) -> jax.Array:
    """Zeros of shape (slots, points)."""
    return jnp.zeros((room.slots, jax.tree.leaves(messages)[0].shape[1]))


def _sound(*trees: Any) -> jax.Array:
    """Which updates (lanes, points) are finite, as 1 or 0."""
    return jax.vmap(jax.vmap(sound))(*trees)


def _state_after(
    client_state: ClientState,
    new: Arrived,
    ended: jax.Array,
    is_finite: jax.Array | None,
    room: Capacity,
) -> ClientState:
    """The client state after some updates, of which those that are not finite change nothing."""
    after = new.client_state
    if is_finite is not None:
        before = entries(client_state, new.place)
        after = choose(is_finite > 0, after, before)
    return put(client_state, jnp.where(ended, new.place, room.places), after)


def _adding(reduction: Reduction, room: Capacity) -> Collector:
    """Add each message when it arrives; with screening, if the update is finite."""

    def begin(messages: Message, client_state: ClientState) -> tuple[Message, jax.Array | None]:
        del client_state
        sums = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), messages)
        return sums, None if reduction.screen is None else _zeros_by_slot(messages, room)

    def take(
        sums: tuple[Message, jax.Array | None], client_state: ClientState, new: Arrived
    ) -> tuple[Any, ClientState]:
        (added, finite), ended, is_finite = sums, new.slot >= 0, None
        if finite is None:
            messages = where_lanes(ended, new.messages, zeros_like(new.messages))
        else:
            is_finite = _sound(new.messages, new.client_state)
            messages = scaled(is_finite, new.messages)
            finite = put(finite, jnp.where(ended, new.slot, room.slots), is_finite)
        added = add_weighted(added, new.weight, messages)
        return (added, finite), _state_after(client_state, new, ended, is_finite, room)

    def end(
        sums: tuple[Message, jax.Array | None], client_state: ClientState, jobs: Slots, _: Any
    ) -> Result:
        added, finite = total(sums)
        screened = None if finite is None else reduction.screened(finite, None, jobs.weight)
        return Result(added, client_state, screened)

    return Collector(begin, take, end)


def keeping(reduction: Reduction, room: Capacity) -> Collector:
    """Keep all messages as they are, for a node that sends each: leaves (points, slots, ...)."""

    def begin(messages: Message, client_state: ClientState) -> tuple[Message, jax.Array]:
        del client_state
        kept = jax.tree.map(lambda a: jnp.zeros((room.slots, *a.shape[1:]), a.dtype), messages)
        return kept, _zeros_by_slot(messages, room)

    def take(
        sums: tuple[Message, jax.Array], client_state: ClientState, new: Arrived
    ) -> tuple[Any, ClientState]:
        ended, is_finite = new.slot >= 0, _sound(new.messages, new.client_state)
        slot = jnp.where(ended, new.slot, room.slots)
        client_state = _state_after(client_state, new, ended, is_finite, room)
        return put(sums, slot, (new.messages, is_finite)), client_state

    def end(
        sums: tuple[Message, jax.Array], client_state: ClientState, jobs: Slots, _: Any
    ) -> Result:
        # leaf by leaf, since they are of several types
        kept, finite = jax.tree.map(lambda a: jax.lax.psum(a, AXIS), sums)
        messages = jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), kept)
        return Result(messages, client_state, reduction.screened(finite, None, jobs.weight))

    return Collector(begin, take, end)


_Waiting = tuple[tuple[jax.Array, Message, ClientState], tuple[jax.Array, jax.Array, jax.Array]]
"""Updates that are stored until the end of the round.

By place: slot of the job, -1 for none, int32 (places,); messages and new client states, leaves
(places, points, ...). By slot: 1 for the finite updates of this device, else 0, and their sizes,
else 0, float32 (slots, points). Weights of this device's updates, 0 for those that are late,
float32 (slots,).
"""


def _storing(
    reduction: Reduction, size: Callable[[Message], jax.Array], room: Capacity
) -> Collector:
    """Store all updates of the round, and look at them together at its end."""
    change, screen, rule, _ = reduction
    every_size = jax.vmap(jax.vmap(size))

    def begin(messages: Message, client_state: ClientState) -> _Waiting:
        empty = jax.tree.map(lambda a: jnp.zeros((room.places, *a.shape[1:]), a.dtype), messages)
        state, zeros = jax.tree.map(jnp.zeros_like, client_state), _zeros_by_slot(messages, room)
        slot, weight = jnp.full(room.places, -1, jnp.int32), jnp.zeros(room.slots)
        return (slot, empty, state), (zeros, zeros, weight)

    def take(
        waiting: _Waiting, client_state: ClientState, new: Arrived
    ) -> tuple[_Waiting, ClientState]:
        ended, is_finite = new.slot >= 0, _sound(new.messages, new.client_state)
        sizes = jnp.where(is_finite > 0, every_size(new.messages), 0)
        slot = jnp.where(ended, new.slot, room.slots)
        place = jnp.where(ended, new.place, room.places)
        by_place = put(waiting[0], place, (new.slot, new.messages, new.client_state))
        return (by_place, put(waiting[1], slot, (is_finite, sizes, new.weight))), client_state

    def end(
        waiting: _Waiting, client_state: ClientState, jobs: Slots, key: jax.Array | None
    ) -> Result:
        # the jobs' weights do not know who was late
        finite, sizes, weight = total(waiting[1])
        places, messages, after = waiting[0]
        slot = places
        if reduction.ordered:
            # they go by position, which must not depend on who computed what
            numbered, messages = _by_slot(slot, (slot + 1, messages), room)
            slot = numbered - 1
        weights = entries(weight, slot)
        in_time = (slot >= 0) & (weights > 0)
        if change is not None:
            changed = jax.vmap(change.changed, in_axes=(1, None, None, None), out_axes=1)
            messages = changed(messages, in_time, jobs.numbers(slot), key)
            at = jnp.where(slot >= 0, slot, room.slots)
            finite = jnp.minimum(finite, put(finite, at, _sound(messages)))
            sizes = jnp.where(finite > 0, put(sizes, at, every_size(messages)), 0)
        screened = None
        if screen is not None:
            screened = reduction.screened(finite, sizes, weight)
        factor = jnp.ones_like(finite) if screened is None else screened.scale

        def scale_of(slot: jax.Array) -> jax.Array:
            return jnp.where(slot[:, None] >= 0, entries(factor, slot), 0)

        if rule is not None:
            counts = in_time[:, None] & (scale_of(slot) > 0) & (entries(finite, slot) > 0)
            taken = scaled(scale_of(slot), messages)
            sums = jax.vmap(rule.of, in_axes=(1, 1, None))(taken, counts, weights)
            sums = sums if screened is None else times(screened.counted, sums)
        else:
            weighted = scaled(weights[:, None] * scale_of(slot), messages)
            sums = jax.tree.map(lambda a: a.sum(axis=0), weighted)
            sums = sums if reduction.ordered else total(sums)
        client_state = _interpolate(scale_of(places), client_state, after)
        return Result(sums, client_state, screened)

    return Collector(begin, take, end)


def _by_slot(slot: jax.Array, tree: T, room: Capacity) -> T:
    """The leaves (places, ...) of all devices in the order of slots, (slots, ...); 0 if empty."""
    empty = jax.tree.map(lambda a: jnp.zeros((room.slots, *a.shape[1:]), a.dtype), tree)
    own = put(empty, jnp.where(slot >= 0, slot, room.slots), tree)
    # leaf by leaf, since they are of several types
    return jax.tree.map(lambda a: jax.lax.psum(a, AXIS), own)


def _interpolate(scale: jax.Array, before: ClientState, after: ClientState) -> ClientState:
    """The state before + scale (after - before), where scale has shape (places, points)."""

    def between_leaves(a: jax.Array, b: jax.Array) -> jax.Array:
        s = beside(scale, a)
        return a + s * (b - a) if jnp.issubdtype(a.dtype, jnp.inexact) else b

    between = choose(scale < 1, jax.tree.map(between_leaves, before, after), after)
    return choose(scale > 0, between, before)
