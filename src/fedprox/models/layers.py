"""Layers formulated so that they run fast inside a compiled round on a CPU.

Convolutions have a formulation for each backend. The other layers consist of plain products and
comparisons, which suit accelerators too; this has not been measured.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from fedprox.errors import require

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
    of the batch: up to twice as fast on a CPU as with W stored as (inputs, outputs).

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
    if len(x) * len(weight) > FEW:
        return x @ weight.T + bias
    # with the barrier XLA writes dL/dy transposed before the product for W's gradient
    return lax.optimization_barrier(jnp.einsum("cd,bd->cb", weight, x)).T + bias


FEW = 256
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
        self, x: jax.Array, pool: Callable[[jax.Array], jax.Array] | None = None
    ) -> jax.Array:
        """(B, H, W, C) -> (B, H', W', O), max-pooled by `pool` if it is given.

        The maximum is taken before the bias is added: the same numbers for a quarter of the work.
        """
        kernel = self.kernel[...]
        x = convolve(x.astype(kernel.dtype), kernel, self.stride, self.padding)  # bytes, too
        x = x if pool is None else pool(x)
        return x + self.bias[...] if hasattr(self, "bias") else x


class _Shape(NamedTuple):
    """Static numbers that the three products of a convolution depend on."""

    stride: int
    padding: int
    height: int
    width: int
    size: int

    @property
    def windows(self) -> tuple[int, int]:
        """Height and width of the output."""
        reach = self.size - 2 * self.padding
        return (self.height - reach) // self.stride + 1, (self.width - reach) // self.stride + 1


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: int = 0) -> jax.Array:
    """y[b,h,w,o] = sum_ijc x[b, s h + i - p, s w + j - p, c] kernel[i,j,c,o].

    A convolution and the gradients in its two arguments are three products, each a derivative of
    the others, so it can be differentiated in reverse mode any number of times.

    Args:
        x: Images (B, H, W, C).
        kernel: Shape (k, k, C, O).
        stride: Step s between windows.
        padding: Zeros p added on every side.
    """
    _, height, width, _ = x.shape
    return _output(_Shape(stride, padding, height, width, len(kernel)), x, kernel)


_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _plain(shape: _Shape, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(
        x, kernel, (shape.stride,) * 2, [(shape.padding,) * 2] * 2, dimension_numbers=_LAYOUT
    )


def _product(on_cpu: Callable[..., jax.Array], plain: Callable[..., jax.Array]) -> Any:
    """(shape, a, b) -> the product in the backend's formulation.

    Under `vmap` a CPU computes one pair after another: XLA has no fast path for a batch of kernels.
    """

    def product(shape: _Shape, a: jax.Array, b: jax.Array) -> jax.Array:
        @jax.custom_batching.custom_vmap
        def one(a: jax.Array, b: jax.Array) -> jax.Array:
            return lax.platform_dependent(
                a, b, cpu=partial(on_cpu, shape), default=partial(plain, shape)
            )

        @one.def_vmap
        def several(
            size: int, batched: list[bool], a: jax.Array, b: jax.Array
        ) -> tuple[jax.Array, bool]:
            a, b = (
                arg if is_batched else jnp.broadcast_to(arg, (size, *arg.shape))
                for arg, is_batched in zip((a, b), batched, strict=True)
            )
            if size == 1:
                return one(a[0], b[0])[None], True
            return lax.platform_dependent(
                a,
                b,
                cpu=lambda a, b: lax.map(lambda pair: one(*pair), (a, b)),
                default=jax.vmap(partial(plain, shape)),
            ), True

        return one(a, b)

    return product


def _canonical(
    x: jax.Array,
    kernel: jax.Array,
    *,
    stride: int = 1,
    padding: tuple[tuple[int, int], tuple[int, int]],
    spread: int = 1,
    dilation: int = 1,
) -> jax.Array:
    """A convolution in the layout that XLA's CPU backend runs fast inside loops."""
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        lhs_dilation=(spread, spread),
        rhs_dilation=(dilation, dilation),
        dimension_numbers=_LAYOUT,
    )


def _x_gradient(shape: _Shape, dy: jax.Array, kernel: jax.Array) -> jax.Array:
    """dL/dx: the full correlation of dy with the rotated kernel."""
    low = shape.size - 1 - shape.padding
    height = (low, shape.height + shape.padding - 1 - shape.stride * (dy.shape[1] - 1))
    width = (low, shape.width + shape.padding - 1 - shape.stride * (dy.shape[2] - 1))
    turned = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    return _canonical(dy, turned, padding=(height, width), spread=shape.stride)


def _kernel_gradient(shape: _Shape, x: jax.Array, dy: jax.Array) -> jax.Array:
    """dL/dkernel: x with its channels as batch, correlated with dy as the kernel.

    It takes a few images at a time, whose transposed copies stay in the CPU's cache.
    """

    def ahead(length: int, windows: int) -> tuple[int, int]:
        reach = shape.stride * (windows - 1) + shape.size
        return shape.padding, reach - length - shape.padding

    padding = ahead(shape.height, dy.shape[1]), ahead(shape.width, dy.shape[2])

    def some(x: jax.Array, dy: jax.Array) -> jax.Array:
        return _canonical(
            x.transpose(3, 1, 2, 0),
            dy.transpose(1, 2, 0, 3),
            padding=padding,
            dilation=shape.stride,
        ).transpose(1, 2, 0, 3)

    few = next(n for n in (5, 4, 3, 2, 1) if len(x) % n == 0)
    if few == len(x):
        return some(x, dy)
    xs, dys = (a.reshape(-1, few, *a.shape[1:]) for a in (x, dy))
    nothing = jnp.zeros((shape.size, shape.size, x.shape[-1], dy.shape[-1]), x.dtype)
    return lax.fori_loop(0, len(xs), lambda i, total: total + some(xs[i], dys[i]), nothing)


def _transposed_in_x(
    product: Callable[..., jax.Array], shape: _Shape, dy: jax.Array, kernel: jax.Array
) -> jax.Array:
    x = jax.ShapeDtypeStruct((len(dy), shape.height, shape.width, kernel.shape[2]), dy.dtype)
    return jax.linear_transpose(lambda x: product(shape, x, kernel), x)(dy)[0]


def _transposed_in_kernel(
    product: Callable[..., jax.Array], shape: _Shape, x: jax.Array, dy: jax.Array
) -> jax.Array:
    size = (shape.size, shape.size, x.shape[-1], dy.shape[-1])
    kernel = jax.ShapeDtypeStruct(size, x.dtype)
    return jax.linear_transpose(lambda kernel: product(shape, x, kernel), kernel)(dy)[0]


SMALL_IMAGE = 16
"""Windows of an image up to which patches times a matrix is faster than XLA's convolution."""


def _patches(shape: _Shape, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution as one product of all windows with the kernel."""
    pad = (shape.padding,) * 2
    x = jnp.pad(x, ((0, 0), pad, pad, (0, 0)))
    step, (height, width) = shape.stride, shape.windows
    windows = [
        x[:, i : i + step * height : step, j : j + step * width : step]
        for i, j in itertools.product(range(shape.size), repeat=2)
    ]
    return jnp.einsum(
        "...k,ko->...o", jnp.concatenate(windows, -1), kernel.reshape(-1, kernel.shape[-1])
    )


def _by_size(
    small: Callable[..., jax.Array], large: Callable[..., jax.Array]
) -> Callable[..., jax.Array]:
    def product(shape: _Shape, a: jax.Array, b: jax.Array) -> jax.Array:
        chosen = small if math.prod(shape.windows) <= SMALL_IMAGE else large
        return chosen(shape, a, b)

    return product


_of_output = _product(_by_size(_patches, _plain), _plain)
_of_x = _product(
    _by_size(partial(_transposed_in_x, _patches), _x_gradient), partial(_transposed_in_x, _plain)
)
_of_kernel = _product(
    _by_size(partial(_transposed_in_kernel, _patches), _kernel_gradient),
    partial(_transposed_in_kernel, _plain),
)

_output = jax.custom_vjp(_of_output, nondiff_argnums=(0,))
_grad_x = jax.custom_vjp(_of_x, nondiff_argnums=(0,))
_grad_kernel = jax.custom_vjp(_of_kernel, nondiff_argnums=(0,))

_output.defvjp(
    lambda shape, x, kernel: (_output(shape, x, kernel), (x, kernel)),
    lambda shape, saved, dy: (_grad_x(shape, dy, saved[1]), _grad_kernel(shape, saved[0], dy)),
)
_grad_x.defvjp(
    lambda shape, dy, kernel: (_grad_x(shape, dy, kernel), (dy, kernel)),
    lambda shape, saved, dx: (_output(shape, dx, saved[1]), _grad_kernel(shape, dx, saved[0])),
)
_grad_kernel.defvjp(
    lambda shape, x, dy: (_grad_kernel(shape, x, dy), (x, dy)),
    lambda shape, saved, dk: (_grad_x(shape, saved[1], dk), _output(shape, saved[0], dk)),
)


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
