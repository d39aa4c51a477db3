"""What `deployment/flower.py` relies on in Flower, checked for the version that is installed.

Names, arguments and fields are read from the file itself, so that none is forgotten. A new version
of Flower fails here, and not in the middle of a run.
"""

import ast
import gzip
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import fleet_pb2, message_pb2, runtime_pb2

import fedprox
from fedprox.deployment import flower, superlink
from fedprox.deployment.network import Parcel
from tests.deployment.machines import written_authority

VERSION = importlib.metadata.version("flwr")
FILE = Path(flower.__file__)
TREE = ast.parse(FILE.read_text())
PACKAGE = Path(fedprox.__file__).parent

ANSWERS = {
    "ControlHttpClient": {
        "ListNodes": ["nodes_info.node_id", "nodes_info.public_key", "nodes_info.unregistered_at"],
        "RegisterNode": ["node_id"],
        "StartRun": ["run_id"],
        "StopRun": [],
        "UnregisterNode": [],
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


CLIENTS = {
    "control": ["ControlHttpClient"],
    "runtime": ["RuntimeHttpClient"],
    "fleet": ["FleetHttpClient"],
    "link": ["RuntimeHttpClient", "FleetHttpClient"],
}
"""The clients of a connection, by the name of the variable that holds it."""


def client_calls() -> Iterator[tuple[str, str, list[str], int]]:
    """The calls of clients, with the fields that are sent and the line."""
    for node in ast.walk(TREE):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_call":
            link, name, *_ = node.args
            assert isinstance(link, ast.Name)
            fields = [keyword.arg for keyword in node.keywords if keyword.arg]
            for client in CLIENTS[link.id]:
                yield client, ast.literal_eval(name), fields, node.lineno


def test_one_file_imports_flower() -> None:
    importing = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(?:from|import) flwr\b", file.read_text(), re.MULTILINE)
    }
    assert importing == {"deployment/flower.py"}


PRIVATE = [
    "flwr.app.message: make_message",
    "flwr.app.message: remove_content_from_message",
    "flwr.common.constant: ErrorCode",
    "flwr.common.constant: SUPERLINK_NODE_ID",
    "flwr.common.constant: SubStatus",
    "flwr.common.serde: message_to_proto",
    "flwr.supercore.constant: TASK_TOKEN_HEADER",
    "flwr.supercore.constant: TaskType",
    "flwr.supercore.control: ControlHttpClient",
    "flwr.supercore.error: FlowerError",
    "flwr.supercore.inflatable.inflatable_object: get_all_nested_objects",
    "flwr.supercore.inflatable.inflatable_object: get_object_body",
    "flwr.supercore.inflatable.inflatable_object: get_object_head_values_from_object_content",
    "flwr.supercore.inflatable.inflatable_object: get_object_tree",
    "flwr.supercore.inflatable.inflatable_object: iterate_object_tree",
    "flwr.supercore.inflatable.inflatable_object: no_object_id_recompute",
    "flwr.supercore.inflatable.inflatable_utils: inflate_object_from_contents",
    "flwr.supercore.interceptors: SuperExecAuthHttpInterceptor",
    "flwr.supercore.runtime: RuntimeHttpClient",
    "flwr.supercore.runtime_version_compatibility: RuntimeVersionMetadata",
    "flwr.supernode.fleet_http_client: FleetHttpClient",
    "flwr.supernode.node_auth_http_interceptor: NodeAuthHttpInterceptor",
]
"""The private names of Flower that the file uses. Each may change in any version of Flower, so one
more is a decision: `docs/development/dependencies.md` says why these are needed."""


def test_the_private_names_are_those_of_the_list() -> None:
    private = set()
    for called in used():
        first, _, attribute = called.partition(".")
        module, name, _ = IMPORTED[first]
        if module == "flwr.app":
            assert name in import_module(module).__all__
        elif inspect.ismodule(found(first)):
            private |= {f"{module}.{name}: {attribute}"} if attribute else set()
        else:
            private.add(f"{module}: {name}")
    assert sorted(private) == PRIVATE


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
    try:
        inspect.signature(called).bind_partial(*call.args, **dict.fromkeys(keywords))
    except TypeError as error:
        fails(call.lineno, f"{name}: {error}")


def test_every_call_of_a_client_is_listed() -> None:
    made = {(client, call) for client, call, *_ in client_calls()}
    assert made == {(client, call) for client in ANSWERS for call in ANSWERS[client]}


@pytest.mark.parametrize(
    ("client", "call", "fields", "line"),
    [pytest.param(*each, id=f"{each[0]}.{each[1]}-{each[3]}") for each in client_calls()],
)
def test_the_call_takes_the_fields(client: str, call: str, fields: list[str], line: int) -> None:
    request = get_type_hints(found(f"{client}.{call}")).get("request")
    if request is None:
        fails(line, f"{client}.{call} takes no argument 'request'")
        return
    for field in fields:
        if field not in request.DESCRIPTOR.fields_by_name:
            fails(line, f"{client}.{call} takes no {field}")


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


class SuperLink:
    """Stands for a SuperLink that keeps one message and its objects."""

    def __init__(self) -> None:
        self.objects, self.confirmed = dict[str, bytes](), ""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = {
            "push-messages": self.push_messages,
            "pull-messages": self.pull_messages,
            "push-object": self.push_object,
            "pull-object": self.pull_object,
            "confirm-message-received": self.confirm,
        }[request.url.path.rpartition("/")[2]]
        fleet = request.url.path.startswith("/v1/fleet/")
        return httpx.Response(200, content=answer(request.content, fleet).SerializeToString())

    def push_messages(self, content: bytes, fleet: bool) -> Any:
        kind = fleet_pb2.PushMessagesRequest if fleet else runtime_pb2.PushAppMessagesRequest
        self.sent = kind.FromString(content)

        def names(tree: Any) -> list[str]:
            return [tree.object_id, *(name for child in tree.children for name in names(child))]

        missing = names(self.sent.message_object_trees[0])
        answer: dict[str, Any] = {"objects_to_push": missing, "session_id": "session"}
        if fleet:
            assert self.sent.clientapp_runtime_list == [1.5]
            return fleet_pb2.PushMessagesResponse(**answer)
        stored = self.sent.messages_list[0].metadata.message_id
        return runtime_pb2.PushAppMessagesResponse(message_ids=[stored], **answer)

    def pull_messages(self, content: bytes, fleet: bool) -> Any:
        del content
        kind = fleet_pb2.PullMessagesResponse if fleet else runtime_pb2.PullAppMessagesResponse
        trees = self.sent.message_object_trees
        return kind(messages_list=self.sent.messages_list, message_object_trees=trees)

    def push_object(self, content: bytes, fleet: bool) -> Any:
        del fleet
        request = message_pb2.PushObjectRequest.FromString(content)
        assert request.session_id == "session"
        self.objects[request.object_id] = request.object_content
        return message_pb2.PushObjectResponse(stored=True)

    def pull_object(self, content: bytes, fleet: bool) -> Any:
        del fleet
        request = message_pb2.PullObjectRequest.FromString(content)
        part = self.objects[request.object_id]
        return message_pb2.PullObjectResponse(
            object_found=True, object_available=True, object_content=part
        )

    def confirm(self, content: bytes, fleet: bool) -> Any:
        del fleet
        request = message_pb2.ConfirmMessageReceivedRequest.FromString(content)
        self.confirmed = request.message_object_id
        return message_pb2.ConfirmMessageReceivedResponse()


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The address of a SuperLink, and the certificate of its authority."""
    return "fl.example.org:9092", written_authority(tmp_path_factory.mktemp("authority"))


class Ends(NamedTuple):
    """An operator's and a node's connection to a SuperLink."""

    runtime: flower.Link
    fleet: flower.Link


@pytest.fixture
def ends(where: tuple[str, Path]) -> Iterator[Ends]:
    key = ec.generate_private_key(ec.SECP384R1())
    runtime = flower.runtime_link(*where, b"s" * 32, flower.Retry(0.0))
    fleet = flower.fleet_link(*where, key, flower.Retry(0.0))
    yield Ends(runtime, fleet)
    for link in (runtime, fleet):
        link.close()


def reach(ends: Ends, handler: Callable[[httpx.Request], httpx.Response]) -> None:
    """Let a function answer in a SuperLink's place."""
    for link in ends:
        link.http._transport = httpx.MockTransport(handler)


@pytest.mark.parametrize("body", [b"", b"abc", os.urandom(200_000), bytes(11_000_000)])
def test_a_request_and_its_answer_arrive_as_they_were_sent(ends: Ends, body: bytes) -> None:
    superlink = SuperLink()
    reach(ends, superlink)
    name, stored = flower.send_requests(ends.runtime, 7, {3: Parcel(b"head", body)})[3]
    assert stored
    request = flower.next_request(ends.fleet, 3)
    assert request
    assert request.fetch(ends.fleet) == Parcel(b"head", body)
    assert superlink.confirmed == name
    for answer in (Parcel(b"answer", body), "no rows"):
        flower.send_answer(ends.fleet, request, answer, 1.5)
        (incoming,) = flower.answers_begun(ends.runtime, 7, {name: len(body)}).values()
        assert incoming.fetch(ends.runtime) == answer


def test_an_answer_that_is_too_long_is_refused(ends: Ends) -> None:
    """Zeros travel as one piece that repeats."""
    superlink = SuperLink()
    reach(ends, superlink)
    flower.send_requests(ends.runtime, 7, {3: Parcel(b"head", bytes(11_000_000))})
    tree, about = superlink.sent.message_object_trees[0], superlink.sent.messages_list[0].metadata
    with pytest.raises(flower.TooLong):
        flower.Incoming(3, 7, tree, about, most=6_000_000).fetch(ends.fleet)


def test_a_response_that_is_too_long_is_not_read(ends: Ends) -> None:
    def never() -> Iterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    length = {"content-length": "2000000"}
    reach(ends, lambda _: httpx.Response(200, headers=length, content=never()))
    ends.runtime.most = 1_000_000
    with pytest.raises(flower.TooLong):
        flower.connected_nodes(ends.runtime)


@pytest.mark.parametrize("most", [1_000_000, float("inf")])
def test_a_response_without_a_length_is_read_up_to_a_bound(
    most: float, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        while True:
            read += 65_536
            assert read < 2_500_000
            yield bytes(65_536)

    monkeypatch.setattr(flower, "MOST_REPLY", 2_000_000)
    reach(ends, lambda _: httpx.Response(200, content=endless()))
    ends.runtime.most = most
    for call in (flower.connected_nodes, lambda link: flower.answers_begun(link, 7, {})):
        read = 0
        with pytest.raises(flower.TooLong, match="it has more bytes than were expected"):
            call(ends.runtime)
        assert read > min(most, 1_900_000)
    read = 0
    with pytest.raises(flower.TooLong):
        flower.next_request(ends.fleet, 3)


def test_a_compressed_response_is_not_read(ends: Ends) -> None:
    """A kilobyte may be a megabyte, and a megabyte a gigabyte."""
    asked = list[httpx.Request]()

    def packed(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        headers = {"content-encoding": "gzip"}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(gzip.compress(b"")))

    reach(ends, packed)
    with pytest.raises(httpx.RemoteProtocolError, match="a compressed response"):
        flower.connected_nodes(ends.runtime)
    assert asked[0].headers["accept-encoding"] == "identity"


def test_calls_carry_what_the_superlink_asks_for(ends: Ends) -> None:
    sent = list[httpx.Request]()

    def empty(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200)

    reach(ends, empty)
    assert flower.take_task(ends.runtime) is None
    ends.runtime.token = "token"
    flower.connected_nodes(ends.runtime)
    flower.next_request(ends.fleet, 3)
    acquire, nodes, pull = sent
    for request in sent:
        assert VERSION in request.headers.values()
        assert request.extensions["timeout"]["read"] == 120.0
    token = found("TASK_TOKEN_HEADER")
    assert token not in acquire.headers
    assert nodes.headers[token] == "token"
    assert set(acquire.headers) - set(nodes.headers)  # signed by the secret
    assert len(set(pull.headers) - set(nodes.headers)) >= 3  # key, time and signature


@pytest.mark.slow
def test_the_superlink_has_the_options(tmp_path: Path) -> None:
    source = ast.parse(inspect.getsource(superlink.running_superlink))
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
    assert not missing, f"flwr {VERSION}: flower-superlink has no {missing}; adapt superlink.py"
