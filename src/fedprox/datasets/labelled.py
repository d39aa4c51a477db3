"""Federations from pooled labelled rows, by any partition."""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from fedprox.datasets import partition as partitions
from fedprox.datasets.partition import Indices
from fedprox.errors import require, require_one_of
from fedprox.federation import Examples, Federation

AnyPartition = Literal[
    "iid", "shards", "classes-per-client", "dirichlet-by-client", "dirichlet-by-class", "power-law"
]
"""The partitions of any labelled data set; see `partition.py`."""

CentralPartition = Literal["iid", "dirichlet"]
"""The partitions of a central training set and its test set; see `partition.with_test_set`."""

Options = Mapping[str, Mapping[str, Any]]
"""The options of each partition of a data set, with their defaults."""

NEEDED: Any = inspect.Parameter.empty
"""In place of the default of an option that must be given."""

PARTITIONS: dict[str, Callable[..., list[Indices]]] = {
    "iid": partitions.iid,
    "shards": partitions.shards,
    "classes-per-client": partitions.classes_per_client,
    "dirichlet-by-client": partitions.dirichlet_by_client,
    "dirichlet-by-class": partitions.dirichlet_by_class,
    "power-law": partitions.two_class_power_law,
}
"""All partitions by name. A new one needs a line here and its name in `AnyPartition`."""

_OPTIONS = {"spread": "size_spread", "classes": "classes_per_client"}
"""The options' names of some partitions' arguments."""

_ARGUMENTS = {option: argument for argument, option in _OPTIONS.items()}


def _options(divide: Callable[..., list[Indices]]) -> dict[str, Any]:
    """The options of a partition: its arguments beside the labels and the seed."""
    arguments = inspect.signature(divide).parameters.values()
    options = {_OPTIONS.get(each.name, each.name): each.default for each in arguments}
    del options["labels"], options["seed"]
    return options | {"clients": NEEDED}


PARTITION_OPTIONS: Options = {name: _options(divide) for name, divide in PARTITIONS.items()}


def options_of(partition: str | None, table: Options, **given: object) -> dict[str, Any]:
    """A partition's options: those given, or where they are None the defaults.

    The partition is None if each row has its owner; then no option may be given.

    >>> table = {"iid": {"clients": 100}, "shards": {"clients": 50, "spread": 0.0}}
    >>> options_of("shards", table, clients=None, spread=0.3)
    {'clients': 50, 'spread': 0.3}
    >>> options_of("iid", table, clients=None, spread=0.3)
    Traceback (most recent call last):
    ...
    fedprox.errors.InputError: data.spread = 0.3; it belongs to partition shards, not 'iid'
    """
    require_one_of("data.partition", partition, tuple(table), optional=True)
    options = dict(table[partition]) if partition else {}
    for name, value in given.items():
        of = " or ".join(kind for kind, known in table.items() if name in known)
        why = f"belongs to partition {of}, not {partition!r}" if partition else "needs a partition"
        require(value is None or name in options, f"data.{name} = {value}; it {why}")
    options |= {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        missing = f"data.{name}: missing; partition {partition!r} needs it"
        require(value is not NEEDED, missing)
    return options


def federation(
    train: Examples,
    test: Examples,
    parts: tuple[list[Indices], list[Indices]],
    *,
    classes: int,
    names: Sequence[str] | None = None,
    augment: Callable[[jax.Array, Any], Any] | None = None,
) -> Federation:
    """A federation in which client k owns rows parts[0][k] of `train` and parts[1][k] of `test`.

    Without names they are "0", "1", ...
    """
    train_rows, test_rows = (
        partitions.take(rows.x, rows.y, part)
        for rows, part in zip((train, test), parts, strict=True)
    )
    named = tuple(names or map(str, range(len(parts[0]))))
    return Federation(train_rows, test_rows, classes, named, augment)


def central(
    partition: str,
    train: Examples,
    test: Examples,
    *,
    classes: int,
    augment: Callable[[jax.Array, Any], Any] | None = None,
    **options: Any,
) -> Federation:
    """A federation of a central training set and its test set; see `partition.with_test_set`."""
    parts = partitions.with_test_set(partition, train.y, test.y, **options)
    return federation(train, test, parts, classes=classes, augment=augment)


def divide(
    train: Examples,
    test: Examples,
    partition: str,
    options: Mapping[str, Any],
    *,
    classes: int,
    seed: int,
) -> Federation:
    """A federation by any partition, whose clients have test rows like their training rows.

    Options are those of `options_of`. If labels are not classes, which 0 classes mean, rows can be
    divided by "iid" only. All test rows are dealt. Training rows that the partition leaves out, as
    "power-law" does, are counted in a warning.

    >>> rows = Examples(np.zeros((6, 1)), np.array([0, 0, 0, 1, 1, 1]))
    >>> options = {"clients": 2, "classes_per_client": 1}
    >>> divided = divide(rows, rows, "classes-per-client", options, classes=2, seed=0)
    >>> [len(np.unique(divided.test.client(k)[1])) for k in range(2)]
    [1, 1]
    """
    require(
        classes or partition == "iid",
        f'data.partition = {partition!r}; labels are not classes, which leaves "iid"',
    )
    given = {_ARGUMENTS.get(name, name): value for name, value in options.items()}
    parts = PARTITIONS[partition](train.y, seed=seed, **given)
    if left := len(train.y) - sum(map(len, parts)):
        line = "data.partition = %r leaves out %d of the %d training rows"
        logging.getLogger(__name__).warning(line, partition, left, len(train.y))
    # labels that are not classes count as one class
    y, test_y = (rows.y if classes else np.zeros(len(rows.y), int) for rows in (train, test))
    test_parts = partitions.like(parts, y, test_y, seed=seed)
    return federation(train, test, (parts, test_parts), classes=classes)
