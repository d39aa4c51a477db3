"""The tweet model of FedProx."""

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
    """Two layers of LSTM over word vectors, a dense layer of 30, an output for each class.

    Args:
        words: Number of words with a trained vector; 0 where features are vectors.
        width: Numbers of a vector.
        hidden: Units of each LSTM.
        classes: Number of classes.
        rngs: Random keys.
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
    """Two layers of LSTM over the words of a tweet; the last step says how it sounds.

    Li et al. 2020 (appendix C.1) read 25 tokens as GloVe vectors of 300 that are not trained. As
    in their code, a dense layer of 30 without activation stands before the output, and two classes
    have one output z: here (0, z), for which softmax and cross-entropy are the code's sigmoid and
    its cross-entropy, step by step. With `hidden = 256` and such vectors it has 1,103,421
    parameters, with 100 243,861.

    Args:
        federation: Its features are vectors, (length, d) floating-point numbers, or words,
            (length,) integers, for which vectors are trained.
        hidden: Units of each LSTM: 256 by the paper, 100 in its code.
        embedding: Numbers of a trained vector; vectors among the features are as wide as they are.

    Kernels and embedding begin uniform on +-sqrt(6 / (rows + columns)), biases at zero, and forget
    gates have 1 added to theirs: TensorFlow's defaults, with which the code begins.

    Raises:
        InputError: The features are neither vectors nor words, the labels are not one class for
            each tweet, or an option is not a whole number of at least 1.

    >>> from fedprox import Federation
    >>> tweets = np.zeros((2, 25, 300), np.float32)
    >>> model = sentiment_lstm(Federation.from_arrays([(tweets, [0, 1])]), hidden=100)
    >>> sum(a.size for a in jax.tree.leaves(model.init(jax.random.key(0))))
    243861
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
