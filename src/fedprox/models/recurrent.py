"""Recurrent layers, fast inside a compiled round, and the papers' models of text and tweets.

Gates, with z_t = W_x' x_t + W_h' h_{t-1} + b split in four along its last axis, and p_i, p_f, p_o
zero for a cell without peepholes (Gers and Schmidhuber 2000, "Recurrent nets that time and count"):

    i = sigmoid(z_i + p_i c_{t-1})      f = sigmoid(z_f + p_f c_{t-1})      g = tanh(z_g)
    c_t = f c_{t-1} + i g               o = sigmoid(z_o + p_o c_t)          h_t = o tanh(c_t)

By default JAX accumulates the gradient of W_h step by step and reads a matrix at each step. Here
the backward pass stores dL/dz of all steps and computes each weight's gradient by one matrix
product after the loop. The products with the inputs, forwards and backwards, also cover all steps.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedprox.errors import require_one_of, require_whole
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import (
    class_count,
    greatest_symbol,
    one_input,
    sequence_length,
    symbol_count,
)
from fedprox.models.layers import Dense, torch_default


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
        bias = self.bias[...] + forget
        peepholes = self.peepholes[...] if hasattr(self, "peepholes") else bias[:0].reshape(0, 1)
        return lstm(x, self.input_kernel[...], self.hidden_kernel[...], bias, peepholes)


@jax.custom_vjp
def lstm(
    x: jax.Array,
    input_kernel: jax.Array,
    hidden_kernel: jax.Array,
    bias: jax.Array,
    peepholes: jax.Array,
) -> jax.Array:
    """h_1, ..., h_length from h_0 = c_0 = 0, with the gates in the order i, f, g, o.

    It can be differentiated in reverse mode any number of times, but not in forward mode.

    Inputs are (length, B, d), W_x (d, 4 h), W_h (h, 4 h) and b (4 h,). The peepholes p_i, p_f, p_o
    are (3, h), or an empty array for a cell without, and the outputs (length, B, h).
    """
    return _steps(x, input_kernel, hidden_kernel, bias, peepholes)[0]


def _steps(
    x: jax.Array,
    input_kernel: jax.Array,
    hidden_kernel: jax.Array,
    bias: jax.Array,
    peepholes: jax.Array,
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
        if not len(peepholes):
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
    peepholes: jax.Array,
) -> tuple[jax.Array, Any]:
    steps = _steps(x, input_kernel, hidden_kernel, bias, peepholes)
    return steps[0], (steps, x, input_kernel, hidden_kernel, peepholes)


def _backward(saved: Any, d_hs: jax.Array) -> tuple[jax.Array, ...]:
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
        if len(peepholes):
            d_c = d_c + d_o * peepholes[2]
        d_i, d_f, d_g = d_c * g * i * (1 - i), d_c * before * f * (1 - f), d_c * i * (1 - g * g)
        d_z = jnp.concatenate([d_i, d_f, d_g, d_o], axis=-1)
        d_c = d_c * f
        if len(peepholes):
            d_c = d_c + d_i * peepholes[0] + d_f * peepholes[1]
        return (d_z @ back, d_c), d_z

    zeros = jnp.zeros_like(cs[0])
    d_zs = jax.lax.scan(step, (zeros, zeros), (d_hs, cs, c_before, *gates), reverse=True)[1]
    flat = d_zs.reshape(-1, d_zs.shape[-1])

    def transposed(a: jax.Array) -> jax.Array:
        return a.reshape(-1, a.shape[-1]).T

    d_peepholes = peepholes
    if len(peepholes):
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


class NextSymbol(nnx.Module):
    """Embedding, LSTM layers, and an output for each of V symbols, the next one.

    It predicts the symbol after each position, or only after the last. Initial values are "glorot"
    as TensorFlow's: kernels and embedding uniform on +-sqrt(6 / (rows + columns)), biases zero,
    with 1 added for forget gates. Or "torch": embedding normal with variance 1, all else uniform on
    +-1 / sqrt(units); torch has two biases for each gate, and the one here starts as their sum.
    """

    def __init__(  # the settings of the papers' three recurrent models
        self,
        symbols: int,
        width: int,
        units: int,
        *,
        layers: int,
        every_position: bool,
        peepholes: bool = False,
        initial: str = "glorot",
        rngs: nnx.Rngs,
    ) -> None:
        uniform = torch_default(units)

        def sum_of_two(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
            return uniform(key, (2, *shape), dtype).sum(axis=0)

        table = kernel = nnx.initializers.glorot_uniform()
        bias = zeros = nnx.initializers.zeros
        forget_bias, lstm_bias = 1.0, zeros
        if initial == "torch":
            table, kernel, bias = nnx.initializers.normal(1.0), uniform, uniform
            forget_bias, lstm_bias = 0.0, sum_of_two
        self.embedding = Embedding(symbols, width, init=table, rngs=rngs)
        self.layers = nnx.List(
            LSTM(
                inputs,
                units,
                peepholes=peepholes,
                forget_bias=forget_bias,
                kernel_init=kernel,
                bias_init=lstm_bias,
                rngs=rngs,
            )
            for inputs in (width, *[units] * (layers - 1))
        )
        self.output = Dense(units, symbols, kernel_init=kernel, bias_init=bias, rngs=rngs)
        self.every_position = every_position

    def __call__(self, ids: jax.Array) -> jax.Array:
        """(B, length) -> (B, V), or (B, length, V) for every position."""
        steps = self.embedding(ids.T)
        for layer in self.layers:
            steps = layer(steps)
        if not self.every_position:
            return self.output(steps[-1])
        steps = jnp.swapaxes(steps, 0, 1)
        return self.output(steps.reshape(-1, steps.shape[-1])).reshape(*ids.shape, -1)


def char_lstm(
    federation: Federation,
    *,
    hidden: int = 100,
    initial: Literal["glorot", "torch"] = "glorot",
) -> Model:
    """A two-layer LSTM that predicts the character after a sequence of characters.

    Characters are embedded in 8 dimensions, and the last step of the second layer predicts the next
    character. Both papers use it on Shakespeare, with 80 characters in and one of 80 out: 132,720
    parameters with `hidden=100`, 817,872 with 256.

    Args:
        federation: Clients whose features are characters, int (length,), from 0 to C - 1 for C
            classes.
        hidden: Units of each layer, at least 1: 100 in both papers and FedDyn's code, 256 in
            FedProx's code.
        initial: Initial values: "glorot" for TensorFlow's defaults, as FedProx's code (1 is added
            to the biases of forget gates); "torch" for torch's, as FedDyn's code. torch has two
            biases for each gate, which together learn twice as fast as the one here.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features are not characters, or an option has another value.

    Example:
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> federation = fp.Federation.from_arrays([(np.zeros((1, 80), int), [79])])
        >>> model = fp.models.char_lstm(federation)
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        132720

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, appendix C.1; and
        Acar et al., `Federated Learning Based on Dynamic Regularization
        <https://arxiv.org/abs/2111.04263>`_, ICLR 2021, appendix A.2.
    """
    symbols = symbol_count("char-lstm", federation, every_position=False)
    require_whole("model.hidden", hidden)
    require_one_of("model.initial", initial, ("glorot", "torch"))
    return Model.from_nnx(
        lambda rngs: NextSymbol(
            symbols, 8, hidden, layers=2, every_position=False, initial=initial, rngs=rngs
        )
    )


def peephole_char_lstm(federation: Federation) -> Model:
    """A two-layer LSTM with peepholes that predicts the next character at every position.

    Characters are embedded in 8 dimensions; both layers have 256 units and peephole connections.
    For 258 symbols (bytes, begin and end of a line) it has the paper's number of parameters,
    866,578::

        258 x 8  +  1024 (8 + 256 + 1) + 3 x 256  +  1024 (256 + 256 + 1) + 3 x 256  +  257 x 258

    The paper does not give initial values. These are TensorFlow's defaults: uniform kernels and
    zero biases, with 1 added to the biases of forget gates.

    Args:
        federation: Clients whose features are characters, int (length,), from 0 to C - 1 for C
            classes, and whose labels are the next character at each position, int (length,), or -1.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features are not characters, or a position has no label entry.

    Example:
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> text = np.arange(81)[None]
        >>> federation = fp.Federation.from_arrays([(text[:, :-1], text[:, 1:])], classes=258)
        >>> model = fp.models.peephole_char_lstm(federation)
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        866578

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3.
    """
    symbols = symbol_count("peephole-char-lstm", federation, every_position=True)
    return Model.from_nnx(
        lambda rngs: NextSymbol(
            symbols, 8, 256, layers=2, every_position=True, peepholes=True, rngs=rngs
        )
    )


def peephole_word_lstm(federation: Federation) -> Model:
    """An LSTM with peepholes that predicts the next word at every position.

    Words are embedded in 192 dimensions; the one layer has 256 units and peephole connections. For
    10,000 words, the unknown word included, it has the paper's number of parameters, 4,950,544::

        10,000 x 192  +  1024 (192 + 256 + 1) + 3 x 256  +  257 x 10,000

    The paper speaks of output embeddings of dimension 192, which would have fewer parameters than
    an output layer on the 256 units. It does not give initial values. These are TensorFlow's
    defaults: uniform kernels and zero biases, with 1 added to the biases of forget gates.

    Args:
        federation: Clients whose features are words, int (length,), from 0 to C - 1 for C classes,
            and whose labels are the next word at each position, int (length,), or -1. The paper
            has a length of 10.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features are not words, or a position has no label entry.

    Example:
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> text = np.arange(11)[None]
        >>> federation = fp.Federation.from_arrays([(text[:, :-1], text[:, 1:])], classes=10_000)
        >>> model = fp.models.peephole_word_lstm(federation)
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        4950544

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from Decentralized Data
        <https://arxiv.org/abs/1602.05629>`_, AISTATS 2017, section 3 (the
        large-scale LSTM experiments).
    """
    symbols = symbol_count("peephole-word-lstm", federation, every_position=True)
    return Model.from_nnx(
        lambda rngs: NextSymbol(
            symbols, 192, 256, layers=1, every_position=True, peepholes=True, rngs=rngs
        )
    )


class SentimentLSTM(nnx.Module):
    """Two layers of LSTM over word vectors, trained ones of some words or the features themselves.

    A dense layer of 30 and an output for each class follow.
    """

    def __init__(
        self, words: int, width: int, hidden: int, classes: int, *, rngs: nnx.Rngs
    ) -> None:
        init = nnx.initializers.glorot_uniform()
        if words:
            self.embedding = Embedding(words, width, init=init, rngs=rngs)
        self.first = LSTM(width, hidden, kernel_init=init, rngs=rngs)
        self.second = LSTM(hidden, hidden, kernel_init=init, rngs=rngs)
        self.dense = Dense(hidden, 30, kernel_init=init, rngs=rngs)
        self.output = Dense(30, 1 if classes == 2 else classes, kernel_init=init, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Vectors (B, length, d) or words (B, length) -> (B, classes)."""
        steps = jnp.swapaxes(x, 0, 1)
        if hasattr(self, "embedding"):
            steps = self.embedding(steps)
        outputs = self.output(self.dense(self.second(self.first(steps))[-1]))
        return outputs if outputs.shape[1] > 1 else jnp.pad(outputs, ((0, 0), (1, 0)))


def sentiment_lstm(federation: Federation, *, hidden: int = 256, embedding: int = 300) -> Model:
    """A two-layer LSTM that classifies a tweet by its words.

    A dense layer of 30 units without activation precedes the output, as in the authors' code. Two
    classes share one output z, here (0, z), whose softmax cross-entropy is the code's sigmoid
    cross-entropy. With word vectors of 300 numbers, which are not trained, it has 1,103,421
    parameters, or 243,861 with `hidden=100`. Initial values are TensorFlow's defaults, as in the
    code: kernels and embedding uniform on +-sqrt(6 / (rows + columns)) and zero biases, with 1
    added to the biases of forget gates.

    Args:
        federation: Clients whose features are word vectors, float (length, d), or words, int
            (length,), for which the model trains an embedding; and classes. The paper has a length
            of 25.
        hidden: Units of each LSTM layer, at least 1: 256 in the paper, 100 in its code.
        embedding: Dimensions of a trained embedding, at least 1; not used for word vectors.

    Returns:
        A model for :func:`fedprox.simulate`.

    Raises:
        InputError: If the features are neither word vectors nor words, a tweet has not one class,
            or an option is out of range.

    Example:
        >>> import jax, numpy as np
        >>> import fedprox as fp
        >>> federation = fp.Federation.from_arrays([(np.zeros((2, 25, 300)), [0, 1])])
        >>> model = fp.models.sentiment_lstm(federation, hidden=100)
        >>> sum(a.size for a in jax.tree.leaves(model.shapes))
        243861

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, appendix C.1.
    """
    name = "sentiment-lstm"
    classes = class_count(name, federation)
    require_whole("model.hidden", hidden)
    require_whole("model.embedding", embedding)
    features = one_input(name, federation)
    if np.issubdtype(features.dtype, np.floating) and len(features.shape) == 2:
        words, width = 0, features.shape[1]
    else:
        sequence_length(name, federation)
        words, width = 1 + max(greatest_symbol(name, rows) for rows in federation.parts), embedding
    return Model.from_nnx(lambda rngs: SentimentLSTM(words, width, hidden, classes, rngs=rngs))
