"""Masks: AES-256 in counter mode as a generator of whole numbers, added modulo 2^32 or 2^64.

A mask is added to an array piece by piece, so that it never lies in memory as a whole.
"""

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

PIECE = 2**18
"""Bytes of a piece, which stay in a processor's cache."""

KEY_BYTES = 32

Whole = NDArray[np.unsignedinteger[Any]]
"""Whole numbers modulo 2^32 or 2^64."""


def add_mask(vector: Whole, key: bytes, *, subtract: bool = False) -> None:
    """Add the mask of a key to an array in place, or subtract it.

    Args:
        vector: The array, with one axis.
        key: 32 bytes, of which each is used for one mask only.
        subtract: Whether the mask is subtracted.
    """
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros, made = bytes(PIECE), bytearray(PIECE)
    little = vector.dtype.newbyteorder("<")
    mask = np.frombuffer(made, little)
    combine = np.subtract if subtract else np.add
    for begin in range(0, len(vector), len(mask)):
        piece = vector[begin : begin + len(mask)]
        cipher.update_into(zeros, made)
        combine(piece, mask[: len(piece)], out=piece)
