"""Labelled rows that nobody owns, and a federation of them by any partition."""

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
"""The partitions that any labelled data set can have; see `partition.py`."""


class Labelled(NamedTuple):
    """Rows with labels.

    Attributes:
        x: Features, shape (rows, ...).
        y: Labels, shape (rows,): classes, or numbers where labels are not classes.
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
        train: Rows to train on.
        test: Rows to test on.
        parts: Each client's rows of both.
        classes: Number of classes, or 0 where labels are not classes.
        names: The clients' names; "0", "1", ... where left out.
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
        train: Rows to train on.
        test: Rows to test on.
        partition: How rows are divided. Where labels are not classes, only "iid" can be.
        numbers: `clients` and the partition's own numbers; None for what is not given.
        classes: Number of classes, or 0 where labels are not classes.
        seed: Seed of the partition.

    Raises:
        InputError: A number is missing, not the partition's, or out of range.

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
    # where labels are not classes all are of one
    y, test_y = (rows.y if classes else np.zeros(len(rows.y), int) for rows in (train, test))
    test_parts = partitions.like(parts, y, test_y, seed=seed)
    return federation(train, test, (parts, test_parts), classes=classes)


def check_numbers(partition: Partition | None, numbers: Mapping[str, float | None]) -> None:
    """Raise `InputError` unless a partition has the numbers that it needs, and no other.

    Args:
        partition: The partition; None where each row has its owner, which needs none.
        numbers: The numbers by name; None for one that is not given.
    """
    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    if partition is not None:
        require_one_of("data.partition", partition, get_args(Partition))
        needed = ("clients", *PARTITIONS[partition].needs)
        allowed = (*needed, *PARTITIONS[partition].takes)
    for name, value in numbers.items():
        if value is not None:
            which = f"partition {partition!r} does" if partition else "clients as they are do"
            require(name in allowed, f"data.{name} = {value}; {which} not have it")
    for name in needed:
        missing = numbers.get(name) is None
        require(not missing, f"data.{name}: missing; partition {partition!r} needs it")


class Way(NamedTuple):
    """A way to divide rows.

    Attributes:
        divide: (labels, clients=, seed=, and the numbers below) -> each client's rows.
        needs: Numbers that it needs besides.
        takes: Numbers that it has a default for.
    """

    divide: Callable[..., list[Indices]]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


def _iid(labels: NDArray[Any], *, size_spread: float = 0.0, **numbers: int) -> list[Indices]:
    return partitions.iid(len(labels), spread=size_spread, **numbers)


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
    "shards": Way(partitions.shards),
    "classes-per-client": Way(_classes, ("classes_per_client",)),
    "dirichlet-by-client": Way(_dirichlet, ("concentration",), ("size_spread",)),
    "dirichlet-by-class": Way(partitions.dirichlet_by_class, ("concentration",)),
    "power-law": Way(partitions.two_class_power_law),
}
"""All of them; a new one is a line here and its name in `Partition`."""
