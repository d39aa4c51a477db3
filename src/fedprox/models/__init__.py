"""The papers' models. Experiment files name those of `MODELS`."""

from collections.abc import Callable

from fedprox.model import Model
from fedprox.models.bert import bert
from fedprox.models.convolutional import cifar_cnn, mnist_cnn, wide_lenet
from fedprox.models.dense import logistic, mlp
from fedprox.models.next_symbol import char_lstm, peephole_char_lstm, peephole_word_lstm
from fedprox.models.resnet18 import resnet18
from fedprox.models.sentiment_lstm import sentiment_lstm

MODELS: dict[str, Callable[..., Model]] = {
    "bert": bert,
    "char-lstm": char_lstm,
    "cifar-cnn": cifar_cnn,
    "logistic": logistic,
    "mlp": mlp,
    "mnist-cnn": mnist_cnn,
    "peephole-char-lstm": peephole_char_lstm,
    "peephole-word-lstm": peephole_word_lstm,
    "resnet18": resnet18,
    "sentiment-lstm": sentiment_lstm,
    "wide-lenet": wide_lenet,
}

__all__ = [
    "MODELS",
    "bert",
    "char_lstm",
    "cifar_cnn",
    "logistic",
    "mlp",
    "mnist_cnn",
    "peephole_char_lstm",
    "peephole_word_lstm",
    "resnet18",
    "sentiment_lstm",
    "wide_lenet",
]
