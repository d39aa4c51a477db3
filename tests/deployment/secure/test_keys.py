"""Files of keys, agreements between two nodes, and a node's ledger."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedprox.deployment.crypto import agreed, read_identity, require_public, seal, unseal
from fedprox.deployment.kept import Revealed, read_kept, write_kept
from fedprox.errors import InputError

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
