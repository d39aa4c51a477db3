"""A model: how parameters begin, what they predict, and how a prediction is judged."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from fedprox.errors import require
from fedprox.features import Features, index_of, look_up

Params = Any  # a pytree of arrays
"""A pytree of floating-point arrays."""


def cross_entropy(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """-log softmax(outputs)_y of each example: outputs (B, classes), y (B,) integers -> (B,).

    Of a sequence, outputs (B, length, classes) and y (B, length), the mean over the positions that
    have a label, y >= 0.

    Raises:
        InputError: Outputs and labels do not match.

    >>> even = jnp.zeros((1, 3, 2))
    >>> cross_entropy(even, jnp.array([[0, 1, -1]])).tolist() == [float(jnp.log(2.0))]
    True
    """
    require(
        outputs.ndim == y.ndim + 1 and outputs.shape[:-1] == y.shape and y.ndim <= 2,
        f"model: outputs of shape {outputs.shape} for labels of shape {y.shape}; cross-entropy "
        "needs an output for each class at each label",
    )
    require(
        jnp.issubdtype(y.dtype, jnp.integer),
        f"model: labels of type {y.dtype}; cross-entropy needs whole numbers, and others a loss of "
        "their own",
    )
    if y.ndim == 1:
        return optax.softmax_cross_entropy_with_integer_labels(outputs, y)
    known = y >= 0
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, jnp.maximum(y, 0))
    total = jnp.sum(jnp.where(known, losses, 0.0), axis=1)
    return total / jnp.maximum(jnp.sum(known, axis=1), 1)


def top_1(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Whether the largest output is the label's: outputs (B, classes), y (B,) -> (B,) booleans.

    Of a sequence, outputs (B, length, classes) and y (B, length) -> (B, length), false where there
    is no label. Where an output is NaN there is no largest one, and no label is met.

    >>> top_1(jnp.array([[0.0, 1.0], [1.0, jnp.nan]]), jnp.array([1, 0])).tolist()
    [True, False]
    """
    return (jnp.argmax(outputs, axis=-1) == y) & ~jnp.isnan(outputs).any(axis=-1)


class Model(NamedTuple):
    """A model as pure functions.

    Two functions are enough to bring one's own:

    >>> def init(key):
    ...     return {"slope": jnp.zeros(2)}
    >>> def apply(params, x):
    ...     return x @ params["slope"]
    >>> def squared(outputs, y):
    ...     return (outputs - y) ** 2
    >>> model = Model(init, apply, squared, correct=None)
    >>> model.apply(model.init(jax.random.key(0)), jnp.ones((3, 2))).shape
    (3,)

    Attributes:
        init: Random key -> parameters.
        apply: Parameters, features (B, ...) -> outputs (B, ...).
        loss: Outputs, labels -> loss of each example, shape (B,).
        correct: Outputs, labels -> whether each label is met, shape (B,), or (B, length) for
            sequences, and false where outputs are NaN; accuracy is their share of all labels.
            None where that has no meaning.
    """

    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, jax.Array], jax.Array]
    loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy
    correct: Callable[[jax.Array, jax.Array], jax.Array] | None = top_1

    @classmethod
    def from_nnx(
        cls,
        build: Callable[[nnx.Rngs], nnx.Module],
        loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy,
        correct: Callable[[jax.Array, jax.Array], jax.Array] | None = top_1,
    ) -> "Model":
        """A model from a flax.nnx module.

        Args:
            build: `flax.nnx.Rngs` -> module. Every variable of the module must be an `nnx.Param`:
                federated averaging has no meaning for running statistics or dropout counters.
            loss: As in `Model`.
            correct: As in `Model`.

        Raises:
            InputError: The module has other variables.

        >>> model = Model.from_nnx(lambda rngs: nnx.Linear(4, 3, rngs=rngs))
        >>> model.apply(model.init(jax.random.key(0)), jnp.ones((2, 4))).shape
        (2, 3)
        """
        graph, _, rest = nnx.split(nnx.eval_shape(lambda: build(nnx.Rngs(0))), nnx.Param, ...)
        others = [".".join(map(str, path)) for path, _ in nnx.to_flat_state(rest)]
        require(
            not others,
            f"model: the module has variables that are not nnx.Param: {', '.join(others)}; "
            "clients' models can only be averaged where all are",
        )

        def init(key: jax.Array) -> Params:
            return nnx.to_pure_dict(nnx.split(build(nnx.Rngs(key)), nnx.Param)[1])

        def apply(params: Params, x: jax.Array) -> jax.Array:
            return nnx.merge(graph, nnx.State(params))(x)

        return cls(init, apply, loss, correct)


def check_classes(model: Model, params: Params, x: Features, classes: int) -> None:
    """Raise `InputError` where cross-entropy would meet a class that has no output: it is NaN.

    Args:
        model: The model.
        params: Its parameters, in shape.
        x: Features, at least a row.
        classes: Classes of the labels, 0 where they are none.
    """
    if model.loss is not cross_entropy:
        return
    outputs = jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype))
    have = outputs.shape[-1] if outputs.ndim else 1
    require(
        have >= classes,
        f"model: {have} outputs for {classes} classes; it needs one for each",
    )


def weighted_loss(
    model: Model, params: Params, x: jax.Array, y: jax.Array, weights: jax.Array
) -> jax.Array:
    """sum_i weights_i loss(params; x_i, y_i), a scalar.

    Raises:
        InputError: The model's loss is not one number for each example.
    """
    losses = model.loss(model.apply(params, x), y)
    require(
        jnp.shape(losses) == weights.shape,
        f"model.loss: an array of shape {jnp.shape(losses)} for {len(weights)} examples; it must "
        f"have shape {weights.shape}, a number for each",
    )
    return jnp.sum(jnp.where(weights > 0, losses * weights, 0.0))


def read_slice(
    x: Features, y: jax.Array, begin: jax.Array | int, end: jax.Array | int, width: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rows begin, ..., end - 1 of flat data, at most `width`, as `weighted_loss` takes them.

    In place of other rows the slice repeats the row `begin`, so that they cannot change a sum,
    whatever they hold: even a weight of zero times their gradient may be NaN.

    Args:
        x: All features, shape (rows, ...).
        y: All labels, shape (rows, ...).
        begin: First row to read; any whole number in a compiled program.
        end: The row before which to end.
        width: Rows of the slice, at most `rows`.

    Returns:
        Features (width, ...), labels (width, ...), and 1 for rows that count, else 0 (width,).

    >>> x, y = jnp.arange(5.0)[:, None], jnp.arange(5)
    >>> _, labels, inside = read_slice(x, y, 3, 5, width=4)
    >>> labels.tolist(), inside.tolist()
    ([3, 3, 3, 4], [0.0, 0.0, 1.0, 1.0])
    """
    start = jnp.minimum(begin, max(len(x) - width, 0))
    rows = start + jnp.arange(width)
    inside = (rows >= begin) & (rows < end)

    def read(a: jax.Array) -> jax.Array:
        kept = inside.reshape((-1,) + (1,) * (a.ndim - 1))
        own = jax.lax.dynamic_slice_in_dim(a, begin, 1)
        return jnp.where(kept, jax.lax.dynamic_slice_in_dim(a, start, width), own)

    return look_up(x, read(index_of(x))), read(y), inside.astype(jnp.float32)
