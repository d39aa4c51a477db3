"""Data sets, one file each; `DATASETS` is what experiment files can name."""

from collections.abc import Callable

from fedprox.datasets.catalogue import CATALOGUE
from fedprox.datasets.femnist import femnist
from fedprox.datasets.huggingface import hugging_face
from fedprox.datasets.leaf import leaf
from fedprox.datasets.mnist import mnist
from fedprox.datasets.synthetic import synthetic, synthetic_feddyn
from fedprox.federation import Federation

DATASETS: dict[str, Callable[..., Federation]] = {
    name: entry.load for name, entry in CATALOGUE.items()
}

__all__ = [
    "CATALOGUE",
    "DATASETS",
    "femnist",
    "hugging_face",
    "leaf",
    "mnist",
    "synthetic",
    "synthetic_feddyn",
]
