"""One writer for each folder: an advisory lock that ends with its process, however that ends."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedprox.errors import InputError, foreign
from fedprox.files.whole import flush_folder, open_no_link
from fedprox.terminal.signals import tidied

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"

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
            (folder / NAME).unlink(missing_ok=True)
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
        file = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        if fcntl is not None:
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
            file = open_no_link(folder / NAME, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue  # another process has just removed the folder that it had created
        try:
            _lock(file, folder)
            if _is_at(file, folder / NAME):
                os.ftruncate(file, 0)
                os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    if fcntl is None:
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
