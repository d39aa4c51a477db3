"""Data sets, one file each; `DATASETS` is what experiment files can name."""

from collections.abc import Callable

from fedprox.datasets.cifar import cifar_10, cifar_100
from fedprox.datasets.emnist import emnist_l
from fedprox.datasets.femnist import femnist
from fedprox.datasets.leaf import leaf
from fedprox.datasets.mnist import mnist
from fedprox.datasets.synthetic import synthetic, synthetic_feddyn
from fedprox.federation import Federation

DATASETS: dict[str, Callable[..., Federation]] = {
    "synthetic": synthetic,
    "synthetic-feddyn": synthetic_feddyn,
    "mnist": mnist,
    "femnist": femnist,
    "emnist-l": emnist_l,
    "cifar-10": cifar_10,
    "cifar-100": cifar_100,
    "leaf": leaf,
}

__all__ = [
    "DATASETS",
    "cifar_10",
    "cifar_100",
    "emnist_l",
    "femnist",
    "leaf",
    "mnist",
    "synthetic",
    "synthetic_feddyn",
]
