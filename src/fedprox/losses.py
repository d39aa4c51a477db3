"""Losses of a model's outputs, and the accuracy that belongs to each.

Each is a mean over a row's labels, of a function of optax but for the cross-entropy of labels.
Losses with equal arguments are equal, so they share compiled programs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedprox.errors import require, require_number, shown
from fedprox.user_code import describe

__all__ = ["cross_entropy", "huber", "sigmoid_cross_entropy", "squared"]

Loss = Callable[[jax.Array, jax.Array], jax.Array]
"""(outputs (B, ...), labels (B, ...)) -> the loss of each row, shape (B,)."""

Correct = Callable[[jax.Array, jax.Array], jax.Array]
"""(outputs, labels) -> whether each label is met, booleans."""


@dataclass(frozen=True)
class CrossEntropy:
    """See `cross_entropy`."""

    weights: tuple[float, ...] | None = None
    smoothing: float = 0.0

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The loss of each row: outputs (B, ..., classes), labels (B, ...) -> (B,)."""
        _require_array("cross-entropy", outputs)
        require(
            outputs.ndim == y.ndim + 1 and outputs.shape[:-1] == y.shape,
            f"model: outputs of shape {outputs.shape} for labels of shape {y.shape}; cross-entropy "
            "needs an output for each class at each label, along the last axis",
        )
        require(
            jnp.issubdtype(y.dtype, jnp.integer),
            f"model: labels of type {y.dtype}; cross-entropy needs whole numbers; give another "
            "loss for other labels",
        )
        classes = outputs.shape[-1]
        require(
            self.weights is None or len(self.weights) == classes,
            f"losses.cross_entropy: weights: {len(self.weights or ())} weights for {classes} "
            "outputs; one for each class is needed",
        )
        if y.ndim == 1:
            return self._of_classes(outputs, y)
        return _mean(self._of_classes(outputs, jnp.maximum(y, 0)), y >= 0)

    def _of_classes(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        weights = None if self.weights is None else jnp.asarray(self.weights, outputs.dtype)
        if self.smoothing:
            one_hot = jax.nn.one_hot(y, outputs.shape[-1], dtype=outputs.dtype)
            targets = optax.smooth_labels(one_hot, self.smoothing)
            weighted = targets if weights is None else weights * targets
            return optax.softmax_cross_entropy(outputs, weighted)
        # as optax's with integer labels, but a mask in place of a read by index, whose gradient is
        # a scatter, slow on CPUs
        shifted = outputs - jax.lax.stop_gradient(outputs.max(axis=-1, keepdims=True))
        own = jnp.arange(outputs.shape[-1]) == y[..., None]
        losses = jnp.log(jnp.exp(shifted).sum(axis=-1)) - shifted.sum(axis=-1, where=own)
        losses = jnp.where((y >= 0) & (y < outputs.shape[-1]), losses, jnp.nan)  # of no class
        return losses if weights is None else weights[y] * losses


@dataclass(frozen=True)
class SigmoidCrossEntropy:
    """See `sigmoid_cross_entropy`."""

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The loss of each row: outputs and labels (B, ...) -> (B,)."""
        outputs = at_labels("sigmoid_cross_entropy", outputs, y)
        return _mean(optax.sigmoid_binary_cross_entropy(outputs, jnp.maximum(y, 0)), y >= 0)


@dataclass(frozen=True)
class Squared:
    """See `squared`."""

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The loss of each row: outputs and labels (B, ...) -> (B,)."""
        outputs = at_labels("squared", outputs, y)
        return _by_row(optax.squared_error(outputs, y)).mean(axis=1)


@dataclass(frozen=True)
class Huber:
    """See `huber`."""

    delta: float = 1.0

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """The loss of each row: outputs and labels (B, ...) -> (B,)."""
        outputs = at_labels("huber", outputs, y)
        return _by_row(optax.huber_loss(outputs, y, delta=self.delta)).mean(axis=1)


def _require_array(what: str, outputs: Any) -> None:
    require(
        hasattr(outputs, "shape"), f"model: outputs {describe(outputs)}; {what} needs one array"
    )


def at_labels(what: str, outputs: Any, y: jax.Array) -> jax.Array:
    """Outputs in the labels' shape, without a last axis of one, as of a layer with one unit."""
    require(
        isinstance(outputs, jax.Array | np.ndarray) and outputs.shape in (y.shape, (*y.shape, 1)),
        f"{what}: outputs {describe(outputs)} for labels {describe(y)}; they must have the same "
        "shape",
    )
    scores: jax.Array = outputs.reshape(y.shape)
    return scores


def _by_row(values: jax.Array) -> jax.Array:
    return values.reshape(len(values), -1)


def _mean(losses: jax.Array, known: jax.Array) -> jax.Array:
    """The mean loss of each row's known labels, 0 for a row without: (B, ...) -> (B,)."""
    axes = tuple(range(1, losses.ndim))
    total = jnp.sum(jnp.where(known, losses, 0.0), axis=axes)
    return total / jnp.maximum(jnp.sum(known, axis=axes), 1)


def cross_entropy(
    *, weights: Sequence[float] | NDArray[Any] | None = None, smoothing: float = 0.0
) -> Loss:
    r"""Cross-entropy of classes, with weights of classes and label smoothing.

    With outputs :math:`z` of :math:`C` classes, a label :math:`y` has the loss

    .. math:: -\sum_c v_c\, q_c \log \frac{\exp z_c}{\sum_j \exp z_j}, \qquad
        q_c = (1 - \epsilon)\, [c = y] + \epsilon / C,

    where :math:`v` are the weights and :math:`\epsilon` is the smoothing. A row's loss is the mean
    over its labels. Labels are whole numbers of shape (rows,); or (rows, length), for sequences; or
    (rows, height, width), for images with a class at each pixel. Where a row has several labels, -1
    stands for none. Outputs have the labels' shape and a last axis of C.

    The mean over labels divides by their number and not by their weights, so weights whose mean
    over the training labels is 1 preserve the scale of the loss. Clients need the same weights:
    compute them from the label counts of all clients together.

    The model's accuracy is the share of labels with the largest output.

    Args:
        weights: Weight of each class, at least 0; None for 1.
        smoothing: Label smoothing :math:`\epsilon`, at least 0 and below 1.

    Returns:
        A loss for :class:`fedprox.Model`.

    Raises:
        InputError: If a weight is negative or not finite, all are 0, or the smoothing is out of
            range. Later, if there are not as many weights as outputs.

    Example:
        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> outputs, y = jnp.zeros((2, 4)), jnp.array([0, 3])
        >>> losses = fp.losses.cross_entropy(weights=[1, 1, 1, 3])(outputs, y)
        >>> (losses / jnp.log(4.0)).tolist()
        [1.0, 3.0]

    References:
        Szegedy et al., `Rethinking the Inception Architecture for Computer Vision
        <https://arxiv.org/abs/1512.00567>`_, CVPR 2016, section 7, for the smoothing.
    """
    name = "losses.cross_entropy: smoothing"
    require_number(name, smoothing)
    require(smoothing < 1, f"{name} = {smoothing}; it must be at least 0 and below 1")
    return CrossEntropy(_weights(weights), float(smoothing))


def _weights(weights: Any) -> tuple[float, ...] | None:
    """Checked weights of classes."""
    if weights is None:
        return None
    name = "losses.cross_entropy: weights"
    try:
        array = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        array = np.zeros(())
    require(
        array.ndim == 1 and len(array) > 0,
        f"{name} = {shown(weights)}; it must be a list of numbers, one for each class",
    )
    require(
        np.isfinite(array).all() and (array >= 0).all() and array.any(),
        f"{name} = {shown(weights)}; they must be at least 0 and finite, and not all 0",
    )
    return tuple(array.tolist())


def sigmoid_cross_entropy() -> Loss:
    r"""Cross-entropy of several labels a row, each of which is 0 or 1 on its own.

    A label :math:`y` with output :math:`z` has the loss

    .. math:: -y \log \sigma(z) - (1 - y) \log(1 - \sigma(z)), \qquad
        \sigma(z) = \frac{1}{1 + \exp(-z)}.

    A row's loss is the mean over its labels. Labels have shape (rows, ...), such as (rows, labels);
    where a row has several, -1 stands for one that is not known. Outputs have the same shape, or a
    last axis of 1 beside.

    The model's accuracy is the share of labels with an output above 0 for 1, and at most 0 for 0.

    Returns:
        A loss for :class:`fedprox.Model`.

    Example:
        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> losses = fp.losses.sigmoid_cross_entropy()(jnp.zeros((1, 3)), jnp.array([[1, 0, -1]]))
        >>> round(float(losses[0] / jnp.log(2.0)), 6)
        1.0
    """
    return SigmoidCrossEntropy()


def squared() -> Loss:
    r"""Squared error of regression, :math:`\frac{1}{d} \|z - y\|^2`.

    Labels have shape (rows,) or (rows, ...), with :math:`d` numbers a row. Outputs have the same
    shape, or a last axis of 1 beside. The model has no accuracy.

    Returns:
        A loss for :class:`fedprox.Model`.

    Example:
        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> fp.losses.squared()(jnp.array([[1.0], [2.0]]), jnp.array([1.0, 5.0])).tolist()
        [0.0, 9.0]
    """
    return Squared()


def huber(delta: float = 1.0) -> Loss:
    r"""Huber's loss of regression: squared for small errors, linear for large ones.

    An error :math:`e = z - y` has the loss

    .. math:: \tfrac{1}{2} e^2 \text{ if } |e| \le \delta, \qquad
        \delta |e| - \tfrac{1}{2} \delta^2 \text{ else},

    and a row the mean over its labels. Shapes are those of :func:`fedprox.losses.squared`.

    Args:
        delta: :math:`\delta`, above 0, in the labels' unit.

    Returns:
        A loss for :class:`fedprox.Model`.

    Raises:
        InputError: If delta is not above 0 or not finite.

    Example:
        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> fp.losses.huber()(jnp.array([1.0, 4.0]), jnp.array([0.0, 0.0])).tolist()
        [0.5, 3.5]

    References:
        Huber, `Robust Estimation of a Location Parameter
        <https://doi.org/10.1214/aoms/1177703732>`_, Annals of Mathematical Statistics 35(1), 1964.
    """
    require_number("losses.huber: delta", delta, positive=True)
    return Huber(float(delta))


LOSSES: dict[str, Callable[..., Loss]] = {
    "cross_entropy": cross_entropy,
    "sigmoid_cross_entropy": sigmoid_cross_entropy,
    "squared": squared,
    "huber": huber,
}
"""The losses that an experiment file can name."""


def check_loss(where: str, loss: Any) -> None:
    """Raise `InputError` if a loss is a function of this module that makes one."""
    for name, makes in LOSSES.items():
        found = getattr(loss, "__wrapped__", loss) is makes
        require(not found, f"{where} = fp.losses.{name}; call it: fp.losses.{name}()")


def top_1(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Whether the largest output is the label's: outputs (B, ..., classes), y (B, ...) -> (B, ...).

    It is false without a label, -1. With an output that is NaN no label is met.

    >>> top_1(jnp.array([[0.0, 1.0], [1.0, jnp.nan]]), jnp.array([1, 0])).tolist()
    [True, False]
    """
    return (jnp.argmax(outputs, axis=-1) == y) & ~jnp.isnan(outputs).any(axis=-1)


def above_0(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Whether an output is above 0 if and only if its label is 1: outputs and y (B, ...) -> same.

    It is false without a label, -1, and for an output that is NaN.

    >>> above_0(jnp.array([[2.0, 1.0, -1.0, 3.0]]), jnp.array([[1, 0, 0, -1]])).tolist()
    [[True, False, True, False]]
    """
    outputs = at_labels("accuracy", outputs, y)
    return ((outputs > 0) == (y > 0.5)) & (y >= 0) & ~jnp.isnan(outputs)


def fitting(outputs: Any, y: Any) -> Loss:
    """The loss that the labels' type and shape and the outputs' shape say.

    >>> fitting(jnp.zeros((2, 3)), jnp.zeros((2, 3), int))
    SigmoidCrossEntropy()
    """
    _require_array("a loss", outputs)
    whole = not jnp.issubdtype(y.dtype, jnp.floating)
    if whole and outputs.shape[:-1] == y.shape:
        return CrossEntropy()
    if whole and outputs.shape == y.shape:
        return SigmoidCrossEntropy()
    require(
        not whole,
        f"model: outputs of shape {outputs.shape} for labels of shape {y.shape}; cross-entropy "
        "needs an output for each class at each label, along the last axis; labels of 0 and 1, "
        "several a row, need one for each label",
    )
    require(
        outputs.shape in (y.shape, (*y.shape, 1)),
        f"model: labels of type {y.dtype} and shape {y.shape} for outputs of shape "
        f"{outputs.shape}; regression needs one output for each label, and cross-entropy needs "
        "whole numbers, the classes",
    )
    return Squared()


def by_labels(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """The default of `Model.loss`: the loss that fits the labels and the outputs."""
    return fitting(outputs, y)(outputs, y)


def met_by_labels(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """The default of `Model.correct` with the default of `Model.loss`; not of regression."""
    chosen = fitting(outputs, y)
    require(not isinstance(chosen, Squared), "model: regression has no accuracy")
    return top_1(outputs, y) if isinstance(chosen, CrossEntropy) else above_0(outputs, y)


def accuracy_of(loss: Loss) -> Correct | None:
    """When a label is met, for a loss of the library; None for others and for regression."""
    if loss is by_labels:
        return met_by_labels
    if isinstance(loss, CrossEntropy):
        return top_1
    return above_0 if isinstance(loss, SigmoidCrossEntropy) else None


def is_of_library(loss: Loss) -> bool:
    """Whether a loss is one of the library's, which are all at least 0."""
    known = isinstance(loss, CrossEntropy | SigmoidCrossEntropy | Squared | Huber)
    return known or loss is by_labels


def classes_loss(loss: Loss, outputs: Any, y: Any) -> CrossEntropy | None:
    """The cross-entropy of classes that a model's loss is for some labels; None for another."""
    chosen = fitting(outputs, y) if loss is by_labels else loss
    return chosen if isinstance(chosen, CrossEntropy) else None
