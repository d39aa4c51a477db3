"""Files of arrays with a checksum.

A file consists of

* a line of text, the head, which says what the file is,
* arrays, each a line of JSON, [keys, dtype, shape], and its bytes,
* the SHA-256 of everything before it, to be checked before anything is used.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fedprox.files.whole import flush_folder, writing_whole

CHUNK = 2**20
"""Bytes that are read at a time to check a file, and the most of an array's line of JSON."""

MOST_DIMENSIONS, MOST_ARRAY_BYTES = 32, 2**62
"""Bounds of arrays, as NumPy has them, also of those without elements."""


class Damaged(Exception):  # noqa: N818 (the caller has another file)
    """A file cannot be used. The message is one line that names it."""


def write_arrays(
    path: Path, head: str, arrays: Iterable[tuple[Sequence[str], NDArray[Any]]]
) -> str:
    """Write pairs (keys, array) to a file atomically; returns the checksum in hexadecimal digits.

    Its folder is created if needed, and removed again on failure.
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)  # another process may create it too
        flush_folder(path.parent.parent)
    digest = hashlib.sha256()
    try:
        with writing_whole(path) as file:

            def put(content: bytes | memoryview) -> None:
                digest.update(content)
                file.write(content)

            put(f"{head}\n".encode())
            for keys, array in arrays:
                put(json.dumps([keys, array.dtype.name, array.shape]).encode() + b"\n")
                put(_bytes_of(np.ascontiguousarray(array)))
            file.write(digest.digest())
    except BaseException:
        with suppress(OSError):
            path.parent.rmdir()  # if it is empty
        raise
    return digest.hexdigest()


def check_arrays(path: Path) -> tuple[str, str]:
    """The head and the checksum of a file; raises `Damaged` if the checksum is wrong."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            left = max(0, os.fstat(file.fileno()).st_size - digest.digest_size)
            head = file.read(min(left, CHUNK))
            chunk = head
            while chunk:
                digest.update(chunk)
                left -= len(chunk)
                chunk = file.read(min(left, CHUNK))
            whole = file.read() == digest.digest()
    except OSError as error:
        raise Damaged(f"{path}: cannot be read: {error.strerror}") from None
    if not whole:
        raise Damaged(f"{path}: damaged, for its checksum does not fit")
    return head.partition(b"\n")[0].decode(errors="replace"), digest.hexdigest()


def read_arrays(path: Path) -> Iterator[tuple[list[str], NDArray[Any]]]:
    """Yield the pairs (keys, array) of a file whose checksum is right.

    A right checksum does not make the contents right: whoever wrote the file computed it.

    Contents that are not as `write_arrays` writes them raise `Damaged`.
    """
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size - hashlib.sha256().digest_size
        file.readline()
        while file.tell() < end:
            try:
                keys, dtype, shape = _described(file, end)
            except (ValueError, TypeError, RecursionError):
                raise malformed(path, "an array is not described as it should be") from None
            array = np.empty(shape, dtype)
            file.readinto(_bytes_of(array))
            yield keys, array


def malformed(path: Path, problem: str) -> Damaged:
    """The error about a file whose checksum is right and whose contents are not."""
    return Damaged(f"{path}: damaged, although its checksum fits: {problem}")


def _described(file: BinaryIO, end: int) -> tuple[list[str], np.dtype[Any], tuple[int, ...]]:
    """Read the line that describes an array, whose bytes end before `end`."""
    keys, name, shape = json.loads(file.readline(CHUNK))
    known = (
        isinstance(keys, list)
        and all(isinstance(key, str) for key in keys)
        and re.fullmatch(r"bool|(u?int|b?float|complex)\d+\w*", name)
        and isinstance(shape, list)
        and len(shape) <= MOST_DIMENSIONS
        and all(type(n) is int and 0 <= n < MOST_ARRAY_BYTES for n in shape)
    )
    if not known:
        raise ValueError("not the line of an array")
    dtype = np.dtype(name)
    size = math.prod(max(n, 1) for n in shape) * dtype.itemsize
    if size > (MOST_ARRAY_BYTES if 0 in shape else end - file.tell()):
        raise ValueError("larger than what follows")
    return keys, dtype, tuple(shape)


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
