"""Prepared arrays: made once from their source files, kept, and memory-mapped after that.

An entry is a folder `prepared/NAME-KEY` of the cache folder (`FEDPROX_CACHE`, else the user's) with
one `.npy` file for each array and a manifest of checksums. It appears under its name in one rename,
once it is whole. The key is a checksum of the sources' content, of the options and of the
version of the preparation, so a changed source is another entry and nothing is ever out of date.
Old entries are not removed; the folder may be emptied at any time.
"""

import hashlib
import json
import logging
import os
import shutil
import socket
import tempfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.sources import cache_folder
from fedprox.files.mapping import map_file
from fedprox.files.packed import reading

Arrays = dict[str, NDArray[Any]]

MANIFEST = "manifest.json"


def prepared(
    name: str,
    sources: Sequence[Path],
    options: Mapping[str, object],
    build: Callable[[], Arrays],
    *,
    version: int = 1,
) -> Arrays:
    """The arrays that `build()` returns: made at the first call, read from the cache after that.

    Every byte is checked against the manifest (2 GB/s), so an entry that was damaged or cut short
    is made again. Two processes may prepare the same entry at once: both build, and the first to
    finish is kept. Where the folder cannot be written, a warning is logged and the arrays are used
    from memory.

    Args:
        name: What the entries' names begin with; letters, digits and hyphens.
        sources: The files that `build` reads.
        options: What else the arrays depend on; anything that JSON can hold.
        build: Makes the arrays, of numbers and of at least one dimension.
        version: To be raised with every change of `build` that changes its arrays.

    Returns:
        The arrays, read-only.

    Raises:
        InputError: A source cannot be read; or what `build` raises.
    """
    entry = cache_folder() / "prepared" / f"{name}-{_key(name, sources, options, version)}"
    found = _load(entry)
    if found is not None:
        return found
    _remove_stale(entry.parent)
    arrays = {key: np.ascontiguousarray(array) for key, array in build().items()}
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _publish(entry, arrays)
        found = _load(entry)
    except OSError as error:
        reason = error.strerror or error
        logging.getLogger(__name__).warning(
            "%s: not kept for the next time, since %s cannot be written: %s",
            name,
            entry.parent,
            reason,
        )
    if found is not None:
        return found
    for made in arrays.values():
        made.flags.writeable = False
    return arrays


def packed(strings: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings as arrays: their UTF-8 bytes, one after another, and where each begins and ends.

    >>> text, offsets = packed(["no", "", "yes"])
    >>> offsets.tolist(), unpacked(text, offsets)
    ([0, 2, 2, 5], ['no', '', 'yes'])
    """
    text, offsets = bytearray(), array("q", [0])
    for string in strings:
        text += string.encode("utf-8", "surrogatepass")
        offsets.append(len(text))
    return np.frombuffer(text, np.uint8), np.frombuffer(offsets, np.int64)


def unpacked(
    text: NDArray[np.uint8], offsets: NDArray[np.int64], chosen: NDArray[np.int64] | None = None
) -> list[str]:
    """The strings that `packed` took, or some of them by number."""
    raw = np.ascontiguousarray(text).data
    begins, ends = offsets[:-1], offsets[1:]
    if chosen is not None:
        begins, ends = begins[chosen], ends[chosen]
    return [
        str(raw[begin:end], "utf-8", "surrogatepass")
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]


def _key(name: str, sources: Sequence[Path], options: Mapping[str, object], version: int) -> str:
    digests = [_digest(source) for source in sources]
    parts = json.dumps([name, version, dict(options), digests], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:24]


def _digest(source: Path) -> str:
    with reading(source, unpack=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load(entry: Path) -> Arrays | None:
    """An entry's arrays, mapped; None where it is missing or not whole."""
    try:
        checksums = json.loads((entry / MANIFEST).read_bytes())
        arrays = {key: np.asarray(map_file(entry / f"{key}.npy")) for key in checksums}
        whole = {key: _checksum(array) for key, array in arrays.items()} == checksums
    except Exception:
        # whatever is wrong with an entry, it is made again
        return None
    return arrays if whole else None


def _checksum(array: NDArray[Any]) -> list[object]:
    """Type, shape and CRC-32 of an array, as JSON gives them back."""
    content = zlib.crc32(array.reshape(-1).view(np.uint8).data)
    return [array.dtype.str, list(array.shape), content]


def _publish(entry: Path, arrays: Arrays) -> None:
    """Write an entry beside its place, then move it there.

    An entry that another process has put there meanwhile stays; a damaged one makes room.
    """
    owner = f"{socket.gethostname()}.{os.getpid()}"
    temporary = Path(tempfile.mkdtemp(prefix=f".{entry.name}.{owner}.", dir=entry.parent))
    try:
        new = temporary / "new"
        new.mkdir()
        for key, array in arrays.items():
            np.save(new / f"{key}.npy", array, allow_pickle=False)
        checksums = {key: _checksum(array) for key, array in arrays.items()}
        (new / MANIFEST).write_text(json.dumps(checksums))
        if _load(entry) is None:
            with suppress(FileNotFoundError):
                entry.rename(temporary / "damaged")
        try:
            new.rename(entry)
        except OSError:
            if not entry.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Remove what processes of this machine left that were killed while they wrote."""
    for left in folder.glob(f".*.{socket.gethostname()}.*.*"):
        pid = left.name.split(".")[-2]
        if pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
