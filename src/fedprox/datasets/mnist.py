"""MNIST (LeCun et al. 1998) as a federation."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.datasets import partition as partitions
from fedprox.datasets.augmentation import standardise
from fedprox.datasets.labelled import (
    Labelled,
    Options,
    central,
    federation,
    options_of,
    require_images,
)
from fedprox.datasets.sources import MNIST, QMNIST, find
from fedprox.errors import require, require_one_of
from fedprox.features import Prepared
from fedprox.federation import Federation
from fedprox.files.packed import read_idx

PARTITIONS: Options = {
    "power-law": {"clients": 1000, "train_share": 0.8},
    "iid": {"clients": 100, "size_spread": 0.0, "pixels": "unit"},
    "shards": {"clients": 100, "size_spread": 0.0, "pixels": "unit"},
    "dirichlet": {
        "clients": 100,
        "concentration": 0.6,
        "size_spread": 0.0,
        "pixels": "standardised",
    },
    "writers": {"pixels": "unit", "train_share": 0.8},
}
"""The options of each partition, and the papers' values."""


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
    """MNIST: 70,000 grey images of handwritten digits, 28 x 28 pixels.

    Each `partition` is a paper's:

    * "power-law" (Li et al.): 1,000 clients with two digits each and sizes that follow a power law.
      All 70,000 images are pooled, each pixel is standardized over them, and each client's rows are
      divided into training and test rows. Shares are rounded down, so about 950 images go to no
      client, as in the authors' code.
    * "iid" (McMahan et al.): 100 clients with 600 training images each, pixels in [0, 1].
    * "shards" (McMahan et al.): 100 clients with two shards of 300 images, each shard of mostly one
      digit, pixels in [0, 1].
    * "dirichlet" (Acar et al.): 100 clients that draw their own shares of the digits, standardized
      pixels.
    * "writers": a client for each writer, by QMNIST's labels, with pixels in [0, 1]. No writer is
      in both of MNIST's parts, so each client's rows are divided into training and test rows.

    With "iid", "shards" and "dirichlet" MNIST's test images are divided as the training images.
    Images are stored as bytes and become float32 when they are read.

    Args:
        partition: "power-law", "iid", "shards", "dirichlet" or "writers".
        clients: Number of clients; None for the paper's. Not with "writers".
        concentration: Concentration of "dirichlet": 0.6 if None, or 0.3 for the paper's other
            setting.
        size_spread: Standard deviation of the logarithm of the clients' sizes, with "iid" and
            "dirichlet", or of the shards' sizes, with "shards": 0 if None, or 0.3 for the
            unbalanced sets of Acar et al.
        pixels: "unit" for pixels in [0, 1], "standardised" for zero mean and unit variance over all
            pixels; None for the partition's. Not with "power-law".
        train_share: Share of a client's rows to train on, with "power-law" and "writers": 0.8 if
            None, as in the paper; the code for "power-law" has 0.9.
        seed: Seed of the partition.
        data_dir: Folder with the four idx files, packed (.gz) or not, and for "writers" with
            QMNIST's two label files; None for `FEDPROX_DATA`, or else a download to the cache.

    Returns:
        A federation with 10 classes whose features are float32 of shape (28, 28).

    Raises:
        InputError: If a file is missing or damaged, or an argument is out of range or does not
            belong to the partition.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.mnist("dirichlet", concentration=0.3)  # doctest: +SKIP

    References:
        LeCun et al., `Gradient-based learning applied to document recognition
        <https://doi.org/10.1109/5.726791>`_, Proceedings of the IEEE, 1998. Partitions:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3;
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, appendix C.1;
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix A.2. Writers:
        Yadav and Bottou, `Cold Case: The Lost MNIST Digits <https://arxiv.org/abs/1905.10498>`_,
        NeurIPS 2019.
    """
    options = options_of(
        partition,
        PARTITIONS,
        clients=clients,
        concentration=concentration,
        size_spread=size_spread,
        pixels=pixels,
        train_share=train_share,
    )
    require_one_of("data.pixels", pixels, ("unit", "standardised"), optional=True)
    share, how = options.pop("train_share", None), options.pop("pixels", None)
    prepare: Callable[[jax.Array], jax.Array] = standardised if how == "standardised" else unit
    x, y, test_x, test_y = _images(data_dir)
    if share is None:
        train, test = (Labelled(Prepared(a, prepare), b) for a, b in ((x, y), (test_x, test_y)))
        if partition != "shards":
            return central(partition, train, test, **options, seed=seed, classes=10)
        count, spread = options.values()
        dealt, of_test = (
            partitions.shards(labels, clients=count, spread=spread, seed=seed)
            for labels in (y, test_y)
        )
        return federation(train, test, (dealt, of_test), classes=10)
    # all images are pooled, then each client's rows are divided
    x, y = np.concatenate([x, test_x]), np.concatenate([y, test_y])
    names: list[str] = []
    if partition == "power-law":
        owned = partitions.two_class_power_law(y, **options, seed=seed)
        mean, scale = _pixel_statistics(x)
        prepare = partial(_pixelwise, mean=mean, scale=scale)
    else:
        names, owned = partitions.natural(_writers(y, data_dir))
    parts = partitions.split(owned, train_share=share, seed=seed)
    rows = Labelled(Prepared(x, prepare), y)
    return federation(rows, rows, parts, classes=10, names=names)


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
    arrays = [read_idx(find(source, data_dir)) for source in MNIST]
    for part, (x, y) in {"train": arrays[:2], "t10k": arrays[2:]}.items():
        require_images(f"mnist: {part}", x, y, 10)
    return arrays


def _writers(labels: NDArray[np.uint8], data_dir: str | Path | None) -> NDArray[np.int32]:
    """The writer of each of MNIST's images: training images first, then test images.

    QMNIST's labels begin with MNIST's images, in order; its test part has more.
    """
    tables = []
    for source in QMNIST:
        file = find(source, data_dir)
        tables.append(read_idx(file, kind=np.int32))
        require(
            tables[-1].ndim == 2 and tables[-1].shape[1] == 8,
            f"{file}: needs 8 numbers for each image; it holds an array of shape "
            f"{tables[-1].shape}",
        )
    table = np.concatenate(tables)[: len(labels)]
    require(
        len(table) == len(labels) and (table[:, 0] == labels).all(),
        f"{file.parent}: QMNIST's labels are not those of MNIST's {len(labels)} images",
    )
    return table[:, 2]


def _pixel_statistics(
    x: NDArray[np.generic],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean of each pixel, and 1 / (standard deviation + 0.001), of bytes 0 to 255."""
    total, squares = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    for begin in range(0, len(x), 10_000):
        block = x[begin : begin + 10_000].astype(np.float32)
        total += block.sum(axis=0)
        squares += np.einsum("ijk,ijk->jk", block, block)
    mean = total / len(x)
    deviation = np.sqrt(np.maximum(squares / len(x) - mean**2, 0))
    return mean.astype(np.float32), (1 / (deviation + 0.001)).astype(np.float32)
