"""Measuring many models at once, each on its own rows."""

from collections.abc import Callable
from functools import partial

import jax

from fedprox.model import Model
from fedprox.simulation.compiled.evaluation import Tested, row_sums


def own_model_program(model: Model) -> Callable[..., Tested]:
    """Compile-once program that measures each client's model on its own rows.

    Args:
        model: The model.

    Returns:
        (models (clients, points, ...), x (clients, rows, ...), y (clients, rows, ...), which rows
        count (clients, rows)) -> sums, leaves (clients, points, ...).
    """
    points = jax.vmap(partial(row_sums, model), (0, None, None, None))
    program: Callable[..., Tested] = jax.jit(jax.vmap(points))
    return program
