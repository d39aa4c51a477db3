"""Masks, files of keys, agreements between two nodes, Shamir's shares, and a node's ledger."""

import itertools
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedprox.deployment.crypto import (
    MASK_PIECE,
    PRIME,
    add_mask,
    agreed,
    at_zero,
    joined_secret,
    polynomial_at,
    read_identity,
    require_public,
    seal,
    split_secret,
    unseal,
)
from fedprox.deployment.kept import Revealed, read_kept, write_kept
from fedprox.errors import InputError

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


# --- keys

OPENSSH = serialization.PrivateFormat.OpenSSH


def write_key(folder: Path, name: str, key: Any = None) -> None:
    """Write the files of a key, as ssh-keygen does."""
    key = key or ec.generate_private_key(ec.SECP384R1())
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / f"{name}.key").write_bytes(key.private_bytes(pem, OPENSSH, none))
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    (folder / f"{name}.pub").write_bytes(public)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the keys of three nodes, and one of another kind."""
    for name in "abc":
        write_key(tmp_path, name)
    write_key(tmp_path, "other", ed25519.Ed25519PrivateKey.generate())
    return tmp_path


def test_what_a_node_signs_others_check(folder: Path) -> None:
    a = read_identity("a", folder / "a.key", {"b": folder / "b.pub", "c": folder / "c.pub"})
    b = read_identity("b", folder / "b.key", {"a": folder / "a.pub", "c": folder / "c.pub"})
    b.check("a", a.sign(b"this"), b"this")
    for name, signature, content in (
        ("a", a.sign(b"this"), b"that"),
        ("c", a.sign(b"this"), b"this"),
        ("a", b"", b"this"),
    ):
        with pytest.raises(InputError, match="not signed by the key of node"):
            b.check(name, signature, content)


@pytest.mark.parametrize(
    ("key", "peers", "line"),
    [
        ("a.key", {"a": "b.pub"}, "policy.secure.peers: 'a' is the node itself"),
        ("a.key", {"b": "a.pub"}, "policy.secure.peers: two nodes have the same key"),
        ("a.key", {"b": "b.pub", "c": "b.pub"}, "policy.secure.peers: two nodes have the same key"),
        ("a.key", {"b": "x.pub"}, "x.pub: no such file"),
        ("a.key", {"b": "b.key"}, "b.key: no public ECDSA key"),
        ("a.key", {"b": "other.pub"}, "other.pub: no public ECDSA key"),
        ("a.pub", {"b": "b.pub"}, "a.pub: a node's key is an ECDSA private key"),
    ],
)
def test_files_that_do_not_fit(key: str, peers: dict[str, str], line: str, folder: Path) -> None:
    files = {name: folder / file for name, file in peers.items()}
    with pytest.raises(InputError) as caught:
        read_identity("a", folder / key, files)
    assert line in str(caught.value)


def test_two_nodes_agree_on_a_key_for_each_purpose() -> None:
    a, b = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    of_a, of_b = (key.public_key().public_bytes_raw() for key in (a, b))
    assert agreed(a, of_b, b"one") == agreed(b, of_a, b"one") != agreed(a, of_b, b"two")
    key = agreed(a, of_b, b"one")
    assert unseal(key, seal(key, b"share")) == b"share"
    for other, sealed in ((agreed(a, of_b, b"two"), seal(key, b"share")), (key, b"")):
        with pytest.raises(InputError, match="changed on its way"):
            unseal(other, sealed)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(32), b"\x01" + bytes(31)])
def test_public_keys_without_an_agreement(key: bytes) -> None:
    with pytest.raises(InputError, match="a public key that cannot be used"):
        require_public(key)


def test_a_ledger_is_of_rounds_in_their_order(tmp_path: Path) -> None:
    assert read_kept(Revealed, tmp_path) == Revealed(rounds={})
    write_kept(tmp_path, read_kept(Revealed, tmp_path).after(("run/train", 4)))
    revealed = read_kept(Revealed, tmp_path)
    for round_ in (0, 4):
        with pytest.raises(InputError, match=f"round {round_ + 1}: this node has helped to reveal"):
            revealed.check(("run/train", round_))
    revealed.check(("run/train", 5))
    revealed.check(("run/gradients", 4))
    (tmp_path / Revealed.FILE).write_text("{")
    with pytest.raises(InputError, match=r"sums.json: damaged; it says which sums the node has"):
        read_kept(Revealed, tmp_path)


# --- shares of secrets

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
