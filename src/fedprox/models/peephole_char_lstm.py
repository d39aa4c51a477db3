"""The next-character model of FedAvg."""

from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import symbol_count
from fedprox.models.recurrent import NextSymbol


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
