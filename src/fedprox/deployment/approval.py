"""The digest that a site approves: of a run's requests to a node, as its experiment file decides.

A run is a method with a seed, at all its sweep points. The operator computes the digest from the
experiment file alone, and a node from the setup that each request has. So a node believes no digest
that it is told, and what it computes is what was approved.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from fedprox.deployment.wire import Setup
from fedprox.experiment.schema import Table

OUTSIDE: Mapping[str, str] = {
    "run": "it names the client state on the node, and computes nothing",
    "number": "it names the client state on the node, and computes nothing",
    "clients": "it follows from the nodes that have joined; a node computes epsilon with it",
    "data": "it follows from the nodes that have joined, and must be that of the node's data",
    "mean": "it follows from the rows of all nodes, and whether there is one from the node's file",
    "scale": "it follows from the rows of all nodes, as the mean does",
    "parameters": "they follow from the model and the data",
    "base": "the frozen values are a file of the node, policy.base; a run with others is refused",
    "privacy.rounds": "it counts rounds that are repeated; policy.privacy bounds what they cost",
    "privacy.mechanism.clients": "it must be `clients`",
    "privacy.mechanism.clients_per_round": "it must be `clients_per_round`",
    "privacy.mechanism.capacity": "it follows from the clients; a node computes epsilon with it",
    "privacy.mechanism.releases": "it must be what the method releases",
    "privacy.mechanism.accountant": "each proves an upper bound of epsilon",
    "privacy.mechanism.strategy.rounds": "it must be `rounds`",
    "privacy.mechanism.strategy.scale": "it follows from kind, separation and rounds; a node "
    "computes epsilon with it",
    "privacy.mechanism.strategy.decay": "it follows from kind, separation and rounds, as the scale",
    "measures.again": "it counts evaluations that are repeated; policy.privacy bounds their cost",
    "private_steps.accountant": "each proves an upper bound of epsilon",
    "secure.nodes": "they are those that have joined; each must be among policy.secure.peers",
}
"""The fields of a setup that its digest leaves out, each with the reason. Beside them it leaves
out a noise multiplier that is calibrated to an epsilon, which the node checks."""


def asked_of(setup: Setup) -> Table:
    """The part of a setup that the experiment file alone decides."""
    table = setup.model_dump(mode="json")
    if setup.privacy is not None:
        mechanism = setup.privacy.mechanism
        strategy = None if mechanism.strategy is None else mechanism.strategy._asdict()
        table["privacy"]["mechanism"] = mechanism._asdict() | {"strategy": strategy}
    if setup.privacy is not None and setup.privacy.epsilon is not None:
        del table["privacy"]["mechanism"]["noise_multiplier"]
    if setup.private_steps is not None and setup.private_steps.epsilon is not None:
        del table["private_steps"]["noise_multiplier"]
    if setup.measures is None:
        del table["measures"]
    elif setup.measures.share is not None:
        del table["measures"]["noise_multiplier"]
    return _inside(table)


def _inside(table: Table, place: str = "") -> Table:
    """The parts of a setup's table that are not in `OUTSIDE`."""
    return {
        key: _inside(value, f"{place}{key}.") if isinstance(value, dict) else value
        for key, value in table.items()
        if place + key not in OUTSIDE
    }


def digest_of_run(asked: Mapping[str, Any]) -> str:
    """The digest of what a run asks of a node: SHA-256 of canonical JSON, in hexadecimal.

    >>> digest = digest_of_run({"seed": 0, "rounds": 10})
    >>> digest == digest_of_run({"rounds": 10, "seed": 0}), len(digest)
    (True, 64)
    """
    # numbers as they are after a message's way to a node
    canonical = json.dumps(
        json.loads(to_json(asked, inf_nan_mode="null")), sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(f"fedprox run 1 {canonical}".encode()).hexdigest()
