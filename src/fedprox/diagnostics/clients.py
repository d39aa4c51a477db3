"""Evaluation of a model, over all rows and client by client, and of which of several fits each."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.devices.programs import jit_once
from fedprox.engine.compiled.evaluation import row_totals
from fedprox.errors import plural, require
from fedprox.federation import Federation
from fedprox.metrics import metric_value
from fedprox.model import Model, Params, check_params
from fedprox.model.check import check_model
from fedprox.precision import real_type

Values = NDArray[np.float64]


class EvaluationResult(NamedTuple):
    """Measures of one model, over all rows and on each client's rows; see `evaluate`.

    Attributes:
        train_loss: f(w), the mean loss of all training rows.
        test_loss: Mean loss of all test rows; NaN without test rows.
        test_accuracy: Share of all test labels that are met; NaN without test rows, and for a model
            without accuracy.
        metrics: The model's metrics: "test_NAME" over all test rows and "train_NAME" over all
            training rows.
        clients: The clients' names, in the order of the arrays below.
        training_rows: Training rows n_k of each client, int64 (clients,).
        test_rows: Test rows of each client, int64 (clients,).
        by_client: Measures of each client's own rows, float64 (clients,): "train_loss", which is
            F_k(w), "test_loss", "test_accuracy" and the metrics. NaN for a client without such
            rows.

    Example:
        >>> import jax
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=3)
        >>> model = fp.models.logistic(federation, initial="zeros")
        >>> result = fp.evaluate(model, model.init(jax.random.key(0)), federation)
        >>> round(result.train_loss, 3), result.by_client["test_accuracy"].shape  # log(10)
        (2.303, (3,))
    """

    train_loss: float
    test_loss: float
    test_accuracy: float
    metrics: dict[str, float]
    clients: tuple[str, ...]
    training_rows: NDArray[np.int64]
    test_rows: NDArray[np.int64]
    by_client: dict[str, Values]

    def __repr__(self) -> str:
        return (
            f"Evaluation: {plural(len(self.clients), 'client')}, train loss "
            f"{self.train_loss:.4f}, test accuracy {100 * self.test_accuracy:.2f} %"
        )


def evaluate(model: Model, params: Params, federation: Federation) -> EvaluationResult:
    r"""Evaluate a model on all rows of a federation, and client by client.

    The training loss is

    .. math:: f(w) = \sum_k p_k F_k(w), \qquad p_k = n_k / n,

    where :math:`F_k` is the mean loss of client :math:`k`'s :math:`n_k` training rows. The test
    accuracy is the share of all clients' test labels that are met, so a client counts by its test
    rows. Rows are read in slices, so the federation may be larger than the device's memory.

    Args:
        model: The model of the parameters.
        params: Its parameters, such as `Run.params` or what `load_model` returns.
        federation: The clients and their data.

    Returns:
        Losses, accuracy and the model's metrics, over all rows and by client.

    Raises:
        InputError: If the model does not fit the federation, or the parameters the model.

    Example:
        The training loss is 3/4 * 0 + 1/4 * 4:

        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> def squared(outputs, y):
        ...     return (outputs - y) ** 2
        >>> model = fp.Model(lambda key: jnp.ones(()), lambda w, x: w * x[:, 0], squared)
        >>> clients = [([[1.0], [1.0], [1.0]], [1.0, 1.0, 1.0]), ([[3.0]], [1.0])]
        >>> federation = fp.Federation.from_arrays(clients)
        >>> result = fp.evaluate(model, jnp.ones(()), federation)
        >>> result.train_loss, result.by_client["train_loss"].tolist()
        (1.0, [0.0, 4.0])
    """
    check_model(model, federation)
    check_params("params", params, model.shapes)
    by_client: dict[str, Values] = {}
    overall: dict[str, float] = {}
    for kind, rows in (("train", federation.train), ("test", federation.test)):
        sums = row_totals(model, params, rows)
        by_client |= _measures(model, kind, sums, rows.sizes, rows.labels)
        total = jax.tree.map(lambda a: a.sum(axis=0, keepdims=True), sums)
        counts = (np.array([count.sum()]) for count in (rows.sizes, rows.labels))
        pooled = _measures(model, kind, total, *counts)
        overall |= {name: float(value) for name, (value,) in pooled.items()}
    return EvaluationResult(
        train_loss=overall.pop("train_loss"),
        test_loss=overall.pop("test_loss"),
        test_accuracy=overall.pop("test_accuracy"),
        metrics=overall,
        clients=tuple(federation.names),
        training_rows=federation.train.sizes,
        test_rows=federation.test.sizes,
        by_client=by_client,
    )


def client_measures(federation: Federation, model: Model, params: Params) -> dict[str, Values]:
    """Test accuracy, test loss and the metrics of a model on each client's own rows.

    Training rows are read only for a model with metrics.

    They are "test_accuracy", NaN for a model without accuracy, "test_loss", and for each metric
    "test_NAME" and "train_NAME": float64 (clients,), NaN for clients without such rows.

    >>> import jax.numpy as jnp
    >>> test = [([[1.0], [-1.0]], [1, 1]), ([], []), ([[2.0]], [1])]
    >>> federation = Federation.from_arrays([([[0.0]], [0])] * 3, test)
    >>> model = Model(lambda key: jnp.ones(()), lambda w, x: jnp.hstack([-w * x, w * x]))
    >>> client_measures(federation, model, jnp.ones(()))["test_accuracy"].tolist()
    [0.5, nan, 1.0]
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
    measures = _measures(model, "test", row_totals(model, params, test), test.sizes, test.labels)
    if model.metrics:
        sums = row_totals(model, params, train)
        measures |= _measures(model, "train", sums, train.sizes, train.labels)
        del measures["train_loss"]
    return measures


def _measures(
    model: Model,
    kind: str,
    sums: dict[str, Any],
    rows: NDArray[np.int64],
    labels: NDArray[np.int64],
) -> dict[str, Values]:
    """Loss, accuracy of test rows, and metrics, from the `row_totals` of groups of rows."""
    measures = {f"{kind}_loss": _ratio(sums["loss"], rows)}
    if kind == "test":
        met = sums.get("correct")
        unknown = np.full(len(rows), np.nan)
        measures["test_accuracy"] = unknown if met is None else _ratio(met, labels)
    for name, metric in model.metrics.items():
        rounded = jax.tree.map(lambda a: a.astype(real_type()), sums["metrics"][name])
        values = jit_once(jax.vmap(partial(metric_value, name, metric)))(rounded)
        measures[f"{kind}_{name}"] = np.where(rows > 0, np.asarray(values, float), np.nan)
    return measures


def _ratio(sums: Values, counts: NDArray[np.int64]) -> Values:
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


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
    """The index of the model with the lowest loss on each client's training rows.

    Args:
        model: The model of the parameters.
        models: Parameters of several models, leaves (models, ...), such as `Run.models`.
        federation: The clients and their data; they need not have taken part.

    Returns:
        The index of a model for each client, shape (clients,); the first on ties.

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
