"""What either end of Flower does by itself, without a SuperLink."""

import contextlib
import io
import re
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from fedprox import InputError
from fedprox.deployment import flower, flower_node, flower_operator, heartbeat
from fedprox.deployment.certificates import make_node_key
from fedprox.deployment.flower import Incoming, Lost
from fedprox.deployment.flower_node import NodeConnection, _received, _Stopped, serve
from fedprox.deployment.network import Parcel, Received
from tests.deployment.machines import written_authority

FLEET: Any = None
"""A connection that no test uses."""


def test_processes_of_flower_keep_to_their_folder_and_send_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert flower.environment(Path("folder")) == {
        "FLWR_HOME": "folder",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "no_proxy": "example.org,localhost,127.0.0.1",
    }


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    with pytest.raises(InputError, match=f"^{re.escape(str(file))}: no such file$"):
        flower.require_certificates(file)
    file.write_text("nothing")
    with pytest.raises(InputError, match=f"^{re.escape(str(file))}: no certificates in PEM$"):
        flower.require_certificates(file)


def test_the_app_holds_no_code() -> None:
    with zipfile.ZipFile(io.BytesIO(flower.packed_app())) as app:
        names = [name for name in app.namelist() if not name.startswith(".info/")]
    assert names == ["pyproject.toml"]


def test_heartbeats_end_with_the_task() -> None:
    before = set(threading.enumerate())
    with flower.heartbeats(FLEET):  # the first is sent after a while
        [thread] = set(threading.enumerate()) - before
    assert not thread.is_alive()


@pytest.fixture
def node_key(tmp_path: Path) -> Path:
    """A node's private key."""
    key, _ = make_node_key(tmp_path / "node")
    return key


class Waits(threading.Event):
    """An event that is set after some waits, which take no time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.seconds = most, list[float | None]()

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        if len(self.seconds) == self.most:
            self.set()
        return self.is_set()


def test_a_node_that_is_refused_tries_again_ever_more_seldom(
    node_key: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(*_: Any) -> int:
        raise httpx.ConnectError("no way")

    monkeypatch.setattr(flower, "sign_on", refused)
    authority = written_authority(tmp_path / "authority")
    connection = NodeConnection("fl.example.org:9092", authority, node_key, tmp_path / "folder")
    stop = Waits(6)

    def answer(parcel: Parcel) -> Parcel:
        return parcel

    serve(answer, connection, stop)
    assert stop.seconds == [2.0, 4.0, 8.0, 15.0, 15.0, 15.0]
    assert [r.getMessage() for r in caplog.records] == [
        "SuperLink fl.example.org:9092: it does not answer: no way; trying again"
    ]


def status(code: int) -> httpx.HTTPStatusError:
    response = httpx.Response(code)
    return httpx.HTTPStatusError("", request=httpx.Request("POST", "x"), response=response)


@pytest.mark.parametrize(
    ("replies", "pauses", "end"),
    [
        ([True, True, False], [24.0] * 3, "the SuperLink no longer knows the node"),
        ([True, status(401)], [24.0] * 2, "the SuperLink refuses the node's key"),
        (
            [status(503), httpx.ConnectError(""), ValueError(), True],
            [24.0, *[5.0] * 3, 24.0],
            "the node did not sign off: no way",
        ),
    ],
)
def test_heartbeats_are_sent_until_the_node_ends_or_is_refused(
    replies: list[Any],
    pauses: list[float],
    end: str,
    node_key: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, answers = Waits(5), iter(replies)

    def link(address: str, ca_certificate: Path, key: Any, _: Any) -> Any:
        assert (address, ca_certificate, key.key_size) == ("fl.example.org", Path("ca.pem"), 384)
        return FLEET

    def stay(link: Any, node: int) -> bool:
        assert (link, node) == (FLEET, 7)
        if isinstance(reply := next(answers), Exception):
            raise reply
        return bool(reply)

    def sign_off(link: Any, node: int) -> None:
        assert (link, node) == (FLEET, 7)
        raise httpx.ConnectError("no way")

    monkeypatch.setattr("sys.argv", ["main", "fl.example.org", "ca.pem", str(node_key), "7"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(heartbeat, "threading", SimpleNamespace(Event=lambda: ended))
    for name, function in {"fleet_link": link, "stay": stay, "sign_off": sign_off}.items():
        monkeypatch.setattr(flower, name, function)
    assert heartbeat.keep_connected() == end
    assert ended.seconds == pauses
    assert next(answers, None) is None


class Asked(Incoming):
    """A request whose fetches end as given; the last way again and again."""

    def __init__(self, *ends: Parcel | str | Exception | None) -> None:
        self.ends, self.missing = list(ends), []

    def fetch(self, fleet: Any) -> Parcel | str | None:
        del fleet
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, Exception):
            raise end
        return end


def test_a_request_is_fetched_until_it_is_here() -> None:
    stop = Waits(9)
    assert _received(FLEET, Asked(None, None, Parcel(b"all")), stop) == Parcel(b"all")
    assert len(stop.seconds) == 2
    with pytest.raises(_Stopped):
        _received(FLEET, Asked(None), stop)


@pytest.mark.parametrize(
    ("end", "kind", "words"),
    [
        ("it is too long", Lost, "^it is too long$"),
        (ValueError("not so"), Lost, "^it is not a request: not so$"),
        (httpx.ConnectError("no way"), httpx.ConnectError, "^no way$"),
        (None, Lost, "^it did not arrive$"),
    ],
)
def test_a_request_that_does_not_arrive_is_lost(
    end: Any, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_node, "ARRIVES", 0.0)
    with pytest.raises(kind, match=words):
        _received(FLEET, Asked(end), Waits(9))


def test_the_operator_receives_what_arrives_and_is_told_what_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "under way": Asked(None, Parcel(b"all")),
        "here": Asked(Parcel(b"here")),
        "gone": Asked("the node\nhas left"),
        "lost": Asked(Lost("a part is missing")),
        "refused": Asked(ValueError("not so")),
        "no way": Asked(httpx.ConnectError("no way"), Parcel(b"then")),
    }
    dropped = []

    def begun(link: Any, run: int, waiting: Any) -> Any:
        assert (link, run) == (FLEET, 7)
        return {request: answers[request] for request in waiting}

    def send(link: Any, run: int, parcels: Any) -> Any:
        assert (link, run) == (FLEET, 7)
        return {node: (request, True) for node, request in zip(parcels, names, strict=True)}

    monkeypatch.setattr(flower, "answers_begun", begun)
    monkeypatch.setattr(flower, "send_requests", send)
    monkeypatch.setattr(flower, "drop", lambda *given: dropped.append(given))
    requests = flower_operator._Requests(FLEET, 7, contextlib.nullcontext)
    names = list(answers)
    assert requests.send(dict.fromkeys(range(6), Parcel(b"ask"))) == dict(enumerate(names))
    with pytest.raises(httpx.ConnectError):
        requests.receive(0.0)
    assert requests.receive(0.0) == [
        Received("here", Parcel(b"here")),
        Received("gone", None, "the node has left"),
        Received("lost", None, "a part is missing"),
        Received("refused", None, "its answer is refused: not so", final=True),
        Received("under way", Parcel(b"all")),
        Received("no way", Parcel(b"then")),
    ]
    assert dropped == [(FLEET, 7, request) for request in ("gone", "lost", "refused")]
    assert not requests.waiting
    assert not requests.incoming
