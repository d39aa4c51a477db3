"""Federated EMNIST: handwritten letters (Cohen et al. 2017) and writers (Caldas et al. 2018)."""

import zipfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets import partition as partitions
from fedprox.datasets.mnist import parse_idx
from fedprox.datasets.sources import EMNIST, FEMNIST_WRITERS, find, present
from fedprox.errors import InputError, require, require_one_of
from fedprox.federation import Federation

Images = NDArray[np.uint8]

LOWER_CASE = 36
"""EMNIST ByClass's and LEAF's label of "a": ten digits and 26 capitals come before it."""


def femnist(
    partition: Literal["letters", "letters-26", "writers"] = "letters",
    *,
    classes_per_client: int | None = None,
    clients: int | None = None,
    overlap: bool = False,
    train_share: float | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """Handwritten letters and digits of 28 x 28 pixels, divided over clients.

    Pixels lie in [0, 1] and letters are dark on white (1), as in the authors' code for all their
    NIST images; EMNIST's own files are white on black and are turned round. It matters: a row's
    squared norm is 620 so, and 110 white on black, which makes training at the paper's learning
    rate less steady. With 90 % stragglers, 200 rounds and one seed FedAvg reaches 56 % so and 76 %
    white on black; FedProx reaches 82 % either way.

    Args:
        partition: "letters": the letters a to j over 200 clients, 5 classes each, with
            int(LogNormal(4, 1)) + 5 rows (Li et al. 2020, appendix C.1, FEMNIST). "letters-26":
            the letters a to z over 200 clients, 20 classes each (its early draft, EMNIST*); the
            draft does not say how sizes are drawn, so they are log-normal with its mean 395 and
            standard deviation 873. "writers": 62 classes, a client for each writer, with the
            file's own test rows (LEAF; the draft's EMNIST has 900 writers, the file 300).
        classes_per_client: Of the letters only: not the paper's number. The authors' code for
            "letters" has 3.
        clients: Of the letters only: number of clients where not 200.
        overlap: Of the letters only: a mistake of the authors' generator, by which all clients
            with a class hold the same images of it; see `partition.rotating_classes`.
        train_share: Of the letters only: 0.8 by the paper (appendix C.2) where left out.
        seed: Seed of the letters' partition.
        data_dir: Folder with `emnist/emnist_lowercase.npz` or EMNIST's `emnist/gzip.zip` for the
            letters, or `femnist/femnist_300writers.npz` for the writers; else `FEDPROX_DATA`;
            else EMNIST is downloaded once. `emnist_lowercase.npz` holds the test part of ByClass
            alone, 11,916 images of a to j and 27,059 in all: fewer than the papers' 18,345 and
            79,059, so where a class runs out, what there is is divided in proportion to what was
            asked. No image goes to two clients. With `gzip.zip` there are enough.

    Raises:
        InputError: A file is missing or broken, or an argument is out of range.
    """
    kinds = ("letters", "letters-26", "writers")
    require_one_of("data.partition", partition, kinds)
    if partition == "writers":
        given = {
            "classes_per_client": classes_per_client,
            "clients": clients,
            "overlap": overlap or None,
            "train_share": train_share,
        }
        for name, value in given.items():
            require(
                value is None,
                f'data.{name} = {value}; partition "writers" is divided by its file',
            )
        return _writers(find(FEMNIST_WRITERS, "femnist", data_dir))
    letters, each, mean, deviation = (
        (10, 5, 4.0, 1.0) if partition == "letters" else (26, 20, 5.07, 1.34)
    )
    images, labels = _lower_case(data_dir)
    chosen = labels < letters
    images, labels = images[chosen], labels[chosen]
    parts = partitions.rotating_classes(
        labels,
        clients=200 if clients is None else clients,
        classes_per_client=each if classes_per_client is None else classes_per_client,
        mean=mean,
        deviation=deviation,
        overlap=overlap,
        seed=seed,
    )
    share = 0.8 if train_share is None else train_share
    pairs = [
        [(_dark_on_white(images[rows]), labels[rows]) for rows in part]
        for part in partitions.split(parts, train_share=share, seed=seed)
    ]
    return Federation.from_arrays(*pairs, classes=letters)


def _dark_on_white(images: Images) -> NDArray[np.float32]:
    """Pixels in [0, 1] of white on black bytes, turned round."""
    return np.float32(1 / 255) * (255 - images).astype(np.float32)


def _lower_case(data_dir: str | Path | None) -> tuple[Images, NDArray[np.int64]]:
    """EMNIST's lower-case letters, upright and white on black, with labels 0 to 25."""
    packed = present("emnist_lowercase.npz", "emnist", data_dir)
    if packed is None:
        return _by_class(find(EMNIST, "emnist", data_dir))
    images, labels = _arrays(packed, "images", "labels")
    _check(packed, images, labels, 26)
    return images.astype(np.uint8), labels.astype(np.int64)


def _by_class(path: Path) -> tuple[Images, NDArray[np.int64]]:
    """The lower-case letters of both parts of ByClass, from EMNIST's archive.

    It keeps images as columns of rows: transposed.
    """
    images, labels = [], []
    for part in ("train", "test"):
        x, y = (
            parse_idx(*_member(path, f"emnist-byclass-{part}-{kind}-ubyte.gz"))
            for kind in ("images-idx3", "labels-idx1")
        )
        _check(path, x, y, 62)
        chosen = y >= LOWER_CASE
        images.append(x[chosen].transpose(0, 2, 1))
        labels.append(y[chosen].astype(np.int64) - LOWER_CASE)
    return np.concatenate(images), np.concatenate(labels)


def _member(path: Path, name: str) -> tuple[bytes, str]:
    """A file of an archive, and what to call it."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = next((n for n in archive.namelist() if n.rsplit("/")[-1] == name), None)
            require(found, f"{path}: not EMNIST's archive: {name} is missing")
            return archive.read(str(found)), f"{path}/{name}"
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _writers(path: Path) -> Federation:
    x, labels, writer, part, names = _arrays(
        path, "images", "labels", "writer", "split", "writer_ids"
    )
    _check(path, x, labels, 62)
    require(
        writer.shape == part.shape == labels.shape
        and set(np.unique(part)) <= {0, 1}
        and writer.dtype.kind in "iu"
        and writer.min() >= 0
        and writer.max() < len(names),
        f"{path}: 'writer' and 'split' do not match {len(labels)} images of {len(names)} writers",
    )
    pairs: list[list[tuple[NDArray[np.float32], NDArray[np.int64]]]] = [[], []]
    for k in range(len(names)):
        for chosen, rows in zip(pairs, (0, 1), strict=True):
            mine = np.flatnonzero((writer == k) & (part == rows))
            chosen.append(
                (np.float32(1 / 255) * x[mine].astype(np.float32), labels[mine].astype(np.int64))
            )
    return Federation.from_arrays(*pairs, classes=62, names=[str(name) for name in names])


def _arrays(path: Path, *names: str) -> list[NDArray[np.generic]]:
    """Arrays of an npz file."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            for name in names:
                require(name in file, f"{path}: the array {name!r} is missing")
            return [file[name] for name in names]
    except InputError:
        raise
    except (OSError, EOFError, ValueError, TypeError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a whole npz file: {error}") from None


def _check(path: Path, x: NDArray[np.generic], y: NDArray[np.generic], classes: int) -> None:
    require(
        x.dtype == np.uint8
        and x.shape == (len(x), 28, 28)
        and y.dtype.kind in "iu"
        and y.shape == (len(x),)
        and len(y) > 0
        and y.min() >= 0
        and y.max() < classes,
        f"{path}: needs (n, 28, 28) bytes and n labels from 0 to {classes - 1}; it holds "
        f"{x.dtype} {x.shape} and labels of shape {y.shape}",
    )
