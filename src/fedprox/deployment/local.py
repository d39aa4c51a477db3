"""A trial federation on one machine: a SuperLink on the loopback, with certificates and keys."""

import contextlib
import datetime
import functools
import ipaddress
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedprox.deployment.endpoints import free_port
from fedprox.deployment.flower import (
    command,
    control_link,
    environment,
    register_node,
    require_answer,
    require_flower,
)
from fedprox.deployment.processes import Program, running, tail
from fedprox.files.whole import write_private

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

VALID = datetime.timedelta(days=30)


class LocalSuperLink(NamedTuple):
    """A SuperLink on this machine.

    Attributes:
        address: Its address, `host:port`.
        ca_certificate: The certificate of the authority that signed its certificate.
        secret: The file with the secret that the operator's process needs.
        register: (file of a public key) -> the identifier of the node that has this key.
    """

    address: str
    ca_certificate: Path
    secret: Path
    register: Callable[[Path], int]


@contextlib.contextmanager
def local_superlink(folder: Path) -> Iterator[LocalSuperLink]:
    """Run a SuperLink on a free port of the loopback.

    Args:
        folder: Where its certificates, secret and log are written.

    Yields:
        How to reach it. It ends with the context.

    Raises:
        InputError: If Flower is not installed.
        ConnectionError: If it does not start.
    """
    require_flower()
    folder.mkdir(parents=True, exist_ok=True)
    ca_certificate = _make_certificates(folder)
    secret = folder / "secret"
    write_private(secret, secrets.token_hex(32).encode())
    address = f"127.0.0.1:{free_port()}"
    options = {
        "--host": "127.0.0.1",
        "--port": address.rpartition(":")[2],
        "--isolation": "process",
        "--superexec-auth-secret-file": secret,
        "--ssl-certfile": folder / "server.pem",
        "--ssl-keyfile": folder / "server.key",
        "--ssl-ca-certfile": ca_certificate,
    }
    program = Program(
        entry=command("flower-superlink"),
        arguments=[
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            *(str(part) for option in options.items() for part in option),
        ],
        log=folder / "superlink.log",
        environment=environment(folder / "flwr"),
    )
    control = control_link(address, ca_certificate)
    with running([program]) as [process], contextlib.closing(control):
        deadline = time.monotonic() + 60
        while True:
            try:
                require_answer(control)
                break
            except httpx.TransportError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    text = f"the SuperLink did not start; end of {program.log}:"
                    raise ConnectionError(f"{text}\n{tail(program.log)}") from error
            time.sleep(0.1)

        yield LocalSuperLink(
            address, ca_certificate, secret, functools.partial(register_node, control)
        )


def make_node_key(folder: Path) -> tuple[Path, Path]:
    """Make the key of a node as `ssh-keygen -t ecdsa -b 384` does, without a passphrase.

    Args:
        folder: Where `node.key` and `node.key.pub` are written.

    Returns:
        The files of the private and the public key.
    """
    require_flower()
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / "node.key", folder / "node.key.pub"
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    write_private(private, key.private_bytes(*encoding, serialization.NoEncryption()))
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(*openssh) + b"\n")
    return private, public


def _make_certificates(folder: Path) -> Path:
    """Write an authority's certificate and a server's certificate and key; return the first."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedprox trial authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), loopback])
    public = authority.public_key()
    uses = ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment"]
    uses += ["key_agreement", "crl_sign", "encipher_only", "decipher_only"]
    usage = x509.KeyUsage(key_cert_sign=True, **dict.fromkeys(uses, False))
    of_authority = (
        _certificate(issuer, issuer, public)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(usage, critical=True)
        .sign(authority, hashes.SHA384())
    )
    of_server = (
        _certificate(subject, issuer, server.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(authority, hashes.SHA384())
    )
    ca_certificate = folder / "ca.pem"
    ca_certificate.write_bytes(of_authority.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(of_server.public_bytes(serialization.Encoding.PEM))
    private = server.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(folder / "server.key", private)
    return ca_certificate


def _certificate(
    subject: "x509.Name", issuer: "x509.Name", key: "ec.EllipticCurvePublicKey"
) -> "x509.CertificateBuilder":
    """A certificate of a public key that still needs extensions and a signature."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + VALID)
    )
