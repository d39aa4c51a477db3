"""Where data files come from: a folder of the user's, or a checked download kept in a cache."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedprox.errors import InputError, require


class Source(NamedTuple):
    """A file to be had from the network.

    Attributes:
        name: Its name.
        hash: Its checksum, such as "md5:..."; empty where none is known.
        folders: Addresses of folders that hold it, tried in order; none where it is the user's to
            bring.
        size: Its bytes; 0 where that is not known.
    """

    name: str
    hash: str
    folders: Sequence[str]
    size: int = 0


MNIST = {
    name: Source(
        f"{name}.gz",
        f"md5:{md5}",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        size,
    )
    for name, md5, size in (
        ("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    )
}

EMNIST = Source(
    "gzip.zip",
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    ("https://biometrics.nist.gov/cs_links/EMNIST/",),
    561_753_746,
)
"""All of EMNIST as idx files in one archive (Cohen et al. 2017)."""

FEMNIST_WRITERS = Source("femnist_300writers.npz", "", ())
"""300 writers of LEAF's FEMNIST (Caldas et al. 2018)."""


def data_folder(data_dir: str | Path | None) -> Path | None:
    """The user's data folder: as given, else by the environment variable FEDPROX_DATA, else none.

    Raises:
        InputError: It does not exist.
    """
    chosen = data_dir or os.environ.get("FEDPROX_DATA") or None
    if chosen is None:
        return None
    folder = Path(chosen)
    if not folder.is_dir():
        origin = "--data-dir" if data_dir else "FEDPROX_DATA"
        raise InputError(f"{origin}: {folder} is not a folder")
    return folder


def cache_folder() -> Path:
    """Where downloads are kept: the user's cache folder, or `FEDPROX_CACHE`."""
    import pooch

    return Path(os.environ.get("FEDPROX_CACHE") or pooch.os_cache("fedprox"))


def find(source: Source, subfolder: str, data_dir: str | Path | None) -> Path:
    """A source's file: from the user's data folder, else from the cache, else downloaded once.

    In the data folder the file may lie in `subfolder` or at the top, packed (.gz) or unpacked.
    Where there is a data folder, only `fetch` downloads.

    Raises:
        InputError: It is neither in the data folder nor in the cache, or cannot be downloaded.
    """
    folder = data_folder(data_dir)
    found = at_hand(source, subfolder, data_dir)
    if found is None and folder is not None:
        how = ", packed or unpacked," if source.name.endswith(".gz") else ""
        raise InputError(
            f"{subfolder}: {source.name} is missing; put it{how} in {folder / subfolder}"
        )
    checked = found == _cached(source, subfolder) and source.folders
    return fetch(source, subfolder) if found is None or checked else found


def at_hand(source: Source, subfolder: str, data_dir: str | Path | None) -> Path | None:
    """A source's file where it lies already: in the data folder, else in the cache; else None."""
    packed = source.name.endswith(".gz")
    for name in (source.name, *([source.name.removesuffix(".gz")] if packed else [])):
        found = present(name, subfolder, data_dir)
        if found is not None:
            return found
    cached = _cached(source, subfolder)
    return cached if cached.is_file() else None


def present(name: str, subfolder: str, data_dir: str | Path | None) -> Path | None:
    """A file of the user's data folder, in `subfolder` or at the top; None if it is not there."""
    folder = data_folder(data_dir)
    if folder is None:
        return None
    places = (folder / subfolder / name, folder / name)
    return next((place for place in places if place.is_file()), None)


def _cached(source: Source, subfolder: str) -> Path:
    return cache_folder() / subfolder / source.name


def fetch(source: Source, subfolder: str) -> Path:
    """A source's file in the cache, downloaded unless it is there already and whole.

    Raises:
        InputError: No address is known, or none of them gives the file.
    """
    import pooch

    require(
        source.folders,
        f"{subfolder}: {source.name} is missing and no address is known; put it in a folder "
        f"{subfolder}/ and name the folder above with --data-dir or FEDPROX_DATA",
    )
    pooch.get_logger().setLevel(logging.ERROR)
    target = cache_folder() / subfolder
    reasons = []
    for folder in source.folders:
        try:
            return Path(
                pooch.retrieve(
                    folder + source.name,
                    known_hash=source.hash or None,
                    fname=source.name,
                    path=target,
                    progressbar=True,
                )
            )
        except (OSError, ValueError) as error:
            host = folder.split("/")[2]
            reasons.append(f"{host}: {type(error).__name__}")
    raise InputError(
        f"{subfolder}: {source.name} is missing and could not be downloaded "
        f"({'; '.join(reasons)}); put it in a folder {subfolder}/ and name the folder above with "
        f"--data-dir or FEDPROX_DATA"
    )
