"""Collecting a round's updates: added as they arrive, screened one by one, or read together.

Without screening, a message is added when its job ends. If updates only have to be
finite, each is tested when its job ends, and then added or left out. If sizes are compared, a
rule reads all messages, or some clients attack, messages are stored in their clients' places until
the last one has arrived. Rules and attacks read them in the order of the draw.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import ClientState, Message
from fedprox.messages.attack import Attack
from fedprox.messages.faults import Faults, beside, scaled, screen, sound, times
from fedprox.messages.robust import Aggregation
from fedprox.simulation.compiled.lanes import add_weighted, choose, put, total, where_lanes
from fedprox.simulation.devices.mesh import AXIS
from fedprox.simulation.planning.batch_plan import Capacity
from fedprox.simulation.planning.jobs import Slots

T = TypeVar("T")


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
        counted: Weight by which the sums are divided, (points,); None without screening.
        faulty: Which updates were faulty, bool (slots, points); None without screening.
    """

    sums: Message
    client_state: ClientState
    counted: jax.Array | None
    faulty: jax.Array | None


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


MEAN = Aggregation()
"""The weighted mean of all messages."""


def stores(faults: Faults | None, rule: Aggregation, attack: Attack | None) -> bool:
    """Whether the messages of a round are stored until its end."""
    compares = faults is not None and faults.compares
    return rule.stores or attack is not None or compares


def collector(
    faults: Faults | None,
    size: Callable[[Message], jax.Array],
    room: Capacity,
    *,
    fixed: bool = False,
    rule: Aggregation = MEAN,
    attack: Attack | None = None,
) -> Collector:
    """How a round's updates are collected.

    Args:
        faults: How faulty updates are treated; None means no screening.
        size: (message) -> its size.
        room: How much a round's arrays hold.
        fixed: Whether updates that are left out count as zero, so that the others keep their
            weight, as privacy and staleness require.
        rule: What is taken of them.
        attack: What dishonest clients send in place of their messages; None if all send theirs.
    """
    if stores(faults, rule, attack):
        return _storing(faults, size, room, rule, attack, fixed=fixed)
    if faults is None:
        return _without_screening(room)
    return _screening_finite(faults, room, fixed=fixed)


def _no_sums(messages: Message) -> Message:
    return jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), messages)


def _zeros_by_slot(messages: Message, room: Capacity) -> jax.Array:
    """Zeros of shape (slots, points)."""
    return jnp.zeros((room.slots, jax.tree.leaves(messages)[0].shape[1]))


def _without_screening(room: Capacity) -> Collector:
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

    def end(sums: Message, client_state: ClientState, jobs: Slots, key: jax.Array | None) -> Result:
        del jobs, key
        return Result(total(sums), client_state, None, None)

    return Collector(begin, take, end)


def _kept_unless_finite(
    client_state: ClientState, new: Arrived, is_finite: jax.Array, room: Capacity
) -> ClientState:
    """The client state after some updates, of which those that are not finite change nothing."""
    before = jax.tree.map(lambda a: a[new.place], client_state)
    after = choose(is_finite > 0, new.client_state, before)
    return put(client_state, jnp.where(new.slot >= 0, new.place, room.places), after)


def _screening_finite(faults: Faults, room: Capacity, *, fixed: bool) -> Collector:
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
        return (added, finite), _kept_unless_finite(client_state, new, is_finite, room)

    def end(
        sums: tuple[Message, jax.Array],
        client_state: ClientState,
        jobs: Slots,
        key: jax.Array | None,
    ) -> Result:
        del key
        added, finite = total(sums)
        screened = screen(faults, finite, None, jobs.weight, fixed=fixed)
        return Result(added, client_state, screened.counted, screened.faulty)

    return Collector(begin, take, end)


def keeping(faults: Faults, room: Capacity) -> Collector:
    """Keep all messages as they are, for a node that sends each: leaves (points, slots, ...)."""

    def begin(messages: Message, client_state: ClientState) -> tuple[Message, jax.Array]:
        del client_state
        kept = jax.tree.map(lambda a: jnp.zeros((room.slots, *a.shape[1:]), a.dtype), messages)
        return kept, _zeros_by_slot(messages, room)

    def take(
        sums: tuple[Message, jax.Array], client_state: ClientState, new: Arrived
    ) -> tuple[Any, ClientState]:
        slot = jnp.where(new.slot >= 0, new.slot, room.slots)
        is_finite = jax.vmap(jax.vmap(sound))(new.messages, new.client_state)
        client_state = _kept_unless_finite(client_state, new, is_finite, room)
        return put(sums, slot, (new.messages, is_finite)), client_state

    def end(
        sums: tuple[Message, jax.Array],
        client_state: ClientState,
        jobs: Slots,
        key: jax.Array | None,
    ) -> Result:
        del key
        # leaf by leaf, since they are of several types
        kept, finite = jax.tree.map(lambda a: jax.lax.psum(a, AXIS), sums)
        screened = screen(faults, finite, None, jobs.weight)
        messages = jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), kept)
        return Result(messages, client_state, screened.counted, screened.faulty)

    return Collector(begin, take, end)


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


def _storing(
    faults: Faults | None,
    size: Callable[[Message], jax.Array],
    room: Capacity,
    rule: Aggregation,
    attack: Attack | None,
    *,
    fixed: bool,
) -> Collector:
    """Store all updates of the round, and look at them together at its end."""
    together = rule.stores or attack is not None
    every_size = jax.vmap(jax.vmap(size))

    def begin(messages: Message, client_state: ClientState) -> _Waiting:
        empty = jax.tree.map(lambda a: jnp.zeros((room.places, *a.shape[1:]), a.dtype), messages)
        state, zeros = jax.tree.map(jnp.zeros_like, client_state), _zeros_by_slot(messages, room)
        slot, weight = jnp.full(room.places, -1, jnp.int32), jnp.zeros(room.slots)
        return _Waiting(slot, empty, state, zeros, zeros, weight)

    def take(
        waiting: _Waiting, client_state: ClientState, new: Arrived
    ) -> tuple[_Waiting, ClientState]:
        ended, is_finite = new.slot >= 0, jax.vmap(jax.vmap(sound))(new.messages, new.client_state)
        sizes = jnp.where(is_finite > 0, every_size(new.messages), 0)
        slot = jnp.where(ended, new.slot, room.slots)
        place = jnp.where(ended, new.place, room.places)
        by_place = put(waiting[:3], place, (new.slot, new.messages, new.client_state))
        by_slot = put(waiting[3:], slot, (is_finite, sizes, new.weight))
        return _Waiting(*by_place, *by_slot), client_state

    def end(
        waiting: _Waiting, client_state: ClientState, jobs: Slots, key: jax.Array | None
    ) -> Result:
        # the jobs' weights do not know who was late
        finite, sizes, weight = total(waiting[3:])
        slot, messages = waiting.slot, waiting.messages
        if together:
            # rules and attacks go by position, which must not depend on who computed what
            numbered, messages = _by_slot(slot, (slot + 1, messages), room)
            slot = numbered - 1
        in_time = (slot >= 0) & (weight[slot] > 0)
        if attack is not None:
            assert jobs.attacks is not None
            attacks = (slot >= 0) & (jobs.attacks[slot] > 0)
            messages = _over_points(attack.sent)(messages, in_time, attacks, key)
            at = jnp.where(slot >= 0, slot, room.slots)
            finite = jnp.minimum(finite, put(finite, at, jax.vmap(jax.vmap(sound))(messages)))
            sizes = jnp.where(finite > 0, put(sizes, at, every_size(messages)), 0)
        screened = None
        if faults is not None:
            compared = sizes if faults.compares else None
            screened = screen(faults, finite, compared, weight, fixed=fixed)
        factor = jnp.ones_like(finite) if screened is None else screened.scale

        def scale_of(slot: jax.Array) -> jax.Array:
            return jnp.where(slot[:, None] >= 0, factor[slot], 0)

        if rule.stores:
            counts = in_time[:, None] & (scale_of(slot) > 0) & (finite[slot] > 0)
            taken = scaled(scale_of(slot), messages)
            sums = jax.vmap(rule.of, in_axes=(1, 1, None))(taken, counts, weight[slot])
            sums = sums if screened is None else times(screened.counted, sums)
        else:
            weighted = scaled(weight[slot][:, None] * scale_of(slot), messages)
            sums = jax.tree.map(lambda a: a.sum(axis=0), weighted)
            sums = sums if together else total(sums)
        client_state = _interpolate(scale_of(waiting.slot), client_state, waiting.client_state)
        if screened is None:
            return Result(sums, client_state, None, None)
        return Result(sums, client_state, screened.counted, screened.faulty)

    return Collector(begin, take, end)


def _by_slot(slot: jax.Array, tree: T, room: Capacity) -> T:
    """The leaves (places, ...) of all devices in the order of slots, (slots, ...); 0 if empty."""
    empty = jax.tree.map(lambda a: jnp.zeros((room.slots, *a.shape[1:]), a.dtype), tree)
    own = put(empty, jnp.where(slot >= 0, slot, room.slots), tree)
    # leaf by leaf, since they are of several types
    return jax.tree.map(lambda a: jax.lax.psum(a, AXIS), own)


def _over_points(sent: Callable[..., Any]) -> Callable[..., Any]:
    """`Attack.sent` for messages whose second axis is that of sweep points."""
    return jax.vmap(sent, in_axes=(1, None, None, None), out_axes=1)


def _interpolate(scale: jax.Array, before: ClientState, after: ClientState) -> ClientState:
    """The state before + scale (after - before), where scale has shape (places, points)."""

    def between_leaves(a: jax.Array, b: jax.Array) -> jax.Array:
        s = beside(scale, a)
        return a + s * (b - a) if jnp.issubdtype(a.dtype, jnp.inexact) else b

    between = choose(scale < 1, jax.tree.map(between_leaves, before, after), after)
    return choose(scale > 0, between, before)
