"""A cache of prepared arrays, computed once from their source files and memory-mapped afterwards.

An entry is a folder `prepared/NAME-KEY` of the cache folder (`FEDPROX_CACHE`, else the user's) with
a `.npy` file for each array and a manifest of checksums. It is renamed to its final name once it is
complete. The key is a checksum of the sources' content, the options and the version of the
preparation, so a changed source has another entry, and no entry is ever out of date. Old entries
are not removed; the folder may be emptied at any time.
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
    """The arrays that `build()` returns, from the cache if they are there.

    Every byte is checked against the manifest (2 GB/s), so a damaged entry is built again. Two
    processes may build the same entry at once; the first to finish writes it. If the folder cannot
    be written, a warning is logged and the arrays stay in memory.

    Args:
        name: Begin of the entries' names: letters, digits and hyphens.
        sources: The files that `build` reads.
        options: Everything else that the arrays depend on, as JSON can hold it.
        build: A function that returns the arrays, of numbers and of at least one dimension.
        version: A number to be raised with every change of `build` that changes its arrays.

    Returns:
        The arrays, read-only.

    Raises:
        InputError: If a source cannot be read, or `build` raises it.
    """
    entry = cache_folder() / "prepared" / f"{name}-{_key(name, sources, options, version)}"
    stored = _load(entry)
    if stored is not None:
        return stored
    _remove_stale(entry.parent)
    arrays = {key: np.ascontiguousarray(array) for key, array in build().items()}
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _publish(entry, arrays)
        stored = _load(entry)
    except OSError as error:
        reason = error.strerror or error
        logging.getLogger(__name__).warning(
            "%s: not kept for the next time, since %s cannot be written: %s",
            name,
            entry.parent,
            reason,
        )
    if stored is not None:
        return stored
    for values in arrays.values():
        values.flags.writeable = False
    return arrays


def packed(strings: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Strings as arrays: their UTF-8 bytes concatenated, and the offsets of the strings.

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
    """The strings of `packed` arrays, or some of them by index."""
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
    """An entry's arrays, mapped; None if it is missing or damaged."""
    try:
        checksums = json.loads((entry / MANIFEST).read_bytes())
        arrays = {key: np.asarray(map_file(entry / f"{key}.npy")) for key in checksums}
        whole = {key: _checksum(array) for key, array in arrays.items()} == checksums
    except Exception:
        # whatever is wrong with an entry, it is built again
        return None
    return arrays if whole else None


def _checksum(array: NDArray[Any]) -> list[object]:
    """Type, shape and CRC-32 of an array, as they come back from JSON."""
    content = zlib.crc32(array.reshape(-1).view(np.uint8).data)
    return [array.dtype.str, list(array.shape), content]


def _publish(entry: Path, arrays: Arrays) -> None:
    """Write an entry under a temporary name, then rename it.

    An entry that another process has written meanwhile stays; a damaged one is replaced.
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
    """Remove temporary folders of processes of this machine that were killed."""
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
