"""Files of arrays with a checksum.

A file consists of

* a line of text, the head, which says what the file is,
* arrays, each a line of JSON, [keys, dtype, shape], and its bytes,
* the SHA-256 of everything before it, to be checked before anything is used.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.files.whole import flush_folder, writing_whole

CHUNK = 2**20
"""Bytes that are read at a time to check a file."""


class Damaged(Exception):  # noqa: N818 (the caller has another file)
    """A file cannot be used. The message is one line that names it."""


def write_arrays(
    path: Path, head: str, arrays: Iterable[tuple[Sequence[str], NDArray[Any]]]
) -> None:
    """Write a file atomically, one array after another.

    Args:
        path: The file. Its folder is created if needed, and removed again on failure.
        head: The first line.
        arrays: Pairs (keys, array).
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


def check_arrays(path: Path) -> str:
    """The head of a file, after checking the checksum.

    Raises:
        Damaged: If the checksum is wrong, or the file cannot be read.
    """
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
    return head.partition(b"\n")[0].decode()


def read_arrays(path: Path) -> Iterator[tuple[list[str], NDArray[Any]]]:
    """Yield the pairs (keys, array) of a file whose checksum is right."""
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size - hashlib.sha256().digest_size
        file.readline()
        while file.tell() < end:
            keys, dtype, shape = json.loads(file.readline())
            array = np.empty(shape, dtype)
            file.readinto(_bytes_of(array))
            yield keys, array


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
