"""Gradients at w^t, read before a round's work.

They are those of the clients about to work, and of the cohort of a first exchange if there is one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.features import Features
from fedprox.model import Model, Params
from fedprox.simulation.faults import Faults, Judged, screened_mean
from fedprox.simulation.lanes import add_weighted, put, run_segments, total, where_lanes
from fedprox.simulation.reading import Reading, per_lane, plan_reading, reader, summed_gradients
from fedprox.simulation.schedule import Array, Jobs


class Exchange(NamedTuple):
    """Whose gradients are read before the work of some rounds, R of them.

    Jobs are the clients about to work, in their slots, and after them those of the first cohort.

    Attributes:
        reading: Which rows each lane reads; arrays with a leading axis R.
        size: Rows of each job's client, float32 (R, jobs).
        weight: Its weight in the mean gradient, 0 for the clients about to work, float32 (R, jobs).
    """

    reading: Reading
    size: Array
    weight: Array


def plan_exchanges(
    rounds: Sequence[tuple[Jobs, Jobs]],
    *,
    room: int,
    slots: int,
    first_slots: int,
    ticks: int,
    width: int,
    devices: int,
    lanes: int,
    homes: int,
) -> Exchange:
    """The first exchanges of some rounds.

    Args:
        rounds: Jobs of the clients about to work, and of the first cohort, in each round.
        room: Room for rounds.
        slots: Room for clients about to work.
        first_slots: Room for clients of the first cohort.
        ticks: Room for ticks.
        width: Rows of a slice.
        devices: Number of devices.
        lanes: Lanes per device.
        homes: Number of processes.
    """
    size = np.ones((room, slots + first_slots), np.float32)
    weight = np.zeros((room, slots + first_slots), np.float32)
    readings = []
    for r in range(room):
        first = np.zeros(slots + first_slots, np.int64)
        last, home = (np.zeros(slots + first_slots, np.int64) for _ in range(2))
        for begin, jobs in zip((0, slots), rounds[r] if r < len(rounds) else (), strict=False):
            at = slice(begin, begin + len(jobs.size))
            first[at], last[at], size[r, at] = jobs.offset, jobs.offset + jobs.size, jobs.size
            home[at] = jobs.home
        if r < len(rounds):
            weight[r, slots : slots + len(rounds[r][1].weight)] = rounds[r][1].weight
        readings.append(
            plan_reading(
                first,
                last,
                width=width,
                devices=devices,
                lanes=lanes,
                home=home,
                homes=homes,
                ticks=ticks,
            )
        )
    return Exchange(jax.tree.map(lambda *a: np.stack(a), *readings), size, weight)


def exchange_gradients(
    model: Model, slots: int, lanes: int, width: int, faults: Faults | None
) -> Callable[[Params, Features, jax.Array, Exchange], tuple[Params, Params, Judged | None]]:
    """The first exchange of one round, inside the rounds' program.

    Args:
        model: The model.
        slots: Room for clients about to work.
        lanes: Lanes per device.
        width: Rows of a slice.
        faults: What is done about faulty gradients of the first cohort; None for no screening.
            With it all of them are kept until the last is known.

    Returns:
        (w^t, x, y, exchange) -> grad F_k(w^t) of the clients about to work (slots, points, ...),
        the first cohort's weighted mean g^t, and what its gradients are worth.
    """
    read, summed = reader(width), summed_gradients(model, shared=True)

    def gradients(
        params: Params, x: Features, y: jax.Array, exchange: Exchange
    ) -> tuple[Params, Params, Judged | None]:
        room = slots if faults is None else len(exchange.weight)

        def zeros(*shape: int) -> Params:
            return jax.tree.map(lambda a: jnp.zeros((*shape, *a.shape), a.dtype), params)

        def tick(i: jax.Array, carry: Any) -> Any:
            sums, own, mean = carry
            found = summed(params, *read(x, y, exchange.reading, i))
            return jax.tree.map(jnp.add, sums, found), own, mean

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            sums, own, mean = carry
            ended = slot >= 0
            found = per_lane(sums, exchange.size[slot])
            none = jax.tree.map(jnp.zeros_like, sums)
            if faults is None:
                weight = jnp.where(ended, exchange.weight[slot], 0.0)
                counted = where_lanes(ended, found, none)
                mean = add_weighted(mean, weight, counted)
            # slots beyond are those of the first cohort
            target = jnp.where(ended, slot, room)
            own = put(own, target, found)
            return where_lanes(ended, none, sums), own, mean

        carry = (zeros(lanes), zeros(room), zeros() if faults is None else None)
        _, own, mean = run_segments(exchange.reading.ends, tick, end_jobs, carry)
        own, mean = total((own, mean))
        if faults is None:
            return own, mean, None
        first = jax.tree.map(lambda a: a[slots:], own)
        mean, judged = screened_mean(faults, first, exchange.weight[slots:])
        return jax.tree.map(lambda a: a[:slots], own), mean, judged

    return gradients
