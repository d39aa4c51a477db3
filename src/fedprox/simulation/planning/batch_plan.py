"""The batch plan of a round: which lane works on which rows at which tick.

A tick reads at most `width` rows. A mini-batch wider than that takes several ticks, whose
gradients add up. Where a mini-batch solver stops at a gamma, ticks that read all of a client's rows
and take no step, a check, come before each epoch. An optimizer that searches along a line reads a
client's rows itself: its tick is one step, and names the client's rows by the first.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.federation import offsets_of
from fedprox.simulation.planning.packing import Array, Segments, job_places, pack, segments
from fedprox.solver import Solver
from fedprox.streams import Purpose, Streams

ROWS_TOGETHER = 2**15
"""Rows that are planned in one go: few enough to stay in a core's cache."""


WIDEST_TICK = 128
"""Rows of a tick at most: wide enough for matrix products, narrow enough for ragged clients."""


def tick_width(solver: Solver, largest: int) -> int:
    """Rows a tick reads, where the largest client has `largest` rows."""
    return 1 if solver.searches_line else min(solver.batch_of(largest), WIDEST_TICK)


def needs_checks(solver: Solver) -> bool:
    """Whether the stop rule takes ticks of its own."""
    return solver.gamma is not None and solver.batch_size != "all"


class Jobs(NamedTuple):
    """The work of a round: one job for each client that trains, arrays of shape (jobs,).

    Attributes:
        client: Index of the client: names the random stream its mini-batches come from.
        first_row: Its first row among all training rows.
        size: Its number of rows.
        steps: Mini-batch steps to take.
        weight: Weight of its message in the server's mean.
        gamma: How inexactly it may be solved; 0 where the solver has no stop rule.
        participation: Its part of all clients' weight, such as n_k / n.
        relative_size: n_k / the mean n of all clients.
        owner: The process that does it.
        device_row: Its first row in the arrays that the round reads: `first_row` until
            `TrainingRows.of` says otherwise.
    """

    client: NDArray[np.int64]
    first_row: NDArray[np.int64]
    size: NDArray[np.int64]
    steps: NDArray[np.int64]
    weight: NDArray[np.float64]
    gamma: NDArray[np.float64]
    participation: NDArray[np.float64]
    relative_size: NDArray[np.float64]
    owner: NDArray[np.int64]
    device_row: NDArray[np.int64]


def no_jobs() -> Jobs:
    """Nobody trains."""
    whole, real = np.zeros(0, np.int64), np.zeros(0)
    return Jobs(whole, whole, whole, whole, real, real, real, real, whole, whole)


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
        processes: Processes that share the devices.
    """

    rounds: int
    devices: int
    lanes: int
    ticks: int
    slots: int
    width: int
    places: int = 0
    processes: int = 1

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
        relative_size: n_k / the mean n, float32.
        place: Where its client's state lies, int32: place p of device d is d * places + p.
    """

    weight: Array
    gamma: Array
    steps: Array
    relative_size: Array
    place: Array


class BatchPlan(NamedTuple):
    """What some rounds will do, as arrays; R rounds, D devices, L lanes each.

    Attributes:
        rows: Flat row numbers, int32 (R, D, ticks, L, width). Where a tick has fewer, a negative
            number ~i stands for padding with row i, one of the same client's.
        size: Examples of the tick's mini-batch, int32 (R, D, ticks, L).
        last: Whether the tick completes its mini-batch, bool (R, D, ticks, L).
        check: Whether its mini-batch is a check of the stop rule, bool (R, D, ticks, L); None for
            a solver that needs none.
        noise: Random key of the tick, for augmentation and dropout, uint32 (R, D, ticks, L, 2);
            None for neither.
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
    noisy: bool = False,
    process_index: int = 0,
) -> BatchPlan:
    """The plan of some rounds.

    A function of its arguments alone: which rows a client reads at which of its steps depends on
    (seed, round, client) and on nothing else.

    Args:
        shape: Room in the plan; fewer rounds than `shape.rounds` leave the rest empty.
        solver: Batch size and whether there is a stop rule; steps and gammas are in the jobs.
        seed: Seed of the run.
        rounds: (t, jobs) of each round.
        noisy: Whether mini-batches need random keys.
        process_index: The process whose clients' mini-batches are planned; others are left out.
    """
    r, d, lanes, ticks, slots, width, places, processes = shape
    room, layout = min(slots, ticks), (r, d, ticks, lanes)
    rows = np.full((*layout, width), -1, np.int32)
    size, last = np.ones(layout, np.int32), np.zeros(layout, bool)
    check = np.zeros(layout, bool) if needs_checks(solver) else None
    noise = np.zeros((*layout, 2), np.uint32) if noisy else None
    each = Slots(
        *(np.zeros((r, slots), t) for t in (np.float32, np.float32, np.int32, np.float32, np.int32))
    )
    rate, participation = np.ones(r, np.float32), np.zeros(r, np.float32)
    ends = []
    streams, keys = Streams(seed, Purpose.BATCHES), Streams(seed, Purpose.AUGMENTATION)
    for index, (t, jobs) in enumerate(rounds):
        packing = pack(job_ticks(solver, jobs, width), d * lanes, jobs.owner, processes)
        ends.append(segments(packing, d, lanes, room))
        known = Slots(
            jobs.weight,
            jobs.gamma,
            jobs.steps,
            jobs.relative_size,
            job_places(packing, lanes, places),
        )
        for array, values in zip(each, known, strict=True):
            array[index, : len(values)] = values
        rate[index] = solver.factor(t)
        participation[index] = jobs.participation.sum()
        # in an array of all ticks, those of a lane lie `lanes` apart
        device, lane = np.divmod(packing.lane, lanes)
        begin = ((index * d + device) * ticks + packing.start) * lanes + lane
        length = packing.end - packing.start
        for some in _in_parts(np.flatnonzero(jobs.owner == process_index), length * width):
            part = Jobs(*(array[some] for array in jobs))  # type: ignore[arg-type]
            found = _ticks_of(solver, part, length[some], width, streams, t)
            at = np.repeat(begin[some], length[some]) + lanes * found.number
            rows.reshape(-1, width)[at] = found.rows
            size.reshape(-1)[at], last.reshape(-1)[at] = found.size, found.last
            if check is not None:
                check.reshape(-1)[at] = found.check
            if noise is None:
                continue
            drawn = zip(*(a[some].tolist() for a in (jobs.client, begin, length)), strict=True)
            for client, first, count in drawn:
                key = keys.at(t, client).integers(2**32, size=(count, 2), dtype=np.uint32)
                noise.reshape(-1, 2)[first : first + count * lanes : lanes] = key
    ends += [segments(pack(np.zeros(0, np.int64), 1), d, lanes, room)] * (r - len(rounds))
    joined = Segments(*map(np.stack, zip(*ends, strict=True)))
    return BatchPlan(rows, size, last, check, noise, joined, each, rate, participation)


class Epochs(NamedTuple):
    """How the epochs of some jobs become ticks, arrays of shape (jobs,).

    An epoch is its checks, if there is a stop rule that needs any, and then its mini-batches.

    Attributes:
        begun: Epochs that are begun.
        checks: Ticks of an epoch's check: all rows, one after another.
        batch: Rows of a mini-batch, but for the epoch's last one.
        of_batch: Ticks of such a mini-batch.
        of_epoch: Ticks of a whole epoch.
    """

    begun: NDArray[np.int64]
    checks: NDArray[np.int64]
    batch: NDArray[np.int64]
    of_batch: NDArray[np.int64]
    of_epoch: NDArray[np.int64]


def job_epochs(solver: Solver, jobs: Jobs, width: int) -> Epochs:
    """How the epochs of jobs become ticks of at most `width` rows."""
    size = jobs.size
    batch = size if solver.batch_size == "all" else np.minimum(solver.batch_size, size)
    checks = -(-size // width) if needs_checks(solver) else 0 * size
    of_batch = -(-batch // width)
    return Epochs(
        begun=-(-jobs.steps // solver.steps_per_epoch(size)),
        checks=checks,
        batch=batch,
        of_batch=of_batch,
        of_epoch=checks + size // batch * of_batch + -(-(size % batch) // width),
    )


def job_ticks(solver: Solver, jobs: Jobs, width: int) -> NDArray[np.int64]:
    """Ticks of each job, checks included, shape (jobs,)."""
    if solver.searches_line:
        return jobs.steps
    epochs = job_epochs(solver, jobs, width)
    per_epoch = solver.steps_per_epoch(jobs.size)
    whole, left = jobs.steps // per_epoch, jobs.steps % per_epoch
    return whole * epochs.of_epoch + (left > 0) * epochs.checks + left * epochs.of_batch


class _Ticks(NamedTuple):
    """The ticks of some jobs, one job after another.

    Attributes:
        number: Of a job's ticks, which it is, shape (ticks,).
        rows: As in `BatchPlan`, shape (ticks, width).
        size: Likewise, shape (ticks,).
        last: Likewise.
        check: Likewise.
    """

    number: NDArray[np.int64]
    rows: NDArray[np.int32]
    size: NDArray[np.int64]
    last: NDArray[np.bool_]
    check: NDArray[np.bool_]


def _ticks_of(
    solver: Solver,
    jobs: Jobs,
    length: NDArray[np.int64],
    width: int,
    streams: Streams,
    round_: int,
) -> _Ticks:
    """The first `length` (jobs,) ticks of each job."""
    job = np.repeat(np.arange(len(length)), length)
    number = np.arange(len(job)) - offsets_of(length)[job]
    rows, offset = jobs.size[job], jobs.device_row.astype(np.int32)
    if solver.searches_line:
        steps = np.ones(len(job), bool)
        return _Ticks(number, offset[job, None], rows, last=steps, check=~steps)
    epochs = job_epochs(solver, jobs, width)
    clients, counts, sizes = (a.tolist() for a in (jobs.client, epochs.begun, jobs.size))
    orders = streams.orders(round_, clients, counts=counts, sizes=sizes)
    orders += np.repeat(offset, epochs.begun * jobs.size)
    epoch, tick = np.divmod(number, epochs.of_epoch[job])
    checks = epochs.checks[job]
    check = tick < checks
    # a check is like a mini-batch of all rows
    batch = np.where(check, rows, epochs.batch[job])
    of_batch = np.where(check, checks, epochs.of_batch[job])
    which, part = np.divmod(np.where(check, tick, tick - checks), of_batch)
    size = np.minimum(batch, rows - which * batch)
    count = np.minimum(size - part * width, width)
    before = offsets_of(epochs.begun * jobs.size)[job]
    first = before + epoch * rows + which * batch + part * width
    padded = np.append(orders, np.zeros(width, np.int32))
    # a view of the `width` numbers from each on
    windows: NDArray[np.int32] = np.ndarray((len(orders), width), np.int32, padded, strides=(4, 4))
    found = windows[first]
    short = np.flatnonzero(count < width)
    beyond = np.arange(width) >= count[short, None]
    found[short] = np.where(beyond, ~offset[job[short], None], found[short])
    return _Ticks(number, found, size, last=part * width + count == size, check=check)


def _in_parts(slots: NDArray[np.int64], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Some slots in parts whose rows stay in the caches, given how many each job reads (jobs,)."""
    part = np.cumsum(rows[slots]) // ROWS_TOGETHER
    return np.split(slots, np.flatnonzero(np.diff(part)) + 1) if len(slots) else []
