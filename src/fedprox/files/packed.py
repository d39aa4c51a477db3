"""Packed files (.gz, .xz, .zip, .npz, .tar), read as streams of limited length."""

import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PureWindowsPath
from typing import IO, Any

from fedprox.bar import Bar
from fedprox.errors import InputError, reason, require

Stream = IO[bytes] | io.BufferedIOBase

LINE = 1 << 24
"""Most bytes of a line of text."""

ROOM, RATIO = 1 << 24, 200
"""Bytes that any packed file may unpack to, and further bytes for each of its own."""


def unpacked_limit(packed: int) -> int:
    """Most bytes that a packed file of `packed` bytes may unpack to.

    Data files unpack to three to thirty times their size. A file that unpacks to a thousand times
    its size was made to fill the memory.
    """
    return ROOM + RATIO * packed


@contextmanager
def reading(
    path: Path, member: str | None = None, *, unpack: bool = True
) -> Iterator["io.BufferedReader[Any]"]:
    """Open a file as a stream that is unpacked while it is read.

    A progress bar appears on a terminal when reading takes longer than a second.

    Args:
        path: The file.
        member: Name of the file in a `.zip` or `.npz` archive, in any folder of it. With `unpack`,
            such an archive needs it.
        unpack: Whether to unpack `.zip`, `.npz`, `.gz` and `.xz`, and a `.gz` in an archive.

    Raises:
        InputError: The file cannot be read, is damaged, or unpacks to more than `unpacked_limit`
            bytes. The error may come later, while the stream is read.
    """
    with ExitStack() as opened:
        try:
            file: io.RawIOBase = opened.enter_context(_opened(path, member, unpack))
        except InputError:
            raise
        except Exception as error:  # a damaged archive can fail in any way
            raise InputError(f"{path}: cannot be read: {reason(error)}") from None
        yield opened.enter_context(io.BufferedReader(file, BUFFER))


BUFFER = 1 << 20


@contextmanager
def _opened(path: Path, member: str | None, unpack: bool) -> Iterator["_Stream"]:
    size = path.stat().st_size
    with ExitStack() as opened:
        if unpack and path.suffix in (".zip", ".npz"):
            archive = opened.enter_context(zipfile.ZipFile(path))
            info = _member(path, archive, member)
            where, total = f"{path}/{member}", info.file_size
            raw: Any = opened.enter_context(archive.open(info))
        else:
            where, total = str(path), size
            raw = opened.enter_context(path.open("rb", buffering=0))
        bar = opened.enter_context(Bar(path.name, total, delay=1))
        file = _Stream(raw, where, unpacked_limit(size), bar.update)
        packing = Path(where).suffix if unpack else ""
        if packing in (".gz", ".xz"):
            buffered = io.BufferedReader(file, BUFFER)
            unpacked = gzip.GzipFile(fileobj=buffered) if packing == ".gz" else _Unxz(buffered)
            file = _Stream(unpacked, where, unpacked_limit(size))
        yield file


def _member(path: Path, archive: zipfile.ZipFile, member: str | None) -> zipfile.ZipInfo:
    for name in archive.namelist():
        require_inside(path, name)
    names = {name.rsplit("/")[-1]: name for name in archive.namelist()}
    require(member is not None, f"{path}: a .zip archive cannot be read here; unpack it")
    require(member in names, f"{path}: {member} is missing in this archive")
    info = archive.getinfo(names[str(member)])
    require(not info.flag_bits & 1, f"{path}: {member} is encrypted")
    return info


def require_inside(path: Path, name: str) -> None:
    """Raise `InputError` if a name in an archive leads out of the archive's folder.

    Nothing is unpacked to disk, but an archive with such a name is not a data set.
    """
    parts = PureWindowsPath(name)  # knows both kinds of slashes, and drives
    outside = bool(parts.anchor) or ".." in parts.parts
    require(not outside, f"{path}: {name!r} would lie outside the folder of this archive")


def text_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The lines of a stream, with their ends.

    Raises:
        InputError: A line has more than `LINE` bytes.
    """
    number = 0
    while line := file.readline(LINE + 1):
        number += 1
        if len(line) > LINE:
            raise InputError(f"{path}: line {number}: more than {LINE:,} bytes; not a text")
        yield line


def read_up_to(file: IO[bytes], count: int) -> bytearray:
    """Read `count` bytes, or fewer at the end of the stream; memory grows with what is read."""
    content = bytearray()
    while len(content) < count and (block := file.read(min(count - len(content), BUFFER))):
        content += block
    return content


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
        try:
            count: int = self._file.readinto(buffer)
        except InputError:
            raise
        except Exception as error:  # a damaged archive can fail in any way
            raise InputError(f"{self._where}: cannot be read: {reason(error)}") from None
        self._left -= count
        require(
            self._left >= 0,
            f"{self._where}: cannot be read: it unpacks to more than {self._most:,} bytes, which "
            "is too much for its size",
        )
        self._on_read(count)
        return count


class _Unxz(io.RawIOBase):
    """Unpacks an .xz file in the memory that common settings need.

    The file holds one stream, or several with zeros between them.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._begin()

    def _begin(self) -> None:
        self._unpack = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 27)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = b""
        while not content:
            packed = b""
            if self._unpack.eof:
                packed = self._after()
                if not packed:
                    break
                self._begin()
            elif self._unpack.needs_input:
                packed = self._file.read(1 << 16)
                if not packed:
                    raise EOFError("it ends before its last block")
            content = self._unpack.decompress(packed, len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def _after(self) -> bytes:
        """The beginning of the next stream; nothing after the last."""
        packed = self._unpack.unused_data.lstrip(b"\0")
        while not packed and (block := self._file.read(1 << 16)):
            packed = block.lstrip(b"\0")
        return packed


def tar_members(path: Path, names: Collection[str]) -> Iterator[tuple[str, Stream]]:
    """The members of a packed .tar archive with some names, in the archive's order.

    Args:
        path: The archive, which is unpacked while it is read.
        names: Names of files, in any folder of the archive.

    Yields:
        A name, and the file as a stream that must be read before the next one is asked for.

    Raises:
        InputError: The archive is damaged, or holds anything but files and folders.
    """
    try:
        with (
            reading(path) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as archive,
        ):
            for member in archive:
                require_inside(path, member.name)
                require(
                    (member.isreg() or member.isdir()) and not member.issparse(),
                    f"{path}: {member.name!r} is neither a file nor a folder",
                )
                name = member.name.rsplit("/")[-1]
                file = archive.extractfile(member)
                if file is not None and name in names:
                    yield name, file
            while unpacked.read(BUFFER):
                pass  # up to the checksum at its end
    except InputError:
        raise
    except Exception as error:  # a damaged archive can fail in any way
        raise InputError(f"{path}: cannot be read: {reason(error)}") from None
