"""MNIST (LeCun et al. 1998) as a federation."""

import gzip
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets import partition as partitions
from fedprox.datasets.sources import MNIST, find
from fedprox.errors import InputError, require, require_one_of
from fedprox.federation import Federation


def mnist(
    partition: Literal["power-law", "iid", "shards"] = "power-law",
    *,
    clients: int | None = None,
    train_share: float | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """MNIST's 70,000 images of 28 x 28 pixels, divided over clients.

    Args:
        partition: "power-law": 1,000 clients with two digits each and sizes that follow a power
            law (Li et al. 2020, appendix C.1); all 70,000 images are used, each pixel is
            standardised over them, and each client's rows are divided into training and test rows.
            "iid": 100 clients with 600 training images each, or "shards": 100 clients with two
            shards of 300 images of (almost always) one digit each (McMahan et al. 2017, section
            3); MNIST's own test images are dealt out the same way, and pixels lie in [0, 1].
        clients: Number of clients where not the paper's.
        train_share: Of "power-law" only: 0.8 by the paper (appendix C.2) where left out, 0.9 in
            the authors' code.
        seed: Seed of the partition.
        data_dir: Folder to read the four idx files from; else `FEDPROX_DATA`, else they are
            downloaded once.

    Raises:
        InputError: A file is missing or broken, or an argument is out of range.
    """
    kinds = ("power-law", "iid", "shards")
    require_one_of("data.partition", partition, kinds)
    require(
        partition == "power-law" or train_share is None,
        f"data.train_share = {train_share}; partition {partition!r} keeps MNIST's own test images",
    )
    share = 0.8 if train_share is None else train_share
    count = clients if clients is not None else 1000 if partition == "power-law" else 100
    files = {name: find(source, "mnist", data_dir) for name, source in MNIST.items()}
    images, labels, test_images, test_labels = (read_idx(files[name]) for name in MNIST)
    for part, (x, y) in {"train": (images, labels), "t10k": (test_images, test_labels)}.items():
        require(
            x.ndim == 3 and y.ndim == 1 and len(x) == len(y) and len(y) > 0 and y.max() < 10,
            f"mnist: {part} images of shape {x.shape} and labels of shape {y.shape} do not match",
        )
    if partition == "power-law":
        x, y = np.concatenate([images, test_images]), np.concatenate([labels, test_labels])
        parts = partitions.two_class_power_law(y, clients=count, seed=seed)
        train, test = partitions.split(parts, train_share=share, seed=seed)
        mean, scale = _pixel_statistics(x)

        def scaled(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            return (x[rows].astype(np.float32) - mean) * scale

        pairs = [[(scaled(rows), y[rows]) for rows in part] for part in (train, test)]
        return Federation.from_arrays(*pairs, classes=10)

    def deal(labels: NDArray[np.generic]) -> list[NDArray[np.int64]]:
        if partition == "iid":
            return partitions.iid(len(labels), clients=count, seed=seed)
        return partitions.shards(labels, clients=count, seed=seed)

    unit = np.float32(1 / 255)
    pairs = [
        [(x[rows] * unit, y[rows]) for rows in deal(y)]
        for x, y in ((images, labels), (test_images, test_labels))
    ]
    return Federation.from_arrays(*pairs, classes=10)


def _pixel_statistics(
    x: NDArray[np.generic],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean of each pixel, and 1 / (standard deviation + 0.001), of bytes 0 to 255."""
    flat = x.reshape(len(x), -1)
    total, squares = np.zeros(flat.shape[1]), np.zeros(flat.shape[1])
    for begin in range(0, len(flat), 10_000):
        block = flat[begin : begin + 10_000].astype(np.float32)
        total += block.sum(axis=0)
        squares += np.einsum("ij,ij->j", block, block)
    mean = total / len(flat)
    deviation = np.sqrt(np.maximum(squares / len(flat) - mean**2, 0))
    shape = x.shape[1:]
    return (
        mean.reshape(shape).astype(np.float32),
        (1 / (deviation + 0.001)).reshape(shape).astype(np.float32),
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes, packed (.gz) or not.

    Raises:
        InputError: It is damaged, cut short, or holds something else.
    """
    try:
        return parse_idx(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def parse_idx(raw: bytes, path: str) -> NDArray[np.uint8]:
    """The array in the content of an idx file called `path`; see `read_idx`."""
    if path.endswith(".gz"):
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None
    dimensions = raw[3] if len(raw) >= 4 and raw[:3] == b"\0\0\x08" else 0
    begin = 4 + 4 * dimensions
    require(
        1 <= dimensions <= 4 and len(raw) >= begin, f"{path}: not an idx file of unsigned bytes"
    )
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    needed = int(np.prod(shape, dtype=object))
    require(
        len(raw) - begin == needed,
        f"{path}: {len(raw) - begin} bytes of data where its header says {needed}",
    )
    return np.frombuffer(raw, np.uint8, offset=begin).reshape(shape)
