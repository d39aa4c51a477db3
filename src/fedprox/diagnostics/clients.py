"""How a model serves each client: who is left behind by a mean over all of them."""

from functools import partial

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.features import Features, index_of, look_up, with_index
from fedprox.federation import Federation, offsets_of
from fedprox.model import Model, Params, labels_met

ROWS = 512
"""Test rows that are on the device at once, so that its memory does not limit the federation."""


def client_accuracy(federation: Federation, model: Model, params: Params) -> NDArray[np.float64]:
    """Test accuracy of a model on each client's own test rows.

    Args:
        federation: The clients and their data.
        model: The model; the same one over several calls is compiled once.
        params: Its parameters.

    Returns:
        Shape (clients,), from 0 to 1; NaN for clients without test rows, and for all where the
        model does not say what is correct.

    >>> import jax.numpy as jnp
    >>> test = [([[1.0], [-1.0]], [1, 1]), ([], []), ([[2.0]], [1])]
    >>> federation = Federation.from_arrays([([[0.0]], [0])] * 3, test)
    >>> model = Model(lambda key: jnp.ones(()), lambda w, x: jnp.hstack([-w * x, w * x]))
    >>> client_accuracy(federation, model, jnp.ones(())).tolist()
    [0.5, nan, 1.0]
    """
    rows, labels = federation.test, federation.test.labels
    if model.correct is None or not len(rows):
        return np.full(len(federation), np.nan)
    right = np.zeros(len(rows), np.int64)
    index = index_of(rows.x)
    shared = jax.device_put(with_index(rows.x, index[:0]))  # such as a text; the rows follow
    width = min(ROWS, len(rows))
    for start in range(0, len(rows), width):
        # the last slice begins early enough to be as wide as the others: one shape, one program
        at = slice(min(start, len(rows) - width), min(start + width, len(rows)))
        right[at] = _correct(model, params, with_index(shared, index[at]), rows.y[at])
    up_to = offsets_of(right)[rows.offsets]
    return np.where(labels > 0, np.diff(up_to) / np.maximum(labels, 1), np.nan)


@partial(jax.jit, static_argnums=0)
def _correct(model: Model, params: Params, x: Features, y: jax.Array) -> jax.Array:
    right = labels_met(model, model.apply(params, look_up(x, index_of(x))), y)
    return right.reshape(len(right), -1).sum(axis=1)
