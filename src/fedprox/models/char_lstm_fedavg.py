"""The next-character model of FedAvg."""

from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import symbol_count
from fedprox.models.recurrent import NextSymbol


def char_lstm_fedavg(federation: Federation) -> Model:
    """Two layers of LSTM of 256 over characters with vectors of 8, a prediction at every position.

    McMahan et al. 2017 (section 3) say 866,578 parameters. That is what 258 symbols (the bytes,
    begin and end of a line) and cells with peepholes have:

        258 x 8  +  1024 (8 + 256 + 1) + 3 x 256  +  1024 (256 + 256 + 1) + 3 x 256  +  257 x 258

    They do not say how it begins; here as TensorFlow's cells do: uniform kernels, zero biases, 1
    added to the bias of forget gates.

    Args:
        federation: Its features are characters, (length,) integers, with the next one as label of
            each position; as many characters as classes.

    Raises:
        InputError: The features are no characters, or the labels are not one for each.

    >>> import jax, numpy as np
    >>> from fedprox import Federation
    >>> text = np.arange(81)[None]
    >>> federation = Federation.from_arrays([(text[:, :-1], text[:, 1:])], classes=258)
    >>> model = char_lstm_fedavg(federation)
    >>> sum(a.size for a in jax.tree.leaves(model.init(jax.random.key(0))))
    866578
    """
    symbols = symbol_count("char-lstm-fedavg", federation, every_position=True)
    return Model.from_nnx(
        lambda rngs: NextSymbol(
            symbols, 8, 256, layers=2, every_position=True, peepholes=True, rngs=rngs
        )
    )
