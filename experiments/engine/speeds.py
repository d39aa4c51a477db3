"""The accuracy on clients whose devices are slow and on those whose devices are fast."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import fedprox as fp
from fedprox.files.whole import write_whole
from fedprox.parts.population import Population

FILE = "by-speed.json"
"""The file of a run directory with the accuracies of slow and of fast clients."""

SHARE = 0.2
"""The share of the clients that are slow, and of those that are fast."""

BySpeed = dict[str, float | None]
"""The accuracies of a run, by measure; None if all devices are equally fast."""


def step_seconds(population: Population, seed: int, clients: int) -> NDArray[np.float64]:
    """Seconds that each client's device takes for a step, shape (clients,)."""
    return population.pace(seed, fp.fedavg(), np.ones(clients, np.int64)).step


def by_speed(seconds: ArrayLike, accuracy: ArrayLike, rows: ArrayLike) -> BySpeed:
    """The accuracy over the test rows of the slowest fifth of the clients, and of the fastest.

    Args:
        seconds: Seconds per step, shape (clients,).
        accuracy: Test accuracy, shape (clients,), of any value where there are no test rows.
        rows: Test rows, shape (clients,). Clients without any are left out.

    >>> by_speed([1, 2, 3, 4, 5], [0.9, 0.5, 0.5, 0.5, 0.3], [10, 10, 10, 10, 10])
    {'slow_accuracy': 0.3, 'fast_accuracy': 0.9}
    """
    known = np.asarray(rows) > 0
    slowness, weights = np.asarray(seconds)[known], np.asarray(rows)[known]
    values = np.asarray(accuracy, np.float64)[known]
    if np.ptp(slowness) == 0:
        return {"slow_accuracy": None, "fast_accuracy": None}
    order, count = np.argsort(slowness, kind="stable"), int(np.ceil(SHARE * len(slowness)))
    return {
        name: float(np.average(values[chosen], weights=weights[chosen]))
        for name, chosen in (("slow_accuracy", order[-count:]), ("fast_accuracy", order[:count]))
    }


def write_by_speed(directory: Path, population: Population) -> None:
    """Write the accuracies of a run directory's runs, which has `clients.json`."""
    found = []
    for run in json.loads((directory / "clients.json").read_text(encoding="utf-8")):
        seconds = step_seconds(population, run["seed"], len(run["clients"]))
        accuracies = by_speed(seconds, run["test_accuracy"], run["test_rows"])
        found.append({"label": run["label"], "seed": run["seed"], **accuracies})
    write_whole(directory / FILE, json.dumps(found, indent=1).encode())


def read_by_speed(directory: Path) -> Mapping[tuple[str, int], dict[str, float]]:
    """The accuracies of a run directory by label and seed, NaN if all devices are as fast."""
    runs: Sequence[dict[str, Any]] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    return {
        (run["label"], run["seed"]): {
            name: float("nan") if value is None else value
            for name, value in run.items()
            if name not in ("label", "seed")
        }
        for run in runs
    }
