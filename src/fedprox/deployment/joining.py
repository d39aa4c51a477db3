"""Nodes join: the coordinator waits for them, and asks what they hold."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox import __version__
from fedprox.deployment.conversation import NO_ANSWER, NOT_CONNECTED, Answered, Conversation
from fedprox.deployment.messages import VERSION, DataKind, Description, Request
from fedprox.deployment.stand_in import (
    check_description,
    check_fits,
    class_warning,
    common_kind,
)
from fedprox.errors import InputError, distinct, foreign, require

DESCRIBE_EVERY = 2.0
"""Seconds between looks for nodes that have joined."""

DESCRIBE_WAIT = 10.0
"""Seconds of a wait for descriptions, so that a silent node does not hold up others that come
later. Each further wait for silent nodes is twice as long, since they may be slow."""

SILENT = NO_ANSWER, NOT_CONNECTED
"""Problems that wait for the node, without a word."""


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

    @property
    def reports(self) -> set[str]:
        """The measures that at least one node reports."""
        return {measure for each in self.descriptions for measure in each.reports}

    @property
    def clients(self) -> dict[str, dict[str, int]]:
        """The training rows of each client, by node and client, in their order."""
        return {
            each.name: dict(zip(each.clients.names, each.clients.train, strict=True))
            for each in self.descriptions
        }


def join(
    conversation: Conversation,
    nodes: int,
    waiting: Callable[[Sequence[str]], None] = lambda _: None,
    *,
    names: Sequence[str] = (),
) -> Joined:
    """Wait for nodes to join.

    A node that cannot join, or does not fit those that joined before it, is left out, in one line,
    and asked again until the others are there.

    Args:
        conversation: The conversation, whose patience bounds the wait.
        nodes: Number of nodes to wait for. Those that are connected beside them join too.
        waiting: Called with the names of the nodes that have joined so far, when they change.
        names: The names of the nodes to wait for, in place of their number; no others join.

    Raises:
        InputError: If fewer nodes join.
    """
    names = list(distinct("deployment.names:", names))
    described: dict[int, Description] = {}
    problems: dict[int, str] = {}
    shown, wanted = -1, len(names) or nodes
    wait, end = DESCRIBE_WAIT, time.monotonic() + conversation.patience
    while True:
        asked = _describe(conversation, described, min(wait, end - time.monotonic()))
        wait = 2 * wait if NO_ANSWER in conversation.failed.values() else DESCRIBE_WAIT
        for node, problem in conversation.failed.items():
            _leave_out(node, problem, problems)
        for node, answered in asked.items():
            try:
                described[node] = _checked(answered.head.description, node, names, described)
                require(
                    conversation.network.may_be(node, described[node].name),
                    f"it has not the key of node {described[node].name!r}",
                )
                problems.pop(node, None)
            except InputError as error:
                described.pop(node, None)
                _leave_out(node, str(error), problems)
        if len(described) != shown:
            shown = len(described)
            waiting([each.name for each in described.values()])
        if len(described) >= wanted:
            break
        have = [each.name for each in described.values()]
        missing = [f"{name} is missing" for name in names if name not in have]
        others = [f"{node}: {problem}" for node, problem in sorted(problems.items())]
        setting = f"names = {list(names)}" if names else f"nodes = {nodes}"
        require(
            time.monotonic() < end,
            f"deployment.{setting}: {len(have)} joined within {conversation.patience:g} s "
            f"({', '.join([*have, *missing, *others]) or 'none'})",
        )
        time.sleep(min(DESCRIBE_EVERY, conversation.patience / 10))
    ordered = sorted(described, key=lambda node: described[node].name)
    joined = Joined(tuple(ordered), tuple(described[node] for node in ordered))
    if "loss" not in joined.reports:
        logging.getLogger(__name__).warning(
            "no node reports losses: a run that diverges cannot be told from one that learns"
        )
    if line := class_warning(joined.descriptions):
        logging.getLogger(__name__).warning("%s", line)
    return joined


def _describe(
    conversation: Conversation, described: Mapping[int, Description], wait: float
) -> dict[int, Answered]:
    """Ask the nodes that are connected, and have not joined, to describe themselves."""
    new = [node for node in conversation.network.nodes() if node not in described]
    if not new:
        return {}
    requests = {
        node: Request(version=VERSION, id=f"describe {secrets.token_hex(4)}", kind="describe")
        for node in new
    }
    return conversation.ask(requests, patience=max(0.0, wait))


def _leave_out(node: int, problem: str, problems: dict[int, str]) -> None:
    """Note why a node has not joined, and log it if it is the first reason."""
    if problem not in SILENT and problems.get(node, NO_ANSWER) in SILENT:
        logging.getLogger(__name__).warning("node %s: %s; left out", node, problem)
    problems[node] = problem


def _checked(
    description: Description | None,
    node: int,
    names: Sequence[str],
    described: Mapping[int, Description],
) -> Description:
    """The description that a node answered.

    Raises:
        InputError: If the node cannot join.
    """
    require(description is not None, "it does not describe itself")
    assert description is not None
    require(
        description.version == __version__,
        f"it has fedprox {foreign(description.version)}; the coordinator has {__version__}, and "
        "results are the same only with the same version",
    )
    check_description(description)
    name = description.name
    require(not names or name in names, f"its name {name!r} is not one of {', '.join(names)}")
    for other, each in described.items():
        require(
            each.name != name or other == node,
            f"its name {name!r} is that of node {other}; names of nodes must differ",
        )
    check_fits(description, described.values())
    return description
