"""Packing jobs into lanes.

A cohort is a list of jobs: a client each, with a number of ticks. Jobs are packed into lanes, the
longest job first onto the least loaded lane (Graham 1969, LPT). Each lane runs its jobs one after
another, and all lanes tick together. A segment ends where any lane ends a job: between segment ends
the program only ticks, so the inner loop pays for nothing but the steps themselves.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = Any
"""A NumPy array on the host, a JAX array inside a program."""


class Grid(NamedTuple):
    """The lanes of all devices, numbered through the devices.

    Attributes:
        devices: Number of devices.
        lanes: Lanes per device.
        processes: Processes that share the devices, each an equal part of them.
    """

    devices: int
    lanes: int
    processes: int = 1


class Packing(NamedTuple):
    """Jobs packed into lanes.

    Attributes:
        lane: Each job's lane, shape (jobs,).
        start: The tick at which it starts, shape (jobs,).
        end: The tick before which it ends, shape (jobs,).
    """

    lane: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    @property
    def ticks(self) -> int:
        """Ticks until every lane is done."""
        return int(self.end.max(initial=0))


def pack(
    lengths: NDArray[np.int64],
    lanes: int,
    owner: NDArray[np.int64] | None = None,
    processes: int = 1,
) -> Packing:
    """Pack jobs into lanes, the longest first onto the least loaded lane.

    Args:
        lengths: Ticks of each job, shape (jobs,).
        lanes: Number of lanes, at least 1.
        owner: Which part of the lanes each job must go to, shape (jobs,); any where left out.
        processes: Number of these parts, of equal size.

    >>> packing = pack(np.array([5, 2, 4, 3]), lanes=2)
    >>> packing.lane.tolist(), packing.start.tolist(), packing.ticks
    ([0, 0, 1, 1], [0, 5, 0, 4], 7)
    """
    lane, start = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    if owner is not None and processes > 1:
        each = lanes // processes
        for p in range(processes):
            mine = np.flatnonzero(owner == p)
            packing = pack(lengths[mine], each)
            lane[mine], start[mine] = p * each + packing.lane, packing.start
        return Packing(lane, start, start + lengths)
    order = np.argsort(-lengths, kind="stable")
    load, least = [(0, i) for i in range(lanes)], []
    for length in lengths[order].tolist():
        filled, i = load[0]
        least.append(load[0])
        heapq.heapreplace(load, (filled + length, i))
    if least:
        start[order], lane[order] = np.array(least).T
    return Packing(lane, start, start + lengths)


class Segments(NamedTuple):
    """Where jobs end, for each device by itself.

    Attributes:
        stop: The tick at which each segment ends, int32 (devices, room); only `count` are used.
        count: Number of segments, int32 (devices,).
        begin: The job that a lane begins with the segment, -1 for none, int32 (devices, room,
            lanes).
        slot: The job that a lane ends with it, -1 for none, int32 (devices, room, lanes).
    """

    stop: Array
    count: Array
    begin: Array
    slot: Array


def segments(packing: Packing, devices: int, lanes: int, room: int) -> Segments:
    """The segments of packed jobs, lanes being numbered through the devices.

    Args:
        packing: Jobs in `devices * lanes` lanes, ending at `room` different ticks at most; those
            without ticks are left out.
        devices: Number of devices.
        lanes: Lanes per device.
        room: Room for segments in the result.

    >>> ends = segments(pack(np.array([5, 2, 4, 3]), lanes=2), devices=1, lanes=2, room=4)
    >>> ends.stop.tolist(), ends.count.tolist()
    ([[4, 5, 7, 0]], [3])
    >>> ends.slot[0, :3].tolist()
    [[-1, 2], [0, -1], [1, 3]]
    >>> ends.begin[0, :3].tolist()
    [[0, 2], [-1, 3], [1, -1]]
    """
    stop = np.zeros((devices, room), np.int32)
    count = np.zeros(devices, np.int32)
    begin, slot = (np.full((devices, room, lanes), -1, np.int32) for _ in range(2))
    for device in range(devices):
        mine = np.flatnonzero((packing.lane // lanes == device) & (packing.end > packing.start))
        ends = np.unique(packing.end[mine])
        count[device] = len(ends)
        stop[device, : len(ends)] = ends
        lane = packing.lane[mine] % lanes
        slot[device, np.searchsorted(ends, packing.end[mine]), lane] = mine
        # a job begins with the tick, so with the segment, after its lane's last one ended
        begin[device, np.searchsorted(ends, packing.start[mine], side="right"), lane] = mine
    return Segments(stop, count, begin, slot)


def job_places(packing: Packing, lanes: int, places: int) -> NDArray[np.int64]:
    """Where the state of each job's client lies, shape (jobs,).

    A device's jobs take its places in their order.

    Args:
        packing: Jobs in lanes, numbered through the devices.
        lanes: Lanes per device.
        places: Places per device.

    >>> job_places(pack(np.array([5, 2, 4, 3]), lanes=2), lanes=1, places=3).tolist()
    [0, 1, 3, 4]
    """
    device = packing.lane // lanes
    place = np.zeros(len(device), np.int64)
    for d in np.unique(device):
        mine = np.flatnonzero(device == d)
        place[mine] = d * places + np.arange(len(mine))
    return place


def choose_lanes(
    rounds: Sequence[NDArray[np.int64]], devices: int, overhead: float, most: int
) -> int:
    """Lanes per device that make the given rounds fastest.

    A tick of w lanes side by side is taken to cost `overhead` + w, in units of one lane's
    arithmetic, so many lanes pay where a tick is mostly overhead (small models, accelerators) and
    cost where lanes would wait for the longest client.

    Args:
        rounds: Job lengths of some typical rounds.
        devices: Devices the lanes are spread over.
        overhead: Cost of a tick that does not grow with its lanes.
        most: Largest number of lanes per device to consider.

    >>> one_long = [np.array([100, 10, 10, 10])]
    >>> choose_lanes(one_long, devices=1, overhead=0.0, most=8)
    1
    >>> choose_lanes(one_long, devices=1, overhead=50.0, most=8)
    2
    """
    widest = max((len(lengths) for lengths in rounds), default=1)
    choices = [w for w in _lane_counts(most) if w == 1 or w * devices < 2 * widest]
    if len(choices) == 1:
        return 1
    totals = [(int(lengths.max(initial=0)), int(lengths.sum())) for lengths in rounds]

    def cost(w: int) -> float:
        return sum(pack(lengths, w * devices).ticks for lengths in rounds) * (overhead + w)

    def least_cost(w: int) -> float:
        ticks = (max(longest, -(-total // (w * devices))) for longest, total in totals)
        return sum(ticks) * (overhead + w)

    # packing takes long, and hardly ever much more ticks than the least possible
    best = math.inf, 0
    for least, w in sorted((least_cost(w), w) for w in choices):
        if least > best[0]:
            break
        best = min(best, (cost(w), w))
    return best[1]


def _lane_counts(most: int) -> list[int]:
    return sorted({w for e in range(12) for w in (2**e, 3 * 2**e // 2) if w <= most})
