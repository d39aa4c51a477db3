"""The network over Flower, with real processes on the loopback."""

import contextlib
import datetime
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.runtime import RuntimeHttpClient

from fedprox import InputError
from fedprox.deployment import flower, trial
from fedprox.deployment.certificates import make_node_key
from fedprox.deployment.crypto import decoded, has_signed, read_identity
from fedprox.deployment.flower_node import NodeConnection, serve
from fedprox.deployment.flower_operator import operator_network
from fedprox.deployment.network import Network, Parcel, Received
from fedprox.deployment.processes import Child, running
from fedprox.deployment.trial import LocalSuperLink, local_superlink
from tests.deployment.machines import written_authority

pytestmark = pytest.mark.slow

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
ECHO = f"{Path(__file__).with_name('echo_node.py')}:main"


class Federation(NamedTuple):
    """A SuperLink, the operator's end, and two nodes by their identifiers."""

    superlink: LocalSuperLink
    network: Network
    programs: dict[int, Child]
    processes: dict[int, "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    with local_superlink(folder / "superlink") as superlink:
        programs, keys = {}, {}
        for name in ("a", "b"):
            key, keys[name] = make_node_key(folder / name)
            programs[superlink.register(keys[name])] = echo_node(superlink, key)
        with (
            running(list(programs.values())) as started,
            operator_network(*superlink[:3], keys) as network,
        ):
            wait_until(lambda: network.nodes() == sorted(programs))
            processes = dict(zip(programs, started, strict=True))
            yield Federation(superlink, network, programs, processes)


def echo_node(superlink: LocalSuperLink, key: Path) -> Child:
    arguments = [superlink.address, str(superlink.ca_certificate), str(key), str(key.parent)]
    return Child(ECHO, arguments, key.parent / "log")


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def receive(network: Network, count: int, seconds: float = 60) -> dict[str, Received]:
    """The next answers by request."""
    received: dict[str, Received] = {}
    deadline = time.monotonic() + seconds
    while len(received) < count:
        assert time.monotonic() < deadline
        received.update({each.request: each for each in network.receive(1.0)})
    return received


def heartbeat_of(node: "subprocess.Popen[bytes]") -> int:
    """The process that sends a node's heartbeats."""
    task = f"/proc/{node.pid}/task/{node.pid}/children"
    return int(Path(task).read_text().split()[0])


def flower_processes(folder: Path) -> list[int]:
    """The processes of Flower that keep their settings under a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"FLWR_HOME={folder}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def test_each_request_gets_its_answer(federation: Federation) -> None:
    network = federation.network
    for number in range(5):
        parcels = {node: Parcel(b"%d %d" % (node, number)) for node in network.nodes()}
        requests = network.send(parcels)
        received = receive(network, 2)
        for node, request in requests.items():
            assert received[request].problem == ""
            assert received[request].parcel == Parcel(b"answer to %d %d" % (node, number))
    assert network.receive(0.0) == []


def test_a_node_answers_requests_in_turn(federation: Federation) -> None:
    network = federation.network
    node = network.nodes()[0]
    requests = [network.send({node: Parcel(b"%d" % number)})[node] for number in range(3)]
    received = receive(network, 3)
    heads = [received[request].parcel for request in requests]
    assert heads == [Parcel(b"answer to %d" % number) for number in range(3)]


def test_a_node_knows_the_run_that_asks(federation: Federation) -> None:
    """Its number, which the SuperLink's host can say more about; the audit has it."""
    network = federation.network
    node = network.nodes()[0]
    request = network.send({node: Parcel(b"who")})[node]
    parcel = receive(network, 1)[request].parcel
    assert parcel is not None
    assert re.fullmatch(rb"run [1-9]\d* of the SuperLink", parcel.head)


@pytest.mark.parametrize("size", [flower.SMALL, flower.SMALL + 1, 30_000_000])
def test_bodies_survive(federation: Federation, size: int) -> None:
    body = os.urandom(size)
    requests = federation.network.send(
        {node: Parcel(b"body", body) for node in federation.programs}
    )
    received = receive(federation.network, 2)
    for request in requests.values():
        assert received[request].parcel == Parcel(b"answer to body", body[::-1])


@pytest.mark.parametrize(
    ("body", "most"),
    [(os.urandom(300_000), 100_000), (bytes(40_000_000), 6_000_000)],
    ids=["random", "zeros"],
)
def test_an_answer_that_is_too_long_is_given_up(
    federation: Federation, body: bytes, most: int
) -> None:
    """Zeros travel as one piece of 5 MB that repeats."""
    node = min(federation.programs)
    request = federation.network.send({node: Parcel(b"long", body, most)})[node]
    assert receive(federation.network, 1)[request] == Received(
        request, None, "its answer is refused: it has more bytes than were expected", final=True
    )


def test_a_name_belongs_to_a_key(federation: Federation) -> None:
    first, second = federation.programs  # in the order of their names
    allowed = {
        (node, name)
        for node in (first, second)
        for name in ("a", "b", "c")
        if federation.network.may_be(node, name)
    }
    assert allowed == {(first, "a"), (second, "b")}
    assert [federation.network.name_of(node) for node in (first, second, 0)] == ["a", "b", ""]


def test_the_operator_knows_the_keys_of_nodes(federation: Federation) -> None:
    key_of = federation.network.key_of
    first, second = (decoded(key_of(node)) for node in federation.programs)
    assert first.public_numbers() != second.public_numbers()
    for node, program in federation.programs.items():
        signed = read_identity("", program.log.parent / "node.key", {}).sign(b"content")
        assert has_signed(decoded(key_of(node)), signed, b"content")
        assert not has_signed(decoded(key_of(node)), signed, b"other")
    assert key_of(0) == b""


def test_a_shared_body_is_uploaded_once(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded = []
    push = RuntimeHttpClient.PushObject

    def counted(self: RuntimeHttpClient, request: PushObjectRequest) -> object:
        uploaded.append(len(request.object_content))
        return push(self, request)

    monkeypatch.setattr(RuntimeHttpClient, "PushObject", counted)
    body = os.urandom(1_000_000)
    federation.network.send({node: Parcel(b"shared", body) for node in federation.programs})
    assert 1_000_000 < sum(uploaded) < 1_100_000
    receive(federation.network, 2)


def test_failures_are_reported_in_one_line(federation: Federation) -> None:
    node = min(federation.programs)
    request = federation.network.send({node: Parcel(b"fail")})[node]
    assert receive(federation.network, 1)[request] == Received(
        request, None, "ValueError: no rows here"
    )
    request = federation.network.send({node + 1: Parcel(b"")})[node + 1]
    [received] = federation.network.receive(0.0)
    assert received == Received(request, None, "it is not connected")


def test_strangers_are_refused(federation: Federation, tmp_path: Path) -> None:
    superlink = federation.superlink
    unknown, _ = make_node_key(tmp_path / "unknown")
    deceived, public = make_node_key(tmp_path / "deceived")
    superlink.register(public)
    forged = written_authority(tmp_path / "other")
    nodes = [
        echo_node(superlink, unknown),
        echo_node(superlink._replace(ca_certificate=forged), deceived),
    ]
    bare = [
        bare_supernode(
            superlink, tmp_path / "keyless", "--root-certificates", superlink.ca_certificate
        ),
        bare_supernode(superlink, tmp_path / "insecure", "--insecure"),
    ]
    lines = [
        f"SuperLink {superlink.address}: it refuses the key {unknown}, which is not registered",
        f"; is {forged} the certificate of its authority?; trying again",
        "SuperNode authentication is enabled. All SuperNodes must be registered via the CLI.",
        "Connection attempt failed",
    ]
    with running([*nodes, *bare]):
        for program, line in zip([*nodes, *bare], lines, strict=True):
            wait_until(lambda log=program.log, line=line: line in log.read_text())  # type: ignore[misc]
        assert federation.network.nodes() == sorted(federation.programs)
    for program in nodes:
        assert "Traceback" not in program.log.read_text()


def bare_supernode(superlink: LocalSuperLink, folder: Path, *options: object) -> Child:
    """A SuperNode with options of its own."""
    folder.mkdir()
    arguments = ["--superlink", superlink.address, "--isolation", "process"]
    arguments += ["--host", "127.0.0.1", "--port", str(trial.free_port())]
    return Child(
        flower.command("flower-supernode"),
        [*arguments, *map(str, options)],
        folder / "log",
        flower.environment(folder),
    )


@needs_proc
def test_a_killed_node_is_reported_and_returns(federation: Federation, tmp_path: Path) -> None:
    network = federation.network
    node = min(federation.programs)
    started = tmp_path / "started"
    long_work = Parcel(f"wait {started}".encode())

    request = network.send({node: long_work})[node]
    wait_until(started.exists)
    federation.processes[node].kill()
    received = receive(network, 1, seconds=20)[request]
    assert received == Received(request, None, "the node is no longer connected")

    started.unlink()
    with running([federation.programs[node]]) as [process]:
        wait_until(lambda: node in network.nodes())
        request = network.send({node: long_work})[node]
        wait_until(started.exists)
        process.kill()
        wait_until(lambda: node not in network.nodes())
    with running([federation.programs[node]]) as [process]:  # the operator has not asked meanwhile
        wait_until(lambda: node in network.nodes())
        problem = "it has started again since"
        assert network.receive(0.0) == [Received(request, None, problem)]

        os.kill(heartbeat_of(process), signal.SIGTERM)
        wait_until(lambda: node not in network.nodes())
        wait_until(lambda: node in network.nodes())
        request = network.send({node: Parcel(b"again")})[node]
        assert receive(network, 1)[request].parcel == Parcel(b"answer to again")
    assert "connecting again" in federation.programs[node].log.read_text()


@needs_proc
def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    key, public = make_node_key(tmp_path / "node")
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(ZeroDivisionError))
        superlink = stack.enter_context(local_superlink(tmp_path / "superlink"))
        superlink.register(public)
        connection = NodeConnection(*superlink[:2], key, key.parent)
        node = threading.Thread(target=serve, args=(lambda parcel: parcel, connection, stop))
        node.start()
        stack.callback(node.join)
        stack.callback(stop.set)
        network = stack.enter_context(operator_network(*superlink[:3]))
        wait_until(lambda: len(network.nodes()) == 1)
        assert len(flower_processes(tmp_path)) == 2
        raise ZeroDivisionError
    assert flower_processes(tmp_path) == []


@needs_proc
def test_nothing_is_left_after_a_kill(tmp_path: Path) -> None:
    script = tmp_path / "federation.py"
    script.write_text(FEDERATION)
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(flower_processes(tmp_path)) == 2
        process.kill()
    wait_until(lambda: flower_processes(tmp_path) == [], seconds=20)


FEDERATION = """
import sys, threading
from pathlib import Path
from fedprox.deployment.crypto import decoded
from fedprox.deployment.flower_node import NodeConnection, serve
from fedprox.deployment.flower_operator import operator_network
from fedprox.deployment.certificates import make_node_key
from fedprox.deployment.trial import local_superlink
folder = Path(sys.argv[1])
with local_superlink(folder / "superlink") as superlink:
    key, public = make_node_key(folder / "node")
    superlink.register(public)
    connection = NodeConnection(*superlink[:2], key, key.parent)
    arguments = (lambda parcel: parcel, connection, threading.Event())
    threading.Thread(target=serve, args=arguments).start()
    with operator_network(*superlink[:3]) as network:
        while not network.nodes():
            pass
        print("ready", flush=True)
        threading.Event().wait()
"""


def test_a_run_lasts_as_long_as_the_context(tmp_path: Path) -> None:
    with local_superlink(tmp_path / "superlink") as superlink:
        link = flower.control_link(*superlink[:2])
        control = link.client
        app = Fab(content=flower.packed_app())
        control.StartRun(StartRunRequest(fab=app))  # nobody waits for this one
        with pytest.raises(ZeroDivisionError), operator_network(*superlink[:3]):
            raise ZeroDivisionError("by zero")
        with operator_network(*superlink[:3]):
            pass
        with operator_network(*superlink[:3]) as network:
            runs = control.ListRuns(ListRunsRequest()).run_dict
            [running_now] = [run for run in runs if runs[run].status.status == "running"]
            control.StopRun(StopRunRequest(run_id=running_now))
            with pytest.raises(ConnectionError, match=r"^SuperLink 127.*it has ended the run, on"):
                network.nodes()
        runs = control.ListRuns(ListRunsRequest()).run_dict
        outcomes = sorted((run.status.sub_status, run.status.details) for run in runs.values())
        assert outcomes == [
            ("completed", ""),
            ("failed", "ZeroDivisionError: by zero"),
            ("failed", "no fedprox deploy waits for this run"),
            ("stopped", ""),
        ]
        link.close()


def test_no_node_asks_for_the_app(federation: Federation) -> None:
    network = federation.network
    network.send({node: Parcel(b"") for node in federation.programs})
    receive(network, 2)
    log = federation.superlink.ca_certificate.with_name("superlink.log").read_text()
    assert "[Fleet.PushMessages]" in log
    assert "[Fleet.GetFab]" not in log


def test_what_keeps_the_operator_out(tmp_path: Path) -> None:
    with local_superlink(tmp_path / "superlink") as superlink:
        address, ca_certificate, secret = superlink[:3]
        wrong = tmp_path / "wrong"
        wrong.write_text("wrong")
        forged = written_authority(tmp_path / "other")
        cases: list[tuple[type[Exception], str, tuple[str, Path, Path]]] = [
            (InputError, f"is {wrong} its secret?", (address, ca_certificate, wrong)),
            (InputError, f"is {forged} the certificate", (address, forged, secret)),
            (InputError, f"{wrong}: no certificates in PEM", (address, wrong, secret)),
            (InputError, "missing: no such file", (address, ca_certificate, tmp_path / "missing")),
            (InputError, "an address is host:port", ("https://a", ca_certificate, secret)),
            (ConnectionError, "does not answer", ("127.0.0.1:1", ca_certificate, secret)),
        ]
        for kind, line, arguments in cases:
            with pytest.raises(kind, match=re.escape(line)) as caught, operator_network(*arguments):
                pass
            assert "\n" not in str(caught.value)


@contextlib.contextmanager
def tls_server(folder: Path) -> Iterator[int]:
    """A server that agrees on an encrypted connection and hangs up; yields its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    over = threading.Event()

    def answer() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), listening.accept()[0] as accepted:
                context.wrap_socket(accepted, server_side=True).close()

    with socket.create_server(("", 0)) as listening:
        listening.settimeout(0.2)
        thread = threading.Thread(target=answer)
        thread.start()
        yield int(listening.getsockname()[1])
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("host", "valid", "line"),
    [
        ("127.0.0.1", -1, "certificate has expired"),
        ("127.0.0.2", 1, "certificate is not valid for '127.0.0.2'"),
        ("127.0.0.1", 1, "ca.pem the certificate of its authority?"),
    ],
)
def test_both_ends_say_what_is_wrong_with_a_certificate(
    host: str,
    valid: int,
    line: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key, _ = make_node_key(tmp_path / "node")
    ca_certificate = written_authority(tmp_path, datetime.timedelta(minutes=valid))
    if "authority" in line:
        ca_certificate = written_authority(tmp_path / "other")
    with tls_server(tmp_path) as port:
        address, stop = f"{host}:{port}", threading.Event()
        connection = NodeConnection(address, ca_certificate, key, tmp_path)
        node = threading.Thread(target=serve, args=(lambda parcel: parcel, connection, stop))
        node.start()
        wait_until(lambda: bool(caplog.records))
        stop.set()
        node.join()
        with pytest.raises(InputError) as raised, operator_network(address, ca_certificate, key):
            pass
    (said,) = {record.getMessage() for record in caplog.records}
    assert line in said
    assert ("authority" in said) == ("authority" in line)
    assert said == f"{raised.value}; trying again"


def test_what_is_wrong_with_a_key(tmp_path: Path) -> None:
    key, public = make_node_key(tmp_path)
    assert key.stat().st_mode & 0o777 == 0o600
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    ca_certificate = written_authority(tmp_path)
    stop = threading.Event()
    stop.set()

    def connect(key: Path) -> None:
        connection = NodeConnection("localhost:1", ca_certificate, key, tmp_path)
        serve(lambda parcel: parcel, connection, stop)

    connect(key)
    with pytest.raises(InputError, match=r"node.key.pub: a node's key is an ECDSA private key"):
        connect(public)
    with pytest.raises(InputError, match="missing: no such file"):
        connect(tmp_path / "missing")
