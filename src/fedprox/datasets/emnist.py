"""EMNIST: handwritten letters in MNIST's format (Cohen et al. 2017)."""

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.augmentation import standardise
from fedprox.datasets.cache import Arrays, prepared
from fedprox.datasets.labelled import Labelled, central, require_images
from fedprox.datasets.partition import natural
from fedprox.datasets.sources import EMNIST, find, present
from fedprox.errors import require
from fedprox.features import Prepared
from fedprox.federation import Federation
from fedprox.files.packed import npz, read_idx
from fedprox.streams import Purpose, generator

LOWER_CASE = 36
"""The label of "a" in ByClass and in LEAF: ten digits and 26 capitals precede it."""


def emnist_l(
    partition: Literal["iid", "dirichlet"] = "iid",
    *,
    clients: int = 100,
    concentration: float | None = None,
    size_spread: float = 0.0,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """EMNIST-L: handwritten letters a to j, capitals and small letters as one class.

    Images of 28 x 28 pixels are white on black, standardized by the mean and the deviation of the
    training images. Test images are divided as the training images; with "dirichlet" each client's
    have the class shares of its training images. Images are stored as bytes and become float32 when
    they are read.

    Args:
        partition: "iid", or "dirichlet" for clients that draw their own shares of the letters.
        clients: Number of clients.
        concentration: Concentration of "dirichlet": 0.6 if None, or 0.3 for the paper's other
            setting.
        size_spread: Standard deviation of the logarithm of the clients' sizes, at least 0: 0.3 for
            the paper's unbalanced sets.
        seed: Seed of the partition.
        data_dir: Folder with EMNIST's `emnist/gzip.zip`, whose part "Letters" has 48,000 training
            and 8,000 test images, as in the paper; or with `emnist/emnist_letters_a_to_j.npz`,
            50,489 images without a split, of which a seventh of each letter's are always the test
            images. None for `FEDPROX_DATA`, or else a download to the cache.

    Returns:
        A federation with 10 classes whose features are float32 of shape (28, 28).

    Raises:
        InputError: If a file is missing or damaged, or an argument is out of range.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.emnist_l("dirichlet", concentration=0.3)  # doctest: +SKIP

    References:
        Cohen et al., `EMNIST: an extension of MNIST to handwritten letters
        <https://arxiv.org/abs/1702.05373>`_, IJCNN 2017. Federation:
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix A.2.
    """
    x, y, test_x, test_y = _letters(data_dir)
    mean, square = x.mean(), np.square(x, dtype=np.uint16).mean()
    deviation = np.sqrt(square - mean**2)
    require(deviation > 0, "emnist-l: all pixels of the training images are equal")
    prepare = partial(standardise, mean=(mean / 255,), deviation=(deviation / 255,))
    train, test = Labelled(Prepared(x, prepare), y), Labelled(Prepared(test_x, prepare), test_y)
    return central(
        *(partition, train, test),
        clients=clients,
        concentration=concentration,
        size_spread=size_spread,
        seed=seed,
        classes=10,
    )


def _letters(data_dir: str | Path | None) -> list[NDArray[np.uint8]]:
    """Training images and labels 0 to 9, then test images and labels."""
    sample = _sample("emnist_letters_a_to_j.npz", 10, data_dir)
    if not sample:
        arrays = _official("letters", 27, 1, 10, data_dir)
        return [arrays[name] for name in ("train_x", "train_y", "test_x", "test_y")]
    x, y = sample
    tested = np.zeros(len(y), bool)
    stream = generator(0, Purpose.SPLIT)
    for rows in natural(y)[1]:
        tested[stream.permutation(rows)[: len(rows) // 7]] = True
    return [x[~tested], y[~tested], x[tested], y[tested]]


def lower_case(data_dir: str | Path | None) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """EMNIST's lower-case letters, upright and white on black, with labels 0 to 25."""
    sample = _sample("emnist_lowercase.npz", 26, data_dir)
    if not sample:
        arrays = _official("byclass", 62, LOWER_CASE, 26, data_dir)
        x, y = (np.concatenate([arrays[f"train_{kind}"], arrays[f"test_{kind}"]]) for kind in "xy")
        return x, y
    return sample


def _sample(
    name: str, classes: int, data_dir: str | Path | None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]] | None:
    """Images and labels of a file of some of EMNIST, unless the data folder has all of it."""
    path = present(name, "emnist", data_dir)
    if not path or present(EMNIST.name, "emnist", data_dir):
        return None
    images, labels = npz(path, "images", "labels")
    require_images(path, images, labels, classes)
    return images, labels.astype(np.uint8)


def _official(
    kind: str, classes: int, first: int, count: int, data_dir: str | Path | None
) -> Arrays:
    """Both parts of one of EMNIST's own sets: `count` of its classes, whose labels become 0, ..."""
    path = find(EMNIST, data_dir)

    def build() -> Arrays:
        arrays: Arrays = {}
        for part in ("train", "test"):
            x, y = read_split(path, f"{kind}-{part}", classes)
            chosen = (y >= first) & (y < first + count)
            require(
                chosen.any(),
                f"{path}: no letters a to {chr(ord('a') + count - 1)} in {kind}-{part}",
            )
            # EMNIST stores images transposed
            arrays[f"{part}_x"], arrays[f"{part}_y"] = x[chosen].transpose(0, 2, 1), y[chosen]
            arrays[f"{part}_y"] -= np.uint8(first)
        return arrays

    return prepared(f"emnist-{kind}", [path], {}, build)


def read_split(path: Path, name: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images, transposed as EMNIST stores them, and labels of a pair of files in its archive."""
    x, y = (
        read_idx(path, f"emnist-{name}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1")
    )
    require_images(path, x, y, classes)
    return x, y
