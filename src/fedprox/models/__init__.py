"""The papers' models, one file each; `MODELS` is what experiment files can name."""

from collections.abc import Callable

from fedprox.model import Model
from fedprox.models.cifar_cnn import cifar_cnn
from fedprox.models.feddyn_cnn import feddyn_cnn
from fedprox.models.logistic import logistic
from fedprox.models.mlp import mlp
from fedprox.models.mnist_cnn import mnist_cnn
from fedprox.models.resnet18 import resnet18

MODELS: dict[str, Callable[..., Model]] = {
    "cifar_cnn": cifar_cnn,
    "feddyn_cnn": feddyn_cnn,
    "logistic": logistic,
    "mlp": mlp,
    "mnist_cnn": mnist_cnn,
    "resnet18": resnet18,
}

__all__ = ["MODELS", "cifar_cnn", "feddyn_cnn", "logistic", "mlp", "mnist_cnn", "resnet18"]
