"""Layers formulated so that they run fast inside a compiled round on a CPU.

Convolutions have a formulation for each backend. The other layers consist of plain products and
comparisons, which suit accelerators too; this has not been measured.
"""

import inspect
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from fedprox.errors import require
from fedprox.model.convolution import fast_convolution

T = TypeVar("T")


def _with_signature(layer: type[T]) -> type[T]:
    """A layer whose signature is that of its constructor, which the metaclass of flax hides."""
    of_init: Any = layer.__init__
    _, *parameters = inspect.signature(of_init).parameters.values()
    setattr(layer, "__signature__", inspect.Signature(parameters))  # noqa: B010
    return layer


@_with_signature
class Dense(nnx.Module):
    """x -> x W' + b with W stored as (outputs, inputs), so it is named `weight` as torch's.

    Both products of a step, x W' forwards and (dL/dy)' x backwards, then run along contiguous rows
    of the batch. This is up to twice as fast on a CPU as with W stored as (inputs, outputs).

    Args:
        inputs: Features d of an example.
        outputs: Number of outputs C.
        kernel_init: Initializer of W, shape (C, d).
        bias_init: Initializer of b, shape (C,).
        rngs: Random keys.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel_init: nnx.Initializer,
        bias_init: nnx.Initializer = nnx.initializers.zeros,
        rngs: nnx.Rngs,
    ) -> None:
        self.weight = nnx.Param(kernel_init(rngs.params(), (outputs, inputs)))
        self.bias = nnx.Param(bias_init(rngs.params(), (outputs,)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, d) -> (B, C)."""
        return affine(x, self.weight[...], self.bias[...])


def affine(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """`Dense`'s x W' + b, for x (B, d), W (C, d) and b (C,)."""
    # einsum would repeat a single feature
    require(
        x.shape[-1] == weight.shape[1],
        f"model: rows of {x.shape[-1]} features where {weight.shape[1]} are needed",
    )
    rows = x.shape[0]  # not a number while a model is exported
    if not isinstance(rows, int) or rows * len(weight) > FEW_NUMBERS:
        return x @ weight.T + bias
    # with the barrier XLA writes dL/dy transposed before the product for W's gradient
    return lax.optimization_barrier(jnp.einsum("cd,bd->cb", weight, x)).T + bias


FEW_NUMBERS = 256
"""Numbers in dL/dy up to which the gradient of W is faster from a transposed dL/dy."""


@_with_signature
class Conv(nnx.Module):
    """Square convolution of images (B, H, W, C), kernel (k, k, C, O).

    Args:
        inputs: Channels C.
        outputs: Channels O.
        size: Side k of the kernel.
        stride: Step between windows.
        padding: Zeros added on every side.
        kernel_init: Initializer of the kernel.
        bias_init: Initializer of the bias (O,); None for no bias.
        rngs: Random keys.
    """

    def __init__(  # as many arguments as a convolution has settings
        self,
        inputs: int,
        outputs: int,
        size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        kernel_init: nnx.Initializer,
        bias_init: nnx.Initializer | None = nnx.initializers.zeros,
        rngs: nnx.Rngs,
    ) -> None:
        self.stride, self.padding = stride, padding
        self.kernel = nnx.Param(kernel_init(rngs.params(), (size, size, inputs, outputs)))
        if bias_init is not None:
            self.bias = nnx.Param(bias_init(rngs.params(), (outputs,)))

    def __call__(
        self, x: jax.Array, pool: Callable[[jax.Array], jax.Array] = lambda x: x
    ) -> jax.Array:
        """(B, H, W, C) -> (B, H', W', O), max-pooled by `pool`; without, as it is.

        The maximum is taken before the bias is added: the same numbers for a quarter of the work.
        """
        kernel = self.kernel[...]
        x = pool(convolve(x.astype(kernel.dtype), kernel, self.stride, self.padding))  # bytes, too
        return x + self.bias[...] if hasattr(self, "bias") else x


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: int = 0) -> jax.Array:
    """y[b,h,w,o] = sum_ijc x[b, s h + i - p, s w + j - p, c] kernel[i,j,c,o].

    On a CPU in the formulation of `fedprox.model.convolution`. It can be differentiated in any mode
    any number of times.

    Args:
        x: Images (B, H, W, C).
        kernel: Shape (k, k, C, O).
        stride: Step s between windows.
        padding: Zeros p added on every side.
    """
    return fast_convolution(x, kernel, (stride,) * 2, [(padding,) * 2] * 2)


def max_pool(x: jax.Array, size: int = 2, padding: tuple[int, int] = (0, 0)) -> jax.Array:
    """Maximum of size x size windows with stride 2: (B, H, W, C) -> (B, H', W', C).

    The gradient goes to the first of equal maxima, as in torch.

    Args:
        x: Images.
        size: Side of a window.
        padding: Rows and columns of -infinity before and after the image.
    """
    spec = _Pool(size, padding, *x.shape[1:3])
    return _pick(spec, x, _winners(spec, lax.stop_gradient(x)))


class _Pool(NamedTuple):
    """Static numbers that a max pool depends on."""

    size: int
    padding: tuple[int, int]
    height: int
    width: int

    def windows(self, x: jax.Array) -> list[tuple[int, jax.Array]]:
        """For each place of a window, 8 row + column: the place, and x there (B, H', W', C)."""
        pad = (0, 0), self.padding, self.padding, (0, 0)
        x = jnp.pad(x, pad, constant_values=-jnp.inf) if any(self.padding) else x
        rows, columns = ((length - self.size) // 2 + 1 for length in x.shape[1:3])
        return [
            (8 * i + j, x[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2])
            for i, j in itertools.product(range(self.size), repeat=2)
        ]


def _winners(spec: _Pool, x: jax.Array) -> jax.Array:
    """The place of the first maximum of each window, int8."""
    (place, largest), *others = spec.windows(x)
    winner = jnp.full(largest.shape, place, jnp.int8)
    for place, value in others:
        winner = jnp.where(value > largest, jnp.int8(place), winner)
        largest = jnp.maximum(largest, value)
    return winner


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pick(spec: _Pool, x: jax.Array, winner: jax.Array) -> jax.Array:
    """The values of x at the winners."""
    (_, picked), *others = spec.windows(x)
    for place, value in others:
        picked = jnp.where(winner == place, value, picked)
    return picked


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _put(spec: _Pool, dy: jax.Array, winner: jax.Array) -> jax.Array:
    """The transpose of `_pick`: dy at the winners, zero elsewhere.

    Row 2 h + r of x is row u = r + padding + 2 a of window h - a.
    """
    low = spec.padding[0]
    shifts = range(-((low + 1) // 2), (spec.size - 1 - low) // 2 + 1)
    height, width = -(-spec.height // 2), -(-spec.width // 2)
    before, after = max(shifts[-1], 0), max(-shifts[0], 0)
    pad = [
        (0, 0),
        *(
            (before, max(n + after - m, 0))
            for n, m in ((height, dy.shape[1]), (width, dy.shape[2]))
        ),
        (0, 0),
    ]
    dy, winner = jnp.pad(dy, pad), jnp.pad(winner, pad, constant_values=-1)
    row, column = (lax.broadcasted_iota(jnp.int8, (1, 1, 2, 1, 2, 1), axis) for axis in (2, 4))
    total: Any = 0.0
    for a, b in itertools.product(shifts, repeat=2):
        here = (
            slice(None),
            slice(before - a, before - a + height),
            None,
            slice(before - b, before - b + width),
            None,
        )
        place = 8 * (row + low + 2 * a) + column + low + 2 * b
        total += jnp.where(winner[here] == place, dy[here], 0.0)
    out = total.reshape(len(dy), 2 * height, 2 * width, -1)
    return out[:, : spec.height, : spec.width]


_pick.defvjp(
    lambda spec, x, winner: (_pick(spec, x, winner), winner),
    lambda spec, winner, dy: (_put(spec, dy, winner), None),
)
_put.defvjp(
    lambda spec, dy, winner: (_put(spec, dy, winner), winner),
    lambda spec, winner, dx: (_pick(spec, dx, winner), None),
)


def local_response_normalisation(x: jax.Array) -> jax.Array:
    """Multiply x by (1 + alpha s)^-0.75, where s sums x^2 over the channels at most 4 away.

    This is Krizhevsky et al. 2012, section 3.3, with alpha = 0.001 / 9 and the other numbers of
    TensorFlow's CIFAR tutorial. The sum over neighbours is a product with a band matrix.
    """
    channels = jnp.arange(x.shape[-1])
    near = (jnp.abs(channels[:, None] - channels) <= 4).astype(x.dtype)
    root = lax.rsqrt(1 + 0.001 / 9 * ((x * x) @ near))
    return x * root * jnp.sqrt(root)


def torch_default(fan_in: int) -> nnx.Initializer:
    """Uniform on +-1 / sqrt(fan_in): torch's default for kernels and biases."""
    bound = fan_in**-0.5

    def init(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init
