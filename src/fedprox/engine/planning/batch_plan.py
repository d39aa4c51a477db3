"""The batch plan of a round: which lane works on which rows at which tick.

A tick reads at most `width` rows. A wider mini-batch takes several ticks, whose gradients are
added. If a mini-batch solver stops at a gamma, each epoch begins with a check: ticks that read all
of the client's rows and take no step. An optimizer that searches along a line reads the client's
rows itself: its tick is one step, and the plan holds only the client's first row. If steps sample
rows, mini-batches are Poisson samples, see `fedprox.engine.planning.poisson`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.engine.planning.jobs import Jobs, Slots, in_slots
from fedprox.engine.planning.packing import Array, Segments, job_places, pack, segments
from fedprox.engine.planning.poisson import PoissonTicks, range_of
from fedprox.federation import offsets_of
from fedprox.precision import real_type
from fedprox.solver import Solver
from fedprox.streams import Purpose, Streams, generator

ROWS_TOGETHER = 2**15
"""Rows that are planned together: few enough to stay in a core's cache."""


WIDEST_TICK = 128
"""Most rows of a tick: enough for efficient matrix multiplications, and few enough that clients of
different sizes need little padding."""


def tick_width(solver: Solver, largest: int) -> int:
    """Rows that a tick reads, if the largest client has `largest` rows."""
    return 1 if solver.searches_line else min(solver.batch_of(largest), WIDEST_TICK)


def needs_checks(solver: Solver) -> bool:
    """Whether the stop rule needs separate ticks."""
    return solver.gamma is not None and solver.batch_size != "all"


class Shape(NamedTuple):
    """What all plans of a method have in common.

    Attributes:
        rounds: Most rounds in one call.
        devices: Number of devices.
        lanes: Lanes per device.
        width: Rows of a tick.
        processes: Processes that share the devices.
    """

    rounds: int
    devices: int
    lanes: int
    width: int
    processes: int = 1


class Capacity(NamedTuple):
    """How much a call's arrays hold, or how much its rounds need.

    One program runs all calls whose rounds need no more than it holds.

    Attributes:
        ticks: Ticks of a round.
        slots: Jobs of a round.
        places: Jobs of a round on one device, if the method has client state or the sizes of
            updates are compared; else 0.
        cohort_ticks: Ticks to read a cohort; 0 if gamma is not measured.
        exchange_slots: Clients of the first cohort; 0 for a method without a first exchange.
        exchange_ticks: Ticks to read gradients before the work; 0 if the method does not.
        rows: Training rows gathered for a call; 0 if all training rows are on the devices.
    """

    ticks: int
    slots: int
    places: int = 0
    cohort_ticks: int = 0
    exchange_slots: int = 0
    exchange_ticks: int = 0
    rows: int = 0


def plan_bytes(shape: Shape, room: Capacity) -> int:
    """Bytes of a plan, without its small arrays."""
    return shape.rounds * shape.devices * room.ticks * shape.lanes * (4 * shape.width + 14)


class Ticks(NamedTuple):
    """The ticks of R rounds on D devices with L lanes each.

    Attributes:
        rows: Flat row numbers, int32 (R, D, ticks, L, width). A tick with fewer rows is padded with
            negative numbers ~i, where i is a row of the same client.
        size: Rows of the tick's mini-batch, int32 (R, D, ticks, L).
        last: Whether the tick completes its mini-batch, bool (R, D, ticks, L).
        check: Whether the mini-batch is a check of the stop rule, bool (R, D, ticks, L); None if
            the solver needs no checks.
        noise: Random key of the tick, for augmentation and `Model.train`, uint32 (R, D, ticks, L,
            2); None if nothing is random.
    """

    rows: Array
    size: Array
    last: Array
    check: Array | None
    noise: Array | None


class BatchPlan(NamedTuple):
    """The plan of R rounds.

    Attributes:
        ticks: What each lane does at each tick.
        ends: When jobs begin and end, arrays with leading axes R and D.
        jobs: The jobs by slot.
        place: Place of the state of each job's client, int32 (R, slots): place p of device d is
            d * places + p.
        rate: Factor of the learning rate, float32 (R,).
        participation: Share of the weight of all clients that takes part, float32 (R,).
        noise_key: Random key of a round for its parts, uint32 (R, 2); None if no part needs one.
        due: The part of the time of all jobs after which each job's client stops, float32 in (0, 1]
            (R, slots); None if clients take all planned steps.
    """

    ticks: Ticks
    ends: Segments
    jobs: Slots
    place: Array
    rate: Array
    participation: Array
    noise_key: Array | None = None
    due: Array | None = None


def round_key(seed: int, t: int) -> NDArray[np.uint32]:
    """Random key of round t beside those of mini-batches, two words."""
    return generator(seed, Purpose.PARTS, t).integers(2**32, size=2, dtype=np.uint32)


def plan_rounds(
    shape: Shape,
    room: Capacity,
    solver: Solver,
    seed: int,
    rounds: Sequence[tuple[int, Jobs]],
    *,
    noisy: bool = False,
    keyed: bool = False,
    columns: Mapping[str, NDArray[Any]] = {},
    process_index: int = 0,
) -> BatchPlan:
    """Plan the mini-batches of some rounds.

    Which rows a client reads in which step depends only on (seed, round, client).
    """
    r, d, lanes, width, processes = shape
    ticks, segments_room = room.ticks, min(room.slots, room.ticks)
    layout = (r, d, ticks, lanes)
    rows = np.full((*layout, width), -1, np.int32)
    size, last = np.ones(layout, np.int32), np.zeros(layout, bool)
    check = np.zeros(layout, bool) if needs_checks(solver) else None
    noise = np.zeros((*layout, 2), np.uint32) if noisy else None
    real = real_type()
    place = np.zeros((r, room.slots), np.int32)
    rate, participation = np.ones(r, real), np.zeros(r, real)
    noise_key = np.zeros((r, 2), np.uint32) if keyed else None
    ends = []
    streams, keys = Streams(seed, Purpose.BATCHES), Streams(seed, Purpose.AUGMENTATION)
    for index, (t, jobs) in enumerate(rounds):
        packing = pack(job_ticks(solver, jobs, width), d * lanes, jobs.owner, processes)
        ends.append(segments(packing, d, lanes, segments_room))
        place[index, : len(jobs.client)] = job_places(packing, lanes, room.places)
        rate[index] = solver.factor(t)
        participation[index] = jobs.participation.sum()
        if noise_key is not None:
            noise_key[index] = round_key(seed, t)
        # in a flat array of all ticks, consecutive ticks of a lane are `lanes` apart
        device, lane = np.divmod(packing.lane, lanes)
        begin = ((index * d + device) * ticks + packing.start) * lanes + lane
        length = packing.end - packing.start
        for part in _in_parts(np.flatnonzero(jobs.owner == process_index), length * width):
            planned = _ticks_of(solver, jobs.take(part), length[part], width, streams, t, seed)
            at = np.repeat(begin[part], length[part]) + lanes * planned.number
            rows.reshape(-1, width)[at] = planned.rows
            size.reshape(-1)[at], last.reshape(-1)[at] = planned.size, planned.last
            if check is not None:
                check.reshape(-1)[at] = planned.check
            if noise is None:
                continue
            each = (jobs.started(t), jobs.client, begin, length)
            for started, client, first, count in zip(
                *(a[part].tolist() for a in each), strict=True
            ):
                key = keys.at(started, client).integers(2**32, size=(count, 2), dtype=np.uint32)
                noise.reshape(-1, 2)[first : first + count * lanes : lanes] = key
    none = segments(pack(np.zeros(0, np.int64), 1), d, lanes, segments_room)
    ends += [none] * (r - len(rounds))
    return BatchPlan(
        Ticks(rows, size, last, check, noise),
        jax.tree.map(lambda *each: np.stack(each), *ends),
        in_slots([jobs for _, jobs in rounds], r, room.slots, columns),
        place,
        rate,
        participation,
        noise_key,
    )


class Epochs(NamedTuple):
    """How the epochs of jobs are divided into ticks, arrays of shape (jobs,).

    An epoch is a check, if the stop rule needs one, followed by mini-batches.

    Attributes:
        begun: Number of epochs, including a partial last one.
        checks: Ticks of an epoch's check, which reads all rows.
        batch: Rows of a mini-batch; the last one of an epoch may be smaller.
        of_batch: Ticks of a mini-batch of this size.
        of_epoch: Ticks of a whole epoch.
    """

    begun: NDArray[np.int64]
    checks: NDArray[np.int64]
    batch: NDArray[np.int64]
    of_batch: NDArray[np.int64]
    of_epoch: NDArray[np.int64]


def job_epochs(solver: Solver, jobs: Jobs, width: int) -> Epochs:
    """Divide the epochs of jobs into ticks of at most `width` rows."""
    size = jobs.size
    batch = _full_batches(solver, size)
    checks = -(-size // width) if needs_checks(solver) else 0 * size
    of_batch = -(-batch // width)
    return Epochs(
        begun=-(-jobs.steps // solver.steps_per_epoch(size)),
        checks=checks,
        batch=batch,
        of_batch=of_batch,
        of_epoch=checks + size // batch * of_batch + -(-(size % batch) // width),
    )


def _full_batches(solver: Solver, size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of a full mini-batch of clients with so many rows."""
    return size if solver.batch_size == "all" else np.minimum(solver.batch_size, size)


def job_ticks(solver: Solver, jobs: Jobs, width: int) -> NDArray[np.int64]:
    """Ticks of each job, checks included, shape (jobs,)."""
    if solver.searches_line:
        return jobs.steps
    if "ticks" in jobs.columns:
        return jobs.columns["ticks"]
    epochs = job_epochs(solver, jobs, width)
    per_epoch = solver.steps_per_epoch(jobs.size)
    whole, partial = jobs.steps // per_epoch, jobs.steps % per_epoch
    return whole * epochs.of_epoch + (partial > 0) * epochs.checks + partial * epochs.of_batch


class _Ticks(NamedTuple):
    """The ticks of some jobs, one job after another.

    Attributes:
        number: Index of the tick in its job, shape (ticks,).
        rows: As in `BatchPlan`, shape (ticks, width).
        size: As in `BatchPlan`, shape (ticks,).
        last: As in `BatchPlan`, shape (ticks,).
        check: As in `BatchPlan`, shape (ticks,).
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
    seed: int,
) -> _Ticks:
    """The first `length` (jobs,) ticks of each job."""
    job = np.repeat(np.arange(len(length)), length)
    number = np.arange(len(job)) - offsets_of(length)[job]
    rows, offset = jobs.size[job], jobs.device_row.astype(np.int32)
    if solver.searches_line:
        steps = np.ones(len(job), bool)
        return _Ticks(number, offset[job, None], rows, last=steps, check=~steps)
    if "ticks" in jobs.columns:
        poisson = PoissonTicks(solver, width, seed)
        drawn = [poisson.of(each, round_) for each in range_of(jobs)]
        flat = [np.concatenate(columns) for columns in zip(*drawn, strict=True)]
        mean = _full_batches(solver, jobs.size)[job]
        return _Ticks(number, flat[0], mean, last=flat[1], check=np.zeros(len(job), bool))
    epochs = job_epochs(solver, jobs, width)
    clients, counts, sizes = (a.tolist() for a in (jobs.client, epochs.begun, jobs.size))
    started = jobs.started(round_).tolist()
    orders = streams.orders(started, clients, counts=counts, sizes=sizes)
    orders += np.repeat(offset, epochs.begun * jobs.size)
    epoch, tick = np.divmod(number, epochs.of_epoch[job])
    checks = epochs.checks[job]
    check = tick < checks
    # a check has the ticks of a mini-batch of all rows
    batch = np.where(check, rows, epochs.batch[job])
    of_batch = np.where(check, checks, epochs.of_batch[job])
    which, part = np.divmod(np.where(check, tick, tick - checks), of_batch)
    size = np.minimum(batch, rows - which * batch)
    count = np.minimum(size - part * width, width)
    before = offsets_of(epochs.begun * jobs.size)[job]
    first = before + epoch * rows + which * batch + part * width
    padded = np.append(orders, np.zeros(width, np.int32))
    # windows[i] is a view of orders[i : i + width]
    windows: NDArray[np.int32] = np.ndarray((len(orders), width), np.int32, padded, strides=(4, 4))
    tick_rows = windows[first]
    short = np.flatnonzero(count < width)
    beyond = np.arange(width) >= count[short, None]
    tick_rows[short] = np.where(beyond, ~offset[job[short], None], tick_rows[short])
    return _Ticks(number, tick_rows, size, last=part * width + count == size, check=check)


def _in_parts(slots: NDArray[np.int64], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split slots into parts that fit in the caches, given the rows that each job reads (jobs,)."""
    part = np.cumsum(rows[slots]) // ROWS_TOGETHER
    return np.split(slots, np.flatnonzero(np.diff(part)) + 1) if len(slots) else []
