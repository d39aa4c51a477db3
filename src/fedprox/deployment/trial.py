"""A trial on one machine: a SuperLink and nodes as processes, which share out the clients."""

import contextlib
import datetime
import functools
import ipaddress
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedprox.algorithms import ALGORITHMS
from fedprox.deployment.endpoints import free_port
from fedprox.deployment.flower import (
    command,
    control_link,
    environment,
    register_node,
    require_answer,
    require_flower,
)
from fedprox.deployment.flower_operator import operator_network
from fedprox.deployment.network import Network
from fedprox.deployment.policy import REPORTS, Policy
from fedprox.deployment.processes import Child, running, tail
from fedprox.errors import InputError, require, require_whole
from fedprox.experiment.resolved import BASED, existing
from fedprox.experiment.sections import DEPLOYED, Experiment
from fedprox.files.toml import parse_toml
from fedprox.files.whole import write_private, write_whole
from fedprox.models import MODELS

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
    """Run a SuperLink on a free port of the loopback."""
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
    program = Child(
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
    """Make the key of a node as `ssh-keygen -t ecdsa -b 384` does, without a passphrase."""
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


@contextlib.contextmanager
def local_nodes(
    experiment: Experiment,
    nodes: int,
    folder: Path,
    options: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> Iterator[Network]:
    """Start a SuperLink and nodes as processes on the loopback, and connect to them.

    Certificates and keys are made anew each time. Client state stays in the folder, so that a run
    can be resumed.
    """
    require_whole("--local", nodes)
    folder = folder.absolute()
    with local_superlink(folder / "superlink") as superlink:
        programs = []
        folders = [folder / f"node-{part + 1:0{len(str(nodes))}}" for part in range(nodes)]
        public = {own.name: make_node_key(own)[1] for own in folders}
        for part, own in enumerate(folders):
            superlink.register(public[own.name])
            file = own / "node.toml"
            table: dict[str, Any] = {
                "name": own.name,
                "superlink": superlink.address,
                "ca_certificate": str(superlink.ca_certificate),
                "key": "node.key",
                "folder": "state",
                **_data_of(experiment, file),
                "deal": {"part": part, "parts": nodes},
                "policy": {"report": [*REPORTS], **_names(allow), **_base_of(experiment)},
            }
            if experiment.deployment.secure is not None:
                peers = {name: str(key) for name, key in public.items() if name != own.name}
                given = experiment.deployment.secure.model_dump(include={"threshold", "honest"})
                table["policy"]["secure"] = {**given, "peers": peers}
            write_whole(file, tomli_w.dumps(table).encode())
            programs.append(
                Child(
                    entry="fedprox.cli:main",
                    arguments=["node", str(file), "--devices", "1", *options],
                    log=own / "node.log",
                )
            )
        with (
            running(programs) as processes,
            operator_network(
                superlink.address, superlink.ca_certificate, superlink.secret
            ) as network,
        ):

            def online() -> Sequence[int]:
                for program, process in zip(programs, processes, strict=True):
                    require(
                        process.poll() is None,
                        f"a node of the trial has ended; its log is {program.log}",
                    )
                return network.nodes()

            yield network._replace(nodes=online)


def _base_of(experiment: Experiment) -> dict[str, str]:
    """The key of a node's policy that names the file of the frozen values, if there are some."""
    if not any(key in experiment.model for key in BASED):
        return {}
    require(
        isinstance(experiment.initial, str),
        "--local: with model.frozen or model.lora, initial must be a file",
    )
    return {"base": str(existing("initial", experiment.initial, None).absolute())}


def check_allowed(experiment: Experiment, allow: Sequence[str]) -> None:
    """Raise `InputError` if the nodes of a trial would refuse a method, a model or a solver."""
    policy = Policy(**_names(allow))
    solver = experiment.solver.model_dump()
    for method in experiment.method:
        try:
            policy.check_names(method, experiment.model, solver)
        except InputError as error:
            names = str(method.get("name")), str(experiment.model.get("name"))
            own = [name for name in names if ":" in name and name not in allow]
            hint = f"; try it with --allow {own[0]}" if own else ""
            raise InputError(f"the nodes would refuse {error}{hint}") from None


def _names(allow: Sequence[str]) -> dict[str, Any]:
    """The methods and models of a trial's policy, empty for those of the library."""
    if not allow:
        return {}
    return {"methods": [*ALGORITHMS, *allow], "models": [*MODELS, *allow]}


def _data_of(experiment: Experiment, file: Path) -> dict[str, Any]:
    """The keys of a node's file about data, those of an earlier file if it is there.

    The experiment of a run that is resumed does not say where its data came from.
    """
    keys = ("data", "client_rows", "validation_share")
    if experiment.data.get("name") == DEPLOYED:
        require(
            file.is_file(),
            f"--local: {file} is not there; a trial is resumed with as many nodes as it had",
        )
        before = parse_toml(file.read_text(encoding="utf-8"))
        return {key: before[key] for key in keys if key in before}
    table = experiment.model_dump(include=set(keys), exclude_none=True)
    return {key: table[key] for key in keys if key in table}
