"""The papers' models."""

from collections.abc import Callable

from fedprox.model import Model
from fedprox.models.bert import bert
from fedprox.models.convolutional import cifar_cnn, mnist_cnn, resnet18, wide_lenet
from fedprox.models.dense import logistic, mlp
from fedprox.models.recurrent import (
    char_lstm,
    peephole_char_lstm,
    peephole_word_lstm,
    sentiment_lstm,
)

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

MODELS: dict[str, Callable[..., Model]] = {
    name.replace("_", "-"): globals()[name] for name in __all__ if name != "MODELS"
}
"""The models by their names in experiment files."""
