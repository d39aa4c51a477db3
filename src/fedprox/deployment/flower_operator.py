"""The operator's end of the network over Flower.

Flower's SuperLink stores messages; a SuperNode beside every node fetches and sends them. The
operator's process takes the place that Flower has for a run's ServerApp, and a node's process that
of its SuperNode's ClientApp (`flower_node`). So no code travels, and both processes stay while
messages come and go.
"""

import contextlib
import functools
import hashlib
import io
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedprox.deployment.flower_calls import (
    PATIENCE,
    Incoming,
    Lost,
    Runtime,
    confirm,
    control_client,
    finish,
    heartbeats,
    is_tls,
    packed,
    push,
    read_public_key,
    require_address,
    require_certificates,
    require_flower,
    runtime_of,
    unpacked,
    until_next_look,
)
from fedprox.deployment.network import Network, Parcel, Received
from fedprox.errors import InputError, foreign, printable, reason, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx
    from flwr.app import ArrayRecord, Error, Metadata
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

LOOK = 5.0
"""Seconds until the operator looks again whether a node has started again."""


@contextlib.contextmanager
def operator_network(
    address: str,
    ca_certificate: Path,
    secret: Path,
    keys: Mapping[str, Path] = MappingProxyType({}),
) -> Iterator[Network]:
    """Connect to the nodes of a SuperLink.

    Starts a run of Flower, which lasts as long as the context. The SuperLink must run with
    `--isolation process` and the same secret. Tasks of other runs that wait at the SuperLink fail:
    they belong to processes that have ended.

    Args:
        address: The SuperLink's address, `host:port`.
        ca_certificate: The certificate in PEM of the authority that signed the SuperLink's.
        secret: The file that the SuperLink got as `--superexec-auth-secret-file`.
        keys: The file of the public key of each node, by name; empty if nodes name themselves.

    Yields:
        The network. Its functions raise `ConnectionError` if the SuperLink does not answer for
        `PATIENCE` seconds or has ended the run.

    Raises:
        InputError: If Flower is not installed, or the SuperLink refuses the connection.
        ConnectionError: If the SuperLink does not answer.
    """
    require_flower()
    require_address(address)
    require_certificates(ca_certificate)
    require(secret.is_file(), f"{secret}: no such file")
    known = {name: read_public_key(file) for name, file in keys.items()}
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
            may_be = functools.partial(requests.has_key_of, known)
            yield Network(requests.nodes, requests.send, requests.receive, may_be)
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
        self.most: dict[str, int] = {}  # by request: bytes of its answer at most
        self.keys: dict[int, bytes] = {}  # by node: its public key
        self.started: dict[int, str] = {}  # by node: when its SuperNode connected
        self.incoming: dict[str, Incoming] = {}
        self.ready: list[Received] = []
        self.quiet_since = self.looked = time.monotonic()

    def nodes(self) -> Sequence[int]:
        """Identifiers of the nodes that are connected now."""
        with self.errors():
            reply = self.runtime.client.GetNodes(GetNodesRequest())
        self.started = {node.node_id: node.last_activated_at for node in reply.nodes}
        self.keys |= {node.node_id: node.public_key for node in reply.nodes}
        for request, (node, started) in list(self.waiting.items()):
            # Flower reports a node that is away only to those who ask before it is back
            if started and self.started.get(node, started) != started:
                self._fail(request, f"node {node} has started again since")
        return sorted(self.started)

    def has_key_of(self, known: Mapping[str, bytes], node: int, name: str) -> bool:
        """Whether a node has the key of a name; any node does if no keys are known."""
        return not known or (name in known and known[name] == self.keys.get(node))

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
                self.most[name] = parcels[node].most
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
            time.sleep(min(until_next_look(self.quiet_since), deadline - now))

    def _collect(self) -> None:
        """Fetch the answers that are there."""
        if self.waiting:
            reply = self.runtime.client.PullMessages(
                PullAppMessagesRequest(message_ids=self.waiting)
            )
            for proto, tree in zip(reply.messages_list, reply.message_object_trees, strict=True):
                request = proto.metadata.reply_to_message_id
                self.waiting.pop(request, None)
                self.incoming[request] = Incoming(tree, self.most.pop(request, 0))
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
            except Lost as error:
                self._fail(request, reason(error))
            except Exception as error:  # what a node sent is not what it should be
                self._fail(request, f"its answer is refused: {reason(error)}", final=True)
            del self.incoming[request]

    def _fail(self, request: str, problem: str, *, final: bool = False) -> None:
        """Give up a request."""
        self.waiting.pop(request, None)
        self.most.pop(request, None)
        line = foreign(" ".join(problem.split()))
        self.ready.append(Received(request, None, line, final))
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
