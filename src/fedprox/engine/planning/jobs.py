"""Jobs: the work of each client in a round, what compiled programs know of it, and its packing.

A job is the work of one client, a number of ticks. Jobs are packed into lanes, the longest job
first onto the least loaded lane (Graham 1969, LPT). Each lane runs its jobs one after another, and
all lanes tick together. A segment ends when any lane ends a job. Within a segment the program only
ticks, so the inner loop consists of nothing but steps.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.devices.processes import Ownership
from fedprox.federation import Rows
from fedprox.precision import real_type

Array = Any
"""A NumPy array on the host, a JAX array inside a program."""


class Jobs(NamedTuple):
    """The work of a round: one job for each client that trains, arrays of shape (jobs,).

    Attributes:
        client: Index of the client, which determines the random stream of its mini-batches.
        first_row: The client's first row among all training rows.
        size: Rows of the client.
        steps: Mini-batch steps to take.
        weight: Weight of the client's message in the server's mean.
        gamma: Inexactness at which the local solver may stop; 0 if it has no stop rule.
        participation: The client's share of the weight of all clients, such as n_k / n.
        relative_size: n_k divided by the mean n of all clients.
        owner: The process that owns the client.
        device_row: The client's first row in the arrays on the devices. It equals `first_row` until
            `TrainingRows.of` sets it.
        columns: Other numbers by name, of the parts of a run, see `Part.columns`; "ticks" of jobs
            that sample rows.
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
    columns: Mapping[str, NDArray[Any]] = {}

    def take(self, chosen: Any) -> "Jobs":
        """Some of these jobs."""
        return jax.tree.map(lambda array: array[chosen], self)

    def with_columns(self, **columns: NDArray[Any]) -> "Jobs":
        """The same jobs with other columns."""
        return self._replace(columns={**self.columns, **columns})

    def started(self, t: int) -> NDArray[np.int64]:
        """The rounds in which the clients of round t started."""
        return np.asarray(t - self.columns.get("age", np.zeros_like(self.client)))


@cache
def no_jobs() -> Jobs:
    """The jobs of a round in which no client trains."""
    real = {"weight", "gamma", "participation", "relative_size"}
    kinds = (np.float64 if name in real else np.int64 for name in Jobs._fields[:-1])
    return Jobs(*(np.zeros(0, kind) for kind in kinds))  # type: ignore[arg-type]


def jobs_of(train: Rows, ownership: Ownership, client: NDArray[np.int64], **columns: Any) -> Jobs:
    """The jobs of clients on all of their training rows, given the fields that do not follow."""
    first = train.offsets[client]
    return Jobs(
        client=client,
        first_row=first,
        size=train.offsets[client + 1] - first,
        owner=ownership.of(client),
        device_row=first,
        **columns,
    )


EMPTY = {"size": 1, "relative_size": 1}
"""The values of divisors in an empty slot; all other numbers are 0 there."""


class Slots(NamedTuple):
    """The jobs of R rounds as compiled programs read them, arrays of shape (R, slots).

    Attributes:
        size: As in `Jobs`, int32, like the others in 32 bits.
        steps: As in `Jobs`.
        weight: As in `Jobs`.
        gamma: As in `Jobs`.
        relative_size: As in `Jobs`.
        columns: As in `Jobs`, those that the parts of a run have.
    """

    size: Array
    steps: Array
    weight: Array
    gamma: Array
    relative_size: Array
    columns: Mapping[str, Array] = {}

    def numbers(self, slot: Any) -> dict[str, Any]:
        """The columns of the jobs in some slots."""
        return {name: column[slot] for name, column in self.columns.items()}


def in_slots(
    rounds: Sequence[Jobs], count: int, slots: int, columns: Mapping[str, NDArray[Any]]
) -> Slots:
    """The jobs of some rounds, with room for `count` rounds of `slots` jobs."""

    def column(name: str, like: NDArray[Any], of_jobs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        kind = np.int32 if np.issubdtype(like.dtype, np.integer) else real_type()
        array = np.full((count, slots), EMPTY.get(name, 0), kind)
        for row, values in zip(array, of_jobs, strict=False):
            row[: len(values)] = values
        return array

    none = no_jobs()
    return Slots(
        **{n: column(n, getattr(none, n), [getattr(each, n) for each in rounds]) for n in FIELDS},
        columns={
            name: column(name, like, [each.columns.get(name, like) for each in rounds])
            for name, like in columns.items()
        },
    )


FIELDS = Slots._fields[:-1]
"""The fields of `Slots` that all jobs have."""


class Packing(NamedTuple):
    """Jobs packed into lanes.

    Attributes:
        lane: Each job's lane, shape (jobs,).
        start: Each job's first tick, shape (jobs,).
        end: The tick after each job's last one, shape (jobs,).
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
    """Pack jobs into lanes of their owners, the longest first onto the least loaded lane.

    >>> packing = pack(np.array([5, 2, 4, 3]), lanes=2)
    >>> packing.lane.tolist(), packing.start.tolist(), packing.ticks
    ([0, 0, 1, 1], [0, 5, 0, 4], 7)
    """
    lane, start = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    if owner is not None and processes > 1:
        own_lanes = lanes // processes
        for p in range(processes):
            own = np.flatnonzero(owner == p)
            packing = pack(lengths[own], own_lanes)
            lane[own], start[own] = p * own_lanes + packing.lane, packing.start
        return Packing(lane, start, start + lengths)
    order = np.argsort(-lengths, kind="stable")
    loads, assigned = [(0, i) for i in range(lanes)], []
    for length in lengths[order].tolist():
        load, i = loads[0]  # the least loaded lane
        assigned.append(loads[0])
        heapq.heapreplace(loads, (load + length, i))
    if assigned:
        start[order], lane[order] = np.array(assigned).T
    return Packing(lane, start, start + lengths)


class Segments(NamedTuple):
    """The segments of each device: when jobs begin and end.

    Attributes:
        stop: The tick at which each segment ends, int32 (devices, room); the first `count` are
            used.
        count: Number of segments, int32 (devices,).
        begin: The job that begins in each lane with the segment, -1 for none, int32 (devices, room,
            lanes).
        end: The job that ends in each lane with the segment, -1 for none, int32 (devices, room,
            lanes).
    """

    stop: Array
    count: Array
    begin: Array
    end: Array


def segments(packing: Packing, devices: int, lanes: int, room: int) -> Segments:
    """The segments of packed jobs, which end at `room` different ticks at most.

    >>> ends = segments(pack(np.array([5, 2, 4, 3]), lanes=2), devices=1, lanes=2, room=4)
    >>> ends.stop.tolist(), ends.count.tolist()
    ([[4, 5, 7, 0]], [3])
    >>> ends.end[0, :3].tolist()
    [[-1, 2], [0, -1], [1, 3]]
    >>> ends.begin[0, :3].tolist()
    [[0, 2], [-1, 3], [1, -1]]
    """
    stop = np.zeros((devices, room), np.int32)
    count = np.zeros(devices, np.int32)
    begin, end = (np.full((devices, room, lanes), -1, np.int32) for _ in range(2))
    for device in range(devices):
        own = np.flatnonzero((packing.lane // lanes == device) & (packing.end > packing.start))
        ends = np.unique(packing.end[own])
        count[device] = len(ends)
        stop[device, : len(ends)] = ends
        lane = packing.lane[own] % lanes
        end[device, np.searchsorted(ends, packing.end[own]), lane] = own
        # a job begins with the segment after the one that ends its lane's previous job
        begin[device, np.searchsorted(ends, packing.start[own], side="right"), lane] = own
    return Segments(stop, count, begin, end)


def job_places(packing: Packing, lanes: int, places: int) -> NDArray[np.int64]:
    """The place of the state of each job's client, shape (jobs,).

    The jobs of a device take its places in order.

    >>> job_places(pack(np.array([5, 2, 4, 3]), lanes=2), lanes=1, places=3).tolist()
    [0, 1, 3, 4]
    """
    device = packing.lane // lanes
    place = np.zeros(len(device), np.int64)
    for d in np.unique(device):
        own = np.flatnonzero(device == d)
        place[own] = d * places + np.arange(len(own))
    return place


def choose_lanes(
    rounds: Sequence[NDArray[np.int64]], devices: int, overhead: float, most: int
) -> int:
    """The number of lanes per device that makes some rounds fastest.

    A tick of w lanes is assumed to cost `overhead` + w, in units of one lane's arithmetic. Many
    lanes are faster if a tick is mostly overhead (small models, accelerators), and slower if they
    would wait for the longest client.

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

    # packing is slow, so try counts in the order of their lower bounds, which are nearly tight
    best = math.inf, 0
    for least, w in sorted((least_cost(w), w) for w in choices):
        if least > best[0]:
            break
        best = min(best, (cost(w), w))
    return best[1]


def _lane_counts(most: int) -> set[int]:
    """The numbers of lanes to consider: 2^e and 3/2 2^e."""
    return {w for e in range(12) for w in (2**e, 3 * 2**e // 2) if w <= most}
