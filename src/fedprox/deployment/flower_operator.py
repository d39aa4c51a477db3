"""The operator's end of the network over Flower.

Flower's SuperLink stores messages. The operator's process takes the place that Flower has for a
run's ServerApp, and a node's process that of a SuperNode and its ClientApps (`flower_node`). So no
code travels, and both processes stay while messages come and go.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedprox.deployment import flower
from fedprox.deployment.crypto import read_public_key
from fedprox.deployment.flower import Incoming, Link, Lost, Retry
from fedprox.deployment.network import Network, Parcel, Received
from fedprox.errors import InputError, foreign, printable, reason, require

with contextlib.suppress(ImportError):  # `require_flower` reports it
    import httpx


CALL_PATIENCE = 60.0
"""Seconds for which a call repeats while the SuperLink does not answer."""

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
    """
    flower.require_flower()
    flower.require_address(address)
    flower.require_certificates(ca_certificate)
    require(secret.is_file(), f"{secret}: no such file")
    known = {name: read_public_key(file) for name, file in keys.items()}
    errors = functools.partial(_one_line, address, ca_certificate, secret)
    with contextlib.ExitStack() as stack:
        with errors():
            runtime = flower.runtime_link(address, ca_certificate, secret.read_bytes(), Retry(10.0))
            stack.callback(runtime.close)
            run = _start_run(address, ca_certificate, runtime)
            stack.enter_context(flower.heartbeats(runtime))
        runtime.retry.seconds = CALL_PATIENCE
        problem: str | None = None
        requests = _Requests(runtime, run, errors)
        try:
            yield Network(
                *(requests.nodes, requests.send, requests.receive),
                may_be=functools.partial(requests.has_key_of, known),
                key_of=requests.key_of,
                name_of=functools.partial(requests.name_of, known),
            )
        except BaseException as error:
            problem = printable(f"{type(error).__name__}: {reason(error)}")
            raise
        finally:
            runtime.retry.seconds = 0.0
            for request in requests.waiting:
                requests.drop(request)
            runtime.retry.seconds = 5.0
            with contextlib.suppress(httpx.HTTPError):
                flower.end_task(runtime, problem)


@contextlib.contextmanager
def _one_line(address: str, ca_certificate: Path, secret: Path) -> Iterator[None]:
    """Report errors of the connection to a SuperLink in one line."""
    here = f"SuperLink {address}"
    try:
        yield
    except httpx.HTTPStatusError as error:
        text = flower.problem_of(error)
        if error.request.url.path.endswith("acquire-task"):
            text = f"{text}; is {secret} its secret?"
            raise InputError(f"{here}: {text}") from error
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            text = "it has ended the run, on request or after a minute without a heartbeat"
        raise ConnectionError(f"{here}: {text}") from error
    except httpx.TransportError as error:
        if flower.is_tls(error):
            raise InputError(f"{here}: {flower.tls_in_words(error, ca_certificate)}") from error
        raise ConnectionError(f"{here} does not answer: {reason(error)}") from error
    except InputError:
        raise
    except ValueError as error:  # a proxy may send what is no message, or has no end
        raise ConnectionError(f"{here}: {reason(error)}") from error


def _start_run(address: str, ca_certificate: Path, runtime: Link) -> int:
    """Submit a run and take its task."""
    with contextlib.closing(flower.control_link(address, ca_certificate, runtime.retry)) as control:
        run = flower.start_run(control)
        if not run:
            raise ConnectionError(f"SuperLink {address} did not start a run")
        try:
            _take_task(runtime, run)
        except BaseException:
            with contextlib.suppress(httpx.HTTPError):
                flower.stop_flower_run(control, run)
            raise
    return run


def _take_task(runtime: Link, run: int, seconds: float = 30.0) -> None:
    """Take the task of a run."""
    deadline = time.monotonic() + seconds
    while True:
        taken = flower.take_task(runtime)
        if taken == run:
            flower.begin_task(runtime)
            return
        if taken is not None:
            flower.end_task(runtime, "no fedprox deploy waits for this run")
        elif time.monotonic() > deadline:
            raise ConnectionError(
                "another process took the run's task: a flower-superexec, another fedprox deploy, "
                "or the SuperLink itself, which must run with --isolation process"
            )
        else:
            time.sleep(0.1)


class _Requests:
    """The requests of a run and their answers."""

    def __init__(self, runtime: Link, run: int, errors: Callable[[], Any]) -> None:
        self.runtime, self.run, self.errors = runtime, run, errors
        # by request: its node, `started` then, and bytes of its answer at most
        self.waiting: dict[str, tuple[int, str, int]] = {}
        self.keys: dict[int, bytes] = {}  # by node: its public key
        self.started: dict[int, str] = {}  # by node: when it connected
        self.incoming: dict[str, Incoming] = {}
        self.ready: list[Received] = []
        self.quiet_since = self.looked = time.monotonic()

    def nodes(self) -> Sequence[int]:
        """Identifiers of the nodes that are connected now."""
        with self.errors():
            connected = flower.connected_nodes(self.runtime)
        self.started = {node: started for node, (started, _) in connected.items()}
        self.keys |= {node: key for node, (_, key) in connected.items()}
        for request, (node, started, _) in list(self.waiting.items()):
            # Flower reports a node that is away only to those who ask before it is back
            if started and self.started.get(node, started) != started:
                self._fail(request, "it has started again since")
        return sorted(self.started)

    def has_key_of(self, known: Mapping[str, bytes], node: int, name: str) -> bool:
        """Whether a node has the key of a name; any node does if no keys are known."""
        return not known or (name in known and known[name] == self.keys.get(node))

    def name_of(self, known: Mapping[str, bytes], node: int) -> str:
        """The name whose key a node has; empty if it is not known."""
        return next((name for name, key in known.items() if key == self.keys.get(node)), "")

    def key_of(self, node: int) -> bytes:
        """A node's public key; empty if the SuperLink has not told it."""
        return self.keys.get(node, b"")

    def send(self, parcels: Mapping[int, Parcel]) -> Mapping[int, str]:
        """Send requests by node, and return their identifiers."""
        if not parcels:
            return {}
        with self.errors():
            sent = flower.send_requests(self.runtime, self.run, parcels)
        for node, (request, stored) in sent.items():
            if stored:
                self.waiting[request] = node, self.started.get(node, ""), parcels[node].most
            else:
                self._fail(request, "it is not connected")
        self.quiet_since = time.monotonic()
        return {node: request for node, (request, _) in sent.items()}

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
            time.sleep(min(flower.until_next_look(self.quiet_since), deadline - now))

    def _collect(self) -> None:
        """Fetch the answers that are there."""
        if self.waiting:
            most = {request: most for request, (_, _, most) in self.waiting.items()}
            for request, incoming in flower.answers_begun(self.runtime, self.run, most).items():
                self.waiting.pop(request, None)
                self.incoming[request] = incoming
        for request, incoming in list(self.incoming.items()):
            try:
                answer = incoming.fetch(self.runtime)
                if answer is None:  # the rest is under way
                    continue
                if isinstance(answer, Parcel):
                    self.ready.append(Received(request, answer))
                else:
                    self._fail(request, answer)
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
        line = foreign(" ".join(problem.split()))
        self.ready.append(Received(request, None, line, final))
        self.drop(request)

    def drop(self, request: str) -> None:
        """Delete what the SuperLink keeps of a request."""
        with contextlib.suppress(httpx.HTTPError):  # the end of the run deletes it, too
            flower.drop(self.runtime, self.run, request)
