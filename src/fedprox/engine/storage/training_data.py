"""Storage of rows: on each device if they fit, else on the host, in memory or in mapped files.

If training rows stay on the host, the rows of a call's clients are gathered in the background, into
arrays of a fixed shape, while earlier calls compute. The call's plans use row numbers in these
arrays. They are the same rows in the same order, so results have the same bits in either case.

The rows that evaluations read are always on each device.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from fedprox.devices.mesh import (
    FITS,
    PER_DEVICE,
    REPLICATED,
    free_on_devices,
    free_on_host,
    replicate,
)
from fedprox.devices.processes import Ownership, allgather
from fedprox.engine.planning.jobs import Array, Jobs
from fedprox.engine.planning.reads import WIDTHS
from fedprox.engine.planning.round_work import RoundWork
from fedprox.errors import require
from fedprox.features import Features, index_of, map_leaves, with_index
from fedprox.federation import Examples, Federation, Rows, offsets_of
from fedprox.files.mapping import copy_stretches

GATHERED_BYTES = 2**23
"""Most bytes of the rows gathered for one call, unless a single round needs more."""


EVALUATED_BYTES = 2**28
"""Most bytes that evaluations copy of rows that stay on the host, unless the user sets a number of
clients."""


DeviceRows = tuple[Features, Array]
"""Features and labels on every device."""


class DeviceData(NamedTuple):
    """A federation's rows on every device.

    Attributes:
        train: All training rows; None if they stay on the host.
        read: The rows that evaluations read, by part: "train", and "test" and "validation" if there
            are any.
    """

    train: DeviceRows | None
    read: dict[str, DeviceRows]


def copy_to_devices(
    mesh: Mesh,
    federation: Federation,
    measured: Federation,
    ownership: Ownership,
    measured_ownership: Ownership,
) -> DeviceData:
    """Copy the rows that evaluations read, and training rows if they fit, to each device.

    With several processes, a process's devices have only the rows of its own clients, numbered from
    0.
    """
    given = {"train": measured.train, "test": measured.test, "validation": measured.validation}
    read = {name: rows for name, rows in given.items() if rows is not None and len(rows)}
    train = None if stays_with_host(mesh, federation.train) else federation.train

    def of_process(rows: Rows | Examples, own: Ownership) -> DeviceRows:
        if not isinstance(rows, Rows):  # rows of no client
            return replicate(mesh, (rows.x, rows.y))
        x, y = (_rows_of_process(mesh, a, rows.offsets, own) for a in (rows.x, rows.y))
        return x, y

    if ownership.processes > 1:
        return DeviceData(
            None if train is None else of_process(train, ownership),
            {name: of_process(rows, measured_ownership) for name, rows in read.items()},
        )
    data = DeviceData(
        None if train is None else (train.x, train.y),
        {name: (rows.x, rows.y) for name, rows in read.items()},
    )
    leaves, structure = jax.tree.flatten(data)
    # arrays used twice, such as a table that all rows share, are copied once
    distinct = {id(leaf): leaf for leaf in leaves}
    copies = dict(zip(distinct, replicate(mesh, list(distinct.values())), strict=True))
    return jax.tree.unflatten(structure, [copies[id(leaf)] for leaf in leaves])


def _rows_of_process(
    mesh: Mesh, x: Features, offsets: NDArray[np.int64], ownership: Ownership
) -> Features:
    """This process's rows of arrays, padded to the most rows of any process and to a slice."""
    bounds = ownership.first_rows(offsets)

    def of_process(leaf: Features) -> Features:
        own = index_of(leaf)[bounds[ownership.process_index] : bounds[ownership.process_index + 1]]
        padded = np.zeros((max(*WIDTHS, *np.diff(bounds)), *own.shape[1:]), own.dtype)
        padded[: len(own)] = own
        if not isinstance(leaf, np.ndarray):
            leaf = replicate(mesh, with_index(leaf, np.zeros(0)))  # what all rows share
        return with_index(leaf, on_own_devices(mesh, padded))

    return map_leaves(of_process, x)


def on_own_devices(mesh: Mesh, rows: Array) -> jax.Array:
    """An array with this process's rows on each of its devices; all have equally many rows."""
    sharding = NamedSharding(mesh, PER_DEVICE)
    shape = (mesh.devices.size * len(rows), *rows.shape[1:])
    return jax.make_array_from_callback(shape, sharding, lambda _: rows)


def rows_spec(x: Features, ownership: Ownership) -> Any:
    """How rows are spread over the devices, for `spread`."""
    if ownership.processes == 1:
        return REPLICATED
    return map_leaves(
        lambda leaf: with_index(jax.tree.map(lambda _: REPLICATED, leaf), PER_DEVICE), x
    )


def stays_with_host(mesh: Mesh, rows: Rows) -> bool:
    """Whether rows stay on the host, since they do not fit on the devices.

    They are copied to accelerators if they fit in half of the free memory. CPU devices use the
    host's memory: one copy per device must fit, and mapped files (`np.memmap`) are not copied. With
    several processes, each has its part of the rows, and the rows stay on the host in all processes
    if they do in one.
    """
    size, devices = row_bytes(rows) * len(rows) // jax.process_count(), mesh.local_mesh.devices.size
    if jax.default_backend() != "cpu":
        stay = size > FITS * free_on_devices(mesh)
    else:
        mapped = any(isinstance(array, np.memmap) for array in _stored(rows))
        stay = mapped or 0 < FITS * free_on_host() < size * devices
    return bool(allgather(stay).any())


def check_measured(mesh: Mesh, federation: Federation, measured: Federation) -> None:
    """Refuse evaluations that would copy too many rows to the devices."""
    parts = measured.parts
    size = sum(row_bytes(rows) * len(rows) for rows in parts)
    require(
        size <= EVALUATED_BYTES or not stays_with_host(mesh, federation.train),
        f"evaluation.clients: none given, and evaluations would copy the {sum(map(len, parts)):,} "
        f"rows of all {len(federation):,} clients to every device; give the number of clients to "
        "draw for them, such as 1000",
    )


def row_bytes(rows: Rows | Examples) -> int:
    """Bytes of one row as it is stored, with its label."""
    return sum(int(np.prod(a.shape[1:])) * np.dtype(a.dtype).itemsize for a in _stored(rows))


def _stored(rows: Rows | Examples) -> list[Array]:
    """The arrays that rows are stored in."""
    return jax.tree.leaves((index_of(rows.x), rows.y))


class TrainingRows:
    """The training rows of one method's calls.

    Rows that stay on the host are gathered for each call, into arrays with room for a fixed number
    of rows. In the arguments, width means the rows of a slice, and a call's work that of its
    rounds.
    """

    def __init__(
        self, mesh: Mesh, rows: Rows, data: DeviceData, ownership: Ownership, *, ahead: int
    ) -> None:
        self.mesh, self.rows, self.ownership, self.ahead = mesh, rows, ownership, ahead
        self.on_devices, self.shared = data.train, data.read["train"][0]
        self.distributed, self.row_bytes = ownership.processes > 1, row_bytes(rows)

    def together(self, work: Sequence[RoundWork]) -> int:
        """The most such rounds of one call whose gathered rows take little memory; 0 if none do."""
        if self.on_devices:
            return len(work)
        largest = max(int(w.jobs.size.sum() + w.exchange.size.sum()) for w in work)
        return min(len(work), GATHERED_BYTES // max(1, largest * self.row_bytes))

    def needed(self, work: Sequence[RoundWork], width: int) -> int:
        """The number of rows to gather for a call; 0 if all rows are on the devices."""
        if self.on_devices:
            return 0
        owners = range(self.ownership.processes)
        return max(_places(_work_of(each, work), len(self.rows), width)[-1] for each in owners)

    def like(self, room: int) -> DeviceRows:
        """The arrays that programs are compiled for, or their shapes."""
        if self.on_devices:
            return self.on_devices
        size, devices = room * self.row_bytes, self.mesh.devices.size
        free = free_on_devices(self.mesh) or free_on_host() // devices
        require(
            not free or (self.ahead + 1) * size <= FITS * free,
            f"training rows: a round reads {room:,} of them, {size / 2**30:.1f} GiB, and "
            f"{self.ahead + 1} times as much must fit in half of the {free / 2**30:.1f} GiB that "
            "are free; choose fewer clients a round",
        )
        sharding = NamedSharding(self.mesh, PER_DEVICE if self.distributed else REPLICATED)

        def like_array(array: Array) -> Any:
            kind = jax.dtypes.canonicalize_dtype(array.dtype)
            shape = (room * (devices if self.distributed else 1), *array.shape[1:])
            return jax.ShapeDtypeStruct(shape, kind, sharding=sharding)

        x, y = jax.tree.map(like_array, (index_of(self.rows.x), self.rows.y))
        return with_index(self.shared, x), y

    def of(
        self, work: Sequence[RoundWork], width: int, room: int
    ) -> tuple[DeviceRows, Sequence[RoundWork]]:
        """The rows on each device for a call, and its work with `device_row` set for these rows."""
        ownership, mesh = self.ownership, self.mesh
        if self.on_devices:
            base = ownership.first_rows(self.rows.offsets)

            def number_in_process(jobs: Jobs) -> Jobs:
                return jobs._replace(device_row=jobs.first_row - base[jobs.owner])

            return self.on_devices, _with_jobs(work, number_in_process)
        own_work = _work_of(ownership.process_index, work)
        first, sizes, at, _ = _places(own_work, len(self.rows), width)
        at = np.where(at < 0, room, 0) + at
        given = index_of(self.rows.x), self.rows.y
        arrays = jax.tree.map(lambda a: copy_stretches(a, first, sizes, at, room), given)
        x, y = (
            jax.tree.map(lambda a: on_own_devices(mesh, a), arrays)
            if self.distributed
            else replicate(mesh, arrays)
        )

        def place(jobs: Jobs) -> Jobs:
            # other processes set the rows of their own clients
            row, own = np.zeros_like(jobs.first_row), jobs.owner == ownership.process_index
            row[own] = at[np.searchsorted(first, jobs.first_row[own])]
            return jobs._replace(device_row=row)

        return (with_index(self.shared, x), y), _with_jobs(work, place)


def _with_jobs(work: Sequence[RoundWork], change: Callable[[Jobs], Jobs]) -> Sequence[RoundWork]:
    return [w._replace(jobs=change(w.jobs), exchange=change(w.exchange)) for w in work]


def _work_of(owner: int, work: Sequence[RoundWork]) -> Sequence[RoundWork]:
    """The part of some rounds' work that one process does."""
    return _with_jobs(work, lambda jobs: jobs.take(jobs.owner == owner))


def _places(
    work: Sequence[RoundWork], rows: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """Where the rows of some rounds' clients are gathered, each client once, in ascending order.

    Returns the first row of each client among all rows, its number of rows and its first row in
    the gathered array, shape (clients,), and the number of rows needed. Negative places count from
    the array's end.

    A slice that would reach beyond the last row begins earlier instead, which changes the order of
    its sums. To get the same bits, this must happen to the same clients as with all rows on the
    devices. So clients within a slice's width of the end of all rows have the same distance from
    the end of the gathered rows, and all others a greater one.
    """
    jobs = [each for w in work for each in (w.jobs, w.exchange)]
    first, chosen = np.unique(np.concatenate([j.first_row for j in jobs]), return_index=True)
    size = np.concatenate([j.size for j in jobs])[chosen]
    near = rows - (first + size) < width
    front = offsets_of(size[~near])
    place = np.empty_like(first)
    place[~near], place[near] = front[:-1], first[near] - rows
    end = max(width, int((rows - first[near]).max(initial=0)))
    return first, size, place, int(front[-1]) + end
