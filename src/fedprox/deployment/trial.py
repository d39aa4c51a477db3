"""A trial on one machine: a SuperLink and nodes as processes, which share out the clients."""

import contextlib
import datetime
import functools
import ipaddress
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedprox.algorithms import ALGORITHMS
from fedprox.deployment import flower
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


def free_port() -> int:
    """A port of the loopback that no process uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def local_superlink(folder: Path) -> Iterator[LocalSuperLink]:
    """Run a SuperLink on a free port of the loopback."""
    flower.require_flower()
    folder.mkdir(parents=True, exist_ok=True)
    certificate = make_certificate(folder)
    secret = folder / "secret"
    write_private(secret, secrets.token_hex(32).encode())
    port = free_port()
    address = f"127.0.0.1:{port}"
    options = {
        "--host": "127.0.0.1",
        "--port": port,
        "--isolation": "process",
        "--superexec-auth-secret-file": secret,
        "--ssl-certfile": certificate,
        "--ssl-keyfile": folder / "server.key",
        "--ssl-ca-certfile": certificate,
    }
    program = Child(
        entry=flower.command("flower-superlink"),
        arguments=[
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            *(str(part) for option in options.items() for part in option),
        ],
        log=folder / "superlink.log",
        environment=flower.environment(folder / "flwr"),
    )
    control = flower.control_link(address, certificate)
    with running([program]) as [process], contextlib.closing(control):
        deadline = time.monotonic() + 60
        while True:
            try:
                flower.require_answer(control)
                break
            except httpx.TransportError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    text = f"the SuperLink did not start; end of {program.log}:"
                    raise ConnectionError(f"{text}\n{tail(program.log)}") from error
            time.sleep(0.1)

        register = functools.partial(flower.register_node, control)
        yield LocalSuperLink(address, certificate, secret, register)


def make_node_key(folder: Path) -> tuple[Path, Path]:
    """Make the key of a node as `ssh-keygen -t ecdsa -b 384` does, without a passphrase."""
    flower.require_flower()
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / "node.key", folder / "node.key.pub"
    encoding = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    write_private(private, key.private_bytes(*encoding, serialization.NoEncryption()))
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(*openssh) + b"\n")
    return private, public


def make_certificate(folder: Path) -> Path:
    """Write a server's certificate, which is its own authority, and its key; return the first."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), loopback]), critical=False
        )
        .sign(key, hashes.SHA384())
    )
    certificate = folder / "server.pem"
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(folder / "server.key", private)
    return certificate


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
