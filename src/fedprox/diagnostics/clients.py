"""How a model serves each client: who is left behind by a mean over all of them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.features import Features, index_of, look_up, with_index
from fedprox.federation import Federation, Rows, offsets_of
from fedprox.model import Model, Params, check_model, check_params, labels_met, losses_of

ROWS = 512
"""Rows that are on the device at once, so that its memory does not limit the federation."""


class Evaluation(NamedTuple):
    """A model on a federation, over all rows and on each client; see `evaluate`.

    Attributes:
        train_loss: f(w), the mean loss of all training rows.
        test_accuracy: Share of all test labels that are met; NaN where there are none.
        clients: The clients' names, in the order of the arrays below.
        training_rows: n_k, shape (clients,).
        test_rows: Test rows of each client, shape (clients,).
        client_train_loss: F_k(w), shape (clients,).
        client_test_accuracy: Test accuracy of each client, shape (clients,); NaN for a client
            without test rows.
    """

    train_loss: float
    test_accuracy: float
    clients: tuple[str, ...]
    training_rows: NDArray[np.int64]
    test_rows: NDArray[np.int64]
    client_train_loss: NDArray[np.float64]
    client_test_accuracy: NDArray[np.float64]

    def __repr__(self) -> str:
        return (
            f"Evaluation: {len(self.clients):,} clients, train loss {self.train_loss:.4f}, "
            f"test accuracy {100 * self.test_accuracy:.2f} %"
        )


def evaluate(model: Model, params: Params, federation: Federation) -> Evaluation:
    r"""Evaluate a model on all rows of a federation, and client by client.

    The training loss is

    .. math:: f(w) = \sum_k p_k F_k(w), \qquad p_k = n_k / n,

    where :math:`F_k` is the mean loss of client :math:`k`'s :math:`n_k` training rows. The test
    accuracy is the share of all clients' test labels that are met, so a client counts by its test
    rows. Rows are read in slices, so the federation may be larger than the device's memory.

    Args:
        model: The model.
        params: Its parameters, such as `Run.params` or what `load_model` returns.
        federation: The clients and their data.

    Raises:
        InputError: The model does not fit the federation, or the parameters the model.

    Example:
        >>> import jax.numpy as jnp
        >>> def squared(outputs, y):
        ...     return (outputs - y) ** 2
        >>> model = Model(lambda key: jnp.ones(()), lambda w, x: w * x[:, 0], squared)
        >>> clients = [([[1.0], [1.0], [1.0]], [1.0, 1.0, 1.0]), ([[3.0]], [1.0])]
        >>> federation = Federation.from_arrays(clients)
        >>> found = evaluate(model, jnp.ones(()), federation)
        >>> found.train_loss, found.client_train_loss.tolist()  # 3/4 * 0 + 1/4 * 4
        (1.0, [0.0, 4.0])
    """
    check_model(model, federation)
    check_params("params", params, model.shapes)
    train, test = federation.train, federation.test
    losses = _by_row(_losses, model, params, train, np.dtype(np.float32))
    sums = np.add.reduceat(losses, train.offsets[:-1], dtype=np.float64)
    accuracy, labels = client_accuracy(federation, model, params), test.labels
    known = labels > 0
    return Evaluation(
        train_loss=float(sums.sum() / len(train)),
        test_accuracy=float(accuracy[known] @ labels[known] / max(labels.sum(), 1))
        if known.any()
        else float("nan"),
        clients=tuple(federation.names),
        training_rows=train.sizes,
        test_rows=test.sizes,
        client_train_loss=sums / train.sizes,
        client_test_accuracy=accuracy,
    )


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
    right = _by_row(_correct, model, params, rows, np.dtype(np.int64))
    up_to = offsets_of(right)[rows.offsets]
    return np.where(labels > 0, np.diff(up_to) / np.maximum(labels, 1), np.nan)


def _by_row(
    program: Callable[[Model, Params, Features, Any], jax.Array],
    model: Model,
    params: Params,
    rows: Rows,
    kind: np.dtype[Any],
) -> NDArray[Any]:
    """What a compiled program says of each row, shape (rows,), slice by slice; at least one row."""
    found = np.zeros(len(rows), kind)
    index = index_of(rows.x)
    shared = jax.device_put(with_index(rows.x, index[:0]))  # such as a text; the rows follow
    width = min(ROWS, len(rows))
    for start in range(0, len(rows), width):
        # the last slice begins early enough to be as wide as the others: one shape, one program
        at = slice(min(start, len(rows) - width), min(start + width, len(rows)))
        found[at] = program(model, params, with_index(shared, index[at]), rows.y[at])
    return found


@partial(jax.jit, static_argnums=0)
def _losses(model: Model, params: Params, x: Features, y: jax.Array) -> jax.Array:
    return losses_of(model, model.apply(params, look_up(x, index_of(x))), y)


@partial(jax.jit, static_argnums=0)
def _correct(model: Model, params: Params, x: Features, y: jax.Array) -> jax.Array:
    right = labels_met(model, model.apply(params, look_up(x, index_of(x))), y)
    return right.reshape(len(right), -1).sum(axis=1)
