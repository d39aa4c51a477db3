"""Arrays that are mapped from files: reading some of their rows, and letting go of what was read.

The pages of a mapped file that were read count as the process's memory until they are given back.
Nothing is lost then: the file has them, and the system may keep them for the next time.
"""

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

STRETCHES = 64
"""Stretches read before their pages are let go. The system reads at least 64 KB around each."""


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
    plain = np.asarray(source)
    stretches = zip(first.tolist(), size.tolist(), place.tolist(), strict=True)
    for i, (begin, rows, at) in enumerate(stretches, start=1):
        found[at : at + rows] = plain[begin : begin + rows]
        if i % STRETCHES == 0:
            let_go(source)
    let_go(source)
    return found
