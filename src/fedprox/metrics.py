"""Metrics of a model besides its loss and accuracy.

A metric is a function of sums over rows. So it can be computed slice by slice, on several devices
and by client, without the outputs of all rows at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.errors import require, require_number, require_whole
from fedprox.losses import at_labels
from fedprox.precision import real_type
from fedprox.user_code import call, describe

Terms = Any
"""A pytree of arrays (B, ...) with an entry for each row, or of their sums over rows (...)."""

TAKEN = ("loss", "accuracy", "loss_se", "accuracy_se")
"""Names that records use after `train_` or `test_`."""


@dataclass(frozen=True)
class Metric:
    r"""A measure of outputs and labels that is computed from sums over rows.

    Over rows :math:`i` with weights :math:`w_i`, the metric is

    .. math:: \mathrm{value}\Big(\sum_i w_i\, \mathrm{terms}(o_i, y_i)\Big).

    A weight is 1, or more if evaluations sample a client's rows and a row represents several.

    Attributes:
        terms: (outputs (B, ...), labels (B, ...)) -> what each row adds to the sums: a pytree of
            arrays of numbers or booleans, each of shape (B, ...). A row's terms must not depend on
            other rows.
        value: (sums, float32 arrays of shape (...)) -> the metric, a scalar.
        lower_is_better: Whether a smaller value is better, as for an error.

    Raises:
        InputError: If `terms` or `value` is not a function, or `lower_is_better` is not a bool.

    Example:
        The largest error is not a function of sums, but the share of errors above 1 is:

        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> def large(outputs, y):
        ...     return {"large": jnp.abs(outputs - y) > 1, "rows": jnp.ones(len(y))}
        >>> metric = fp.Metric(large, lambda sums: sums["large"] / sums["rows"])
        >>> float(metric(jnp.array([0.0, 3.0]), jnp.array([0.5, 0.5])))
        0.5
    """

    terms: Callable[[Any, jax.Array], Terms]
    value: Callable[[Terms], Any]
    lower_is_better: bool = False

    def __post_init__(self) -> None:
        require(
            isinstance(self.lower_is_better, bool),
            f"Metric.lower_is_better = {self.lower_is_better!r}; it must be True or False",
        )
        for name in ("terms", "value"):
            function = getattr(self, name)
            require(callable(function), f"Metric.{name} = {function!r}; it must be a function")

    def __call__(self, outputs: Any, y: jax.Array) -> jax.Array:
        """The metric of some rows with weight 1: outputs (B, ...), labels (B, ...) -> a scalar."""
        sums = jax.tree.map(lambda a: jnp.sum(a, axis=0), self.terms(outputs, y))
        return jnp.asarray(self.value(sums))


def mean_squared_error() -> Metric:
    r"""Mean squared error, :math:`\frac{1}{n} \sum_i \frac{1}{d} \|o_i - y_i\|^2`.

    Outputs and labels have the same shape, (B,) or (B, d).

    Returns:
        A metric whose smaller values are better.

    Example:
        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> outputs, y = jnp.array([1.0, 2.0]), jnp.array([1.0, 5.0])
        >>> float(fp.metrics.mean_squared_error()(outputs, y))
        4.5
    """

    def terms(outputs: jax.Array, y: jax.Array) -> Terms:
        outputs = at_labels("mean_squared_error", outputs, y)
        squares = ((outputs - y) ** 2).reshape(len(y), -1)
        return {"error": squares.mean(axis=1), "rows": jnp.ones(len(y))}

    return Metric(terms, lambda sums: sums["error"] / sums["rows"], lower_is_better=True)


def f1(threshold: float = 0.0) -> Metric:
    r"""Micro-averaged F1 score, :math:`\frac{2 TP}{2 TP + FP + FN}` over all rows and labels.

    Outputs and labels have the same shape, (B,) or (B, labels); labels are 0 or 1, or -1 if they
    are not known and do not count. Of two outputs for each label, as of a softmax over two classes,
    the second less the first counts. The score is NaN without positive labels and positive
    predictions.

    Args:
        threshold: An output above it predicts the label. The default is for logits.

    Returns:
        A metric whose larger values are better.

    Example:
        One true positive, one false positive and one false negative:

        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> outputs, y = jnp.array([[2.0, -1.0], [3.0, -4.0]]), jnp.array([[1, 1], [0, 0]])
        >>> float(fp.metrics.f1()(outputs, y))
        0.5
    """

    def terms(outputs: jax.Array, y: jax.Array) -> Terms:
        outputs = _scores("f1", outputs, y)
        predicted = (outputs > threshold) & (y >= 0)
        predicted, actual = (a.reshape(len(y), -1) for a in (predicted, y > 0))
        return {
            "both": (predicted & actual).sum(axis=1),
            "either": predicted.sum(axis=1) + actual.sum(axis=1),
        }

    return Metric(terms, lambda sums: 2 * sums["both"] / sums["either"])


def auc(bins: int = 200, limit: float = 10.0) -> Metric:
    r"""Area under the ROC curve: the probability that a positive row ranks above a negative one.

    Outputs are counted in bins of equal width from -limit to limit, positive rows in :math:`p_b`
    and negative rows in :math:`q_b`:

    .. math:: \mathrm{AUC} = \frac{\sum_b q_b \big(\frac{1}{2} p_b + \sum_{c > b} p_c\big)}
        {\sum_b p_b \sum_b q_b}.

    Rows of the same bin count as ties, so the error is at most half the share of (positive,
    negative) pairs in the same bin. Outputs have shape (B,); labels are 0 or 1, of the same shape.
    Of two outputs for each label, as of a softmax over two classes, the second less the first
    counts. The area is NaN without positive or negative rows, or with an output that is NaN.

    Args:
        bins: Number of bins, at least 2. Each row costs a few operations for each bin.
        limit: Largest absolute output, above 0; larger ones count as that. The default is for
            logits.

    Returns:
        A metric whose larger values are better.

    Raises:
        InputError: If `bins` or `limit` is out of range.

    Example:
        Of four pairs of a positive and a negative row, three are in the right order:

        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> outputs, y = jnp.array([-2.0, 0.5, -0.5, 2.0]), jnp.array([0, 0, 1, 1])
        >>> float(fp.metrics.auc()(outputs, y))
        0.75
    """
    require_whole("bins", bins, least=2)
    require_number("limit", limit, positive=True)

    def terms(outputs: jax.Array, y: jax.Array) -> Terms:
        outputs = _scores("auc", outputs, y)
        require(y.ndim == 1, f"auc: labels of shape {y.shape}; they must have shape (B,)")
        place = jnp.floor((outputs.astype(real_type()) / limit + 1) * (bins / 2))
        here = jnp.clip(place, 0, bins - 1)[:, None] == jnp.arange(bins)
        counts = jnp.where(jnp.isnan(outputs)[:, None], jnp.nan, here.astype(real_type()))
        positive = (y > 0)[:, None]
        return {"positive": counts * positive, "negative": counts * ~positive}

    def value(sums: Terms) -> jax.Array:
        # shares before products: products of large counts would lose digits
        p, q = (sums[key] / sums[key].sum() for key in ("positive", "negative"))
        above = 1 - jnp.cumsum(p)
        return jnp.sum(q * (above + p / 2))

    return Metric(terms, value)


def _scores(name: str, outputs: Any, y: jax.Array) -> jax.Array:
    """An output for each label of 0 or 1; of two, the logit of 1 over 0."""
    if np.shape(outputs) == (*y.shape, 2):
        outputs = outputs[..., 1] - outputs[..., 0]
    return at_labels(name, outputs, y)


def check_metrics(metrics: Any) -> None:
    """Raise `InputError` unless metrics are a dict of metrics with names that are not taken."""
    require(
        isinstance(metrics, Mapping),
        f"model.metrics = {metrics!r}; it must be a dict of names and fedprox.Metric",
    )
    for name, metric in metrics.items():
        require(
            isinstance(name, str) and name.isidentifier(),
            f"model.metrics: name {name!r}; it must be letters, digits and underscores, and not "
            "begin with a digit",
        )
        require(
            name not in TAKEN,
            f"model.metrics: name {name!r}; it is taken, as are all of {', '.join(TAKEN)}",
        )
        require(
            isinstance(metric, Metric),
            f"model.metrics[{name!r}] = {metric!r}; it must be a fedprox.Metric",
        )


def terms_of(metrics: Mapping[str, Metric], outputs: Any, y: jax.Array) -> dict[str, Terms]:
    """The terms of each metric, float32 arrays (B, ...)."""
    by_metric, given = {}, {"outputs": outputs, "y": y}
    for name, metric in metrics.items():
        what = f"model.metrics[{name!r}].terms"
        terms = call(f"{what}(outputs, y)", metric.terms, outputs, y, given=given)
        leaves = jax.tree.leaves(terms)
        fit = (np.shape(a)[:1] == y.shape[:1] and _is_real(a) for a in leaves)
        require(
            leaves and all(fit),
            f"{what}: {describe(terms)} for {y.shape[0]} rows; it must return arrays of numbers, "
            "each with an entry for each row along its first axis",
        )
        by_metric[name] = jax.tree.map(lambda a: jnp.asarray(a, real_type()), terms)
    return by_metric


def _is_real(array: Any) -> bool:
    kind = getattr(array, "dtype", np.dtype(object))
    return any(jnp.issubdtype(kind, real) for real in (np.bool_, np.integer, np.floating))


def metric_value(name: str, metric: Metric, sums: Terms) -> jax.Array:
    """A metric from its sums, a float32 scalar."""
    what = f"model.metrics[{name!r}].value"
    value = call(f"{what}(sums)", metric.value, sums, given=sums)
    require(
        isinstance(value, int | float) or (_is_real(value) and np.shape(value) == ()),
        f"{what}(sums) returns {describe(value)}; it must return one real number",
    )
    return jnp.asarray(value, real_type())


def weighted_sums(terms: Terms, weights: jax.Array) -> Terms:
    """sum_i weights_i terms_i: leaves (B, ...) -> (...). Rows of weight 0 may hold anything."""

    def one(a: jax.Array) -> jax.Array:
        w = weights.reshape((-1,) + (1,) * (a.ndim - 1))
        return jnp.sum(jnp.where(w > 0, w * a, 0.0), axis=0)

    return jax.tree.map(one, terms)
