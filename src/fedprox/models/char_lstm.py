"""The next-character model of FedProx and FedDyn."""

from typing import Literal

from fedprox.errors import require_one_of, require_whole
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import symbol_count
from fedprox.models.recurrent import NextSymbol


def char_lstm(
    federation: Federation,
    *,
    hidden: int = 100,
    initial: Literal["glorot", "torch"] = "glorot",
) -> Model:
    """Two layers of LSTM over characters with vectors of 8; the last step predicts the next one.

    Li et al. 2020 (appendix C.1) and Acar et al. 2021 (appendix) use it on Shakespeare: 80
    characters in, one of 80 out. It has 132,720 parameters with `hidden = 100`, 817,872 with 256.

    Args:
        federation: Its features are characters, (length,) integers; as many characters as classes.
        hidden: Units of each layer: 100 by both papers and FedDyn's code, 256 in FedProx's code.
        initial: "glorot": TensorFlow's defaults, with which FedProx's code begins (forget gates
            have 1 added to their bias); "torch": torch's, with which FedDyn's does. torch keeps
            two biases for each gate, which learn twice as fast as the one here.

    Raises:
        InputError: The features are no characters, or an option is not as above.

    >>> import jax, numpy as np
    >>> from fedprox import Federation
    >>> federation = Federation.from_arrays([(np.zeros((1, 80), int), [79])])
    >>> model = char_lstm(federation)
    >>> sum(a.size for a in jax.tree.leaves(model.init(jax.random.key(0))))
    132720
    """
    symbols = symbol_count("char-lstm", federation, every_position=False)
    require_whole("model.hidden", hidden)
    require_one_of("model.initial", initial, ("glorot", "torch"))
    return Model.from_nnx(
        lambda rngs: NextSymbol(
            symbols, 8, hidden, layers=2, every_position=False, initial=initial, rngs=rngs
        )
    )
