"""A federation of real processes: a SuperLink, `fedprox node` and `fedprox deploy`."""

import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from fedprox.deployment.certificates import (
    host_names,
    make_node_key,
    new_authority,
    superlink_files,
)
from fedprox.deployment.processes import Child, running
from fedprox.deployment.trial import VALID, local_superlink
from fedprox.files.whole import replace_private


class Machines:
    """The processes of a federation.

    Args:
        folder: Where everything lies.
        superlink: The address, the certificate and the secret of the SuperLink.
        tables: The nodes' files, without what all of them share.
    """

    def __init__(self, folder: Path, superlink: Any, tables: Sequence[Mapping[str, Any]]) -> None:
        self.folder, self.stack = folder, ExitStack()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.operator_file = folder / "superlink.toml"
        connection = {"ca_certificate": str(superlink.ca_certificate)}
        known = {**connection, "address": superlink.address, "secret": str(superlink.secret)}
        self.operator_file.write_text(tomli_w.dumps(known))
        self.files = []
        for i, table in enumerate(tables):
            own = folder / f"node-{i}"
            _, public = make_node_key(own)
            superlink.register(public)
            file = own / "node.toml"
            shared = {**connection, "superlink": superlink.address, "key": "node.key"}
            file.write_text(tomli_w.dumps({"name": own.name, "folder": ".", **shared, **table}))
            self.files.append(file)

    def start(self, i: int) -> None:
        """Start a node."""
        file = self.files[i]
        arguments = ["node", str(file), "--devices", "1"]
        program = Child("fedprox.cli:main", arguments, file.with_name("node.log"))
        (self.processes[i],) = self.stack.enter_context(running([program]))

    def kill(self, i: int) -> None:
        """Kill a node (SIGKILL)."""
        self.processes[i].kill()
        self.processes[i].wait()

    def operate(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start `fedprox deploy`."""
        log = (self.folder / "operator.log").open("ab")
        command = [sys.executable, "-m", "fedprox", "deploy", *arguments]
        command += ["--superlink", str(self.operator_file)]
        with log:
            return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    @property
    def said(self) -> str:
        """What operators printed so far."""
        return (self.folder / "operator.log").read_text()

    def wait_for(self, text: str, times: int = 1, seconds: float = 240) -> None:
        """Wait until operators have printed a text."""
        deadline = time.monotonic() + seconds
        while self.said.count(text) < times:
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)


@contextmanager
def machines(folder: Path, tables: Sequence[Mapping[str, Any]]) -> Iterator[Machines]:
    """Start a SuperLink and a node for each table."""
    with local_superlink(folder / "superlink") as superlink:
        federation = Machines(folder, superlink, tables)
        with federation.stack:
            for i in range(len(tables)):
                federation.start(i)
            yield federation


def finish(operator: "subprocess.Popen[bytes]", seconds: float = 600) -> int:
    """The exit status of an operator."""
    try:
        return operator.wait(seconds)
    finally:
        operator.kill()


def left_over(folder: Path) -> list[int]:
    """Processes whose command line or environment names a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        for name in ("cmdline", "environ"):
            try:
                if str(folder).encode() in (process / name).read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue
    return sorted(set(found))


def interrupt(process: "subprocess.Popen[bytes]") -> None:
    """Send Ctrl-C."""
    process.send_signal(signal.SIGINT)


def written_authority(folder: Path, valid: datetime.timedelta = VALID) -> Path:
    """Write the files of a SuperLink of this machine; return the authority's certificate."""
    folder.mkdir(exist_ok=True)
    files = superlink_files(new_authority(VALID), host_names("localhost"), valid)
    replace_private(folder, files)
    return folder / "ca.pem"
