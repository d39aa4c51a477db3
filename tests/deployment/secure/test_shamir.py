"""Shamir's shares: published vectors, any t of them, and nothing from fewer."""

import itertools

import pytest

from fedprox.deployment.crypto import PRIME, at_zero, joined_secret, polynomial_at, split_secret
from fedprox.errors import InputError

EXAMPLE = {1: 1494, 2: 329, 3: 965, 4: 176, 5: 1188, 6: 775}
"""The shares of 1234 by 1234 + 166 x + 94 x^2 modulo 1613, the example of Wikipedia's article."""


def test_published_shares() -> None:
    assert {x: polynomial_at([1234, 166, 94], x, 1613) for x in EXAMPLE} == EXAMPLE
    for places in itertools.combinations(EXAMPLE, 3):
        assert at_zero({x: EXAMPLE[x] for x in places}, 1613) == 1234


def test_any_t_shares_give_the_secret() -> None:
    for secret in (bytes(32), b"\xff" * 32, bytes(range(32))):
        shares = dict(enumerate(split_secret(secret, threshold=3, count=5), 1))
        for places in itertools.combinations(shares, 3):
            assert joined_secret({x: shares[x] for x in places}) == secret
        assert joined_secret(shares) == secret


def test_fewer_shares_fit_every_secret() -> None:
    first, second = split_secret(bytes(range(32)), threshold=3, count=5)[:2]
    known = {1: int.from_bytes(first, "big"), 2: int.from_bytes(second, "big")}
    for secret in (0, 1, 2**256 - 1):
        # a polynomial of degree 2 through both shares and this secret gives t shares of it
        points = {0: secret, **known}
        third = sum(
            y * evaluate_lagrange([x for x in points if x != place], place, 3)
            for place, y in points.items()
        )
        assert at_zero(known | {3: third % PRIME}, PRIME) == secret


def evaluate_lagrange(others: list[int], place: int, x: int) -> int:
    """The polynomial at x that is 1 at a place and 0 at others."""
    value = 1
    for other in others:
        value = value * (x - other) * pow(place - other, -1, PRIME) % PRIME
    return value


def test_shares_are_drawn_anew() -> None:
    assert split_secret(bytes(32), 2, 3) != split_secret(bytes(32), 2, 3)


def test_the_modulus_is_prime() -> None:
    odd = PRIME - 1
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    for base in range(2, 42):  # Miller and Rabin
        x = pow(base, odd, PRIME)
        squares = [x] + [x := x * x % PRIME for _ in range(twos - 1)]
        assert squares[0] == 1 or PRIME - 1 in squares


def test_shares_of_other_secrets_are_seen() -> None:
    shares = {1: (2**256 + 1).to_bytes(33, "big")}
    with pytest.raises(InputError, match="no shares of one secret"):
        joined_secret(shares)
