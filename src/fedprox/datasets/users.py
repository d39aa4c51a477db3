"""Files in LEAF's JSON layout (Caldas et al. 2018), read user by user."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from fedprox.errors import InputError, distinct, reason, require
from fedprox.files.packed import reading

T = TypeVar("T")


def by_user(path: Path, convert: Callable[[str, Any], T]) -> tuple[dict[str, Any], dict[str, T]]:
    """Read a file in LEAF's layout, with `convert(name, data)` applied to each user's data.

    As Python numbers and lists a file takes many times its size, so `user_data` is read one user at
    a time.

    Args:
        path: The file, packed (.gz) or not.
        convert: Called for each user, in the order of the file.

    Returns:
        The other keys of the file, and the converted data by user.

    Raises:
        InputError: If the file cannot be read, is not a JSON object with one object `user_data`, or
            names a user twice, or if `convert` raises it.
    """
    with reading(path) as file:
        raw = file.read()
    others: dict[str, Any] = {}
    users: dict[str, T] | None = None
    try:
        text = raw.decode(json.detect_encoding(raw), "surrogatepass").removeprefix("\ufeff")
        del raw
        require(text.startswith("{", _space(text, 0)), f"{path}: not a JSON object")
        outer = _Object(text, 0)
        for key in distinct(f"{path}: the key", outer):
            if key == "user_data" and text.startswith("{", outer.at):
                inner = _Object(text, outer.at)
                names = distinct(f"{path}: user", inner)
                users = {name: convert(name, inner.value()) for name in names}
                outer.at = inner.at
            else:
                others[key] = outer.value()
        require(_space(text, outer.at) == len(text), f"{path}: not JSON: more than one value")
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON: {reason(error)}") from None
    if users is None:
        raise InputError(f"{path}: the object 'user_data' is missing")
    return others, users


_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def _space(text: str, at: int) -> int:
    """The position after white space."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


class _Object:
    """A JSON object in a text: iterates over its keys; `value` must be called for each.

    Attributes:
        at: The current position: at a value, or after the object.
    """

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def __iter__(self) -> Iterator[str]:
        self._expect("{")
        if self.text.startswith("}", self.at):
            self._expect("}")
            return
        while True:
            key = self.value() if self.text.startswith('"', self.at) else None
            if not isinstance(key, str):
                raise json.JSONDecodeError("Expecting a name in double quotes", self.text, self.at)
            self._expect(":")
            yield key
            self.at = _space(self.text, self.at)
            if self.text.startswith("}", self.at):
                self._expect("}")
                return
            self._expect(",")

    def value(self) -> Any:
        """Read the value at the current position."""
        decoded, self.at = _DECODER.raw_decode(self.text, self.at)
        return decoded

    def _expect(self, mark: str) -> None:
        self.at = _space(self.text, self.at)
        if not self.text.startswith(mark, self.at):
            raise json.JSONDecodeError(f"Expecting {mark!r}", self.text, self.at)
        self.at = _space(self.text, self.at + 1)
