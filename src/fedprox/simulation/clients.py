"""The store of what clients keep between rounds: gathered and scattered for each cohort.

It holds a row for every client that ever takes part, and no others: an array for each leaf of what
a client keeps, on the accelerator, in the host's memory, or mapped from a file on disk. Which of
them changes no bit of any result.
"""

import mmap
import os
import tempfile
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from fedprox.algorithms.base import Kept
from fedprox.errors import InputError
from fedprox.simulation.lanes import PER_DEVICE, replicate, zeros_on
from fedprox.simulation.memory import FITS, free_on_devices, free_on_host

ClientState = Literal["auto", "device", "host", "disk"]
"""Where the store lies."""


class Store(NamedTuple):
    """What clients keep.

    Clients are given by place: `clients[p]` is the client whose state lies at place p of all
    devices, -1 for none. Its leaves there have shape (places, points, ...) and are spread over the
    devices.

    Attributes:
        read: Clients (places,) -> what they keep.
        write: Clients, what they keep -> nothing.
        close: Give up the store's memory.
    """

    read: Callable[[NDArray[np.int64]], Kept]
    write: Callable[[NDArray[np.int64], Kept], None]
    close: Callable[[], None]


def open_store(where: ClientState, initial: Kept, clients: NDArray[np.int64], mesh: Mesh) -> Store:
    """A store in which every client keeps the same at first.

    Args:
        where: Where it lies; "auto" is the first of device (an accelerator), host and disk in which
            it fits. On disk it is a file without a name in the folder for temporary files (TMPDIR),
            which goes with the process however that ends.
        initial: What each keeps, leaves (points, ...).
        clients: Those that will ever take part, ascending, shape (rows,).
        mesh: The devices.

    Raises:
        InputError: It does not fit on the disk.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, initial))
    if where == "auto":
        where = _where_it_fits(len(clients) * sum(leaf.nbytes for leaf in leaves), mesh)
    if where == "device":
        return _on_devices(initial, clients, mesh)
    try:
        arrays = [
            _Rows.allocate((len(clients), *leaf.shape), leaf.dtype, mapped=where == "disk")
            for leaf in leaves
        ]
    except (OSError, MemoryError) as error:
        raise InputError(
            f"client_state: no room on {where} for what clients keep: {error}"
        ) from None
    known = np.zeros(len(clients), bool)
    sharding = NamedSharding(mesh, PER_DEVICE)

    def read(at: NDArray[np.int64]) -> Kept:
        row = np.searchsorted(clients, at)
        found = []
        for leaf, rows in zip(leaves, arrays, strict=True):
            gathered = np.zeros((len(at), *leaf.shape), leaf.dtype)
            for place in np.flatnonzero(at >= 0):
                gathered[place] = rows.array[row[place]] if known[row[place]] else leaf
            rows.let_go()
            found.append(jax.device_put(gathered, sharding))
        return jax.tree.unflatten(structure, found)

    def write(at: NDArray[np.int64], kept: Kept) -> None:
        row = np.searchsorted(clients, at)
        for given, rows in zip(jax.tree.leaves(kept), arrays, strict=True):
            for part in given.addressable_shards:
                first, values = part.index[0].start or 0, np.asarray(part.data)
                for place in np.flatnonzero(at[first : first + len(values)] >= 0):
                    rows.array[row[first + place]] = values[place]
            rows.let_go()
        known[row[at >= 0]] = True

    return Store(read, write, arrays.clear)


class _Rows(NamedTuple):
    """An array in memory, or mapped from a file."""

    array: NDArray[Any]
    mapped: mmap.mmap | None

    @classmethod
    def allocate(cls, shape: tuple[int, ...], dtype: Any, *, mapped: bool) -> "_Rows":
        if not mapped:
            return cls(np.zeros(shape, dtype), None)
        size = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1)
        with tempfile.TemporaryFile() as file:  # without a name: it goes with the process
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is known now, not later
            else:
                file.truncate(size)
            held = mmap.mmap(file.fileno(), size)
        return cls(np.frombuffer(held, dtype, int(np.prod(shape))).reshape(shape), held)

    def let_go(self) -> None:
        """Give pages back that have been read or written: the file has them."""
        if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def _on_devices(initial: Kept, clients: NDArray[np.int64], mesh: Mesh) -> Store:
    devices = mesh.devices.size
    room = -(-max(len(clients), 1) // devices) * devices
    sharding = NamedSharding(mesh, PER_DEVICE)
    first = replicate(mesh, initial)
    known = np.zeros(room, bool)
    held = [jax.tree.map(lambda a: zeros_on(mesh, (room, *a.shape), a.dtype), first)]

    def gather(held: Kept, first: Kept, row: jax.Array, known: jax.Array) -> Kept:
        def one(stored: jax.Array, initial: jax.Array) -> jax.Array:
            chosen = known.reshape((-1,) + (1,) * initial.ndim)
            return jnp.where(chosen, stored[row], initial)

        return jax.tree.map(one, held, first)

    def scatter(held: Kept, kept: Kept, row: jax.Array) -> Kept:
        return jax.tree.map(lambda s, k: s.at[row].set(k, mode="drop"), held, kept)

    gathering = jax.jit(gather, out_shardings=sharding)
    scattering = jax.jit(scatter, out_shardings=sharding, donate_argnums=0)

    def read(at: NDArray[np.int64]) -> Kept:
        row = np.where(at >= 0, np.searchsorted(clients, at), 0)
        return gathering(held[0], first, row, known[row])

    def write(at: NDArray[np.int64], kept: Kept) -> None:
        row = np.where(at >= 0, np.searchsorted(clients, at), room)
        held[0] = scattering(held[0], kept, row)
        known[row[at >= 0]] = True

    return Store(read, write, held.clear)


def _where_it_fits(size: int, mesh: Mesh) -> ClientState:
    """The first place with room for `size` bytes."""
    if size <= FITS * free_on_devices(mesh) * mesh.devices.size:
        return "device"
    return "host" if size <= FITS * free_on_host() else "disk"
