"""Tables of plain columns: CSV, Parquet and .npz files."""

import csv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, reason, require
from fedprox.files.numeric import npz

KINDS = (".csv", ".npz", ".parquet")
"""The ends of the names of files that are read."""


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a .csv, .npz or .parquet table by name, of equal lengths.

    A CSV file names its columns in the first line; a column is of numbers if all of its values are.
    Parquet files need pyarrow.
    """
    readers = dict(zip(KINDS, (_read_csv, _read_npz, _read_parquet), strict=True))
    reader = readers.get(path.suffix.lower())
    if not reader:
        raise InputError(f"{path}: its name must end in {', '.join(KINDS)}")
    try:
        columns = reader(path)
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from None
    shapes = {array.shape for array in columns.values()}
    require(
        len(shapes) == 1 and len(next(iter(shapes))) == 1 and next(iter(shapes))[0] > 0,
        f"{path}: it must have columns of one length, with a row at least",
    )
    return columns


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file: {reason(error)}") from None
    for number, row in enumerate(rows, start=2):
        require(
            len(row) == len(header),
            f"{path}: line {number} has {len(row)} values; the first line names {len(header)} "
            "columns",
        )
    columns = zip(header, zip(*rows, strict=True), strict=bool(rows))
    return {name.strip(): _column(column) for name, column in columns}


def _column(values: tuple[str, ...]) -> NDArray[Any]:
    """A column of a CSV file: whole numbers, numbers or texts."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(values).astype(kind)
        except ValueError:
            continue
    return np.array(values)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as packed:
            names = [name.removesuffix(".npy") for name in packed.namelist()]
    except zipfile.BadZipFile as error:
        raise InputError(f"{path}: not an .npz file: {reason(error)}") from None
    return dict(zip(names, npz(path, *names), strict=True))


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise InputError(f"{path}: Parquet files need pyarrow: pip install pyarrow") from None
    try:
        table = parquet.read_table(path)
    except ArrowInvalid as error:
        raise InputError(f"{path}: not a Parquet file: {reason(error)}") from None
    return {name: table[name].to_numpy() for name in table.column_names}
