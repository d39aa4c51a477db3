"""Masks are those of AES-256 in counter mode, and what is added is subtracted exactly."""

import secrets
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedprox.deployment.crypto import MASK_PIECE, add_mask

VECTOR = bytes.fromhex("dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738b")
"""AES-256 of the blocks 0 and 1 with a key of zeros (SP 800-38A's mode; FIPS 197's cipher)."""


def test_the_generator_is_aes_in_counter_mode() -> None:
    for word in (np.uint32, np.uint64):
        vector: Any = np.zeros(32 // np.dtype(word).itemsize, word)
        add_mask(vector, bytes(32))
        assert vector.tobytes() == VECTOR


@pytest.mark.parametrize("word", [np.uint32, np.uint64])
@pytest.mark.parametrize(
    "size", [1, 1000, MASK_PIECE // 4, MASK_PIECE // 4 + 1, 3 * MASK_PIECE // 8 + 5]
)
def test_masks_cancel(word: type, size: int) -> None:
    key = secrets.token_bytes(32)
    first: Any = np.arange(size, dtype=word)
    second = first * word(3)
    add_mask(first, key)
    assert size < 4 or (first != np.arange(size)).any()
    add_mask(second, key, subtract=True)
    assert (first + second == np.arange(size, dtype=word) * word(4)).all()


def test_no_piece_of_a_mask_is_that_of_another() -> None:
    vector = np.zeros(MASK_PIECE, np.uint32)
    add_mask(vector, bytes(32))
    pieces = vector.reshape(-1, 4)
    assert len(np.unique(pieces, axis=0)) == len(pieces)
