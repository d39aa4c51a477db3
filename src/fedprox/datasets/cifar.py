"""CIFAR-10 and CIFAR-100: small colour photographs (Krizhevsky 2009)."""

import pickletools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.datasets import images, sources
from fedprox.datasets.labelled import CentralPartition, central
from fedprox.datasets.sources import Arrays, prepared
from fedprox.errors import require, require_one_of
from fedprox.features import Prepared
from fedprox.federation import Examples, Federation
from fedprox.files.packed import reading, refusing, tar_members

Augmentation = Literal["none", "fedavg", "feddyn"]
Bytes = NDArray[np.uint8]

PIXELS = 3 * 32 * 32
"""Bytes of an image."""


def cifar_10(
    partition: CentralPartition = "iid",
    *,
    clients: int = 100,
    concentration: float | None = None,
    size_spread: float = 0.0,
    augmentation: Augmentation = "none",
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """CIFAR-10: 60,000 colour photographs of 32 x 32 pixels in 10 classes.

    The 50,000 training images are divided over the clients. The 10,000 test images are divided
    likewise; with "dirichlet" each client's have the class shares of its training images. Images
    are stored as bytes and become float32 when they are read.

    Args:
        partition: "iid" for equal shares of the shuffled images, 500 for each of 100 clients; or
            "dirichlet" for clients that draw their own shares of the classes.
        clients: Number of clients.
        concentration: Concentration of "dirichlet": 0.6 if None, or 0.3 for the paper's other
            setting.
        size_spread: Standard deviation of the logarithm of the clients' sizes, at least 0: 0.3 for
            the unbalanced sets of Acar et al.
        augmentation: "none" standardizes each channel. "feddyn" does too, and flips and shifts
            training images at random. "fedavg" trains on random 24 x 24 crops with random flips,
            brightness and contrast, and evaluates the middle 24 x 24 pixels, all whitened.
        seed: Seed of the partition.
        data_dir: Folder with `cifar-10/cifar-10-batches-py/`, `cifar-10/cifar-10-python.tar.gz` or
            `cifar-10/cifar-10-batches-py.tar.xz`; None for `FEDPROX_DATA`, or else a download to
            the cache.

    Returns:
        A federation whose features are float32 of shape (32, 32, 3), or (24, 24, 3) with "fedavg".

    Raises:
        InputError: If a file is missing or damaged, or an argument is out of range.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.cifar_10("dirichlet", concentration=0.3)  # doctest: +SKIP

    References:
        Krizhevsky, `Learning Multiple Layers of Features from Tiny Images
        <https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf>`_, 2009. Partitions:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3;
        and Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix A.2.
    """
    return _federation(
        CIFAR_10, partition, clients, concentration, size_spread, augmentation, seed, data_dir
    )


def cifar_100(
    partition: CentralPartition = "iid",
    *,
    clients: int = 100,
    concentration: float | None = None,
    size_spread: float = 0.0,
    augmentation: Augmentation = "none",
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """CIFAR-100: 60,000 colour photographs of 32 x 32 pixels in 100 fine classes.

    Images are divided, stored and augmented as those of `cifar_10`. With "iid" the authors' code
    gives every client equally many images of each class; here they are drawn at random, as the
    paper says.

    Args:
        partition: "iid" or "dirichlet".
        clients: Number of clients.
        concentration: Concentration of "dirichlet"; 0.6 if None.
        size_spread: Standard deviation of the logarithm of the clients' sizes, at least 0.
        augmentation: "none", "fedavg" or "feddyn".
        seed: Seed of the partition.
        data_dir: Folder with `cifar-100/cifar-100-python/` or
            `cifar-100/cifar-100-python.tar.gz`; None for `FEDPROX_DATA`, or else a download to the
            cache.

    Returns:
        A federation whose features are float32 of shape (32, 32, 3), or (24, 24, 3) with "fedavg".

    Raises:
        InputError: If a file is missing or damaged, or an argument is out of range.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.cifar_100("dirichlet", concentration=0.3)  # doctest: +SKIP

    References:
        Krizhevsky, `Learning Multiple Layers of Features from Tiny Images
        <https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf>`_, 2009. Partitions:
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix A.2.
    """
    return _federation(
        CIFAR_100, partition, clients, concentration, size_spread, augmentation, seed, data_dir
    )


class Cifar(NamedTuple):
    """The differences between the two data sets.

    Attributes:
        source: The official archive.
        files: Files with training images, then the one with test images.
        labels: The key of the labels in the files.
        classes: Number of classes.
        standardised: (bytes) -> standardized images, by the channels' means and standard deviations
            of the training images as FedDyn's code gives them.
        augmented: (key, bytes) -> the same, flipped and shifted at random.
    """

    source: sources.Source
    files: tuple[str, ...]
    labels: str
    classes: int
    standardised: Callable[[jax.Array], jax.Array]
    augmented: Callable[[jax.Array, jax.Array], jax.Array]


_CHANNELS_10: dict[str, Any] = {"mean": (0.491, 0.482, 0.447), "deviation": (0.247, 0.243, 0.262)}
_CHANNELS_100: dict[str, Any] = {
    "mean": (0.5071, 0.4867, 0.4408),
    "deviation": (0.2675, 0.2565, 0.2761),
}

CIFAR_10 = Cifar(
    source=sources.CIFAR_10,
    files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    labels="labels",
    classes=10,
    standardised=partial(images.standardise, **_CHANNELS_10),
    augmented=partial(images.feddyn_training, **_CHANNELS_10),
)

CIFAR_100 = Cifar(
    source=sources.CIFAR_100,
    files=("train", "test"),
    labels="fine_labels",
    classes=100,
    standardised=partial(images.standardise, **_CHANNELS_100),
    augmented=partial(images.feddyn_training, **_CHANNELS_100),
)


def _federation(
    cifar: Cifar,
    partition: str,
    clients: int,
    concentration: float | None,
    size_spread: float,
    augmentation: str,
    seed: int,
    data_dir: str | Path | None,
) -> Federation:
    require_one_of("data.augmentation", augmentation, ("none", "fedavg", "feddyn"))
    measured, augment = {
        "none": (cifar.standardised, None),
        "feddyn": (cifar.standardised, cifar.augmented),
        "fedavg": (images.fedavg_evaluation, images.fedavg_training),
    }[augmentation]
    arrays = _arrays(cifar, data_dir)
    train, test = (
        Examples(Prepared(arrays[f"{part}_x"], measured), arrays[f"{part}_y"])
        for part in ("train", "test")
    )
    return central(
        *(partition, train, test),
        clients=clients,
        concentration=concentration,
        size_spread=size_spread,
        seed=seed,
        classes=cifar.classes,
        augment=augment,
    )


def _arrays(cifar: Cifar, data_dir: str | Path | None) -> Arrays:
    """Images (n, 32, 32, 3) and labels (n,) of both parts, as bytes."""
    path = sources.find(cifar.source, data_dir)
    if path.name == cifar.files[0]:
        return _parse(cifar, path.parent, _batches_in(path.parent, cifar))
    archive = tar_members(path, cifar.files)
    return prepared(cifar.source.subfolder, [path], {}, lambda: _parse(cifar, path, archive))


def _batches_in(folder: Path, cifar: Cifar) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of an unpacked archive."""
    for name in cifar.files:
        with reading(folder / name) as file:
            yield name, file


def _parse(cifar: Cifar, path: Path, files: Iterator[tuple[str, IO[bytes]]]) -> Arrays:
    """The images and labels of all batches, checked."""
    batches = {name: _batch(cifar, f"{path}/{name}", file) for name, file in files}
    for name in cifar.files:
        require(name in batches, f"{path}: {name} is missing in this archive")
    return {
        f"{part}_{kind}": np.concatenate([batches[name][i] for name in names])
        for part, names in (("train", cifar.files[:-1]), ("test", cifar.files[-1:]))
        for i, kind in enumerate("xy")
    }


def _batch(cifar: Cifar, where: str, file: IO[bytes]) -> tuple[Bytes, Bytes]:
    """Images and labels of a batch, in which rows are planes of red, green and blue.

    A batch is a pickle of Python 2, which is a program. It is not run: its constants are enough, in
    their order. Labels follow their key, and the one long string holds the pixels.
    """
    word, labels, pixels = "", [], ""
    value: Any
    with refusing(f"{where}: not a pickle that can be read"):
        for operation, value, _ in pickletools.genops(file.read()):
            if operation.name == "BINSTRING" and len(value) >= PIXELS:
                pixels = value
            elif operation.name in ("BINSTRING", "SHORT_BINSTRING"):
                word = value
            elif operation.name in ("BININT", "BININT1", "BININT2") and word == cifar.labels:
                labels.append(value)
    require(
        0 < len(labels) * PIXELS == len(pixels) and set(labels) <= set(range(cifar.classes)),
        f"{where}: not a batch of {cifar.source.subfolder}: it needs n images of {PIXELS} bytes "
        f"and n {cifar.labels!r} from 0 to {cifar.classes - 1}, as Python 2 pickled them",
    )
    planes = np.frombuffer(pixels.encode("latin-1"), np.uint8).reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.array(labels, np.uint8)
