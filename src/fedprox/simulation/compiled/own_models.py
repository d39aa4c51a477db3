"""Measuring many models at once, each on its own rows."""

from collections.abc import Callable
from functools import partial

import jax

from fedprox.model import Model, Params
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


def own_or_global(trained: jax.Array, own: Params, params: Params) -> Params:
    """Each client's own model if it has one, else the global one.

    Args:
        trained: Whether it has one, shape (clients, points).
        own: The own models, leaves (clients, points, ...).
        params: The global model, leaves (points, ...), or one for each client.
    """

    def leaf(v: jax.Array, w: jax.Array) -> jax.Array:
        return jax.numpy.where(trained.reshape(trained.shape + (1,) * (v.ndim - 2)), v, w)

    return jax.tree.map(leaf, own, params)
