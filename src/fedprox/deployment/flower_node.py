"""A node's end of the network over Flower: requests that reach its SuperNode are answered here."""

import contextlib
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedprox.deployment.flower_calls import (
    PATIENCE,
    Incoming,
    Lost,
    Runtime,
    environment,
    finish,
    free_port,
    heartbeats,
    packed,
    push,
    require_address,
    require_certificates,
    require_flower,
    runtime_of,
    unpacked,
    until_next_look,
)
from fedprox.deployment.network import Parcel
from fedprox.deployment.processes import Program, running
from fedprox.errors import printable, reason, require
from fedprox.files.whole import write_private

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
    )
    from flwr.supercore.constant import TaskType


class NodeConnection(NamedTuple):
    """How a node reaches the SuperLink.

    Attributes:
        superlink: The SuperLink's address, `host:port`.
        ca_certificate: The certificate in PEM of the authority that signed the SuperLink's.
        key: The node's private key. The operator registers its public key.
        folder: Where the SuperNode keeps its log, its settings and a secret.
    """

    superlink: str
    ca_certificate: Path
    key: Path
    folder: Path


def serve(
    answer: Callable[[Parcel], Parcel], connection: NodeConnection, stop: threading.Event
) -> None:
    """Answer the requests that reach a node, until `stop` is set.

    Runs a SuperNode as a child process and starts it again when it ends. What keeps the node from
    its SuperLink is logged as a warning, once.

    Args:
        answer: (request) -> answer. If it raises an error, the error's message is the answer.
        connection: How to reach the SuperLink.
        stop: Ends the function after the current answer.

    Raises:
        InputError: If Flower is not installed, or a file is missing.
    """
    require_flower()
    require_address(connection.superlink)
    require_certificates(connection.ca_certificate)
    _require_key(connection.key)
    connection.folder.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger(__name__)
    journal = _Journal(connection)
    pause = 1.0
    while not stop.is_set():
        with _supernode(connection) as (runtime, alive):
            connected = _answer_all(answer, runtime, alive, journal, stop)
        if not stop.is_set():
            if connected:
                log.warning("the SuperNode ended; see %s; starting it again", journal.file)
            pause = 1.0 if connected else min(2 * pause, 15.0)
            stop.wait(pause)


def _require_key(file: Path) -> None:
    """Raise `InputError` unless a file holds a private key that Flower accepts."""
    require(file.is_file(), f"{file}: no such file")
    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except ValueError:
        key = None
    require(
        isinstance(key, ec.EllipticCurvePrivateKey),
        f"{file}: a node's key is an ECDSA private key without a passphrase, as "
        "ssh-keygen -t ecdsa -b 384 makes it",
    )


@contextlib.contextmanager
def _supernode(connection: NodeConnection) -> Iterator[tuple[Runtime, Callable[[], bool]]]:
    """Run a SuperNode, and yield access to its tasks and whether it is alive."""
    secret = connection.folder / "secret"
    write_private(secret, secrets.token_bytes(32))
    port = free_port()
    options = {
        "--superlink": connection.superlink,
        "--root-certificates": connection.ca_certificate,
        "--auth-supernode-private-key": connection.key,
        "--isolation": "process",
        "--superexec-auth-secret-file": secret,
        "--host": "127.0.0.1",
        "--port": port,
    }
    program = Program(
        entry=f"{Path(__file__).with_name('supernode.py')}:main",
        arguments=[str(part) for option in options.items() for part in option],
        log=connection.folder / "supernode.log",
        environment=environment(connection.folder / "flwr"),
    )
    runtime = runtime_of(f"127.0.0.1:{port}", None, secret.read_bytes(), seconds=0.0)
    with running([program]) as [process], contextlib.closing(runtime.client):
        yield runtime, lambda: process.poll() is None


class _Journal:
    """Reports what is new in a SuperNode's log, each problem once."""

    def __init__(self, connection: NodeConnection) -> None:
        self.connection = connection
        self.file = connection.folder / "supernode.log"
        self.position = self.file.stat().st_size if self.file.exists() else 0
        self.reported = ""
        self.dropped: set[str] = set()  # messages that the SuperNode has given up

    def read(self) -> bool:
        """Log what is new, and return whether the SuperNode has connected."""
        with self.file.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self.position:
                self.position = 0  # the log was truncated
            file.seek(self.position)
            new = file.read()
        self.position += len(new)
        text = new.decode(errors="replace")
        self.dropped.update(re.findall(r"(?:Ignoring|Failed to receive) message (\w+)", text))
        problem, node = self._problem(text)
        log = logging.getLogger(__name__)
        if node:
            log.info("connected to %s as node %s", self.connection.superlink, node)
            self.reported = ""
        elif "Connection successful" in text and self.reported:
            log.info("SuperLink %s: it answers again", self.connection.superlink)
            self.reported = ""
        if problem and problem != self.reported:
            log.warning("SuperLink %s: %s; trying again", self.connection.superlink, problem)
            self.reported = problem
        return bool(node)

    def _problem(self, text: str) -> tuple[str, str]:
        """What keeps the SuperNode from its SuperLink, and the node's identifier if nothing."""
        if connected := re.search(r"SuperNode ID: (\d+)", text):
            return "", connected[1]
        if "code: 2004" in text:
            return (
                f"it refuses the key {self.connection.key}, which is not registered, or which "
                "another SuperNode uses or used when it crashed less than a minute ago"
            ), ""
        if "CERTIFICATE_VERIFY_FAILED" in text:
            authority = f"its certificate was not signed by {self.connection.ca_certificate}"
            return f"{authority} or is for another address", ""
        if "Connection attempt failed" in text:
            return "it does not answer", ""
        if failed := re.search(r"Exit Code: \d+\n(.*?)\n\n", text, re.DOTALL):
            return " ".join(failed[1].split()), ""
        return "", ""


def _answer_all(
    answer: Callable[[Parcel], Parcel],
    runtime: Runtime,
    alive: Callable[[], bool],
    journal: _Journal,
    stop: threading.Event,
) -> bool:
    """Answer requests while the SuperNode lives; whether it had connected to the SuperLink."""
    log = logging.getLogger(__name__)
    connected, quiet_since = False, time.monotonic()
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while alive() and not stop.is_set():
        connected |= journal.read()
        try:
            runtime.headers.token = runtime.client.AcquireTask(request).token
            if runtime.headers.token:
                _answer_one(answer, runtime, journal)
                quiet_since = time.monotonic()
        except httpx.TransportError:  # the SuperNode starts or has ended
            pass
        except (httpx.HTTPStatusError, Lost) as error:  # Flower reports it to the operator
            log.warning("a request was lost: %s", reason(error))
        stop.wait(until_next_look(quiet_since))
    return connected | journal.read()


def _answer_one(answer: Callable[[Parcel], Parcel], runtime: Runtime, journal: _Journal) -> None:
    """Answer the request of the task that was taken."""
    task = runtime.client.PullTaskInput(PullTaskInputRequest())
    node, run = task.context.node_id, task.run.run_id
    with heartbeats(runtime):
        message = _request(runtime, node, run, journal)
        try:
            content = packed(answer(unpacked(message.content)), {})
        except Exception as error:
            logging.getLogger(__name__).exception("a request failed")
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            content = Error(code, printable(f"{type(error).__name__}: {reason(error)}"))
        push(runtime, node, run, [Message(content, reply_to=message)])
    finish(runtime, SubStatus.COMPLETED)


def _request(runtime: Runtime, node: int, run: int, journal: _Journal) -> "Message":
    """The request of the current task. The SuperNode may still be receiving it.

    If its run has ended meanwhile, the SuperNode leaves a task whose request never arrives.
    """
    since = time.monotonic()
    while not (reply := runtime.client.PullMessages(PullAppMessagesRequest())).messages_list:
        if time.monotonic() - since > PATIENCE:
            raise Lost("the SuperNode has a task without a request")
        time.sleep(until_next_look(since))
    incoming = Incoming(reply.message_object_trees[0])
    left = len(incoming.missing)
    while (message := incoming.fetch(runtime, node, run)) is None:
        journal.read()
        if len(incoming.missing) < left:
            left, since = len(incoming.missing), time.monotonic()
        if incoming.message in journal.dropped or time.monotonic() - since > PATIENCE:
            finish(runtime, SubStatus.FAILED)
            raise Lost("its run has ended, or it did not arrive")
        time.sleep(until_next_look(since))
    return message
