"""The papers' models, one file each. Experiment files name those of `MODELS`."""

from collections.abc import Callable

from fedprox.model import Model
from fedprox.models.char_lstm import char_lstm
from fedprox.models.char_lstm_fedavg import char_lstm_fedavg
from fedprox.models.cifar_cnn import cifar_cnn
from fedprox.models.feddyn_cnn import feddyn_cnn
from fedprox.models.logistic import logistic
from fedprox.models.mlp import mlp
from fedprox.models.mnist_cnn import mnist_cnn
from fedprox.models.resnet18 import resnet18
from fedprox.models.sentiment_lstm import sentiment_lstm
from fedprox.models.word_lstm import word_lstm

MODELS: dict[str, Callable[..., Model]] = {
    "char-lstm": char_lstm,
    "char-lstm-fedavg": char_lstm_fedavg,
    "cifar-cnn": cifar_cnn,
    "feddyn-cnn": feddyn_cnn,
    "logistic": logistic,
    "mlp": mlp,
    "mnist-cnn": mnist_cnn,
    "resnet18": resnet18,
    "sentiment-lstm": sentiment_lstm,
    "word-lstm": word_lstm,
}

__all__ = [
    "MODELS",
    "char_lstm",
    "char_lstm_fedavg",
    "cifar_cnn",
    "feddyn_cnn",
    "logistic",
    "mlp",
    "mnist_cnn",
    "resnet18",
    "sentiment_lstm",
    "word_lstm",
]
