"""Sweep points: their hyperparameters, their labels, and the states that they start from."""

import itertools
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fedprox.algorithms.base import Algorithm, ClientState, State
from fedprox.model import Params
from fedprox.simulation.devices.mesh import replicate
from fedprox.solver import Solver, as_values, name_of


def sweep_points(algorithm: Algorithm, solver: Solver) -> list[dict[str, float]]:
    """Every combination of hyperparameters and learning rates; a schedule's learning rate is 1."""
    axes = {name: as_values(name, value) for name, value in algorithm.hparams.items()}
    axes["learning_rate"] = solver.rates
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def label(algorithm: Algorithm, solver: Solver, point: dict[str, float]) -> str:
    """The method, its numbers and its own settings: what tells it from others of a comparison.

    The learning rate is shown where there are several or the method has its own, and the server's
    where it is not plainly 1.
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
    return " ".join(part for part in [*parts, "adaptive" * algorithm.adapt] if part)


def initial_state(algorithm: Algorithm, params: Params, points: int, mesh: Mesh) -> State:
    """The server's state before round 0, the same at every sweep point."""
    return replicate(mesh, _at_points(algorithm.init(params), points))


def initial_client_state(algorithm: Algorithm, params: Params, points: int) -> ClientState:
    """What every client keeps before round 0, the same at every sweep point."""
    return _at_points(algorithm.client_state(params), points) if algorithm.client_state else None


def _at_points(tree: Any, points: int) -> Any:
    host = jax.tree.map(np.asarray, tree)
    return jax.tree.map(lambda a: np.broadcast_to(a, (points, *a.shape)), host)
