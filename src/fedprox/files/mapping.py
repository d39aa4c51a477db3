"""Memory-mapped arrays: reading some of their rows, and releasing the pages that were read.

The pages of a mapped file that were read count as the process's memory until they are released. The
file still has them, and the system may keep them in its cache.
"""

import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedprox.errors import InputError, reason, require

Array = NDArray[Any]

STRETCHES = 16
"""Stretches read before their pages are released. The system maps 64 KB to 2 MB around each."""

PREFETCHED = 64
"""Stretches of an open file that the system is asked to prefetch. A disk reads many at a time, but
reads that follow each other wait for each."""


class MappedFile(np.memmap):
    """A mapped array whose file stays open, so that rows can also be read by system calls.

    For scattered stretches of a few KB this takes a third of the time of touching their pages. A
    file that was truncated meanwhile gives an error instead of killing the process.

    Attributes:
        file: Descriptor of the open file; None for a view of the array.
    """

    file: int | None = None


def map_file(path: Path) -> Array:
    """Map an .npy file for reading."""
    require(path.is_file(), f"{path}: missing")
    try:
        with path.open("rb") as file:
            read_header(file)
        array = npy.open_memmap(path, mode="r").view(MappedFile)
        array.file = os.open(path, os.O_RDONLY)
        weakref.finalize(array, os.close, array.file)
    except Exception as error:  # whatever is wrong with its header or its length
        raise InputError(f"{path}: not an array that can be mapped: {reason(error)}") from None
    return array


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy file: shape, whether it is in Fortran order, and type.

    A header of version 1 has at most 64 KB. Later ones may have 4 GB, which NumPy would allocate at
    once. Negative lengths and types of no bytes can kill the process if NumPy maps them.

    Such headers, and those of other files, raise a `ValueError`.
    """
    major, minor = npy.read_magic(file)
    if major != 1:
        raise ValueError(f"a header of version {major}.{minor}; it must be 1.0")
    shape, columns_first, kind = npy.read_array_header_1_0(file)
    # numpy 2.0 counts the bytes of a long word in 32 bits, below 0
    if min(shape, default=0) < 0 or kind.itemsize <= 0:
        raise ValueError(f"an array of type {kind} and shape {shape}; there is no such array")
    return shape, columns_first, kind


def release_pages(array: Array) -> None:
    """Release the pages of an array that is mapped read-only; other arrays are left as they are."""
    mapped = isinstance(array, np.memmap) and array.mode == "r"
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if mapped and isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def copy_stretches(
    source: Array,
    first: NDArray[np.int64],
    size: NDArray[np.int64],
    place: NDArray[np.int64],
    room: int,
) -> Array:
    """Copy stretches of an array's rows, of some sizes, to places of a new array of `room` rows.

    Rows outside all stretches are zero.

    >>> numbers, two = np.arange(10), np.array([2, 2])
    >>> copy_stretches(numbers, np.array([5, 1]), two, np.array([0, 3]), room=6).tolist()
    [5, 6, 0, 1, 2, 0]
    """
    copy = np.zeros((room, *source.shape[1:]), source.dtype)
    stretches = list(zip(first.tolist(), size.tolist(), place.tolist(), strict=True))
    if isinstance(source, MappedFile) and source.file is not None and hasattr(os, "preadv"):
        _read(source, source.file, stretches, copy)
        return copy
    plain = np.asarray(source)
    for i, (begin, rows, at) in enumerate(stretches, start=1):
        copy[at : at + rows] = plain[begin : begin + rows]
        if i % STRETCHES == 0:
            release_pages(source)
    release_pages(source)
    return copy


def _read(
    source: MappedFile, file: int, stretches: Sequence[tuple[int, int, int]], target: Array
) -> None:
    """Read stretches (first row, rows, place) of an open file into an array."""
    row = target[:1].nbytes
    content = target.reshape(-1).view(np.uint8)

    def prefetch(some: Sequence[tuple[int, int, int]]) -> None:
        for begin, rows, _ in some:
            if rows and hasattr(os, "posix_fadvise"):  # length 0 would mean the rest of the file
                first = source.offset + begin * row
                os.posix_fadvise(file, first, rows * row, os.POSIX_FADV_WILLNEED)

    prefetch(stretches[:PREFETCHED])
    for i, (begin, rows, at) in enumerate(stretches, start=PREFETCHED):
        prefetch(stretches[i : i + 1])
        done, end = at * row, (at + rows) * row
        begin_byte = source.offset + begin * row - done
        while done < end:
            count = os.preadv(file, [content[done:end].data], begin_byte + done)
            require(count, f"{source.filename}: shorter than it was")
            done += count
