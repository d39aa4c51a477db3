"""Deployments in memory, and the simulations that they must equal."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedprox.deployment.conversation import Conversation
from fedprox.deployment.coordinator import deploy, join, resolve_deployment
from fedprox.deployment.memory import in_memory
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy
from fedprox.experiment import parse, resolve, train
from fedprox.federation import Federation
from fedprox.simulation.loop.checkpoint import Checkpoints
from fedprox.simulation.loop.comparison import Follow
from fedprox.simulation.results.run import Run

TABLE: dict[str, Any] = {
    "rounds": 6,
    "data": {"name": "synthetic", "clients": 7, "seed": 3},
    "cohort": {"clients_per_round": 4},
    "evaluation": {"gradients": True, "every": 2},
    "solver": {"learning_rate": 0.05, "batch_size": 10, "epochs": 2},
}
"""An experiment without methods."""


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
    table: Mapping[str, Any], folder: Path, nodes: int = 3, policy: Policy | None = None
) -> list[Node]:
    """The nodes that hold an experiment's clients."""
    federation = resolve(parse("test", dict(table))).federation
    return [
        Node(f"node-{i}", part, folder / f"node-{i}", policy or Policy())
        for i, part in enumerate(dealt(federation, nodes))
    ]


def deployed(
    table: Mapping[str, Any],
    answers: Sequence[Callable[[Parcel], Parcel]],
    checkpoints: Checkpoints | None = None,
    patience: float = 5.0,
    run: str = "run1",
) -> list[Run]:
    """The runs of an experiment on nodes in memory."""
    conversation = Conversation(in_memory(answers), patience=patience)
    joined = join(conversation, len(answers))
    deployment = resolve_deployment(parse("test", dict(table)), joined, run)
    return deploy(conversation, deployment, Follow(checkpoints, None, None, progress=False))


def simulated(table: Mapping[str, Any]) -> list[Run]:
    """The runs of the same experiment in a simulation."""
    experiment = parse("test", dict(table))
    return train(experiment, resolve(experiment), progress=False)


def apart(a: Any, b: Any) -> float:
    """The distance of two models, relative to the first."""
    first, second = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (a, b)
    )
    return float(np.linalg.norm(first - second) / np.linalg.norm(first))
