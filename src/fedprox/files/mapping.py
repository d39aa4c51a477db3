"""Arrays that are mapped from files: reading some of their rows, and letting go of what was read.

The pages of a mapped file that were read count as the process's memory until they are given back.
Nothing is lost then: the file has them, and the system may keep them for the next time.
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
"""Stretches read before their pages are let go. The system maps 64 KB to 2 MB around each."""

ASKED_FOR = 64
"""Stretches of an open file that the system is asked for before they are read. A disk reads many at
a time, and whoever reads one after another waits for each."""


class MappedFile(np.memmap):
    """A mapped array whose file is kept open, so that rows can also be read in the usual way.

    For stretches of a few KB here and there that takes a third of the time of touching their pages,
    and of a file that was cut short meanwhile it is an error and not the end of the process.

    Attributes:
        file: The open file's number; None for a part of the array.
    """

    file: int | None = None


def map_file(path: Path) -> Array:
    """Map an .npy file for reading.

    Raises:
        InputError: It is missing, or not an array that can be mapped.
    """
    require(path.is_file(), f"{path}: missing")
    try:
        with path.open("rb") as file:
            read_header(file)
        found = npy.open_memmap(path, mode="r").view(MappedFile)
        found.file = os.open(path, os.O_RDONLY)
        weakref.finalize(found, os.close, found.file)
    except Exception as error:  # whatever is wrong with its header or its length
        raise InputError(f"{path}: not an array that can be mapped: {reason(error)}") from None
    return found


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the beginning of an npy file: shape, whether columns come first, and type.

    A header of version 1 is at most 64 KB long. Later ones may be of 4 GB, for which numpy makes
    room at once. Lengths below 0 and types of no bytes can end the process where numpy maps them.

    Raises:
        ValueError: It is another file, or of a later version, or announces what cannot be.
    """
    major, minor = npy.read_magic(file)
    if major != 1:
        raise ValueError(f"a header of version {major}.{minor}; it must be 1.0")
    shape, columns_first, kind = npy.read_array_header_1_0(file)
    if min(shape, default=0) < 0 or not kind.itemsize:
        raise ValueError(f"an array of type {kind} and shape {shape}; there is no such array")
    return shape, columns_first, kind


def let_go(array: Array) -> None:
    """Give back the pages of an array that is mapped for reading alone; others are left alone."""
    mapped = isinstance(array, np.memmap) and array.mode == "r"
    held: Any = array
    while isinstance(held, np.ndarray):
        held = held.base
    if mapped and isinstance(held, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        held.madvise(mmap.MADV_DONTNEED)


def copy_stretches(
    source: Array,
    first: NDArray[np.int64],
    size: NDArray[np.int64],
    place: NDArray[np.int64],
    room: int,
) -> Array:
    """Stretches of an array's rows, in an array of their own.

    >>> numbers, two = np.arange(10), np.array([2, 2])
    >>> copy_stretches(numbers, np.array([5, 1]), two, np.array([0, 3]), room=6).tolist()
    [5, 6, 0, 1, 2, 0]

    Args:
        source: The array, shape (rows, ...).
        first: First row of each stretch, shape (stretches,).
        size: Its rows, shape (stretches,).
        place: Where it begins in the result, shape (stretches,).
        room: Rows of the result; those of no stretch are zero.
    """
    found = np.zeros((room, *source.shape[1:]), source.dtype)
    stretches = list(zip(first.tolist(), size.tolist(), place.tolist(), strict=True))
    if isinstance(source, MappedFile) and source.file is not None and hasattr(os, "preadv"):
        _read(source, source.file, stretches, found)
        return found
    plain = np.asarray(source)
    for i, (begin, rows, at) in enumerate(stretches, start=1):
        found[at : at + rows] = plain[begin : begin + rows]
        if i % STRETCHES == 0:
            let_go(source)
    let_go(source)
    return found


def _read(
    source: MappedFile, file: int, stretches: Sequence[tuple[int, int, int]], found: Array
) -> None:
    """Read (first row, rows, place) of an open file into an array."""
    row = found[:1].nbytes
    content = found.reshape(-1).view(np.uint8)

    def ask_for(some: Sequence[tuple[int, int, int]]) -> None:
        for begin, rows, _ in some:
            if rows and hasattr(os, "posix_fadvise"):  # no length would be all that follows
                first = source.offset + begin * row
                os.posix_fadvise(file, first, rows * row, os.POSIX_FADV_WILLNEED)

    ask_for(stretches[:ASKED_FOR])
    for i, (begin, rows, at) in enumerate(stretches, start=ASKED_FOR):
        ask_for(stretches[i : i + 1])
        done, end = at * row, (at + rows) * row
        begin_byte = source.offset + begin * row - done
        while done < end:
            count = os.preadv(file, [content[done:end].data], begin_byte + done)
            require(count, f"{source.filename}: shorter than it was")
            done += count
