"""The batch plan of a round: which lane works on which rows at which tick.

A tick reads at most `width` rows. A wider mini-batch takes several ticks, whose gradients are
added. If a mini-batch solver stops at a gamma, each epoch begins with a check: ticks that read all
of the client's rows and take no step. An optimizer that searches along a line reads the client's
rows itself: its tick is one step, and the plan holds only the client's first row.

If steps sample rows, mini-batches are Poisson samples: each row is drawn on its own in each step. A
mini-batch then has any number of rows, so it takes as many ticks as it needs, and at least one. No
row that was drawn is left out, and the size of a mini-batch has no limit to account for.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.engine.planning.jobs import (
    Array,
    Jobs,
    Segments,
    Slots,
    in_slots,
    job_places,
    pack,
    segments,
)
from fedprox.federation import offsets_of
from fedprox.precision import real_type
from fedprox.solver import Solver
from fedprox.streams import Purpose, Streams, generator

ROWS_TOGETHER = 2**15
"""Rows that are planned together: few enough to stay in a core's cache."""


WIDEST_TICK = 128
"""Most rows of a tick: enough for efficient matrix multiplications, and few enough that clients of
different sizes need little padding."""


WIDEST_SAMPLE = 512
"""Most rows of a tick of a Poisson mini-batch, whose usual size is known."""

RARE = 1e-9
"""Chance of more rows in a mini-batch that is left out of an estimate."""

EXAMPLE_BYTES = 2**28
"""Most bytes of the gradients of a tick's examples, if each has one of its own."""


def tick_width(solver: Solver, largest: int) -> int:
    """Rows that a tick reads, if the largest client has `largest` rows."""
    return 1 if solver.searches_line else min(solver.batch_of(largest), WIDEST_TICK)


def needs_checks(solver: Solver) -> bool:
    """Whether the stop rule needs separate ticks."""
    return solver.gamma is not None and solver.batch_size != "all"


class Shape(NamedTuple):
    """The numbers that all plans of a method share.

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
    check: Array | None = None
    noise: Array | None = None


class BatchPlan(NamedTuple):
    """The plan of R rounds.

    Attributes:
        ticks: The work of each lane at each tick.
        ends: When jobs begin and end, arrays with leading axes R and D.
        jobs: The jobs by slot.
        place: Place of the state of each job's client, int32 (R, slots): place p of device d is
            d * places + p.
        rate: Factor of the learning rate, float32 (R,).
        participation: Share of the weight of all clients that takes part, float32 (R,).
        noise_key: Random key of a round for its parts, uint32 (R, 2); None if no part needs one.
    """

    ticks: Ticks
    ends: Segments
    jobs: Slots
    place: Array
    rate: Array
    participation: Array
    noise_key: Array | None = None


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
    segments_room, layout = min(room.slots, room.ticks), (r, d, room.ticks, lanes)
    filled: dict[str, NDArray[Any]] = {
        "rows": np.full((*layout, width), -1, np.int32),
        "size": np.ones(layout, np.int32),
        "last": np.zeros(layout, bool),
    }
    if needs_checks(solver):
        filled["check"] = np.zeros(layout, bool)
    noise = np.zeros((*layout, 2), np.uint32) if noisy else np.zeros((0, 2), np.uint32)
    place = np.zeros((r, room.slots), np.int32)
    rate, participation = np.ones(r, real_type()), np.zeros(r, real_type())
    noise_key, ends = np.zeros((r, 2), np.uint32), []
    streams, keys = Streams(seed, Purpose.BATCHES), Streams(seed, Purpose.AUGMENTATION)
    for index, (t, jobs) in enumerate(rounds):
        packing = pack(job_ticks(solver, jobs, width), d * lanes, jobs.owner, processes)
        ends.append(segments(packing, d, lanes, segments_room))
        place[index, : len(jobs.client)] = job_places(packing, lanes, room.places)
        rate[index] = solver.factor(t)
        participation[index] = jobs.participation.sum()
        noise_key[index] = round_key(seed, t)
        # in a flat array of all ticks, consecutive ticks of a lane are `lanes` apart
        device, lane = np.divmod(packing.lane, lanes)
        begin = ((index * d + device) * room.ticks + packing.start) * lanes + lane
        length = packing.end - packing.start
        for part in _in_parts(np.flatnonzero(jobs.owner == process_index), length * width):
            number, planned = _ticks_of(
                solver, jobs.take(part), length[part], width, streams, t, seed
            )
            at = np.repeat(begin[part], length[part]) + lanes * number
            for name, array in filled.items():
                array.reshape(-1, *array.shape[4:])[at] = getattr(planned, name)
            each = (jobs.started(t), jobs.client, begin, length) if noisy else ()
            for started, client, first, count in zip(
                *(a[part].tolist() for a in each), strict=True
            ):
                key = keys.at(started, client).integers(2**32, size=(count, 2), dtype=np.uint32)
                noise.reshape(-1, 2)[first : first + count * lanes : lanes] = key
    none = segments(pack(np.zeros(0, np.int64), 1), d, lanes, segments_room)
    ends += [none] * (r - len(rounds))
    return BatchPlan(
        Ticks(**filled, noise=noise if noisy else None),
        jax.tree.map(lambda *each: np.stack(each), *ends),
        in_slots([jobs for _, jobs in rounds], r, room.slots, columns),
        place,
        rate,
        participation,
        noise_key if keyed else None,
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


def _ticks_of(
    solver: Solver,
    jobs: Jobs,
    length: NDArray[np.int64],
    width: int,
    streams: Streams,
    round_: int,
    seed: int,
) -> tuple[NDArray[np.int64], Ticks]:
    """The first `length` (jobs,) ticks of each job: their numbers in it, and their rest."""
    job = np.repeat(np.arange(len(length)), length)
    number = np.arange(len(job)) - offsets_of(length)[job]
    rows, offset = jobs.size[job], jobs.device_row.astype(np.int32)
    if solver.searches_line:
        steps = np.ones(len(job), bool)
        return number, Ticks(offset[job, None], rows, last=steps, check=~steps)
    if "ticks" in jobs.columns:
        poisson = PoissonTicks(solver, width, seed)
        drawn = [poisson.of(each, round_) for each in range_of(jobs)]
        flat = [np.concatenate(columns) for columns in zip(*drawn, strict=True)]
        mean = _full_batches(solver, jobs.size)[job]
        return number, Ticks(flat[0], mean, last=flat[1], check=np.zeros(len(job), bool))
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
    return number, Ticks(tick_rows, size, last=part * width + count == size, check=check)


def _in_parts(slots: NDArray[np.int64], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Split slots into parts that fit in the caches, given the rows that each job reads (jobs,)."""
    part = np.cumsum(rows[slots]) // ROWS_TOGETHER
    return np.split(slots, np.flatnonzero(np.diff(part)) + 1) if len(slots) else []


def poisson_width(solver: Solver, largest: int, parameter_bytes: int) -> int:
    """Rows of a tick: most mini-batches take the same number of ticks.

    >>> solver = Solver(0.1, 64, epochs=1)
    >>> poisson_width(solver, 600, 31400), poisson_width(solver, 70, 31400)
    (80, 70)
    """
    mean = solver.batch_of(largest)
    usual = min(largest, mean + math.ceil(2 * math.sqrt(mean)))
    most = max(1, min(WIDEST_SAMPLE, EXAMPLE_BYTES // parameter_bytes))
    return -(-usual // -(-usual // most))


def poisson_places(
    stream: np.random.Generator, size: int, batch: int, steps: int
) -> NDArray[np.int64]:
    """Which rows are drawn in which steps: `step * size + row` of each, in ascending order.

    Each row is drawn with probability `batch / size`. The gaps between draws are geometric. The
    draws of the first steps do not depend on how many follow.

    >>> poisson_places(np.random.default_rng(0), 3, 3, 2).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    end, rate = size * steps, batch / size
    last, parts = -1, [np.zeros(0, np.int64)]
    while last < end:
        expected = (end - last) * rate
        gaps = stream.geometric(rate, int(expected + 4 * math.sqrt(expected)) + 1)
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    places = np.concatenate(parts)
    return places[: np.searchsorted(places, end)]


class PoissonTicks:
    """The ticks of the Poisson mini-batches of clients.

    Args:
        solver: The local solver.
        width: Rows of a tick.
        seed: Seed of the run.
    """

    def __init__(self, solver: Solver, width: int, seed: int) -> None:
        self.solver, self.width, self.streams = solver, width, Streams(seed, Purpose.ROWS)

    def count(self, jobs: Jobs, t: int) -> NDArray[np.int64]:
        """Ticks of each job of round t, shape (jobs,)."""
        each = [self._drawn(job, t)[2].sum() for job in range_of(jobs)]
        return np.array(each, np.int64)

    def of(self, job: Jobs, t: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """The ticks of a job of round t, given with scalars for arrays."""
        places, drawn, ticks = self._drawn(job, t)
        step, row = np.divmod(places, int(job.size))
        ends = np.cumsum(ticks)
        last = np.zeros(int(ticks.sum()), bool)
        last[ends - 1] = True
        first = int(job.device_row)
        rows = np.full((len(last), self.width), ~first, np.int32)
        number = np.arange(len(places)) - np.repeat(np.cumsum(drawn) - drawn, drawn)
        rows.reshape(-1)[(ends - ticks)[step] * self.width + number] = first + row
        return rows, last

    def usual(self, jobs: Jobs) -> NDArray[np.int64]:
        """Ticks that jobs seldom exceed, by four standard deviations, without drawing rows."""
        from scipy.special import bdtrc

        size, steps = jobs.size, jobs.steps
        rate = np.array([self.solver.batch_of(n) for n in size.tolist()]) / np.maximum(size, 1)
        most = int(size.max(initial=0)) // self.width
        mean, square = np.ones(len(size)), np.zeros(len(size))
        for more in range(1, most + 1):  # ticks beyond the first
            chance = bdtrc(np.minimum(more * self.width, size), size, rate)
            if chance.max() < RARE:
                break
            mean, square = mean + chance, square + (2 * more - 1) * chance
        variance = np.maximum(0, square - (mean - 1) ** 2)  # less than 0 by rounding
        return np.ceil(steps * mean + 4 * np.sqrt(steps * variance)).astype(np.int64)

    def _drawn(self, job: Jobs, t: int) -> tuple[NDArray[np.int64], ...]:
        """Which rows are drawn in which steps, how many in each, and the ticks of each step."""
        size, steps = int(job.size), int(job.steps)
        stream = self.streams.at(int(job.started(t)), int(job.client))
        places = poisson_places(stream, size, self.solver.batch_of(size), steps)
        drawn = np.bincount(places // size, minlength=steps)
        return places, drawn, np.maximum(1, -(-drawn // self.width))


def range_of(jobs: Jobs) -> list[Jobs]:
    """Each job, with scalars for arrays."""
    return [jobs.take(i) for i in range(len(jobs.client))]
