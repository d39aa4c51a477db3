"""Noise and random keys from the system's entropy, which nobody can repeat."""

import math
import os
import secrets
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 18
"""Numbers that are drawn at once."""

FURTHEST = 9.5
"""No number is further from 0."""


def system_normals(like: Any) -> Any:
    """Independent standard normal numbers in single precision, one for each number of a tree.

    Args:
        like: The tree, in shape.

    >>> bool(abs(system_normals({"w": np.zeros((3, 2))})["w"]).max() < FURTHEST)
    True
    """
    return jax.tree.map(lambda a: _single(math.prod(a.shape)).reshape(a.shape), like)


def own_entropy(points: int) -> tuple[int, NDArray[np.uint32]]:
    """A seed for the streams of local steps, and the words of the noise at each sweep point.

    Args:
        points: Number of sweep points.

    Returns:
        63 random bits, and random words (points, 2), so that the key of a step's noise has all bits
        that a key of Threefry has.
    """
    words = np.frombuffer(os.urandom(8 * points), np.uint32)
    return secrets.randbits(63), words.reshape(points, 2)


def _single(count: int) -> NDArray[np.float32]:
    drawn = np.empty(count, np.float32)
    for first in range(0, count, BLOCK):
        part = drawn[first : first + BLOCK]
        part[:] = normals(len(part))
    return drawn


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
