"""Packed files (.gz, .xz, .zip, .npz, .tar), read as streams of limited length."""

import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from fedprox.errors import InputError, reason, require
from fedprox.terminal.bar import Bar

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
