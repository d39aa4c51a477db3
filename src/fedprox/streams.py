"""Random streams: every random choice is a function of (seed, purpose, round, client).

A stream is a Philox counter (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")
whose key is (seed, purpose) and whose counter starts at (round, client). No stream depends on the
order in which others are read, on the number of lanes, or on the machine, so compared methods see
the same cohorts, stragglers and mini-batches.
"""

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, require_whole, shown


class Purpose(IntEnum):
    """The purpose of a stream. The numbers determine every result and never change."""

    MODEL = 0
    COHORT = 1
    STRAGGLERS = 2
    WORK = 3
    BATCHES = 4
    DATA = 5
    PARTITION = 6
    SPLIT = 7
    GRADIENT_COHORT = 8
    CURVATURE = 10
    AUGMENTATION = 11
    SAMPLE = 12
    EVALUATED = 14
    VALIDATION = 15
    PARTS = 16
    STEPS = 17
    POPULATION = 18
    DROPOUT = 19
    DEVICE = 20
    ZONE = 21
    ARRIVALS = 22
    ATTACK = 23
    ROWS = 24
    REFERENCES = 25
    NEWCOMERS = 26
    SKEW = 27
    GROUPS = 28
    CANARIES = 29
    MEASURES = 30


def check_seed(seed: int, name: str = "seed") -> None:
    """Raise `InputError` unless a seed is a whole number from 0 to 2^63 - 1."""
    if type(seed) is int and 0 <= seed < 2**63:  # messages would cost more than a stream
        return
    require_whole(name, seed, least=0, most=math.inf)
    require(seed < 2**63, f"{name} = {shown(seed)}; it must be below 2^63")


def _philox(
    seed: int, purpose: Purpose, round_: int, client: int, own: int = 0
) -> np.random.Philox:
    key = np.array([seed, purpose], np.uint64)
    counter = np.array([0, own, client, round_], np.uint64)
    return np.random.Philox(key=key, counter=counter)


def generator(
    seed: int, purpose: Purpose, round_: int = 0, client: int = 0, own: int = 0
) -> np.random.Generator:
    """A stream as a NumPy generator; `own` tells runs of a comparison apart that share none.

    >>> a = generator(0, Purpose.COHORT, round_=3).integers(10, size=4)
    >>> b = generator(0, Purpose.COHORT, round_=3).integers(10, size=4)
    >>> bool((a == b).all())
    True
    """
    check_seed(seed)
    return np.random.Generator(_philox(seed, purpose, round_, client, own))


class Streams:
    """The streams of one purpose.

    One generator moves from stream to stream, at a tenth of the cost of a new generator.
    """

    def __init__(self, seed: int, purpose: Purpose) -> None:
        self._generator = generator(seed, purpose)
        self._bits = self._generator.bit_generator
        begin = self._bits.state
        # NumPy reads lists faster than arrays
        words = {name: values.tolist() for name, values in begin["state"].items()}
        self._counter = words["counter"]
        self._begin = {**begin, "state": words, "buffer": begin["buffer"].tolist()}

    def at(self, round_: int, client: int) -> np.random.Generator:
        """The generator at the begin of a stream, until the next call.

        >>> streams = Streams(0, Purpose.WORK)
        >>> drawn = [int(streams.at(3, client).integers(10**6)) for client in (5, 4, 5)]
        >>> drawn[0] == drawn[2] == int(generator(0, Purpose.WORK, 3, 5).integers(10**6))
        True
        """
        self._counter[2:] = client, round_
        self._bits.state = self._begin
        return self._generator

    def orders(
        self,
        rounds: Sequence[int],
        clients: Sequence[int],
        *,
        counts: Sequence[int],
        sizes: Sequence[int],
    ) -> NDArray[np.int32]:
        """Independent uniform permutations of `range(size)` for each client, concatenated.

        The first permutations do not depend on `counts`, so a client that stops early sees the same
        mini-batches as one that continues. Each number has random bits above its position, and
        sorting them gives the permutation: about twice as fast as shuffling, and without ties.

        `rounds` are those in which the clients started. The result is int32, (sum of counts times
        sizes,).

        >>> flat = Streams(0, Purpose.BATCHES).orders([0, 0], [7, 3], counts=[2, 1], sizes=[2, 3])
        >>> sorted(flat[:2].tolist()), sorted(flat[2:4].tolist()), sorted(flat[4:].tolist())
        ([0, 1], [0, 1], [0, 1, 2])
        """
        size = np.repeat(np.array(sizes, np.int64), counts)
        end = np.cumsum(size)
        keys = np.empty(int(size.sum()), np.uint64)
        at = 0
        for round_, client, count, rows in zip(rounds, clients, counts, sizes, strict=True):
            self.at(round_, client)
            keys[at : at + count * rows] = self._bits.random_raw(count * rows)
            at += count * rows
        bits = [max(rows - 1, 1).bit_length() for rows in sizes]
        masks = np.repeat(np.array([(1 << each) - 1 for each in bits], np.uint64), counts)
        low = np.repeat(masks, size)
        keys &= ~low
        keys |= (np.arange(len(keys)) - np.repeat(end - size, size)).astype(np.uint64)
        for first, last in zip((end - size).tolist(), end.tolist(), strict=True):
            keys[first:last].sort()
        keys &= low
        return keys.astype(np.int32)


def chosen_rows(
    sizes: NDArray[np.integer], share: float, streams: Iterable[np.random.Generator]
) -> NDArray[np.bool_]:
    """Choose a share of each client's rows by its stream, and leave it one row, bool (rows,).

    Their number is share * size, rounded up or down at random so that it is right on average.
    """
    chosen, first = np.zeros(int(sizes.sum()), bool), 0
    for size, stream in zip(sizes.tolist(), streams, strict=True):
        count = min(int(share * size + stream.random()), size - 1)
        if count:
            chosen[first + stream.choice(size, count, replace=False)] = True
        first += size
    return chosen
