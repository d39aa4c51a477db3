"""Sweep points: their hyperparameters and their labels."""

import hashlib
import itertools

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.solver import Solver, as_values, name_of


def sweep_points(algorithm: Algorithm, solver: Solver) -> list[dict[str, float]]:
    """Every combination of hyperparameters and learning rates; a schedule's learning rate is 1."""
    axes = {name: as_values(name, value) for name, value in algorithm.hparams.items()}
    axes["learning_rate"] = solver.rates
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def label(algorithm: Algorithm, solver: Solver, point: dict[str, float]) -> str:
    """The label of a run in its comparison: method, hyperparameters and settings.

    It includes the learning rate if there is more than one or the method sets its own, and the
    server's learning rate unless it is exactly 1.
    """

    def shown(key: str) -> bool:
        if key == "learning_rate":
            return len(solver.rates) > 1 or key in algorithm.settings
        return key != "server_learning_rate" or algorithm.hparams[key] != (1.0,)

    def text(key: str, value: float) -> str:
        if key != "learning_rate" or solver.schedule is None:
            return f"{value:g}"
        name = name_of(solver.schedule)
        return name if " " in name else f"{name} from {solver.factor(0):g}"

    hparams = [f"{k}={text(k, v)}" for k, v in point.items() if shown(k)]
    settings = [
        f"{k}={name_of(v) if callable(v) else v}"
        for k, v in algorithm.settings.items()
        if k not in point
    ]
    parts = [algorithm.name, algorithm.variant, *hparams, *settings]
    return " ".join(part for part in [*parts, "adaptive" * (algorithm.adapt is not None)] if part)


def noise_words(
    algorithm: Algorithm, solver: Solver, point: dict[str, float]
) -> NDArray[np.uint32]:
    """Two words for the noise of a sweep point with privacy, a digest of its method and numbers.

    Runs of a comparison have noise of their own, so that no two published models share noise that
    their difference would cancel.
    """
    settings = {k: name_of(v) if callable(v) else v for k, v in algorithm.settings.items()}
    schedule = None if solver.schedule is None else name_of(solver.schedule)
    what = (algorithm.name, algorithm.variant, sorted(point.items()), settings, schedule)
    return np.frombuffer(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "<u4")
