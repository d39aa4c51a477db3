"""Federations in memory-mapped files, for as many rows as a disk holds.

A folder of NumPy's `.npy` files, all in C order and of the machine's byte order:

| file | holds |
|---|---|
| `x.npy` | training features of all clients, one client after another, (rows, ...) |
| `y.npy` | their labels, (rows,), or (rows, ...) with -1 for no label |
| `offsets.npy` | where each client's rows begin, and the last one's end, (clients + 1,) |
| `test_x.npy`, `test_y.npy`, `test_offsets.npy` | the same of test rows; all three, or none |
| `validation_x.npy`, `validation_y.npy` | validation rows; both, or none |
| `validation_offsets.npy` | where each client's begin; if missing, they belong to no client |
| `names.npy` | the clients' names, (clients,) strings; "0", "1", ... where it is missing |

Features that are a dict or a tuple have a file for each array in place of `x.npy`, `test_x.npy` and
`validation_x.npy`, with its name before the ending: `x.image.npy`, `x.views.0.npy`.
"""

import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from fedprox.columns import MOST_CLASSES
from fedprox.datasets.sources import locate
from fedprox.errors import InputError, plural, require, require_whole
from fedprox.features import (
    Features,
    at_leaf,
    map_named,
    named_leaves,
    require_alike,
    tree_from,
)
from fedprox.federation import (
    Array,
    Client,
    Examples,
    Federation,
    Names,
    Rows,
    no_rows,
    pair_of,
)
from fedprox.files.mapping import map_file, release_pages
from fedprox.files.packed import require_words

LABELS_AT_A_TIME = 2**20
"""Labels that are checked at a time."""


def mapped(
    path: str, *, classes: int | None = None, data_dir: str | Path | None = None
) -> Federation:
    """A folder of .npy files that are memory-mapped, so that it may be larger than memory.

    Only the files' headers and `offsets.npy` are read, so features are not checked for values that
    are not finite. `fedprox.datasets.write_mapped` writes such a folder:

    * `x.npy`, `y.npy`: training features and labels of all clients, one client after another. Of
      several inputs each has a file, such as `x.image.npy` or `x.views.0.npy`.
    * `offsets.npy`: where each client's rows begin, and where the last one's end.
    * `test_x.npy`, `test_y.npy`, `test_offsets.npy`: the same for test rows; optional.
    * `validation_x.npy`, `validation_y.npy`, `validation_offsets.npy`: likewise. Without the last,
      validation rows belong to no client.
    * `names.npy`: the clients' names; optional.

    Args:
        path: The folder, relative to the current folder or the data folder.
        classes: Number of classes C, for labels known to be in range(C). None to read all labels
            once, and take the largest plus one.
        data_dir: The data folder; None for `FEDPROX_DATA`.

    Returns:
        A federation whose rows stay on disk until they are read.

    Raises:
        InputError: If a file is missing, damaged, or of a type or shape that does not fit the
            others. The message names the file.

    Example:
        >>> import tempfile
        >>> import fedprox as fp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     clients = [([[0.0], [1.0]], [0, 1]), ([[2.0]], [1])]
        ...     fp.datasets.write_mapped(f"{folder}/two", clients)
        ...     federation = fp.datasets.mapped(f"{folder}/two")
        >>> federation.train.sizes.tolist(), federation.classes
        ([2, 1], 2)

    References:
        NumPy developers, `numpy.lib.format
        <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>`_, the format of
        the files.
    """
    folder = locate(path, data_dir, lambda place: bool(_names_of_features(place)), "x.npy in")
    train = _rows(folder, "")
    tested = any(folder.glob("test_*.npy"))
    test = _rows(folder, "test_", like=train) if tested else no_rows(train)
    validation: Rows | Examples | None = None
    if (folder / "validation_offsets.npy").exists():
        validation = _rows(folder, "validation_", like=train)
    elif any(folder.glob("validation_*.npy")):
        validation = Examples(*_arrays(folder, "validation_", train))
    names = _names(folder, len(train.sizes))
    count = _classes(folder, classes, train, test, validation)
    return Federation(train, test, count, names, validation=validation)


def _rows(folder: Path, prefix: str, like: Rows | None = None) -> Rows:
    """All clients' rows, from files with a prefix, in the shapes and types of `like`."""
    offsets_file = folder / f"{prefix}offsets.npy"
    x, y = _arrays(folder, prefix, like)
    offsets = _open(offsets_file, "iu", most=8)
    require(
        offsets.ndim == 1 and len(offsets) > 1,
        f"{offsets_file}: shape {offsets.shape}; it must be (clients + 1,)",
    )
    clients = len(like.offsets if like else offsets) - 1
    require(
        len(offsets) == clients + 1,
        f"{offsets_file}: {len(offsets) - 1} clients; offsets.npy has {clients}",
    )
    begins = np.array(offsets, np.int64)
    require(
        begins[0] == 0 and begins[-1] == len(y) and (begins[1:] >= begins[:-1]).all(),
        f"{offsets_file}: from {begins[0]} to {begins[-1]}; they must rise from 0 to the "
        f"{len(y)} rows of {prefix}y.npy",
    )
    return Rows(x, y, begins)


def _names_of_features(folder: Path) -> list[str]:
    """The names of the features' arrays that a folder has files of, "" for that of one array."""
    several = [file.name[2:-4] for file in sorted(folder.glob("x.*.npy"))]
    return [""] * (folder / "x.npy").is_file() + several


def _file(folder: Path, prefix: str, name: str) -> Path:
    """The file of the features' array of a name."""
    return folder / f"{prefix}{'.'.join(filter(None, ('x', name)))}.npy"


def _arrays(folder: Path, prefix: str, like: Rows | None) -> tuple[Features, Array]:
    """Features and labels, from files with a prefix, in the shapes and types of `like`."""
    y_file = folder / f"{prefix}y.npy"
    names = [*named_leaves(like.x)] if like else _names_of_features(folder)
    files = {name: _file(folder, prefix, name) for name in names}
    leaves = {name: _open(file, "biuf") for name, file in files.items()}
    y = _open(y_file, "iuf")
    for name, x in leaves.items():
        require(
            len(x) == len(y),
            f"{y_file}: {len(y)} labels for the {len(x)} rows of {files[name].name}",
        )
    pairs = [(leaves[name], files[name], "features") for name in names] + [(y, y_file, "labels")]
    others = [*named_leaves(like.x).values(), like.y] if like else [None for _ in pairs]
    for (given, file, what), other in zip(pairs, others, strict=True):
        if other is None:
            require(len(given) and given[0].size, f"{file}: shape {given.shape}; no {what}")
            continue
        require(
            given.shape[1:] == other.shape[1:] and given.dtype == other.dtype,
            f"{file}: rows of {given.dtype} {given.shape[1:]}; those to train on are of "
            f"{other.dtype} {other.shape[1:]}",
        )
    return tree_from(leaves, f"{folder}: x"), y


def _open(path: Path, kinds: str, *, most: int = 4) -> Array:
    """A mapped array of numbers of some kinds, of at most `most` bytes each."""
    array = map_file(path)
    kind, allowed = array.dtype, {"b": "booleans", "i": "whole", "u": "", "f": "floating-point"}
    what = " or ".join(allowed[k] for k in kinds if allowed[k])
    require(
        kind.kind in kinds and kind.itemsize <= most and kind.isnative,
        f"{path}: numbers of type {kind.str}; they must be {what}, of at most {8 * most} bits",
    )
    require(array.ndim, f"{path}: a single number")
    require(array.flags.c_contiguous, f"{path}: in Fortran's order; it must be in C's")
    return array


def _names(folder: Path, clients: int) -> Names:
    path = folder / "names.npy"
    if not path.exists():
        return Names(range(clients))
    names = map_file(path)
    require(
        names.dtype.kind == "U" and names.shape == (clients,),
        f"{path}: {names.dtype} of shape {names.shape}; it must be a string for each of the "
        f"{clients} clients",
    )
    require_words(names, str(path))
    require(len(np.unique(names)) == clients, f"{path}: a name appears twice")
    return Names(names)


def _classes(
    folder: Path, classes: int | None, train: Rows, test: Rows, validation: Rows | Examples | None
) -> int:
    if train.y.dtype.kind == "f":
        require(classes is None, f"data.classes = {classes}; labels are not whole numbers")
        return 0
    if classes is not None:
        require_whole("data.classes", classes)
        return classes
    most, least = -1, 0 if train.y.ndim == 1 else -1
    given = {"y": train, "test_y": test, "validation_y": validation}
    for file, rows in ((file, rows) for file, rows in given.items() if rows):
        for begin in range(0, len(rows), LABELS_AT_A_TIME):
            block = rows.y[begin : begin + LABELS_AT_A_TIME]
            most = max(most, int(block.max()))
            require(
                block.min() >= least and most < MOST_CLASSES,
                f"{folder / file}.npy: labels from {block.min()} to {most}; labels are 0 to "
                f"{MOST_CLASSES - 1}{', and -1 where a row has no label' * (least < 0)}; for "
                "more, give data.classes",
            )
            release_pages(rows.y)
    return most + 1


def write_mapped(
    path: str | Path,
    clients: Federation | Iterable[Client],
    test: Iterable[Client] | None = None,
) -> None:
    """Write a folder that `mapped` reads, client by client, in the memory that one client needs.

    Numbers of 64 bits are written with 32 bits. The first client's types hold for all clients.

    Args:
        path: The folder, which must not exist yet. It appears when it is complete.
        clients: A federation whose features are arrays, written with its validation rows but
            without its augmentation. Or an iterable of each client's x (n_k, ...), which may be a
            dict or a tuple of arrays, and y (n_k,) or (n_k, ...).
        test: Each client's test rows likewise; only with an iterable.

    Raises:
        InputError: If the folder exists or cannot be written, or a client's arrays do not fit the
            first client's.

    Example:
        >>> import tempfile
        >>> import fedprox as fp
        >>> train = (([[float(k)]] * 3, [k % 2] * 3) for k in range(1000))
        >>> test = (([[float(k)]], [k % 2]) for k in range(1000))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fp.datasets.write_mapped(f"{folder}/thousand", train, test)
        ...     federation = fp.datasets.mapped(f"{folder}/thousand")
        >>> len(federation), len(federation.train), len(federation.test), federation.classes
        (1000, 3000, 1000, 2)
    """
    folder = Path(path)
    names: Sequence[str] = ()
    validation: Iterable[Client] | None = None
    by_client = True
    if isinstance(clients, Federation):
        whole = clients
        require(
            all(isinstance(leaf, np.ndarray) for leaf in named_leaves(whole.train.x).values())
            and test is None,
            f"{folder}: features must be arrays, and test rows the federation's own",
        )
        names, clients, test = whole.names, _by_client(whole.train) or (), _by_client(whole.test)
        if isinstance(whole.validation, Rows):
            validation = _by_client(whole.validation)
        elif whole.validation is not None:
            validation, by_client = [(whole.validation.x, whole.validation.y)], False
    require(not folder.exists(), f"{folder}: exists already; name a new folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
            new = Path(temporary, "new")
            new.mkdir()
            count, like = _write(new, "", clients, None)
            require(count, f"{folder}: no clients; at least one is needed")
            if test is not None:
                tested, _ = _write(new, "test_", test, like)
                require(tested == count, f"{folder}: {count} clients to train on, {tested} to test")
            if validation is not None:
                _write(new, "validation_", validation, like)
            if not by_client:
                (new / "validation_offsets.npy").unlink()
            if any(name != str(k) for k, name in enumerate(names)):
                np.save(new / "names.npy", np.array(list(names)), allow_pickle=False)
            new.rename(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error}") from None


def _by_client(rows: Rows) -> Iterable[Client] | None:
    return map(rows.client, range(len(rows.sizes))) if len(rows) else None


Columns = Mapping[str, Array]
"""Arrays of features, "x" or such as "x.image", and "y", by the names of their files."""


def _write(
    folder: Path, prefix: str, clients: Iterable[Client], like: Columns | None
) -> tuple[int, Columns | None]:
    """Write all clients' rows; returns the number of clients, and arrays like theirs."""
    offsets = array("q", [0])
    with ExitStack() as opened:
        files: dict[str, BinaryIO] = {}
        for k, client in enumerate(clients):
            where = f"client {k}, {prefix.strip('_') or 'train'}"
            columns = _columns(client, where, like)
            rows = len(columns["y"])
            require(rows or prefix, f"{where}: no rows; at least one is needed")
            like = like or {name: column[:0] for name, column in columns.items()}
            if not files:
                for name in like:
                    file = (folder / f"{prefix}{name}.npy").open("w+b")
                    files[name] = opened.enter_context(file)
                _begin(files, like, 0)
            if rows:
                for name, column in columns.items():
                    files[name].write(np.ascontiguousarray(column).data)
            offsets.append(offsets[-1] + rows)
        if like is not None:
            _begin(files, like, offsets[-1])
    np.save(folder / f"{prefix}offsets.npy", np.frombuffer(offsets, np.int64))
    return len(offsets) - 1, like


def _columns(client: Client, where: str, like: Columns | None) -> Columns:
    """A client's arrays, checked, in numbers of at most 32 bits; its rows are like others'."""
    x, y = pair_of(client, where)
    x = map_named(lambda name, leaf: _narrow(leaf, f"{at_leaf(where, name)}: features"), x)
    y = _narrow(y, f"{where}: labels")
    y = y.astype(np.uint8) if y.dtype == bool else y
    columns = {f"x.{name}" if name else "x": leaf for name, leaf in named_leaves(x).items()}
    columns["y"] = y
    for name, column in columns.items():
        place, one = at_leaf(where, name[2:]), "label" if column is y else "feature"
        require(
            len(column) == len(y),
            f"{place}: {plural(len(column), 'row')} and {plural(len(y), 'label')}",
        )
        require(not len(y) or column[0].size, f"{place}: one {one} is needed")
    if like and len(y):
        names, others = ({name[2:] for name in each} for each in (columns, like))
        require_alike(where, names, others, "the first client's")
        for name, column in columns.items():
            first = like[name]
            if column.shape[1:] != first.shape[1:] or column.dtype != first.dtype:
                raise InputError(
                    f"{at_leaf(where, name[2:])}: rows of {column.dtype} {column.shape[1:]}; the "
                    f"first client's are of {first.dtype} {first.shape[1:]}"
                )
    return columns


def _narrow(given: Array, what: str) -> Array:
    """Numbers of at most 32 bits."""
    require(given.dtype.kind in "biuf", f"{what} of type {given.dtype}; they must be numbers")
    if given.dtype.itemsize <= 4:
        return given.astype(given.dtype.newbyteorder("="), copy=False)
    real = given.dtype.kind == "f"
    with np.errstate(over="ignore"):
        narrow = given.astype(np.float32 if real else np.int32)
    exact = np.isfinite(narrow) == np.isfinite(given) if real else narrow == given
    require(exact.all(), f"{what}: a number beyond 32 bits")
    return narrow


def _begin(files: Mapping[str, BinaryIO], like: Columns, rows: int) -> None:
    """Write the headers for a number of rows; their length does not depend on it."""
    for what, file in files.items():
        file.seek(0)
        header = {
            "descr": npy.dtype_to_descr(like[what].dtype),
            "fortran_order": False,
            "shape": (rows, *like[what].shape[1:]),
        }
        npy.write_array_header_1_0(file, header)
