"""Random streams: every random choice is a function of (seed, purpose, round, client).

A stream is a Philox counter (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")
whose key is (seed, purpose) and whose counter starts at (round, client). No stream depends on the
order in which others were read, on the number of lanes, or on the machine, which is what makes
compared methods see the same cohorts, stragglers and mini-batches.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, require_whole


class Purpose(IntEnum):
    """What a stream decides; the numbers are part of every result and never change."""

    MODEL = 0
    COHORT = 1
    STRAGGLERS = 2
    WORK = 3
    BATCHES = 4
    DATA = 5
    PARTITION = 6
    SPLIT = 7
    GRADIENT_COHORT = 8
    SPEED = 9
    CURVATURE = 10
    AUGMENTATION = 11
    SAMPLE = 12
    EVALUATED = 14


def check_seed(seed: int) -> None:
    """Raise `InputError` unless a seed is a whole number from 0 to 2^63 - 1."""
    require_whole("seed", seed, least=0)
    require(seed < 2**63, f"seed = {seed}; it must be below 2^63")


def _philox(seed: int, purpose: Purpose, round_: int, client: int) -> np.random.Philox:
    key = np.array([seed, purpose], np.uint64)
    counter = np.array([0, 0, client, round_], np.uint64)
    return np.random.Philox(key=key, counter=counter)


def generator(seed: int, purpose: Purpose, round_: int = 0, client: int = 0) -> np.random.Generator:
    """The stream as a NumPy generator.

    Raises:
        InputError: The seed is not a whole number from 0 to 2^63 - 1.

    >>> a = generator(0, Purpose.COHORT, round_=3).integers(10, size=4)
    >>> b = generator(0, Purpose.COHORT, round_=3).integers(10, size=4)
    >>> bool((a == b).all())
    True
    """
    check_seed(seed)
    return np.random.Generator(_philox(seed, purpose, round_, client))


class Shuffler:
    """Row orders of clients' epochs, from the streams of one purpose.

    It moves one generator from stream to stream, which takes a third of the time of making one.

    Args:
        seed: Seed of the run.
        purpose: What the orders are for.
    """

    def __init__(self, seed: int, purpose: Purpose) -> None:
        self._bits = _philox(seed, purpose, 0, 0)
        self._state = self._bits.state

    def orders(self, round_: int, client: int, *, count: int, size: int) -> NDArray[np.int32]:
        """`count` independent uniform permutations of `range(size)`, shape (count, size).

        The first rows do not depend on `count`, so a client that stops early has seen the same
        mini-batches as one that goes on. Random bits above, the position below, sorted: about
        twice as fast as shuffling, and without ties.

        >>> Shuffler(0, Purpose.BATCHES).orders(0, 0, count=2, size=5).shape
        (2, 5)
        """
        self._state["state"]["counter"][2:] = client, round_
        self._bits.state = self._state
        bits = max(size - 1, 1).bit_length()
        low = np.uint64((1 << bits) - 1)
        keys = np.asarray(self._bits.random_raw(count * size)).reshape(count, size)
        keys &= ~low
        keys |= np.arange(size, dtype=np.uint64)
        keys.sort(axis=1)
        keys &= low
        return keys.astype(np.int32)
