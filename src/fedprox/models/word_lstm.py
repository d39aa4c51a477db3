"""The next-word model of FedAvg's large-scale experiment."""

from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import symbol_count
from fedprox.models.recurrent import NextSymbol


def word_lstm(federation: Federation) -> Model:
    """An LSTM of 256 over words with vectors of 192, a prediction at every position.

    McMahan et al. 2017 (section 3, "Large-scale LSTM experiments") say 10,000 words, input and
    output embeddings of dimension 192 and 4,950,544 parameters. That is what 10,000 words in all
    (those that stand for unknown ones included), a cell with peepholes and an output layer right
    from its 256 units have; outputs of dimension 192 would have fewer:

        10,000 x 192  +  1024 (192 + 256 + 1) + 3 x 256  +  257 x 10,000

    They do not say how it begins; here as TensorFlow's cells do: uniform kernels, zero biases, 1
    added to the bias of forget gates.

    Args:
        federation: Its features are words, (length,) integers (10 in the paper), with the next
            one as label of each position, or -1; as many words as classes.

    Raises:
        InputError: The features are no words, or the labels are not one for each.

    >>> import jax, numpy as np
    >>> from fedprox import Federation
    >>> text = np.arange(11)[None]
    >>> federation = Federation.from_arrays([(text[:, :-1], text[:, 1:])], classes=10_000)
    >>> model = word_lstm(federation)
    >>> shapes = jax.eval_shape(model.init, jax.random.key(0))
    >>> sum(a.size for a in jax.tree.leaves(shapes))
    4950544
    """
    symbols = symbol_count("word-lstm", federation, every_position=True)
    return Model.from_nnx(
        lambda rngs: NextSymbol(
            symbols, 192, 256, layers=1, every_position=True, peepholes=True, rngs=rngs
        )
    )
