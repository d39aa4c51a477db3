"""The files of checkpoints: their format, and which arrays they hold under which names."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require
from fedprox.files.arrays import check_arrays, write_arrays
from fedprox.simulation.loop.snapshot import Arrays
from fedprox.simulation.results.run import Run

FORMAT = 4
"""The format of checkpoints. Format 1 was written by orbax, in fedprox 0.1."""


HEAD = "fedprox checkpoint "
"""Beginning of the first line of a file, before the number of the format."""


OTHER_FORMAT = "go on with the version that wrote it, or begin anew"
"""What to do about a checkpoint of another format."""


def files_in(folder: Path) -> list[Path]:
    """The files of a folder; empty if the folder does not exist."""
    return list(folder.iterdir()) if folder.is_dir() else []


def flat(arrays: Arrays) -> Iterator[tuple[list[str], NDArray[Any]]]:
    """Nested arrays as a flat list of (keys, array)."""
    for path, array in jax.tree_util.tree_leaves_with_path(dict(arrays)):
        yield [part.key for part in path], np.asarray(array)


def nested(flat: Iterable[tuple[list[str], NDArray[Any]]]) -> dict[str, Any]:
    """The inverse of `flat`.

    Raises:
        ValueError: If names are missing, or in each other's place.
    """
    nested: dict[str, Any] = {}
    for keys, array in flat:
        inner = nested
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{keys} is below an array")
        if not keys or keys[-1] in inner:
            raise ValueError(f"{keys} is the name of no array, or of several")
        inner[keys[-1]] = array
    return nested


def write(path: Path, arrays: Iterable[tuple[Sequence[str], NDArray[Any]]]) -> str:
    """Write a file of a checkpoint, and return its checksum."""
    return write_arrays(path, f"{HEAD}{FORMAT}", arrays)


def check(path: Path) -> str:
    """Check a file's checksum and format, and return the checksum.

    Raises:
        Damaged: If the file is damaged or cannot be read.
        InputError: If it has another format.
    """
    head, checksum = check_arrays(path)
    written = head.removeprefix(HEAD)
    require(
        written == str(FORMAT),
        f"{path}: a checkpoint of format {written}; this version reads {FORMAT}: {OTHER_FORMAT}",
    )
    return checksum


def entry_of(run: Run) -> dict[str, Any]:
    """A run without its parameters, for JSON."""
    entry = {f.name: getattr(run, f.name) for f in fields(run) if f.name != "params"}
    return entry | {"history": [record._asdict() for record in run.history]}
