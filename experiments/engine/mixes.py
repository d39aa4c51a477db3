"""Histograms of the classes that make up most of a client's rows (Acar et al. 2021, Figure 3)."""

from pathlib import Path

import numpy as np

from experiments.engine.item import Table
from experiments.engine.summaries import Series
from fedprox.experiment import load_data
from fedprox.report.data import SHARES, classes_for

LABELS = tuple(f"{100 * share:.0f} %" for share in SHARES)
"""The labels of the series."""


def mix(data: Table, seed: int, data_dir: Path | None = None) -> list[Series]:
    """For each share, how many clients need 1, 2, ... classes for it.

    Args:
        data: `[data]` of an experiment.
        seed: Seed of the partition.
        data_dir: Folder with data files.

    Returns:
        A series for each of `SHARES`, with "classes" and "clients", which count training rows.

    Raises:
        InputError: The data are refused or missing, or labels are not classes.
    """
    federation, _ = load_data(data | {"seed": seed}, data_dir)
    numbers = np.arange(1, federation.classes + 1)
    series = []
    for label, share in zip(LABELS, SHARES, strict=True):
        needed = classes_for(federation, share, "train")
        clients = np.bincount(needed, minlength=federation.classes + 1)[1:]
        values = {"classes": numbers.astype(float), "clients": clients.astype(float)}
        series.append(Series(label, seed, numbers, values))
    return series
