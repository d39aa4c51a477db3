"""Federations in LEAF's JSON layout (Caldas et al. 2018), which the data of FedProx's code have."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets.labelled import Labelled, Partition, check_numbers, divide
from fedprox.datasets.sources import places
from fedprox.datasets.users import by_user
from fedprox.errors import InputError, require, require_whole
from fedprox.federation import MOST_CLASSES, Federation

Client = tuple[NDArray[np.float32], NDArray[np.int32]]


def leaf(  # the options of any partition are keys of an experiment file
    path: str,
    *,
    classes: int | None = None,
    partition: Partition | None = None,
    clients: int | None = None,
    classes_per_client: int | None = None,
    concentration: float | None = None,
    size_spread: float | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Federation:
    """A folder in LEAF's JSON layout, `train/*.json` and `test/*.json`.

    Each file holds `users` (names), `num_samples` (a number for each user) and `user_data`, a table
    {name: {"x": [[number, ...], ...], "y": [label, ...]}}. Users are sorted by name.

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
        InputError: If the folder or a file is missing, a file is not in this layout, training and
            test users differ, or an argument is out of range. The message names the file and the
            user.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> import fedprox as fp
        >>> data = {"ann": {"x": [[0.5], [1.5]], "y": [0, 1]}}
        >>> table = {"users": ["ann"], "num_samples": [2], "user_data": data}
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
    numbers = {
        "clients": clients,
        "classes_per_client": classes_per_client,
        "concentration": concentration,
        "size_spread": size_spread,
    }
    check_numbers(partition, numbers)
    if classes is not None:
        require_whole("data.classes", classes)
    users = _by_user(_folder(path, data_dir), classes)
    if partition is None:
        return users
    pooled, pooled_test = (Labelled(part.x, part.y) for part in (users.train, users.test))
    return divide(pooled, pooled_test, partition, numbers, classes=users.classes, seed=seed)


def _by_user(folder: Path, classes: int | None) -> Federation:
    """A client for each user."""
    train, test = _read_part(folder / "train", classes), _read_part(folder / "test", classes)
    shapes = {
        part[name][0].shape[1:] for part in (train, test) for name in part if len(part[name][0])
    }
    require(len(shapes) == 1, f"{folder}: rows of train/ and test/ differ in shape: {shapes}")
    for name in sorted(train.keys() ^ test.keys()):
        here, missing = ("train", "test") if name in train else ("test", "train")
        raise InputError(f"{folder}: user {name!r} is in {here}/ but not in {missing}/")
    names = sorted(train)
    return Federation.from_arrays(
        [train[name] for name in names],
        [test[name] for name in names],
        classes=classes,
        names=names,
    )


def _folder(path: str, data_dir: str | Path | None) -> Path:
    candidates = places(path, data_dir)
    for place in candidates:
        if (place / "train").is_dir() and (place / "test").is_dir():
            return place
    raise InputError(
        f"data.path: no folders train/ and test/ in {' and '.join(map(str, candidates))}"
    )


def _read_part(folder: Path, classes: int | None) -> dict[str, Client]:
    files = sorted(folder.glob("*.json"))
    require(files, f"{folder}: no .json files")
    clients: dict[str, Client] = {}
    first: tuple[str, tuple[int, ...]] | None = None
    for file in files:
        names, counts, users = _read_file(file, classes)
        for name in sorted(users.keys() - set(names)):
            raise InputError(f"{file}: user {name!r} is in 'user_data' but not in 'users'")
        for name, count in zip(names, counts, strict=True):
            require(name not in clients, f"{file}: user {name!r} appears twice")
            where = f"{file}: user {name!r}"
            require(name in users, f"{where}: user_data must hold lists 'x' and 'y'")
            client = users[name]
            require(
                len(client[0]) == count,
                f"{where}: {len(client[0])} rows where num_samples says {count}",
            )
            require(folder.name == "test" or len(client[0]), f"{where}: no rows")
            if len(client[0]):
                first = first or (name, client[0].shape[1:])
                require(
                    client[0].shape[1:] == first[1],
                    f"{where}: rows of shape {client[0].shape[1:]} where user {first[0]!r} has "
                    f"{first[1]}",
                )
            clients[name] = client
    return clients


def _read_file(
    file: Path, classes: int | None
) -> tuple[list[str], list[object], dict[str, Client]]:
    """The names of the users, their numbers of samples, and their rows."""

    def convert(name: str, data: Any) -> Client:
        return _client(f"{file}: user {name!r}", data, classes)

    others, clients = by_user(file, convert)
    for key in ("users", "num_samples"):
        require(key in others, f"{file}: the key {key!r} is missing")
        require(isinstance(others[key], list), f"{file}: {key!r} is not a list")
    names, counts = others["users"], others["num_samples"]
    require(all(isinstance(name, str) for name in names), f"{file}: a user is not a string")
    require(len(names) == len(counts), f"{file}: {len(names)} users but {len(counts)} num_samples")
    return names, counts, clients


def _numbers(values: list[Any], depth: int = 0) -> bool:
    """Whether a list holds only numbers, or nested lists of numbers.

    It is checked before NumPy sees the list: an array of words has room for the longest one at
    every place.
    """
    kinds = set(map(type, values))
    if kinds == {list} and depth < DEEPEST:
        return all(_numbers(value, depth + 1) for value in values)
    return kinds <= {int, float}


DEEPEST = 8
"""Most dimensions of an example."""


def _client(where: str, data: Any, classes: int | None) -> Client:
    require(
        isinstance(data, dict) and isinstance(data.get("x"), list) and "y" in data,
        f"{where}: user_data must hold lists 'x' and 'y'",
    )
    require(_numbers(data["x"]), f"{where}: rows of 'x' are not numbers")
    require(
        isinstance(data["y"], list) and _numbers(data["y"]), f"{where}: a label is not a number"
    )
    try:
        features, given = np.asarray(data["x"]), np.asarray(data["y"])
    except (ValueError, TypeError):
        raise InputError(f"{where}: rows are not of one length") from None
    require(
        not len(features) or (features.dtype.kind in "iuf" and features[0].size > 0),
        f"{where}: rows of 'x' are not numbers",
    )
    require(given.dtype.kind in "iuf", f"{where}: a label is not a number")
    with np.errstate(over="ignore"):
        x, labels = features.astype(np.float32), given.astype(np.float64)
    require(
        labels.ndim == 1 and len(x) == len(labels),
        f"{where}: {len(x)} rows of 'x' but {labels.size} labels 'y'",
    )
    require(np.isfinite(x).all(), f"{where}: a feature is NaN or infinite")
    top = classes if classes is not None else MOST_CLASSES
    bad = ~((labels >= 0) & (labels < top) & (labels == np.floor(labels)))
    if bad.any():
        hint = "" if classes is not None else "; for more, give data.classes"
        raise InputError(f"{where}: label {labels[bad][0]:g}; labels are 0 to {top - 1}{hint}")
    return x, labels.astype(np.int32)
