"""Plans for reading whole clients: which slices of the flat rows each lane reads.

A job is a client, or any range of rows; a tick reads a slice of at most `width` of its rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.simulation.planning.batch_plan import Jobs
from fedprox.simulation.planning.packing import Array, Grid, Segments, pack, segments

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
    width: int,
    grid: Grid,
    *,
    owner: NDArray[np.int64] | None = None,
    ticks: int | None = None,
    slots: int | None = None,
) -> Reading:
    """Read row ranges, each being a job.

    Args:
        first: First flat row of each job, shape (jobs,).
        last: The row before which it ends, shape (jobs,).
        width: Rows of a slice.
        grid: The lanes.
        owner: The process that does each job, shape (jobs,); any if left out.
        ticks: Room for ticks; what is needed if left out.
        slots: Room for jobs; as many as there are if left out.
    """
    devices, lanes, processes = grid
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


def read_everything(bounds: NDArray[np.int64], width: int, grid: Grid) -> Reading:
    """Read all flat rows in equal slices, whichever client they belong to.

    Args:
        bounds: Where the rows of each process begin, and where the last one's end, shape
            (processes + 1,). Rows are numbered from 0 in each process.
        width: Rows of a slice.
        grid: The lanes.
    """
    counts = np.diff(bounds)
    first = [np.arange(0, count, width) for count in counts]
    last = [np.minimum(f + width, count) for f, count in zip(first, counts, strict=True)]
    owner = np.repeat(np.arange(len(counts)), [len(f) for f in first])
    grid = grid._replace(processes=len(counts))
    return plan_reading(np.concatenate(first), np.concatenate(last), width, grid, owner=owner)


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


class ExchangeRoom(NamedTuple):
    """How much the plan of some first exchanges holds.

    Attributes:
        rounds: Room for rounds.
        slots: Room for clients about to work.
        first_slots: Room for clients of the first cohort.
        ticks: Room for ticks.
    """

    rounds: int
    slots: int
    first_slots: int
    ticks: int


def plan_exchanges(
    rounds: Sequence[tuple[Jobs, Jobs]], room: ExchangeRoom, width: int, grid: Grid
) -> Exchange:
    """The first exchanges of some rounds.

    Args:
        rounds: Jobs of the clients about to work, and of the first cohort, in each round.
        room: How much the plan holds.
        width: Rows of a slice.
        grid: The lanes.
    """
    slots = room.slots + room.first_slots
    size = np.ones((room.rounds, slots), np.float32)
    weight = np.zeros((room.rounds, slots), np.float32)
    readings = []
    for r in range(room.rounds):
        first, last, owner = (np.zeros(slots, np.int64) for _ in range(3))
        for begin, jobs in zip((0, room.slots), rounds[r] if r < len(rounds) else (), strict=False):
            at = slice(begin, begin + len(jobs.size))
            first[at], last[at] = jobs.device_row, jobs.device_row + jobs.size
            size[r, at], owner[at] = jobs.size, jobs.owner
        if r < len(rounds):
            weight[r, room.slots : room.slots + len(rounds[r][1].weight)] = rounds[r][1].weight
        readings.append(plan_reading(first, last, width, grid, owner=owner, ticks=room.ticks))
    return Exchange(jax.tree.map(lambda *a: np.stack(a), *readings), size, weight)
