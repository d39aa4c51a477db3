"""Writing files: whole, also in case of a power cut, not through links, by one process a folder.

The lock of a folder is advisory and ends with its process, however that ends.
"""

import errno
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fedprox.errors import InputError, foreign
from fedprox.terminal import tidied

NO_LINK, BINARY = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_BINARY", 0)
"""Flags of `os.open` that not all systems have."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically; see `writing_whole`."""
    with writing_whole(path) as file:
        file.write(content)


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically that only its owner may read; see `writing_whole`."""
    with writing_whole(path, 0o600) as file:
        file.write(content)


def replace_private(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files of a folder that only its owner may read, all of them or none.

    Files are by their paths in it. They get their names once all are complete and on the disk.
    """
    with ExitStack() as complete:
        for name, content in files.items():
            file = complete.enter_context(writing_whole(folder / name, 0o600))
            with naming(folder / name):
                file.write(content)
                file.flush()
                os.fsync(file.fileno())


def write_private_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder, complete or not at all, that only its owner may read.

    Files are by their paths in it. Until it is complete its name is `.NAME.partial`.
    """
    partial = folder.with_name(f".{folder.name}.partial")

    def remove() -> None:
        shutil.rmtree(partial, ignore_errors=True)

    folder.parent.mkdir(parents=True, exist_ok=True)
    remove()  # of a process that was killed
    with naming(folder), tidied(remove):
        try:
            partial.mkdir(mode=0o700)
            for name, content in files.items():
                for part in reversed(Path(name).parents[:-1]):
                    (partial / part).mkdir(mode=0o700, exist_ok=True)
                write_private(partial / name, content)
            partial.rename(folder)
        except BaseException:  # also an interrupt
            remove()
            raise
    flush_folder(folder.parent)


@contextmanager
def writing_whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new file that gets its name once it is complete and on the disk.

    Until then its name is `.NAME.partial` in the same folder. An existing file is replaced, and so
    is a symbolic link itself. It has the permissions `mode`, but for the umask.

    An `OSError` names `path`.
    """
    partial = path.with_name(f".{path.name}.partial")
    with naming(path), tidied(partial.unlink):
        try:
            partial.unlink(missing_ok=True)  # from a process that was killed
            # fails if a link has appeared there
            with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
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


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"

_NO_LOCKS = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK)
"""Errors of a file system without locks, such as a cluster's that is mounted without them."""


@contextmanager
def locked(folder: Path, mode: int = 0o777) -> Iterator[None]:
    """Lock a folder against other writers; create it if needed.

    The operating system locks a file `.lock` in the folder, which names the holder. A process that
    is killed leaves the file, which the next one takes over, but no lock. At the end the file is
    removed, and so are folders that were created here and are still empty. Without support by the
    system or the file system, nothing is locked.

    A folder that is created has the permissions `mode`, but for the umask.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    file = None

    def clean_up() -> None:
        if file is not None:
            # while the lock is held: a process that opens the file now sees that it was removed
            (folder / LOCK).unlink(missing_ok=True)
        for path in created:
            with suppress(OSError):
                path.rmdir()

    try:
        with tidied(clean_up):
            file = _acquire(folder, mode)
            for path in created:
                flush_folder(path.parent)
            yield
    finally:
        clean_up()
        if file is not None:
            os.close(file)


def holder(folder: Path) -> str | None:
    """The process that holds the lock of a folder, in words; None if none does."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return None
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return foreign(os.read(file, 200).decode(errors="replace") or "another process")
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _acquire(folder: Path, mode: int) -> int:
    """Open and lock the lock file; returns its descriptor."""
    while True:
        folder.mkdir(mode, parents=True, exist_ok=True)
        try:
            file = open_no_link(folder / LOCK, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue  # another process has just removed the folder that it had created
        try:
            _lock(file, folder)
            if _is_at(file, folder / LOCK):
                os.ftruncate(file, 0)
                os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    if not fcntl:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(file, 200).decode(errors="replace") or "another process"
        raise InputError(
            f"{folder} is being written by {holder}; wait until it ends, or name another folder"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is still the file at a path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
