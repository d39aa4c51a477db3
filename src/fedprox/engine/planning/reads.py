"""Plans for reading whole clients: which slices of the flat rows each lane reads.

A job is a client or another range of rows. A tick reads a slice of at most `width` rows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.engine.planning.batch_plan import Capacity, Shape
from fedprox.engine.planning.jobs import Array, Segments, Slots, in_slots, pack, segments
from fedprox.engine.planning.round_work import RoundWork

TICK_COST = 16
"""Fixed cost of a tick, in units of the cost of a row."""


class ReadSlices(NamedTuple):
    """Which slices of the flat rows each lane reads; D devices, L lanes.

    Attributes:
        begin: First row of the slice, int32 (D, ticks, L).
        end: The row after the slice's last one, int32 (D, ticks, L).
        job: The job of the slice, int32 (D, ticks, L).
        ends: When jobs end, arrays with a leading axis D.
    """

    begin: Array
    end: Array
    job: Array
    ends: Segments


WIDTHS = (16, 32, 64)
"""Candidate widths of a slice, in rows. Wider slices are not faster on a CPU: from 128 rows on,
XLA's matrix multiplications take a slower path."""


def slice_width(sizes: NDArray[np.int64]) -> int:
    """The width of slices that reads clients of these sizes at the least cost, in rows.

    >>> slice_width(np.array([1000])), slice_width(np.array([30] * 100))
    (64, 32)
    """

    def cost(width: int) -> int:
        return int(slices(sizes, width).sum()) * (width + TICK_COST)

    best = min(WIDTHS, key=cost)
    return min(best, max(int(sizes.sum()), 1))


def slices(sizes: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Number of slices, and so of ticks, of each client."""
    return -(-sizes // width)


def plan_reading(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    owner: NDArray[np.int64],
    shape: Shape,
    ticks: int = 0,
    slots: int = 0,
) -> ReadSlices:
    """Plan how to read ranges of rows, each of which is a job; without room, for these alone."""
    devices, lanes, width = shape.devices, shape.lanes, shape.width
    packing = pack(slices(last - first, width), devices * lanes, owner, shape.processes)
    room = ticks or max(packing.ticks, 1)
    begin, end, job = (np.zeros((devices, room, lanes), np.int32) for _ in range(3))
    for j in range(len(first)):
        device, lane = divmod(int(packing.lane[j]), lanes)
        at = device, slice(packing.start[j], packing.end[j]), lane
        edges = np.arange(first[j], last[j], width)
        begin[at], end[at], job[at] = edges, np.minimum(edges + width, last[j]), j
    ends = segments(packing, devices, lanes, min(room, slots or len(first)))
    return ReadSlices(begin, end, job, ends)


def row_groups(
    bounds: NDArray[np.int64], shape: Shape
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Divide rows into jobs of equal length regardless of clients, one for each lane.

    >>> first, last, _ = row_groups(np.array([0, 100]), Shape(1, devices=1, lanes=2, width=16))
    >>> first.tolist(), last.tolist()
    ([0, 64], [64, 100])
    """
    lanes, width = max(1, shape.devices * shape.lanes // shape.processes), shape.width
    lengths = [-(-max(1, -(-n // width)) // lanes) * width for n in np.diff(bounds).tolist()]
    ends = zip(bounds[:-1].tolist(), bounds[1:].tolist(), lengths, strict=True)
    first = [np.arange(begin, end, length) for begin, end, length in ends]
    owner = np.repeat(np.arange(len(first)), [len(f) for f in first])
    starts = np.concatenate(first)
    last = np.minimum(starts + np.array(lengths)[owner], bounds[1:][owner])
    return starts, last, owner


class Exchange(NamedTuple):
    """How gradients are read before the local work of R rounds.

    The jobs are the clients about to work, in their slots, followed by those of the first cohort,
    whose mean gradient the clients receive.

    Attributes:
        reading: Which rows each lane reads, arrays with a leading axis R.
        jobs: The jobs. Their weights are those in the mean gradient, 0 for the clients about to
            work.
    """

    reading: ReadSlices
    jobs: Slots


def plan_exchanges(work: Sequence[RoundWork], shape: Shape, room: Capacity) -> Exchange | None:
    """Plan the first exchanges of some rounds; None if the method does not read gradients."""
    if not room.exchange_ticks:
        return None
    slots, readings = room.slots + room.exchange_slots, []
    for r in range(shape.rounds):
        first, last, owner = (np.zeros(slots, np.int64) for _ in range(3))
        now = work[r] if r < len(work) else RoundWork()
        for begin, jobs in ((0, now.jobs), (room.slots, now.exchange)):
            at = slice(begin, begin + len(jobs.size))
            first[at], last[at] = jobs.device_row, jobs.device_row + jobs.size
            owner[at] = jobs.owner
        readings.append(plan_reading(first, last, owner, shape, room.exchange_ticks))
    working = in_slots([each.jobs for each in work], shape.rounds, room.slots, {})
    working = working._replace(weight=np.zeros_like(working.weight))
    sending = in_slots([each.exchange for each in work], shape.rounds, room.exchange_slots, {})
    return Exchange(
        jax.tree.map(lambda *a: np.stack(a), *readings),
        jax.tree.map(lambda *a: np.concatenate(a, axis=1), working, sending),
    )
