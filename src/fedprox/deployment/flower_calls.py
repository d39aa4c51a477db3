"""Calls to Flower's SuperLink and SuperNode: connections, tasks and messages.

They use parts of Flower 1.41 that are not its public interface.
"""

import contextlib
import importlib.metadata
import ipaddress
import json
import logging
import math
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedprox.deployment.network import Parcel
from fedprox.errors import InputError, installing, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_public_key,
    )
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.message_pb2 import (
        ConfirmMessageReceivedRequest,
        ObjectTree,
        PullObjectRequest,
        PushObjectRequest,
    )
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import (
        PushAppMessagesRequest,
        PushTaskOutputRequest,
        SendTaskHeartbeatRequest,
    )
    from flwr.supercore.constant import TASK_TOKEN_HEADER
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_body,
        get_object_head_values_from_object_content,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"

HEARTBEAT = 10.0
"""Seconds between two heartbeats of a task. Flower ends a task after 60 seconds without one."""

PATIENCE = 60.0
"""Seconds for which a call repeats while the other side does not answer."""

SMALL = 100_000
"""A body of at most so many bytes travels with the head, which saves several calls."""


def require_flower() -> None:
    """Raise `InputError` unless a version of Flower is installed that this module can use."""
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    require(version, f"deployment needs Flower: {installing('flower')}")
    require(
        version.split(".")[:2] == ["1", "41"],
        f"flwr {version} is installed; deployment needs 1.41: {installing('flower')}",
    )


def require_address(address: str) -> None:
    """Raise `InputError` unless the address is `host:port`."""
    host, _, port = address.rpartition(":")
    require(
        host and "/" not in host and port.isdecimal() and 0 < int(port) < 65536,
        f"SuperLink {address!r}: an address is host:port, for instance fl.example.org:9092",
    )


def require_certificates(file: Path) -> None:
    """Raise `InputError` unless a file holds certificates."""
    require(file.is_file(), f"{file}: no such file")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError:
        raise InputError(f"{file}: no certificates in PEM") from None


def read_public_key(file: Path) -> bytes:
    """A node's public key as Flower stores it.

    Raises:
        InputError: If the file holds no public key of OpenSSH.
    """
    require(file.is_file(), f"{file}: no such file")
    try:
        key = load_ssh_public_key(file.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{file}: no public key, as ssh-keygen writes it to node.key.pub"
        ) from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def environment(folder: Path) -> dict[str, str]:
    """Environment variables of Flower's processes, which keep their settings in `folder`."""
    direct = [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "localhost", "127.0.0.1"]
    return {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "no_proxy": ",".join(filter(None, direct)),
    }


def free_port() -> int:
    """A port of the loopback that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Retry:
    """Repeats a call while the other side does not answer, for at most so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def invoke(self, call: Callable[[], Any]) -> Any:
        """Call until there is a result."""
        deadline, pause = time.monotonic() + self.seconds, 0.1
        while True:
            try:
                return call()
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if not _may_pass(error) or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def _may_pass(error: Exception) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (502, 503, 504)
    return not is_tls(error)


def is_tls(error: Exception) -> bool:
    """Whether two sides could not agree on an encrypted connection."""
    return any(word in str(error).lower() for word in ("certificate", "ssl", "tls"))


class _Headers:
    """Adds Flower's version and the token of the current task to requests.

    Attributes:
        token: The token.
        most: Most bytes of an object that is fetched now.
    """

    def __init__(self) -> None:
        self.token, self.most = "", math.inf
        self.version = dict(RuntimeVersionMetadata.from_local_component("fedprox").as_metadata())

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Send a request with more headers."""
        context.request.headers.update(self.version)
        if self.token and context.rpc_method != ACQUIRE:
            context.request.headers[TASK_TOKEN_HEADER] = self.token
        return call_next(context)

    def check(self, response: "httpx.Response") -> None:
        """Raise `TooLong` before a response that is too long is read."""
        if float(response.headers.get("content-length", 0)) > self.most + SLACK:
            raise TooLong("it has more bytes than were expected")


class Runtime(NamedTuple):
    """Access to tasks: those of a SuperLink or those of a SuperNode."""

    client: "RuntimeHttpClient"
    headers: _Headers
    retry: Retry


def _client(
    kind: Any,
    address: str,
    ca: Path | None,
    headers: _Headers,
    retry: Retry,
    interceptors: Sequence[Any] = (),
) -> Any:
    """A client of one of Flower's interfaces; without TLS if `ca` is None."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every call
    verify: ssl.SSLContext | bool = False
    if ca is not None:
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        verify.load_verify_locations(cafile=ca)
    scheme = "http" if ca is None else "https"
    client = kind(
        f"{scheme}://{address}",
        interceptors=[headers, *interceptors],
        verify=verify,
        retry_invoker=retry,
    )
    client._client.close()
    # longer timeouts than Flower's for large objects on slow lines; no proxy on the loopback
    timeout = httpx.Timeout(120.0, connect=10.0)
    client._client = httpx.Client(
        verify=verify,
        timeout=timeout,
        trust_env=not _is_loopback(address),
        event_hooks={"response": [headers.check]},
    )
    return client


def control_client(address: str, ca_certificate: Path, retry: Retry | None = None) -> Any:
    """A client of a SuperLink's Control API."""
    return _client(ControlHttpClient, address, ca_certificate, _Headers(), retry or Retry(0.0))


def _is_loopback(address: str) -> bool:
    """Whether `host:port` is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def runtime_of(address: str, ca: Path | None, secret: bytes, seconds: float) -> Runtime:
    """Access to the tasks at an address. A call repeats for so many seconds."""
    headers, retry = _Headers(), Retry(seconds)
    signer = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE])
    client = _client(RuntimeHttpClient, address, ca, headers, retry, [signer])
    return Runtime(client, headers, retry)


@contextlib.contextmanager
def heartbeats(runtime: Runtime) -> Iterator[None]:
    """Keep the current task alive."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT):
            with contextlib.suppress(httpx.HTTPError, RuntimeError):  # other calls report it
                runtime.client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(1.0)


def packed(parcel: Parcel, records: "dict[int, ArrayRecord]") -> "RecordDict":
    """A message's content.

    `records` holds the bodies that were packed before by `id`. Messages that share a body then
    share a record, which Flower hashes once.
    """
    small = len(parcel.body) <= SMALL
    fields = {"head": parcel.head, "body": parcel.body if small else b""}
    content = {"parcel": ConfigRecord(fields)}
    if not small:
        if id(parcel.body) not in records:
            array = Array(dtype="uint8", shape=(len(parcel.body),), stype="raw", data=parcel.body)
            records[id(parcel.body)] = ArrayRecord({"body": array})
        content["body"] = records[id(parcel.body)]
    return RecordDict(content)


def unpacked(content: "RecordDict") -> Parcel:
    """The parcel in a message's content."""
    fields = content["parcel"]
    body = content["body"]["body"].data if "body" in content else fields["body"]
    return Parcel(fields["head"], body)


def push(runtime: Runtime, node: int, run: int, messages: "Sequence[Message]") -> list[str]:
    """Send messages, and the objects in them that the other side does not have yet.

    Returns:
        Their identifiers; empty for a message that was refused.
    """
    objects: dict[str, Any] = {}
    protos, trees = [], []
    with no_object_id_recompute():  # the same bodies are asked for their hash several times
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            protos.append(message_to_proto(remove_content_from_message(message)))
            trees.append(get_object_tree(message))
            objects.update(get_all_nested_objects(message))
        reply = runtime.client.PushMessages(
            PushAppMessagesRequest(messages_list=protos, message_object_trees=trees)
        )
        missing = set(reply.objects_to_push)
        for name, part in objects.items():
            if name in missing:
                # a part that the other side refuses is missed there, or was sent before
                runtime.client.PushObject(
                    PushObjectRequest(
                        node=Node(node_id=node),
                        run_id=run,
                        object_id=name,
                        object_content=part.deflate(),
                        session_id=reply.session_id,
                    )
                )
    return list(reply.message_ids)


class Lost(Exception):  # noqa: N818 - what has happened to a message
    """A message of which a part will never come."""


class TooLong(Exception):  # noqa: N818 - what has happened to a message
    """A message of more bytes than expected."""


SLACK = 100_000
"""Bytes of a message's objects beside those of its parcel, but for a share of these."""


class Incoming:
    """A message whose objects arrive one by one.

    Args:
        tree: The names of its objects.
        most: Most bytes of its parcel.
    """

    def __init__(self, tree: "ObjectTree", most: float = math.inf) -> None:
        self.message, self.most = tree.object_id, 1.01 * most + SLACK
        self.left = self.most
        names = dict.fromkeys(part.object_id for part in iterate_object_tree(tree))
        self.missing = list(reversed(names))
        self.contents: dict[str, bytes] = {}

    def fetch(self, runtime: Runtime, node: int, run: int) -> "Message | None":
        """Fetch the objects that are there.

        Returns:
            The message; None if an object is not there yet.

        Raises:
            Lost: If an object will never come.
            TooLong: If the objects have more bytes than a message of this length.
        """
        here = Node(node_id=node)
        while self.missing:
            request = PullObjectRequest(node=here, run_id=run, object_id=self.missing[-1])
            runtime.headers.most = self.left
            try:
                reply = runtime.client.PullObject(request)
            finally:
                runtime.headers.most = math.inf
            if not reply.object_found:
                raise Lost("the sender disappeared before all of its message was here")
            if not reply.object_available:
                return None
            self._count(len(reply.object_content))
            self.contents[self.missing.pop()] = reply.object_content
        self._require_short()
        confirm(runtime, node, run, self.message)
        message = inflate_object_from_contents(self.message, self.contents)
        message.metadata.__dict__["_message_id"] = self.message
        return message

    def _count(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise TooLong("it has more bytes than were expected")

    def _require_short(self) -> None:
        """Raise `TooLong` if arrays would be too long; pieces may repeat, in one and in several."""
        self.left = self.most
        for content in self.contents.values():
            kind, pieces, _ = get_object_head_values_from_object_content(content)
            if kind == "Array":
                body = json.loads(get_object_body(content, Array))
                for at, times in Counter(body["arraychunk_ids"]).items():
                    self._count(times * len(self.contents[pieces[at]]))


def confirm(runtime: Runtime, node: int, run: int, message: str) -> None:
    """Let the other side delete a message's objects."""
    runtime.client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(
            node=Node(node_id=node), run_id=run, message_object_id=message
        )
    )


def finish(runtime: Runtime, outcome: str, details: str = "") -> None:
    """Report the end of the current task."""
    runtime.client.PushTaskOutput(PushTaskOutputRequest(sub_status=outcome, details=details))


def until_next_look(since: float) -> float:
    """Seconds until the next look: a fifth of the time since an event, at most 0.5."""
    return min(0.5, max(0.05, (time.monotonic() - since) / 5))
