"""A trial on one machine: a SuperLink and nodes as processes, which share out the clients."""

import contextlib
import datetime
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedprox.algorithms import ALGORITHMS
from fedprox.deployment import flower
from fedprox.deployment.certificates import (
    host_names,
    make_node_key,
    new_authority,
    superlink_files,
)
from fedprox.deployment.crypto import read_public_key
from fedprox.deployment.flower_operator import operator_network
from fedprox.deployment.network import Network
from fedprox.deployment.policy import REPORTS, Policy
from fedprox.deployment.processes import Child, running
from fedprox.deployment.superlink import running_superlink
from fedprox.errors import InputError, require, require_whole
from fedprox.experiment.resolved import BASED, existing
from fedprox.experiment.sections import DEPLOYED, Experiment
from fedprox.files.toml import parse_toml
from fedprox.files.whole import replace_private, write_whole
from fedprox.models import MODELS

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
    """Run a SuperLink on a free port of the loopback, with new keys and certificates."""
    flower.require_flower()
    folder.mkdir(parents=True, exist_ok=True)
    files = superlink_files(new_authority(VALID), host_names("localhost"), VALID)
    replace_private(folder, files)
    port = free_port()
    running = running_superlink(folder, "127.0.0.1", port, database=False, level="INFO")
    with running as superlink:

        def register(public_key: Path) -> int:
            return flower.register_key(superlink.control, read_public_key(public_key))

        address = f"127.0.0.1:{port}"
        yield LocalSuperLink(address, folder / "ca.pem", folder / "secret", register)


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
