"""The store of client state between rounds: gathered and scattered for each cohort.

The store has one array for each leaf of the client state: on the devices, in host memory, or mapped
from a file on disk. The choice changes no bit of any result. A client gets a row when it first
takes part. In host memory and on disk, a row takes no room before that.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from fedprox.algorithms.base import ClientState
from fedprox.devices.mesh import (
    FITS,
    PER_DEVICE,
    free_on_devices,
    free_on_host,
    replicate,
    shard,
    zeros_on,
)
from fedprox.devices.programs import jit_once
from fedprox.errors import InputError, require
from fedprox.files.arrays import Damaged
from fedprox.protocol.protocol import Storage

BLOCK_BYTES = 2**26
"""Most bytes of a block of rows in a checkpoint."""


KNOWN = "known"
"""Name of the array in a checkpoint that says which clients have rows."""


class Store(NamedTuple):
    """The state of all clients.

    Functions take clients by place: `clients[p]` is the client at place p of all devices, -1 for
    none. The leaves of their state have shape (places, points, ...) and are sharded over the
    devices.

    Attributes:
        read: (clients) -> their state.
        write: (clients, their state) -> None.
        contents: () -> names and arrays for a checkpoint: which clients have rows, and these rows
            in the order of the clients. Large arrays come in blocks, of which only one is in memory
            at a time.
        restore: (names and arrays from `contents`) -> None. Raises `Damaged` if they are not such
            as it writes.
        close: () -> None. Frees the memory.
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
        """The row of each client; -1 for a client without a row, and for client -1."""
        place = np.maximum(clients - self.clients.start, 0)
        return np.where(clients >= 0, self._row[place], -1)

    def assign(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """Assign rows to those of some distinct clients that have none, and return these rows."""
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
        """The assigned rows, in the order of their clients."""
        return self._row[self.known]


def open_store(
    where: Storage, initial: ClientState, clients: range, mesh: Mesh, most: int
) -> Store:
    """Open a store in which all clients have the same initial state.

    On disk it is an unnamed file in the folder for temporary files (TMPDIR), which disappears with
    the process however that ends.
    """
    require(
        where != "device" or jax.process_count() == 1,
        'client_store = "device"; with several processes it must be "auto", "host" or "disk"',
    )
    index = _Index(clients, min(len(clients), most))
    if where == "auto":
        row_bytes = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(initial))
        where = _where_it_fits(index.rows * row_bytes, mesh)
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
    local = [device.process_index == jax.process_index() for device in mesh.devices.flat]

    def own(at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The client at each place of this process's devices; -1 at all other places."""
        return np.where(np.repeat(local, len(at) // len(local)), at, -1)

    def read(at: NDArray[np.int64]) -> ClientState:
        filled = own(at)
        row = index.find(filled)
        gathered = [
            shard(mesh, rows.gather(row, filled >= 0, leaf))
            for leaf, rows in zip(leaves, arrays, strict=True)
        ]
        return jax.tree.unflatten(structure, gathered)

    def write(at: NDArray[np.int64], client_state: ClientState) -> None:
        at = own(at)
        new = index.assign(at[at >= 0])
        row = index.find(at)
        for leaf, rows in zip(jax.tree.leaves(client_state), arrays, strict=True):
            rows.make_room(new)
            for part in leaf.addressable_shards:
                first, values = part.index[0].start or 0, np.asarray(part.data)
                for place in np.flatnonzero(row[first : first + len(values)] >= 0):
                    rows.array[row[first + place]] = values[place]
            rows.release()

    def contents() -> Iterator[tuple[str, NDArray[Any]]]:
        return _in_blocks(index, [rows.array for rows in arrays])

    def restore(saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        for i, written, block in _from_blocks(saved, index, [rows.array for rows in arrays]):
            arrays[i].make_room(written)
            arrays[i].array[written] = block
            arrays[i].release()

    def close() -> None:
        for rows in arrays:
            if rows.file is not None:
                rows.file.close()
        arrays.clear()

    return Store(read, write, contents, restore, close)


def _in_blocks(index: _Index, arrays: Sequence[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Which clients have rows, followed by these rows of all arrays in blocks."""
    yield KNOWN, index.known
    rows = index.in_order
    for i, array in enumerate(arrays):
        length = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
        for first in range(0, len(rows), length):
            yield f"{i}-{first}-{length}", array[rows[first : first + length]]


def _from_blocks(
    saved: Iterable[tuple[str, NDArray[Any]]], index: _Index, arrays: Sequence[Any]
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[Any]]]:
    """Assign rows to the saved clients, and yield each block with its array's number and rows."""
    contents = iter(saved)
    name, known = next(contents, ("", np.zeros(0)))
    fits = name == KNOWN and known.dtype == bool and known.shape == (len(index.clients),)
    if not fits or np.count_nonzero(known) > index.rows:
        raise Damaged("which clients have state is not as it should be")
    index.assign(index.clients.start + np.flatnonzero(known))
    for i, array in enumerate(arrays):
        done = 0
        while done < index.taken:
            name, block = next(contents, ("", np.zeros(0)))
            rows = index.in_order[done : done + (len(block) if block.ndim else 0)]
            same = block.dtype == array.dtype and block.shape == (len(rows), *array.shape[1:])
            if not (same and len(rows) and name.startswith(f"{i}-{done}-")):
                raise Damaged(f"its block {name!r} of client state is not as it should be")
            yield i, rows, block
            done += len(rows)
    if next(contents, None) is not None:
        raise Damaged("it has more than the client state")


class _Rows(NamedTuple):
    """An array in memory or mapped from a file, whose rows take room when they are first used.

    Attributes:
        array: The array.
        file: The file; None for an array in memory.
        mapped: The file's map; None for an array in memory.
    """

    array: NDArray[Any]
    file: IO[bytes] | None = None
    mapped: mmap.mmap | None = None

    @classmethod
    def allocate(cls, shape: tuple[int, ...], dtype: Any, *, mapped: bool) -> "_Rows":
        if not mapped:
            return cls(np.zeros(shape, dtype))
        size = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
        # an unnamed file disappears with the process
        file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as its map)
        file.truncate(size)
        pages = mmap.mmap(file.fileno(), size)
        return cls(np.frombuffer(pages, dtype, int(np.prod(shape))).reshape(shape), file, pages)

    def gather(
        self,
        row: NDArray[np.int64],
        filled: NDArray[np.bool_],
        initial: NDArray[Any],
    ) -> NDArray[Any]:
        """The state of the client at each filled place: its row, or the initial state if none."""
        gathered = np.zeros((len(row), *initial.shape), initial.dtype)
        for place in np.flatnonzero(filled):
            gathered[place] = self.array[row[place]] if row[place] >= 0 else initial
        self.release()
        return gathered

    def make_room(self, rows: NDArray[np.int64]) -> None:
        """Allocate disk space for rows about to be written.

        Without this, a write to the map would kill the process if the disk is full.
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
        """Release the memory of pages that have been read or written; the file holds them."""
        if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def _no_room(where: str, error: Exception) -> str:
    return f"client_store: no room on {where} for client state: {error}"


def _on_devices(initial: ClientState, index: _Index, mesh: Mesh) -> Store:
    devices = mesh.devices.size
    room = -(-max(index.rows, 1) // devices) * devices
    sharding = NamedSharding(mesh, PER_DEVICE)
    first = replicate(mesh, initial)
    rows = [jax.tree.map(lambda a: zeros_on(mesh, (room, *a.shape), a.dtype), first)]

    def gather(
        rows: ClientState, first: ClientState, row: jax.Array, known: jax.Array
    ) -> ClientState:
        def gather_leaf(stored: jax.Array, initial: jax.Array) -> jax.Array:
            has_row = known.reshape((-1,) + (1,) * initial.ndim)
            return jnp.where(has_row, stored[row], initial)

        return jax.tree.map(gather_leaf, rows, first)

    def scatter(rows: ClientState, client_state: ClientState, row: jax.Array) -> ClientState:
        return jax.tree.map(lambda s, k: s.at[row].set(k, mode="drop"), rows, client_state)

    gathering = jit_once(gather, out_shardings=sharding)
    scattering = jit_once(scatter, out_shardings=sharding, donate_argnums=0)

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
        for i, written, block in _from_blocks(saved, index, arrays):
            arrays[i][written] = block
        rows[0] = jax.device_put(jax.tree.unflatten(jax.tree.structure(rows[0]), arrays), sharding)

    return Store(read, write, contents, restore, rows.clear)


def _where_it_fits(size: int, mesh: Mesh) -> Storage:
    """The first of device, host and disk with room for `size` bytes."""
    if jax.process_count() == 1 and size <= FITS * free_on_devices(mesh) * mesh.devices.size:
        return "device"
    return "host" if size <= FITS * free_on_host() else "disk"
