"""Where data files come from: the user's data folder, or a verified download in the cache."""

import logging
import os
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from fedprox.errors import InputError, require
from fedprox.terminal import Bar


class Source(NamedTuple):
    """A file that can be downloaded.

    Attributes:
        subfolder: Its folder in the data folder and in the cache.
        name: Its name.
        size: Its bytes; 0 if unknown.
        hash: Its checksum, such as "md5:..."; empty if nobody has published one.
        folders: Addresses of folders that hold it, tried in order.
    """

    subfolder: str
    name: str
    size: int
    hash: str
    folders: tuple[str, ...]


def _read(table: str) -> dict[str, Source]:
    """The sources of `sources.txt` by path."""
    sources = {}
    for line in table.splitlines():
        if line and not line.startswith("#"):
            path, size, checksum, *folders = line.split()
            subfolder, _, name = path.partition("/")
            sources[path] = Source(subfolder, name, int(size), checksum.strip("-"), tuple(folders))
    return sources


SOURCES = _read(Path(__file__).with_name("sources.txt").read_text())


def _like(pattern: str) -> list[Source]:
    return [source for path, source in SOURCES.items() if fnmatch(path, pattern)]


MNIST = _like("mnist/*-ubyte.gz")
QMNIST = _like("mnist/qmnist-*")
FEMNIST_SQLITE = _like("femnist/*")
(EMNIST,) = _like("emnist/*")
(CIFAR_10,) = _like("cifar-10/*")
(CIFAR_100,) = _like("cifar-100/*")
(SHAKESPEARE,) = _like("shakespeare/*")
(SENT140,) = _like("sent140/*")
(GLOVE,) = _like("glove/*")


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


def places(path: str, data_dir: str | Path | None) -> list[Path]:
    """Paths that a user's path may mean: relative to the current folder, and to the data folder."""
    folder = data_folder(data_dir)
    return [Path(path), *([folder / path] if folder else [])]


def locate(
    path: str, data_dir: str | Path | None, fits: Callable[[Path], bool], wanted: str
) -> Path:
    """The first of the `places` that fits; the error says what is `wanted` there."""
    candidates = places(path, data_dir)
    found = next(filter(fits, candidates), None)
    if not found:
        raise InputError(f"data.path: no {wanted} {' or '.join(map(str, candidates))}")
    return found


def cache_folder() -> Path:
    """The folder of downloads: `FEDPROX_CACHE`, else the user's cache folder."""
    import pooch

    return Path(os.environ.get("FEDPROX_CACHE") or pooch.os_cache("fedprox"))


def find(source: Source, data_dir: str | Path | None) -> Path:
    """The path of a source's file: in the data folder, else in the cache, else downloaded.

    In the data folder the file may be in its subfolder or at the top, packed (.gz) or unpacked.
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
    """The path of a source's file in the data folder or in the cache; None if it is in neither."""
    names = (source.name, source.name.removesuffix(".gz"))
    found = (present(name, source.subfolder, data_dir) for name in names)
    cached = _cached(source)
    return next(filter(None, found), cached if cached.is_file() else None)


def present(name: str, subfolder: str, data_dir: str | Path | None) -> Path | None:
    """The path of a file in the data folder, in `subfolder` or at the top; None if it is absent."""
    folder = data_folder(data_dir)
    inside = (folder / subfolder / name, folder / name) if folder else ()
    return next((place for place in inside if place.is_file()), None)


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
