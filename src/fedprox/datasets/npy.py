"""NumPy's own files, whose headers are not believed."""

import math
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.sources import most, reading, take
from fedprox.errors import InputError, reason, require
from fedprox.files.mapping import read_header


def npz(path: Path, *names: str) -> list[NDArray[np.generic]]:
    """Arrays of numbers or words of an npz file.

    numpy would make room for whatever a header announces, before it reads.

    Raises:
        InputError: It is damaged, or one of them is missing or of another kind.
    """
    arrays = []
    for name in names:
        with reading(path, f"{name}.npy") as file:
            arrays.append(_npy(file, f"{path}/{name}.npy", most(path.stat().st_size)))
    return arrays


def _npy(file: IO[bytes], where: str, largest: int) -> NDArray[np.generic]:
    try:
        shape, columns_first, kind = read_header(file)
    except InputError:
        raise
    except Exception as error:  # numpy evaluates it, which can fail in any way
        raise InputError(f"{where}: not a whole npy file: {reason(error)}") from None
    require(kind.kind in "biufSU", f"{where}: holds {kind}; not numbers or words")
    require(shape, f"{where}: holds a single value")
    needed = math.prod(shape) * kind.itemsize
    content = take(file, min(needed, largest))
    require(
        0 < needed == len(content),
        f"{where}: not a whole npy file: {len(content)} bytes of data where its header says "
        f"{needed}",
    )
    found = np.frombuffer(content, kind).reshape(shape, order="F" if columns_first else "C")
    require_words(found, where)
    return found


def require_words(array: NDArray[Any], where: str) -> None:
    """Raise `InputError` if an array of words holds what is no character."""
    if array.dtype.kind == "U" and array.size:
        codes = array.ravel(order="K").view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        require(codes.max() <= sys.maxunicode, f"{where}: holds words of what are no characters")
