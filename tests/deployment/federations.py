"""Deployments in memory, networks that fail, and the simulations that deployments must equal."""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import pytest

from fedprox.deployment.conversation import Conversation
from fedprox.deployment.coordinator import Coordinator, Ledger
from fedprox.deployment.joining import join
from fedprox.deployment.kept import States
from fedprox.deployment.network import Network, Parcel, Received
from fedprox.deployment.node import Node
from fedprox.deployment.policy import REPORTS, Policy
from fedprox.deployment.remote import run_deployment
from fedprox.deployment.wire import NamedArrays, pack_arrays, unpack_arrays
from fedprox.experiment import parse, resolve, train
from fedprox.federation import Federation
from fedprox.loop.checkpoint import Checkpoints
from fedprox.results.run import Run

TABLE: dict[str, Any] = {
    "rounds": 3,
    "client_rows": 60,
    "data": {"name": "synthetic", "clients": 4, "seed": 337},
    "cohort": {"clients_per_round": 3},
    "evaluation": {"every": 2},
    "solver": {"learning_rate": 0.05, "batch_size": 10, "epochs": 2},
}
"""An experiment without methods. Not all clients take part in a round.

The clients have different numbers of rows, and two nodes with two clients each as many as each
other, so that they share compiled programs.
"""

STATEFUL: list[dict[str, Any]] = [{"name": "scaffold"}, {"name": "feddane", "mu": 1.0}]
"""A method with client state, and one whose rounds have two exchanges."""

FEDPROX = {"name": "fedprox", "mu": 0.5}

WITH_STATE = "tests.crossings.features:normalized"
"""A model with state."""

EVERYTHING = Policy(report=list(REPORTS), models=[*Policy().models, WITH_STATE])
"""A policy that also reports gradients."""


def in_memory(nodes: Sequence[Callable[[Parcel], Parcel]]) -> Network:
    """A network whose node i answers by calling function i.

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


def table_of(*methods: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """An experiment with methods, whose sections are changed."""
    table = {**TABLE, "method": [dict(method) for method in methods]}
    for name, section in sections.items():
        merged = isinstance(section, dict) and isinstance(table.get(name), dict)
        table[name] = {**table[name], **section} if merged else section
    return table


def dealt(federation: Federation, parts: int) -> list[Federation]:
    """The clients of a federation in consecutive parts."""
    blocks = np.array_split(np.arange(len(federation)), parts)
    return [federation.of_clients(block) for block in blocks]


def nodes_of(
    table: Mapping[str, Any], folder: Path, nodes: int = 2, policy: Policy | None = None
) -> list[Node]:
    """The nodes that hold an experiment's clients."""
    federation = resolve(parse("test", dict(table))).federation
    return [
        Node(f"node-{i}", part, folder / f"node-{i}", policy or EVERYTHING)
        for i, part in enumerate(dealt(federation, nodes))
    ]


class Site:
    """A place where a node runs, and another one after it was killed.

    Nodes of a site share the folder. They also share compiled programs, to save time.

    Args:
        node: The first node.
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    def restart(self) -> None:
        """Kill the node, and start another."""
        old = self.node
        self.node = Node(old.name, old.federation, old.folder, old.policy, old.identity, old.table)
        self.node._methods, self.node._data = old._methods, old._data

    def moved(self, folder: Path) -> "Site":
        """A site of the same clients without client state."""
        node = self.node
        other = Node(
            node.name, node.federation, folder / node.name, node.policy, node.identity, node.table
        )
        other._methods, other._data = node._methods, node._data
        return Site(other)

    def answer(self, parcel: Parcel) -> Parcel:
        """Answer by the node that runs now."""
        return self.node.answer(parcel)


Fault = Literal[
    "", "lost request", "lost answer", "given up", "late", "twice", "restart", "killed", "half done"
]
"""What happens to a request: it or its answer is lost without a word, the network gives up on it,
its answer is late, it arrives twice, the node is restarted before it, or after it and before its
answer is sent, or when the state of one client is written."""

FaultOf = Callable[[int, int, dict[str, Any]], Fault]
"""(node, number of the request to this node, head of the request) -> what happens to it."""


class Killed(BaseException):
    """A node is killed."""


def unreliable(
    sites: Sequence[Site], fault: FaultOf, online: Callable[[], Sequence[int]] | None = None
) -> Network:
    """A network in memory on which requests meet faults."""
    delivered, late = deque[Received](), deque[Received]()
    counts, sent = Counter[int](), 0

    def answer(node: int, what: Fault, number: str, parcel: Parcel) -> None:
        site = sites[node]
        if what == "lost request":
            return
        if what == "restart":
            site.restart()
        if what == "half done":
            delivered.append(Received(number, None, "the node was killed"))
            half_done(site, parcel)
            return
        answered = site.answer(parcel)
        if what == "twice":
            answered = site.answer(parcel)
            delivered.append(Received(number, answered))
        if what == "killed":
            site.restart()
        if what in ("killed", "given up"):
            delivered.append(Received(number, None, what))
        elif what == "late":
            late.append(Received(number, answered))
        elif what != "lost answer":
            delivered.append(Received(number, answered))

    def send(requests: Mapping[int, Parcel]) -> dict[int, str]:
        nonlocal sent
        numbers = {}
        for node, parcel in requests.items():
            what = fault(node, counts[node], json.loads(parcel.head))
            counts[node] += 1
            sent += 1
            numbers[node] = str(sent)
            answer(node, what, str(sent), parcel)
        return numbers

    def receive(seconds: float) -> Sequence[Received]:
        if not delivered:
            time.sleep(min(seconds, 0.005))
        received = list(delivered)
        delivered.clear()
        delivered.extend(late)
        late.clear()
        return received

    return Network(online or (lambda: range(len(sites))), send, receive)


def half_done(site: Site, parcel: Parcel) -> None:
    """Let a node answer, and kill it when it has written the state of one client."""
    write, written = States.write, 0

    def stop(*arguments: Any) -> None:
        nonlocal written
        written += 1
        if written == 2:
            raise Killed
        write(*arguments)

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(States, "write", stop)
        site.answer(parcel)
    site.restart()


def changed(
    answer: Callable[[Parcel], Parcel],
    kind: str,
    change: Callable[[dict[str, Any], dict[str, Any]], None],
) -> Callable[[Parcel], Parcel]:
    """A node that changes its answers to requests of a kind.

    Args:
        answer: The node.
        kind: The kind.
        change: Changes the head and the arrays.
    """

    def changing(parcel: Parcel) -> Parcel:
        answered = answer(parcel)
        if json.loads(parcel.head)["kind"] != kind:
            return answered
        head, arrays = json.loads(answered.head), unpack_arrays(answered.body)
        change(head, arrays)
        return Parcel(json.dumps(head).encode(), pack_arrays(arrays))

    return changing


def overheard(
    answer: Callable[[Parcel], Parcel], hear: Callable[[Parcel, Parcel], object]
) -> Callable[[Parcel], Parcel]:
    """A node of which a function hears each request and its answer."""

    def answering(parcel: Parcel) -> Parcel:
        answered = answer(parcel)
        hear(parcel, answered)
        return answered

    return answering


def described(**values: Any) -> dict[str, Any]:
    """A description of a node with one client, with some values changed."""
    kind = {
        "classes": 10,
        "features": [{"name": "", "shape": [60], "type": "float32", "greatest": 0}],
        "label": [],
        "label_type": "int32",
        "augmented": False,
    }
    clients = {"names": ["a"], "train": [3], "test": [1], "labels": [1], "validation": []}
    given = {
        "name": "node",
        "version": "",
        "kind": kind,
        "clients": clients,
        "central_validation": 0,
        "reports": ["loss"],
    }
    for key, value in values.items():
        part = next(table for table in (given, kind, clients) if key in table)
        part[key] = value
    return given


def deployed(
    table: Mapping[str, Any],
    nodes: Network | Sequence[Callable[[Parcel], Parcel]],
    checkpoints: Checkpoints | None = None,
    patience: float = 5.0,
    ledger: Ledger | None = None,
    joining: Network | None = None,
) -> list[Run]:
    """The runs of an experiment on nodes in memory.

    Args:
        table: The experiment.
        nodes: The network, or the nodes of one that never fails.
        checkpoints: Where checkpoints are written.
        patience: Seconds to wait for a node.
        ledger: The run's ledger; None for one with the identifier "run1".
        joining: The network while nodes join; None for the same.
    """
    network = nodes if isinstance(nodes, Network) else in_memory(nodes)
    conversation = Conversation(joining or network, patience=patience)
    joined = join(conversation, len(conversation.network.nodes()))
    conversation.network = network
    experiment = parse("test", dict(table))
    server = Coordinator(conversation, experiment, joined, ledger or Ledger(run="run1"))
    return run_deployment(server, checkpoints=checkpoints)


def simulated(table: Mapping[str, Any]) -> list[Run]:
    """The runs of the same experiment in a simulation."""
    experiment = parse("test", dict(table))
    return train(experiment, resolve(experiment), progress=False)


def vector(tree: NamedArrays | Any) -> np.ndarray:
    """All numbers of a tree."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def apart(a: Any, b: Any) -> float:
    """The distance of two models, relative to the first."""
    first, second = vector(a), vector(b)
    return float(np.linalg.norm(first - second) / np.linalg.norm(first))


def bits(runs: Sequence[Run]) -> list[Any]:
    """The bytes of the final models, and the measures of all records."""
    return [
        (
            run.label,
            run.model_round,
            vector(run.params).tobytes(),
            [(r.round, r.train_loss, r.test_accuracy, r.total_steps) for r in run.history],
        )
        for run in runs
    ]
