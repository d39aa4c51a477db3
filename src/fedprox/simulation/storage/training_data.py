"""Where rows lie: on every device where they fit, or else with the host, in memory or mapped files.

Of rows that stay with the host, those of the next call's clients are gathered while the call before
it computes, into arrays of one fixed shape. The row numbers of its plans point into these. They are
the same rows in the same order, so no bit of any result depends on where they lie.

What evaluations read is on every device in either case.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from fedprox.errors import require
from fedprox.features import Features, index_of, with_index
from fedprox.federation import Examples, Federation, Rows, offsets_of
from fedprox.files.mapping import copy_stretches
from fedprox.simulation.devices.memory import FITS, free_on_devices, free_on_host
from fedprox.simulation.devices.mesh import PER_DEVICE, REPLICATED, replicate
from fedprox.simulation.devices.ownership import Ownership
from fedprox.simulation.devices.processes import everyone
from fedprox.simulation.planning.batch_plan import Jobs
from fedprox.simulation.planning.packing import Array
from fedprox.simulation.planning.reads import WIDTHS
from fedprox.simulation.planning.round_work import RoundWork

GATHERED_BYTES = 2**23
"""Most memory of the rows that are gathered for one call, where a round does not need more."""


EVALUATED_BYTES = 2**28
"""Most memory that evaluations take unasked, for a copy of rows that stay with the host."""


DeviceRows = tuple[Features, Array]
"""Features and labels on every device."""


class Data(NamedTuple):
    """A federation's rows on every device.

    Attributes:
        x: Training features; None where training rows stay with the host.
        y: Training labels, likewise.
        measured_x: Features of the training rows that evaluations read.
        measured_y: Their labels.
        test_x: Features of the test rows that evaluations read.
        test_y: Their labels.
        validation: Features and labels of the validation rows that evaluations read; None without
            any.
    """

    x: Features | None
    y: Array | None
    measured_x: Features
    measured_y: Array
    test_x: Features
    test_y: Array
    validation: DeviceRows | None

    @property
    def measured(self) -> tuple[Features, Array, Features, Array]:
        """What every evaluation reads."""
        return self.measured_x, self.measured_y, self.test_x, self.test_y


def resident(
    mesh: Mesh,
    federation: Federation,
    measured: Federation,
    ownership: Ownership,
    measured_ownership: Ownership,
) -> Data:
    """Copy the rows that evaluations read, and training rows where they fit, to every device.

    Devices of one of several processes have its own clients' rows, numbered from 0.

    Args:
        mesh: The devices.
        federation: The clients and their data.
        measured: The clients and rows that evaluations read.
        ownership: Which process owns which clients.
        measured_ownership: Which process reads which of those that evaluations read.
    """
    train, read, test = federation.train, measured.train, measured.test
    validation = (measured.validation.x, measured.validation.y) if measured.validation else None
    x, y = (None, None) if stays_with_host(mesh, train) else (train.x, train.y)
    data = Data(x, y, read.x, read.y, test.x, test.y, validation)
    if ownership.processes > 1:
        each = [(train, ownership)] * 2 + [
            (rows, measured_ownership) for rows in (read, read, test, test)
        ]
        arrays = (
            None if a is None else _rows_of_process(mesh, a, rows.offsets, of)
            for a, (rows, of) in zip(data[:-1], each, strict=True)
        )
        if validation is not None and isinstance(measured.validation, Rows):
            x, y = (
                _rows_of_process(mesh, a, measured.validation.offsets, measured_ownership)
                for a in validation
            )
            return Data._make([*arrays, (x, y)])
        return Data._make([*arrays, replicate(mesh, validation)])  # rows of no client
    leaves, structure = jax.tree.flatten(data)
    # rows that are read for both, and a text or a table that all share, are copied once
    distinct = {id(leaf): leaf for leaf in leaves}
    copies = dict(zip(distinct, replicate(mesh, list(distinct.values())), strict=True))
    return jax.tree.unflatten(structure, [copies[id(leaf)] for leaf in leaves])


def _rows_of_process(
    mesh: Mesh, x: Features, offsets: NDArray[np.int64], ownership: Ownership
) -> Features:
    """This process's rows of an array, with room for as many as any has, and for a slice."""
    bounds = ownership.first_rows(offsets)
    here = index_of(x)[bounds[ownership.process_index] : bounds[ownership.process_index + 1]]
    padded = np.zeros((max(*WIDTHS, *np.diff(bounds)), *here.shape[1:]), here.dtype)
    padded[: len(here)] = here
    if not isinstance(x, np.ndarray):
        x = replicate(mesh, with_index(x, np.zeros(0)))  # what all rows share
    return with_index(x, each_process(mesh, padded))


def each_process(mesh: Mesh, rows: Array) -> jax.Array:
    """Rows of which each process has its own, as many, on each of its devices."""
    sharding = NamedSharding(mesh, PER_DEVICE)
    shape = (mesh.devices.size * len(rows), *rows.shape[1:])
    return jax.make_array_from_callback(shape, sharding, lambda _: rows)


def rows_spec(x: Features, ownership: Ownership) -> Any:
    """How rows are spread over the devices, for `spread`."""
    if ownership.processes == 1:
        return REPLICATED
    return with_index(jax.tree.map(lambda _: REPLICATED, x), PER_DEVICE)


def stays_with_host(mesh: Mesh, rows: Rows) -> bool:
    """Whether rows are not copied to the devices.

    An accelerator takes them if they fit in half of its free memory. A CPU's devices have the
    host's memory: a copy for each must fit in it, and of a file mapped as an `np.memmap` none is
    made. Of several processes each has its share of the rows, and all do what one of them must.
    """
    size, devices = row_bytes(rows) * len(rows) // jax.process_count(), mesh.local_mesh.devices.size
    if jax.default_backend() != "cpu":
        stay = size > FITS * free_on_devices(mesh)
    else:
        mapped = any(isinstance(array, np.memmap) for array in (index_of(rows.x), rows.y))
        stay = mapped or 0 < FITS * free_on_host() < size * devices
    return bool(everyone(stay).any())


def check_measured(mesh: Mesh, federation: Federation, measured: Federation) -> None:
    """Refuse evaluations on all clients where these are too many.

    Raises:
        InputError: Training rows stay with the host, and those that evaluations read are many.
    """
    parts = measured.parts
    size = sum(row_bytes(rows) * len(rows) for rows in parts)
    require(
        size <= EVALUATED_BYTES or not stays_with_host(mesh, federation.train),
        f"evaluation.clients: none given, and evaluations would copy the {sum(map(len, parts)):,} "
        f"rows of all {len(federation):,} clients to every device; give the number of clients to "
        "draw for them, such as 1000",
    )


def row_bytes(rows: Rows | Examples) -> int:
    """Bytes of one row as it is kept, with its label."""
    kept = (index_of(rows.x), rows.y)
    return sum(int(np.prod(a.shape[1:])) * np.dtype(a.dtype).itemsize for a in kept)


class TrainingRows(NamedTuple):
    """The training rows of one method's calls.

    Rows that stay with the host are gathered for each call, into arrays with room for some of them.

    Attributes:
        together: The work of some rounds -> how many such rounds a call has at most, so that the
            rows gathered for it take little memory.
        needed: The work of a call's rounds, and the rows of a slice when reading whole clients ->
            how many rows must be gathered; 0 where all rows are on the devices.
        like: Room -> what programs are compiled for: arrays, or their shapes.
        of: The work of a call's rounds, the rows of a slice, and the room -> rows on every device,
            and the work with these rows' numbers.
    """

    together: Callable[[Sequence[RoundWork]], int]
    needed: Callable[[Sequence[RoundWork], int], int]
    like: Callable[[int], DeviceRows]
    of: Callable[[Sequence[RoundWork], int, int], tuple[DeviceRows, Sequence[RoundWork]]]


def training_rows(
    mesh: Mesh, rows: Rows, data: Data, ownership: Ownership, *, ahead: int
) -> TrainingRows:
    """The rows as they lie on the devices, or gathered for each call.

    Args:
        mesh: The devices.
        rows: All clients' training rows.
        data: What is on the devices.
        ownership: Which process owns which clients.
        ahead: Calls whose rows are gathered before they are needed.

    Returns:
        The rows. Where a call's rows do not fit in memory, `like` raises `InputError`.
    """
    if data.x is not None:
        held = data.x, data.y
        base = ownership.first_rows(rows.offsets)

        def numbered_rows_of_process(jobs: Jobs) -> Jobs:
            return jobs._replace(device_row=jobs.first_row - base[jobs.owner])

        def all_here(work: Sequence[RoundWork], *_: int) -> tuple[DeviceRows, Sequence[RoundWork]]:
            return held, _with_jobs(work, numbered_rows_of_process)

        return TrainingRows(len, lambda *_: 0, lambda _: held, all_here)
    several = ownership.processes > 1
    sharding = NamedSharding(mesh, PER_DEVICE if several else REPLICATED)
    index = index_of(rows.x)

    def together(work: Sequence[RoundWork]) -> int:
        largest = max(int(w.jobs.size.sum() + w.exchange.size.sum()) for w in work)
        return max(1, min(len(work), GATHERED_BYTES // max(1, largest * row_bytes(rows))))

    def needed(work: Sequence[RoundWork], width: int) -> int:
        return max(
            _places(_at(owner, work), len(rows), width).room for owner in range(ownership.processes)
        )

    def like(room: int) -> DeviceRows:
        size = room * row_bytes(rows)
        free = free_on_devices(mesh) or free_on_host() // mesh.devices.size
        require(
            not free or (ahead + 1) * size <= FITS * free,
            f"training rows: a round reads {room:,} of them, {size / 2**30:.1f} GiB, of which "
            f"there must be {ahead + 1} times as much in half of the {free / 2**30:.1f} GiB that "
            "are free; choose fewer clients a round",
        )

        def one(array: Array) -> Any:
            kind = jax.dtypes.canonicalize_dtype(array.dtype)
            shape = (room * (mesh.devices.size if several else 1), *array.shape[1:])
            return jax.ShapeDtypeStruct(shape, kind, sharding=sharding)

        return with_index(data.measured_x, one(index)), one(rows.y)

    def gathered(
        work: Sequence[RoundWork], width: int, room: int
    ) -> tuple[DeviceRows, Sequence[RoundWork]]:
        places = _places(_at(ownership.process_index, work), len(rows), width)
        at = np.where(places.place < 0, room, 0) + places.place
        found = [copy_stretches(a, places.first, places.size, at, room) for a in (index, rows.y)]
        x, y = [each_process(mesh, a) for a in found] if several else replicate(mesh, found)

        def placed(jobs: Jobs) -> Jobs:
            # where other processes have the rows of their clients is theirs to know
            row, mine = np.zeros_like(jobs.first_row), jobs.owner == ownership.process_index
            row[mine] = at[np.searchsorted(places.first, jobs.first_row[mine])]
            return jobs._replace(device_row=row)

        return (with_index(data.measured_x, x), y), _with_jobs(work, placed)

    return TrainingRows(together, needed, like, gathered)


def _with_jobs(work: Sequence[RoundWork], change: Callable[[Jobs], Jobs]) -> Sequence[RoundWork]:
    return [w._replace(jobs=change(w.jobs), exchange=change(w.exchange)) for w in work]


def _at(owner: int, work: Sequence[RoundWork]) -> Sequence[RoundWork]:
    """What one process does of some rounds."""
    return _with_jobs(work, lambda jobs: Jobs(*(a[jobs.owner == owner] for a in jobs)))


class _Places(NamedTuple):
    """Where the rows of a call's clients go.

    Attributes:
        first: First row of each client among all rows, ascending, shape (clients,).
        size: Its rows, shape (clients,).
        place: The row where it begins, or where negative, how far before the end, shape (clients,).
        room: Rows needed.
    """

    first: NDArray[np.int64]
    size: NDArray[np.int64]
    place: NDArray[np.int64]
    room: int


def _places(work: Sequence[RoundWork], rows: int, width: int) -> _Places:
    """The clients of some rounds, each once, in their order.

    A slice that would reach beyond the last row begins earlier instead, and so has its rows at
    other places in its sums. For the same bits this must befall the same clients: those within a
    slice's width of the end of all rows lie as far from the end here, and others farther.
    """
    jobs = [each for w in work for each in (w.jobs, w.exchange)]
    first, chosen = np.unique(np.concatenate([j.first_row for j in jobs]), return_index=True)
    size = np.concatenate([j.size for j in jobs])[chosen]
    near = rows - (first + size) < width
    front = offsets_of(size[~near])
    place = np.empty_like(first)
    place[~near], place[near] = front[:-1], first[near] - rows
    end = max(width, int((rows - first[near]).max(initial=0)))
    return _Places(first, size, place, int(front[-1]) + end)
