"""Data sets, one file each; `DATASETS` is what experiment files can name."""

from collections.abc import Callable

from fedprox.datasets.leaf import leaf
from fedprox.datasets.mnist import mnist
from fedprox.datasets.synthetic import synthetic, synthetic_feddyn
from fedprox.federation import Federation

DATASETS: dict[str, Callable[..., Federation]] = {
    "synthetic": synthetic,
    "synthetic-feddyn": synthetic_feddyn,
    "mnist": mnist,
    "leaf": leaf,
}

__all__ = ["DATASETS", "leaf", "mnist", "synthetic", "synthetic_feddyn"]
