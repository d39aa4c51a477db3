"""The catalogue: every data set, who used it, and the files that it is made of.

To add a data set, write its file and enter it here. Its name is what experiment files say; its
summary and its partitions are read from its function.
"""

import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedprox.datasets import sources
from fedprox.datasets.femnist import femnist
from fedprox.datasets.huggingface import hugging_face
from fedprox.datasets.leaf import leaf
from fedprox.datasets.mnist import mnist
from fedprox.datasets.sources import Source
from fedprox.datasets.synthetic import synthetic, synthetic_feddyn
from fedprox.federation import Federation


class File(NamedTuple):
    """A file of a data set.

    Attributes:
        folder: Its folder in the data folder, and in the cache.
        source: Its name, checksum and addresses.
        use: What needs it, such as 'partition "writers"'; empty where everything does.
        instead: Names of files that serve as well where they are in the data folder.
    """

    folder: str
    source: Source
    use: str = ""
    instead: tuple[str, ...] = ()

    def at_hand(self, data_dir: str | Path | None) -> Path | None:
        """Where it lies already: in the data folder, else in the cache; None if it does not.

        Raises:
            InputError: The data folder does not exist.
        """
        others = (sources.present(name, self.folder, data_dir) for name in self.instead)
        mine = next((path for path in others if path), None)
        return mine or sources.at_hand(self.source, self.folder, data_dir)


class DataSet(NamedTuple):
    """A data set of the catalogue.

    Attributes:
        load: What makes the federation; its arguments are the options of an experiment file.
        papers: The papers that use it, by the name of their method.
        files: The files that it is made of; none where it is generated, or read from a path.
    """

    load: Callable[..., Federation]
    papers: tuple[str, ...] = ()
    files: tuple[File, ...] = ()

    @property
    def what(self) -> str:
        """The first line of its function's documentation."""
        return (inspect.getdoc(self.load) or "").partition("\n")[0].rstrip(".")

    @property
    def partitions(self) -> tuple[str, ...]:
        """The values that its argument `partition` may have.

        >>> CATALOGUE["mnist"].partitions[0]
        'power-law'
        """
        parameter = inspect.signature(self.load).parameters.get("partition")
        return _literals(parameter.annotation) if parameter else ()

    @property
    def brought(self) -> bool:
        """Whether the user names where it is, by the option `path`."""
        return "path" in inspect.signature(self.load).parameters


def _literals(annotation: Any) -> tuple[str, ...]:
    """The strings of a Literal, or of one inside a union."""
    inside = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return tuple(value for value in inside if isinstance(value, str))
    return tuple(value for part in inside for value in _literals(part))


CATALOGUE: dict[str, DataSet] = {
    "synthetic": DataSet(synthetic, ("FedProx", "FedProx draft")),
    "synthetic-feddyn": DataSet(synthetic_feddyn, ("FedDyn",)),
    "mnist": DataSet(
        mnist,
        ("FedAvg", "FedProx", "FedProx draft", "FedDyn"),
        tuple(File("mnist", source) for source in sources.MNIST.values()),
    ),
    "femnist": DataSet(
        femnist,
        ("FedProx", "FedProx draft"),
        (
            File("emnist", sources.EMNIST, "letters", ("emnist_lowercase.npz",)),
            File("femnist", sources.FEMNIST_WRITERS, 'partition "writers"'),
        ),
    ),
    "leaf": DataSet(leaf, ("FedProx", "FedProx draft")),
    "hugging-face": DataSet(hugging_face),
}
"""All data sets by name."""
