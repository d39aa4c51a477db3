"""Federated EMNIST: handwritten letters (Cohen et al. 2017) and writers (Caldas et al. 2018)."""

import re
import sqlite3
import zlib
from collections.abc import Iterator
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
from fedprox.datasets.cache import Arrays, packed, prepared, unpacked
from fedprox.datasets.emnist import lower_case
from fedprox.datasets.labelled import Labelled, Options, federation, options_of, require_images
from fedprox.datasets.leaf import leaf, without_hidden
from fedprox.datasets.mnist import unit
from fedprox.datasets.sources import FEMNIST_SQLITE, data_folder, find, present
from fedprox.errors import InputError, require, require_whole
from fedprox.features import Prepared
from fedprox.federation import Federation, Rows, offsets_of
from fedprox.files.packed import npz, refusing, unpacked_limit
from fedprox.streams import Purpose, generator
from fedprox.terminal import Bar

Writer = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""A writer's images and labels."""


PARTITIONS: Options = {
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
        PARTITIONS,
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


def letters(count: int, data_dir: str | Path | None) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Images and labels of the first lower-case letters, white on black."""
    images, labels = lower_case(data_dir)
    chosen = labels < count
    return images[chosen], labels[chosen]


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
    rows = Labelled(Prepared(images, dark_on_white), labels)
    divided = partitions.split(parts, train_share=train_share, seed=seed)
    return federation(rows, rows, divided, classes=classes)


def dark_on_white(raw: jax.Array) -> jax.Array:
    """Bytes white on black -> pixels in [0, 1], dark on white."""
    return np.float32(1 / 255) * (255 - raw).astype(jnp.float32)


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
    whole = Federation(train, test, 62, tuple(unpacked(arrays, "names")))
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
    home = data_folder(data_dir)
    if not any(present(source.name, "femnist", data_dir) for source in FEMNIST_SQLITE):
        folder = home / "femnist" if home else Path()
        read = without_hidden([*folder.glob("train/*.json"), *folder.glob("test/*.json")])
        if home and read:
            return prepared("femnist-leaf", read, {}, partial(_from_leaf, folder), version=2)
        sample = present("femnist_300writers.npz", "femnist", data_dir)
        if sample:
            return _from_npz(sample)
    both = [find(source, data_dir) for source in FEMNIST_SQLITE]
    return prepared("femnist-writers", both, {}, partial(_from_sqlite, *both))


def _from_sqlite(train: Path, test: Path) -> Arrays:
    """Read FedJAX's files: tables of writers with their packed images and labels."""
    parts = {"train": _table(train), "test": _table(test)}
    for name in sorted(parts["train"].keys() ^ parts["test"].keys()):
        here, missing = (train, test) if name in parts["train"] else (test, train)
        raise InputError(f"{here}: writer {name!r} is not in {missing.name}")
    names = sorted(parts["train"])
    arrays = packed("names", names)
    for part, writers in parts.items():
        arrays[f"{part}_x"] = np.concatenate([writers[name][0] for name in names])
        arrays[f"{part}_y"] = np.concatenate([writers[name][1] for name in names])
        arrays[f"{part}_offsets"] = offsets_of(len(writers[name][1]) for name in names)
    return arrays


def _table(path: Path) -> dict[str, Writer]:
    """Each writer's images and labels.

    The table `federated_data` holds a writer's id ("HASH:f0000_14"), number of examples and
    examples: MessagePack packed by zlib, with arrays "pixels", float32 (n, 28, 28) from 0 to 1 and
    dark on white, and "label".
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


FEW = {"max_array_len": 4, "max_map_len": 16}
"""Limits of a writer's examples. MessagePack allocates whatever size a file announces."""


def _unpacked(data: Any) -> Any:
    """Unpack zlib and MessagePack, with arrays as `msgpack.ExtType`."""
    unpack = zlib.decompressobj()
    raw = unpack.decompress(data, unpacked_limit(len(data)))
    if not unpack.eof:
        raise ValueError("they are cut short, or unpack to too much for their size")
    return msgpack.unpackb(raw, raw=True, **FEW)


def _array(packed: Any) -> NDArray[Any]:
    """Unpack an array that flax packed: shape, type and bytes."""
    if not isinstance(packed, msgpack.ExtType):
        raise TypeError("they must be arrays")
    shape, kind, content = msgpack.unpackb(packed.data, raw=True, **FEW)
    if not re.fullmatch(rb"(float|u?int)(8|16|32|64)", kind):
        raise TypeError("their arrays must be of numbers")
    return np.frombuffer(content, np.dtype(kind.decode())).reshape(shape)


def _from_leaf(folder: Path) -> Arrays:
    """Read LEAF's JSON files, in which an image is 784 numbers from 0 to 1."""
    given = leaf(str(folder.resolve()), classes=62)
    arrays = packed("names", given.names)
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
    arrays = packed("names", names.tolist())
    order = np.argsort(writer, kind="stable")
    for name, which in (("train", 0), ("test", 1)):
        rows = order[part[order] == which]
        arrays[f"{name}_x"], arrays[f"{name}_y"] = x[rows], labels[rows]
        arrays[f"{name}_offsets"] = offsets_of(np.bincount(writer[rows], minlength=len(names)))
    return arrays
