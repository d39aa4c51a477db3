"""Asking nodes, and waiting for their answers: repeats, lost messages and patience."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from fedprox.deployment.messages import (
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
from fedprox.deployment.network import Network, Parcel, Received
from fedprox.errors import InputError, foreign, require

REPEAT = 20.0
"""Seconds after which a request without an answer is sent again, without its arrays; each time
twice as many. A node that works on it answers it again; one that was restarted begins anew."""

NO_ANSWER, NOT_CONNECTED = "no answer", "not connected"
"""Problems of nodes that are silent."""

LISTEN = 1.0
"""Most seconds of one wait for answers."""

MOST_HEAD = 100_000
"""Most bytes of an answer's head, but for a description of clients."""

MOST_DESCRIBED = 200_000_000
"""Most bytes of the head of an answer that describes clients."""

NO_ARRAYS: Allowed = MappingProxyType({})


class Answered(NamedTuple):
    """The answer of a node.

    Attributes:
        head: Its head.
        arrays: Its arrays.
        bytes_down: Bytes sent to the node, repeats included.
        bytes_up: Bytes of the answer.
    """

    head: Answer
    arrays: dict[str, Array]
    bytes_down: int
    bytes_up: int


@dataclass
class _Open:
    """A request without an answer.

    Attributes:
        request: The request.
        allowed: The arrays that its answer may have, in shape.
        began: When it was sent first.
        due: When it must be sent again.
        wait: Seconds from then to the next time.
        bytes_down: Bytes sent so far.
        problem: The last problem.
        final: Whether the problem is final.
    """

    request: Request
    allowed: Allowed
    began: float = field(default_factory=time.monotonic)
    due: float = -math.inf
    wait: float = field(default_factory=lambda: REPEAT)
    bytes_down: int = 0
    problem: str = NO_ANSWER
    final: bool = False

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
        failed: Why nodes did not answer the last requests, by node.
        refused: Which of these refused.
        lost: Which of these refused since client state that the request names is lost.
        gone: Nodes that were not connected when patience was over. Until they are connected again,
            requests wait for the other nodes only, if there are others.
    """

    network: Network
    patience: float = 300.0
    known: dict[int, set[str]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)

    def ask(
        self,
        requests: Mapping[int, Request],
        arrays: Sequence[Array] = (),
        *,
        allowed: Mapping[int, Allowed] = MappingProxyType({}),
        extra: float = 0.0,
        patience: float | None = None,
    ) -> dict[int, Answered]:
        """Send requests, and wait until each node has answered or patience is over.

        Args:
            requests: The requests, one for each node.
            arrays: The arrays that all of them need, in order.
            allowed: The arrays that a node's answer may have, in shape; none if left out.
            extra: Seconds to wait beyond the patience, in which nodes are expected to work.
            patience: Seconds to wait in place of the conversation's.

        Returns:
            The answers, by node. `failed` says why others are missing.
        """
        digests = [digest_of(array) for array in arrays]
        by_digest = dict(zip(digests, arrays, strict=True))
        pending = {
            node: _Open(
                request.model_copy(update={"arrays": digests}), allowed.get(node, NO_ARRAYS)
            )
            for node, request in requests.items()
        }
        under_way: dict[str, tuple[int, bool]] = {}  # node, and whether all arrays were sent
        answers: dict[int, Answered] = {}
        self.failed, self.refused, self.lost = {}, set(), set()
        self.gone -= set(self.network.nodes())
        if not pending.keys() <= self.gone:
            for node in self.gone & pending.keys():
                self.failed[node] = NOT_CONNECTED
                del pending[node]
        end = time.monotonic() + (self.patience if patience is None else patience) + extra
        while pending:
            self._send(pending, under_way, by_digest)
            for received in self.network.receive(min(LISTEN, max(0.0, end - time.monotonic()))):
                if received.request not in under_way:
                    continue
                node, whole = under_way.pop(received.request)
                if node in pending:
                    answered = self._read(received, node, pending[node], whole=whole)
                    if answered is not None:
                        answers[node] = answered
                    if answered is not None or pending[node].final:
                        self._close(node, pending, digests, answered)
            if time.monotonic() >= end:
                break
        self.gone |= pending.keys() - set(self.network.nodes())
        for node, request in pending.items():
            self.failed[node] = NOT_CONNECTED if node in self.gone else request.problem
        return answers

    def _close(
        self,
        node: int,
        pending: dict[int, _Open],
        digests: Sequence[str],
        answered: Answered | None,
    ) -> None:
        if answered is None:
            self.failed[node] = pending[node].problem
        else:
            self.known[node] = set(digests) or self.known.get(node, set())
        del pending[node]

    def _send(
        self,
        pending: Mapping[int, _Open],
        under_way: dict[str, tuple[int, bool]],
        by_digest: Mapping[str, Array],
    ) -> None:
        """Send what has not been sent, or not been answered for long, to connected nodes."""
        now = time.monotonic()
        due = {node: request for node, request in pending.items() if now >= request.due}
        if not due:
            return
        online = set(self.network.nodes())
        bodies: dict[frozenset[str], bytes] = {}
        parcels, whole = {}, {}
        for node, request in due.items():
            if node not in online:
                continue
            lacking = frozenset(by_digest.keys() - self.known.get(node, set()))
            if lacking not in bodies:
                bodies[lacking] = pack_arrays({name: by_digest[name] for name in sorted(lacking)})
            head = request.request.model_dump_json().encode()
            parcel = Parcel(head, bodies[lacking], request.most)
            parcels[node], whole[node] = parcel, len(lacking) == len(by_digest)
            request.bytes_down += len(parcel.head) + len(parcel.body)
            request.due, request.wait = now + request.wait, 2 * request.wait
            # it holds them now, or says that it does not
            self.known[node] = self.known.get(node, set()) | set(lacking)
        if parcels:
            sent = self.network.send(parcels)
            under_way |= {number: (node, whole[node]) for node, number in sent.items()}

    def _read(
        self, received: Received, node: int, request: _Open, *, whole: bool
    ) -> Answered | None:
        """The answer in what was received; None if there is none yet.

        Args:
            received: What was received.
            node: The node.
            request: Its request.
            whole: Whether the request that it answers came with all arrays.
        """
        parcel = received.parcel
        if parcel is None:
            request.problem, request.final = foreign(received.problem), received.final
            request.due, request.wait = time.monotonic() + LISTEN, REPEAT
            return None
        up = len(parcel.head) + len(parcel.body)
        try:
            require(up <= request.most, f"{up:,} bytes; at most {request.most:,} are expected")
            head = unpack_answer(parcel)
            if head.id != request.request.id:
                request.problem = "its last answer is to another request"
                return None
            if head.lost or head.refused:
                request.problem, request.final = f"it refuses: {foreign(head.refused)}", True
                self.refused.add(node)
                self.lost |= {node} if head.lost else set()
                return None
            if head.lacks:
                require(not whole, "it lacks arrays that it was just sent")
                self.known[node], request.due = set(), -math.inf
                return None
            arrays = unpack_arrays(parcel.body, request.allowed)
            elapsed = time.monotonic() - request.began
            require(
                0 <= head.seconds <= elapsed + 1,
                f"it took {head.seconds:g} s, and was asked {elapsed:.1f} s ago",
            )
        except InputError as error:
            request.problem, request.final = f"its answer is refused: {error}", True
            return None
        return Answered(head, arrays, request.bytes_down, up)
