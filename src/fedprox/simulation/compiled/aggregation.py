"""Aggregation of a round's updates: added as they arrive, screened one by one, or compared.

Without screening, a message is added to the mean where its job ends. Messages that only have to be
finite are treated likewise, or left out. Where sizes are compared, messages wait in their clients'
places until the last one has arrived.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import ClientState, Message
from fedprox.simulation.compiled.lanes import add_weighted, choose, put, total, where_lanes
from fedprox.simulation.compiled.screening import mean_of_others, scaled, screen, sound
from fedprox.simulation.config.faults import Faults
from fedprox.simulation.planning.batch_plan import Shape, Slots


class Arrived(NamedTuple):
    """What the lanes bring where a segment ends, the first axis of all being the lanes.

    Attributes:
        slot: The job that ends, -1 for none.
        place: Where its client's state lies on this device.
        weight: Its weight in the mean, 0 for none.
        messages: What its client sends, leaves (lanes, points, ...).
        keeps: What it keeps, likewise.
    """

    slot: jax.Array
    place: jax.Array
    weight: jax.Array
    messages: Message
    keeps: ClientState


class Result(NamedTuple):
    """What a round's updates come to.

    Attributes:
        mean: The weighted mean of the messages, leaves (points, ...).
        client_state: What clients keep from now on, leaves (places, points, ...).
        counted: The weight of the updates that counted, (points,); None without screening.
        faulty: Which were faulty, bool (slots, points); likewise.
    """

    mean: Message
    client_state: ClientState
    counted: jax.Array | None
    faulty: jax.Array | None


class Aggregation(NamedTuple):
    """What becomes of updates.

    Attributes:
        begin: Messages of the lanes (in shape), what clients keep -> nothing has come in.
        take: What has come in, what clients keep, what arrives -> both with it.
        end: What has come in, what clients keep, the jobs of the round -> the result.
    """

    begin: Callable[[Message, ClientState], Any]
    take: Callable[[Any, ClientState, Arrived], tuple[Any, ClientState]]
    end: Callable[[Any, ClientState, Slots], Result]


def aggregation(
    faults: Faults | None, size: Callable[[Message], jax.Array], shape: Shape
) -> Aggregation:
    """How updates come together under a policy.

    Args:
        faults: What is done about faulty updates; None for no screening.
        size: Message -> its size.
        shape: Shape of the plans.
    """
    if faults is None:
        return _trusting(shape)
    if faults.compares:
        return _comparing(faults, size, shape)
    return _screening(faults, shape)


def _no_mean(messages: Message) -> Message:
    return jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), messages)


def _of_jobs(messages: Message, shape: Shape) -> jax.Array:
    """A zero for each job and point."""
    return jnp.zeros((shape.slots, jax.tree.leaves(messages)[0].shape[1]))


def _trusting(shape: Shape) -> Aggregation:
    def begin(messages: Message, client_state: ClientState) -> Message:
        del client_state
        return _no_mean(messages)

    def take(mean: Message, client_state: ClientState, new: Arrived) -> tuple[Message, ClientState]:
        ended = new.slot >= 0
        messages = where_lanes(ended, new.messages, jax.tree.map(jnp.zeros_like, new.messages))
        mean = add_weighted(mean, new.weight, messages)
        return mean, put(client_state, jnp.where(ended, new.place, shape.places), new.keeps)

    def end(mean: Message, client_state: ClientState, jobs: Slots) -> Result:
        del jobs
        return Result(total(mean), client_state, None, None)

    return Aggregation(begin, take, end)


def _screening(faults: Faults, shape: Shape) -> Aggregation:
    def begin(messages: Message, client_state: ClientState) -> tuple[Message, jax.Array]:
        del client_state
        return _no_mean(messages), _of_jobs(messages, shape)

    def take(
        sums: tuple[Message, jax.Array], client_state: ClientState, new: Arrived
    ) -> tuple[Any, ClientState]:
        mean, known = sums
        ended, good = new.slot >= 0, jax.vmap(jax.vmap(sound))(new.messages, new.keeps)
        mean = add_weighted(mean, new.weight, scaled(good, new.messages))
        known = put(known, jnp.where(ended, new.slot, shape.slots), good)
        before = jax.tree.map(lambda a: a[new.place], client_state)
        keeps = choose(good > 0, new.keeps, before)
        return (mean, known), put(client_state, jnp.where(ended, new.place, shape.places), keeps)

    def end(sums: tuple[Message, jax.Array], client_state: ClientState, jobs: Slots) -> Result:
        mean, known = total(sums)
        screened = screen(faults, known, None, jobs.weight)
        return Result(
            mean_of_others(mean, screened.counted), client_state, screened.counted, screened.faulty
        )

    return Aggregation(begin, take, end)


class _Waiting(NamedTuple):
    """Updates that wait for the round's last.

    Attributes:
        slot: The job of each place, -1 for none, int32 (places,).
        messages: Leaves (places, points, ...).
        keeps: Likewise.
        sound: 1 for the finite ones of all jobs of this device, float32 (slots, points).
        size: Their sizes, 0 for all others, likewise.
    """

    slot: jax.Array
    messages: Message
    keeps: ClientState
    sound: jax.Array
    size: jax.Array


def _comparing(faults: Faults, size: Callable[[Message], jax.Array], shape: Shape) -> Aggregation:
    def begin(messages: Message, client_state: ClientState) -> _Waiting:
        room = jax.tree.map(lambda a: jnp.zeros((shape.places, *a.shape[1:]), a.dtype), messages)
        keeps, nothing = jax.tree.map(jnp.zeros_like, client_state), _of_jobs(messages, shape)
        return _Waiting(jnp.full(shape.places, -1, jnp.int32), room, keeps, nothing, nothing)

    def take(
        waiting: _Waiting, client_state: ClientState, new: Arrived
    ) -> tuple[_Waiting, ClientState]:
        ended, good = new.slot >= 0, jax.vmap(jax.vmap(sound))(new.messages, new.keeps)
        sizes = jnp.where(good > 0, jax.vmap(jax.vmap(size))(new.messages), 0)
        slot = jnp.where(ended, new.slot, shape.slots)
        place = jnp.where(ended, new.place, shape.places)
        here = put(waiting[:3], place, (new.slot, new.messages, new.keeps))
        return _Waiting(*here, *put(waiting[3:], slot, (good, sizes))), client_state

    def end(waiting: _Waiting, client_state: ClientState, jobs: Slots) -> Result:
        screened = screen(faults, *total(waiting[3:]), jobs.weight)
        there = waiting.slot >= 0
        scale = jnp.where(there[:, None], screened.scale[waiting.slot], 0)
        weighted = scaled(jobs.weight[waiting.slot][:, None] * scale, waiting.messages)
        mean = total(jax.tree.map(lambda a: a.sum(axis=0), weighted))
        client_state = _part_of_the_way(scale, client_state, waiting.keeps)
        return Result(
            mean_of_others(mean, screened.counted), client_state, screened.counted, screened.faulty
        )

    return Aggregation(begin, take, end)


def _part_of_the_way(scale: jax.Array, before: ClientState, after: ClientState) -> ClientState:
    """From one state to another by a share of the way (places, points); leaves alike."""

    def part(a: jax.Array, b: jax.Array) -> jax.Array:
        s = scale.reshape(scale.shape + (1,) * (a.ndim - 2))
        return a + s * (b - a) if jnp.issubdtype(a.dtype, jnp.inexact) else b

    between = choose(scale < 1, jax.tree.map(part, before, after), after)
    return choose(scale > 0, between, before)
