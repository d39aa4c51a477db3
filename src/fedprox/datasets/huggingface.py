"""Any labelled data set of the Hugging Face `datasets` library."""

import io
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.columns import MOST_CLASSES
from fedprox.datasets import partition as partitions
from fedprox.datasets.images import unit
from fedprox.datasets.labelled import (
    PARTITION_OPTIONS,
    AnyPartition,
    divide,
    federation,
    options_of,
)
from fedprox.datasets.sources import path_candidates
from fedprox.errors import InputError, installing, plural, require, require_share
from fedprox.features import Features, Prepared, rows_at
from fedprox.federation import Examples, Federation
from fedprox.files.packed import refusing
from fedprox.terminal import Bar

Column = NDArray[Any]


def hugging_face(  # columns, and the options of any partition as keys of an experiment file
    path: Any,
    *,
    features: str | list[str],
    label: str,
    client: str | None = None,
    subset: str | None = None,
    train_share: float | None = None,
    partition: AnyPartition | None = None,
    clients: int | None = None,
    classes_per_client: int | None = None,
    concentration: float | None = None,
    size_spread: float | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """A labelled data set of the Hugging Face `datasets` library.

    Images and arrays of bytes are stored as bytes and become float32 in [0, 1] when they are read;
    images are grey if all are grey, and have colours otherwise. Other features become float32.
    Labels that are whole numbers or words are classes, words in alphabetical order; other labels
    become float32.

    Args:
        path: A folder that `save_to_disk` wrote, relative to the current folder or the data folder.
            Else an argument of `load_dataset`, such as the name of a data set of the hub. In Python
            also a `datasets.Dataset` or `DatasetDict` without a transform. Splits beside "train"
            and "test" (or "validation") are not used, which a warning says.
        features: A column of images, of numbers or of lists of numbers of one length; or several
            columns of numbers.
        label: The column of labels.
        client: The column that names each row's client. Give either this or `partition`.
        subset: The data set's configuration, if it has several.
        train_share: Share of rows to train on, above 0 and below 1, in place of the data set's own
            division into "train" and "test" (or "validation"). None for that division, or for 0.8
            if there is none. With `client` each client's rows are divided.
        partition: How rows are divided over clients: "iid", "shards", "classes-per-client",
            "dirichlet-by-client", "dirichlet-by-class" or "power-law", see
            `fedprox.datasets.partition`.
        clients: Number of clients of a partition.
        classes_per_client: Classes of each client, with "classes-per-client".
        concentration: Concentration of the Dirichlet partitions.
        size_spread: Standard deviation of the logarithm of the clients' sizes, with "iid" and
            "dirichlet-by-client", or of the shards' sizes, with "shards"; None for 0.
        seed: Seed of the partition, and of the division into training and test rows.
        data_dir: The data folder; None for `FEDPROX_DATA`.

    Returns:
        A federation of the data set's rows.

    Raises:
        InputError: If the library is not installed, or the data set cannot be loaded or has a
            transform. Also if a column is missing or has values that cannot be used, or an argument
            is out of range.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.hugging_face(  # doctest: +SKIP
        ...     "ylecun/mnist", features="image", label="label", partition="iid", clients=100
        ... )

    References:
        Lhoest et al., `Datasets: A Community Library for Natural Language Processing
        <https://arxiv.org/abs/2109.02846>`_, EMNLP 2021.
    """
    require(
        bool(client) != bool(partition),
        "data: give either client, the column that names the clients, or partition",
    )
    options = options_of(
        partition,
        PARTITION_OPTIONS,
        clients=clients,
        classes_per_client=classes_per_client,
        concentration=concentration,
        size_spread=size_spread,
    )
    columns = _columns(features)
    loaded = _load(path, subset, data_dir)
    path = str(path) if isinstance(path, str | Path) else type(path).__name__
    splits = _splits(path, loaded)
    _require_columns(path, splits, (*columns, label, *filter(None, [client])))
    y, classes = _labels(path, splits, label)
    rows = Examples(_features(path, splits, columns), y)
    names, owned = ["all"], [np.arange(len(y))]
    if client:
        names, owned = partitions.natural(_names(path, splits, client))
    if train_share is None and len(splits) == 2:
        cut = len(splits[0])  # rows of the second split, which are for tests, follow
        parts = [part[part < cut] for part in owned], [part[part >= cut] for part in owned]
    else:
        share = 0.8 if train_share is None else train_share
        parts = partitions.split(owned, train_share=share, seed=seed)
    for name, part in zip(names, parts[0], strict=True):
        require(
            len(part),
            f"{path}: client {name!r} has no training rows; data.train_share would divide all "
            "rows of each client anew",
        )
    if not partition:
        return federation(rows, rows, parts, classes=classes, names=names)
    train, test = (Examples(rows_at(rows.x, part), y[part]) for (part,) in parts)
    return divide(train, test, partition, options, classes=classes, seed=seed)


def from_partitioner(
    partitioner: Any,
    features: str | list[str],
    label: str,
    *,
    test: Any = None,
    seed: int = 0,
) -> Federation:
    """A federation from a partitioner of flwr-datasets, of which each partition is a client.

    Columns are read as by :func:`hugging_face`.

    Args:
        partitioner: A partitioner with a data set (`partitioner.dataset = ...`, or
            `federated.partitioners["train"]` of a `FederatedDataset` that has loaded a partition);
            or any object with `num_partitions` and `load_partition(number)`, which returns a
            `datasets.Dataset`.
        features: A column of images, of numbers or of lists of numbers of one length; or several
            columns of numbers.
        label: The column of labels.
        test: The share of each client's rows, above 0 and below 1, to test on; or another
            partitioner, whose partitions are the same clients' test rows; None for no test rows.
        seed: Seed of the rows to test on.

    Returns:
        The federation. Clients are named by their values of a column if the partitioner divides by
        one, else "0", "1", ...

    Raises:
        InputError: If the partitioner has no data set, a partition is empty, test partitions are
            not the same, or a column is missing or has values that cannot be used.

    Example:
        >>> import fedprox as fp
        >>> from flwr_datasets.partitioner import IidPartitioner  # doctest: +SKIP
        >>> partitioner = IidPartitioner(num_partitions=10)  # doctest: +SKIP
        >>> partitioner.dataset = dataset  # doctest: +SKIP
        >>> fp.datasets.from_partitioner(partitioner, "image", "label")  # doctest: +SKIP

    References:
        `Flower Datasets <https://flower.ai/docs/datasets>`_.
    """
    columns = _columns(features)
    share = test if isinstance(test, int | float) else None
    if share is not None:
        require_share("test", share)
    names, sizes, whole = _partitions("partitioner", partitioner)
    splits, parts = [whole], [_blocks(sizes, 0)]
    if test is not None and share is None:
        named, of_test, held_out = _partitions("test", test)
        require(named == names, "test: its partitions are not those of the partitioner")
        splits.append(held_out)
        parts.append(_blocks(of_test, len(whole)))
    _require_columns("partitioner", splits, (*columns, label))
    y, classes = _labels("partitioner", splits, label)
    rows = Examples(_features("partitioner", splits, columns), y)
    for name, size in zip(names, sizes, strict=True):
        require(size, f"partitioner: partition {name!r} has no rows to train on")
    if share is not None:
        train, held = partitions.split(parts[0], train_share=1 - share, seed=seed)
    elif len(parts) == 2:
        train, held = parts
    else:
        train, held = parts[0], [np.zeros(0, np.int64) for _ in names]
    return federation(rows, rows, (train, held), classes=classes, names=names)


def _partitions(where: str, partitioner: Any) -> tuple[list[str], list[int], Any]:
    """The names of a partitioner's partitions, their numbers of rows, and all rows, one by one."""
    kind = type(partitioner).__name__
    require(
        hasattr(type(partitioner), "load_partition"),
        f"{where}: an object of type {kind}; it must be a partitioner of flwr-datasets, or have "
        "its num_partitions and load_partition(number)",
    )
    with refusing(f"{where}: {kind} has no partitions to load"):  # such as without a data set
        count = partitioner.num_partitions
        loaded = [partitioner.load_partition(number) for number in range(count)]
        ids = dict(getattr(partitioner, "partition_id_to_natural_id", {}))
    datasets = _library()
    for each in loaded:
        require(
            isinstance(each, datasets.Dataset),
            f"{where}: a partition is of type {type(each).__name__}; it must be a datasets.Dataset",
        )
        _require_plain(where, each)
    require(loaded, f"{where}: no partitions")
    whole = datasets.concatenate_datasets(loaded)
    return [str(ids.get(k, k)) for k in range(count)], list(map(len, loaded)), whole


def _blocks(sizes: list[int], begin: int) -> list[NDArray[np.int64]]:
    """Consecutive row numbers for each of some sizes."""
    ends = begin + np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends.tolist(), strict=True)]


def _columns(features: str | list[str]) -> list[str]:
    """The columns of the features."""
    columns = [features] if isinstance(features, str) else features
    require(columns, "data.features = []; at least one column is needed")
    return columns


def _require_columns(path: str, splits: list[Any], columns: Iterable[str]) -> None:
    """Raise `InputError` unless all splits have some columns."""
    for column in columns:
        for split in splits:
            require(
                column in split.column_names,
                f"{path}: no column {column!r}; it has {', '.join(split.column_names)}",
            )


def _library() -> Any:
    """The package datasets."""
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"hugging-face: the package datasets is not installed: {installing('huggingface')}"
        ) from None
    return datasets


def _load(path: Any, subset: str | None, data_dir: str | Path | None) -> Any:
    datasets = _library()
    if isinstance(path, datasets.Dataset | datasets.DatasetDict):
        require(subset is None, f"data.subset = {subset!r}; the data set is loaded already")
        return path
    require(
        isinstance(path, str | Path),
        f"data.path: an object of type {type(path).__name__}; it must be a path, the name of a "
        "data set, a datasets.Dataset or a DatasetDict",
    )
    path = str(path)
    try:
        for folder in path_candidates(path, data_dir):
            if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
                return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(path, subset)
    except Exception as error:  # of any type where a saved folder is damaged
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: cannot be loaded: {first}") from None


def _splits(path: str, loaded: Any) -> list[Any]:
    """The training split and, if there is one, the test split."""
    splits = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    train = "train" if len(splits) > 1 else next(iter(splits), "train")
    require(train in splits, f'{path}: no split "train"; it has {", ".join(splits)}')
    test = "test" if "test" in splits else "validation"
    used = [splits.pop(name) for name in (train, test) if name in splits]
    require(len(used[0]), f"{path}: no rows to train on")
    for unused, split in splits.items():
        line = '%s: the split "%s" of %s is not used'
        logging.getLogger(__name__).warning(line, path, unused, plural(len(split), "row"))
    for split in used:
        _require_plain(path, split)
    return used


def _require_plain(path: str, split: Any) -> None:
    """Raise `InputError` if a split has a transform."""
    require(
        split.format["type"] != "custom",
        f"{path}: it has a transform (with_transform or set_transform), which would not be "
        "applied; apply it with map, or remove it with reset_format",
    )


def _column(path: str, splits: list[Any], column: str) -> Column:
    """The values of a column of all splits; of type object unless all are numbers of one shape."""
    parts = []
    with refusing(f"{path}: column {column!r} cannot be read"):
        for split in _in_one_mode(path, splits, column):
            batches = split.select_columns(column).with_format("numpy").iter(ROWS_AT_A_TIME)
            with Bar(f"{path}: {column}", len(split), delay=2) as bar:
                for batch in batches:
                    parts.append(batch[column])
                    bar.update(len(batch[column]))
    kinds = {part.dtype.kind for part in parts}
    if len({part.shape[1:] for part in parts}) > 1 or kinds & {"O", "U"}:
        values = np.empty(sum(map(len, parts)), object)
        values[:] = [value for part in parts for value in part]
        return values
    return np.concatenate(parts)


ROWS_AT_A_TIME = 1000
"""Rows decoded at a time."""


def _in_one_mode(path: str, splits: list[Any], column: str) -> list[Any]:
    """The splits with all images of a column in one mode: grey if all are grey, else in colours."""
    import datasets

    if not any(type(split.features[column]).__name__ == "Image" for split in splits):
        return splits
    modes = set[str]()
    for split in splits:
        stored = split.cast_column(column, datasets.Image(decode=False)).select_columns(column)
        with Bar(f"{path}: {column}, modes", len(split), delay=2) as bar:
            for batch in stored.with_format(None).iter(ROWS_AT_A_TIME):
                modes |= {_mode(image) for image in batch[column] if image is not None}
                bar.update(len(batch[column]))
    for mode in sorted(modes):
        if mode.startswith(("I", "F")):
            raise ValueError(f"images of mode {mode}, beyond bytes; give them as arrays of numbers")
    one = datasets.Image(mode="L" if modes <= {"1", "L"} else "RGB")
    return [split.cast_column(column, one) for split in splits]


def _mode(image: dict[str, Any]) -> str:
    """The mode of a stored image, which its first bytes say."""
    from PIL import Image

    import datasets

    if image["bytes"] is None:  # its path may be an address
        return str(datasets.Image().decode_example(image).mode)
    with Image.open(io.BytesIO(image["bytes"])) as opened:
        return str(opened.mode)


def _names(path: str, splits: list[Any], column: str) -> Column:
    """The values of a column that names clients."""
    values = _column(path, splits, column)
    words = values.dtype == object and all(isinstance(value, str) for value in values)
    require(
        values.ndim == 1 and (words or values.dtype.kind in "iub"),
        f"{path}: column {column!r} cannot name clients; each row needs a word or a whole number",
    )
    return values.astype(str) if words else values


def _labels(path: str, splits: list[Any], column: str) -> tuple[Column, int]:
    """Labels and the number of classes; 0 if labels are not classes."""
    values = _column(path, splits, column)
    where = f"{path}: column {column!r}"
    if values.dtype == object and all(isinstance(value, str) for value in values):
        words, labels = np.unique(values.astype(str), return_inverse=True)
        return labels.astype(np.int32), len(words)
    require(
        values.ndim == 1 and values.dtype.kind in "fiub",
        f"{where} cannot be the label; each row needs a number or a word",
    )
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32)
        require(np.isfinite(numbers).all(), f"{where}: a label is missing, or not finite")
        return numbers, 0
    classes = getattr(splits[0].features[column], "num_classes", None)
    names = [getattr(split.features[column], "names", None) for split in splits]
    require(names[0] == names[-1], f"{where}: its classes are not the same in training and test")
    most = MOST_CLASSES if classes is None else classes
    bad = (values < 0) | (values >= most)
    if bad.any():
        raise InputError(f"{where}: label {values[bad][0]}; labels are 0 to {most - 1}")
    return values.astype(np.int32), int(values.max()) + 1 if classes is None else classes


def _features(path: str, splits: list[Any], columns: list[str]) -> Features:
    """One column of any shape, or several of numbers side by side."""
    parts = []
    for column in columns:
        values = _column(path, splits, column)
        where = f"{path}: column {column!r}"
        if values.dtype == object:
            text = any(isinstance(value, str) for value in values)
            what = "holds text" if text else "has rows of different shape, or without a value"
            raise InputError(f"{where} {what}; it must be images or numbers, all alike")
        require(values.dtype.kind in "fiub", f"{where} holds {values.dtype}; not numbers")
        kind = splits[0].features[column]
        name = type(kind).__name__
        is_bytes = name == "Image" or (name.startswith("Array") and kind.dtype == "uint8")
        if len(columns) == 1 and is_bytes:
            return Prepared(values.astype(np.uint8), unit)
        wide = values.dtype.kind in "iu" and values.dtype.itemsize > 4
        require(
            not wide or (values.astype(np.int32) == values).all(),
            f"{where}: a whole number beyond 32 bits, which float32 would round",
        )
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
        require(np.isfinite(values).all(), f"{where}: a value is missing, or not finite")
        require(
            len(columns) == 1 or values.ndim == 1,
            f"{where} holds arrays; only columns of numbers can stand side by side",
        )
        parts.append(values)
    return parts[0] if parts[0].ndim > 1 else np.stack(parts, axis=1)
