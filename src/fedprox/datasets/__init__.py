"""The data sets: what papers use and print of each, and the files that it reads.

To add a data set, write its module and enter it here, under the name for experiment files. Its
summary and its partitions are read from its function.
"""

import csv
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedprox.datasets import sources
from fedprox.datasets.cifar import cifar_10, cifar_100
from fedprox.datasets.handwriting import emnist_l, femnist, mnist
from fedprox.datasets.huggingface import from_partitioner, hugging_face
from fedprox.datasets.images import rotated
from fedprox.datasets.leaf import leaf, leaf_newcomers
from fedprox.datasets.mapped import mapped, write_mapped
from fedprox.datasets.posts import posts
from fedprox.datasets.sent140 import sent140
from fedprox.datasets.shakespeare import shakespeare
from fedprox.datasets.skewed import skewed_features
from fedprox.datasets.sources import Source
from fedprox.datasets.synthetic import synthetic, synthetic_feddyn
from fedprox.datasets.table import table
from fedprox.datasets.text import tokenizer
from fedprox.federation import Federation

__all__ = [
    "CATALOGUE",
    "DATASETS",
    "cifar_10",
    "cifar_100",
    "emnist_l",
    "femnist",
    "from_partitioner",
    "hugging_face",
    "leaf",
    "leaf_newcomers",
    "mapped",
    "mnist",
    "posts",
    "rotated",
    "sent140",
    "shakespeare",
    "skewed_features",
    "synthetic",
    "synthetic_feddyn",
    "table",
    "tokenizer",
    "write_mapped",
]


class DataSet(NamedTuple):
    """A data set of the catalogue.

    Attributes:
        load: The function that returns the federation; its arguments are the keys of `[data]`.
        papers: The papers that use the data set, by the name of their method.
        files: The files that it reads; none if it is generated, or read from a path.
    """

    load: Callable[..., Federation]
    papers: tuple[str, ...] = ()
    files: tuple[Source, ...] = ()

    @property
    def what(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.load) or "").partition("\n")[0].rstrip(".")

    @property
    def partitions(self) -> tuple[str, ...]:
        """The values of the function's argument `partition`.

        >>> CATALOGUE["mnist"].partitions[0]
        'power-law'
        """
        parameter = inspect.signature(self.load).parameters.get("partition")
        return literals(parameter.annotation) if parameter else ()

    @property
    def brought(self) -> str:
        """The option with which the user gives the data set's files, "" if there is none."""
        parameters = inspect.signature(self.load).parameters
        return next((option for option in ("path", "table") if option in parameters), "")


def literals(annotation: Any) -> tuple[str, ...]:
    """The strings of a Literal, or of a Literal inside a union."""
    inside = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return tuple(value for value in inside if isinstance(value, str))
    return tuple(value for part in inside for value in literals(part))


CATALOGUE: dict[str, DataSet] = {
    "synthetic": DataSet(synthetic, ("FedProx", "FedProx draft")),
    "synthetic-feddyn": DataSet(synthetic_feddyn, ("FedDyn",)),
    "mnist": DataSet(
        mnist,
        ("FedAvg", "FedProx", "FedProx draft", "FedDyn"),
        sources.MNIST + sources.QMNIST,
    ),
    "femnist": DataSet(
        femnist, ("FedProx", "FedProx draft"), (sources.EMNIST, *sources.FEMNIST_SQLITE)
    ),
    "emnist-l": DataSet(emnist_l, ("FedDyn",), (sources.EMNIST_L,)),
    "cifar-10": DataSet(cifar_10, ("FedAvg", "FedDyn"), (sources.CIFAR_10,)),
    "cifar-100": DataSet(cifar_100, ("FedDyn",), (sources.CIFAR_100,)),
    "shakespeare": DataSet(
        shakespeare, ("FedAvg", "FedProx", "FedProx draft", "FedDyn"), (sources.SHAKESPEARE,)
    ),
    "sent140": DataSet(sent140, ("FedProx", "FedProx draft"), (sources.SENT140, sources.GLOVE)),
    "posts": DataSet(posts, ("FedAvg",)),
    "table": DataSet(table),
    "leaf": DataSet(leaf, ("FedProx", "FedProx draft")),
    "mapped": DataSet(mapped),
    "hugging-face": DataSet(hugging_face),
}
"""All data sets by name."""

DATASETS: dict[str, Callable[..., Federation]] = {
    name: entry.load for name, entry in CATALOGUE.items()
}
"""Those that experiment files name."""


FEDPROX, FEDPROX_DRAFT = "Li et al. 2020", "Li et al., draft of 2018"
"""How `papers.csv` names two papers."""


class Paper(NamedTuple):
    """A paper's figures for a partition of a data set; None for what the paper does not give.

    Attributes:
        clients: Number of clients.
        samples: Number of examples, of all clients together.
        mean: Mean examples per client.
        deviation: Their standard deviation.
        classes_per_client: Classes that a client holds (most clients, for shards).
        source: The paper and its table or section.
        rows: Which examples `samples`, `mean` and `deviation` count: training and test rows, or
            training rows alone.
        note: A note for those who compare with the paper; empty if there is none.
    """

    clients: int | None
    samples: int | None
    mean: float | None
    deviation: float | None
    classes_per_client: int | None
    source: str
    rows: Literal["all", "train"]
    note: str


def _read_papers(table: str) -> dict[tuple[str, str], list[Paper]]:
    """The figures of `papers.csv` by data set and partition, the final paper before its draft."""
    papers: dict[tuple[str, str], list[Paper]] = {}
    _, *lines = csv.reader(table.splitlines())
    for name, partition, *figures, source, rows, note in lines:
        numbers = [int(figure) if figure else None for figure in figures]
        paper: Any = (*numbers, source, rows, note)
        papers.setdefault((name, partition), []).append(Paper(*paper))
    return papers


PAPERS = _read_papers(Path(__file__).with_name("papers.csv").read_text())
