"""Nodes join: the coordinator waits for them, and asks what they hold."""

import importlib.metadata
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.deployment.conversation import Conversation
from fedprox.deployment.messages import VERSION, DataKind, Description, Request
from fedprox.deployment.stand_in import check_description, common_kind
from fedprox.errors import InputError, require

DESCRIBE_EVERY = 2.0
"""Seconds between looks for nodes that have joined."""


class Joined(NamedTuple):
    """The nodes of a deployment, in the order of their names.

    Attributes:
        nodes: The identifier of each on the network.
        descriptions: What each says of itself.
    """

    nodes: tuple[int, ...]
    descriptions: tuple[Description, ...]

    @property
    def kind(self) -> DataKind:
        """What the data of all nodes have in common."""
        return common_kind(self.descriptions)

    @property
    def owner(self) -> NDArray[np.int64]:
        """The index of each client's node, shape (clients,)."""
        counts = [len(each.clients.names) for each in self.descriptions]
        return np.repeat(np.arange(len(counts)), counts)


def join(
    conversation: Conversation,
    nodes: int,
    waiting: Callable[[Sequence[str]], None] = lambda _: None,
) -> Joined:
    """Wait for nodes to join.

    Args:
        conversation: The conversation, whose patience bounds the wait.
        nodes: Number of nodes to wait for. Those that are connected beside them join too.
        waiting: Called with the names of the nodes that have joined so far, when they change.

    Raises:
        InputError: If fewer nodes join, two have the same name, or a node has another version.
    """
    described: dict[int, Description] = {}
    shown = -1
    end = time.monotonic() + conversation.patience
    while True:
        new = [node for node in conversation.network.nodes() if node not in described]
        number = secrets.token_hex(4)
        requests = {
            node: Request(version=VERSION, id=f"describe {number}", kind="describe") for node in new
        }
        conversation.names |= {node: f"{node}" for node in new}
        for node, answered in conversation.ask(requests).items() if requests else ():
            described[node] = _checked(answered.head.description, conversation.names[node])
            conversation.names[node] = described[node].name
        for node in conversation.refused:
            raise InputError(f"node {conversation.names[node]}: {conversation.failed[node]}")
        if len(described) != shown:
            shown = len(described)
            waiting([each.name for each in described.values()])
        if len(described) >= nodes:
            break
        require(
            time.monotonic() < end,
            f"deployment.nodes = {nodes}: {len(described)} joined within "
            f"{conversation.patience:g} s ({_joined_so_far(described, conversation)})",
        )
        time.sleep(min(DESCRIBE_EVERY, conversation.patience / 10))
    ordered = sorted(described, key=lambda node: described[node].name)
    descriptions = tuple(described[node] for node in ordered)
    ours = importlib.metadata.version("fedprox")
    for first, second in pairwise(descriptions):
        require(
            first.name != second.name,
            f"two nodes are named {first.name!r}; names of nodes must differ",
        )
    for each in descriptions:
        require(
            each.version == ours,
            f"node {each.name!r} has fedprox {each.version}; the coordinator has {ours}, and "
            "results are the same only with the same version",
        )
    require(
        any("loss" in each.reports for each in descriptions),
        "no node reports losses, so a run that diverges could not be told from one that learns; at "
        'least one node must have "loss" in policy.report',
    )
    return Joined(tuple(ordered), descriptions)


def _checked(description: Description | None, node: str) -> Description:
    """The description that a node answered."""
    require(description is not None, f"node {node}: it does not describe itself")
    assert description is not None
    try:
        check_description(description)
    except InputError as error:
        raise InputError(f"node {description.name!r}: {error}") from None
    return description


def _joined_so_far(described: Mapping[int, Description], conversation: Conversation) -> str:
    """The names of the nodes that have joined, and why others have not."""
    names = [each.name for each in described.values()]
    others = [
        f"{conversation.names[node]}: {problem}"
        for node, problem in sorted(conversation.failed.items())
        if node not in described
    ]
    return ", ".join(names + others) or "none"
