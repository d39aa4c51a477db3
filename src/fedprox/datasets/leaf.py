"""Federations in LEAF's JSON layout (Caldas et al. 2018), which the data of FedProx's code have."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.labelled import (
    PARTITION_OPTIONS,
    AnyPartition,
    divide,
    federation,
    options_of,
)
from fedprox.datasets.partition import split
from fedprox.datasets.sources import locate, without_hidden
from fedprox.errors import InputError, distinct, reason, require, require_share, require_whole
from fedprox.federation import Examples, Federation
from fedprox.files.packed import reading

User = tuple[NDArray[np.float32], NDArray[np.int32]]


def leaf(  # the options of any partition are keys of an experiment file
    path: str,
    *,
    classes: int | None = None,
    partition: AnyPartition | None = None,
    clients: int | None = None,
    classes_per_client: int | None = None,
    concentration: float | None = None,
    size_spread: float | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """A folder in LEAF's JSON layout, `train/*.json` and `test/*.json`.

    Each file holds `users`, a list of names; `num_samples`, their numbers of rows; and `user_data`,
    a table {name: {"x": [[number, ...], ...], "y": [label, ...]}}. Data of users that `users` does
    not name are left out, with a warning. A file may lack `num_samples`, or both lists. Other keys
    are not used. Users are sorted by name. Hidden files, such as macOS' `._NAME`, are not read.

    If no user is in both folders, as LEAF's option `-t user` divides them, the clients are the
    users of `train/` and have no test rows, which a warning says. Those of `test/` are newcomers,
    see :func:`leaf_newcomers`. With a partition their rows are test rows.

    Args:
        path: The folder, relative to the current folder or the data folder.
        classes: Number of classes; None for the largest label plus one.
        partition: None for a client for each user. Else all users' rows are pooled and divided
            again: "iid", "shards", "classes-per-client", "dirichlet-by-client",
            "dirichlet-by-class" or "power-law", see `fedprox.datasets.partition`.
        clients: Number of clients of a partition.
        classes_per_client: Classes of each client, with "classes-per-client".
        concentration: Concentration of the Dirichlet partitions.
        size_spread: Standard deviation of the logarithm of the clients' sizes, with "iid" and
            "dirichlet-by-client", or of the shards' sizes, with "shards"; None for 0.
        seed: Seed of the partition.
        data_dir: The data folder; None for `FEDPROX_DATA`.

    Returns:
        A federation whose features are float32.

    Raises:
        InputError: If the folder or a file is missing, or a file is not in this layout or
            contradicts itself. Also if some training users are not among the test users, or an
            argument is out of range. The message names the file and the user.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> import fedprox as fp
        >>> table = {"user_data": {"ann": {"x": [[0.5], [1.5]], "y": [0, 1]}}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in ("train", "test"):
        ...         Path(folder, part).mkdir()
        ...         _ = Path(folder, part, "all.json").write_text(json.dumps(table))
        ...     federation = fp.datasets.leaf(folder)
        >>> federation.names, federation.classes
        (('ann',), 2)

    References:
        Caldas et al., `LEAF: A Benchmark for Federated Settings
        <https://arxiv.org/abs/1812.01097>`_, 2018.
    """
    options = options_of(
        partition,
        PARTITION_OPTIONS,
        clients=clients,
        classes_per_client=classes_per_client,
        concentration=concentration,
        size_spread=size_spread,
    )
    require_whole("data.classes", classes, optional=True)
    folder = locate(path, data_dir, _fits, "folders train/ and test/ in")
    train, test = _read(folder)
    if test and not train.keys() & test.keys():
        learned, others = _by_user(folder, train, test, classes)
        if not partition:
            line = "%s: its %d test users are not among its %d training users, so there are no "
            line += "test rows; fedprox.datasets.leaf_newcomers reads these users"
            logging.getLogger(__name__).warning(line, folder, len(test), len(train))
            return learned
        parts, classes = (learned.train, others.train), learned.classes
    else:
        for name in sorted(train.keys() ^ test.keys()):
            here, missing = ("train", "test") if name in train else ("test", "train")
            raise InputError(f"{folder}: user {name!r} is in {here}/ but not in {missing}/")
        users = _federation(folder, train, test, classes)
        if not partition:
            return users
        parts, classes = (users.train, users.test), users.classes
    pooled, pooled_test = (Examples(part.x, part.y) for part in parts)
    return divide(pooled, pooled_test, partition, options, classes=classes, seed=seed)


def leaf_newcomers(
    path: str | Path,
    *,
    train_share: float = 0.5,
    classes: int | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """The test users of a folder that LEAF has divided by user, as newcomers.

    LEAF's `preprocess.sh -t user` puts other users in `test/` than in `train/`. Those of `train/`
    are the federation that :func:`leaf` reads, and those of `test/` have never taken part. Each
    newcomer's rows are divided at random, into those that it can begin with and those on which
    :func:`fedprox.newcomers` measures it.

    Args:
        path: The folder, relative to the current folder or the data folder.
        train_share: Share of each newcomer's rows that it can begin with, above 0 and below 1; it
            has at least one.
        classes: Number of classes; None for the largest label plus one, of all users.
        seed: Seed of the division.
        data_dir: The data folder; None for `FEDPROX_DATA`.

    Returns:
        A federation of the newcomers, with as many classes as that of the training users.

    Raises:
        InputError: If a user is in both folders, or as for :func:`leaf`.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> import fedprox as fp
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part, user in (("train", "ann"), ("test", "bob")):
        ...         table = {"user_data": {user: {"x": [[0.5], [1.5]], "y": [0, 1]}}}
        ...         Path(folder, part).mkdir()
        ...         _ = Path(folder, part, "all.json").write_text(json.dumps(table))
        ...     later = fp.datasets.leaf_newcomers(folder)
        >>> later.names, len(later.train), len(later.test)
        (('bob',), 1, 1)

    References:
        Caldas et al., `LEAF: A Benchmark for Federated Settings
        <https://arxiv.org/abs/1812.01097>`_, 2018.
    """
    require_whole("classes", classes, optional=True)
    require_share("train_share", train_share)
    folder = locate(str(path), data_dir, _fits, "folders train/ and test/ in")
    train, test = _read(folder)
    for name in sorted(train.keys() & test.keys())[:1]:
        raise InputError(
            f"{folder}: user {name!r} is in train/ and in test/; newcomers are users of test/ "
            "alone, as LEAF's option `-t user` divides users"
        )
    _, later = _by_user(folder, train, test, classes)
    offsets = later.train.offsets
    owned = [np.arange(*ends) for ends in pairwise(offsets.tolist())]
    parts = split(owned, train_share=train_share, seed=seed)
    rows = Examples(later.train.x, later.train.y)
    return federation(rows, rows, parts, classes=later.classes, names=later.names)


def _fits(folder: Path) -> bool:
    return (folder / "train").is_dir() and (folder / "test").is_dir()


Users = Mapping[str, User]


def _read(folder: Path) -> tuple[Users, Users]:
    """The training rows and the test rows of users."""
    return _read_part(folder / "train"), _read_part(folder / "test")


def _by_user(
    folder: Path, train: Users, test: Users, classes: int | None
) -> tuple[Federation, Federation]:
    """The federation of users that train and that of other users, with one number of classes."""
    learned = _federation(folder / "train", train, None, classes)
    others = _federation(folder / "test", test, None, classes)
    most = max(learned.classes, others.classes)
    for kind in ("x", "y"):
        here, there = (getattr(each.train, kind).shape[1:] for each in (learned, others))
        require(here == there, f"{folder}: {kind} of train/ is {here} a row, and of test/ {there}")
    return replace(learned, classes=most), replace(others, classes=most)


def _federation(folder: Path, train: Users, test: Users | None, classes: int | None) -> Federation:
    """A client for each user."""
    names = sorted(train)
    held_out = None if test is None else [test[name] for name in names]
    try:
        return Federation.from_arrays(
            [train[name] for name in names], held_out, classes=classes, names=names
        )
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None


def _read_part(folder: Path) -> dict[str, User]:
    files = without_hidden(folder.glob("*.json"))
    require(files, f"{folder}: no .json files")
    clients: dict[str, User] = {}
    for file in files:
        for name, client in by_user(file, _client).items():
            require(name not in clients, f"{file}: user {name!r} appears twice")
            clients[name] = client
    return clients


def _client(data: dict[str, Any]) -> User:
    """A user's rows; `Federation.from_arrays` checks what NumPy can check."""
    for key in ("x", "y"):
        require(_numbers(data[key]), f"{key!r} is not a list of numbers")
    try:
        with np.errstate(over="ignore"):
            x, labels = np.asarray(data["x"], np.float32), np.asarray(data["y"], np.float64)
    except (ValueError, OverflowError):
        raise InputError("rows are not of one length, or a number is too large") from None
    bad = ~((np.abs(labels) < 2**31) & (labels == np.floor(labels)))
    if bad.any():
        raise InputError(f"label {labels[bad][0]:g}; labels are whole numbers")
    return x, labels.astype(np.int32)


def _numbers(values: object, depth: int = 0) -> bool:
    """Whether a value is a list of numbers or booleans, or nested lists of them.

    It is checked before NumPy sees the list: an array of words has room for the longest one at
    every place.
    """
    if not isinstance(values, list):
        return False
    kinds = set(map(type, values))
    if kinds == {list} and depth < DEEPEST:
        return all(_numbers(value, depth + 1) for value in values)
    return kinds <= {int, float, bool}


DEEPEST = 8
"""Most dimensions of an example."""


T = TypeVar("T")


def by_user(path: Path, convert: Callable[[dict[str, Any]], T]) -> dict[str, T]:
    """Read the users' data of a file in LEAF's layout.

    It is {"users": [name, ...], "num_samples": [rows, ...], "user_data": {name: {"x": [...], "y":
    [...]}}}. `users` is the list of users: data of others are left out, with a warning. A file may
    lack `num_samples`, or both lists; then all users of `user_data` are read.

    As Python numbers and lists a file takes many times its size, so `convert` makes what is kept of
    a user's table as soon as it is read.
    """

    def table_of(pairs: list[tuple[str, Any]]) -> Any:
        table = dict(pairs)
        if len(table) < len(pairs):
            list(distinct(f"{path}: the key", (name for name, _ in pairs)))
        if not {"x", "y"} <= table.keys():
            return table
        try:
            rows = len(table["y"]) if isinstance(table["y"], list) else 0
            return rows, convert(table)
        except InputError as error:
            return error  # it is raised below, where the user's name is known

    with reading(path) as file:
        try:
            content = json.loads(file.read(), object_pairs_hook=table_of)
        except InputError:
            raise
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: not JSON: {reason(error)}") from None
    data = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(data, dict):
        raise InputError(f"{path}: the object 'user_data' is missing")
    made = dict[str, T]()
    for name, said in _users(path, content, data):
        where, read = f"{path}: user {name!r}", data.get(name)
        require(name in data, f"{where}: it is in 'users' but not in 'user_data'")
        require(not isinstance(read, InputError), f"{where}: {read}")
        if not isinstance(read, tuple):  # JSON holds none, so `table_of` made it
            raise InputError(f"{where}: user_data must hold lists 'x' and 'y'")
        rows, made[name] = read
        require(
            said in (None, rows), f"{where}: {rows} rows in 'user_data'; 'num_samples' says {said}"
        )
    return made


def _users(
    path: Path, content: Mapping[str, Any], data: Mapping[str, Any]
) -> list[tuple[str, int | None]]:
    """The users of a file and their numbers of rows, None where the file does not say them."""
    names, counts = content.get("users"), content.get("num_samples")
    if names is None:
        require(counts is None, f"{path}: 'num_samples' without 'users'; it must have both")
        return [(name, None) for name in data]
    require(
        isinstance(names, list) and all(isinstance(name, str) for name in names),
        f"{path}: 'users' is not a list of names",
    )
    names = list(distinct(f"{path}: users:", names))
    if left := len(data.keys() - set(names)):
        line = "%s: data of %d user%s that 'users' does not name are left out"
        logging.getLogger(__name__).warning(line, path, left, "s" * (left != 1))
    if counts is None:
        return [(name, None) for name in names]
    require(
        isinstance(counts, list) and {type(count) for count in counts} <= {int},
        f"{path}: 'num_samples' is not a list of whole numbers",
    )
    require(
        len(counts) == len(names),
        f"{path}: {len(counts)} numbers in 'num_samples' for {len(names)} names in 'users'",
    )
    return list(zip(names, counts, strict=True))
