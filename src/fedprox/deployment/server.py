"""An experiment on the nodes that have joined, and asking them for their parts."""

import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.reporting import reporting
from fedprox.deployment.conversation import Answered, Conversation
from fedprox.deployment.endpoints import decoded
from fedprox.deployment.joining import Joined
from fedprox.deployment.messages import (
    VERSION,
    Allowed,
    Array,
    Hiding,
    Kind,
    PrivateSteps,
    Request,
    Securing,
    Setup,
)
from fedprox.deployment.parts import parameters_in_words
from fedprox.deployment.run_file import Ledger
from fedprox.deployment.secure.keys import has_signed
from fedprox.deployment.secure.setting import securing_of
from fedprox.deployment.stand_in import stand_in
from fedprox.errors import require
from fedprox.experiment.read import DEPLOYED
from fedprox.experiment.resolved import Resolved, method_of, resolve_with, solver_of
from fedprox.experiment.sections import Experiment
from fedprox.measures import ACCURACIES, LOSSES
from fedprox.messages.faults import Faults
from fedprox.model import digest
from fedprox.simulation.config.compatible import DEPLOYMENT, Case, check
from fedprox.simulation.config.method import Method, sweep_points
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.devices.mesh import lane_mesh
from fedprox.simulation.epsilon import LocalSteps, noise_of
from fedprox.simulation.results.selection import VALIDATION_LOSS

FINITE = Faults("drop", math.inf)
"""Screening of updates if the experiment does not say: those that are not finite are left out."""


class Deployment(NamedTuple):
    """An experiment on the nodes that have joined.

    Attributes:
        joined: The nodes.
        experiment: The experiment.
        resolved: Its objects, with a stand-in for the data.
        ledger: The run's identifier, and how many of its rounds have been released.
        secure: How messages are summed in secret; None if the operator sees each node's.
    """

    joined: Joined
    experiment: Experiment
    resolved: Resolved
    ledger: Ledger
    secure: Securing | None


class _SectionsChecked(Exception):  # noqa: N818 (it is no error)
    """All sections have been checked that need no data."""


def check_deployable(experiment: Experiment) -> None:
    """Raise `InputError` if an experiment cannot be deployed, whatever the nodes hold."""

    def load() -> NoReturn:
        raise _SectionsChecked

    with suppress(_SectionsChecked):
        resolve_with(experiment, load)
    solver, _ = solver_of(experiment.solver)
    for number, table in enumerate(experiment.method):
        method, _ = method_of(table, experiment.solver, solver, f"method.{number}")
        check(Case(experiment, method, place="deployment"), of=DEPLOYMENT)


def resolve_deployment(experiment: Experiment, joined: Joined, ledger: Ledger) -> Deployment:
    """Build the objects of an experiment, for the clients of the nodes that have joined.

    Raises:
        InputError: If the experiment has a setting that no deployment has.
    """
    check_deployable(experiment)
    federation = stand_in(joined.kind, joined.descriptions)
    rows = sum(sum(each.clients.train) for each in joined.descriptions)
    data = {"name": DEPLOYED, "nodes": len(joined.nodes), "training_rows": rows}
    data["clients"] = len(federation)
    resolved = resolve_with(experiment, lambda: (federation, data))
    secure = securing_of(experiment, resolved, [each.name for each in joined.descriptions])
    if resolved.faults is None:  # one node's numbers must not ruin the others' model
        resolved = resolved._replace(faults=FINITE)
        resolved.table["faults"] = {"policy": FINITE.policy, "norm": FINITE.norm}
    if "gradients" not in experiment.evaluation.model_fields_set:
        # they cost an upload of the model's size: measured only if asked for, or needed for gamma
        solvers = [method.solver(resolved.solver) for method in resolved.methods]
        gradients = any(solver.gamma is not None for solver in solvers)
        resolved.table["evaluation"]["gradients"] = gradients
        resolved = resolved._replace(evaluation=replace(resolved.evaluation, gradients=gradients))
    for method in resolved.methods:
        solver = method.solver(resolved.solver)
        check(Case(resolved, method, solver, "deployment", secure is not None))
    if resolved.privacy is not None:
        _require_one_run(resolved, experiment.seed)
    _require_measures(resolved, joined.reports)
    return Deployment(joined, experiment, resolved, ledger, secure)


def _require_measures(resolved: Resolved, reported: Collection[str]) -> None:
    """Raise `InputError` if an experiment needs a measure that no node reports."""
    needs = [
        (f"{method.name}: an adaptive mu", "train_loss")
        for method in resolved.methods
        if method.adapt is not None
    ]
    if resolved.target is not None:
        needs.append((resolved.target.key, resolved.target.measure))
    if resolved.selection.selects:
        needs.append(("selection", resolved.selection.measure or VALIDATION_LOSS))
    for what, measure in needs:
        kind = "loss" if measure in LOSSES else "accuracy" if measure in ACCURACIES else "metrics"
        require(
            kind in reported,
            f'{what} needs {measure}, and no node reports "{kind}" (policy.report, and '
            "exact_measures in policy.privacy)",
        )


def _require_one_run(resolved: Resolved, seed: int | list[int]) -> None:
    """Raise `InputError` unless an experiment with privacy has one run."""
    points = sum(
        len(sweep_points(method, method.solver(resolved.solver))) for method in resolved.methods
    )
    seeds = len(seed) if isinstance(seed, list) else 1
    require(
        points * seeds == 1,
        f"{points * seeds} runs: with [privacy] a deployment has one method, one value of each "
        "hyperparameter and one seed, since each run would spend the epsilon once more",
    )
    assert resolved.privacy is not None
    require(
        resolved.privacy.clip < math.inf,
        "privacy.clip = inf; in a deployment it must be finite",
    )


class Server:
    """What all methods of a deployment share.

    Args:
        conversation: The conversation with the nodes.
        deployment: The experiment.
        protocol: The protocol.
        methods: The methods.

    Attributes:
        repeated: Rounds of a private run that were released before an interruption and are repeated
            after it, each time.
        dishonest: Why nodes are left out of secure sums, by index.
    """

    def __init__(
        self,
        conversation: Conversation,
        deployment: Deployment,
        protocol: Protocol,
        methods: Sequence[Method],
    ) -> None:
        self.conversation, self.deployment, self.protocol = conversation, deployment, protocol
        self.methods = methods
        self.nodes, self.owner = deployment.joined.nodes, deployment.joined.owner
        self.kind = deployment.joined.kind
        self.mesh = lane_mesh(1)
        self.session = secrets.token_hex(4)
        self.asked = 0
        self.repeated: Sequence[range] = ()
        self.dishonest: dict[int, str] = {}
        sizes = protocol.federation.train.sizes
        base = protocol.model.base
        self.base = None if base is None else digest(base)
        self.rows = np.bincount(self.owner, sizes)
        self.shares = self.rows / sizes.sum()

    def setup(self, method: Method, seed: int) -> Setup:
        """What nodes must know of a method."""
        number = self.number(method)
        deployment, protocol = self.deployment, self.protocol
        table, systems = deployment.resolved.table, protocol.systems
        return Setup(
            run=deployment.ledger.run,
            number=number,
            seed=seed,
            rounds=protocol.rounds,
            clients=len(protocol.federation),
            clients_per_round=protocol.cohort.clients_per_round,
            data=self.kind,
            parameters=parameters_in_words(protocol.model.shapes),
            model=table["model"],
            base=self.base,
            solver=table["solver"],
            method=table["method"][number],
            evaluated=protocol.evaluation.model,
            gradients=protocol.evaluation.gradients,
            deadline=systems.deadline if protocol.population is None else None,
            privacy=self._hiding(method),
            private_steps=self._private_steps(method),
            secure=deployment.secure,
            compression=None if protocol.compression is None else asdict(protocol.compression),
            products=protocol.aggregation.rule == "product",
        )

    def on_nodes(self, method: Method) -> Algorithm:
        """A method as nodes have it, which know neither asynchronous rounds nor what arrives."""
        if self.protocol.asynchronous is None and self.protocol.compression is None:
            return method.algorithm
        given = self.deployment.resolved.methods[self.number(method)]
        if self.protocol.compression is not None:
            given = self.protocol.compression.received(given, self.protocol.model.shapes)
        return reporting(given, self.protocol.evaluation.model)

    def number(self, method: Method) -> int:
        """A method's number in the experiment."""
        return next(i for i, each in enumerate(self.methods) if each is method)

    def _hiding(self, method: Method) -> Hiding | None:
        """What hides the clients of a method."""
        privacy, mechanism = self.protocol.privacy, method.mechanism
        if privacy is None or mechanism is None:
            return None
        rounds = self.protocol.rounds + sum(map(len, self.repeated))
        return Hiding(
            clip=privacy.clip,
            adaptive_clip=privacy.adaptive_clip,
            mechanism=mechanism,
            rounds=rounds,
        )

    def _private_steps(self, method: Method) -> PrivateSteps | None:
        """How a method's local steps hide rows."""
        privacy, noise = self.protocol.privacy, noise_of(method)
        if privacy is None or noise is None or not self.protocol.hides_examples:
            return None
        return PrivateSteps(
            clip=privacy.clip,
            noise_multiplier=noise,
            delta=privacy.delta,
            accountant=privacy.accountant or "pld",
        )

    def planned(self, method: Method, seed: int) -> dict[int, dict[str, int]]:
        """The private local steps of each node's clients in the whole run, by node and name."""
        if not self.protocol.hides_examples:
            return {}
        counted = LocalSteps(method, seed, self.repeated).counted(self.protocol.rounds)
        names, planned = self.protocol.federation.names, dict[int, dict[str, int]]()
        for k in np.flatnonzero(counted).tolist():
            planned.setdefault(int(self.owner[k]), {})[names[k]] = int(counted[k])
        return planned

    def request(self, kind: Kind, setup: Setup, **others: Any) -> Request:
        """A request, which is not sent; the others are fields of `Request`."""
        self.asked += 1
        number = f"{self.session}-{self.asked}"
        return Request(version=VERSION, id=number, kind=kind, setup=setup, **others)

    def begin(
        self,
        requests: Mapping[int, Request],
        arrays: Sequence[Array] = (),
        allowed: Mapping[int, Allowed] = MappingProxyType({}),
    ) -> dict[int, str]:
        """Open requests to nodes, by index, and return their identifiers."""
        setups = [request.setup for request in requests.values() if request.setup is not None]
        asked = self.conversation.begin_all(
            {self.nodes[index]: request for index, request in requests.items()},
            arrays,
            allowed={self.nodes[index]: each for index, each in allowed.items()},
            extra=max((each.deadline or 0.0 for each in setups), default=0.0),
        )
        return {index: asked[self.nodes[index]] for index in requests}

    def answers(self, asked: Mapping[int, str]) -> dict[int, Answered]:
        """Wait for the answers to requests, by index; nodes that do not answer are missing."""
        answers = self.conversation.answers(
            {self.nodes[index]: number for index, number in asked.items()}
        )
        return {index: answers[node] for index, node in enumerate(self.nodes) if node in answers}

    def name(self, index: int) -> str:
        """The name of a node."""
        return self.deployment.joined.descriptions[index].name

    def leave_out(self, name: str, why: str) -> None:
        """Leave a node out of secure sums, by name."""
        (index,) = (i for i in range(len(self.nodes)) if self.name(i) == name)
        self.dishonest[index] = why

    def has_signed(self, index: int, signature: str, content: bytes) -> bool:
        """Whether a node has signed something, as far as its key is known."""
        key = self.conversation.network.key_of(self.nodes[index])
        return not key or has_signed(decoded(key), bytes.fromhex(signature), content)

    def problem(self, index: int) -> str:
        """Why a node did not answer the last request."""
        return self.conversation.failed.get(self.nodes[index], "no answer")
