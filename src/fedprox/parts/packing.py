"""Codes of clients' messages as bytes: whole numbers of few bits side by side."""

import math
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.parts.codecs import IN_FULL

Array = NDArray[Any]


def packed(code: Any, widths: Any) -> Any:
    """Codes with whole numbers as bytes.

    >>> packed(np.array([[[1, 0, 3, 2, 1]]]), 2).tolist()  # 01 00 11 10 01
    [[[78, 64]]]
    """

    def leaf(width: int, a: Array) -> Array:
        a = np.asarray(a)
        if width == IN_FULL:
            return a
        flat = a.reshape(*a.shape[:2], -1, 1)
        bits = (flat >> np.arange(width - 1, -1, -1)) & 1
        return np.packbits(bits.astype(np.uint8).reshape(*a.shape[:2], -1), axis=-1)

    return jax.tree.map(leaf, widths, code)


def packed_shapes(like: Any, widths: Any, jobs: int, points: int) -> Any:
    """What `packed` returns, in shape."""

    def leaf(width: int, a: Any) -> jax.ShapeDtypeStruct:
        if width == IN_FULL:
            return jax.ShapeDtypeStruct((jobs, points, *a.shape), a.dtype)
        count = -(-math.prod(a.shape) * width // 8)
        return jax.ShapeDtypeStruct((jobs, points, count), np.uint8)

    return jax.tree.map(leaf, widths, like)


def unpacked(arrays: Any, like: Any, widths: Any) -> Any:
    """The inverse of `packed`."""

    def leaf(width: int, a: Array, shape: Any) -> Array:
        if width == IN_FULL:
            return a
        count = math.prod(shape.shape)
        bits = np.unpackbits(a, axis=-1, count=count * width).reshape(*a.shape[:2], count, width)
        whole = bits.astype(np.int32) @ (1 << np.arange(width - 1, -1, -1, dtype=np.int32))
        return whole.reshape(*a.shape[:2], *shape.shape).astype(shape.dtype)

    return jax.tree.map(leaf, widths, arrays, like)
