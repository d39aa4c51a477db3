"""A cache of prepared arrays, computed once from their source files.

An entry is a file `prepared/NAME-KEY.npz` of the cache folder (`FEDPROX_CACHE`, else the user's).
The key is a checksum of the sources' content, the options and the version of the preparation, so a
changed source has another entry, and no entry is ever out of date. Old entries are not removed; the
folder may be emptied at any time.
"""

import hashlib
import json
import logging
import uuid
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.sources import cache_folder
from fedprox.files.packed import refusing

Arrays = dict[str, NDArray[Any]]

EVERYTHING = slice(None)


def prepared(
    name: str,
    sources: Sequence[Path],
    options: Mapping[str, object],
    build: Callable[[], Arrays],
    *,
    version: int = 1,
) -> Arrays:
    """The arrays that `build()` makes of some files and options, from the cache if they are there.

    The archive's own checksums find a damaged entry, which is built again. Two processes may build
    the same entry at once. If the folder cannot be written, a warning is logged. The version must
    be raised with every change of `build` that changes its arrays.
    """
    digests = []
    for source in sources:
        with refusing(f"{source}: cannot be read"), source.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    parts = json.dumps([name, version, dict(options), digests], sort_keys=True)
    key = hashlib.sha256(parts.encode()).hexdigest()[:24]
    entry = cache_folder() / "prepared" / f"{name}-{key}.npz"
    try:
        with entry.open("rb") as file, np.load(file) as stored:
            return dict(stored)
    except Exception:
        arrays = build()  # whatever is wrong with an entry
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        _store(entry, arrays)
    except OSError as error:
        logging.getLogger(__name__).warning(
            "%s: not kept for the next time, since %s cannot be written: %s",
            *(name, entry.parent, error.strerror or error),
        )
    return arrays


def _store(entry: Path, arrays: Mapping[str, Any]) -> None:
    """Write an entry, which gets its name once it is complete."""
    temporary = entry.with_name(f"tmp-{uuid.uuid4()}")
    try:
        with temporary.open("xb") as file:
            np.savez(file, **arrays)
        temporary.replace(entry)
    finally:
        temporary.unlink(missing_ok=True)


def packed(key: str, strings: Iterable[str]) -> Arrays:
    """Strings as two arrays: their UTF-8 bytes concatenated, and the offsets of the strings.

    >>> unpacked(packed("answers", ["no", "", "yes"]), "answers")
    ['no', '', 'yes']
    """
    text, offsets = bytearray(), array("q", [0])
    for string in strings:
        text += string.encode("utf-8", "surrogatepass")
        offsets.append(len(text))
    return {key: np.frombuffer(text, np.uint8), f"{key}_offsets": np.frombuffer(offsets, np.int64)}


def unpacked(arrays: Arrays, key: str, chosen: NDArray[np.int64] | slice = EVERYTHING) -> list[str]:
    """The strings that `packed` made arrays of, or some of them by index."""
    raw, offsets = arrays[key].data, arrays[f"{key}_offsets"]
    pairs = zip(offsets[:-1][chosen].tolist(), offsets[1:][chosen].tolist(), strict=True)
    return [str(raw[begin:end], "utf-8", "surrogatepass") for begin, end in pairs]
