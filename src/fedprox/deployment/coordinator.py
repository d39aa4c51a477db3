"""The coordinator: the server's side of rounds whose clients are on nodes.

It draws cohorts and work as a simulation does, sends each node its clients' part, combines the
answers by `Algorithm.update`, and asks nodes for evaluations. The loop around it, with records,
checkpoints, targets and early ends, is the simulation's.
"""

import importlib.metadata
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedprox.algorithms.base import HParams, State
from fedprox.algorithms.check import message_shape
from fedprox.deployment.broadcast import broadcast_of
from fedprox.deployment.combine import (
    Combined,
    NodePart,
    combined,
    evaluation_shapes,
    measures_of,
    part_of,
    sums_of,
)
from fedprox.deployment.conversation import Answered, Conversation
from fedprox.deployment.messages import (
    VERSION,
    Array,
    DataKind,
    Description,
    Kind,
    Request,
    Setup,
    Work,
)
from fedprox.deployment.parts import parameters_in_words
from fedprox.deployment.stand_in import check_description, common_kind, stand_in
from fedprox.deployment.states import NEW
from fedprox.errors import InputError, require
from fedprox.experiment.read import DEPLOYED
from fedprox.experiment.resolved import Resolved, resolve_with
from fedprox.experiment.sections import Experiment
from fedprox.model import Params
from fedprox.simulation.compiled.client_step import round_hparams
from fedprox.simulation.compiled.compile import evaluated
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.compiled.lanes import choose
from fedprox.simulation.config.faults import Faults
from fedprox.simulation.config.method import Method
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.devices.mesh import lane_mesh
from fedprox.simulation.loop.comparison import Follow, checked_methods, compare
from fedprox.simulation.loop.execution import Computed, Planned, RunState, Start
from fedprox.simulation.loop.planner import Chunk, chunks
from fedprox.simulation.loop.records import ClientTraffic, Faulty, Traffic
from fedprox.simulation.planning.batch_plan import Jobs
from fedprox.simulation.planning.round_work import RoundWork, round_work
from fedprox.simulation.results.run import Run

DESCRIBE_EVERY = 2.0
"""Seconds between looks for nodes that have joined."""


FINITE = Faults("drop", math.inf)
"""Screening of updates if the experiment does not say: those that are not finite are left out."""


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


def deploy(conversation: Conversation, deployment: Deployment, follow: Follow) -> list[Run]:
    """Train the methods of an experiment on the nodes that have joined.

    Args:
        conversation: The conversation with them.
        deployment: The experiment.
        follow: How the runs are followed.

    Returns:
        The runs, as `simulate` returns them.

    Raises:
        InputError: If a setting is not allowed, or a node refuses a method.
    """
    experiment, resolved = deployment.experiment, deployment.resolved
    seeds = experiment.seed if isinstance(experiment.seed, list) else [experiment.seed]
    protocol = Protocol(
        federation=resolved.federation,
        model=resolved.model,
        solver=resolved.solver,
        cohort=resolved.cohort,
        systems=resolved.systems,
        faults=resolved.faults,
        rounds=experiment.rounds,
        evaluation=replace(resolved.evaluation, rows=None),  # nodes choose the rows
        client_store="auto",
        seeds=tuple(seeds),
        target=resolved.target,
        stop_at_target=experiment.stop_at_target,
        selection=resolved.selection,
        initial=resolved.initial,
    )
    methods = checked_methods(protocol, resolved.methods)
    numbers = {id(method): number for number, method in enumerate(methods)}
    mesh = lane_mesh(1)
    server = Server(conversation, deployment, protocol)

    def execute(method: Method, start: Start) -> Any:
        del start
        return nullcontext(RemoteMethod(server, method, numbers[id(method)]))

    runs = compare(protocol, methods, mesh, lambda _: execute, follow)
    for run in runs:
        run.experiment = resolved.table
    return runs


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


class RemoteMethod:
    """A method whose clients are on nodes.

    Args:
        server: What all methods share.
        method: The method.
        number: Its number in the experiment.

    Raises:
        InputError: If a node refuses the method.
    """

    def __init__(self, server: Server, method: Method, number: int) -> None:
        self.server, self.method, self.number = server, method, number
        self.hparams = method.hparams(server.mesh)
        self.compile_seconds, self.memory, self.lane_idle = 0.0, 0, 0.0
        algorithm, shapes = method.algorithm, method.protocol.model.shapes
        self.broadcast = broadcast_of(algorithm._replace(exchange=None), shapes)
        points = len(method.points)

        def at_points(tree: Any) -> Any:
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct((points, *a.shape), a.dtype), tree)

        self.message = at_points(message_shape(algorithm, shapes))
        self.gradient = at_points(shapes)
        self.update = jax.jit(self._update)
        self.evaluated = jax.jit(partial(evaluated, algorithm))
        self.shapes = evaluation_shapes(method.protocol.model, server.kind, points)
        self.prepare()

    def prepare(self) -> None:
        """Ask all nodes whether they take part in the method.

        A node that does not answer may answer later, so rounds begin without it.

        Raises:
            InputError: If a node refuses, or none answers.
        """
        server = self.server
        setup = server.setup(self.number, self.method.protocol.seeds[0])
        answers = server.ask("prepare", setup, dict.fromkeys(range(len(server.nodes))))
        for index in range(len(server.nodes)):
            if index in answers:
                continue
            line = f"{self.method.name}: node {server.name(index)!r}: {server.problem(index)}"
            refused = server.nodes[index] in server.conversation.refused
            require(answers and not refused, line)
            logging.getLogger(__name__).warning("%s; it may take part later", line)

    def _update(
        self, state: State, mean: Any, hparams: HParams, before: State, counts: jax.Array
    ) -> State:
        """The state after a round; that before it at points (points,) where no update counts."""
        after = jax.vmap(self.method.algorithm.update)(state, mean, hparams)
        return choose(counts, after, before)

    def begin(self, start: Start) -> "RemoteSeed":
        """Begin the remaining rounds of a seed."""
        return RemoteSeed(self, start)


class RemoteSeed:
    """The rounds of one seed on nodes.

    Args:
        remote: The method.
        start: The start of the remaining rounds.
    """

    def __init__(self, remote: RemoteMethod, start: Start) -> None:
        self.remote, self.server, self.method = remote, remote.server, remote.method
        self.seed, self.params = start.seed, start.params
        self.setup = remote.server.setup(remote.number, start.seed)
        clients = len(self.server.owner)
        self.used = np.full(clients, NEW, np.int64)
        # at the last two checkpoints, from either of which a run may resume
        self.saved = [self.used.copy(), self.used.copy()]
        self.planned: Planned = self._plan(start.round)

    def _plan(self, begin: int) -> Iterator[tuple[Chunk, RoundWork]]:
        protocol, method = self.server.protocol, self.method
        every = protocol.evaluation.every
        for chunk in chunks(begin, protocol.rounds, every, most=1, pause=protocol.rounds):
            work = round_work(protocol, method.algorithm, method.solver, self.seed, chunk.first)
            yield chunk, work

    def run(self, chunk: Chunk, call: RoundWork, now: RunState) -> Computed:
        """Compute one round on the nodes."""
        t, jobs, exchange = chunk.first, call.jobs, self.method.algorithm.exchange
        state, traffic = now.state, list[Traffic]()
        if exchange is not None and len(jobs.client):
            gradient, cost = self._mean_gradient(t, call.exchange, state)
            traffic.append(cost)
            if gradient is None:  # no valid g^t: discard this round's updates
                jobs = _some(jobs, np.zeros(0, np.int64))
            else:
                state = jax.vmap(exchange)(state, gradient)
        if not len(jobs.client):
            work = call._replace(dropped=call.clients, jobs=jobs)
            return Computed(now.state, work, 0, 1, traffic=tuple(traffic))
        began = time.perf_counter()
        result = combined(self.method, jobs, self._train(t, jobs, state, now.hparams))
        counts = result.counts
        self._warn_of_faults(t, jobs, result)
        self.used[jobs.client[counts.any(axis=1)]] = t
        cost = self._traffic(began, jobs, result)
        after = now.state
        if counts.any():
            rate = jnp.float32(self.method.solver.factor(t))
            hparams = round_hparams(now.hparams, rate, jnp.float32(0))
            participation = (jobs.participation[:, None] * counts).sum(axis=0)
            hparams = {**hparams, "participation": jnp.asarray(participation, jnp.float32)}
            after = self.remote.update(state, result.mean, hparams, now.state, counts.any(axis=0))
        # as in a simulation, where clients that are dropped take no steps
        taken = np.where(counts | result.faulty, result.steps, 0)
        worked = np.flatnonzero((taken > 0).any(axis=1))
        used = counts.any(axis=1)
        done = call._replace(
            stragglers=min(call.clients, call.stragglers + self._late(jobs, result)),
            dropped=call.clients - int(used.sum()),
            jobs=_some(jobs, worked)._replace(steps=taken[worked].max(axis=1, initial=0)),
        )
        faulty: tuple[Faulty, ...] = (partial(_faulty_rows, t, jobs.client, result.faulty),)
        steps, empty = taken.sum(axis=0), int(not counts.any())
        return Computed(after, done, steps, empty, faulty, traffic=(*traffic, cost))

    def _late(self, jobs: Jobs, result: Combined) -> int:
        """Clients that the round did not use, or that took fewer steps by a real clock."""
        late = ~result.counts.any(axis=1)
        if self.setup.deadline is not None and self.method.solver.gamma is None:
            late |= (result.steps < jobs.steps[:, None]).any(axis=1)
        return int(late.sum())

    def _warn_of_faults(self, t: int, jobs: Jobs, result: Combined) -> None:
        """Log the nodes with faulty updates."""
        for index, part in sorted(result.parts.items()):
            name, clients = self.server.name(index), result.faulty[part.at].any(axis=1)
            if clients.any():
                names = self.server.protocol.federation.names
                faulty = [names[k] for k in jobs.client[part.at[clients]].tolist()]
                self._warn(f"round {t + 1}: node {name!r}: faulty update of {', '.join(faulty)}")

    def _train(
        self, t: int, jobs: Jobs, state: State, hparams: Mapping[str, Any]
    ) -> dict[int, NodePart]:
        """The nodes' parts of a round, by node; those that are missing or refused are not there."""
        needed = self.remote.broadcast.initial and (self.used[jobs.client] == NEW).any()
        initial = self.params if needed else None
        arrays = self.remote.broadcast.sent(state, hparams, initial)
        first = initial is not None
        return self._parts(t, "train", jobs, arrays, self.remote.message, initial=first)

    def _mean_gradient(self, t: int, jobs: Jobs, state: State) -> tuple[Params | None, Traffic]:
        """g^t over a first cohort, None if no gradient counts, and what it cost."""
        began = time.perf_counter()
        params = jax.vmap(self.method.algorithm.params)(state)
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
        parts = self._parts(t, "gradients", jobs, arrays, self.remote.gradient)
        result = combined(self.method, jobs, parts, optax.tree.norm)
        cost = self._cost(began, {i: p.answered for i, p in result.parts.items()})
        return (result.mean if result.counts.any() else None), cost

    def _parts(
        self,
        t: int,
        kind: Kind,
        jobs: Jobs,
        arrays: Sequence[Array],
        message: Any,
        *,
        initial: bool = False,
    ) -> dict[int, NodePart]:
        """Ask nodes for their parts of some jobs, and check what they answer.

        Args:
            t: The round.
            kind: "train" or "gradients".
            jobs: The jobs of all nodes.
            arrays: The arrays that nodes need.
            message: The message, in shape, leaves (points, ...).
            initial: Whether w^0 is among the arrays.
        """
        server, clients = self.server, self.server.protocol.federation
        owner = server.owner[jobs.client]
        work: dict[int, Work | None] = {}
        for index in np.unique(owner).tolist():
            own = _some(jobs, np.flatnonzero(owner == index))
            names = [clients.names[k] for k in own.client.tolist()]
            work[index] = Work(
                names=names,
                client=own.client.tolist(),
                rows=own.size.tolist(),
                steps=own.steps.tolist(),
                weight=own.weight.tolist(),
                gamma=own.gamma.tolist(),
                relative_size=own.relative_size.tolist(),
                state=self.used[own.client].tolist(),
                kept=np.stack([saved[own.client] for saved in self.saved], axis=1).tolist(),
            )
        participation = float(jobs.participation.sum())
        answers = server.ask(
            kind,
            self.setup,
            work,
            arrays,
            round_=t,
            participation=participation,
            initial=initial,
        )
        parts = {}
        for index in work:
            at, problem = np.flatnonzero(owner == index), server.problem(index)
            if index in answers:
                try:
                    points = len(self.method.points)
                    parts[index] = part_of(answers[index], at, jobs, message, points)
                    continue
                except InputError as error:
                    problem = f"its answer is refused: {error}"
            many = f"{len(at)} client{'s' * (len(at) != 1)}"
            name = server.name(index)
            self._warn(f"round {t + 1}: node {name!r}: {problem}; without its {many}")
        return parts

    def _traffic(self, began: float, jobs: Jobs, result: Combined) -> Traffic:
        """What a round cost, by the clients whose updates count."""
        names, clients = self.server.protocol.federation.names, {}
        for index, part in result.parts.items():
            for j in part.at.tolist():
                if result.counts[j].any():
                    clients[names[int(jobs.client[j])]] = ClientTraffic(
                        self.server.name(index),
                        int(result.steps[j].max()),
                        part.answered.head.seconds,
                        part.answered.bytes_down // len(part.at),
                        part.answered.bytes_up // len(part.at),
                    )
        return self._cost(began, {i: p.answered for i, p in result.parts.items()}, clients)

    def _cost(
        self,
        began: float,
        answers: Mapping[int, Answered],
        clients: Mapping[str, ClientTraffic] = MappingProxyType({}),
    ) -> Traffic:
        """What some answers cost, whose requests were sent at `began`."""
        return Traffic(
            time.perf_counter() - began,
            sum(each.bytes_down for each in answers.values()),
            sum(each.bytes_up for each in answers.values()),
            frozenset(map(self.server.name, answers)),
            clients,
        )

    def evaluate(self, state: State) -> tuple[Measures, tuple[Traffic, ...]]:
        """Measure the evaluated model of a state on all nodes.

        Raises:
            InputError: If no node answers.
        """
        began = time.perf_counter()
        arrays = [np.asarray(a) for a in jax.tree.leaves(self.remote.evaluated(state))]
        server, nodes = self.server, range(len(self.server.nodes))
        answers = server.ask("evaluate", self.setup, dict.fromkeys(nodes), arrays)
        nodes_sums = []
        for index in nodes:
            problem = server.problem(index)
            if index in answers:
                try:
                    shapes, share = self.remote.shapes, float(server.shares[index])
                    nodes_sums.append(sums_of(answers[index], shapes, share))
                    continue
                except InputError as error:
                    problem = f"its answer is refused: {error}"
            self._warn(f"node {server.name(index)!r}: {problem}; evaluated without it")
        require(
            any("loss" in node.sums for node in nodes_sums),
            f"{self.method.name}, seed {self.seed}: no node that reports losses answered an "
            "evaluation; resume the run when nodes are connected",
        )
        model, shapes = server.protocol.model, self.remote.shapes
        measures = measures_of(model, nodes_sums, shapes)
        return measures, (self._cost(began, answers),)

    def _warn(self, line: str) -> None:
        logging.getLogger(__name__).warning("%s, seed %d: %s", self.method.name, self.seed, line)

    def contents(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """For each client the round of its last used update, now and at the last checkpoint.

        Its node stores its state after both.
        """
        before, used = self.saved[1], self.used.copy()
        yield "used", used
        yield "before", before
        self.saved = [before, used]

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore what `contents` returned."""
        rounds = {name: np.array(array, np.int64) for name, array in saved}
        self.used = rounds["used"]
        self.saved = [rounds["before"], self.used.copy()]

    def close(self) -> None:
        """Nothing is held."""


def _some(jobs: Jobs, chosen: NDArray[np.int64]) -> Jobs:
    """Some of the jobs."""
    return Jobs(*(array[chosen] for array in jobs))  # type: ignore[arg-type]


def _faulty_rows(
    t: int, clients: NDArray[np.int64], faulty: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The faulty updates of a round, rows of (round, point, client)."""
    jobs, points = np.nonzero(faulty)
    return np.stack([np.full(len(jobs), t), points, clients[jobs]], axis=1)
