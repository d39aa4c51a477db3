"""A node's end of the network over Flower: requests to the node are answered here.

The node's process takes the place that Flower has for a SuperNode and the ClientApps that it
starts. It never asks for the app of a run, so there is no code that it could run.
"""

import contextlib
import logging
import math
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedprox.deployment import flower
from fedprox.deployment.crypto import read_private_key
from fedprox.deployment.flower import Incoming, Link, Lost, Retry
from fedprox.deployment.network import Parcel
from fedprox.deployment.processes import Child, running
from fedprox.errors import foreign, printable, reason

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx

ARRIVES = 60.0
"""Seconds without a new part of a request until the node gives it up."""

IDLE = 3.0
"""Most seconds between two looks for a request. The SuperLink serves a few hundred calls a second
for all nodes."""


class NodeConnection(NamedTuple):
    """How a node reaches the SuperLink.

    Attributes:
        superlink: The SuperLink's address, `host:port`.
        ca_certificate: The certificate in PEM of the authority that signed the SuperLink's.
        key: The node's private key. The operator registers its public key.
        folder: Where the process that sends the node's heartbeats keeps its log and settings.
    """

    superlink: str
    ca_certificate: Path
    key: Path
    folder: Path


def serve(
    answer: Callable[[Parcel], Parcel], connection: NodeConnection, stop: threading.Event
) -> None:
    """Answer the requests that reach a node, until `stop` is set.

    An error that keeps the node from its SuperLink is logged as a warning, once.
    """
    flower.require_flower()
    flower.require_address(connection.superlink)
    flower.require_certificates(connection.ca_certificate)
    key = read_private_key(connection.key)
    connection.folder.mkdir(parents=True, exist_ok=True)
    journal = _Journal(connection)

    def wait(seconds: float, error: Exception) -> None:
        journal.problem(error)
        if stop.wait(seconds):
            raise _Stopped

    fleet = flower.fleet_link(
        connection.superlink,
        connection.ca_certificate,
        key,
        Retry(math.inf, wait, journal.answered),
    )
    pause = 1.0
    with contextlib.closing(fleet), contextlib.suppress(_Stopped):
        while not stop.is_set():
            try:
                node = flower.sign_on(fleet, key)
                journal.connected(node)
                pause = 1.0
                with _staying(fleet, connection, node) as alive:
                    _answer_all(answer, fleet, node, alive, stop)
                if not stop.is_set():
                    journal.disconnected()
            except (httpx.HTTPError, ValueError) as error:  # a proxy may send what is no message
                journal.problem(error)
                pause = min(2 * pause, 15.0)
            stop.wait(pause)


class _Stopped(Exception):  # noqa: N818 - what has happened to a call
    """The node ends while a call waits for the SuperLink."""


@contextlib.contextmanager
def _staying(fleet: Link, connection: NodeConnection, node: int) -> Iterator[Callable[[], bool]]:
    """Keep the node connected by a process of its own, and yield whether it lives."""
    program = Child(
        entry="fedprox.deployment.heartbeat:keep_connected",
        arguments=[
            connection.superlink,
            str(connection.ca_certificate),
            str(connection.key),
            str(node),
        ],
        log=connection.folder / "heartbeat.log",
        environment=flower.environment(connection.folder / "flwr"),
    )
    with contextlib.ExitStack() as stack, running([program]) as [process]:
        stack.callback(_sign_off_after, process, fleet, node)  # once the process has ended
        yield lambda: process.poll() is None


def _sign_off_after(process: "subprocess.Popen[bytes]", fleet: Link, node: int) -> None:
    """Sign a node off unless its process has."""
    if process.returncode:
        fleet.retry.seconds = 0.0
        with contextlib.suppress(httpx.HTTPError, ValueError):
            flower.sign_off(fleet, node)
        fleet.retry.seconds = math.inf


class _Journal:
    """Reports how the connection to the SuperLink is, each problem once."""

    def __init__(self, connection: NodeConnection) -> None:
        self.connection, self.signed_on = connection, False
        self.reported = set[str]()  # since the last call that succeeded
        self.log = logging.getLogger(__name__)

    def connected(self, node: int) -> None:
        """The node has signed on."""
        self.signed_on = True
        self.reported.clear()
        self.log.info("connected to %s as node %s", self.connection.superlink, node)

    def disconnected(self) -> None:
        """The process that sends heartbeats has ended."""
        self.signed_on = False
        file = self.connection.folder / "heartbeat.log"
        self.log.warning("what sends heartbeats has ended; see %s; connecting again", file)

    def answered(self) -> None:
        """A call has succeeded."""
        if self.signed_on and self.reported:
            self.log.info("SuperLink %s: it answers again", self.connection.superlink)
            self.reported.clear()

    def problem(self, error: Exception) -> None:
        """A call has failed."""
        line = self._in_words(error)
        if line not in self.reported:
            self.log.warning("SuperLink %s: %s; trying again", self.connection.superlink, line)
        self.reported.add(line)

    def _in_words(self, error: Exception) -> str:
        if isinstance(error, httpx.HTTPStatusError):
            key = self.connection.key
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                return f"it refuses what {key} signs; it was unregistered, or the clock is wrong"
            if error.response.status_code == httpx.codes.PRECONDITION_FAILED:
                return (
                    f"it refuses the key {key}, which is not registered, or which another node "
                    "uses or used when its machine crashed less than a minute ago"
                )
            return foreign(flower.problem_of(error))
        if flower.is_tls(error):
            return foreign(flower.tls_in_words(error, self.connection.ca_certificate))
        text = foreign(reason(error))
        return text if isinstance(error, ValueError) else f"it does not answer: {text}"


def _answer_all(
    answer: Callable[[Parcel], Parcel],
    fleet: Link,
    node: int,
    alive: Callable[[], bool],
    stop: threading.Event,
) -> None:
    """Answer requests while the node is connected."""
    quiet_since = time.monotonic()
    while alive() and not stop.is_set():
        if request := flower.next_request(fleet, node):
            try:
                _answer_one(answer, fleet, request, stop)
            except httpx.HTTPStatusError as error:
                log = logging.getLogger(__name__)
                log.warning("a request was lost: %s", foreign(flower.problem_of(error)))
            quiet_since = time.monotonic()
        stop.wait(flower.until_next_look(quiet_since, IDLE))


def _answer_one(
    answer: Callable[[Parcel], Parcel],
    fleet: Link,
    request: Incoming,
    stop: threading.Event,
) -> None:
    """Answer a request."""
    log = logging.getLogger(__name__)
    began = time.monotonic()
    answered: Parcel | str
    try:
        answered = _received(fleet, request, stop)
    except Lost as error:
        log.warning("a request was lost: %s", reason(error))
        answered = reason(error)
    if isinstance(answered, Parcel):
        try:
            # whoever has the operator's secret can send it; the SuperLink knows who began the run
            answered = answer(answered._replace(sender=f"run {request.run} of the SuperLink"))
        except Exception as error:
            log.exception("a request failed")
            answered = printable(f"{type(error).__name__}: {reason(error)}")
    flower.send_answer(fleet, request, answered, time.monotonic() - began)


def _received(fleet: Link, request: Incoming, stop: threading.Event) -> Parcel:
    """A request's parcel, once all of it is here."""
    since, left = time.monotonic(), len(request.missing)
    while True:
        try:
            parcel = request.fetch(fleet)
        except (httpx.HTTPError, _Stopped, Lost):
            raise
        except Exception as error:  # what the SuperLink sent is not what it should be
            raise Lost(f"it is not a request: {reason(error)}") from error
        if isinstance(parcel, str):
            raise Lost(parcel)
        if parcel is not None:
            return parcel
        if len(request.missing) < left:
            left, since = len(request.missing), time.monotonic()
        if time.monotonic() - since > ARRIVES:
            raise Lost("it did not arrive")
        if stop.wait(flower.until_next_look(since)):
            raise _Stopped
