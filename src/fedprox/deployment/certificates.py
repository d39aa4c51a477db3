"""The keys and certificates of a federation, as one folder for each of its hosts.

* An authority, which signs nothing but the SuperLink's certificate. Nodes and the operator trust it
  alone, so its key is needed only to renew this certificate, and can be kept offline.
* The SuperLink's certificate, by which the others know that they have reached it.
* A key of each node, by which the SuperLink and the operator know the node. It has no certificate:
  its public key is registered, and so has no end.
* A secret of the operator and the SuperLink.

Certificates are those of RFC 5280 for P-384, as `openssl verify -x509_strict` accepts them.
"""

import contextlib
import datetime
import ipaddress
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedprox.deployment.crypto import load_public_key
from fedprox.errors import InputError, distinct, require
from fedprox.files.whole import replace_private

with contextlib.suppress(ImportError):  # `require_flower` reports it
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


Files = dict[str, bytes]
"""Contents of files by their paths in a folder."""

RESERVED = ("ca", "superlink", "operator")
"""Folders of a federation that are not a node's."""

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
DNS_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")

SKEW = datetime.timedelta(minutes=5)
"""How much a host's clock may be late when a certificate is new."""


class Authority(NamedTuple):
    """Who signs the SuperLink's certificate."""

    certificate: "x509.Certificate"
    key: "ec.EllipticCurvePrivateKey"

    @property
    def files(self) -> Files:
        """Its certificate and its private key."""
        return {"ca.pem": _pem(self.certificate), "ca.key": _private(self.key)}


def new_authority(valid: datetime.timedelta) -> Authority:
    """Make an authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedprox federation")])
    certificate = (
        _builder(name, name, key.public_key(), valid + SKEW)  # not before what it signs soon
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Authority(certificate, key)


def server_files(authority: Authority, names: Sequence[str], valid: datetime.timedelta) -> Files:
    """The SuperLink's certificate for some names or addresses, and its new private key."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "SuperLink")])
    issued = authority.certificate.subject
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    of_issuer = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(of_issuer.value)
    certificate = (
        _builder(subject, issued, key.public_key(), valid)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), critical=False)
        .add_extension(own, critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority.key, hashes.SHA384())
    )
    end, last = certificate.not_valid_after_utc, authority.certificate.not_valid_after_utc
    require(
        end <= last,
        f"the SuperLink's certificate would end on {end:%Y-%m-%d}, after its authority, which ends "
        f"on {last:%Y-%m-%d}; take fewer days, or make all certificates anew",
    )
    return {"server.pem": _pem(certificate), "server.key": _private(key)}


def _builder(
    subject: "x509.Name", issuer: "x509.Name", key: Any, valid: datetime.timedelta
) -> "x509.CertificateBuilder":
    """A certificate with the fields that all have: names, key, number and validity."""
    now = datetime.datetime.now(datetime.UTC)
    number = x509.random_serial_number()
    builder = x509.CertificateBuilder(issuer, subject, key, number)
    return builder.not_valid_before(now - SKEW).not_valid_after(now + valid)


def _usage(**uses: bool) -> "x509.KeyUsage":
    """The uses that a key's certificate allows."""
    every = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{use: uses.get(use, False) for use in every})


def _pem(certificate: "x509.Certificate") -> bytes:
    encoded: bytes = certificate.public_bytes(Encoding.PEM)
    return encoded


def der(certificate: "x509.Certificate") -> bytes:
    """A certificate as OpenSSL compares it."""
    encoded: bytes = certificate.public_bytes(Encoding.DER)
    return encoded


def _private(key: Any, form: str = "PKCS8") -> bytes:
    """A private key without a passphrase."""
    encoded: bytes = key.private_bytes(
        Encoding.PEM, getattr(serialization.PrivateFormat, form), serialization.NoEncryption()
    )
    return encoded


def host_names(host: str) -> list[str]:
    """The names of a host's certificate: its own, and those by which processes on it reach it.

    >>> host_names("fl.example.org")
    ['fl.example.org', 'localhost', '127.0.0.1', '::1']
    >>> host_names("[2001:DB8::7]")[0]
    '2001:db8::7'
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        name = str(ipaddress.ip_address(bare))
    except ValueError:
        labels = host.split(".")
        require(
            len(host) <= 253
            and all(DNS_LABEL.fullmatch(label) for label in labels)
            and not labels[-1].isdecimal(),  # an address that is not one, such as 10.0.0.256
            f"HOST = {host!r}; it must be a DNS name or an IP address, without a port",
        )
        name = host.lower()
    return list(dict.fromkeys([name, "localhost", "127.0.0.1", "::1"]))


def _general(name: str) -> "x509.GeneralName":
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def address_of(name: str, port: int) -> str:
    """The address `host:port` of a name or an IP address.

    >>> address_of("2001:db8::7", 9092)
    '[2001:db8::7]:9092'
    """
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def node_key_files() -> Files:
    """A node's new key, as `ssh-keygen -t ecdsa -b 384` makes it, without a passphrase."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {"node.key": _private(key, "OpenSSH"), "node.key.pub": public + b"\n"}


def make_node_key(folder: Path) -> tuple[Path, Path]:
    """Write a node's new key, and return its private and its public file."""
    folder.mkdir(parents=True, exist_ok=True)
    private, public = (folder / name for name in ("node.key", "node.key.pub"))
    replace_private(folder, node_key_files())
    return private, public


def superlink_files(authority: Authority, names: Sequence[str], valid: datetime.timedelta) -> Files:
    """The SuperLink's folder, without the public keys of nodes."""
    return {
        **server_files(authority, names, valid),
        "ca.pem": authority.files["ca.pem"],
        "secret": f"{secrets.token_hex(32)}\n".encode(),
    }


def federation_files(
    host: str,
    nodes: Mapping[str, Path | None],
    *,
    port: int,
    valid: datetime.timedelta,
    ca_valid: datetime.timedelta,
) -> Files:
    """The folders of a federation's hosts; nodes that have made their own key give its file."""
    names, authority = host_names(host), new_authority(ca_valid)
    superlink, address = superlink_files(authority, names, valid), address_of(names[0], port)
    keys = {
        name: node_key_files() if public is None else {"node.key.pub": public.read_bytes()}
        for name, public in nodes.items()
    }
    public = {f"{name}.pub": files["node.key.pub"] for name, files in keys.items()}
    ca, secret = superlink["ca.pem"], superlink["secret"]
    operator = operator_file(address, list(nodes)).encode()
    folders: dict[str, Files] = {
        "ca": authority.files,
        "superlink": superlink | {f"nodes/{name}": key for name, key in public.items()},
        "operator": {"superlink.toml": operator, "ca.pem": ca, "secret": secret, **public},
    }
    for name, files in keys.items():
        folders[name] = {"node.toml": node_file(name, address).encode(), "ca.pem": ca, **files}
    return {
        f"{folder}/{file}": text for folder in folders for file, text in folders[folder].items()
    }


def named_nodes(given: Sequence[str]) -> dict[str, Path | None]:
    """Nodes by their names; one that has made its own key is given by its public key, NAME.pub."""
    files = [Path(each) if each.endswith(".pub") else None for each in given]
    names = [each if file is None else file.stem for each, file in zip(given, files, strict=True)]
    for name, file in zip(names, files, strict=True):
        require(
            NODE_NAME.fullmatch(name) and name.lower() not in RESERVED,
            f"NODE = {name!r}; a name has letters, digits and . _ -, begins with one of the first "
            f"two, has at most 100 and is not {', '.join(RESERVED)}",
        )
        if file is not None:
            load_public_key(file)
    list(distinct("NODE:", map(str.lower, names)))  # folders of some systems ignore case
    return dict(zip(names, files, strict=True))


def operator_file(address: str, nodes: Sequence[str]) -> str:
    """The operator's file, `superlink.toml`."""
    keys = "".join(f'"{name}" = "{name}.pub"\n' for name in nodes)
    return f"""\
address = "{address}"
ca_certificate = "ca.pem"
secret = "secret"            # whoever has this file can run experiments

[keys]                       # only these nodes take part, each under its name
{keys}"""


def node_file(name: str, address: str) -> str:
    """A node's file, `node.toml`, whose data are to be filled in."""
    return f"""\
name = "{name}"
superlink = "{address}"
ca_certificate = "ca.pem"
key = "node.key"             # stays on this host
folder = "state"             # the node's own: client state, logs, what it has answered

[data]                       # fill in; `fedprox node` runs in this folder
table = "patients.csv"       # a row of names, and a row for each patient
label = "outcome"            # the column that is to be predicted
test = 0.2                   # the share of rows that only measure the model
# client = "ward"            # the column that names the clients; without it the node is one client
"""


def renew_server(out: Path, ca_key: Path, valid: datetime.timedelta) -> list[str]:
    """Replace the SuperLink's key and certificate, and return the names of the new one.

    It has the names of the old one. The authority, and so what all other hosts have, stays.
    """
    folder = out / "superlink"
    (old,) = read_certificates(folder / "server.pem")[:1]
    authority = read_authority(folder / "ca.pem", ca_key)
    names = certificate_names(old)
    replace_private(folder, server_files(authority, names, valid))
    return names


def renew_node(out: Path, name: str, own: Path | None) -> None:
    """Replace a node's key by a new one, or by its own, at the operator and at the SuperLink."""
    # imported here, since it loads JAX, which takes a second and which no other function needs
    from fedprox.deployment.node_file import read_superlink_file

    known = read_superlink_file(out / "operator" / "superlink.toml").keys
    require(name in known, f"--renew {name}: the nodes are {', '.join(known) or 'none'}")
    files = node_key_files() if own is None else {"node.key.pub": own.read_bytes()}
    public = files["node.key.pub"]
    for folder in (out / name, out / "superlink" / "nodes"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    of_node = {f"{name}/{file}": content for file, content in files.items()}
    at_others = [f"operator/{Path(known[name]).name}", f"superlink/nodes/{name}.pub"]
    replace_private(out, of_node | dict.fromkeys(at_others, public))


def read_certificates(file: Path) -> "list[x509.Certificate]":
    """The certificates in a file, the first of which is a server's own."""
    return _read(file, x509.load_pem_x509_certificates, "no certificates in PEM")


def read_key(file: Path) -> Any:
    """The private key of a certificate."""

    def load(text: bytes) -> Any:
        return serialization.load_pem_private_key(text, password=None)

    return _read(file, load, "no private key in PEM without a passphrase")


def _read(file: Path, load: Callable[[bytes], Any], line: str) -> Any:
    require(file.is_file(), f"{file}: no such file")
    try:
        return load(file.read_bytes())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(f"{file}: {line}") from None


def require_pair(certificate: Path, key: Path) -> "x509.Certificate":
    """The certificate in a file; `InputError` unless a key belongs to it."""
    first = read_certificates(certificate)[0]
    own, other = first.public_key(), read_key(key).public_key()
    spki = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    same = own.public_bytes(*spki) == other.public_bytes(*spki)
    require(same, f"{key}: it is not the private key of {certificate}")
    return first


def read_authority(certificate: Path, key: Path) -> Authority:
    """An authority of which another certificate is to be signed."""
    require(key.is_file(), f"{key}: no such file; --ca-key FILE says where the authority's key is")
    authority = Authority(require_pair(certificate, key), read_key(key))
    elliptic = isinstance(authority.key, ec.EllipticCurvePrivateKey)
    require(elliptic, f"{key}: of another kind than `fedprox certificates` makes")
    return authority


def certificate_names(certificate: "x509.Certificate") -> list[str]:
    """The names and addresses for which a certificate is."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in found if isinstance(each, x509.DNSName | x509.IPAddress)]
