"""Handwriting: MNIST (LeCun et al. 1998), EMNIST (Cohen et al. 2017) and FEMNIST (LEAF, 2018)."""

import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import msgpack
import numpy as np
from numpy.typing import NDArray

from fedprox.datasets import partition as partitions
from fedprox.datasets import sources
from fedprox.datasets.images import dark_on_white, require_images, standardise, unit
from fedprox.datasets.labelled import (
    CentralPartition,
    Options,
    central,
    federation,
    options_of,
)
from fedprox.datasets.leaf import leaf
from fedprox.datasets.sources import (
    Arrays,
    find,
    pack_strings,
    prepared,
    unpack_strings,
    without_hidden,
)
from fedprox.errors import InputError, require, require_one_of, require_whole
from fedprox.features import Prepared
from fedprox.federation import Examples, Federation, Rows, offsets_of
from fedprox.files.packed import npz, read_idx, refusing, unpacked_limit
from fedprox.streams import Purpose, generator
from fedprox.terminal import Bar

Writer = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""A writer's images and labels."""

LOWER_CASE = 36
"""The label of "a" in ByClass and in LEAF: ten digits and 26 capitals precede it."""

MNIST_PARTITIONS: Options = {
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
            "dirichlet", or of the shards' sizes, with "shards". 0 if None, or 0.3 for the
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
        MNIST_PARTITIONS,
        clients=clients,
        concentration=concentration,
        size_spread=size_spread,
        pixels=pixels,
        train_share=train_share,
    )
    require_one_of("data.pixels", pixels, ("unit", "standardised"), optional=True)
    share, how = options.pop("train_share", 0), options.pop("pixels", "")
    prepare: Callable[[jax.Array], jax.Array] = standardised if how == "standardised" else unit
    x, y, test_x, test_y = _mnist_images(data_dir)
    if not share:
        train, test = (Examples(Prepared(a, prepare), b) for a, b in ((x, y), (test_x, test_y)))
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
        names, owned = partitions.natural(_mnist_writers(y, data_dir))
    parts = partitions.split(owned, train_share=share, seed=seed)
    rows = Examples(Prepared(x, prepare), y)
    return federation(rows, rows, parts, classes=10, names=names)


def standardised(raw: jax.Array) -> jax.Array:
    """Bytes as numbers with mean 0 and standard deviation 1 over MNIST's training images."""
    return standardise(raw, (0.1307,), (0.3081,))


def _pixelwise(raw: jax.Array, mean: NDArray[np.float32], scale: NDArray[np.float32]) -> jax.Array:
    """Bytes with mean 0 and standard deviation (almost) 1 at each pixel."""
    return (raw.astype(jnp.float32) - mean) * scale


def _mnist_images(data_dir: str | Path | None) -> list[NDArray[np.uint8]]:
    """Training images and labels, then test images and labels."""
    arrays = [read_idx(find(source, data_dir)) for source in sources.MNIST]
    for part, (x, y) in {"train": arrays[:2], "t10k": arrays[2:]}.items():
        require_images(f"mnist: {part}", x, y, 10)
    return arrays


def _mnist_writers(labels: NDArray[np.uint8], data_dir: str | Path | None) -> NDArray[np.int32]:
    """The writer of each of MNIST's images: training images first, then test images.

    QMNIST's labels begin with MNIST's images, in order; its test part has more.
    """
    tables = []
    for source in sources.QMNIST:
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


def emnist_l(
    partition: CentralPartition = "iid",
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
            and 8,000 test images, as in the paper. Or with `emnist/emnist_letters_a_to_j.npz`,
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
    return central(
        partition,
        Examples(Prepared(x, prepare), y),
        Examples(Prepared(test_x, prepare), test_y),
        clients=clients,
        concentration=concentration,
        size_spread=size_spread,
        seed=seed,
        classes=10,
    )


def _letters(data_dir: str | Path | None) -> list[NDArray[np.uint8]]:
    """Training images and labels 0 to 9, then test images and labels."""
    path = find(sources.EMNIST_L, data_dir)
    if path.suffix == ".zip":
        arrays = _official(path, "letters", 27, 1, 10)
        return [arrays[name] for name in ("train_x", "train_y", "test_x", "test_y")]
    x, y = _sample(path, 10)
    tested = np.zeros(len(y), bool)
    stream = generator(0, Purpose.SPLIT)
    for rows in partitions.natural(y)[1]:
        tested[stream.permutation(rows)[: len(rows) // 7]] = True
    return [x[~tested], y[~tested], x[tested], y[tested]]


def letters(count: int, data_dir: str | Path | None) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The first lower-case letters, upright and white on black, with labels from 0."""
    path = find(sources.EMNIST, data_dir)
    if path.suffix == ".zip":
        arrays = _official(path, "byclass", 62, LOWER_CASE, 26)
        x, y = (np.concatenate([arrays[f"train_{kind}"], arrays[f"test_{kind}"]]) for kind in "xy")
    else:
        x, y = _sample(path, 26)
    return x[y < count], y[y < count]


def _sample(path: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images and labels of a file of some of EMNIST."""
    images, labels = npz(path, "images", "labels")
    require_images(path, images, labels, classes)
    return images, labels.astype(np.uint8)


def _official(path: Path, kind: str, classes: int, first: int, count: int) -> Arrays:
    """Both parts of one of EMNIST's own sets: `count` of its classes, whose labels become 0, ..."""

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


FEMNIST_PARTITIONS: Options = {
    "letters": {"clients": 200, "classes_per_client": 5, "train_share": 0.8},
    "letters-26": {"clients": 200, "classes_per_client": 20, "train_share": 0.8},
    "writers": {"clients": None},
}
"""The options of each partition, and the papers' values; None for all writers."""

LETTERS: dict[str, tuple[int, dict[str, Any]]] = {
    "letters": (10, {"mean": 4.0, "deviation": 1.0}),
    "letters-26": (26, {"mean": 5.07, "deviation": 1.34}),
}
"""The letters, and how the clients' sizes are drawn."""


def femnist(
    partition: Literal["letters", "letters-26", "writers"] = "letters",
    *,
    classes_per_client: int | None = None,
    clients: int | None = None,
    train_share: float | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """Federated EMNIST: handwritten letters and digits of 28 x 28 pixels.

    Each `partition` is a paper's:

    * "letters" (Li et al., FEMNIST): the letters a to j over 200 clients, 5 letters each, with
      int(LogNormal(4, 1)) + 5 rows.
    * "letters-26" (early draft of Li et al., EMNIST*): the letters a to z over 200 clients, 20
      letters each. The draft does not say how sizes are drawn; here they are log-normal with its
      mean 395 and standard deviation 873.
    * "writers" (LEAF): 62 classes and a client for each writer, with the files' own test rows. The
      draft's EMNIST has 900 of them and does not say which.

    Pixels lie in [0, 1], and ink is dark on white (1), as in the authors' code; EMNIST's own files
    are white on black. It matters: a row's squared norm is 620, against 110 white on black, which
    makes training less steady. With 90 % stragglers, 200 rounds and one seed, FedAvg reaches 56 %
    dark on white and 76 % white on black; FedProx reaches 82 % either way.

    Args:
        partition: "letters", "letters-26" or "writers".
        classes_per_client: Letters of each client; None for the paper's. Not with "writers".
        clients: Number of clients; None for 200, or for all writers. With "writers", they are drawn
            at random.
        train_share: Share of each client's rows to train on; None for 0.8, as in the paper. Not
            with "writers".
        seed: Seed of the partition, or of the drawing of writers.
        data_dir: Folder with the files; None for `FEDPROX_DATA`, or else a download to the cache.
            For letters, EMNIST's `emnist/gzip.zip`; or `emnist/emnist_lowercase.npz`, the test part
            of ByClass with 11,916 images of a to j and 27,059 in all, fewer than the papers' 18,345
            and 79,059. Where a letter runs out, its images are divided in proportion to what was
            asked; no image goes to two clients. For writers, in `femnist/`: FedJAX's
            `federated_emnist_train.sqlite` and `federated_emnist_test.sqlite` (3,400 writers);
            LEAF's folders `train/` and `test/` of JSON files; or `femnist_300writers.npz` (300).
            FedJAX's files are downloaded by `fedprox data fetch` alone.

    Returns:
        A federation with 10, 26 or 62 classes whose features are float32 of shape (28, 28).

    Raises:
        InputError: If a file is missing or damaged, or an argument is out of range or does not
            belong to the partition.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.femnist("letters")  # doctest: +SKIP

    References:
        Cohen et al., `EMNIST: an extension of MNIST to handwritten letters
        <https://arxiv.org/abs/1702.05373>`_, IJCNN 2017. Federations:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, appendix C.1; and
        Caldas et al., `LEAF: A Benchmark for Federated Settings
        <https://arxiv.org/abs/1812.01097>`_, 2018. SQLite files:
        Ro et al., `FedJAX: Federated learning simulation with JAX
        <https://arxiv.org/abs/2108.02117>`_, 2021.
    """
    options = options_of(
        partition,
        FEMNIST_PARTITIONS,
        clients=clients,
        classes_per_client=classes_per_client,
        train_share=train_share,
    )
    if partition == "writers":
        return _writers(clients, seed, data_dir)
    count, sizes = LETTERS[partition]
    images, labels = letters(count, data_dir)
    share = options.pop("train_share")
    parts = partitions.rotating_classes(labels, **options, **sizes, seed=seed)
    return by_letters(images, labels, parts, classes=count, train_share=share, seed=seed)


def by_letters(
    images: NDArray[np.uint8],
    labels: NDArray[Any],
    parts: list[partitions.Indices],
    *,
    classes: int,
    train_share: float,
    seed: int,
) -> Federation:
    """The letters divided over clients, dark on white, with each client's own test rows."""
    rows = Examples(Prepared(images, dark_on_white), labels)
    divided = partitions.split(parts, train_share=train_share, seed=seed)
    return federation(rows, rows, divided, classes=classes)


def _writers(clients: int | None, seed: int, data_dir: str | Path | None) -> Federation:
    """A client for each writer, or for `clients` of them, drawn at random, in their order."""
    arrays = _by_writer(data_dir)
    train, test = (
        Rows(
            Prepared(arrays[f"{part}_x"], unit),
            arrays[f"{part}_y"].astype(np.int32),
            arrays[f"{part}_offsets"],
        )
        for part in ("train", "test")
    )
    whole = Federation(train, test, 62, tuple(unpack_strings(arrays, "names")))
    if clients is None:
        return whole
    require_whole("data.clients", clients)
    require(clients <= len(whole), f"data.clients = {clients}; there are {len(whole)} writers")
    stream = generator(seed, Purpose.PARTITION)
    return whole.of_clients(np.sort(stream.choice(len(whole), clients, replace=False)))


def _by_writer(data_dir: str | Path | None) -> Arrays:
    """All writers' images from the files that are there, the largest set first.

    Images are bytes, dark on white, (n, 28, 28), one writer's after another's, for each part.
    """
    both = [find(source, data_dir) for source in sources.FEMNIST_SQLITE]
    if any(path.suffix == ".sqlite" for path in both):
        both = [find(each._replace(instead=()), data_dir) for each in sources.FEMNIST_SQLITE]
        return prepared("femnist-writers", both, {}, partial(_from_sqlite, *both))
    if both[0].suffix == ".npz":
        return _from_npz(both[0])
    folder = both[0].parents[1]
    read = without_hidden([*folder.glob("train/*.json"), *folder.glob("test/*.json")])
    return prepared("femnist-leaf", read, {}, partial(_from_leaf, folder), version=2)


def _from_sqlite(train: Path, test: Path) -> Arrays:
    """Read FedJAX's files: tables of writers with their packed images and labels."""
    parts = {"train": _table(train), "test": _table(test)}
    for name in sorted(parts["train"].keys() ^ parts["test"].keys()):
        here, missing = (train, test) if name in parts["train"] else (test, train)
        raise InputError(f"{here}: writer {name!r} is not in {missing.name}")
    names = sorted(parts["train"])
    arrays = pack_strings("names", names)
    for part, writers in parts.items():
        arrays[f"{part}_x"] = np.concatenate([writers[name][0] for name in names])
        arrays[f"{part}_y"] = np.concatenate([writers[name][1] for name in names])
        arrays[f"{part}_offsets"] = offsets_of(len(writers[name][1]) for name in names)
    return arrays


def _table(path: Path) -> dict[str, Writer]:
    """Each writer's images and labels.

    The table `federated_data` holds a writer's id ("HASH:f0000_14"), number of examples and
    examples. These are MessagePack packed by zlib, with arrays "pixels", float32 (n, 28, 28) from 0
    to 1 and dark on white, and "label".
    """
    writers: dict[str, Writer] = {}
    # immutable: nothing is written beside the file, not even a lock
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    with (
        refusing(f"{path}: not a database of writers"),
        closing(sqlite3.connect(address, uri=True)) as database,
        Bar(path.name, delay=1) as bar,
    ):
        for client, data, count in _rows(path, database):
            name = client.decode(errors="replace").rpartition(":")[2]
            require(name not in writers, f"{path}: writer {name!r} appears twice")
            writers[name] = _examples(f"{path}: writer {name!r}", data, count)
            bar.update(1)
    require(writers, f"{path}: no writers")
    return writers


def _rows(path: Path, database: sqlite3.Connection) -> Iterator[tuple[Any, Any, Any]]:
    """The rows of the table, which must not be a view: a view could compute for ever."""
    database.text_factory = bytes
    # no value is longer than the file
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(path.stat().st_size, 1 << 16))
    columns = ("client_id", "data", "num_examples")
    tables = database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    ).fetchall()
    plain = database.execute(
        "SELECT name FROM pragma_table_xinfo('federated_data') WHERE hidden = 0"
    ).fetchall()
    require(
        (b"federated_data",) in tables and all((name.encode(),) in plain for name in columns),
        f"{path}: not a database of writers: it needs a table federated_data with columns "
        f"{', '.join(columns)}",
    )
    yield from database.execute(f"SELECT {', '.join(columns)} FROM federated_data")


def _examples(where: str, data: object, count: object) -> Writer:
    """One writer's images, as bytes, and labels."""
    with refusing(f"{where}: examples cannot be read"):
        content = _unpacked(data)
        x, y = _array(content[b"pixels"]), _array(content[b"label"])
    require(
        x.dtype.kind == "f"
        and x.shape == (len(x), 28, 28)
        and y.dtype.kind in "iu"
        and y.shape == (len(x),) == (count,)
        and ((x >= 0) & (x <= 1)).all()
        and ((y >= 0) & (y < 62)).all(),
        f"{where}: needs n = {count} images of 28 x 28 numbers from 0 to 1 and labels from 0 to "
        f"61; it holds {x.dtype} {x.shape} and labels of shape {y.shape}",
    )
    return np.rint(x * 255).astype(np.uint8), y.astype(np.uint8)


MSGPACK_LIMITS = {"max_array_len": 4, "max_map_len": 16}
"""Limits of a writer's examples. MessagePack allocates whatever size a file announces."""


def _unpacked(data: Any) -> Any:
    """Unpack zlib and MessagePack, with arrays as `msgpack.ExtType`."""
    unpack = zlib.decompressobj()
    raw = unpack.decompress(data, unpacked_limit(len(data)))
    if not unpack.eof:
        raise ValueError("they are cut short, or unpack to too much for their size")
    return msgpack.unpackb(raw, raw=True, **MSGPACK_LIMITS)


def _array(packed: Any) -> NDArray[Any]:
    """Unpack an array that flax packed: shape, type and bytes."""
    if not isinstance(packed, msgpack.ExtType):
        raise TypeError("they must be arrays")
    shape, kind, content = msgpack.unpackb(packed.data, raw=True, **MSGPACK_LIMITS)
    if not re.fullmatch(rb"(float|u?int)(8|16|32|64)", kind):
        raise TypeError("their arrays must be of numbers")
    return np.frombuffer(content, np.dtype(kind.decode())).reshape(shape)


def _from_leaf(folder: Path) -> Arrays:
    """Read LEAF's JSON files, in which an image is 784 numbers from 0 to 1."""
    given = leaf(str(folder.resolve()), classes=62)
    arrays = pack_strings("names", given.names)
    for part, rows in (("train", given.train), ("test", given.test)):
        require(
            rows.x.shape == (len(rows), 784) and ((rows.x >= 0) & (rows.x <= 1)).all(),
            f"{folder}: not FEMNIST: an image is 784 numbers from 0 to 1; it holds rows of shape "
            f"{rows.x.shape[1:]}",
        )
        arrays[f"{part}_x"] = np.rint(rows.x * 255).astype(np.uint8).reshape(-1, 28, 28)
        arrays[f"{part}_y"], arrays[f"{part}_offsets"] = rows.y, rows.offsets
    return arrays


def _from_npz(path: Path) -> Arrays:
    """Read a sample of LEAF's FEMNIST from one file."""
    x, labels, writer, part, names = npz(path, "images", "labels", "writer", "split", "writer_ids")
    require_images(path, x, labels, 62)
    require(
        writer.shape == part.shape == labels.shape
        and set(np.unique(part)) <= {0, 1}
        and writer.dtype.kind in "iu"
        and names.ndim == 1
        and names.dtype.kind == "U"
        and np.array_equal(np.unique(writer), np.arange(len(names)))
        and len(np.unique(names)) == len(names),
        f"{path}: 'writer' and 'split' do not match {len(labels)} images of {len(names)} "
        "different writers",
    )
    arrays = pack_strings("names", names.tolist())
    order = np.argsort(writer, kind="stable")
    for name, which in (("train", 0), ("test", 1)):
        rows = order[part[order] == which]
        arrays[f"{name}_x"], arrays[f"{name}_y"] = x[rows], labels[rows]
        arrays[f"{name}_offsets"] = offsets_of(np.bincount(writer[rows], minlength=len(names)))
    return arrays
