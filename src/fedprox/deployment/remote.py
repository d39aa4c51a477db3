"""Rounds on nodes: the requests of a round, and the state after it.

With privacy of clients, nodes clip what their clients send, and the coordinator adds noise from the
system's entropy, also in a round without answers. Cohorts and stragglers come from the system's
entropy too, since whoever knows the seed would know who takes part. With privacy of examples nodes
do it all, and the coordinator counts.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, HParams, State
from fedprox.algorithms.check import message_shape
from fedprox.deployment.arrivals import Training, works_at_nodes
from fedprox.deployment.broadcast import at_points, broadcast_of
from fedprox.deployment.coded import Coded
from fedprox.deployment.combine import Combined, NodePart, combined, summed
from fedprox.deployment.conversation import Answered
from fedprox.deployment.deadline import planned_rows, shares_of_first
from fedprox.deployment.measured import (
    NodeSums,
    declared_by,
    declared_together,
    evaluation_shapes,
    measures_of,
    summable,
    summed_arrays,
    sums_of,
)
from fedprox.deployment.messages import Array, Request, Summed, Work
from fedprox.deployment.noise import system_normals
from fedprox.deployment.round_part import (
    Possible,
    part_shapes,
    read_part,
    require_clipped,
    require_possible,
)
from fedprox.deployment.secure.fixed_point import fixed_point_of, size_of
from fedprox.deployment.secure.rounds import SecureSum, unknown_liar
from fedprox.deployment.server import Server
from fedprox.deployment.states import NEW
from fedprox.errors import InputError, require
from fedprox.files.arrays import Damaged
from fedprox.model import Params
from fedprox.simulation.compiled.client_step import round_hparams
from fedprox.simulation.compiled.compile import evaluated
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.compiled.lanes import choose
from fedprox.simulation.config.method import Method
from fedprox.simulation.devices.programs import jit_once
from fedprox.simulation.loop.execution import Done, Measuring, RunState, Start, added
from fedprox.simulation.loop.progress import Report
from fedprox.simulation.planning.jobs import Jobs
from fedprox.simulation.planning.round_work import RoundWork, drawn_works


class Nodes:
    """The nodes of a network, as what computes rounds.

    Args:
        server: What all methods share.
    """

    def __init__(self, server: Server) -> None:
        self.server, self.mesh = server, server.mesh

    @contextmanager
    def execution(self, method: Method, start: Start, report: Report) -> Iterator["RemoteMethod"]:
        """The execution of a method, whose first seed begins at `start`."""
        del report
        if method.protocol.privacy is not None:  # which has one run
            ledger = self.server.deployment.ledger
            ledger.begin(start.round)
            self.server.repeated = tuple(ledger.repeated)
        yield RemoteMethod(self.server, method)


class RemoteMethod:
    """A method whose clients are on nodes.

    Args:
        server: What all methods share.
        method: The method.

    Raises:
        InputError: If a node refuses the method.
    """

    def __init__(self, server: Server, method: Method) -> None:
        self.server, self.method = server, method
        self.hparams = method.hparams(server.mesh)
        self.compile_seconds, self.memory, self.lane_idle = 0.0, 0, 0.0
        algorithm, shapes = method.algorithm, method.protocol.model.shapes
        on_nodes = server.on_nodes(method)._replace(
            first=server.on_nodes(method).first._replace(exchange=None)
        )
        self.broadcast = broadcast_of(on_nodes, shapes)
        points = len(method.points)
        self.message = at_points(message_shape(on_nodes, shapes), points)
        self.gradient = at_points(shapes, points)
        compression = method.protocol.compression
        self.coded = None if compression is None else Coded(compression, shapes, points)
        self.update = jit_once(partial(updated, algorithm))
        self.evaluated = jit_once(partial(evaluated, algorithm))
        self.shapes = evaluation_shapes(method.protocol.model, server.kind, points)
        self.allowed = self.shapes.arrays()
        self.declared = [
            declared_by(each, float(share))
            for each, share in zip(
                server.deployment.joined.descriptions, server.shares, strict=True
            )
        ]
        if algorithm.client.possible is not None:
            self.possible = jit_once(jax.vmap(algorithm.client.possible))
        if server.deployment.secure is not None:
            setup = server.setup(method, method.protocol.seeds[0])
            for like in (self.message, self.gradient):
                fixed_point_of(setup, "train").require_hidden(size_of(jax.tree.leaves(like)))
        self.prepare()

    def prepare(self) -> None:
        """Ask all nodes whether they take part in the method.

        A node that does not answer may answer later, so rounds begin without it.

        Raises:
            InputError: If a node refuses, or none answers.
        """
        server = self.server
        seed = self.method.protocol.seeds[0]
        setup, planned = server.setup(self.method, seed), server.planned(self.method, seed)
        requests = {
            i: server.request("prepare", setup, planned=planned.get(i, {}))
            for i in range(len(server.nodes))
        }
        answers = server.answers(server.begin(requests))
        for index in range(len(server.nodes)):
            if index in answers:
                continue
            line = f"{self.method.name}: node {server.name(index)!r}: {server.problem(index)}"
            refused = server.nodes[index] in server.conversation.refused
            require(answers and not refused, line)
            logging.getLogger(__name__).warning("%s; it may take part later", line)

    def begin(self, start: Start) -> "RemoteSeed":
        """Begin the remaining rounds of a seed."""
        return RemoteSeed(self, start)


def updated(
    algorithm: Algorithm,
    state: State,
    mean: Any,
    hparams: HParams,
    before: State,
    counts: jax.Array,
) -> State:
    """The state after a round; that before it at points (points,) where no update counts."""
    return choose(counts, jax.vmap(algorithm.server.update)(state, mean, hparams), before)


class RemoteSeed:
    """The rounds of one seed on nodes.

    Args:
        remote: The method.
        start: The start of the remaining rounds.
    """

    measured: Measures | None = None  # nodes measure, and this machine waits for them

    def __init__(self, remote: RemoteMethod, start: Start) -> None:
        self.remote, self.server, self.method = remote, remote.server, remote.method
        self.seed, self.params, self.done = start.seed, start.params, start.round
        self.private, self.repeated = self.method.private, self.server.repeated
        self.setup = self.server.setup(self.method, start.seed)
        # also in a round without answers, which cost privacy; with secure sums nodes add it
        self.adds_noise = self.private and self.setup.secure is None
        # the round of each client's last used update, for each sweep point
        self.used = np.full((len(self.server.owner), len(self.method.points)), NEW, np.int64)
        # at the last two checkpoints, from either of which a run may resume
        self.saved = [self.used.copy(), self.used.copy()]
        drawn_by = secrets.randbits(63) if self.private else self.seed
        protocol, algorithm = self.server.protocol, self.method.algorithm
        self.training = None if protocol.asynchronous is None else self._training()
        if self.training is None:
            solver = self.method.solver
            self.works = drawn_works(protocol, algorithm, solver, drawn_by, start.round)
        else:
            self.works = works_at_nodes(self.training, self.seed, start.round)

    def _training(self) -> Training:
        """What clients are asked without a barrier."""
        remote, algorithm = self.remote, self.remote.server.on_nodes(self.method)
        return Training(
            *(self.server, self.method, self.setup, remote.broadcast, remote.message),
            possible=self._possible,
            params=jax.vmap(algorithm.server.params),
            work_of=self._work,
        )

    def next(self, now: RunState) -> RunState:
        """Compute one round on the nodes."""
        t, exchange = now.round, self.method.algorithm.first.exchange
        self.done = t + 1
        if self.training is not None:
            self.training.at(now)
        call = next(self.works)
        jobs, state, network = call.jobs, now.state, dict[str, Any]()
        rate = jnp.float32(self.method.solver.factor(t))
        participation = jnp.float32(jobs.participation.sum())
        hparams = round_hparams(now.hparams, rate, participation)
        valid, deadline = np.ones(self.used.shape[1], bool), self.setup.deadline
        nodes = range(len(self.server.nodes))
        seconds = {} if deadline is None else dict.fromkeys(nodes, deadline)
        if self.method.protocol.privacy is not None:
            self.server.deployment.ledger.release()
        if exchange is not None and (len(jobs.client) or self.adds_noise):
            gradient, valid, network = self._mean_gradient(t, call, state, seconds)
            if valid.any():
                noisy = self._with_noise(hparams, self.remote.gradient)
                state = jax.vmap(exchange)(state, gradient, noisy)
            else:
                jobs = jobs.take(np.zeros(0, np.int64))
        if not len(jobs.client) and not self.adds_noise:
            work = call._replace(dropped=call.clients, jobs=jobs)
            nothing = Done(1, empty=1, steps=(0,), network=network, work=work)
            return now._replace(round=t + 1, since=now.since + nothing)
        began = time.perf_counter()
        if self.training is not None:
            answers, total = self.training.parts_of(jobs), None
        else:
            answers, total = self._train(t, jobs, state, now.hparams, seconds)
        result = combined(self.method, jobs, answers, self.remote.message, total=total)
        # no valid g^t: discard this round's updates
        result = result._replace(counts=result.counts & valid)
        counts = result.counts
        self._warn_of_faults(t, jobs, result)
        self.used[jobs.client] = np.where(counts, t, self.used[jobs.client])
        network = added(network, self._traffic(began, jobs, result))
        always = self.adds_noise or self.training is not None
        after, updated = now.state, counts.any(axis=0) | always
        if updated.any():
            counted = (jobs.participation[:, None] * counts).sum(axis=0)
            hparams = {**hparams, "participation": jnp.asarray(counted, jnp.float32)}
            noisy = self._with_noise(hparams, self.remote.message)
            after = self.remote.update(state, result.mean, noisy, now.state, updated)
        # as in a simulation, where clients that are dropped take no steps
        taken = np.where(counts | result.faulty, result.steps, 0)
        worked = np.flatnonzero((taken > 0).any(axis=1))
        used = counts.any(axis=1)
        work = call._replace(
            stragglers=min(call.clients, call.stragglers + self._late(jobs, result)),
            dropped=call.clients - int(used.sum()),
            jobs=jobs.take(worked)._replace(steps=taken[worked].max(axis=1, initial=0)),
        )
        done = Done(
            *(1, int(not counts.any()), sum(len(node.at) for node in result.parts)),
            (taken.sum(axis=0),),
            (partial(_faulty_rows, t, jobs.client, result.faulty),),
            network=network,
            work=work,
        )
        return now._replace(round=t + 1, state=after, since=now.since + done)

    def _with_noise(self, hparams: HParams, like: Any) -> HParams:
        """The hyperparameters, with privacy also noise for a mean like `like`."""
        if not self.private:
            return hparams
        if self.setup.secure is not None:  # nodes have added it
            return {**hparams, "noise": jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), like)}
        return {**hparams, "noise": system_normals(like)}

    def _late(self, jobs: Jobs, result: Combined) -> int:
        """Clients that the round did not use, or that took fewer steps by a real clock."""
        late = ~result.counts.any(axis=1)
        if self.setup.deadline is not None and self.method.solver.gamma is None:
            late |= (result.steps < jobs.steps[:, None]).any(axis=1)
        return int(late.sum())

    def _warn_of_faults(self, t: int, jobs: Jobs, result: Combined) -> None:
        """Log the nodes with faulty updates."""
        for node in result.parts:
            name, clients = self.server.name(node.node), result.faulty[node.at].any(axis=1)
            if clients.any():
                names = self.server.protocol.federation.names
                faulty = [names[k] for k in jobs.client[node.at[clients]].tolist()]
                self._warn(f"round {t + 1}: node {name!r}: faulty update of {', '.join(faulty)}")

    def _train(
        self,
        t: int,
        jobs: Jobs,
        state: State,
        hparams: Mapping[str, Any],
        seconds: Mapping[int, float],
    ) -> tuple[list[NodePart], Any]:
        """The nodes' parts of a round, and their sum; see `_parts`."""
        needed = self.remote.broadcast.initial and (self.used[jobs.client] == NEW).any()
        initial = self.params if needed else None
        numbers = {name: hparams[name] for name in self.method.points[0]}
        arrays = self.remote.broadcast.sent(state, numbers, initial)
        first = initial is not None
        clip = self._clip(state)
        message, possible = self.remote.message, self._possible(t, hparams)
        return self._parts(
            *(t, "train", jobs, arrays, message, clip, seconds),
            possible=possible,
            initial=first,
        )

    def _possible(self, t: int, hparams: HParams) -> Possible | None:
        """Which mean messages clients can send in a round; None if they may be any."""
        if self.method.algorithm.client.possible is None:
            return None
        rate = jnp.float32(self.method.solver.factor(t))
        return partial(self.remote.possible, round_hparams(hparams, rate, jnp.float32(0)))

    def _clip(self, state: State) -> NDArray[np.float32] | None:
        """The clipping norm (points,); None without privacy."""
        return np.asarray(state.clip) if self.private else None

    def _mean_gradient(
        self, t: int, call: RoundWork, state: State, seconds: dict[int, float]
    ) -> tuple[Params, NDArray[np.bool_], dict[str, Any]]:
        """g^t over a first cohort, at which sweep points it is valid, and what it cost.

        What nodes take of their seconds is subtracted.
        """
        began, jobs = time.perf_counter(), call.exchange
        params = jax.vmap(self.method.algorithm.server.params)(state)
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
        clip, own = self._clip(state), {}
        if seconds:
            rows = planned_rows(self.method.algorithm, self.method.solver, call.jobs)
            shares = shares_of_first(jobs, rows, call.jobs, self.server.owner)
            own = {node: share * seconds[node] for node, share in enumerate(shares.tolist())}
        parts, total = self._parts(t, "gradients", jobs, arrays, self.remote.gradient, clip, own)
        took = {part.node: part.answered.head.seconds for part in parts}
        for node, most in own.items():
            # a longer answer was compiled meanwhile
            seconds[node] -= took[node] if 0 <= took.get(node, most) < most else most
        result = combined(self.method, jobs, parts, self.remote.gradient, optax.tree.norm, total)
        cost = self._cost(began, [(each.node, each.answered) for each in result.parts])
        valid = np.full(self.used.shape[1], self.adds_noise)
        return result.mean, valid | result.counts.any(axis=0), cost

    def _parts(
        self,
        t: int,
        kind: Summed,
        jobs: Jobs,
        arrays: Sequence[Array],
        message: Any,
        clip: NDArray[np.float32] | None,
        seconds: Mapping[int, float],
        *,
        possible: Possible | None = None,
        initial: bool = False,
    ) -> tuple[list[NodePart], Any]:
        """Ask nodes for their parts of some jobs, and check what they answer.

        Args:
            t: The round.
            kind: "train" or "gradients".
            jobs: The jobs of all nodes.
            arrays: The arrays that nodes need.
            message: The message, in shape, leaves (points, ...).
            clip: The clipping norm (points,); None without privacy.
            seconds: The seconds that nodes have for it; empty without a deadline.
            possible: Which mean messages clients can send; None if they may be any.
            initial: Whether w^0 is among the arrays.

        Returns:
            The parts; those that are missing or refused are not there. The sum of their messages if
            it is secret what each one is, leaves (points, ...); else None.

        Raises:
            InputError: If a node has lost client state, without which the run cannot go on.
        """
        server, owner = self.server, self.server.owner[jobs.client]
        participation = float(jobs.participation.sum())
        if self.private:  # who takes part is secret, and so is how many
            participation = self.setup.clients_per_round / self.setup.clients
        points = len(self.method.points)
        places = {index: np.flatnonzero(owner == index) for index in np.unique(owner).tolist()}
        requests: Mapping[int, Request] = {
            index: server.request(
                kind,
                self.setup,
                round=t,
                participation=participation,
                work=self._work(jobs.take(at)),
                initial=initial,
                seconds=seconds.get(index),
            )
            for index, at in places.items()
        }
        secret, dropped, beside = self._secret_sum(kind, message), {}, {}
        possible_sum = None
        if secret is not None:
            # no node's message is among its arrays, so it is their sum that is compared
            possible_sum = possible if secret.fixed.noise is None else None
            message = possible = clip = None
            dropped, beside = secret.problems, secret.allowed
            requests = self._prepared(t, secret, requests, arrays)
        coded = self.remote.coded
        sent = {
            index: message if coded is None else coded.shapes(len(at))
            for index, at in places.items()
        }
        allowed = {
            index: part_shapes(len(places[index]), sent[index], points) | beside
            for index in requests
        }
        answers = server.answers(server.begin(requests, arrays, allowed))
        parts = []
        for index, at in places.items():
            if index not in requests and index not in dropped:
                continue  # the sum was given up
            problem = dropped.get(index) or server.problem(index)
            # the rounds after this one would lack it too
            require(
                not (
                    kind == "train" and index in requests and self._has_lost(index, jobs.client[at])
                ),
                f"node {server.name(index)!r}: {problem}",
            )
            if index in answers:
                try:
                    own = jobs.take(at)
                    if secret is not None:
                        secret.require_masked(answers[index])
                    part = read_part(answers[index].arrays, own, sent[index], points, possible)
                    require(
                        secret is None or part.counts.any(axis=0).all(),
                        "no update counts, and its message is in the sum",
                    )
                    if coded is not None:
                        part = coded.summed(part, own, self.setup.seed, t)
                    if clip is not None:
                        clipped = part.message.message if kind == "train" else part.message
                        require_clipped(part, clipped, clip)
                    parts.append(NodePart(index, at, part, answers[index]))
                    continue
                except InputError as error:
                    problem = f"its answer is refused: {error}"
            many = f"{len(at)} client{'s' * (len(at) != 1)}"
            name = server.name(index)
            self._warn(f"round {t + 1}: node {name!r}: {problem}; without its {many}")
        if secret is None or not parts:
            return parts, None
        try:
            total = secret.total(
                {part.node: part.answered for part in parts},
                summed([part.part.counted for part in parts]),
            )
            if possible_sum is not None:
                with unknown_liar():
                    require_possible(possible_sum, total, [part.part for part in parts])
            counted = [
                part._replace(answered=secret.counted(part.node, part.answered)) for part in parts
            ]
            return counted, total
        except InputError as error:
            self._give_up(t, error)
            return [], None

    def _secret_sum(self, of: Summed, like: Any) -> SecureSum | None:
        """A secure sum; None if the coordinator sees each node's part.

        Args:
            of: The requests whose answers are summed.
            like: What is summed, in shape, leaves (points, ...).
        """
        if self.setup.secure is None:
            return None
        return SecureSum(self.server, self.setup, of, like, self._warn)

    def _prepared(
        self,
        t: int,
        secret: SecureSum,
        requests: Mapping[int, Request],
        arrays: Sequence[Array],
    ) -> Mapping[int, Request]:
        """The requests of a secure sum to the nodes that are left; empty if it is given up."""
        try:
            return secret.prepared(requests, arrays)
        except InputError as error:
            self._give_up(t, error)
            return {}

    def _give_up(self, t: int, error: InputError) -> None:
        """Log that a secure sum is given up."""
        self._warn(f"round {t + 1}: {error}: without this round's updates")

    def _work(self, jobs: Jobs) -> Work:
        """Some jobs as a request has them."""
        names = self.server.protocol.federation.names
        return Work(
            names=[names[k] for k in jobs.client.tolist()],
            client=jobs.client.tolist(),
            rows=jobs.size.tolist(),
            steps=jobs.steps.tolist(),
            weight=jobs.weight.tolist(),
            gamma=jobs.gamma.tolist(),
            relative_size=jobs.relative_size.tolist(),
            state=self.used[jobs.client].tolist(),
            kept=np.concatenate([saved[jobs.client] for saved in self.saved], axis=1).tolist(),
        )

    def _has_lost(self, index: int, clients: NDArray[np.int64]) -> bool:
        """Whether a node says that it has lost client state, of clients that have some."""
        stateful = self.method.algorithm.client.state is not None
        lost = self.server.nodes[index] in self.server.conversation.lost
        return stateful and lost and bool((self.used[clients] != NEW).any())

    def _traffic(self, began: float, jobs: Jobs, result: Combined) -> dict[str, Any]:
        """What a round cost, by the clients whose updates count; privacy hides who they are."""
        names, clients = self.server.protocol.federation.names, {}
        for node in [] if self.private else result.parts:
            for j in node.at.tolist():
                if result.counts[j].any():
                    clients[names[int(jobs.client[j])]] = {
                        "node": self.server.name(node.node),
                        "rounds": 1,
                        "steps": int(result.steps[j].max()),
                        "seconds": node.answered.head.seconds,
                        "bytes_down": node.answered.bytes_down // len(node.at),
                        "bytes_up": node.answered.bytes_up // len(node.at),
                    }
        answered = [(each.node, each.answered) for each in result.parts]
        return self._cost(began, answered, clients)

    def _cost(
        self,
        began: float,
        answers: Sequence[tuple[int, Answered]],
        clients: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """What some answers of nodes cost, which were awaited since `began`."""
        return {
            "seconds": time.perf_counter() - began,
            "bytes_down": sum(each.bytes_down for _, each in answers),
            "bytes_up": sum(each.bytes_up for _, each in answers),
            "nodes": frozenset(self.server.name(index) for index, _ in answers),
            "network": dict(clients),
        }

    def evaluate(self, state: State) -> Measuring:
        """Measure the evaluated model of a state on all nodes.

        Without a barrier it is not awaited yet, since a node may have to train before it.
        """
        began, server = time.perf_counter(), self.server
        arrays = [np.asarray(a) for a in jax.tree.leaves(self.remote.evaluated(state))]
        nodes = range(len(server.nodes) if server.deployment.joined.reports else 0)
        requests: Mapping[int, Request] = {
            index: server.request("evaluate", self.setup, round=self.done) for index in nodes
        }
        shapes, allowed = self.remote.shapes, self.remote.allowed
        secret = self._secret_sum("evaluate", summed_arrays(shapes)) if requests else None
        if secret is not None:
            try:
                requests, allowed = secret.prepared(requests, arrays), secret.allowed
            except InputError as error:
                requests = {}
                self._not_measured(error)
        asked = server.begin(requests, arrays, dict.fromkeys(requests, allowed))
        measuring = cache(partial(self._measured, nodes, asked, began, secret))
        if self.training is None:
            measuring()
        return measuring

    def _measured(
        self,
        nodes: Sequence[int],
        asked: Mapping[int, str],
        began: float,
        secret: SecureSum | None,
    ) -> tuple[Measures, Done]:
        """Wait for an evaluation.

        Nothing is measured if nodes keep their measures to themselves, or a secure sum is given up.

        Raises:
            InputError: If no node answers, without secure sums.
        """
        server, remote, answers = self.server, self.remote, self.server.answers(asked)
        nodes_sums = []
        for index in nodes:
            if secret is not None and index not in {*asked, *secret.problems}:
                continue  # the sum was given up before
            problem = server.problem(index)
            if secret is not None:
                problem = secret.problems.get(index, problem)
            if index in answers:
                try:
                    if secret is None:
                        declared = remote.declared[index]
                        arrays = answers[index].arrays
                        nodes_sums.append(sums_of(arrays, remote.shapes, declared))
                    else:
                        secret.require_masked(answers[index])
                    continue
                except InputError as error:
                    problem = f"its answer is refused: {error}"
                    del answers[index]
            without = "; evaluated without it" if secret is None else ""
            self._warn(f"node {server.name(index)!r}: {problem}{without}", of_update=False)
        if secret is not None and asked:
            try:
                nodes_sums, answers = self._sum_of_measures(secret, answers)
            except InputError as error:
                self._not_measured(error)
        require(
            answers or secret is not None or not asked,
            f"{self.method.name}, seed {self.seed}: no node answered an evaluation; resume the run "
            "when nodes are connected",
        )
        protocol = server.protocol
        validated = protocol.federation.validation is not None
        measures = measures_of(protocol.model, nodes_sums, remote.shapes, validated=validated)
        return measures, Done(network=self._cost(began, list(answers.items())))

    def _sum_of_measures(
        self, secret: SecureSum, answers: Mapping[int, Answered]
    ) -> tuple[list[NodeSums], dict[int, Answered]]:
        """The sum over nodes as that of one node, and what each answer cost with its stages.

        Raises:
            InputError: If there is none.
        """
        remote = self.remote
        total = secret.total(answers, np.full(remote.shapes.points, len(answers), np.float32))
        shown = {
            name: total[name]
            for measure, arrays in summable(remote.shapes).items()
            for name in arrays
            if measure in secret.measures
        }
        declared = declared_together([remote.declared[index] for index in answers])
        with unknown_liar():
            sums = sums_of(shown, remote.shapes, declared)
        counted = {index: secret.counted(index, each) for index, each in answers.items()}
        return [sums], counted

    def measure_own(self, now: RunState) -> None:
        """Nodes do not report measures of single clients."""
        del now

    def _not_measured(self, error: InputError) -> None:
        """Log that a secure sum of measures is given up."""
        self._warn(f"evaluation after round {self.done}: {error}: not measured", of_update=False)

    def _warn(self, line: str, *, of_update: bool = True) -> None:
        """Log a line, and keep it if it says why an update is not used."""
        if of_update:
            self.server.conversation.unused[self.method.algorithm.name, self.seed] = line
        logging.getLogger(__name__).warning("%s, seed %d: %s", self.method.name, self.seed, line)

    def contents(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """The round of each client's last used update, now and at the last checkpoint.

        Its node stores its state after both.
        """
        before, used = self.saved[1], self.used.copy()
        yield "used", used
        yield "before", before
        self.saved = [before, used]

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore what `contents` returned.

        Raises:
            Damaged: If it is not such as that writes.
        """
        rounds = dict(saved)
        for name in ("used", "before"):
            array, like = rounds.get(name, np.zeros(0)), self.used
            if array.dtype != like.dtype or array.shape != like.shape or (array < NEW).any():
                raise Damaged(f"its array {name!r} is not as it should be")
        self.used = rounds["used"]
        self.saved = [rounds["before"], self.used.copy()]

    def close(self) -> None:
        """Nothing is held."""


def _faulty_rows(
    t: int, clients: NDArray[np.int64], faulty: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The faulty updates of a round, rows of (round, point, client)."""
    jobs, points = np.nonzero(faulty)
    return np.stack([np.full(len(jobs), t), points, clients[jobs]], axis=1)
