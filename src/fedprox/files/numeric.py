"""NumPy's .npz files and MNIST's idx files, read without trusting their headers."""

import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require
from fedprox.files.mapping import read_header
from fedprox.files.packed import read_rest, reading, refusing


def npz(path: Path, *names: str) -> list[NDArray[Any]]:
    """Read arrays of numbers or words from an .npz file.

    NumPy would allocate whatever size a header announces before it reads.
    """
    return [_read(path, f"{name}.npy") for name in names]


def _read(path: Path, member: str) -> NDArray[Any]:
    where = f"{path}/{member}"
    with reading(path, member) as file:
        with refusing(f"{where}: not a whole npy file"):
            shape, columns_first, kind = read_header(file)
        require(kind.kind in "biufSU", f"{where}: holds {kind}; not numbers or words")
        require(shape, f"{where}: holds a single value")
        content = read_rest(file, math.prod(shape) * kind.itemsize, where)
    array = np.frombuffer(content, kind).reshape(shape, order="F" if columns_first else "C")
    require_words(array, where)
    return array


def require_words(array: NDArray[Any], where: str) -> None:
    """Raise `InputError` if an array of words holds a code that is not a character."""
    if array.dtype.kind == "U" and array.size:
        codes = array.ravel(order="K").view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        require(
            codes.max() <= sys.maxunicode,
            f"{where}: holds words with codes that are not characters",
        )


_IDX: dict[type[Any], tuple[int, str, np.dtype[Any]]] = {
    np.uint8: (8, "unsigned bytes", np.dtype("u1")),
    np.int32: (12, "32-bit numbers", np.dtype(">i4")),
}
"""For each type: its code in an idx file, its name in messages, and how numbers are stored."""


def read_idx(path: Path, member: str | None = None, kind: type[Any] = np.uint8) -> NDArray[Any]:
    """Read an idx file of np.uint8 or np.int32, packed or not, or a member of an archive."""
    where = f"{path}/{member}" if member else str(path)
    code, what, stored = _IDX[kind]
    with reading(path, member) as file:
        head = file.read(4)
        dimensions = head[3] if len(head) == 4 and head[:3] == bytes([0, 0, code]) else 0
        lengths = file.read(4 * dimensions)
        require(
            1 <= dimensions <= 4 and len(lengths) == 4 * dimensions,
            f"{where}: not an idx file of {what}",
        )
        shape = struct.unpack(f">{dimensions}I", lengths)
        require(0 not in shape, f"{where}: its header says that it holds nothing: shape {shape}")
        content = read_rest(file, math.prod(shape) * stored.itemsize, where)
    return np.frombuffer(content, stored).reshape(shape).astype(kind, copy=False)
