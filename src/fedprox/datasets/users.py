"""Files in LEAF's JSON layout (Caldas et al. 2018)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedprox.errors import InputError, distinct, reason, require
from fedprox.files.packed import reading

T = TypeVar("T", bound=tuple[Any, ...])


def by_user(path: Path, convert: Callable[[dict[str, Any]], T]) -> dict[str, T]:
    """Read the users' data of a file in LEAF's layout, {"user_data": {name: {"x": ..., "y": ...}}}.

    As Python numbers and lists a file takes many times its size, so `convert` makes what is kept of
    a user's table as soon as it is read.

    Raises:
        InputError: If the file cannot be read, is not in this layout, or names a user twice, or if
            `convert` raises it.
    """

    def table_of(pairs: list[tuple[str, Any]]) -> Any:
        table = dict(pairs)
        if len(table) < len(pairs):
            list(distinct(f"{path}: the key", (name for name, _ in pairs)))
        if not {"x", "y"} <= table.keys():
            return table
        try:
            return convert(table)
        except InputError as error:
            return error  # it is raised below, where the user's name is known

    with reading(path) as file:
        try:
            content = json.loads(file.read(), object_pairs_hook=table_of)
        except InputError:
            raise
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: not JSON: {reason(error)}") from None
    users = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(users, dict):
        raise InputError(f"{path}: the object 'user_data' is missing")
    for name, data in users.items():
        where = f"{path}: user {name!r}"
        require(not isinstance(data, InputError), f"{where}: {data}")
        require(isinstance(data, tuple), f"{where}: user_data must hold lists 'x' and 'y'")
    return users
