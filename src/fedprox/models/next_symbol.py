"""Models that predict the next symbol of a text: FedProx's and FedDyn's, and FedAvg's two."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from fedprox.errors import require_one_of, require_whole
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import symbol_count
from fedprox.models.layers import Dense, torch_default
from fedprox.models.recurrent import LSTM, Embedding


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
