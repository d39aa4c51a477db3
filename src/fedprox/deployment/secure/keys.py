"""Keys of a secure sum: signatures of nodes, agreements between two of them, sealed shares.

A node signs with the key by which the SuperLink knows it. What is signed begins with `PURPOSE`,
which no request of Flower's does.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fedprox.deployment.endpoints import load_public_key, read_private_key
from fedprox.errors import InputError, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PURPOSE = b"fedprox secure sum, version 1: "

NONCE = bytes(12)
"""Every key that seals is made for one message, so the nonce may be fixed."""


class Identity(NamedTuple):
    """Who a node is, and whom it knows.

    Attributes:
        name: The node's name.
        key: Its private key.
        peers: The public keys of the other nodes, by their names.
    """

    name: str
    key: "ec.EllipticCurvePrivateKey"
    peers: Mapping[str, "ec.EllipticCurvePublicKey"]

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
    """The identity of a node, from its private key and the public keys of others.

    Raises:
        InputError: If a file is missing or has no such key, two nodes have one key, or the node is
            among its peers.
    """
    require(name not in peers, f"policy.secure.peers: {name!r} is the node itself")
    own = read_private_key(key)
    others = {each: load_public_key(file) for each, file in peers.items()}
    keys = [own.public_key(), *others.values()]
    numbers = {each.public_numbers() for each in keys}
    require(len(numbers) == len(keys), "policy.secure.peers: two nodes have the same key")
    return Identity(name, own, others)


def agreed(own: "X25519PrivateKey", other: bytes, purpose: bytes) -> bytes:
    """A key of 32 bytes that two nodes have in common.

    Args:
        own: The private key of one of them.
        other: The public key of the other.
        purpose: What the key is for; different purposes have different keys.

    Raises:
        InputError: If the public key has no agreement.
    """
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
    """The inverse of `seal`.

    Raises:
        InputError: If it was changed, or sealed with another key.
    """
    try:
        content: bytes = ChaCha20Poly1305(key).decrypt(NONCE, sealed, None)
    except InvalidTag:
        raise InputError("changed on its way, or of another sum") from None
    return content
