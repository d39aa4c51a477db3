"""Which clients belong together: which of several models fits each."""

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.diagnostics.clients import evaluate
from fedprox.errors import require
from fedprox.federation import Federation
from fedprox.model import Model, Params


def models_of(stacked: Params) -> list[Params]:
    """The models of a tree with a leading axis of models.

    >>> models_of({"w": np.eye(2)})[1]["w"].tolist()
    [0.0, 1.0]
    """
    leaves = jax.tree.leaves(stacked)
    require(
        len(leaves) > 0, "models = None; they must be several, such as Run.models of fedprox.ifca"
    )
    return [jax.tree.map(lambda a, j=j: a[j], stacked) for j in range(len(leaves[0]))]


def nearest_models(model: Model, models: Params, federation: Federation) -> NDArray[np.int64]:
    """Which of some models has the lowest loss on each client's training rows.

    Args:
        model: The model.
        models: Parameters of several models, leaves (models, ...), such as `Run.models`.
        federation: The clients and their data; they need not have taken part.

    Returns:
        A number for each client, shape (clients,), the first on ties.

    Raises:
        InputError: If the parameters do not fit the model, or the model the federation.

    Example:
        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> clients = [([[1.0]], [1.0]), ([[1.0]], [-1.0])]
        >>> federation = fp.Federation.from_arrays(clients)
        >>> squared = lambda outputs, y: (outputs - y) ** 2
        >>> model = fp.Model(lambda key: jnp.ones(()), lambda w, x: w * x[:, 0], squared)
        >>> fp.nearest_models(model, jnp.array([-2.0, 2.0]), federation).tolist()
        [1, 0]
    """
    each = (evaluate(model, params, federation) for params in models_of(models))
    losses = np.stack([result.by_client["train_loss"] for result in each])
    return lowest(losses)


def lowest(losses: NDArray[Any]) -> NDArray[np.int64]:
    """Each client's model with the lowest of its losses (models, clients), the first on ties.

    >>> lowest(np.array([[np.nan, 1.0], [2.0, 1.0]])).tolist()
    [1, 0]
    """
    return np.where(np.isnan(losses), np.inf, losses).argmin(axis=0)
