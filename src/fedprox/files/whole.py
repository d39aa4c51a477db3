"""Atomic writes, also in case of a power cut, that do not follow symbolic links."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fedprox.errors import InputError
from fedprox.terminal.signals import tidied

NO_LINK, BINARY = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_BINARY", 0)
"""Flags of `os.open` that not all systems have."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; see `writing_whole`."""
    with writing_whole(path) as file:
        file.write(content)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read, in place of an earlier one."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)


@contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that gets its name once it is complete and on the disk.

    Until then its name is `.NAME.partial` in the same folder. An existing file is replaced, and so
    is a symbolic link itself.

    An `OSError` names `path`.
    """
    partial = path.with_name(f".{path.name}.partial")
    with naming(path), tidied(partial.unlink):
        try:
            partial.unlink(missing_ok=True)  # from a process that was killed
            with partial.open("xb") as file:  # fails if a link has appeared there
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:  # also an interrupt
            with suppress(OSError):  # the first error is the one to report
                partial.unlink()
            raise
    flush_folder(path.parent)


def append(file: BinaryIO, path: Path, line: bytes) -> None:
    """Append a line to an unbuffered file, which is at its end, or leave the file as it was.

    An `OSError` names `path`.
    """
    end = file.tell()
    try:
        with naming(path):
            written = file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(end)
        file.seek(end)
        raise


def flush_folder(folder: Path) -> None:
    """Flush a folder to disk, so that creations, renamings and removals survive a power cut."""
    with suppress(OSError):  # Windows and some network file systems cannot flush folders
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def open_no_link(path: Path, flags: int) -> int:
    """Open a file for writing, by `os.open`, unless it is a symbolic link."""
    try:
        return os.open(path, flags | NO_LINK | BINARY, 0o666)
    except OSError:
        refuse_link(path)
        raise


def refuse_link(path: Path) -> None:
    """Raise `InputError` if a file or folder to write is a symbolic link."""
    if path.is_symlink():
        raise InputError(f"{path} is a symbolic link, which is not followed; remove it")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors that do not name it, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(error.filename).name.endswith(".partial"):
            error.filename = str(path)
        raise
