"""Warnings about settings and data that make results misleading."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import users_level
from fedprox.parts.privacy.setting import delta_warnings
from fedprox.protocol.protocol import Protocol

BLOCK = 2**16
"""Labels that are read together: most data sets have all of their classes in the first block."""


NAMED = 5
"""Most classes that a warning names."""


Array = NDArray[Any]


def warn_of(protocol: Protocol) -> None:
    """Issue a `UserWarning` for each setting or property of the data that spoils a comparison."""
    lines = [
        *_seldom_evaluated(protocol),
        *_one_class(protocol),
        *_without_class_0(protocol),
        *_unseen_classes(protocol),
        *delta_warnings(protocol.privacy, protocol.federation.train.sizes),
    ]
    for line in lines:
        warnings.warn(line, stacklevel=users_level())


def _seldom_evaluated(protocol: Protocol) -> Iterator[str]:
    every = protocol.evaluation.every
    if every > protocol.rounds:
        yield (
            f"evaluation.every = {every} is more than rounds = {protocol.rounds}: "
            "only the initial and the final model are evaluated"
        )


def _one_class(protocol: Protocol) -> Iterator[str]:
    # reads only labels that are copied to the devices anyway
    seen = np.zeros(protocol.federation.classes, bool)
    for block in _blocks(protocol, protocol.measured.train.y):
        seen[block] = True
        if seen.sum() > 1:
            return
    for only in np.flatnonzero(seen):
        yield (
            f"all training labels that evaluations read are of class {only}: a model that always "
            f"answers {only} fits them, so losses and accuracies do not tell methods apart"
        )


def _without_class_0(protocol: Protocol) -> Iterator[str]:
    seen = np.zeros(protocol.federation.classes, bool)
    for rows in (protocol.measured.train, protocol.measured.test):
        for block in _blocks(protocol, rows.y):
            seen[block] = True
            if seen[0]:
                return
    if seen[1:].sum() > 1 and seen[1:].all():
        yield (
            f"labels are 1 to {len(seen) - 1}, which are {len(seen)} classes with class 0, of "
            "which there are no rows; number classes from 0"
        )


def _unseen_classes(protocol: Protocol) -> Iterator[str]:
    read, train = protocol.measured, protocol.federation.train
    if isinstance(train.y, np.memmap) and read.train is not train:
        return  # files may hold many more labels than evaluations read
    unseen = np.zeros(protocol.federation.classes, bool)
    for block in _blocks(protocol, read.test.y):
        unseen[block] = True
    for block in _blocks(protocol, train.y):
        if not unseen.any():
            return
        unseen[block] = False
    classes = np.flatnonzero(unseen)
    if len(classes):
        count = sum(int(unseen[block].sum()) for block in _blocks(protocol, read.test.y))
        named = ", ".join(map(str, classes[:NAMED])) + (", ..." if len(classes) > NAMED else "")
        yield (
            f"{count:,} of the {int(read.test.labels.sum()):,} test labels that evaluations read "
            f"are of classes that no client has in training ({named}): a model does not learn to "
            "predict them, and test accuracy counts them as errors"
        )


def _blocks(protocol: Protocol, y: Array) -> Iterator[Array]:
    """The labels block by block, without missing labels; no blocks if labels are not classes.

    A model without accuracy does not treat labels as classes, even if they are whole numbers.
    """
    classes = protocol.federation.classes
    if not classes or protocol.model.correct is None:
        return
    for begin in range(0, len(y), BLOCK):
        block = np.asarray(y[begin : begin + BLOCK])
        yield block[(block >= 0) & (block < classes)]
