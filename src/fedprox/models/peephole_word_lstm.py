"""The next-word model of FedAvg's large-scale experiment."""

from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import symbol_count
from fedprox.models.recurrent import NextSymbol


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
