"""Noise from the system's entropy, which nobody can repeat."""

import os
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 20
"""Numbers that are drawn at once."""


def system_normals(like: Any) -> Any:
    r"""Independent standard normal numbers, one for each number of a tree.

    Each is :math:`\Phi^{-1}((u + 1/2) / 2^{52})` for a whole number :math:`u` of 52 random bits
    from the operating system's generator, a cryptographic one. So the numbers are between -8.2 and
    8.2; a true normal number is outside with a probability of :math:`2^{-52}`.

    Args:
        like: The tree, in shape.

    >>> bool(abs(system_normals({"w": np.zeros((3, 2))})["w"]).max() < 8.3)
    True
    """
    return jax.tree.map(lambda a: _normals(int(np.prod(a.shape))).reshape(a.shape), like)


def _normals(count: int) -> NDArray[np.float32]:
    from scipy.special import ndtri  # here, since it is slow to import

    drawn = np.empty(count, np.float32)
    for first in range(0, count, BLOCK):
        part = drawn[first : first + BLOCK]
        bits = np.frombuffer(os.urandom(8 * len(part)), np.uint64) >> np.uint64(12)
        part[:] = ndtri((bits + 0.5) * 2.0**-52)
    return drawn
