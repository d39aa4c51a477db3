"""Plans for reading whole clients: which slices of the flat rows each lane reads.

A job is a client, or any range of rows; a tick reads a slice of at most `width` of its rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.simulation.planning.batch_plan import Jobs
from fedprox.simulation.planning.packing import Array, Segments, pack, segments

TICK_COST = 16
"""What a tick costs beside its rows, in rows."""


class Reading(NamedTuple):
    """Which slices of the flat rows each lane reads; D devices, L lanes.

    Attributes:
        begin: First row of the slice, int32 (D, ticks, L).
        end: The row before which it ends, int32 (D, ticks, L).
        job: The job a slice belongs to, int32 (D, ticks, L).
        ends: Where jobs end; arrays with a leading axis D.
    """

    begin: Array
    end: Array
    job: Array
    ends: Segments


WIDTHS = (16, 32, 64)
"""Rows of a slice. Wider ones are no gain on a CPU: XLA's matrix products take a slower path from
128 rows on."""


def slice_width(sizes: NDArray[np.int64]) -> int:
    """Rows per tick that read clients of these sizes at the least cost.

    >>> slice_width(np.array([1000])), slice_width(np.array([30] * 100))
    (64, 32)
    """

    def cost(width: int) -> int:
        return int(slices(sizes, width).sum()) * (width + TICK_COST)

    best = min(WIDTHS, key=cost)
    return min(best, max(int(sizes.sum()), 1))


def slices(sizes: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Ticks that each client's rows take."""
    return -(-sizes // width)


def plan_reading(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    *,
    width: int,
    devices: int,
    lanes: int,
    owner: NDArray[np.int64] | None = None,
    processes: int = 1,
    ticks: int | None = None,
    slots: int | None = None,
) -> Reading:
    """Read row ranges, each being a job.

    Args:
        first: First flat row of each job, shape (jobs,).
        last: The row before which it ends, shape (jobs,).
        width: Rows of a slice.
        devices: Number of devices.
        lanes: Lanes per device.
        owner: The process that does each job, shape (jobs,); any where left out.
        processes: Number of processes.
        ticks: Room for ticks; what is needed where left out.
        slots: Room for jobs; as many as there are where left out.
    """
    packing = pack(slices(last - first, width), devices * lanes, owner, processes)
    room = ticks if ticks is not None else max(packing.ticks, 1)
    begin, end, job = (np.zeros((devices, room, lanes), np.int32) for _ in range(3))
    for j in range(len(first)):
        device, lane = divmod(int(packing.lane[j]), lanes)
        at = device, slice(packing.start[j], packing.end[j]), lane
        edges = np.arange(first[j], last[j], width)
        begin[at], end[at], job[at] = edges, np.minimum(edges + width, last[j]), j
    ends = segments(packing, devices, lanes, min(room, slots if slots is not None else len(first)))
    return Reading(begin, end, job, ends)


def read_everything(bounds: NDArray[np.int64], *, width: int, devices: int, lanes: int) -> Reading:
    """Read all flat rows in equal slices, whichever client they belong to.

    Args:
        bounds: Where the rows of each process begin, and where the last one's end, shape
            (processes + 1,). Rows are numbered from 0 in each process.
        width: Rows of a slice.
        devices: Number of devices.
        lanes: Lanes per device.
    """
    counts = np.diff(bounds)
    first = [np.arange(0, count, width) for count in counts]
    last = [np.minimum(f + width, count) for f, count in zip(first, counts, strict=True)]
    owner = np.repeat(np.arange(len(counts)), [len(f) for f in first])
    return plan_reading(
        np.concatenate(first),
        np.concatenate(last),
        width=width,
        devices=devices,
        lanes=lanes,
        owner=owner,
        processes=len(counts),
    )


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
    processes: int,
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
        processes: Number of processes.
    """
    size = np.ones((room, slots + first_slots), np.float32)
    weight = np.zeros((room, slots + first_slots), np.float32)
    readings = []
    for r in range(room):
        first = np.zeros(slots + first_slots, np.int64)
        last, owner = (np.zeros(slots + first_slots, np.int64) for _ in range(2))
        for begin, jobs in zip((0, slots), rounds[r] if r < len(rounds) else (), strict=False):
            at = slice(begin, begin + len(jobs.size))
            first[at], last[at], size[r, at] = jobs.offset, jobs.offset + jobs.size, jobs.size
            owner[at] = jobs.owner
        if r < len(rounds):
            weight[r, slots : slots + len(rounds[r][1].weight)] = rounds[r][1].weight
        readings.append(
            plan_reading(
                first,
                last,
                width=width,
                devices=devices,
                lanes=lanes,
                owner=owner,
                processes=processes,
                ticks=ticks,
            )
        )
    return Exchange(jax.tree.map(lambda *a: np.stack(a), *readings), size, weight)
