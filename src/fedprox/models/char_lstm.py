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
