"""Populations of devices from files with plain columns."""

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fedprox.errors import require
from fedprox.files.packed import read_columns
from fedprox.parts.time.availability import Intervals
from fedprox.parts.time.population import QUANTITIES, Population

ON_AND_OFF = ("on", "off")
"""The columns of a trace that say when devices are on."""


def read_population(
    path: str | PathLike[str],
    population: Population = Population(),  # noqa: B008 (frozen)
    *,
    period: float | None = None,
) -> Population:
    r"""A population whose devices are those of a file with plain columns.

    The column `device` names each row's device; without it, each row is one. The columns
    `step_seconds`, `download`, `upload` and `latency` hold what :class:`fedprox.Population`
    describes. `on` and `off` are seconds between which a device is on; a device may have several
    rows, which then differ in these two alone. Other columns are not read.

    Args:
        path: A file that ends in .csv, .parquet or .npz.
        population: What the file does not say.
        period: Seconds after which the times of `on` and `off` begin anew; None for the last `off`.

    Returns:
        The population, with lists in the order in which devices first appear.

    Raises:
        InputError: If the file cannot be read, has none of these columns or only one of `on` and
            `off`, a device's rows differ in another column, or a number is out of range.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "devices.csv")
        ...     _ = file.write_text("device,step_seconds\nphone,0.2\ntablet,0.1\n")
        ...     read_population(file).step_seconds
        [0.2, 0.1]
    """
    columns = read_columns(Path(path))
    rows = len(next(iter(columns.values())))
    _, first, device = np.unique(
        columns.get("device", np.arange(rows)), return_index=True, return_inverse=True
    )
    order = np.argsort(first)  # by first appearance
    device, first = np.argsort(order)[device], first[order]
    known = [name for name in (*QUANTITIES, *ON_AND_OFF) if name in columns]
    require(
        known,
        f"{path}: it has the columns {', '.join(columns)}; it must have one of "
        f"{', '.join((*QUANTITIES, *ON_AND_OFF))}",
    )
    for name in known:
        require(
            columns[name].dtype.kind in "iuf", f"{path}: the column {name} must hold numbers alone"
        )
    lists: dict[str, Any] = {}
    for name in [name for name in known if name in QUANTITIES]:
        values = columns[name]
        different = np.flatnonzero(values != values[first][device])
        require(
            not len(different),
            f"{path}: the rows of a device differ in {name}: row {different[:1].tolist()}",
        )
        lists[name] = values[first].tolist()
    times = [columns[name] for name in ON_AND_OFF if name in columns]
    require(len(times) != 1, f"{path}: it must have both columns, on and off, or neither")
    if times:
        on, off = (column.tolist() for column in times)
        lists["available"] = Intervals(device.tolist(), on, off, period or max(off))
    return replace(population, **lists)
