"""An experiment on the nodes that have joined, and asking them for their parts."""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedprox.deployment.conversation import Answered, Conversation
from fedprox.deployment.joining import Joined
from fedprox.deployment.messages import VERSION, Array, Kind, Request, Setup, Work
from fedprox.deployment.parts import parameters_in_words
from fedprox.deployment.stand_in import stand_in
from fedprox.errors import require
from fedprox.experiment.read import DEPLOYED
from fedprox.experiment.resolved import Resolved, resolve_with
from fedprox.experiment.sections import Experiment
from fedprox.simulation.config.faults import Faults
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.devices.mesh import lane_mesh

FINITE = Faults("drop", math.inf)
"""Screening of updates if the experiment does not say: those that are not finite are left out."""


class Deployment(NamedTuple):
    """An experiment on the nodes that have joined.

    Attributes:
        joined: The nodes.
        experiment: The experiment.
        resolved: Its objects, with a stand-in for the data.
        run: Identifier of the run, under which nodes store client state.
    """

    joined: Joined
    experiment: Experiment
    resolved: Resolved
    run: str


def resolve_deployment(experiment: Experiment, joined: Joined, run: str) -> Deployment:
    """Build the objects of an experiment, for the clients of the nodes that have joined.

    Raises:
        InputError: If the experiment has a setting that no deployment has.
    """
    for setting, given, instead in (
        ("model.frozen", experiment.model.get("frozen"), "all parameters are trained"),
        ("evaluation.clients", experiment.evaluation.clients, "nodes evaluate all their clients"),
        ("privacy", experiment.privacy, "no noise is added"),
    ):
        require(given is None, f"{setting}: leave it out in a deployment, where {instead}")
    federation = stand_in(joined.kind, joined.descriptions)
    rows = sum(sum(each.clients.train) for each in joined.descriptions)
    data = {"name": DEPLOYED, "nodes": len(joined.nodes), "training_rows": rows}
    data["clients"] = len(federation)
    resolved = resolve_with(experiment, lambda: (federation, data))
    for method in resolved.methods:
        require(
            not method.pooled,
            f"{method.name} has all rows in one place; leave it out in a deployment",
        )
    if resolved.faults is None:  # one node's numbers must not ruin the others' model
        resolved = resolved._replace(faults=FINITE)
        resolved.table["faults"] = {"policy": FINITE.policy, "norm": FINITE.norm}
    if "gradients" not in experiment.evaluation.model_fields_set:
        # they cost an upload of the model's size: measured only if asked for, or needed for gamma
        solvers = [method.solver(resolved.solver) for method in resolved.methods]
        gradients = any(solver.gamma is not None for solver in solvers)
        resolved.table["evaluation"]["gradients"] = gradients
        resolved = resolved._replace(evaluation=replace(resolved.evaluation, gradients=gradients))
    return Deployment(joined, experiment, resolved, run)


class Server:
    """What all methods of a deployment share.

    Args:
        conversation: The conversation with the nodes.
        deployment: The experiment.
        protocol: The protocol.
    """

    def __init__(
        self, conversation: Conversation, deployment: Deployment, protocol: Protocol
    ) -> None:
        self.conversation, self.deployment, self.protocol = conversation, deployment, protocol
        self.nodes, self.owner = deployment.joined.nodes, deployment.joined.owner
        self.kind = deployment.joined.kind
        self.mesh = lane_mesh(1)
        self.session = secrets.token_hex(4)
        self.asked = 0
        sizes = protocol.federation.train.sizes
        self.shares = np.bincount(self.owner, sizes) / sizes.sum()

    def setup(self, number: int, seed: int) -> Setup:
        """What nodes must know of a method."""
        deployment, protocol = self.deployment, self.protocol
        table, systems = deployment.resolved.table, protocol.systems
        return Setup(
            run=deployment.run,
            number=number,
            seed=seed,
            rounds=protocol.rounds,
            clients=len(protocol.federation),
            clients_per_round=protocol.cohort.clients_per_round,
            data=self.kind,
            parameters=parameters_in_words(protocol.model.shapes),
            model=table["model"],
            solver=table["solver"],
            method=table["method"][number],
            evaluated=protocol.evaluation.model,
            rows=deployment.experiment.evaluation.rows,
            gradients=protocol.evaluation.gradients,
            deadline=systems.deadline if systems.real_clock else None,
        )

    def ask(
        self,
        kind: Kind,
        setup: Setup,
        work: Mapping[int, Work | None],
        arrays: Sequence[Array] = (),
        *,
        round_: int = 0,
        participation: float = 0.0,
        initial: bool = False,
    ) -> dict[int, Answered]:
        """Ask nodes, by index, for their part; nodes that do not answer are missing."""
        self.asked += 1
        requests = {
            self.nodes[index]: Request(
                version=VERSION,
                id=f"{self.session}-{self.asked}-{index}",
                kind=kind,
                setup=setup,
                round=round_,
                participation=participation,
                work=part,
                initial=initial,
            )
            for index, part in work.items()
        }
        extra = setup.deadline or 0.0
        answers = self.conversation.ask(requests, arrays, extra=extra)
        return {index: answers[node] for index, node in enumerate(self.nodes) if node in answers}

    def name(self, index: int) -> str:
        """The name of a node."""
        return self.deployment.joined.descriptions[index].name

    def problem(self, index: int) -> str:
        """Why a node did not answer the last request."""
        return self.conversation.failed.get(self.nodes[index], "no answer")
