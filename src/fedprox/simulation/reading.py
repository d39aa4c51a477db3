"""Reading whole clients: which slices of the flat rows each lane reads, and what a slice holds.

A job is a client (or any range of rows); a tick reads a slice of at most `width` of its rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.features import Features
from fedprox.model import Model, Params, read_slice, weighted_loss
from fedprox.simulation.lanes import over
from fedprox.simulation.schedule import Array, Segments, pack, segments

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
    home: NDArray[np.int64] | None = None,
    homes: int = 1,
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
        home: The process that does each job, shape (jobs,); any where left out.
        homes: Number of processes.
        ticks: Room for ticks; what is needed where left out.
        slots: Room for jobs; as many as there are where left out.
    """
    packing = pack(slices(last - first, width), devices * lanes, home, homes)
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
    home = np.repeat(np.arange(len(counts)), [len(f) for f in first])
    return plan_reading(
        np.concatenate(first),
        np.concatenate(last),
        width=width,
        devices=devices,
        lanes=lanes,
        home=home,
        homes=len(counts),
    )


def my_part(reading: Reading) -> Reading:
    """One device's part of a reading, inside `spread`."""
    return jax.tree.map(lambda a: a[0], reading)


def reader(width: int) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
    """(x, y, reading, tick) -> each lane's slice, see `read_slice`."""

    def read(
        x: Features, y: jax.Array, begin: jax.Array, end: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        return read_slice(x, y, begin, end, width)

    every = over(read, (None, None, 0, 0))
    return lambda x, y, reading, i: every(x, y, reading.begin[i], reading.end[i])


def summed_gradients(model: Model, *, shared: bool) -> Callable[..., Params]:
    """Gradients summed over each lane's slice, at all points of a sweep.

    Args:
        model: The model.
        shared: Whether all lanes stand at the same parameters, leaves (points, ...), or each at its
            own, leaves (lanes, points, ...).

    Returns:
        (params, x, y, inside) -> sums (lanes, points, ...), given what `reader` gives.
    """

    def summed(params: Params, x: jax.Array, y: jax.Array, inside: jax.Array) -> Params:
        return jax.grad(weighted_loss, argnums=1)(model, params, x, y, inside)

    points = over(summed, (0, None, None, None))
    return over(points, (None if shared else 0, 0, 0, 0))


def per_lane(sums: Params, size: jax.Array) -> Params:
    """Each lane's sums, leaves (lanes, ...), divided by its number of rows, shape (lanes,)."""
    return jax.tree.map(lambda g: g / size.reshape((-1,) + (1,) * (g.ndim - 1)), sums)
