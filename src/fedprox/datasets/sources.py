"""Where data files come from, and where the arrays that are made of them are kept.

A file lies in the user's data folder, or is downloaded to the cache and verified. Arrays that are
made of files are kept beside the downloads, as `prepared/NAME-KEY.npz`. The key is a checksum of
the files' content, the options and the version of the preparation. So a changed file has another
entry, and no entry is ever out of date. Old entries are not removed; the folder may be emptied at
any time.
"""

import hashlib
import json
import logging
import os
import uuid
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, require
from fedprox.files.packed import refusing
from fedprox.terminal import Bar


class Source(NamedTuple):
    """A file that can be downloaded.

    Attributes:
        subfolder: Its folder in the data folder and in the cache.
        name: The file's name.
        size: Its bytes; 0 if unknown.
        hash: Its checksum, such as "md5:..."; empty if nobody has published one.
        folders: Addresses of folders that hold it, tried in order.
        use: The options that need the file, unless the defaults do.
        instead: Files of the data folder that replace it: names in its subfolder or at the top, or
            patterns of names in the subfolder.
    """

    subfolder: str
    name: str
    size: int
    hash: str
    folders: tuple[str, ...]
    use: str = ""
    instead: tuple[str, ...] = ()


def _read_sources(table: str) -> dict[str, Source]:
    """The sources of `sources.txt` by path."""
    sources = {}
    for line in table.splitlines():
        if line and not line.startswith("#"):
            path, size, checksum, *folders = line.split()
            subfolder, _, name = path.partition("/")
            sources[path] = Source(subfolder, name, int(size), checksum.strip("-"), tuple(folders))
    return sources


SOURCES = _read_sources(Path(__file__).with_name("sources.txt").read_text())


def _like(pattern: str, use: str = "", *instead: str) -> tuple[Source, ...]:
    fitting = (source for path, source in SOURCES.items() if fnmatch(path, pattern))
    return tuple(source._replace(use=use, instead=instead) for source in fitting)


MNIST = _like("mnist/*-ubyte.gz")
QMNIST = _like("mnist/qmnist-*", "writers")
FEMNIST_SQLITE = _like("femnist/*", "writers", "train/*.json", "femnist_300writers.npz")
(EMNIST,) = _like("emnist/*", "", "emnist_lowercase.npz")
(EMNIST_L,) = _like("emnist/*", "", "emnist_letters_a_to_j.npz")
(CIFAR_10,) = _like(
    "cifar-10/*", "", "cifar-10-batches-py/data_batch_1", "cifar-10-batches-py.tar.xz"
)
(CIFAR_100,) = _like("cifar-100/*", "", "cifar-100-python/train", "cifar-100-python.tar.xz")
(SHAKESPEARE,) = _like("shakespeare/*", "", "100.txt.gz", "100.txt")
SENT140_CSV = "training.1600000.processed.noemoticon.csv"
(SENT140,) = _like("sent140/*", "", SENT140_CSV, "*.json", "*.json.gz")
(GLOVE,) = _like("glove/*", "word vectors", "glove.6B.*d.txt")


def data_folder(data_dir: str | Path | None) -> Path | None:
    """The user's data folder: as given, else the environment variable FEDPROX_DATA, else None."""
    chosen = data_dir or os.environ.get("FEDPROX_DATA")
    if not chosen:
        return None
    folder = Path(chosen)
    if not folder.is_dir():
        origin = "--data-dir" if data_dir else "FEDPROX_DATA"
        raise InputError(f"{origin}: {folder} is not a folder")
    return folder


def path_candidates(path: str, data_dir: str | Path | None) -> list[Path]:
    """Paths that a user's path may mean: relative to the current folder, and to the data folder."""
    folder = data_folder(data_dir)
    return [Path(path), *([folder / path] if folder else [])]


def locate(
    path: str,
    data_dir: str | Path | None,
    fits: Callable[[Path], bool],
    wanted: str,
    *,
    key: str = "data.path",
) -> Path:
    """The first of the `path_candidates` that fits; the error says what is `wanted` there."""
    candidates = path_candidates(path, data_dir)
    found = next(filter(fits, candidates), None)
    if not found:
        raise InputError(f"{key}: no {wanted} {' or '.join(map(str, candidates))}")
    return found


def cache_folder() -> Path:
    """The folder of downloads: `FEDPROX_CACHE`, else the user's cache folder."""
    import pooch

    return Path(os.environ.get("FEDPROX_CACHE") or pooch.os_cache("fedprox"))


def find(source: Source, data_dir: str | Path | None) -> Path:
    """The path of a source's file or of one instead: see `at_hand`, or else downloaded.

    With a data folder, only `fetch` downloads.
    """
    folder = data_folder(data_dir)
    path = at_hand(source, data_dir)
    if folder and not path:
        how = ", packed or unpacked," if source.name.endswith(".gz") else ""
        raise InputError(
            f"{source.subfolder}: {source.name} is missing; put it{how} in "
            f"{folder / source.subfolder}"
        )
    return fetch(source) if path in (None, _cached(source)) else path


def at_hand(source: Source, data_dir: str | Path | None) -> Path | None:
    """The path of a source's file, or of one instead; None if there is none.

    In the data folder the file may be in its subfolder or at the top, packed (.gz) or unpacked. A
    file instead of it comes next, then the cache.
    """
    folder, cached = data_folder(data_dir), _cached(source)
    names = (source.name, source.name.removesuffix(".gz"), *source.instead)
    for name in names if folder else ():
        inside = Path(folder or "", source.subfolder)
        for path in (inside / name, inside.parent / name, *without_hidden(inside.glob(name))):
            if path.is_file():
                return path
    return cached if cached.is_file() else None


def without_hidden(paths: Iterable[Path]) -> list[Path]:
    """Files, sorted, without hidden ones, such as the `._NAME` that macOS writes into archives."""
    return sorted(path for path in paths if not path.name.startswith("."))


def _cached(source: Source) -> Path:
    return cache_folder() / source.subfolder / source.name


def fetch(source: Source, *, unverified: bool = False) -> Path:
    """The path of a source's file in the cache, downloaded unless it is there and intact.

    A file without a checksum is downloaded only if `unverified` says so.
    """
    import pooch

    missing = f"{source.subfolder}: {source.name} is missing"
    put = (
        f"put it in a folder {source.subfolder}/ and name the folder above with --data-dir or "
        "FEDPROX_DATA"
    )
    target = _cached(source)
    require(
        source.hash or unverified or target.is_file(),
        f"{missing}, and no checksum for a download is published; download it all the same by "
        f"fedprox data fetch {source.subfolder} --all --unverified, or {put}",
    )
    pooch.get_logger().setLevel(logging.ERROR)
    target.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for folder in source.folders:
        try:
            with Bar(source.name, source.size) as bar:
                pooch.retrieve(
                    folder + source.name,
                    known_hash=source.hash or None,
                    fname=source.name,
                    path=target.parent,
                    progressbar=bar,
                )
            return target
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno:
                raise  # of this machine, such as a full disk: those of the network have no number
            wrong = "wrong checksum" if isinstance(error, ValueError) else type(error).__name__
            reasons.append(f"{urlsplit(folder).netloc}: {wrong}")
    raise InputError(f"{missing} and could not be downloaded ({'; '.join(reasons)}); {put}")


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


def pack_strings(key: str, strings: Iterable[str]) -> Arrays:
    """Strings as two arrays: their UTF-8 bytes concatenated, and the offsets of the strings.

    >>> unpack_strings(pack_strings("answers", ["no", "", "yes"]), "answers")
    ['no', '', 'yes']
    """
    text, offsets = bytearray(), array("q", [0])
    for string in strings:
        text += string.encode("utf-8", "surrogatepass")
        offsets.append(len(text))
    return {key: np.frombuffer(text, np.uint8), f"{key}_offsets": np.frombuffer(offsets, np.int64)}


def unpack_strings(
    arrays: Arrays, key: str, chosen: NDArray[np.int64] | slice = EVERYTHING
) -> list[str]:
    """The strings that `pack_strings` made arrays of, or some of them by index."""
    raw, offsets = arrays[key].data, arrays[f"{key}_offsets"]
    pairs = zip(offsets[:-1][chosen].tolist(), offsets[1:][chosen].tolist(), strict=True)
    return [str(raw[begin:end], "utf-8", "surrogatepass") for begin, end in pairs]
