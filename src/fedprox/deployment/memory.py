"""A network in memory: requests are function calls."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from fedprox.deployment.network import Network, Parcel, Received


def in_memory(nodes: Sequence[Callable[[Parcel], Parcel]]) -> Network:
    """A network whose node i answers by calling function i.

    Args:
        nodes: (request) -> answer, for each node.

    Example:
        >>> network = in_memory([lambda parcel: parcel])
        >>> sent = network.send({0: Parcel(b"{}")})
        >>> [received.parcel.head for received in network.receive(1.0)]
        [b'{}']
    """
    answered = deque[Received]()
    count = 0

    def send(requests: Mapping[int, Parcel]) -> dict[int, str]:
        nonlocal count
        sent = {}
        for node, parcel in requests.items():
            count += 1
            sent[node] = str(count)
            answered.append(Received(sent[node], nodes[node](parcel)))
        return sent

    def receive(seconds: float) -> Sequence[Received]:
        del seconds
        received = list(answered)
        answered.clear()
        return received

    return Network(lambda: range(len(nodes)), send, receive)
