"""MNIST (LeCun et al. 1998) as a federation."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.datasets import partition as partitions
from fedprox.datasets.augmentation import standardise
from fedprox.datasets.sources import MNIST, QMNIST, find
from fedprox.errors import require, require_one_of
from fedprox.features import Prepared
from fedprox.federation import Federation
from fedprox.files.idx import read_idx


def mnist(
    partition: Literal["power-law", "iid", "shards", "dirichlet", "writers"] = "power-law",
    *,
    clients: int | None = None,
    concentration: float | None = None,
    size_spread: float | None = None,
    pixels: Literal["unit", "standardised"] | None = None,
    train_share: float | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """MNIST's 70,000 images of 28 x 28 pixels, divided over clients.

    Images are kept as bytes, and made into numbers where they are read.

    Args:
        partition: "power-law": 1,000 clients with two digits each and sizes that follow a power
            law (Li et al. 2020, appendix C.1); all 70,000 images are used, each pixel is
            standardised over them, and each client's rows are divided into training and test rows.
            "iid": 100 clients with 600 training images each, or "shards": 100 clients with two
            shards of 300 images of (almost always) one digit each (McMahan et al. 2017, section
            3); MNIST's own test images are dealt out the same way, and pixels lie in [0, 1].
            "dirichlet": 100 clients that draw their own shares of the digits (Acar et al. 2021,
            appendix A.2); each has test images in the mix of its training images, and pixels are
            standardised. "writers": a client for each of the people who wrote the 70,000 images,
            by QMNIST's labels; since nobody wrote for both of MNIST's parts, each one's rows are
            divided into training and test rows.
        clients: Number of clients where not the paper's; not of "writers".
        concentration: Of "dirichlet" only: 0.6 where left out; 0.3 is the paper's other value.
        size_spread: Of "iid" and "dirichlet": standard deviation of the logarithm of a client's
            size, 0 where left out; 0.3 for the unbalanced sets of Acar et al.
        pixels: Not of "power-law": "unit" for pixels in [0, 1], or "standardised" by the mean
            0.1307 and the standard deviation 0.3081 of all, as Acar et al. have them.
        train_share: Of "power-law" and "writers": 0.8 where left out (Li et al., appendix C.2);
            the authors' code for "power-law" has 0.9.
        seed: Seed of the partition.
        data_dir: Folder to read the four idx files from, and QMNIST's two of labels for "writers";
            else `FEDPROX_DATA`, else they are downloaded once.

    Raises:
        InputError: A file is missing or broken, or an argument is out of range.
    """
    kinds = ("power-law", "iid", "shards", "dirichlet", "writers")
    require_one_of("data.partition", partition, kinds)
    options = {
        "clients": (clients, ("power-law", "iid", "shards", "dirichlet")),
        "concentration": (concentration, ("dirichlet",)),
        "size_spread": (size_spread, ("iid", "dirichlet")),
        "pixels": (pixels, ("iid", "shards", "dirichlet", "writers")),
        "train_share": (train_share, ("power-law", "writers")),
    }
    for name, (value, of) in options.items():
        require(
            value is None or partition in of,
            f"data.{name} = {value}; it belongs to partition {' or '.join(of)}, not {partition!r}",
        )
    spread = 0.0 if size_spread is None else size_spread
    share = 0.8 if train_share is None else train_share
    count = clients if clients is not None else 1000 if partition == "power-law" else 100
    if pixels is not None:
        require_one_of("data.pixels", pixels, ("unit", "standardised"))
    images, labels, test_images, test_labels = _images(data_dir)
    names: Iterable[str] = map(str, range(count))
    prepare = standardised if (pixels or partition) in ("standardised", "dirichlet") else unit

    def deal(labels: NDArray[np.generic]) -> list[NDArray[np.int64]]:
        if partition == "iid":
            return partitions.iid(len(labels), clients=count, spread=spread, seed=seed)
        return partitions.shards(labels, clients=count, seed=seed)

    if partition in ("power-law", "writers"):
        # all images together, then each client's rows divided
        images = test_images = np.concatenate([images, test_images])
        labels = test_labels = np.concatenate([labels, test_labels])
        if partition == "power-law":
            owned = partitions.two_class_power_law(labels, clients=count, seed=seed)
            mean, scale = _pixel_statistics(images)
            prepare = partial(_pixelwise, mean=mean, scale=scale)
        else:
            names, owned = partitions.natural(_writers(labels, data_dir))
        parts = partitions.split(owned, train_share=share, seed=seed)
    elif partition == "dirichlet":
        parts = partitions.with_test_set(
            *(partition, labels, test_labels),
            clients=count,
            concentration=concentration,
            size_spread=spread,
            seed=seed,
        )
    else:
        parts = deal(labels), deal(test_labels)
    train = partitions.take(Prepared(images, prepare), labels, parts[0])
    test = partitions.take(Prepared(test_images, prepare), test_labels, parts[1])
    return Federation(train, test, 10, tuple(names))


def unit(raw: jax.Array) -> jax.Array:
    """Bytes as numbers in [0, 1]."""
    return raw.astype(jnp.float32) * np.float32(1 / 255)


def standardised(raw: jax.Array) -> jax.Array:
    """Bytes as numbers with mean 0 and standard deviation 1 over MNIST's training images."""
    return standardise(raw, (0.1307,), (0.3081,))


def _pixelwise(raw: jax.Array, mean: NDArray[np.float32], scale: NDArray[np.float32]) -> jax.Array:
    """Bytes with mean 0 and standard deviation (almost) 1 at each pixel."""
    return (raw.astype(jnp.float32) - mean) * scale


def _images(data_dir: str | Path | None) -> list[NDArray[np.uint8]]:
    """Training images and labels, then test images and labels."""
    files = [find(source, "mnist", data_dir) for source in MNIST.values()]
    arrays = [read_idx(file) for file in files]
    for part, (x, y) in {"train": arrays[:2], "t10k": arrays[2:]}.items():
        require(
            x.shape == (len(x), 28, 28) and y.shape == (len(x),),
            f"mnist: {part} images of shape {x.shape} and labels of shape {y.shape} do not match",
        )
        require(y.max() < 10, f"mnist: {part} labels hold {y.max()}; digits are 0 to 9")
    return arrays


def _writers(labels: NDArray[np.uint8], data_dir: str | Path | None) -> NDArray[np.int32]:
    """Who wrote each of MNIST's images: training images first, then test images.

    QMNIST's labels begin with MNIST's images, in order; its test part goes on after them.
    """
    files = [find(source, "mnist", data_dir) for source in QMNIST.values()]
    train, test = (read_idx(file, np.int32) for file in files)
    for file, table in zip(files, (train, test), strict=True):
        require(
            table.ndim == 2 and table.shape[1] == 8,
            f"{file}: needs 8 numbers for each image; it holds an array of shape {table.shape}",
        )
    table = np.concatenate([train, test])[: len(labels)]
    require(
        len(table) == len(labels) and (table[:, 0] == labels).all(),
        f"{files[0].parent}: QMNIST's labels are not those of MNIST's {len(labels)} images",
    )
    return table[:, 2]


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
