"""Data files that are not trusted: streams of limited length, arrays, and tables of columns.

No header is believed before what it announces is read.
"""

import csv
import gzip
import io
import lzma
import math
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, reason, require
from fedprox.files.mapping import read_header
from fedprox.terminal import Bar

LINE = 1 << 24
"""Most bytes of a line of text."""

ROOM, RATIO = 1 << 24, 200
"""Bytes that any packed file may unpack to, and further bytes for each of its own.

Data files unpack to three to thirty times their size. A file that unpacks to a thousand times its
size was made to fill the memory.
"""

BUFFER = 1 << 20


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Make `InputError`s of all other errors: reading a damaged file can fail in any way."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {reason(error)}") from None


def unpacked_limit(packed: int) -> int:
    """Most bytes that a packed file of `packed` bytes may unpack to."""
    return ROOM + RATIO * packed


@contextmanager
def reading(path: Path, member: str | None = None) -> Iterator["io.BufferedReader[Any]"]:
    """Open a file, or a member of an archive, as a stream that is unpacked while it is read.

    `member` is a file in a `.zip` or `.npz` archive, in any folder of it. A progress bar appears on
    a terminal when reading takes longer than a second.

    A file that is damaged, or unpacks to more than `unpacked_limit` bytes, may fail only while the
    stream is read.
    """
    with ExitStack() as opened:
        with refusing(f"{path}: cannot be read"):
            where, total = str(path), path.stat().st_size
            most = unpacked_limit(total)
            raw: IO[bytes]
            if path.suffix in (".zip", ".npz"):
                require(
                    member is not None, f"{path}: a .zip archive cannot be read here; unpack it"
                )
                archive = opened.enter_context(zipfile.ZipFile(path))
                names = {name.rsplit("/")[-1]: name for name in archive.namelist()}
                require(member in names, f"{path}: {member} is missing in this archive")
                info = archive.getinfo(names[str(member)])
                where, total = f"{path}/{member}", info.file_size
                raw = opened.enter_context(archive.open(info))
            else:
                raw = opened.enter_context(path.open("rb", buffering=0))
        bar = opened.enter_context(Bar(path.name, total, delay=1))
        file = io.BufferedReader(_Stream(raw, where, most, bar.update), BUFFER)
        packing = Path(where).suffix
        if packing in (".gz", ".xz"):
            unpacked: Any = gzip.open if packing == ".gz" else lzma.open
            file = io.BufferedReader(_Stream(unpacked(file), where, most), BUFFER)
        yield opened.enter_context(file)


class _Stream(io.RawIOBase):
    """A stream of limited length whose failures are `InputError`s."""

    def __init__(
        self, file: Any, where: str, most: int, on_read: Callable[[int], object] = lambda _: None
    ) -> None:
        self._file, self._where, self._on_read = file, where, on_read
        self._most = self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with refusing(f"{self._where}: cannot be read"):
            count: int = self._file.readinto(buffer)
        self._left -= count
        require(
            self._left >= 0,
            f"{self._where}: cannot be read: it unpacks to more than {self._most:,} bytes, which "
            "is too much for its size",
        )
        self._on_read(count)
        return count


def text_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The lines of a stream, with their ends, of at most `LINE` bytes each."""
    number = 0
    while line := file.readline(LINE + 1):
        number += 1
        if len(line) > LINE:
            raise InputError(f"{path}: line {number}: more than {LINE:,} bytes; not a text")
        yield line


def read_rest(file: IO[bytes], count: int, where: str) -> bytearray:
    """Read the last `count` bytes of a stream, in memory that grows with what is read."""
    content = bytearray()
    while len(content) < count and (block := file.read(min(count - len(content), BUFFER))):
        content += block
    if len(content) < count or file.read(1):
        held = "more" if len(content) == count else len(content)
        raise InputError(f"{where}: {held} bytes of data where its header says {count}")
    return content


def tar_members(path: Path, names: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the files of a packed .tar archive with some names, in any folder of it.

    Each must be read before the next one is asked for. Links, devices and files with holes are
    passed over, and nothing is unpacked to disk.
    """
    with (
        refusing(f"{path}: cannot be read"),
        reading(path) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|") as archive,
    ):
        for member in archive:
            name = member.name.rsplit("/")[-1]
            if name in names and member.isreg() and not member.issparse():
                file = archive.extractfile(member)
                assert file is not None
                yield name, file
        while unpacked.read(BUFFER):
            pass  # up to the checksum at its end


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


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a .csv, .npz or .parquet table by name, of equal lengths.

    A CSV file names its columns in the first line; a column is of numbers if all of its values are.
    Parquet files need pyarrow.
    """
    ending = path.suffix.lower()
    require(ending in TABLES, f"{path}: its name must end in {', '.join(TABLES)}")
    what, read = TABLES[ending]
    with refusing(f"{path}: not {what} file"):
        try:
            columns = read(path)
        except OSError as error:
            raise InputError(f"{path}: {reason(error)}") from None
    shapes = {array.shape for array in columns.values()}
    require(
        len(shapes) == 1 and len(next(iter(shapes))) == 1 and next(iter(shapes))[0] > 0,
        f"{path}: it must have columns of one length, with a row at least",
    )
    return columns


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    for number, row in enumerate(rows, start=2):
        require(
            len(row) == len(header),
            f"{path}: line {number} has {len(row)} values; the first line names {len(header)} "
            "columns",
        )
    columns = zip(header, zip(*rows, strict=True), strict=bool(rows))
    return {name.strip(): _column(column) for name, column in columns}


def _column(values: tuple[str, ...]) -> NDArray[Any]:
    """A column of a CSV file: whole numbers, numbers or texts."""
    for kind in (np.int64, np.float64):
        with suppress(ValueError):
            return np.array(values).astype(kind)
    return np.array(values)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(path) as packed:
        names = [name.removesuffix(".npy") for name in packed.namelist()]
    return dict(zip(names, npz(path, *names), strict=True))


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet files need pyarrow: pip install pyarrow") from None
    table = parquet.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


TABLES: dict[str, tuple[str, Callable[[Path], dict[str, NDArray[Any]]]]] = {
    ".csv": ("a CSV", _read_csv),
    ".npz": ("an .npz", _read_npz),
    ".parquet": ("a Parquet", _read_parquet),
}
"""The files of tables by the ends of their names: what they are, and how they are read."""
