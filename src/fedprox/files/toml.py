"""TOML from outside, parsed in memory proportional to the text."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedprox.errors import InputError

MOST_PARTS = 16
"""Most parts of a dotted key. The memory of tomllib grows with the square of their number."""

_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(
    rf"(?:^|[\[{{,])[ \t]*+{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_PARTS}}}", re.MULTILINE
)
"""A long key in a place where keys can be; paths in values have dots too."""


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text; a ValueError if it is not TOML, or nested too deep.

    >>> parse_toml("solver.epochs = 1")
    {'solver': {'epochs': 1}}
    """
    long_key = _LONG_KEY.search(text)
    if long_key:
        line = text.count("\n", 0, long_key.start()) + 1
        raise ValueError(f"a key of more than {MOST_PARTS} parts (at line {line})")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("arrays or tables within others, too deep") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a folder; name a TOML file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not a TOML file: {error}") from None
