"""The schedule of a round: which lane works on which rows at which tick.

A cohort is a list of jobs (one client, a number of ticks each). It is packed into lanes, longest
job first onto the least loaded lane (Graham 1969, LPT); each lane runs its jobs back to back, and
all lanes tick together. Where any lane ends a job, a segment ends: between segment ends the engine
only ticks, so nothing but the steps themselves is paid for in the inner loop.

A tick reads at most `width` rows. A mini-batch wider than that takes several ticks, whose
gradients add up. Where a mini-batch solver stops at a gamma, ticks that read all of a client's rows
and take no step, a check, come before each epoch. An optimizer that searches along a line reads a
client's rows itself: its tick is one step, and names the client's rows by the first.
"""

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.solver import Solver
from fedprox.streams import Purpose, Shuffler, generator

Array = Any
"""A NumPy array on the host, a JAX array inside a program."""

WIDEST_TICK = 128
"""Rows of a tick at most: wide enough for matrix products, narrow enough for ragged clients."""


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
    lengths: NDArray[np.int64], lanes: int, home: NDArray[np.int64] | None = None, homes: int = 1
) -> Packing:
    """Pack jobs into lanes, the longest first onto the least loaded lane.

    Args:
        lengths: Ticks of each job, shape (jobs,).
        lanes: Number of lanes, at least 1.
        home: Which part of the lanes each job must go to, shape (jobs,); any where left out.
        homes: Number of these parts, of equal size.

    >>> packing = pack(np.array([5, 2, 4, 3]), lanes=2)
    >>> packing.lane.tolist(), packing.start.tolist(), packing.ticks
    ([0, 0, 1, 1], [0, 5, 0, 4], 7)
    """
    lane, start = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    if home is not None and homes > 1:
        each = lanes // homes
        for p in range(homes):
            mine = np.flatnonzero(home == p)
            packing = pack(lengths[mine], each)
            lane[mine], start[mine] = p * each + packing.lane, packing.start
        return Packing(lane, start, start + lengths)
    load = [(0, i) for i in range(lanes)]
    for job in np.argsort(-lengths, kind="stable"):
        filled, i = heapq.heappop(load)
        lane[job], start[job] = i, filled
        heapq.heappush(load, (filled + int(lengths[job]), i))
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

    def cost(w: int) -> float:
        return sum(pack(lengths, w * devices).ticks for lengths in rounds) * (overhead + w)

    return min(choices, key=cost)


def _lane_counts(most: int) -> list[int]:
    return sorted({w for e in range(12) for w in (2**e, 3 * 2**e // 2) if w <= most})


class Batches(NamedTuple):
    """How one epoch over `size` rows becomes ticks.

    Attributes:
        position: Positions in the epoch's order, -1 for none, shape (ticks, width).
        size: Examples of the mini-batch that a tick belongs to, shape (ticks,).
        last: Whether the tick completes its mini-batch, shape (ticks,).
        check: Whether that is no mini-batch but a check of the stop rule, shape (ticks,).
    """

    position: NDArray[np.int32]
    size: NDArray[np.int32]
    last: NDArray[np.bool_]
    check: NDArray[np.bool_]


def no_check(ticks: int) -> NDArray[np.bool_]:
    """Ticks that are no checks."""
    return np.zeros(ticks, bool)


@lru_cache(maxsize=4096)
def batches(size: int, batch: int, width: int) -> Batches:
    """Cut an epoch over `size` rows into mini-batches of `batch`, and these into ticks.

    >>> batches(size=5, batch=4, width=2).position.tolist()
    [[0, 1], [2, 3], [4, -1]]
    """
    index, sizes, last = [], [], []
    for begin in range(0, size, batch):
        end = min(begin + batch, size)
        for tick in range(begin, end, width):
            row = np.arange(tick, tick + width, dtype=np.int32)
            index.append(np.where(row < end, row, -1))
            sizes.append(end - begin)
            last.append(tick + width >= end)
    position = np.stack(index)
    return Batches(position, np.array(sizes, np.int32), np.array(last), no_check(len(position)))


def tick_width(solver: Solver, largest: int) -> int:
    """Rows a tick reads, where the largest client has `largest` rows."""
    return 1 if solver.searches_line else min(solver.batch_of(largest), WIDEST_TICK)


def needs_checks(solver: Solver) -> bool:
    """Whether the stop rule takes ticks of its own."""
    return solver.gamma is not None and solver.batch_size != "all"


def ticks_for(solver: Solver, size: int, steps: int, width: int) -> int:
    """Ticks that `steps` mini-batch steps of a client with `size` rows take, checks included."""
    if solver.searches_line:
        return steps
    batch, per_epoch = solver.batch_of(size), solver.steps_per_epoch(size)
    checks = math.ceil(steps / per_epoch) * math.ceil(size / width) if needs_checks(solver) else 0
    if batch <= width:
        return steps + checks
    epochs, left = divmod(steps, per_epoch)
    per_batch = math.ceil(batch / width)
    return epochs * len(batches(size, batch, width).last) + left * per_batch + checks


class Jobs(NamedTuple):
    """The work of a round: one job for each client that trains, arrays of shape (jobs,).

    Attributes:
        client: Index of the client: names the random stream its mini-batches come from.
        offset: Its first row in the flat data.
        size: Its number of rows.
        steps: Mini-batch steps to take.
        weight: Weight of its message in the server's mean.
        gamma: How inexactly it may be solved; 0 where the solver has no stop rule.
        part: Its part of all clients' weight, such as n_k / n.
        share: n_k / the mean n of all clients.
        home: The process that does it.
    """

    client: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    steps: NDArray[np.int64]
    weight: NDArray[np.float64]
    gamma: NDArray[np.float64]
    part: NDArray[np.float64]
    share: NDArray[np.float64]
    home: NDArray[np.int64]


def no_jobs() -> Jobs:
    """Nobody trains."""
    none, no_number = np.zeros(0, np.int64), np.zeros(0)
    return Jobs(none, none, none, none, no_number, no_number, no_number, no_number, none)


class Shape(NamedTuple):
    """The fixed shape of a program's plans, so that nothing is compiled twice.

    Attributes:
        rounds: Most rounds in one call.
        devices: Devices the lanes are spread over.
        lanes: Lanes per device.
        ticks: Most ticks of a round.
        slots: Most jobs of a round.
        width: Rows of a tick.
        places: Most jobs of a round on one device, where clients keep a state or their updates are
            compared; else 0.
        homes: Processes that share the devices.
    """

    rounds: int
    devices: int
    lanes: int
    ticks: int
    slots: int
    width: int
    places: int = 0
    homes: int = 1

    @property
    def plan_bytes(self) -> int:
        """Memory of a plan, but for its few small arrays."""
        return self.rounds * self.devices * self.ticks * self.lanes * (4 * self.width + 14)


class Slots(NamedTuple):
    """What is known of the jobs of some rounds, arrays of shape (R, slots).

    Attributes:
        weight: Each job's weight in the server's mean, float32.
        gamma: Its gamma, float32.
        steps: Its mini-batch steps, int32.
        share: n_k / the mean n, float32.
        place: Where its client's state lies, int32: place p of device d is d * places + p.
    """

    weight: Array
    gamma: Array
    steps: Array
    share: Array
    place: Array


class Plan(NamedTuple):
    """What some rounds will do, as arrays; R rounds, D devices, L lanes each.

    Attributes:
        rows: Flat row numbers, int32 (R, D, ticks, L, width). Where a tick has fewer, a negative
            number ~i stands for padding with row i, one of the same client's.
        size: Examples of the tick's mini-batch, int32 (R, D, ticks, L).
        last: Whether the tick completes its mini-batch, bool (R, D, ticks, L).
        check: Whether its mini-batch is a check of the stop rule, bool (R, D, ticks, L); None for
            a solver that needs none.
        noise: Random key of the tick's augmentation, uint32 (R, D, ticks, L, 2); None for none.
        ends: Where jobs begin and end, each array with a leading axis R.
        jobs: What is known of each job.
        rate: What the learning rate is multiplied by, float32 (R,).
        participation: The share of all clients' weight that takes part, float32 (R,).
    """

    rows: Array
    size: Array
    last: Array
    check: Array | None
    noise: Array | None
    ends: Segments
    jobs: Slots
    rate: Array
    participation: Array


def plan_rounds(
    shape: Shape,
    solver: Solver,
    seed: int,
    rounds: Sequence[tuple[int, Jobs]],
    *,
    augmented: bool = False,
) -> Plan:
    """The plan of some rounds.

    A function of its arguments alone: which rows a client reads at which of its steps depends on
    (seed, round, client) and on nothing else.

    Args:
        shape: Room in the plan; fewer rounds than `shape.rounds` leave the rest empty.
        solver: Batch size and whether there is a stop rule; steps and gammas are in the jobs.
        seed: Seed of the run.
        rounds: (t, jobs) of each round.
        augmented: Whether mini-batches need random keys.
    """
    r, d, lanes, ticks, slots, width, places, homes = shape
    room = min(slots, ticks)
    rows = np.full((r, d, ticks, lanes, width), -1, np.int32)
    each = Slots(
        *(np.zeros((r, slots), t) for t in (np.float32, np.float32, np.int32, np.float32, np.int32))
    )
    rate, participation = np.ones(r, np.float32), np.zeros(r, np.float32)
    noise = np.zeros((r, d, ticks, lanes, 2), np.uint32) if augmented else None
    ends = []
    shuffler = Shuffler(seed, Purpose.BATCHES)
    several = []  # jobs with mini-batches that are more or less than the rows of one tick
    for index, (t, jobs) in enumerate(rounds):
        packing = pack(job_ticks(solver, jobs, width), d * lanes, jobs.home, homes)
        ends.append(segments(packing, d, lanes, room))
        known = Slots(
            jobs.weight, jobs.gamma, jobs.steps, jobs.share, job_places(packing, lanes, places)
        )
        for array, values in zip(each, known, strict=True):
            array[index, : len(values)] = values
        rate[index] = solver.learning_rate_decay**t
        participation[index] = jobs.part.sum()
        for slot, size in enumerate(jobs.size.tolist()):
            start, end = int(packing.start[slot]), int(packing.end[slot])
            device, lane = divmod(int(packing.lane[slot]), lanes)
            at = index, device, slice(start, end), lane
            epoch = job_epoch(solver, size, width)
            if solver.searches_line:
                rows[at] = jobs.offset[slot]
            else:
                rows[at] = _job_rows(epoch, shuffler, t, jobs, slot, end - start)
            if noise is not None:
                stream = generator(seed, Purpose.AUGMENTATION, t, int(jobs.client[slot]))
                noise[at] = stream.integers(2**32, size=(end - start, 2), dtype=np.uint32)
            if needs_checks(solver) or solver.searches_line or solver.batch_of(size) > width:
                several.append((at, epoch))
    ends += [segments(pack(np.zeros(0, np.int64), 1), d, lanes, room)] * (r - len(rounds))
    filled = np.count_nonzero(rows >= 0, axis=-1).astype(np.int32)
    size, last = np.maximum(filled, 1), filled > 0
    check = np.zeros_like(last) if needs_checks(solver) else None
    for at, epoch in several:
        size[at] = np.resize(epoch.size, size[at].shape)
        last[at] = np.resize(epoch.last, last[at].shape)
        if check is not None:
            check[at] = np.resize(epoch.check, last[at].shape)
    joined = Segments(*map(np.stack, zip(*ends, strict=True)))
    return Plan(rows, size, last, check, noise, joined, each, rate, participation)


def job_epoch(solver: Solver, size: int, width: int) -> Batches:
    """The ticks of one epoch of a client with `size` rows, with the check before it."""
    if solver.searches_line:
        return Batches(
            np.zeros((1, 1), np.int32), np.array([size], np.int32), np.ones(1, bool), no_check(1)
        )
    epoch = batches(size, solver.batch_of(size), width)
    if not needs_checks(solver):
        return epoch
    every = batches(size, size, width)
    check = every._replace(check=np.ones_like(every.check))
    return Batches(*(np.concatenate(pair) for pair in zip(check, epoch, strict=True)))


def job_ticks(solver: Solver, jobs: Jobs, width: int) -> NDArray[np.int64]:
    """Ticks of each job, shape (jobs,)."""
    pairs = zip(jobs.size.tolist(), jobs.steps.tolist(), strict=True)
    return np.array([ticks_for(solver, size, steps, width) for size, steps in pairs], np.int64)


def _job_rows(
    epoch: Batches, shuffler: Shuffler, round_: int, jobs: Jobs, slot: int, ticks: int
) -> NDArray[np.int32]:
    """The rows of one job's first `ticks` ticks, shape (ticks, width)."""
    size, client = int(jobs.size[slot]), int(jobs.client[slot])
    epochs = math.ceil(ticks / len(epoch.last))
    order = shuffler.orders(round_, client, count=epochs, size=size)
    first = np.int32(jobs.offset[slot])
    padded = np.full((epochs, size + 1), ~first, np.int32)
    np.add(order, first, out=padded[:, :size])
    # position -1 reads the padding
    return padded[:, epoch.position].reshape(-1, epoch.position.shape[1])[:ticks]
