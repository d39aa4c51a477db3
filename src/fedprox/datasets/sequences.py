"""Sequences of symbols as rows of a fixed width, with a label at every position."""

import numpy as np
from numpy.typing import NDArray

Symbols = NDArray[np.int32]
Indices = NDArray[np.int64]


def spans(begins: Indices, lengths: Indices) -> Indices:
    """The indices of some stretches of a text, one stretch after another.

    >>> spans(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(begins - before, lengths) + np.arange(lengths.sum())


def unroll(
    text: NDArray[np.integer], begins: Indices, ends: Indices, width: int
) -> tuple[Symbols, Symbols, Indices]:
    """Cut sequences into rows whose labels are the next symbols.

    A sequence of n + 1 symbols, at least two, has n labels and takes ceil(n / width) rows, which do
    not overlap. A model reads each row from its initial state.

    Returns:
        Symbols to read, 0 after the end, and symbols to predict, -1 after the end, both int32
        (rows, width); and the number of rows of each sequence.

    >>> x, y, rows = unroll(np.arange(10, 20), np.array([0, 5]), np.array([4, 7]), width=2)
    >>> x.tolist(), y.tolist(), rows.tolist()
    ([[10, 11], [12, 0], [15, 0]], [[11, 12], [13, -1], [16, -1]], [2, 1])
    """
    labels = ends - begins - 1
    rows = -(-labels // width)
    first = np.repeat(np.cumsum(rows) - rows, rows)
    done = width * (np.arange(len(first)) - first)
    starts, left = np.repeat(begins, rows) + done, np.repeat(labels, rows) - done
    place = np.arange(width)
    x = np.zeros((len(starts), width), np.int32)
    y = np.full((len(starts), width), -1, np.int32)
    inside = place < left[:, None]
    at = (starts[:, None] + place)[inside]
    x[inside], y[inside] = text[at], text[at + 1]
    return x, y, rows
