"""A model: how parameters begin, what they predict, and how a prediction is judged."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

Params = Any  # a pytree of arrays
"""A pytree of floating-point arrays."""


def cross_entropy(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """-log softmax(outputs)_y of each example: outputs (B, classes), y (B,) integers -> (B,)."""
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y)


def top_1(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Whether the largest output is the label's: outputs (B, classes), y (B,) -> (B,) booleans."""
    return jnp.argmax(outputs, axis=-1) == y


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
        correct: Outputs, labels -> whether each example counts as right, shape (B,); accuracy is
            its mean. None where that has no meaning.
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

        >>> model = Model.from_nnx(lambda rngs: nnx.Linear(4, 3, rngs=rngs))
        >>> model.apply(model.init(jax.random.key(0)), jnp.ones((2, 4))).shape
        (2, 3)
        """
        graph, _, rest = nnx.split(nnx.eval_shape(lambda: build(nnx.Rngs(0))), nnx.Param, ...)
        if nnx.to_pure_dict(rest):
            raise TypeError(f"the module has variables that are not nnx.Param: {rest}")

        def init(key: jax.Array) -> Params:
            return nnx.to_pure_dict(nnx.split(build(nnx.Rngs(key)), nnx.Param)[1])

        def apply(params: Params, x: jax.Array) -> jax.Array:
            return nnx.merge(graph, nnx.State(params))(x)

        return cls(init, apply, loss, correct)


def weighted_loss(
    model: Model, params: Params, x: jax.Array, y: jax.Array, weights: jax.Array
) -> jax.Array:
    """sum_i weights_i loss(params; x_i, y_i), a scalar."""
    losses = model.loss(model.apply(params, x), y)
    return jnp.sum(jnp.where(weights > 0, losses * weights, 0.0))
