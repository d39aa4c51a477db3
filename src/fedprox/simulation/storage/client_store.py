"""The store of what clients keep between rounds: gathered and scattered for each cohort.

It has an array for each leaf of what a client keeps, on the accelerator, in the host's memory, or
mapped from a file on disk. Which of them changes no bit of any result. A client is given a row when
it first takes part; in memory and on disk a row takes no room before that.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from fedprox.algorithms.base import ClientState
from fedprox.errors import InputError, require
from fedprox.simulation.config.protocol import Storage
from fedprox.simulation.devices.memory import FITS, free_on_devices, free_on_host
from fedprox.simulation.devices.mesh import PER_DEVICE, replicate, shard, zeros_on

T = TypeVar("T")


BLOCK_BYTES = 2**26
"""Most memory of a block of rows in a checkpoint."""


KNOWN = "known"
"""The name in a checkpoint of what says which rows have been written."""


class Store(NamedTuple):
    """What clients keep.

    Clients are given by place: `clients[p]` is the client whose state lies at place p of all
    devices, -1 for none. Its leaves there have shape (places, points, ...) and are spread over the
    devices.

    Attributes:
        read: Clients (places,) -> their state.
        write: Clients, their state -> nothing.
        contents: What a checkpoint must hold, as names and arrays: which clients have a row, and
            these rows in the clients' order, block by block, so that only a block is in memory.
        restore: Name and bytes of all that `contents` gave, `KNOWN` first -> nothing.
        close: Give up the store's memory.
    """

    read: Callable[[NDArray[np.int64]], ClientState]
    write: Callable[[NDArray[np.int64], ClientState], None]
    contents: Callable[[], Iterator[tuple[str, NDArray[Any]]]]
    restore: Callable[[Iterable[tuple[str, NDArray[Any]]]], None]
    close: Callable[[], None]


class _Index:
    """Which row each client has.

    Args:
        clients: The clients that may take part.
        rows: Number of rows.
    """

    def __init__(self, clients: range, rows: int) -> None:
        self.clients, self.rows, self.taken = clients, rows, 0
        self._row = np.full(len(clients), -1, np.int64)

    def find(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each client, -1 where it has none, or where the client is -1."""
        place = np.maximum(clients - self.clients.start, 0)
        return np.where(clients >= 0, self._row[place], -1)

    def assign(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give a row to each of some different clients that has none; the rows given now."""
        place = clients - self.clients.start
        new = place[self._row[place] < 0]
        rows = np.arange(self.taken, self.taken + len(new))
        self._row[new] = rows
        self.taken += len(new)
        return rows

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether each client has a row."""
        return self._row >= 0

    @property
    def in_order(self) -> NDArray[np.int64]:
        """The rows that have been given, in the order of their clients."""
        return self._row[self.known]


def open_store(
    where: Storage, initial: ClientState, clients: range, mesh: Mesh, most: int
) -> Store:
    """A store in which every client keeps the same at first.

    Args:
        where: Where it lies; "auto" is the first of device (an accelerator), host and disk in which
            it fits. On disk it is a file without a name in the folder for temporary files (TMPDIR),
            which goes with the process however that ends.
        initial: What each keeps, leaves (points, ...).
        clients: The clients of this process.
        mesh: The devices.
        most: How many of them can ever take part, at most.

    Raises:
        InputError: It does not fit on the disk.
    """
    require(
        where != "device" or jax.process_count() == 1,
        'client_store = "device"; of several processes each keeps its own clients\', so it must be '
        '"auto", "host" or "disk"',
    )
    index = _Index(clients, min(len(clients), most))
    if where == "auto":
        one = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(initial))
        where = _where_it_fits(index.rows * one, mesh)
    if where == "device":
        return _on_devices(initial, index, mesh)
    return _on_host(initial, index, mesh, mapped=where == "disk")


def _on_host(initial: ClientState, index: _Index, mesh: Mesh, *, mapped: bool) -> Store:
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, initial))
    try:
        arrays = [
            _Rows.allocate((index.rows, *leaf.shape), leaf.dtype, mapped=mapped) for leaf in leaves
        ]
    except (OSError, MemoryError) as error:
        raise InputError(_no_room("disk" if mapped else "host", error)) from None
    here = [device.process_index == jax.process_index() for device in mesh.devices.flat]

    def own(at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The client at each place, -1 where it is another process's."""
        return np.where(np.repeat(here, len(at) // len(here)), at, -1)

    def read(at: NDArray[np.int64]) -> ClientState:
        filled = own(at)
        row = index.find(filled)
        found = [
            shard(mesh, rows.gather(row, filled >= 0, leaf))
            for leaf, rows in zip(leaves, arrays, strict=True)
        ]
        return jax.tree.unflatten(structure, found)

    def write(at: NDArray[np.int64], client_state: ClientState) -> None:
        at = own(at)
        new = index.assign(at[at >= 0])
        row = index.find(at)
        for given, rows in zip(jax.tree.leaves(client_state), arrays, strict=True):
            rows.make_room(new)
            for part in given.addressable_shards:
                first, values = part.index[0].start or 0, np.asarray(part.data)
                for place in np.flatnonzero(row[first : first + len(values)] >= 0):
                    rows.array[row[first + place]] = values[place]
            rows.release()

    def contents() -> Iterator[tuple[str, NDArray[Any]]]:
        return _in_blocks(index, [rows.array for rows in arrays])

    def restore(saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        for rows, written, block in _from_blocks(saved, index, arrays):
            rows.make_room(written)
            rows.array[written] = block.view(rows.array.dtype)
            rows.release()

    def close() -> None:
        for rows in arrays:
            if rows.file is not None:
                rows.file.close()
        arrays.clear()

    return Store(read, write, contents, restore, close)


def _in_blocks(index: _Index, arrays: Sequence[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Which clients have rows, and then these rows of all arrays, in blocks."""
    yield KNOWN, index.known
    rows = index.in_order
    for i, array in enumerate(arrays):
        length = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
        for first in range(0, len(rows), length):
            yield f"{i}-{first}-{length}", array[rows[first : first + length]]


def _from_blocks(
    saved: Iterable[tuple[str, NDArray[Any]]], index: _Index, arrays: Sequence[T]
) -> Iterator[tuple[T, NDArray[np.int64], NDArray[Any]]]:
    """Give the clients their rows, and find of each block its array and the rows it has of it."""
    for name, block in saved:
        if name == KNOWN:
            index.assign(index.clients.start + np.flatnonzero(block.view(bool)))
            continue
        array, first, length = map(int, name.split("-"))
        yield arrays[array], index.in_order[first : first + length], block


class _Rows(NamedTuple):
    """An array in memory, or mapped from a file, in which a row takes room when it is first used.

    Attributes:
        array: The array.
        file: The file.
        mapped: Its map.
    """

    array: NDArray[Any]
    file: IO[bytes] | None = None
    mapped: mmap.mmap | None = None

    @classmethod
    def allocate(cls, shape: tuple[int, ...], dtype: Any, *, mapped: bool) -> "_Rows":
        if not mapped:
            return cls(np.zeros(shape, dtype))
        size = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
        # without a name: it goes with the process
        file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as its map)
        file.truncate(size)
        held = mmap.mmap(file.fileno(), size)
        return cls(np.frombuffer(held, dtype, int(np.prod(shape))).reshape(shape), file, held)

    def gather(
        self,
        row: NDArray[np.int64],
        filled: NDArray[np.bool_],
        initial: NDArray[Any],
    ) -> NDArray[Any]:
        """What the client at each filled place keeps: its row, or the initial value without one."""
        gathered = np.zeros((len(row), *initial.shape), initial.dtype)
        for place in np.flatnonzero(filled):
            gathered[place] = self.array[row[place]] if row[place] >= 0 else initial
        self.release()
        return gathered

    def make_room(self, rows: NDArray[np.int64]) -> None:
        """Take room on the disk for rows about to be written.

        A write to a map that finds the disk full would end the process without a word.

        Raises:
            InputError: There is none.
        """
        if self.file is None or not hasattr(os, "posix_fallocate"):
            return
        length = self.array[:1].nbytes
        try:
            for row in rows.tolist():
                os.posix_fallocate(self.file.fileno(), row * length, length)
        except OSError as error:
            where = f"disk in {tempfile.gettempdir()} (TMPDIR names another folder)"
            raise InputError(_no_room(where, error)) from None

    def release(self) -> None:
        """Give pages back that have been read or written: the file has them."""
        if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def _no_room(where: str, error: Exception) -> str:
    return f"client_store: no room on {where} for what clients keep: {error}"


def _on_devices(initial: ClientState, index: _Index, mesh: Mesh) -> Store:
    devices = mesh.devices.size
    room = -(-max(index.rows, 1) // devices) * devices
    sharding = NamedSharding(mesh, PER_DEVICE)
    first = replicate(mesh, initial)
    rows = [jax.tree.map(lambda a: zeros_on(mesh, (room, *a.shape), a.dtype), first)]

    def gather(
        rows: ClientState, first: ClientState, row: jax.Array, known: jax.Array
    ) -> ClientState:
        def one(stored: jax.Array, initial: jax.Array) -> jax.Array:
            chosen = known.reshape((-1,) + (1,) * initial.ndim)
            return jnp.where(chosen, stored[row], initial)

        return jax.tree.map(one, rows, first)

    def scatter(rows: ClientState, client_state: ClientState, row: jax.Array) -> ClientState:
        return jax.tree.map(lambda s, k: s.at[row].set(k, mode="drop"), rows, client_state)

    gathering = jax.jit(gather, out_shardings=sharding)
    scattering = jax.jit(scatter, out_shardings=sharding, donate_argnums=0)

    def read(at: NDArray[np.int64]) -> ClientState:
        row = index.find(at)
        return gathering(rows[0], first, np.maximum(row, 0), row >= 0)

    def write(at: NDArray[np.int64], client_state: ClientState) -> None:
        index.assign(at[at >= 0])
        row = index.find(at)
        rows[0] = scattering(rows[0], client_state, np.where(row >= 0, row, room))

    def contents() -> Iterator[tuple[str, NDArray[Any]]]:
        leaves = jax.tree.leaves(rows[0])
        return _in_blocks(index, [np.asarray(leaf) for leaf in leaves])

    def restore(saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        arrays = [np.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(rows[0])]
        for array, written, block in _from_blocks(saved, index, arrays):
            array[written] = block.view(array.dtype)
        rows[0] = jax.device_put(jax.tree.unflatten(jax.tree.structure(rows[0]), arrays), sharding)

    return Store(read, write, contents, restore, rows.clear)


def _where_it_fits(size: int, mesh: Mesh) -> Storage:
    """The first place with room for `size` bytes."""
    if jax.process_count() == 1 and size <= FITS * free_on_devices(mesh) * mesh.devices.size:
        return "device"
    return "host" if size <= FITS * free_on_host() else "disk"
