"""The store of client state between rounds: gathered and scattered for each cohort.

The store has one array for each leaf of the client state: on the devices, in host memory, or mapped
from a file on disk. The choice changes no bit of any result. A client gets a row when it first
takes part. In host memory and on disk, a row takes no room before that.
"""

import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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


class Store(ABC):
    """The state of all clients.

    Methods take clients by place: `clients[p]` is the client at place p of all devices, -1 for
    none. The leaves of their state have shape (places, points, ...) and are sharded over the
    devices.
    """

    index: _Index

    @abstractmethod
    def read(self, clients: NDArray[np.int64]) -> ClientState:
        """The state of clients."""

    @abstractmethod
    def write(self, clients: NDArray[np.int64], client_state: ClientState) -> None:
        """Store the state of clients."""

    @abstractmethod
    def arrays(self) -> list[NDArray[Any]]:
        """The rows of each leaf, on the host."""

    def contents(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Names and arrays for a checkpoint: which clients have rows, and these rows in order.

        They are in the order of the clients. Large arrays come in blocks, of which only one is in
        memory at a time.
        """
        yield KNOWN, self.index.known
        rows = self.index.in_order
        for i, array in enumerate(self.arrays()):
            length = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
            for first in range(0, len(rows), length):
                yield f"{i}-{first}-{length}", array[rows[first : first + length]]

    @abstractmethod
    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore what `contents` returned; raise `Damaged` if it is not such as it writes."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory."""


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
        return _OnDevices(initial, index, mesh)
    return _OnHost(initial, index, mesh, mapped=where == "disk")


class _OnHost(Store):
    """The store in the host's memory or on disk."""

    def __init__(self, initial: ClientState, index: _Index, mesh: Mesh, *, mapped: bool) -> None:
        self.index, self.mesh = index, mesh
        self.initial, self.structure = jax.tree.flatten(jax.tree.map(np.asarray, initial))
        kind = _MappedRows if mapped else _Rows
        try:
            self.rows = [kind((index.rows, *leaf.shape), leaf.dtype) for leaf in self.initial]
        except (OSError, MemoryError) as error:
            raise InputError(_no_room("disk" if mapped else "host", error)) from None
        self.local = [d.process_index == jax.process_index() for d in mesh.devices.flat]

    def own(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The client at each place of this process's devices; -1 at all other places."""
        return np.where(np.repeat(self.local, len(clients) // len(self.local)), clients, -1)

    def read(self, clients: NDArray[np.int64]) -> ClientState:
        filled = self.own(clients)
        row = self.index.find(filled)
        gathered = [
            shard(self.mesh, rows.gather(row, filled >= 0, leaf))
            for leaf, rows in zip(self.initial, self.rows, strict=True)
        ]
        return jax.tree.unflatten(self.structure, gathered)

    def write(self, clients: NDArray[np.int64], client_state: ClientState) -> None:
        at = self.own(clients)
        new = self.index.assign(at[at >= 0])
        row = self.index.find(at)
        for leaf, rows in zip(jax.tree.leaves(client_state), self.rows, strict=True):
            rows.make_room(new)
            for part in leaf.addressable_shards:
                first, values = part.index[0].start or 0, np.asarray(part.data)
                for place in np.flatnonzero(row[first : first + len(values)] >= 0):
                    rows.array[row[first + place]] = values[place]
            rows.release()

    def arrays(self) -> list[NDArray[Any]]:
        return [rows.array for rows in self.rows]

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        for i, written, block in _from_blocks(saved, self.index, self.arrays()):
            self.rows[i].make_room(written)
            self.rows[i].array[written] = block
            self.rows[i].release()

    def close(self) -> None:
        for rows in self.rows:
            rows.close()
        self.rows.clear()


class _Rows:
    """An array in memory, whose rows take room when they are first used."""

    array: NDArray[Any]

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.array = np.zeros(shape, dtype)

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
        """Allocate disk space for rows about to be written."""

    def release(self) -> None:
        """Release the memory of pages that have been read or written; a file holds them."""

    def close(self) -> None:
        """Close the file."""


class _MappedRows(_Rows):
    """The same, mapped from an unnamed file, which disappears with the process."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        size = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as its map)
        self.file.truncate(size)
        self.pages = mmap.mmap(self.file.fileno(), size)
        self.array = np.frombuffer(self.pages, dtype, int(np.prod(shape))).reshape(shape)

    def make_room(self, rows: NDArray[np.int64]) -> None:
        # without this, a write to the map would kill the process if the disk is full
        length = self.array[:1].nbytes
        try:
            for row in rows.tolist() if hasattr(os, "posix_fallocate") else ():
                os.posix_fallocate(self.file.fileno(), row * length, length)
        except OSError as error:
            where = f"disk in {tempfile.gettempdir()} (TMPDIR names another folder)"
            raise InputError(_no_room(where, error)) from None

    def release(self) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            self.pages.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self.file.close()


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


def _no_room(where: str, error: Exception) -> str:
    return f"client_store: no room on {where} for client state: {error}"


class _OnDevices(Store):
    """The store on the devices."""

    def __init__(self, initial: ClientState, index: _Index, mesh: Mesh) -> None:
        devices = mesh.devices.size
        self.index, self.room = index, -(-max(index.rows, 1) // devices) * devices
        self.sharding, self.first = NamedSharding(mesh, PER_DEVICE), replicate(mesh, initial)
        self.rows = jax.tree.map(
            lambda a: zeros_on(mesh, (self.room, *a.shape), a.dtype), self.first
        )
        self.gather = jit_once(_gather, out_shardings=self.sharding)
        self.scatter = jit_once(_scatter, out_shardings=self.sharding, donate_argnums=0)

    def read(self, clients: NDArray[np.int64]) -> ClientState:
        row = self.index.find(clients)
        return self.gather(self.rows, self.first, np.maximum(row, 0), row >= 0)

    def write(self, clients: NDArray[np.int64], client_state: ClientState) -> None:
        self.index.assign(clients[clients >= 0])
        row = self.index.find(clients)
        self.rows = self.scatter(self.rows, client_state, np.where(row >= 0, row, self.room))

    def arrays(self) -> list[NDArray[Any]]:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.rows)]

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        leaves, structure = jax.tree.flatten(self.rows)
        arrays = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        for i, written, block in _from_blocks(saved, self.index, arrays):
            arrays[i][written] = block
        self.rows = jax.device_put(jax.tree.unflatten(structure, arrays), self.sharding)

    def close(self) -> None:
        del self.rows


def _gather(rows: ClientState, first: ClientState, row: jax.Array, known: jax.Array) -> ClientState:
    """The stored rows, and the first state where there is none."""

    def leaf(stored: jax.Array, initial: jax.Array) -> jax.Array:
        return jnp.where(known.reshape((-1,) + (1,) * initial.ndim), stored[row], initial)

    return jax.tree.map(leaf, rows, first)


def _scatter(rows: ClientState, client_state: ClientState, row: jax.Array) -> ClientState:
    return jax.tree.map(lambda s, k: s.at[row].set(k, mode="drop"), rows, client_state)


def _where_it_fits(size: int, mesh: Mesh) -> Storage:
    """The first of device, host and disk with room for `size` bytes."""
    if jax.process_count() == 1 and size <= FITS * free_on_devices(mesh) * mesh.devices.size:
        return "device"
    return "host" if size <= FITS * free_on_host() else "disk"
