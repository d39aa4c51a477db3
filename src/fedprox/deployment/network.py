"""The interface between the coordinator and the nodes: which are connected, send, receive."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedprox.errors import LARGEST


class Parcel(NamedTuple):
    """A request or an answer as it travels.

    Attributes:
        head: Numbers and names, JSON in UTF-8.
        body: Arrays in safetensors' format; empty without arrays. Requests of one round to several
            nodes share the same body, so a network may transfer it once.
        most: Most bytes of the answer to a request; a network gives up on a longer one before it
            is in memory. It does not travel.
        sender: Who sent a request, as far as the network knows. It does not travel.
    """

    head: bytes
    body: bytes = b""
    most: int = LARGEST
    sender: str = ""

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.head) + len(self.body)


class Received(NamedTuple):
    """The reply to a request.

    Attributes:
        request: The request's identifier, as `Network.send` returned it.
        parcel: The answer; None if the network has given up on the request.
        problem: Why there is no answer, in one line; empty with an answer.
        final: Whether there was an answer that cannot be used, so that nobody asks again.
    """

    request: str
    parcel: Parcel | None
    problem: str = ""
    final: bool = False


class Network(NamedTuple):
    """A way to the nodes.

    Attributes:
        nodes: () -> identifiers of the nodes that are connected now. The identifier of a node
            stays the same when the node is restarted.
        send: (requests by node) -> identifiers of the requests by node. It does not wait for
            answers.
        receive: (seconds) -> what has come back since the last call. Waits until something has,
            but at most so many seconds.
        may_be: (node, name) -> whether the node's key is one that may have this name.
        key_of: (node) -> the node's public key in PEM; empty if it is not known.
        name_of: (node) -> the name whose key the node has; empty if it is not known.
    """

    nodes: Callable[[], Sequence[int]]
    send: Callable[[Mapping[int, Parcel]], Mapping[int, str]]
    receive: Callable[[float], Sequence[Received]]
    may_be: Callable[[int, str], bool] = lambda node, name: True  # noqa: ARG005
    key_of: Callable[[int], bytes] = lambda node: b""  # noqa: ARG005
    name_of: Callable[[int], str] = lambda node: ""  # noqa: ARG005
