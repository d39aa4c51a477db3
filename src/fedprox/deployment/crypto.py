"""Keys, signatures, masks and shares of secrets. It needs no JAX.

* A node signs with the key by which the SuperLink knows it. Signed text begins with `PURPOSE`,
  which no request of Flower's does.
* Masks are whole numbers that AES-256 in counter mode generates, added modulo 2^32 or 2^64, piece
  by piece, so that none lies in memory as a whole.
* Shamir's sharing over a prime field: any t shares give the secret, and t - 1 nothing.
  pycryptodome's has secrets of 16 bytes only, so that a key of 32 would be shared in two halves.

References:
    Shamir, `How to Share a Secret <https://doi.org/10.1145/359168.359176>`_, CACM 1979.
"""

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
        load_ssh_private_key,
        load_ssh_public_key,
    )


PURPOSE = b"fedprox secure sum, version 1: "

NONCE = bytes(12)
"""Every key that seals is made for one message, so the nonce may be fixed."""


class Identity(NamedTuple):
    """Who a node is, and whom it knows.

    Attributes:
        key: Its private key.
        peers: The public keys of the other nodes, by their names.
    """

    name: str
    key: "ec.EllipticCurvePrivateKey"
    peers: Mapping[str, "ec.EllipticCurvePublicKey"]

    @property
    def digests(self) -> dict[str, str]:
        """A digest of the public key of each node that it knows, and of its own."""
        public = {self.name: self.key.public_key(), **self.peers}
        return {name: sha256(encoded(key)).hexdigest() for name, key in public.items()}

    def sign(self, content: bytes) -> bytes:
        """The node's signature."""
        signature: bytes = self.key.sign(PURPOSE + content, ec.ECDSA(hashes.SHA384()))
        return signature

    def check(self, name: str, signature: bytes, content: bytes) -> None:
        """Raise `InputError` unless a node has signed something."""
        public = self.key.public_key() if name == self.name else self.peers[name]
        require(
            has_signed(public, signature, content),
            f"not signed by the key of node {name!r} in policy.secure.peers",
        )


def has_signed(public: "ec.EllipticCurvePublicKey", signature: bytes, content: bytes) -> bool:
    """Whether the owner of a public key has signed something."""
    try:
        public.verify(signature, PURPOSE + content, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def read_identity(name: str, key: Path, peers: Mapping[str, Path]) -> Identity:
    """The identity of a node, from its private key and the public keys of others."""
    require(name not in peers, f"policy.secure.peers: {name!r} is the node itself")
    own = read_private_key(key)
    others = {each: load_public_key(file) for each, file in peers.items()}
    keys = [own.public_key(), *others.values()]
    numbers = {each.public_numbers() for each in keys}
    require(len(numbers) == len(keys), "policy.secure.peers: two nodes have the same key")
    return Identity(name, own, others)


def agreed(own: "X25519PrivateKey", other: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes that two nodes have in common for one purpose."""
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise InputError("a public key that cannot be used") from None
    derived: bytes = HKDF(hashes.SHA256(), 32, salt=None, info=PURPOSE + purpose).derive(secret)
    return derived


def require_public(key: bytes) -> None:
    """Raise `InputError` unless others can agree on a key with the owner of a public key."""
    agreed(X25519PrivateKey.generate(), key, b"")


def seal(key: bytes, content: bytes) -> bytes:
    """Encrypt and authenticate; each key seals once."""
    sealed: bytes = ChaCha20Poly1305(key).encrypt(NONCE, content, None)
    return sealed


def unseal(key: bytes, sealed: bytes) -> bytes:
    """The inverse of `seal`."""
    try:
        content: bytes = ChaCha20Poly1305(key).decrypt(NONCE, sealed, None)
    except InvalidTag:
        raise InputError("changed on its way, or of another sum") from None
    return content


MASK_PIECE = 2**18
"""Bytes of a piece, which stay in a processor's cache."""

KEY_BYTES = 32

Words = NDArray[np.unsignedinteger[Any]]
"""Whole numbers modulo 2^32 or 2^64."""


def add_mask(vector: Words, key: bytes, *, subtract: bool = False) -> None:
    """Add the mask of a key, which makes one mask only, to an array in place, or subtract it."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros, made = bytes(MASK_PIECE), bytearray(MASK_PIECE)
    little = vector.dtype.newbyteorder("<")
    mask = np.frombuffer(made, little)
    combine = np.subtract if subtract else np.add
    for begin in range(0, len(vector), len(mask)):
        piece = vector[begin : begin + len(mask)]
        cipher.update_into(zeros, made)
        combine(piece, mask[: len(piece)], out=piece)


PRIME = 2**256 + 297
"""The least prime above 2^256, so that a secret of 32 bytes is one number of the field."""

SECRET_BYTES, SHARE_BYTES = 32, 33


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of a secret of 32 bytes, for the places 1, 2, ..., `count`.

    >>> shares = split_secret(bytes(31) + b"!", threshold=2, count=3)
    >>> joined_secret({3: shares[2], 1: shares[0]})[-1:]
    b'!'
    """
    others = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients = [int.from_bytes(secret, "big"), *others]
    values = [polynomial_at(coefficients, place, PRIME) for place in range(1, count + 1)]
    return [value.to_bytes(SHARE_BYTES, "big") for value in values]


def joined_secret(shares: Mapping[int, bytes]) -> bytes:
    """The secret of some shares, by their places."""
    points = {place: int.from_bytes(share, "big") for place, share in shares.items()}
    secret = at_zero(points, PRIME)
    require(secret < 2 ** (8 * SECRET_BYTES), "these are no shares of one secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def polynomial_at(coefficients: Sequence[int], x: int, prime: int) -> int:
    """The value of a polynomial, whose constant coefficient is first, by Horner's rule.

    >>> polynomial_at([1234, 166, 94], 2, 1613)
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


def read_public_key(file: Path) -> bytes:
    """A node's public key as Flower stores it; see `load_public_key`."""
    return encoded(load_public_key(file))


def load_public_key(file: Path) -> "ec.EllipticCurvePublicKey":
    """A node's public key."""
    line = "no public ECDSA key, as ssh-keygen writes it to node.key.pub"
    return _read_key(file, load_ssh_public_key, ec.EllipticCurvePublicKey, line)


def read_private_key(file: Path) -> "ec.EllipticCurvePrivateKey":
    """A node's private key."""
    load = partial(load_ssh_private_key, password=None)
    line = "a node's key is an ECDSA private key without a passphrase, as"
    made = f"{line} ssh-keygen -t ecdsa -b 384 makes it"
    return _read_key(file, load, ec.EllipticCurvePrivateKey, made)


def _read_key(file: Path, load: Callable[[bytes], Any], kind: type, line: str) -> Any:
    """The key in a file; `InputError` with a line if it is not of a kind."""
    require(file.is_file(), f"{file}: no such file")
    with contextlib.suppress(ValueError, UnsupportedAlgorithm):
        key = load(file.read_bytes())
        if isinstance(key, kind):
            return key
    raise InputError(f"{file}: {line}")


def encoded(key: Any) -> bytes:
    """A public key as Flower stores it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def decoded(key: bytes) -> Any:
    """The inverse of `encoded`."""
    return load_pem_public_key(key)
