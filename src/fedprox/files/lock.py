"""One writer to a folder: an advisory lock that ends with its process, however that ends."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedprox.errors import InputError
from fedprox.files.whole import flush_folder, open_no_link
from fedprox.signals import tidied

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"

_NO_LOCKS = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK)
"""What a file system says that has no locks, such as a cluster's that is mounted without them."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder alone, and make it if it is not there.

    The lock is that of the operating system on a file `.lock` in the folder, which says who holds
    it. So a process that is killed leaves a file, which the next one takes over, and no lock. In
    the end the file is removed, and what folders were made here and are still empty. Where the
    system or the file system has no locks, nothing is locked.

    Args:
        folder: The folder.

    Raises:
        InputError: Another process holds it, or `.lock` is a symbolic link.
        OSError: The folder cannot be made or written.
    """
    made = _missing(folder)
    file = None

    def leave() -> None:
        if file is not None:
            # while it is held: whoever opens it now finds out that it is another file
            (folder / NAME).unlink(missing_ok=True)
        for path in made:
            with suppress(OSError):
                path.rmdir()

    try:
        with tidied(leave):
            file = _take(folder)
            for path in made:
                flush_folder(path.parent)
            yield
    finally:
        leave()
        if file is not None:
            os.close(file)


def _missing(folder: Path) -> list[Path]:
    """The folder and those above it that are not there, the innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _take(folder: Path) -> int:
    """The lock's open file, locked."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = open_no_link(folder / NAME, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue  # another process has just removed the folder that it had made
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
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
