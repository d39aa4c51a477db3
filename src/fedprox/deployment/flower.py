"""The network over Flower: the operator's end and a node's end.

Flower's SuperLink stores messages; a SuperNode beside every node fetches and sends them. This
module takes the places that Flower has for an app's processes: the operator's process takes the
task of a run's ServerApp, a node's process takes the tasks of its SuperNode's ClientApp. So no code
travels, and both processes stay while messages come and go.
"""

import contextlib
import functools
import hashlib
import io
import logging
import os
import re
import secrets
import ssl
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedprox.deployment.flower_calls import (
    Incoming,
    Lost,
    Runtime,
    confirm,
    control_client,
    environment,
    finish,
    free_port,
    heartbeats,
    is_tls,
    packed,
    push,
    require_flower,
    runtime_of,
    unpacked,
)
from fedprox.deployment.network import Network, Parcel, Received
from fedprox.deployment.processes import Program, running
from fedprox.errors import InputError, printable, reason, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.app import ArrayRecord, Error, Message, Metadata
    from flwr.app.message import make_message
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, SubStatus
    from flwr.proto.control_pb2 import StartRunRequest, StopRunRequest
    from flwr.proto.fab_pb2 import Fab
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        GetNodesRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
    )
    from flwr.supercore.constant import TaskType
    from flwr.supercore.error import FlowerError

APP = b"""[project]
name = "fedprox"
version = "1.0.0"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedprox"

[tool.flwr.app.components]
serverapp = "fedprox:none"
clientapp = "fedprox:none"
"""
"""The app of every run. It holds no code: the operator and the nodes run their own."""

LIFETIME = 30 * 24 * 3600.0
"""Seconds until Flower drops a request. The coordinator gives up much earlier."""

PATIENCE = 60.0
"""Seconds for which a call repeats while the SuperLink does not answer."""

LOOK = 5.0
"""Seconds until the operator looks again whether a node has started again."""


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


# --- the operator ---


@contextlib.contextmanager
def operator_network(address: str, ca_certificate: Path, secret: Path) -> Iterator[Network]:
    """Connect to the nodes of a SuperLink.

    Starts a run of Flower, which lasts as long as the context. The SuperLink must run with
    `--isolation process` and the same secret. Tasks of other runs that wait at the SuperLink fail:
    they belong to processes that have ended.

    Args:
        address: The SuperLink's address, `host:port`.
        ca_certificate: The certificate in PEM of the authority that signed the SuperLink's.
        secret: The file that the SuperLink got as `--superexec-auth-secret-file`.

    Yields:
        The network. Its functions raise `ConnectionError` if the SuperLink does not answer for
        `PATIENCE` seconds or has ended the run.

    Raises:
        InputError: If Flower is not installed, or the SuperLink refuses the connection.
        ConnectionError: If the SuperLink does not answer.
    """
    require_flower()
    _require_address(address)
    _require_certificates(ca_certificate)
    require(secret.is_file(), f"{secret}: no such file")
    errors = functools.partial(_one_line, address, ca_certificate, secret)
    with contextlib.ExitStack() as stack:
        with errors():
            runtime = runtime_of(address, ca_certificate, secret.read_bytes(), seconds=10.0)
            stack.callback(runtime.client.close)
            run = _start_run(address, ca_certificate, runtime)
            stack.enter_context(heartbeats(runtime))
        runtime.retry.seconds = PATIENCE
        outcome, details = SubStatus.FAILED, ""
        requests = _Requests(runtime, run, errors)
        try:
            yield Network(requests.nodes, requests.send, requests.receive)
            outcome = SubStatus.COMPLETED
        except BaseException as error:
            details = printable(f"{type(error).__name__}: {reason(error)}")
            raise
        finally:
            runtime.retry.seconds = 0.0
            for request in requests.waiting:
                requests.drop(request)
            runtime.retry.seconds = 5.0
            with contextlib.suppress(httpx.HTTPError):
                finish(runtime, outcome, details)


def _require_address(address: str) -> None:
    """Raise `InputError` unless the address is `host:port`."""
    host, _, port = address.rpartition(":")
    require(
        host and "/" not in host and port.isdecimal() and 0 < int(port) < 65536,
        f"SuperLink {address!r}: an address is host:port, for instance fl.example.org:9092",
    )


def _require_certificates(file: Path) -> None:
    """Raise `InputError` unless a file holds certificates."""
    require(file.is_file(), f"{file}: no such file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError:
        raise InputError(f"{file}: no certificates in PEM") from None


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
def _one_line(address: str, ca_certificate: Path, secret: Path) -> Iterator[None]:
    """Report errors of the connection to a SuperLink in one line."""
    here = f"SuperLink {address}"
    try:
        yield
    except httpx.HTTPStatusError as error:
        known = FlowerError.from_json(error.response.text)
        text = known.message.rstrip(".") if known else f"HTTP status {error.response.status_code}"
        if error.request.url.path.endswith("acquire-task"):
            text = f"{text}; is {secret} its --superexec-auth-secret-file?"
            raise InputError(f"{here}: {text}") from error
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            text = "it has ended the run, on request or after a minute without a heartbeat"
        raise ConnectionError(f"{here}: {text}") from error
    except httpx.TransportError as error:
        if is_tls(error):
            text = f"{reason(error)}; is {ca_certificate} the certificate of its authority?"
            raise InputError(f"{here}: {text}") from error
        raise ConnectionError(f"{here} does not answer: {reason(error)}") from error


def packed_app() -> bytes:
    """The app of a run in Flower's format: the app's files, and a list with their hashes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("pyproject.toml", APP)
        line = f"pyproject.toml,{hashlib.sha256(APP).hexdigest()},{8 * len(APP)}"
        file.writestr(".info/CONTENT", line)
    return buffer.getvalue()


def _start_run(address: str, ca_certificate: Path, runtime: Runtime) -> int:
    """Submit a run and take its task."""
    control = control_client(address, ca_certificate, runtime.retry)
    try:
        started = control.StartRun(StartRunRequest(fab=Fab(content=packed_app())))
        if not started.run_id:
            raise ConnectionError(f"SuperLink {address} did not start a run")
        try:
            _take_task(runtime, started.run_id)
        except BaseException:
            with contextlib.suppress(httpx.HTTPError):
                control.StopRun(StopRunRequest(run_id=started.run_id))
            raise
    finally:
        control.close()
    run: int = started.run_id
    return run


def _take_task(runtime: Runtime, run: int, seconds: float = 30.0) -> None:
    """Take the task of a run."""
    deadline = time.monotonic() + seconds
    while True:
        runtime.headers.token = ""
        request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        taken = runtime.client.AcquireTask(request)
        runtime.headers.token = taken.token
        if taken.token and taken.task.run_id == run:
            runtime.client.PullTaskInput(PullTaskInputRequest())
            return
        if taken.token:
            finish(runtime, SubStatus.FAILED, "no fedprox deploy waits for this run")
        elif time.monotonic() > deadline:
            raise ConnectionError(
                "another process took the run's task: a flower-superexec, another fedprox deploy, "
                "or the SuperLink itself, which must run with --isolation process"
            )
        else:
            time.sleep(0.1)


class _Requests:
    """The requests of a run and their answers."""

    def __init__(self, runtime: Runtime, run: int, errors: Callable[[], Any]) -> None:
        self.runtime, self.run, self.errors = runtime, run, errors
        self.waiting: dict[str, tuple[int, str]] = {}  # by request: its node, `started` then
        self.started: dict[int, str] = {}  # by node: when its SuperNode connected
        self.incoming: dict[str, Incoming] = {}
        self.ready: list[Received] = []
        self.quiet_since = self.looked = time.monotonic()

    def nodes(self) -> Sequence[int]:
        """Identifiers of the nodes that are connected now."""
        with self.errors():
            reply = self.runtime.client.GetNodes(GetNodesRequest())
        self.started = {node.node_id: node.last_activated_at for node in reply.nodes}
        for request, (node, started) in list(self.waiting.items()):
            # Flower reports a node that is away only to those who ask before it is back
            if started and self.started.get(node, started) != started:
                self._fail(request, f"node {node} has started again since")
        return sorted(self.started)

    def send(self, parcels: Mapping[int, Parcel]) -> Mapping[int, str]:
        """Send requests by node, and return their identifiers."""
        if not parcels:
            return {}
        records: dict[int, ArrayRecord] = {}
        messages = [
            make_message(
                metadata=Metadata(
                    run_id=self.run,
                    message_id="",
                    src_node_id=SUPERLINK_NODE_ID,
                    dst_node_id=node,
                    reply_to_message_id="",
                    group_id="",
                    created_at=time.time(),
                    ttl=LIFETIME,
                    message_type="query",
                ),
                content=packed(parcel, records),
            )
            for node, parcel in parcels.items()
        ]
        with self.errors():
            stored = push(self.runtime, SUPERLINK_NODE_ID, self.run, messages)
        requests = {}
        for node, message, name in zip(parcels, messages, stored, strict=True):
            requests[node] = message.object_id
            if name:
                self.waiting[name] = node, self.started.get(node, "")
            else:
                self._fail(requests[node], f"node {node} is not connected")
        self.quiet_since = time.monotonic()
        return requests

    def receive(self, seconds: float) -> Sequence[Received]:
        """Wait for answers, at most so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            with self.errors():
                self._collect()
            now = time.monotonic()
            if self.waiting and now - self.looked > LOOK:
                self.looked = now
                self.nodes()
            if self.ready:
                self.quiet_since = now
            if self.ready or now >= deadline:
                received, self.ready = self.ready, []
                return received
            time.sleep(min(_pause(self.quiet_since), deadline - now))

    def _collect(self) -> None:
        """Fetch the answers that are there."""
        if self.waiting:
            reply = self.runtime.client.PullMessages(
                PullAppMessagesRequest(message_ids=self.waiting)
            )
            for proto, tree in zip(reply.messages_list, reply.message_object_trees, strict=True):
                request = proto.metadata.reply_to_message_id
                self.waiting.pop(request, None)
                self.incoming[request] = Incoming(tree)
        for request, incoming in list(self.incoming.items()):
            try:
                message = incoming.fetch(self.runtime, SUPERLINK_NODE_ID, self.run)
                if message is None:  # the rest is under way
                    continue
                if message.has_content():
                    self.ready.append(Received(request, unpacked(message.content)))
                else:
                    self._fail(request, _problem(message.error))
            except httpx.HTTPError:
                raise
            except Exception as error:  # what a node sent is not what it should be
                self._fail(request, f"unreadable answer: {reason(error)}")
            del self.incoming[request]

    def _fail(self, request: str, problem: str) -> None:
        """Give up a request."""
        self.waiting.pop(request, None)
        self.ready.append(Received(request, None, printable(" ".join(problem.split()))))
        self.drop(request)

    def drop(self, request: str) -> None:
        """Delete what the SuperLink keeps of a request."""
        with contextlib.suppress(httpx.HTTPError):  # the end of the run deletes it, too
            confirm(self.runtime, SUPERLINK_NODE_ID, self.run, request)


def _problem(error: "Error") -> str:
    """An error reply in words: Flower's own in ours, a node's as it is."""
    words = {
        ErrorCode.NODE_UNAVAILABLE: "the node is no longer connected",
        ErrorCode.MESSAGE_UNAVAILABLE: "the SuperLink no longer has the request",
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "the answer came too late",
        ErrorCode.CLIENT_APP_CRASHED: "the node's process has ended or hangs",
    }
    return words.get(error.code) or error.reason or f"error {error.code}"


def _pause(since: float, most: float = 0.5) -> float:
    """Seconds until the next look: a fifth of the time since something happened."""
    return min(most, max(0.05, (time.monotonic() - since) / 5))


# --- a node ---


def serve(
    answer: Callable[[Parcel], Parcel], config: NodeConnection, stop: threading.Event
) -> None:
    """Answer the requests that reach a node, until `stop` is set.

    Runs a SuperNode as a child process and starts it again when it ends. What keeps the node from
    its SuperLink is logged as a warning, once.

    Args:
        answer: (request) -> answer. If it raises an error, the error's message is the answer.
        config: How to reach the SuperLink.
        stop: Ends the function after the current answer.

    Raises:
        InputError: If Flower is not installed, or a file is missing.
    """
    require_flower()
    _require_address(config.superlink)
    _require_certificates(config.ca_certificate)
    _require_key(config.key)
    config.folder.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger(__name__)
    journal = _Journal(config)
    pause = 1.0
    while not stop.is_set():
        with _supernode(config) as (runtime, alive):
            connected = _answer_all(answer, runtime, alive, journal, stop)
        if not stop.is_set():
            if connected:
                log.warning("the SuperNode ended; see %s; starting it again", journal.file)
            pause = 1.0 if connected else min(2 * pause, 15.0)
            stop.wait(pause)


@contextlib.contextmanager
def _supernode(config: NodeConnection) -> Iterator[tuple[Runtime, Callable[[], bool]]]:
    """Run a SuperNode, and yield access to its tasks and whether it is alive."""
    secret = config.folder / "secret"
    secret.unlink(missing_ok=True)
    with os.fdopen(os.open(secret, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    port = free_port()
    options = {
        "--superlink": config.superlink,
        "--root-certificates": config.ca_certificate,
        "--auth-supernode-private-key": config.key,
        "--isolation": "process",
        "--superexec-auth-secret-file": secret,
        "--host": "127.0.0.1",
        "--port": port,
    }
    program = Program(
        entry=f"{Path(__file__).with_name('supernode.py')}:main",
        arguments=[str(part) for option in options.items() for part in option],
        log=config.folder / "supernode.log",
        environment=environment(config.folder / "flwr"),
    )
    runtime = runtime_of(f"127.0.0.1:{port}", None, secret.read_bytes(), seconds=0.0)
    with running([program]) as [process], contextlib.closing(runtime.client):
        yield runtime, lambda: process.poll() is None


class _Journal:
    """Reports what is new in a SuperNode's log, each problem once."""

    def __init__(self, config: NodeConnection) -> None:
        self.config = config
        self.file = config.folder / "supernode.log"
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
            log.info("connected to %s as node %s", self.config.superlink, node)
            self.reported = ""
        elif "Connection successful" in text and self.reported:
            log.info("SuperLink %s: it answers again", self.config.superlink)
            self.reported = ""
        if problem and problem != self.reported:
            log.warning("SuperLink %s: %s; trying again", self.config.superlink, problem)
            self.reported = problem
        return bool(node)

    def _problem(self, text: str) -> tuple[str, str]:
        """What keeps the SuperNode from its SuperLink, and the node's identifier if nothing."""
        if connected := re.search(r"SuperNode ID: (\d+)", text):
            return "", connected[1]
        if "code: 2004" in text:
            return (
                f"it refuses the key {self.config.key}, which is not registered, or which another "
                "SuperNode uses or used when it crashed less than a minute ago"
            ), ""
        if "CERTIFICATE_VERIFY_FAILED" in text:
            authority = f"its certificate was not signed by {self.config.ca_certificate}"
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
        stop.wait(_pause(quiet_since))
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
        time.sleep(_pause(since))
    incoming = Incoming(reply.message_object_trees[0])
    left = len(incoming.missing)
    while (message := incoming.fetch(runtime, node, run)) is None:
        journal.read()
        if len(incoming.missing) < left:
            left, since = len(incoming.missing), time.monotonic()
        if incoming.message in journal.dropped or time.monotonic() - since > PATIENCE:
            finish(runtime, SubStatus.FAILED)
            raise Lost("its run has ended, or it did not arrive")
        time.sleep(_pause(since))
    return message
