"""What `deployment/flower.py` relies on in Flower, checked for the version that is installed.

Names, arguments and fields are read from the file itself, so that none is forgotten. A new version
of Flower fails here, and not in the middle of a run.
"""

import ast
import importlib.metadata
import inspect
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, get_type_hints

import pytest

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import fleet_pb2, message_pb2, runtime_pb2

import fedprox
from fedprox.deployment import flower, local
from fedprox.deployment.endpoints import Retry
from fedprox.deployment.network import Parcel

VERSION = importlib.metadata.version("flwr")
FILE = Path(flower.__file__)
TREE = ast.parse(FILE.read_text())
PACKAGE = Path(fedprox.__file__).parent

ANSWERS = {
    "ControlHttpClient": {
        "ListNodes": [],
        "RegisterNode": ["node_id"],
        "StartRun": ["run_id"],
        "StopRun": [],
    },
    "RuntimeHttpClient": {
        "AcquireTask": ["token", "task.run_id"],
        "PullTaskInput": [],
        "PushTaskOutput": [],
        "SendTaskHeartbeat": [],
        "GetNodes": ["nodes.node_id", "nodes.last_activated_at", "nodes.public_key"],
        "PushMessages": ["message_ids", "objects_to_push", "session_id"],
        "PullMessages": [
            "messages_list.metadata.reply_to_message_id",
            "message_object_trees.object_id",
        ],
        "PushObject": [],
        "PullObject": ["object_found", "object_available", "object_content"],
        "ConfirmMessageReceived": [],
    },
    "FleetHttpClient": {
        "ActivateNode": ["node_id"],
        "DeactivateNode": [],
        "SendNodeHeartbeat": ["success"],
        "PullMessages": [
            *(
                f"messages_list.metadata.{field}"
                for field in ("run_id", "message_id", "src_node_id", "created_at", "ttl")
            ),
            "message_object_trees.object_id",
        ],
        "PushMessages": ["objects_to_push", "session_id"],
        "PushObject": [],
        "PullObject": ["object_found", "object_available", "object_content"],
        "ConfirmMessageReceived": [],
    },
}
"""The calls of each client, with the fields of their answers that are read."""


class Name(NamedTuple):
    """A name that the file imports from Flower."""

    module: str
    name: str
    line: int


def imported() -> dict[str, Name]:
    """The names that the file imports from Flower, as it calls them."""
    return {
        alias.asname or alias.name: Name(node.module, alias.name, node.lineno)
        for node in ast.walk(TREE)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr")
        for alias in node.names
        if node.module
    }


IMPORTED = imported()


def fails(line: int, what: str) -> None:
    pytest.fail(f"flwr {VERSION}: {what}; adapt deployment/flower.py, line {line}", pytrace=False)


def found(called: str) -> Any:
    """What a name of the file stands for: `name`, or `name.attribute`."""
    first, *rest = called.split(".")
    module, name, line = IMPORTED[first]
    try:
        value = getattr(import_module(module), name, None)
    except ImportError:
        value = None
    try:
        value = import_module(f"{module}.{name}") if value is None else value
    except ImportError:
        fails(line, f"{module} has no {name}")
    for attribute in rest:
        if not hasattr(value, attribute):
            fails(line, f"{module}.{name} has no {attribute}")
        value = getattr(value, attribute)
    return value


def dotted(node: ast.expr) -> str:
    """`name` or `name.attribute` if the name is imported from Flower; else empty."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}" if node.value.id in IMPORTED else ""
    return node.id if isinstance(node, ast.Name) and node.id in IMPORTED else ""


def used() -> list[str]:
    """All names and attributes of Flower that the file uses."""
    names = {dotted(node) for node in ast.walk(TREE) if isinstance(node, ast.expr)}
    return sorted({*IMPORTED, *names} - {""})


def calls() -> Iterator[tuple[str, ast.Call]]:
    """The calls of what is imported from Flower, without those that are given through `**`."""
    for node in ast.walk(TREE):
        if isinstance(node, ast.Call) and (called := dotted(node.func)):
            yield called, node


def test_one_file_imports_flower() -> None:
    importing = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(?:from|import) flwr\b", file.read_text(), re.MULTILINE)
    }
    assert importing == {"deployment/flower.py"}


def test_the_file_lists_what_it_needs() -> None:
    listed = ast.get_docstring(TREE) or ""
    public = {name for name, (module, *_) in IMPORTED.items() if module == "flwr.app"}
    assert [name for name in IMPORTED if name not in public and f"`{name}`" not in listed] == []
    assert public <= set(import_module("flwr.app").__all__)


def test_the_version_is_one_that_is_tested() -> None:
    assert ".".join(VERSION.split(".")[:2]) in flower.VERSIONS
    flower.require_flower()


@pytest.mark.parametrize("name", used())
def test_the_name_exists(name: str) -> None:
    found(name)


@pytest.mark.parametrize(
    ("name", "call"), [pytest.param(*each, id=f"{each[0]}-{each[1].lineno}") for each in calls()]
)
def test_the_arguments_are_taken(name: str, call: ast.Call) -> None:
    called = found(name)
    keywords = [keyword.arg for keyword in call.keywords if keyword.arg]
    if hasattr(called, "DESCRIPTOR"):
        for keyword in keywords:
            if keyword not in called.DESCRIPTOR.fields_by_name:
                fails(call.lineno, f"{name} has no field {keyword}")
        return
    try:
        inspect.signature(called).bind_partial(*call.args, **dict.fromkeys(keywords))
    except TypeError as error:
        fails(call.lineno, f"{name}: {error}")


def test_every_call_of_a_client_is_listed() -> None:
    made = set(re.findall(r"\.client\.([A-Z]\w+)\(", FILE.read_text()))
    assert made == {call for client in ANSWERS.values() for call in client}


@pytest.mark.parametrize(
    ("client", "call"), [(client, call) for client in ANSWERS for call in ANSWERS[client]]
)
def test_the_answer_has_the_fields(client: str, call: str) -> None:
    method, line = found(f"{client}.{call}"), IMPORTED[client].line
    answer = get_type_hints(method)["return"].DESCRIPTOR
    for path in ANSWERS[client][call]:
        message = answer
        for field in path.split("."):
            if field not in message.fields_by_name:
                fails(line, f"the answer of {client}.{call} has no {path}")
            message = message.fields_by_name[field].message_type


@pytest.mark.parametrize("client", ANSWERS)
def test_a_client_is_made(client: str) -> None:
    arguments = set(inspect.signature(found(client)).parameters)
    for name in ("base_url", "interceptors", "verify", "timeout", "retry_invoker"):
        if name not in arguments:
            fails(IMPORTED[client].line, f"{client} takes no {name}")


class Store:
    """Stands for a SuperLink: it keeps one message and its objects."""

    def __init__(self, response: Any) -> None:
        self.response, self.objects, self.confirmed = response, dict[str, bytes](), ""

    def PushMessages(self, request: Any) -> Any:
        self.request = request

        def names(tree: Any) -> list[str]:
            return [tree.object_id, *(name for child in tree.children for name in names(child))]

        values: dict[str, Any] = {"objects_to_push": names(request.message_object_trees[0])}
        if self.response is runtime_pb2.PushAppMessagesResponse:
            values["message_ids"] = [request.messages_list[0].metadata.message_id]
        return self.response(session_id="session", **values)

    def PushObject(self, request: Any) -> None:
        assert request.session_id == "session"
        self.objects[request.object_id] = request.object_content

    def PullMessages(self, request: Any) -> Any:
        del request
        kind = fleet_pb2.PullMessagesResponse
        sent = self.request
        return kind(
            messages_list=sent.messages_list, message_object_trees=sent.message_object_trees
        )

    def PullObject(self, request: Any) -> Any:
        return message_pb2.PullObjectResponse(
            object_found=True,
            object_available=True,
            object_content=self.objects[request.object_id],
        )

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed = request.message_object_id


def link_to(store: Store) -> flower.Link:
    transport: Any = SimpleNamespace(most=math.inf)
    return flower.Link(store, transport, Retry(0.0))


@pytest.mark.parametrize("body", [b"", b"abc", os.urandom(200_000), bytes(11_000_000)])
def test_a_request_and_its_answer_arrive_as_they_were_sent(body: bytes) -> None:
    down = Store(runtime_pb2.PushAppMessagesResponse)
    sent = flower.send_requests(link_to(down), 7, {3: Parcel(b"head", body)})
    assert sent[3].stored
    request = flower.next_request(link_to(down), 3)
    assert request
    assert request.incoming.fetch(link_to(down)) == Parcel(b"head", body)
    assert down.confirmed == sent[3].request

    for answer in (Parcel(b"answer", body), "no rows"):
        up = Store(fleet_pb2.PushMessagesResponse)
        flower.send_answer(link_to(up), 3, request, answer, 1.5)
        (incoming,) = flower.arrived(link_to(up), 7, {sent[3].request: len(body)}).values()
        assert incoming.fetch(link_to(up)) == answer


def test_an_answer_that_is_too_long_is_refused() -> None:
    """Zeros travel as one piece that repeats."""
    store = Store(runtime_pb2.PushAppMessagesResponse)
    flower.send_requests(link_to(store), 7, {3: Parcel(b"head", bytes(11_000_000))})
    tree = store.request.message_object_trees[0]
    incoming = flower.Incoming(3, 7, tree, most=6_000_000)
    with pytest.raises(flower.TooLong):
        incoming.fetch(link_to(store))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """The requests of clients, which get empty answers."""
    requests = []

    def handle(_: Any, request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, content=b"")

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)
    return requests


def test_calls_carry_what_the_superlink_asks_for(sent: list[httpx.Request], tmp_path: Path) -> None:
    where = "fl.example.org:9092", local._make_certificates(tmp_path)
    runtime = flower.runtime_link(*where, b"s" * 32, Retry(0.0))
    assert flower.take_task(runtime) is None
    runtime.transport.token = "token"
    flower.connected_nodes(runtime)
    fleet = flower.fleet_link(*where, ec.generate_private_key(ec.SECP384R1()), Retry(0.0))
    flower.next_request(fleet, 3)
    acquire, nodes, pull = sent
    assert {request.url.host for request in sent} == {"fl.example.org"}
    for request in sent:
        assert VERSION in request.headers.values()
        assert request.extensions["timeout"]["read"] == 120.0
    assert found("TASK_TOKEN_HEADER") not in acquire.headers
    assert nodes.headers[found("TASK_TOKEN_HEADER")] == "token"
    assert len(set(acquire.headers) - set(nodes.headers)) >= 1  # signed by the secret
    assert len(set(pull.headers) - set(nodes.headers)) >= 3  # key, time and signature
    for link in (runtime, fleet):
        link.close()


def test_a_response_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    runtime = flower.runtime_link(
        "fl.example.org:9092", local._make_certificates(tmp_path), b"s" * 32, Retry(0.0)
    )

    def never() -> Iterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    response = httpx.Response(200, headers={"content-length": "2000000"}, content=never())
    runtime.transport.http._transport = httpx.MockTransport(lambda _: response)
    runtime.transport.most = 1_000_000
    with pytest.raises(flower.TooLong):
        flower.connected_nodes(runtime)
    runtime.close()


def test_the_superlink_has_the_options(tmp_path: Path) -> None:
    source = ast.parse(Path(local.__file__).read_text())
    texts = {node.value for node in ast.walk(source) if isinstance(node, ast.Constant)}
    options = sorted(text for text in texts if isinstance(text, str) and text.startswith("--"))
    assert len(options) > 5
    module, _, function = flower.command("flower-superlink").partition(":")
    program = (
        f"import sys; from {module} import {function}; sys.argv[1:] = ['--help']; {function}()"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **flower.environment(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    missing = [option for option in options if option not in shown]
    assert not missing, f"flwr {VERSION}: flower-superlink has no {missing}; adapt local.py"
