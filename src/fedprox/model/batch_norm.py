"""flax's layers of batch normalization, over the rows of a mini-batch that count.

Mini-batches are padded. flax's layers take a mask of what counts, and then read all numbers more
often: a sixth of a step of `fp.models.mnist_cnn`. Here the statistics are those of each row, and
then of the rows that count. They are the same up to rounding, and cost as much as without a mask.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

MASK: ContextVar[Any] = ContextVar("mask", default=None)
"""Which rows of the mini-batch count that a module of nnx is called with."""


@cache
def masked(kind: Any) -> Any:
    """A class of nnx's layers of batch normalization that see only the rows of `MASK`."""

    class Masked(kind):
        def __call__(self, x: jax.Array, *given: Any, **options: Any) -> jax.Array:
            mask, parameters = MASK.get(), [self.scale, self.bias]
            values = [each if each is None else each[...] for each in parameters]
            if kind is nnx.BatchNorm and _computes_here(self, x, mask, given, options):
                before = self.mean[...], self.var[...]
                y, after = _normalized(self, x, mask, before, *values)
                self.mean[...], self.var[...] = after
                return y
            y = super().__call__(x, *given, **_with_mask(options, mask, x))
            # running statistics stay in float32 where all else is in bfloat16
            return y.astype(_type(self, x, *values))

    return Masked


def in_linen(mask: Any) -> Any:
    """An interceptor of linen's methods by which its layers see only the rows of a mask."""

    def masked(next_call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer = context.module
        if not isinstance(layer, linen.BatchNorm) or context.method_name != "__call__":
            return next_call(*args, **kwargs)
        x, *given = args
        own = type(layer) is linen.BatchNorm
        if not own or not _computes_here(layer, x, mask, given, kwargs):
            return next_call(*args, **_with_mask(kwargs, mask, x))
        before = [layer.get_variable("batch_stats", name) for name in ("mean", "var")]
        scale = layer.get_variable("params", "scale") if layer.use_scale else None
        bias = layer.get_variable("params", "bias") if layer.use_bias else None
        y, after = _normalized(layer, x, mask, before, scale, bias)
        for name, value in zip(("mean", "var"), after, strict=True):
            layer.put_variable("batch_stats", name, value)
        return y

    return masked


def _computes_here(layer: Any, x: Any, mask: Any, given: Sequence[Any], options: Any) -> bool:
    """Whether a layer computes a mini-batch's statistics in the way of `_normalized`."""
    average = options.get("use_running_average", given[0] if given else None)
    average = layer.use_running_average if average is None else average
    usual = layer.axis in (-1, x.ndim - 1) and layer.axis_name is None
    return mask is not None and not average and usual and options.get("mask") is None


def _normalized(
    layer: Any, x: jax.Array, mask: jax.Array, before: Sequence[jax.Array], scale: Any, bias: Any
) -> tuple[jax.Array, list[jax.Array]]:
    """Normalized features (B, ..., C), and the layer's next running mean and variance (C,)."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))

    def mean_of(values: jax.Array) -> jax.Array:
        of_rows = values.mean(axis=tuple(range(1, x.ndim - 1)))
        return jnp.mean(of_rows, axis=0, where=mask[:, None])

    mean = mean_of(wide)
    if layer.use_fast_variance:
        var = jnp.maximum(mean_of(jnp.square(wide)) - jnp.square(mean), 0.0)
    else:
        var = mean_of(jnp.square(wide - mean))
    factor = jax.lax.rsqrt(var + layer.epsilon)
    y = (wide - mean) * (factor if scale is None else factor * scale)
    y = y if bias is None else y + bias
    old = layer.momentum
    after = [old * a + (1 - old) * b for a, b in zip(before, (mean, var), strict=True)]
    return y.astype(_type(layer, x, scale, bias)), after


def _type(layer: Any, *values: Any) -> Any:
    """The type of a layer's outputs."""
    found = jnp.result_type(*(each for each in values if each is not None))
    return layer.dtype or (found if jnp.issubdtype(found, jnp.inexact) else jnp.float32)


def _with_mask(options: dict[str, Any], mask: Any, x: jax.Array) -> dict[str, Any]:
    """Options of a layer with a mask of rows, unless the module has one of its own."""
    if mask is None or options.get("mask") is not None:
        return options
    return {**options, "mask": mask.reshape(mask.shape + (1,) * (x.ndim - 1))}
