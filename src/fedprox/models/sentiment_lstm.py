"""FedProx's model for tweets."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedprox.errors import require_whole
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, greatest_symbol, sequence_length
from fedprox.models.layers import Dense
from fedprox.models.recurrent import LSTM, Embedding


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
    features = federation.features
    if np.issubdtype(features.dtype, np.floating) and len(features.shape) == 2:
        words, width = 0, features.shape[1]
    else:
        sequence_length(name, federation)
        words, width = 1 + max(greatest_symbol(name, rows) for rows in federation.parts), embedding
    return Model.from_nnx(lambda rngs: SentimentLSTM(words, width, hidden, classes, rngs=rngs))
