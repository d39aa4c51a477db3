"""Recurrent layers formulated so that they run fast inside a compiled round.

Gates, with z_t = W_x' x_t + W_h' h_{t-1} + b split in four along its last axis, and p_i, p_f, p_o
zero for a cell without peepholes (Gers and Schmidhuber 2000, "Recurrent nets that time and count"):

    i = sigmoid(z_i + p_i c_{t-1})      f = sigmoid(z_f + p_f c_{t-1})      g = tanh(z_g)
    c_t = f c_{t-1} + i g               o = sigmoid(z_o + p_o c_t)          h_t = o tanh(c_t)

By default JAX accumulates the gradient of W_h step by step and reads a matrix at each step. Here
the backward pass stores dL/dz of all steps and computes each weight's gradient by one matrix
product after the loop. The products with the inputs, forwards and backwards, also cover all steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


class Embedding(nnx.Module):
    """A trained vector for each symbol 0, ..., V - 1.

    Plain indexing: its gradient is a scatter, on a CPU two to eight times faster than a product
    with one-hot rows, for 80 symbols as for 10,000.
    """

    def __init__(self, symbols: int, width: int, *, init: nnx.Initializer, rngs: nnx.Rngs) -> None:
        self.table = nnx.Param(init(rngs.params(), (symbols, width)))

    def __call__(self, ids: jax.Array) -> jax.Array:
        """(...) integers -> (..., d)."""
        return self.table[...][ids]


class LSTM(nnx.Module):
    """A layer of long short-term memory, which starts from zeros and returns every step.

    It has 4 h (d + h + 1) parameters for d inputs and h units, and 3 h more with peepholes. Both
    kernels are initialized as one matrix (d + h, 4 h), as in TensorFlow; peepholes start uniform on
    +-sqrt(3 / h), its default for a vector of h. `forget_bias` is a constant that is added to the
    forget gate's bias.
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        *,
        peepholes: bool = False,
        forget_bias: float = 1.0,
        kernel_init: nnx.Initializer,
        bias_init: nnx.Initializer = nnx.initializers.zeros,
        rngs: nnx.Rngs,
    ) -> None:
        kernel = kernel_init(rngs.params(), (inputs + units, 4 * units))
        self.input_kernel = nnx.Param(kernel[:inputs])
        self.hidden_kernel = nnx.Param(kernel[inputs:])
        self.bias = nnx.Param(bias_init(rngs.params(), (4 * units,)))
        if peepholes:
            limit = (3 / units) ** 0.5
            self.peepholes = nnx.Param(
                jax.random.uniform(rngs.params(), (3, units), minval=-limit, maxval=limit)
            )
        self.units, self.forget_bias = units, forget_bias

    def __call__(self, x: jax.Array) -> jax.Array:
        """Steps first: (length, B, d) -> (length, B, h)."""
        # in the type of the parameters, which mixed precision changes
        added = jnp.array([0.0, self.forget_bias, 0.0, 0.0], self.bias[...].dtype)
        forget = jnp.repeat(added, self.units)
        peepholes = self.peepholes[...] if hasattr(self, "peepholes") else None
        kernels = self.input_kernel[...], self.hidden_kernel[...]
        return lstm(x, *kernels, self.bias[...] + forget, peepholes)


@jax.custom_vjp
def lstm(
    x: jax.Array,
    input_kernel: jax.Array,
    hidden_kernel: jax.Array,
    bias: jax.Array,
    peepholes: jax.Array | None,
) -> jax.Array:
    """h_1, ..., h_length from h_0 = c_0 = 0, with the gates in the order i, f, g, o.

    It can be differentiated in reverse mode any number of times, but not in forward mode.

    Inputs are (length, B, d), W_x (d, 4 h), W_h (h, 4 h), b (4 h,), the peepholes p_i, p_f, p_o (3,
    h) or None for a cell without, and the outputs (length, B, h).
    """
    return _steps(x, input_kernel, hidden_kernel, bias, peepholes)[0]


def _steps(
    x: jax.Array,
    input_kernel: jax.Array,
    hidden_kernel: jax.Array,
    bias: jax.Array,
    peepholes: jax.Array | None,
) -> tuple[jax.Array, ...]:
    """h, c, i, f, g, o of all steps, each (length, B, h)."""
    length, size, _ = x.shape
    z = (x.reshape(length * size, -1) @ input_kernel).reshape(length, size, -1)
    units = len(hidden_kernel)
    halves = jnp.repeat(jnp.array([0.5, 0.5, 1.0, 0.5], z.dtype), units)

    def gates(z: jax.Array) -> list[jax.Array]:
        """The gates i, f, g, and o if its z is given too.

        sigmoid(z) = 1/2 + tanh(z/2)/2: one tanh of all gates is one fast loop on a CPU.
        """
        half = halves[: z.shape[1]]
        return jnp.split(jnp.tanh(half * z) * half + (1 - half), z.shape[1] // units, axis=1)

    def step(state: tuple[jax.Array, jax.Array], z: jax.Array) -> Any:
        h, c = state
        z = z + h @ hidden_kernel + bias
        if peepholes is None:
            i, f, g, o = gates(z)
            c = f * c + i * g
        else:
            z_i, z_f, z_g, z_o = jnp.split(z, 4, axis=1)
            z_i, z_f = z_i + peepholes[0] * c, z_f + peepholes[1] * c
            i, f, g = gates(jnp.concatenate([z_i, z_f, z_g], axis=1))
            c = f * c + i * g
            o = jax.nn.sigmoid(z_o + peepholes[2] * c)
        h = o * jnp.tanh(c)
        return (h, c), (h, c, i, f, g, o)

    zeros = jnp.zeros((size, units), z.dtype)
    return jax.lax.scan(step, (zeros, zeros), z)[1]


def _forward(
    x: jax.Array,
    input_kernel: jax.Array,
    hidden_kernel: jax.Array,
    bias: jax.Array,
    peepholes: jax.Array | None,
) -> tuple[jax.Array, Any]:
    steps = _steps(x, input_kernel, hidden_kernel, bias, peepholes)
    return steps[0], (steps, x, input_kernel, hidden_kernel, peepholes)


def _backward(saved: Any, d_hs: jax.Array) -> tuple[jax.Array | None, ...]:
    """Gradients in x, W_x, W_h, b and the peepholes, from those in h_1, ..., h_length."""
    (hs, cs, *gates), x, input_kernel, hidden_kernel, peepholes = saved
    h_before, c_before = (jnp.concatenate([jnp.zeros_like(a[:1]), a[:-1]]) for a in (hs, cs))
    back = hidden_kernel.T

    def step(state: tuple[jax.Array, jax.Array], at: tuple[jax.Array, ...]) -> Any:
        d_h, d_c = state
        d_later, c, before, i, f, g, o = at
        d_h = d_h + d_later
        t = jnp.tanh(c)
        d_o = d_h * t * o * (1 - o)
        d_c = d_c + d_h * o * (1 - t * t)
        if peepholes is not None:
            d_c = d_c + d_o * peepholes[2]
        d_i, d_f, d_g = d_c * g * i * (1 - i), d_c * before * f * (1 - f), d_c * i * (1 - g * g)
        d_z = jnp.concatenate([d_i, d_f, d_g, d_o], axis=-1)
        d_c = d_c * f
        if peepholes is not None:
            d_c = d_c + d_i * peepholes[0] + d_f * peepholes[1]
        return (d_z @ back, d_c), d_z

    zeros = jnp.zeros_like(cs[0])
    d_zs = jax.lax.scan(step, (zeros, zeros), (d_hs, cs, c_before, *gates), reverse=True)[1]
    flat = d_zs.reshape(-1, d_zs.shape[-1])

    def transposed(a: jax.Array) -> jax.Array:
        return a.reshape(-1, a.shape[-1]).T

    d_peepholes = None
    if peepholes is not None:
        d_i, d_f, _, d_o = jnp.split(d_zs, 4, axis=-1)
        seen = ((d_i, c_before), (d_f, c_before), (d_o, cs))
        d_peepholes = jnp.stack([jnp.sum(d * c, axis=(0, 1)) for d, c in seen])
    return (
        (flat @ transposed(input_kernel)).reshape(x.shape),
        transposed(x) @ flat,
        transposed(h_before) @ flat,
        flat.sum(axis=0),
        d_peepholes,
    )


lstm.defvjp(_forward, _backward)
