"""Where data files come from: the user's data folder, or a verified download in the cache."""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedprox.bar import Bar
from fedprox.errors import InputError, require


class Source(NamedTuple):
    """A file that can be downloaded.

    Attributes:
        name: Its name.
        hash: Its checksum, such as "md5:..."; empty if nobody has published one.
        folders: Addresses of folders that hold it, tried in order; none if the user must provide
            it.
        size: Its bytes; 0 if unknown.
    """

    name: str
    hash: str
    folders: Sequence[str]
    size: int = 0


MNIST = {
    name: Source(
        f"{name}.gz",
        f"sha256:{sha256}",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        size,
    )
    for name, sha256, size in (
        (
            "train-images-idx3-ubyte",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            9_912_422,
        ),
        (
            "train-labels-idx1-ubyte",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            28_881,
        ),
        (
            "t10k-images-idx3-ubyte",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            1_648_877,
        ),
        (
            "t10k-labels-idx1-ubyte",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            4_542,
        ),
    )
}

EMNIST = Source(
    "gzip.zip",
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    ("https://biometrics.nist.gov/cs_links/EMNIST/",),
    561_753_746,
)
"""All of EMNIST as idx files in one archive (Cohen et al. 2017)."""

QMNIST = {
    part: Source(
        f"qmnist-{part}-labels-idx2-int.gz",
        f"sha256:{sha256}",
        ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
    )
    for part, sha256 in {
        "train": "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
        "test": "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
    }.items()
}
"""The writers of MNIST's digits (Yadav & Bottou 2019)."""

CIFAR_10 = Source(
    "cifar-10-python.tar.gz",
    "md5:c58f30108f718f92721af3b95e74349a",
    ("https://www.cs.toronto.edu/~kriz/",),
    170_498_071,
)
"""CIFAR-10 as pickled batches (Krizhevsky 2009)."""

CIFAR_100 = Source(
    "cifar-100-python.tar.gz",
    "md5:eb9058c3a382ffc7106e4002c42a8d85",
    ("https://www.cs.toronto.edu/~kriz/",),
    169_001_437,
)
"""CIFAR-100 as pickled batches (Krizhevsky 2009)."""

FEMNIST_SQLITE = {
    part: Source(
        f"federated_emnist_{part}.sqlite",
        "",
        ("https://storage.googleapis.com/gresearch/fedjax/emnist/",),
    )
    for part in ("train", "test")
}
"""FEMNIST by writer in FedJAX's files (Ro et al. 2021): 3,400 writers. No checksum is published."""

FEMNIST_WRITERS = Source("femnist_300writers.npz", "", ())
"""300 writers of LEAF's FEMNIST (Caldas et al. 2018)."""

SHAKESPEARE = Source(
    "1994-01-100.zip",
    "",
    (
        "https://www.gutenberg.org/files/100/old/old/",
        "https://www.gutenberg.org/files/100/old/",
    ),
)
"""The Complete Works, Project Gutenberg's etext 100 of January 1994, which LEAF reads. Its terms
allow personal, non-commercial use. No checksum is published."""

SENT140 = Source(
    "trainingandtestdata.zip",
    "sha256:004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
    ("http://cs.stanford.edu/people/alecmgo/",),
    81_363_704,
)
"""Sentiment140: 1.6 million tweets (Go et al. 2009)."""

GLOVE = Source(
    "glove.6B.zip",
    "sha256:617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
    ("http://nlp.stanford.edu/data/",),
    862_182_613,
)
"""GloVe vectors of 400,000 words in 50, 100, 200 and 300 dimensions (Pennington et al.
2014)."""


def data_folder(data_dir: str | Path | None) -> Path | None:
    """The user's data folder: as given, else the environment variable FEDPROX_DATA, else None.

    Raises:
        InputError: If it does not exist.
    """
    chosen = data_dir or os.environ.get("FEDPROX_DATA") or None
    if chosen is None:
        return None
    folder = Path(chosen)
    if not folder.is_dir():
        origin = "--data-dir" if data_dir else "FEDPROX_DATA"
        raise InputError(f"{origin}: {folder} is not a folder")
    return folder


def places(path: str, data_dir: str | Path | None) -> list[Path]:
    """Paths that a user's path may mean: relative to the current folder, and to the data folder.

    Raises:
        InputError: If the data folder does not exist.
    """
    folder = data_folder(data_dir)
    return [Path(path), *([folder / path] if folder else [])]


def cache_folder() -> Path:
    """The folder of downloads: `FEDPROX_CACHE`, else the user's cache folder."""
    import pooch

    return Path(os.environ.get("FEDPROX_CACHE") or pooch.os_cache("fedprox"))


def find(source: Source, subfolder: str, data_dir: str | Path | None) -> Path:
    """The path of a source's file: in the data folder, else in the cache, else downloaded.

    In the data folder the file may be in `subfolder` or at the top, packed (.gz) or unpacked. With
    a data folder, only `fetch` downloads.

    Raises:
        InputError: If the file is neither in the data folder nor in the cache, or cannot be
            downloaded.
    """
    folder = data_folder(data_dir)
    path = at_hand(source, subfolder, data_dir)
    if path is None and folder is not None:
        how = ", packed or unpacked," if source.name.endswith(".gz") else ""
        raise InputError(
            f"{subfolder}: {source.name} is missing; put it{how} in {folder / subfolder}"
        )
    verify = path == _cached(source, subfolder) and source.folders
    return fetch(source, subfolder) if path is None or verify else path


def at_hand(source: Source, subfolder: str, data_dir: str | Path | None) -> Path | None:
    """The path of a source's file in the data folder or in the cache; None if it is in neither."""
    packed = source.name.endswith(".gz")
    for name in (source.name, *([source.name.removesuffix(".gz")] if packed else [])):
        path = present(name, subfolder, data_dir)
        if path is not None:
            return path
    cached = _cached(source, subfolder)
    return cached if cached.is_file() else None


def present(name: str, subfolder: str, data_dir: str | Path | None) -> Path | None:
    """The path of a file in the data folder, in `subfolder` or at the top; None if it is absent."""
    folder = data_folder(data_dir)
    if folder is None:
        return None
    inside = (folder / subfolder / name, folder / name)
    return next((place for place in inside if place.is_file()), None)


DAY = 24 * 60 * 60
"""Seconds after which a partial download counts as abandoned."""


def host(address: str) -> str:
    """The host of an address.

    >>> host("https://example.org/folder/")
    'example.org'
    """
    return address.split("/")[2]


def _cached(source: Source, subfolder: str) -> Path:
    return cache_folder() / subfolder / source.name


def fetch(source: Source, subfolder: str, *, unverified: bool = False) -> Path:
    """The path of a source's file in the cache, downloaded unless it is there and intact.

    Args:
        source: The file.
        subfolder: Its folder in the cache.
        unverified: Whether a file without a checksum is downloaded.

    Raises:
        InputError: If no address is known, the file cannot be downloaded from any, or it has no
            checksum and is not in the cache although `unverified` is False.
        OSError: If the cache cannot be written.
    """
    import pooch

    require(
        source.folders,
        f"{subfolder}: {source.name} is missing and no address is known; put it in a folder "
        f"{subfolder}/ and name the folder above with --data-dir or FEDPROX_DATA",
    )
    require(
        source.hash or unverified or _cached(source, subfolder).is_file(),
        f"{subfolder}: {source.name} is missing, and no checksum for a download is published; "
        f"download it all the same by fedprox data fetch {subfolder} --all --unverified, or put it "
        f"in a folder {subfolder}/ and name the folder above with --data-dir or FEDPROX_DATA",
    )
    pooch.get_logger().setLevel(logging.ERROR)
    target = cache_folder() / subfolder
    target.mkdir(parents=True, exist_ok=True)
    for left in target.glob("tmp*"):  # from a download that was killed
        with suppress(OSError):  # the cache may be read-only
            if time.time() - left.stat().st_mtime > DAY:
                left.unlink()
    reasons = []
    for folder in source.folders:
        try:
            with Bar(source.name, source.size) as bar:
                return Path(
                    pooch.retrieve(
                        folder + source.name,
                        known_hash=source.hash or None,
                        fname=source.name,
                        path=target,
                        progressbar=bar,
                    )
                )
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno:
                raise  # of this machine, such as a full disk: those of the network have no number
            wrong = "wrong checksum" if isinstance(error, ValueError) else type(error).__name__
            reasons.append(f"{host(folder)}: {wrong}")
    raise InputError(
        f"{subfolder}: {source.name} is missing and could not be downloaded "
        f"({'; '.join(reasons)}); put it in a folder {subfolder}/ and name the folder above with "
        f"--data-dir or FEDPROX_DATA"
    )
