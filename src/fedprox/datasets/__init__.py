"""Data sets, one file each. Experiment files name those of `DATASETS`."""

from collections.abc import Callable

from fedprox.datasets.catalogue import CATALOGUE
from fedprox.datasets.cifar import cifar_10, cifar_100
from fedprox.datasets.emnist import emnist_l
from fedprox.datasets.femnist import femnist
from fedprox.datasets.huggingface import hugging_face
from fedprox.datasets.leaf import leaf
from fedprox.datasets.mapped import mapped, write_mapped
from fedprox.datasets.mnist import mnist
from fedprox.datasets.posts import posts
from fedprox.datasets.rotated import rotated
from fedprox.datasets.sent140 import sent140
from fedprox.datasets.shakespeare import shakespeare
from fedprox.datasets.synthetic import synthetic, synthetic_feddyn
from fedprox.datasets.text import tokenizer
from fedprox.federation import Federation

DATASETS: dict[str, Callable[..., Federation]] = {
    name: entry.load for name, entry in CATALOGUE.items()
}

__all__ = [
    "CATALOGUE",
    "DATASETS",
    "cifar_10",
    "cifar_100",
    "emnist_l",
    "femnist",
    "hugging_face",
    "leaf",
    "mapped",
    "mnist",
    "posts",
    "rotated",
    "sent140",
    "shakespeare",
    "synthetic",
    "synthetic_feddyn",
    "tokenizer",
    "write_mapped",
]
