"""Shamir's secret sharing over a prime field: any t shares give the secret, and t - 1 nothing.

pycryptodome's has secrets of 16 bytes only, so that a key of 32 would be shared in two halves.

References:
    Shamir, `How to Share a Secret <https://doi.org/10.1145/359168.359176>`_, CACM 1979.
"""

import secrets
from collections.abc import Mapping, Sequence

from fedprox.errors import require

PRIME = 2**256 + 297
"""The least prime above 2^256, so that a secret of 32 bytes is one number of the field."""

SECRET_BYTES, SHARE_BYTES = 32, 33


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of a secret of 32 bytes, for the places 1, 2, ..., `count`.

    >>> shares = split(bytes(31) + b"!", threshold=2, count=3)
    >>> join({3: shares[2], 1: shares[0]})[-1:]
    b'!'
    """
    others = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients = [int.from_bytes(secret, "big"), *others]
    values = [evaluate(coefficients, place, PRIME) for place in range(1, count + 1)]
    return [value.to_bytes(SHARE_BYTES, "big") for value in values]


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret of some shares, by their places.

    Raises:
        InputError: If they are not shares of a secret of 32 bytes.
    """
    points = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    secret = at_zero(points, PRIME)
    require(secret < 2 ** (8 * SECRET_BYTES), "these are no shares of one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def evaluate(coefficients: Sequence[int], x: int, prime: int) -> int:
    """The value of a polynomial, whose constant coefficient is first, by Horner's rule.

    >>> evaluate([1234, 166, 94], 2, 1613)
    329
    """
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % prime
    return value


def at_zero(points: Mapping[int, int], prime: int) -> int:
    """The value at 0 of the polynomial of least degree through some points, by Lagrange's formula.

    >>> at_zero({2: 329, 4: 176, 5: 1188}, 1613)
    1234
    """
    total = 0
    for x, y in points.items():
        above, below = 1, 1
        for other in points.keys() - {x}:
            above, below = above * other % prime, below * (other - x) % prime
        total += y * above * pow(below, -1, prime)
    return total % prime
