"""Federations from pooled labelled rows, by any partition."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
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
    """Features (rows, ...), and labels (rows,): classes, or other numbers."""

    x: Features
    y: NDArray[Any]


def require_images(
    where: object, x: NDArray[np.generic], y: NDArray[np.generic], classes: int
) -> None:
    """Raise `InputError` unless x holds images of 28 x 28 bytes and y their labels."""
    require(
        x.dtype == np.uint8
        and x.shape == (len(x), 28, 28)
        and y.dtype.kind in "iu"
        and y.shape == (len(x),)
        and len(y) > 0
        and y.min() >= 0
        and y.max() < classes,
        f"{where}: needs (n, 28, 28) bytes and n labels from 0 to {classes - 1}; it holds "
        f"{x.dtype} {x.shape} and labels of {y.dtype} {y.shape}",
    )


def federation(
    train: Labelled,
    test: Labelled,
    parts: tuple[list[Indices], list[Indices]],
    *,
    classes: int,
    names: Sequence[str] | None = None,
    augment: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
) -> Federation:
    """A federation in which client k owns rows parts[0][k] of `train` and parts[1][k] of `test`.

    Without names they are "0", "1", ...
    """
    train_rows, test_rows = partitions.take(*train, parts[0]), partitions.take(*test, parts[1])
    named = tuple(names or map(str, range(len(parts[0]))))
    return Federation(train_rows, test_rows, classes, named, augment)


def central(
    partition: str,
    train: Labelled,
    test: Labelled,
    *,
    clients: int,
    concentration: float | None = None,
    size_spread: float = 0.0,
    seed: int,
    classes: int,
    augment: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
) -> Federation:
    """A federation of a central training set and its test set; see `partition.with_test_set`."""
    parts = partitions.with_test_set(
        *(partition, train.y, test.y),
        clients=clients,
        concentration=concentration,
        size_spread=size_spread,
        seed=seed,
    )
    return federation(train, test, parts, classes=classes, augment=augment)


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

    `numbers` are options that `check_numbers` has accepted. If labels are not classes, which 0
    classes mean, rows can be divided by "iid" only. All test rows are dealt. Training rows that the
    partition leaves out, as "power-law" does, are counted in a warning.

    >>> rows = Labelled(np.zeros((6, 1)), np.array([0, 0, 0, 1, 1, 1]))
    >>> numbers = {"clients": 2, "classes_per_client": 1}
    >>> divided = divide(rows, rows, "classes-per-client", numbers, classes=2, seed=0)
    >>> [len(np.unique(divided.test.client(k)[1])) for k in range(2)]
    [1, 1]
    """
    require(
        classes or partition == "iid",
        f'data.partition = {partition!r}; labels are not classes, which leaves "iid"',
    )
    given = {_CALLED.get(name, name): n for name, n in numbers.items() if n is not None}
    parts = PARTITIONS[partition].divide(train.y, seed=seed, **given)
    if left := len(train.y) - sum(map(len, parts)):
        line = "data.partition = %r leaves out %d of the %d training rows"
        logging.getLogger(__name__).warning(line, partition, left, len(train.y))
    # labels that are not classes count as one class
    y, test_y = (rows.y if classes else np.zeros(len(rows.y), int) for rows in (train, test))
    test_parts = partitions.like(parts, y, test_y, seed=seed)
    return federation(train, test, (parts, test_parts), classes=classes)


def check_numbers(partition: Partition | None, numbers: Mapping[str, float | None]) -> None:
    """Raise `InputError` unless a partition has the options that it needs, and no others.

    The partition is None if each row has its owner; an option is None if it is not given.
    """
    needed: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    if partition is not None:
        require_one_of("data.partition", partition, get_args(Partition))
        needed = ("clients", *PARTITIONS[partition].needs)
        allowed = (*needed, *PARTITIONS[partition].takes)
    why = f"partition {partition!r} does not have it" if partition else "it needs a partition"
    for name, value in numbers.items():
        require(value is None or name in allowed, f"data.{name} = {value}; {why}")
    for name in needed:
        given = numbers.get(name) is not None
        require(given, f"data.{name}: missing; partition {partition!r} needs it")


Options = Mapping[str, Mapping[str, Any]]
"""The options of each partition of a data set, with their defaults."""


def options_of(partition: str, table: Options, **given: object) -> dict[str, Any]:
    """A partition's options: those given, or where they are None the defaults.

    >>> table = {"iid": {"clients": 100}, "shards": {"clients": 50, "spread": 0.0}}
    >>> options_of("shards", table, clients=None, spread=0.3)
    {'clients': 50, 'spread': 0.3}
    >>> options_of("iid", table, clients=None, spread=0.3)
    Traceback (most recent call last):
    ...
    fedprox.errors.InputError: data.spread = 0.3; it belongs to partition shards, not 'iid'
    """
    require_one_of("data.partition", partition, tuple(table))
    for name, value in given.items():
        of = [kind for kind, options in table.items() if name in options]
        require(
            value is None or partition in of,
            f"data.{name} = {value}; it belongs to partition {' or '.join(of)}, not {partition!r}",
        )
    own = {name: value for name, value in given.items() if value is not None}
    return {**table[partition], **own}


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


_CALLED = {"size_spread": "spread", "classes_per_client": "classes"}
"""What the functions of `partition` call some options."""


PARTITIONS: dict[str, Way] = {
    "iid": Way(partitions.iid, takes=("size_spread",)),
    "shards": Way(partitions.shards, takes=("size_spread",)),
    "classes-per-client": Way(partitions.classes_per_client, ("classes_per_client",)),
    "dirichlet-by-client": Way(
        partitions.dirichlet_by_client, ("concentration",), ("size_spread",)
    ),
    "dirichlet-by-class": Way(partitions.dirichlet_by_class, ("concentration",)),
    "power-law": Way(partitions.two_class_power_law),
}
"""All partitions by name. A new one needs a line here and its name in `Partition`."""
