"""The papers' models, one file each. Experiment files name those of `MODELS`."""

from collections.abc import Callable

from fedprox.model import Model
from fedprox.models.bert import bert
from fedprox.models.char_lstm import char_lstm
from fedprox.models.cifar_cnn import cifar_cnn
from fedprox.models.logistic import logistic
from fedprox.models.mlp import mlp
from fedprox.models.mnist_cnn import mnist_cnn
from fedprox.models.peephole_char_lstm import peephole_char_lstm
from fedprox.models.peephole_word_lstm import peephole_word_lstm
from fedprox.models.resnet18 import resnet18
from fedprox.models.sentiment_lstm import sentiment_lstm
from fedprox.models.wide_lenet import wide_lenet

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
