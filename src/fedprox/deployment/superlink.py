"""A SuperLink as a process of this machine, and the keys that may join at it."""

import contextlib
import datetime
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedprox.deployment import flower
from fedprox.deployment.certificates import (
    address_of,
    certificate_names,
    der,
    read_certificates,
    require_pair,
)
from fedprox.deployment.crypto import read_public_key
from fedprox.deployment.flower import Link
from fedprox.deployment.processes import Child, running, tail
from fedprox.errors import require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx

PORT = 9092

STARTS = 60.0
"""Seconds that a SuperLink may take to start."""

ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine, with the one at which the machine reaches itself."""


class SuperLink(NamedTuple):
    """A SuperLink that runs.

    Attributes:
        process: The operating system's process.
        control: A connection to it, to register nodes.
        log: The file with what it says.
    """

    process: "subprocess.Popen[bytes]"
    control: Link
    log: Path


@contextlib.contextmanager
def running_superlink(
    folder: Path, host: str, port: int, *, database: bool, level: str
) -> Iterator[SuperLink]:
    """Run a SuperLink by the files of a folder, which gets its log and settings too.

    With a database it knows nodes and runs when it is started again. It logs from a level on.
    """
    files = {name: folder / name for name in ("server.pem", "server.key", "ca.pem", "secret")}
    options = {
        "--host": host,
        "--port": port,
        "--isolation": "process",  # the operator's process does the server's work
        "--superexec-auth-secret-file": files["secret"],
        "--ssl-certfile": files["server.pem"],
        "--ssl-keyfile": files["server.key"],
        "--ssl-ca-certfile": files["ca.pem"],
    }
    options |= {"--database": folder / "superlink.db"} if database else {}
    program = Child(
        entry=flower.command("flower-superlink"),
        arguments=[
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            *(str(part) for option in options.items() for part in option),
        ],
        log=folder / "superlink.log",
        environment={**flower.environment(folder / "flwr"), "FLWR_LOG_LEVEL": level},
    )
    address = address_of(ANY.get(host, host), port)
    control = flower.own_control_link(address, der(read_certificates(files["server.pem"])[0]))
    with running([program]) as [process], contextlib.closing(control):
        deadline = time.monotonic() + STARTS
        while True:
            try:
                flower.require_answer(control)
                break
            except httpx.TransportError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    text = f"the SuperLink did not start; end of {program.log}:"
                    raise ConnectionError(f"{text}\n{tail(program.log)}") from error
            time.sleep(0.1)
        yield SuperLink(process, control, program.log)


def check_folder(folder: Path) -> str:
    """The names in a SuperLink's certificate; `InputError` unless it can start with a folder."""
    certificate = require_pair(folder / "server.pem", folder / "server.key")
    flower.require_certificates(folder / "ca.pem")
    require((folder / "secret").is_file(), f"{folder / 'secret'}: no such file")
    end = certificate.not_valid_after_utc
    require(
        datetime.datetime.now(datetime.UTC) < end,
        f"{folder / 'server.pem'}: it ended on {end:%Y-%m-%d}; renew it with "
        "`fedprox certificates --renew superlink`",
    )
    return f"certificate for {', '.join(certificate_names(certificate))}, until {end:%Y-%m-%d}"


def keys_in(folder: Path) -> dict[str, bytes]:
    """The public keys of the nodes that may join, by their names, as Flower stores them."""
    files = sorted((folder / "nodes").glob("*.pub"))
    require(files, f"{folder / 'nodes'}: no node's public key, NAME.pub; nobody could join")
    keys = {file.stem: read_public_key(file) for file in files}
    require(len({*keys.values()}) == len(keys), f"{folder / 'nodes'}: two files have the same key")
    return keys


def hold_to(control: Link, keys: dict[str, bytes]) -> list[str]:
    """Register the keys of nodes, remove all others, and say what was done.

    A key that was removed once cannot come back.
    """
    known = {node.key: node for node in flower.registered_nodes(control)}
    removed = [name for name, key in keys.items() if key in known and known[key].removed]
    require(
        not removed,
        f"nodes/{'.pub, nodes/'.join(removed)}.pub: this key was removed before and cannot come "
        "back; the node needs a new one",
    )
    lines = []
    for name, key in keys.items():
        if key not in known:
            flower.register_key(control, key)
            lines.append(f"node {name} may join")
    for key, node in known.items():
        if key not in keys.values() and not node.removed:
            flower.unregister_node(control, node.number)
            lines.append(f"node {node.number}, whose key is not in nodes/, was removed")
    return lines
