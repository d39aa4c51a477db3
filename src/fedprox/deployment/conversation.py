"""Asking nodes, and waiting for their answers: repeats, lost messages and patience."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from fedprox.deployment.network import Network, Parcel, Received
from fedprox.deployment.wire import (
    Allowed,
    Answer,
    Array,
    Request,
    digest_of,
    most_bytes,
    pack_arrays,
    unpack_answer,
    unpack_arrays,
)
from fedprox.errors import InputError, foreign, require

REPEAT = 20.0
"""Seconds after which a request without an answer is sent again, without its arrays; each time
twice as many. A node that works on it answers it again; one that was restarted begins anew."""

NO_ANSWER, NOT_CONNECTED = "no answer", "not connected"
"""Problems of nodes that are silent."""

LISTEN = 1.0
"""Most seconds of one wait for answers."""

MOST_HEAD = 1_000_000
"""Most bytes of an answer's head, but for a description of clients."""

MOST_DESCRIBED = 200_000_000
"""Most bytes of the head of an answer that describes clients."""

NO_ARRAYS: Allowed = MappingProxyType({})

Digested = Sequence[tuple[str, Array]]
"""Arrays with their digests, by which requests name them."""


def digested(arrays: Sequence[Array]) -> Digested:
    """Arrays with their digests."""
    return [(digest_of(array), array) for array in arrays]


class Answered(NamedTuple):
    """The answer of a node; `bytes_down` were sent for it, repeats included."""

    head: Answer
    arrays: dict[str, Array]
    bytes_down: int
    bytes_up: int


class Failed(NamedTuple):
    """Why there is no answer that can be used.

    Attributes:
        why: In one line.
        refused: Whether the node refused the request.
        lost: Whether it refused since client state that the request names is lost.
    """

    why: str
    refused: bool = False
    lost: bool = False


@dataclass
class _Open:
    """A request without an answer.

    Attributes:
        arrays: The arrays that it needs, by digest.
        allowed: The arrays that its answer may have, in shape.
        end: When nobody waits for it any more.
        due: When it must be sent again, and `wait` seconds after that once more.
        problem: Why it has no answer yet.
    """

    node: int
    request: Request
    arrays: dict[str, Array]
    allowed: Allowed
    end: float
    began: float = field(default_factory=time.monotonic)
    due: float = -math.inf
    wait: float = field(default_factory=lambda: REPEAT)
    bytes_down: int = 0
    problem: str = NO_ANSWER

    @property
    def most(self) -> int:
        """Most bytes of the answer."""
        describes = self.request.kind == "describe"
        return (MOST_DESCRIBED if describes else MOST_HEAD) + most_bytes(self.allowed)


@dataclass
class Conversation:
    """Asks nodes for answers.

    Attributes:
        network: The way to the nodes.
        patience: Seconds to wait for a node.
        known: Digests of the arrays that each node is believed to hold.
        unused: Why the last update that was not used was not, by method and seed.
        gone: Nodes that were not connected when patience was over. Until they are connected again,
            requests wait for the other nodes only, if there are others.
        opened: The requests without an answer, by identifier.
        ended: The other requests, until they are taken.
        under_way: The requests that the network has: identifier, and whether all arrays were sent.
    """

    network: Network
    patience: float = 300.0
    known: dict[int, set[str]] = field(default_factory=dict)
    unused: dict[tuple[str, int], str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    opened: dict[str, _Open] = field(default_factory=dict)
    ended: dict[str, Answered | Failed] = field(default_factory=dict)
    under_way: dict[str, tuple[str, bool]] = field(default_factory=dict)

    def begin(
        self,
        node: int,
        request: Request,
        arrays: Digested,
        allowed: Allowed = NO_ARRAYS,
        *,
        patience: float | None = None,
        extra: float = 0.0,
    ) -> str:
        """Open a request, which `turn` sends and a node may work on for `extra` seconds."""
        if patience is None:  # a node answers its requests one after the other
            before = sum(each.node == node for each in self.opened.values())
            patience = self.patience * (1 + before)
        request = request.model_copy(update={"arrays": [digest for digest, _ in arrays]})
        end = time.monotonic() + patience + extra
        self.opened[request.id] = _Open(node, request, dict(arrays), allowed, end)
        return request.id

    def turn(self, seconds: float = LISTEN) -> None:
        """Send what is due, and wait for something to come back, at most so many seconds."""
        self._send()
        next_end = min((request.end for request in self.opened.values()), default=math.inf)
        left = next_end - time.monotonic()
        for received in self.network.receive(max(0.0, min(seconds, LISTEN, left))):
            number, whole = self.under_way.pop(received.request, ("", False))
            if number in self.opened:
                ended = self._read(received, self.opened[number], whole=whole)
                if ended is not None:
                    self._close(number, ended)
        now = time.monotonic()
        over = [number for number, request in self.opened.items() if now >= request.end]
        online = set(self.network.nodes()) if over else set[int]()
        for number in over:
            request = self.opened[number]
            if request.node not in online:
                self.gone.add(request.node)
                request.problem = NOT_CONNECTED
            self._close(number, Failed(request.problem))

    def answers(self, asked: Mapping[int, str]) -> dict[int, Answered | Failed]:
        """Each node's answer, or why there is none, once all requests have ended."""
        while any(number in self.opened for number in asked.values()):
            self.turn()
        return {
            node: self.ended.pop(number) if number else Failed(NOT_CONNECTED)
            for node, number in asked.items()
        }

    def begin_all(
        self,
        requests: Mapping[int, Request],
        arrays: Sequence[Array] = (),
        *,
        allowed: Mapping[int, Allowed] = MappingProxyType({}),
        patience: float | None = None,
        extra: float = 0.0,
    ) -> dict[int, str]:
        """Open requests to several nodes; their identifiers, empty for nodes that are gone."""
        needed = digested(arrays)
        self.gone -= set(self.network.nodes())
        skipped = self.gone & requests.keys()
        if skipped == requests.keys():
            skipped = set()
        return {
            node: ""
            if node in skipped
            else self.begin(
                *(node, request, needed, allowed.get(node, NO_ARRAYS)),
                patience=patience,
                extra=extra,
            )
            for node, request in requests.items()
        }

    def _close(self, number: str, ended: Answered | Failed) -> None:
        del self.opened[number]
        self.ended[number] = ended
        self.under_way = {sent: of for sent, of in self.under_way.items() if of[0] != number}

    def _send(self) -> None:
        """Send what has not been sent, or not been answered for long, to connected nodes."""
        now = time.monotonic()
        due = {number: request for number, request in self.opened.items() if now >= request.due}
        if not due:
            return
        online = set(self.network.nodes())
        bodies: dict[frozenset[str], bytes] = {}
        parcels = dict[int, Parcel]()
        numbers = dict[int, tuple[str, bool]]()
        for number, request in due.items():
            node, arrays = request.node, request.arrays
            if node not in online or node in parcels:
                continue
            lacking = frozenset(arrays.keys() - self.known.get(node, set()))
            if lacking not in bodies:
                bodies[lacking] = pack_arrays({name: arrays[name] for name in sorted(lacking)})
            head = request.request.model_dump_json().encode()
            parcels[node] = Parcel(head, bodies[lacking], request.most)
            numbers[node] = number, len(lacking) == len(arrays)
            request.bytes_down += parcels[node].size
            request.due, request.wait = now + request.wait, 2 * request.wait
            if arrays:  # it holds them from now on and no others, or says that it does not
                self.known[node] = set(arrays)
        if parcels:
            sent = self.network.send(parcels)
            self.under_way |= {sent_as: numbers[node] for node, sent_as in sent.items()}
        if any(request.due <= now and request.node in parcels for request in due.values()):
            self._send()  # a network takes one request for each node

    def _read(self, received: Received, request: _Open, *, whole: bool) -> Answered | Failed | None:
        """How a request, sent with the whole of its arrays or not, ends; None if it goes on."""
        parcel = received.parcel
        if parcel is None:
            request.problem = foreign(received.problem)
            request.due, request.wait = time.monotonic() + LISTEN, REPEAT
            return Failed(request.problem) if received.final else None
        try:
            require(
                parcel.size <= request.most,
                f"{parcel.size:,} bytes; at most {request.most:,} are expected",
            )
            head = unpack_answer(parcel)
            if head.id != request.request.id:
                request.problem = "its last answer is to another request"
                return None
            if head.lost or head.refused:
                return Failed(f"it refuses: {foreign(head.refused)}", True, head.lost)
            if head.lacks:
                require(not whole, "it lacks arrays that it was just sent")
                self.known[request.node], request.due = set(), -math.inf
                return None
            arrays = unpack_arrays(parcel.body, request.allowed)
            elapsed = time.monotonic() - request.began
            require(
                0 <= head.seconds <= elapsed + 1,
                f"it took {head.seconds:g} s, and was asked {elapsed:.1f} s ago",
            )
        except InputError as error:
            return Failed(f"its answer is refused: {error}")
        return Answered(head, arrays, request.bytes_down, parcel.size)
