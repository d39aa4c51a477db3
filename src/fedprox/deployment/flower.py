"""All that this package uses of Flower, of flwr 1.41 and 1.42. No other file imports flwr.

Public in Flower are its commands and `flwr.app`, `flwr.serverapp` and `flwr.clientapp`. All other
names are private and may change in any version; `tests/deployment/test_flower_contract.py` checks
each. They are needed, as `docs/development/dependencies.md` says, since Flower gives a `Grid` and a
`ClientApp` only to code of an app that it has installed from the SuperLink.

* Nodes are registered, and runs are started and stopped, through `ControlHttpClient`.
* The operator's end uses `RuntimeHttpClient`, `TaskType` and `SubStatus`. It shows its secret by
  `SuperExecAuthHttpInterceptor`, then the token of its run's task in the header
  `TASK_TOKEN_HEADER`.
* A node uses `FleetHttpClient`, and signs its calls by `NodeAuthHttpInterceptor`.
* Both send messages as objects, arrays in pieces of 5 MB: `make_message`,
  `remove_content_from_message`, `message_to_proto`, `inflatable`, `inflate_object_from_contents`,
  `SUPERLINK_NODE_ID`.
* `RuntimeVersionMetadata` tells the other side our version. `ErrorCode` and `FlowerError` say what
  is wrong.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import ipaddress
import json
import logging
import math
import os
import ssl
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from fedprox.deployment.crypto import encoded
from fedprox.deployment.network import Parcel
from fedprox.errors import InputError, installing, reason, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict
    from flwr.app.message import make_message, remove_content_from_message
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode, SubStatus
    from flwr.common.serde import message_to_proto
    from flwr.supercore.constant import TASK_TOKEN_HEADER, TaskType
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.error import FlowerError
    from flwr.supercore.inflatable import inflatable_object as inflatable
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor


VERSIONS = ("1.41", "1.42")
"""The versions of Flower that this file is tested with."""

ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
"""The call that shows the operator's secret. It has no token yet."""

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

TASK_HEARTBEAT = 10.0
"""Seconds between two heartbeats of a task. Flower ends a task after 60 seconds without one."""

NODE_HEARTBEAT = 30.0
"""Seconds that Flower is told to expect between a node's heartbeats. A node is no longer connected
after twice as many without one."""

SMALL = 100_000
"""A body of at most so many bytes travels with the head, which saves several calls."""

SLACK = 100_000
"""Bytes of a message's objects beside those of its parcel, but for a share of these."""

MOST_REPLY = 250_000_000
"""Most bytes of a reply; the longest ones describe a million clients."""


def require_flower() -> None:
    """Raise `InputError` unless a version of Flower is installed that this file can use."""
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    require(version, f"deployment needs Flower: {installing('flower')}")
    require(
        ".".join(version.split(".")[:2]) in VERSIONS,
        f"flwr {version} is installed; deployment needs {' or '.join(VERSIONS)}: "
        f"{installing('flower')}",
    )


def command(name: str) -> str:
    """The function of one of Flower's commands, `module:function`."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    return entry.value


def environment(folder: Path) -> dict[str, str]:
    """Environment variables of Flower's processes, which keep their settings in `folder`."""
    direct = [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "localhost", "127.0.0.1"]
    return {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "no_proxy": ",".join(filter(None, direct)),
    }


def problem_of(error: "httpx.HTTPStatusError") -> str:
    """Why the other side has refused a call."""
    known = FlowerError.from_json(error.response.text)
    return known.message.rstrip(".") if known else f"HTTP status {error.response.status_code}"


class TooLong(ValueError):  # noqa: N818 - what has happened to a message
    """A message of more bytes than expected."""

    def __init__(self) -> None:
        super().__init__("it has more bytes than were expected")


class Lost(Exception):  # noqa: N818 - what has happened to a message
    """A message of which a part will never come."""


# Addresses, certificates and repetitions


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


def is_loopback(address: str) -> bool:
    """Whether `host:port` is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Retry:
    """Repeats a call while the other side does not answer, for at most so many seconds."""

    def __init__(
        self,
        seconds: float,
        wait: Callable[[float, Exception], None] = lambda seconds, _: time.sleep(seconds),
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self.seconds, self.wait, self.answered = seconds, wait, answered

    def invoke(self, call: Callable[[], Any]) -> Any:
        """Call until there is a result."""
        deadline, pause = time.monotonic() + self.seconds, 0.1
        while True:
            try:
                result = call()
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if not _may_pass(error) or time.monotonic() + pause > deadline:
                    raise
                self.wait(pause, error)
            else:
                self.answered()
                return result
            pause = min(2 * pause, 5.0)


def _may_pass(error: Exception) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (502, 503, 504)
    return not is_tls(error)


def is_tls(error: Exception) -> bool:
    """Whether two sides could not agree on an encrypted connection."""
    return any(word in str(error).lower() for word in ("certificate", "ssl", "tls"))


NOT_THE_AUTHORITY = ("expired", "not yet valid", "not valid for", "mismatch")
"""In words of OpenSSL, what is wrong with a certificate whoever signed it."""


def tls_in_words(error: Exception, ca_certificate: Path) -> str:
    """Why two sides could not agree on an encrypted connection, in one line."""
    text = reason(error)
    if "certificate" not in text or any(each in text for each in NOT_THE_AUTHORITY):
        return text
    return f"{text}; is {ca_certificate} the certificate of its authority?"


class Link:
    """A connection over TLS to one of a SuperLink's interfaces, through a client of Flower's.

    It sends the requests itself, with the headers that they need. Its timeouts are longer than
    Flower's, for large objects on slow lines. It asks no proxy on the loopback, and reads no more
    of a response than it may have, whatever length that names.

    Attributes:
        token: The token of the current task; empty without one.
        most: Most bytes of an object that is fetched now.
    """

    def __init__(
        self,
        kind: Any,
        address: str,
        verify: ssl.SSLContext,
        retry: Retry,
        signers: Sequence[Any] = (),
    ) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every call
        self.token, self.most, self.retry = "", math.inf, retry
        self.version = RuntimeVersionMetadata.from_local_component("fedprox").as_metadata()
        self.http = httpx.Client(verify=verify, trust_env=not is_loopback(address))
        self.client = kind(
            f"https://{address}",
            interceptors=[*signers, self],
            verify=verify,
            timeout=httpx.Timeout(120.0, connect=10.0),
            retry_invoker=retry,
        )

    def intercept(self, context: Any, _: Any) -> "httpx.Response":
        """Send a request, as the last of a client's interceptors."""
        context.request.headers.update(self.version)
        if self.token and context.rpc_method != ACQUIRE:
            context.request.headers[TASK_TOKEN_HEADER] = self.token
        # what is compressed could grow without end while it is read
        context.request.headers["accept-encoding"] = "identity"
        response = self.http.send(context.request, stream=True)
        with contextlib.closing(response):
            body = self._read(response)
        return httpx.Response(response.status_code, content=body, request=context.request)

    def _read(self, response: "httpx.Response") -> bytes:
        """The body of a response."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx.RemoteProtocolError("a compressed response, which was not asked for")
        most = min(self.most + SLACK, MOST_REPLY)
        if float(response.headers.get("content-length", 0)) > most:
            raise TooLong
        body = bytearray()
        for part in response.iter_bytes():
            body += part
            if len(body) > most:
                raise TooLong
        return bytes(body)

    def close(self) -> None:
        """End the connection."""
        self.client.close()
        self.http.close()


def trusting(ca_certificate: Path) -> ssl.SSLContext:
    """Connections to the names in certificates that an authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=ca_certificate)
    return context


def control_link(address: str, ca_certificate: Path, retry: Retry | None = None) -> Link:
    """A connection to register nodes, and to start and stop runs."""
    return Link(ControlHttpClient, address, trusting(ca_certificate), retry or Retry(0.0))


def own_control_link(address: str, certificate: bytes) -> Link:
    """The same to a SuperLink of this machine, which is known by its certificate (DER) alone.

    That need not be for the address at which a machine reaches itself.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate)
    return Link(ControlHttpClient, address, context, Retry(0.0))


def runtime_link(address: str, ca_certificate: Path, secret: bytes, retry: Retry) -> Link:
    """The operator's connection."""
    signer = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[ACQUIRE])
    return Link(RuntimeHttpClient, address, trusting(ca_certificate), retry, [signer])


def fleet_link(
    address: str, ca_certificate: Path, key: "ec.EllipticCurvePrivateKey", retry: Retry
) -> Link:
    """A node's connection."""
    signer = NodeAuthHttpInterceptor(key, key.public_key())
    return Link(FleetHttpClient, address, trusting(ca_certificate), retry, [signer])


def _call(link: Link, name: str, **fields: Any) -> Any:
    """The answer to a call."""
    call = getattr(link.client, name)
    return call(get_type_hints(call)["request"](**fields))


# The Control interface


def require_answer(control: Link) -> None:
    """Raise `httpx.TransportError` unless the SuperLink answers."""
    _call(control, "ListNodes")


class RegisteredNode(NamedTuple):
    """A node whose key was registered, and whether it was removed since."""

    number: int
    key: bytes
    removed: bool


def registered_nodes(control: Link) -> list[RegisteredNode]:
    """The nodes whose keys were ever registered."""
    return [
        RegisteredNode(node.node_id, node.public_key, bool(node.unregistered_at))
        for node in _call(control, "ListNodes").nodes_info
    ]


def register_key(control: Link, key: bytes) -> int:
    """Register a node's public key, and return the node's identifier."""
    node: int = _call(control, "RegisterNode", public_key=key).node_id
    return node


def unregister_node(control: Link, number: int) -> None:
    """Remove a node, whose key the SuperLink refuses from then on."""
    _call(control, "UnregisterNode", node_id=number)


def start_run(control: Link) -> int:
    """Start a run, and return its identifier; 0 if the SuperLink did not start it."""
    run: int = _call(control, "StartRun", fab={"content": packed_app()}).run_id
    return run


def stop_flower_run(control: Link, run: int) -> None:
    """Stop a run."""
    _call(control, "StopRun", run_id=run)


def packed_app() -> bytes:
    """The app of a run in Flower's format: the app's files, and a list with their hashes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("pyproject.toml", APP)
        line = f"pyproject.toml,{hashlib.sha256(APP).hexdigest()},{8 * len(APP)}"
        file.writestr(".info/CONTENT", line)
    return buffer.getvalue()


# The Runtime interface, of the operator


def take_task(runtime: Link) -> int | None:
    """Take the oldest task that waits for an operator, and return its run; None without one."""
    runtime.token = ""
    taken = _call(runtime, "AcquireTask", supported_task_types=[TaskType.SERVER_APP])
    runtime.token = taken.token
    return taken.task.run_id if taken.token else None


def begin_task(runtime: Link) -> None:
    """Tell the SuperLink that the work on the current task begins."""
    _call(runtime, "PullTaskInput")


def end_task(runtime: Link, problem: str | None = None) -> None:
    """Report the end of the current task, and what was wrong if it has failed."""
    outcome = SubStatus.COMPLETED if problem is None else SubStatus.FAILED
    _call(runtime, "PushTaskOutput", sub_status=outcome, details=problem or "")


@contextlib.contextmanager
def heartbeats(runtime: Link) -> Iterator[None]:
    """Keep the current task alive."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(TASK_HEARTBEAT):
            # other calls report it
            with contextlib.suppress(httpx.HTTPError, RuntimeError, ValueError):
                _call(runtime, "SendTaskHeartbeat")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(1.0)


def connected_nodes(runtime: Link) -> dict[int, tuple[str, bytes]]:
    """The nodes that are connected now: when each signed on, and its public key."""
    reply = _call(runtime, "GetNodes")
    return {node.node_id: (node.last_activated_at, node.public_key) for node in reply.nodes}


def send_requests(
    runtime: Link, run: int, parcels: Mapping[int, Parcel]
) -> dict[int, tuple[str, bool]]:
    """Send requests by node; the identifier of each, and whether the SuperLink took it."""
    bodies: dict[int, ArrayRecord] = {}
    messages = [
        _message(
            _packed(parcel, bodies),
            run=run,
            sender=SUPERLINK_NODE_ID,
            receiver=node,
            seconds=LIFETIME,
        )
        for node, parcel in parcels.items()
    ]
    reply, names = _push(runtime, SUPERLINK_NODE_ID, run, messages, {})
    return {
        node: (name, bool(stored))
        for node, name, stored in zip(parcels, names, reply.message_ids, strict=True)
    }


def answers_begun(runtime: Link, run: int, most: Mapping[str, int]) -> "dict[str, Incoming]":
    """The answers that have begun to arrive, of at most so many bytes each, by request."""
    reply = _call(runtime, "PullMessages", message_ids=most)
    answers = {}
    for proto, tree in zip(reply.messages_list, reply.message_object_trees, strict=True):
        request = proto.metadata.reply_to_message_id
        answers[request] = Incoming(
            SUPERLINK_NODE_ID, run, tree, proto.metadata, most.get(request, 0)
        )
    return answers


def drop(runtime: Link, run: int, request: str) -> None:
    """Delete what the SuperLink keeps of a request."""
    _confirm(runtime, SUPERLINK_NODE_ID, run, request)


# The Fleet interface, of a node


def sign_on(fleet: Link, key: "ec.EllipticCurvePrivateKey") -> int:
    """Connect a node, and return its identifier."""
    public_key = encoded(key.public_key())
    node: int = _call(
        fleet, "ActivateNode", public_key=public_key, heartbeat_interval=NODE_HEARTBEAT
    ).node_id
    return node


def stay(fleet: Link, node: int) -> bool:
    """Send a node's heartbeat; whether the SuperLink knows the node."""
    known: bool = _call(
        fleet, "SendNodeHeartbeat", node=_node(node), heartbeat_interval=NODE_HEARTBEAT
    ).success
    return known


def sign_off(fleet: Link, node: int) -> None:
    """Disconnect a node."""
    _call(fleet, "DeactivateNode", node_id=node)


def next_request(fleet: Link, node: int) -> "Incoming | None":
    """The next request to a node; None if there is none."""
    reply = _call(fleet, "PullMessages", node=_node(node))
    if not reply.messages_list:
        return None
    about = reply.messages_list[0].metadata
    return Incoming(node, about.run_id, reply.message_object_trees[0], about)


def send_answer(fleet: Link, request: "Incoming", answer: Parcel | str, seconds: float) -> None:
    """Answer a request by a parcel, or by what is wrong, after so many seconds of work."""
    about, node = request.about, request.node
    message = _message(
        _packed(answer, {})
        if isinstance(answer, Parcel)
        else Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, answer),
        run=about.run_id,
        sender=node,
        receiver=about.src_node_id,
        seconds=about.created_at + about.ttl - time.time(),
        replies_to=about.message_id,
    )

    also = {"node": _node(node), "clientapp_runtime_list": [seconds]}
    _push(fleet, node, about.run_id, [message], also)


# Messages


def _message(
    content: "RecordDict | Error",
    *,
    run: int,
    sender: int,
    receiver: int,
    seconds: float,
    replies_to: str = "",
) -> "Message":
    """A message that Flower keeps for so many seconds."""
    metadata = Metadata(
        run_id=run,
        message_id="",
        src_node_id=sender,
        dst_node_id=receiver,
        reply_to_message_id=replies_to,
        group_id="",
        created_at=time.time(),
        ttl=seconds,
        message_type="query",
    )
    kind = "error" if isinstance(content, Error) else "content"
    return make_message(metadata=metadata, **{kind: content})


def _packed(parcel: Parcel, bodies: "dict[int, ArrayRecord]") -> "RecordDict":
    """A message's content.

    `bodies` holds the bodies that were packed before by `id`. Messages that share a body then
    share a record, which Flower hashes once.
    """
    small = len(parcel.body) <= SMALL
    fields = {"head": parcel.head, "body": parcel.body if small else b""}
    content = {"parcel": ConfigRecord(fields)}
    if not small:
        if id(parcel.body) not in bodies:
            array = Array(dtype="uint8", shape=(len(parcel.body),), stype="raw", data=parcel.body)
            bodies[id(parcel.body)] = ArrayRecord({"body": array})
        content["body"] = bodies[id(parcel.body)]
    return RecordDict(content)


def _unpacked(content: "RecordDict") -> Parcel:
    """The parcel in a message's content."""
    fields = content["parcel"]
    body = content["body"]["body"].data if "body" in content else fields["body"]
    return Parcel(fields["head"], body)


def _push(
    link: Link, node: int, run: int, messages: "Sequence[Message]", also: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    """Send messages, and the objects in them that the other side does not have yet."""
    objects: dict[str, Any] = {}
    protos, trees, names = [], [], []
    with inflatable.no_object_id_recompute():  # the same bodies are hashed several times otherwise
        for message in messages:
            proto = message_to_proto(remove_content_from_message(message))
            proto.metadata.message_id = message.object_id
            names.append(message.object_id)
            protos.append(proto)
            trees.append(inflatable.get_object_tree(message))
            objects.update(inflatable.get_all_nested_objects(message))
        reply = _call(
            link, "PushMessages", messages_list=protos, message_object_trees=trees, **also
        )
        missing = set(reply.objects_to_push)
        for name, part in objects.items():
            if name in missing:
                # a part that the other side refuses is missed there, or was sent before
                _call(
                    link,
                    "PushObject",
                    node=_node(node),
                    run_id=run,
                    object_id=name,
                    object_content=part.deflate(),
                    session_id=reply.session_id,
                )
    return reply, names


def _confirm(link: Link, node: int, run: int, message: str) -> None:
    """Let the SuperLink delete a message's objects."""
    _call(link, "ConfirmMessageReceived", node=_node(node), run_id=run, message_object_id=message)


def _node(node: int) -> dict[str, int]:
    """A node as calls name it."""
    return {"node_id": node}


class Incoming:
    """A message whose objects arrive one by one, of at most so many bytes.

    Attributes:
        about: The metadata of every message: its run, its sender and others.
        missing: The names of its objects that are not here yet.
    """

    def __init__(self, node: int, run: int, tree: Any, about: Any, most: float = math.inf) -> None:
        self.node, self.run, self.about = node, run, about
        self.message, self.most = tree.object_id, 1.01 * most + SLACK
        self.left = self.most
        names = dict.fromkeys(part.object_id for part in inflatable.iterate_object_tree(tree))
        self.missing = list(reversed(names))
        self.contents: dict[str, bytes] = {}

    def fetch(self, link: Link) -> Parcel | str | None:
        """Fetch what is there: the parcel or an error in words; None while a part is missing."""
        here = _node(self.node)
        while self.missing:
            name = self.missing[-1]
            link.most = self.left
            try:
                reply = _call(link, "PullObject", node=here, run_id=self.run, object_id=name)
            finally:
                link.most = math.inf
            if not reply.object_found:
                raise Lost("the sender disappeared before all of its message was here")
            if not reply.object_available:
                return None
            self._count(len(reply.object_content))
            self.contents[self.missing.pop()] = reply.object_content
        self._require_short()
        _confirm(link, self.node, self.run, self.message)
        message = inflate_object_from_contents(self.message, self.contents)
        return _unpacked(message.content) if message.has_content() else _in_words(message.error)

    def _count(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise TooLong

    def _require_short(self) -> None:
        """Raise `TooLong` if arrays would be too long; pieces may repeat, in one and in several."""
        self.left = self.most
        for content in self.contents.values():
            kind, pieces, _ = inflatable.get_object_head_values_from_object_content(content)
            if kind == "Array":
                body = json.loads(inflatable.get_object_body(content, Array))
                for at, times in Counter(body["arraychunk_ids"]).items():
                    self._count(times * len(self.contents[pieces[at]]))


def _in_words(error: "Error") -> str:
    """An error reply in words: Flower's own in ours, a node's as it is."""
    words = {
        ErrorCode.NODE_UNAVAILABLE: "the node is no longer connected",
        ErrorCode.MESSAGE_UNAVAILABLE: "the SuperLink no longer has the request",
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "the answer came too late",
    }
    return words.get(error.code) or error.reason or f"error {error.code}"


def until_next_look(since: float, most: float = 0.5) -> float:
    """Seconds until the next look: a fifth of the time since an event, at most `most`."""
    return min(most, max(0.05, (time.monotonic() - since) / 5))
