"""How a model serves each client: who is left behind by a mean over all of them."""

from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.features import Features, index_of, look_up, with_index
from fedprox.federation import Federation, Rows
from fedprox.metrics import Terms, terms_of, value_of
from fedprox.model import Model, Params, labels_met, losses_of

ROWS = 512
"""Rows that are on the device at once, so that its memory does not limit the federation."""

Values = NDArray[np.float64]


def client_accuracy(federation: Federation, model: Model, params: Params) -> Values:
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
    return client_measures(federation, model, params)["test_accuracy"]


def client_measures(federation: Federation, model: Model, params: Params) -> dict[str, Values]:
    """Test accuracy, test loss and the metrics of a model on each client's own rows.

    Training rows are read only for a model with metrics.

    Args:
        federation: The clients and their data.
        model: The model; the same one over several calls is compiled once.
        params: Its parameters.

    Returns:
        "test_accuracy", see `client_accuracy`, "test_loss", and of each metric "test_NAME" and
        "train_NAME", each of shape (clients,) and NaN for clients without such rows.

    >>> import jax.numpy as jnp
    >>> from fedprox.metrics import mean_squared_error
    >>> federation = Federation.from_arrays([([[1.0], [2.0]], [0.5, 1.0]), ([[1.0]], [3.0])])
    >>> model = Model(
    ...     lambda key: jnp.ones(1),
    ...     lambda w, x: x @ w,
    ...     lambda outputs, y: jnp.abs(outputs - y),
    ...     metrics={"mse": mean_squared_error()},
    ... )
    >>> client_measures(federation, model, jnp.ones(1))["train_mse"].tolist()
    [0.625, 4.0]
    """
    test, train = federation.test, federation.train
    names = ("accuracy", "loss", *model.metrics)
    found = {f"test_{name}": np.full(len(federation), np.nan) for name in names}
    if len(test):
        sums = _sums(model, params, test)
        found["test_loss"] = _ratio(sums["loss"], test.sizes)
        if model.correct is not None:
            found["test_accuracy"] = _ratio(sums["correct"], test.labels)
        found |= _values(model, "test", test, sums["metrics"])
    if model.metrics:
        found |= _values(model, "train", train, _sums(model, params, train)["metrics"])
    return found


def _ratio(sums: Values, counts: NDArray[np.int64]) -> Values:
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _values(model: Model, kind: str, rows: Rows, sums: dict[str, Terms]) -> dict[str, Values]:
    """The model's metrics by kind and name, given their sums, leaves (clients, ...)."""
    found = {}
    for name, metric in model.metrics.items():
        single = jax.tree.map(lambda a: a.astype(np.float32), sums[name])
        values = jax.jit(jax.vmap(partial(value_of, name, metric)))(single)
        found[f"{kind}_{name}"] = np.where(rows.sizes > 0, np.asarray(values, float), np.nan)
    return found


def _sums(model: Model, params: Params, rows: Rows) -> dict[str, Any]:
    """What `_summed` sums, over each client's rows: float64, leaves (clients, ...)."""
    clients, index = len(rows.sizes), index_of(rows.x)
    owner = np.repeat(np.arange(clients), rows.sizes)
    shared = jax.device_put(with_index(rows.x, index[:0]))  # such as a text; the rows follow
    width, sums = min(ROWS, len(rows)), None
    for start in range(0, len(rows), width):
        # the last slice begins early enough to be as wide as the others: one shape, one program
        begin = min(start, len(rows) - width)
        at = slice(begin, begin + width)
        here, place = np.unique(owner[at], return_inverse=True)
        place[: start - begin] = width  # read before: nobody's
        part = _summed(model, params, with_index(shared, index[at]), rows.y[at], place)
        if sums is None:
            sums = jax.tree.map(lambda a: np.zeros((clients, *a.shape[1:])), part)
        for total, found in zip(*map(jax.tree.leaves, (sums, part)), strict=True):
            total[here] += np.asarray(found)[: len(here)]
    assert sums is not None
    return sums


@partial(jax.jit, static_argnums=0)
def _summed(
    model: Model, params: Params, x: Features, y: jax.Array, place: jax.Array
) -> dict[str, Any]:
    """Losses, labels met and metrics' terms of rows (B, ...), summed by place, leaves (B, ...)."""
    outputs = model.apply(params, look_up(x, index_of(x)))
    by_row = {"loss": losses_of(model, outputs, y), "metrics": terms_of(model.metrics, outputs, y)}
    if model.correct is not None:
        by_row["correct"] = labels_met(model, outputs, y).reshape(len(y), -1).sum(axis=1)
    return jax.tree.map(lambda a: jax.ops.segment_sum(a, place, len(y)), by_row)
