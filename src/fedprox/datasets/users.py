"""Files in LEAF's JSON layout (Caldas et al. 2018)."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedprox.errors import InputError, distinct, reason, require
from fedprox.files.packed import reading

T = TypeVar("T")


class _Read(NamedTuple):
    """A user's table: its number of labels, and what `convert` made of it."""

    rows: int
    made: Any


def by_user(path: Path, convert: Callable[[dict[str, Any]], T]) -> dict[str, T]:
    """Read the users' data of a file in LEAF's layout.

    It is {"users": [name, ...], "num_samples": [rows, ...], "user_data": {name: {"x": [...], "y":
    [...]}}}. `users` is the list of users: data of others are left out, with a warning. A file may
    lack `num_samples`, or both lists; then all users of `user_data` are read.

    As Python numbers and lists a file takes many times its size, so `convert` makes what is kept of
    a user's table as soon as it is read.

    Raises:
        InputError: If the file cannot be read, is not in this layout, names a user twice, or
            contradicts itself, or if `convert` raises it.
    """

    def table_of(pairs: list[tuple[str, Any]]) -> Any:
        table = dict(pairs)
        if len(table) < len(pairs):
            list(distinct(f"{path}: the key", (name for name, _ in pairs)))
        if not {"x", "y"} <= table.keys():
            return table
        try:
            rows = len(table["y"]) if isinstance(table["y"], list) else 0
            return _Read(rows, convert(table))
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
    for name, rows in _users(path, content, data):
        where, read = f"{path}: user {name!r}", data.get(name)
        require(name in data, f"{where}: it is in 'users' but not in 'user_data'")
        require(not isinstance(read, InputError), f"{where}: {read}")
        if not isinstance(read, _Read):
            raise InputError(f"{where}: user_data must hold lists 'x' and 'y'")
        require(
            rows is None or rows == read.rows,
            f"{where}: {read.rows} rows in 'user_data'; 'num_samples' says {rows}",
        )
        made[name] = read.made
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


def without_hidden(paths: Iterable[Path]) -> list[Path]:
    """Files, sorted, without hidden ones, such as the `._NAME` that macOS writes into archives."""
    return sorted(path for path in paths if not path.name.startswith("."))
