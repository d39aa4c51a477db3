"""Federations from pooled labelled rows, by any partition."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedprox.datasets import partition as partitions
from fedprox.datasets.partition import Indices
from fedprox.errors import require, require_one_of
from fedprox.features import Features
from fedprox.federation import Federation

Partition = Literal[
    "iid", "shards", "classes-per-client", "dirichlet-by-client", "dirichlet-by-class", "power-law"
]
"""The partitions of any labelled data set; see `partition.py`."""


class Labelled(NamedTuple):
    """Rows with labels.

    Attributes:
        x: Features, shape (rows, ...).
        y: Labels, shape (rows,): classes, or other numbers.
    """

    x: Features
    y: NDArray[Any]


def federation(
    train: Labelled,
    test: Labelled,
    parts: tuple[list[Indices], list[Indices]],
    *,
    classes: int,
    names: Sequence[str] | None = None,
) -> Federation:
    """A federation in which client k owns rows parts[0][k] of `train` and parts[1][k] of `test`.

    Args:
        train: Training rows.
        test: Test rows.
        parts: Each client's row indices in both.
        classes: Number of classes, or 0 if labels are not classes.
        names: The clients' names; None for "0", "1", ...
    """
    train_rows, test_rows = partitions.take(*train, parts[0]), partitions.take(*test, parts[1])
    return Federation(
        train_rows, test_rows, classes, tuple(names or map(str, range(len(parts[0]))))
    )


def divide(
    train: Labelled,
    test: Labelled,
    partition: Partition,
    numbers: Mapping[str, float | None],
    *,
    classes: int,
    seed: int,
) -> Federation:
    """A federation by any partition, whose clients have test rows like their training rows.

    Args:
        train: Training rows.
        test: Test rows.
        partition: How rows are divided; only "iid" if labels are not classes.
        numbers: `clients` and the options of the partition; None for one that is not given.
        classes: Number of classes, or 0 if labels are not classes.
        seed: Seed of the partition.

    Raises:
        InputError: If an option is missing, does not belong to the partition, or is out of range.

    >>> rows = Labelled(np.zeros((6, 1)), np.array([0, 0, 0, 1, 1, 1]))
    >>> numbers = {"clients": 2, "classes_per_client": 1}
    >>> divided = divide(rows, rows, "classes-per-client", numbers, classes=2, seed=0)
    >>> [len(np.unique(divided.test.client(k)[1])) for k in range(2)]
    [1, 1]
    """
    check_numbers(partition, numbers)
    require(
        classes or partition == "iid",
        f'data.partition = {partition!r}; labels are not classes, which leaves "iid"',
    )
    given = {name: value for name, value in numbers.items() if value is not None}
    parts = PARTITIONS[partition].divide(train.y, seed=seed, **given)
    # labels that are not classes count as one class
    y, test_y = (rows.y if classes else np.zeros(len(rows.y), int) for rows in (train, test))
    test_parts = partitions.like(parts, y, test_y, seed=seed)
    return federation(train, test, (parts, test_parts), classes=classes)


def check_numbers(partition: Partition | None, numbers: Mapping[str, float | None]) -> None:
    """Raise `InputError` unless a partition has the options that it needs, and no others.

    Args:
        partition: The partition; None if each row has its owner, which needs no options.
        numbers: The options by name; None for one that is not given.
    """
    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    if partition is not None:
        require_one_of("data.partition", partition, get_args(Partition))
        needed = ("clients", *PARTITIONS[partition].needs)
        allowed = (*needed, *PARTITIONS[partition].takes)
    for name, value in numbers.items():
        if value is not None:
            why = (
                f"partition {partition!r} does not have it" if partition else "it needs a partition"
            )
            require(name in allowed, f"data.{name} = {value}; {why}")
    for name in needed:
        missing = numbers.get(name) is None
        require(not missing, f"data.{name}: missing; partition {partition!r} needs it")


class Way(NamedTuple):
    """A partition and its options.

    Attributes:
        divide: (labels, clients=, seed=, and the options below) -> each client's rows.
        needs: Options without a default, besides `clients`.
        takes: Options with a default.
    """

    divide: Callable[..., list[Indices]]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


def _iid(labels: NDArray[Any], *, size_spread: float = 0.0, **numbers: int) -> list[Indices]:
    return partitions.iid(len(labels), spread=size_spread, **numbers)


def _shards(labels: NDArray[Any], *, size_spread: float = 0.0, **numbers: int) -> list[Indices]:
    return partitions.shards(labels, spread=size_spread, **numbers)


def _classes(labels: NDArray[Any], *, classes_per_client: int, **numbers: int) -> list[Indices]:
    return partitions.classes_per_client(labels, classes=classes_per_client, **numbers)


def _dirichlet(
    labels: NDArray[Any], *, concentration: float, size_spread: float = 0.0, **numbers: int
) -> list[Indices]:
    return partitions.dirichlet_by_client(
        labels, concentration=concentration, spread=size_spread, **numbers
    )


PARTITIONS: dict[str, Way] = {
    "iid": Way(_iid, takes=("size_spread",)),
    "shards": Way(_shards, takes=("size_spread",)),
    "classes-per-client": Way(_classes, ("classes_per_client",)),
    "dirichlet-by-client": Way(_dirichlet, ("concentration",), ("size_spread",)),
    "dirichlet-by-class": Way(partitions.dirichlet_by_class, ("concentration",)),
    "power-law": Way(partitions.two_class_power_law),
}
"""All partitions by name. A new one needs a line here and its name in `Partition`."""
