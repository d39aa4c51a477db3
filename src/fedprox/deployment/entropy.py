"""Noise from the operating system's entropy, which no seed repeats."""

import math
import os
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

FURTHEST = 9.5
"""No number is further from 0."""


def normals(count: int) -> NDArray[np.float64]:
    r"""Independent standard normal numbers.

    Each two are :math:`r \cos 2 \pi v` and :math:`r \sin 2 \pi v` with
    :math:`r = \sqrt{-2 \ln u}` (Box and Muller 1958), for u and v of 64 random bits each from the
    operating system's generator, a cryptographic one. So they are between -9.5 and 9.5; a true
    normal number is outside with a probability of about :math:`2^{-64}`. Both parts of a number are
    continuous up to the precision of a float, also far from 0.
    """
    half = (count + 1) // 2
    words = np.frombuffer(os.urandom(16 * half), np.uint64).astype(np.float64)
    u, v = (words + 0.5).reshape(2, half) * 2.0**-64
    radius, angle = np.sqrt(-2 * np.log(u)), 2 * np.pi * v
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


NORMALS_AT_ONCE = 1 << 18
"""Numbers that are drawn together."""


def system_normals(like: Any) -> Any:
    """Independent standard normal numbers in single precision, one for each number of a tree.

    >>> bool(abs(system_normals({"w": np.zeros((3, 2))})["w"]).max() < 9.5)
    True
    """
    return jax.tree.map(lambda a: _normals_in_blocks(math.prod(a.shape)).reshape(a.shape), like)


def _normals_in_blocks(count: int) -> NDArray[np.float32]:
    drawn = np.empty(count, np.float32)
    for first in range(0, count, NORMALS_AT_ONCE):
        part = drawn[first : first + NORMALS_AT_ONCE]
        part[:] = normals(len(part))
    return drawn
