"""Rounds on nodes: the requests of a round, and the state after it.

With privacy of clients, nodes clip what their clients send, and the coordinator adds noise from the
system's entropy, also in a round without answers. Cohorts and stragglers come from the system's
entropy too, since whoever knows the seed would know who takes part. Cyclic cohorts need not be
secret and follow the seed, since a resumed run must keep a client's rounds apart. With privacy of
examples nodes do it all, and the coordinator counts.
"""

import logging
import secrets
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedprox.algorithms.base import HParams, State
from fedprox.deployment.arrivals import training_of
from fedprox.deployment.combine import (
    Combined,
    NodeMeasures,
    NodePart,
    arrays_of,
    check_sums,
    combined,
    declared_together,
    measures_together,
    summable,
    summed,
    sums_of,
)
from fedprox.deployment.conversation import Answered
from fedprox.deployment.coordinator import Coordinator, RemoteMethod
from fedprox.deployment.entropy import system_normals
from fedprox.deployment.kept import NEW
from fedprox.deployment.moments import standardize
from fedprox.deployment.node_method import planned_rows, shares_of_first
from fedprox.deployment.noised import noise_of_operator
from fedprox.deployment.payload import (
    Possible,
    checked_part,
    part_shapes,
    require_clipped,
    require_possible,
)
from fedprox.deployment.secure_sum import SecureSum, unknown_liar
from fedprox.deployment.wire import Array, NodeWork, Request, Summed
from fedprox.engine.compiled.client_step import round_hparams
from fedprox.engine.compiled.evaluation import Measures
from fedprox.engine.planning.jobs import Jobs
from fedprox.engine.planning.round_work import RoundWork, drawn_works
from fedprox.epsilon import GivenUp
from fedprox.errors import InputError, plural, require, users_level
from fedprox.experiment.resolved import described_by
from fedprox.files.arrays import Damaged
from fedprox.loop.execution import Done, Measuring, RunState, Start, added
from fedprox.loop.following import Callback, Report
from fedprox.loop.train import training
from fedprox.model import Params
from fedprox.parts.privacy.measures import evaluations_of
from fedprox.parts.privacy.setting import delta_warnings
from fedprox.protocol.method import Method
from fedprox.results.run import Run


def run_deployment(
    server: Coordinator, callbacks: Sequence[Callback] = (), **follow: Any
) -> list[Run]:
    """Train the methods of an experiment on the nodes that have joined; `follow` as `training`."""
    protocol = server.protocol
    for line in delta_warnings(protocol.privacy, protocol.federation.train.sizes):
        warnings.warn(line, stacklevel=users_level())
    standardize(server)

    def describe(runs: Sequence[Run] | None) -> None:
        for run in runs or ():
            run.columns = server.columns

    of_columns = Callback(on_start=describe, on_end=describe)
    callbacks, runs = [described_by(server.resolved), of_columns, *callbacks], list[Run]()
    for _ in training(server.methods, Nodes(server), runs, callbacks=callbacks, **follow):
        pass
    return runs


def without_updates(runs: Sequence[Run], server: Coordinator) -> list[str]:
    """A line for each run in which no update was ever used, with the last reason."""
    unknown = "no client was drawn, or all were late, or a process before this one said why"
    return [
        f"{run.label}, seed {run.seed}: no update was used in any of its {run.final.round} rounds; "
        f"the last reason: {server.conversation.unused.get((run.method, run.seed), unknown)}"
        for run in runs
        if run.empty_rounds == run.final.round
    ]


class Nodes:
    """The nodes of a network, as what computes rounds."""

    def __init__(self, server: Coordinator) -> None:
        self.server, self.mesh = server, server.mesh

    @contextmanager
    def execution(
        self, method: Method, start: Start, report: Report
    ) -> Iterator["RemoteExecution"]:
        """The execution of a method, whose first seed begins at `start`."""
        del report
        if method.protocol.privacy is not None:  # which has one run
            ledger = self.server.ledger
            ledger.begin(start.round)
            self.server.repeated = [range(*rounds) for rounds in ledger.repeated]
            protocol, done = method.protocol, start.round
            known = evaluations_of(protocol.rounds, protocol.evaluation.every, done)
            self.server.measured_before = max(0, ledger.measured - (known if done else 0))
        yield RemoteExecution(self.server, method)


class RemoteExecution(RemoteMethod):
    """The execution of a method on nodes."""

    def begin(self, start: Start) -> "RemoteSeed":
        """Begin the remaining rounds of a seed."""
        return RemoteSeed(self, start)


class RemoteSeed:
    """The rounds of one seed on nodes."""

    measured: Measures | None = None  # nodes measure, and this machine waits for them

    def __init__(self, remote: RemoteMethod, start: Start) -> None:
        self.remote, self.server, self.method = remote, remote.server, remote.method
        self.seed, self.params, self.done = start.seed, start.params, start.round
        self.private, self.repeated = self.method.protocol.hides_clients, self.server.repeated
        self.measured_before = self.server.measured_before
        ledger = self.server.ledger
        self.given_up_before = len(ledger.given_up), len(ledger.unmeasured)
        self.asks = False
        self.setup = self.server.setup(self.method, start.seed)
        # also in a round without answers, which cost privacy; with secure sums nodes add it
        self.adds_noise = self.private and self.setup.secure is None
        # the round of each client's last used update, for each sweep point
        self.used = np.full((len(self.server.owner), len(self.method.points)), NEW, np.int64)
        # at the last two checkpoints, from either of which a run may resume
        self.saved = [self.used.copy(), self.used.copy()]
        protocol, algorithm = self.server.protocol, self.method.algorithm
        secret = self.private and protocol.cohort.sampling != "cyclic"
        drawn_by = secrets.randbits(63) if secret else self.seed
        self.training = training_of(remote, self.setup, self._work)
        if self.training is None:
            solver = self.method.solver
            self.works = drawn_works(protocol, algorithm, solver, drawn_by, start.round)
        else:
            self.works = self.training.works(start.round)

    def given_up(self, rounds: int) -> GivenUp:
        """The rounds up to one that were counted and given up, also before an interruption.

        Whether a round is given up before a node is asked for what its rows give follows from keys
        and connections, which know nothing of the rows.
        """
        (before, unmeasured_before), ledger = self.given_up_before, self.server.ledger
        return GivenUp(
            [t for i, t in enumerate(ledger.given_up) if i < before or t < rounds],
            sum(i < unmeasured_before or t <= rounds for i, t in enumerate(ledger.unmeasured)),
        )

    def next(self, now: RunState) -> RunState:
        """Compute one round on the nodes."""
        self.asks = False
        after = self._next(now)
        private = self.method.protocol.privacy is not None
        if private and self.setup.secure is not None and not self.asks:
            self.server.ledger.give_up(now.round)
        return after

    def _next(self, now: RunState) -> RunState:
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
            self.server.ledger.release()
        if exchange is not None and (len(jobs.client) or self.adds_noise):
            gradient, valid, network = self._mean_gradient(t, call, state, seconds)
            if valid.any():
                noisy = self._with_noise(hparams, "gradients")
                state = jax.vmap(exchange)(state, gradient, noisy)
            else:
                jobs = jobs.take(np.zeros(0, np.int64))
        if not len(jobs.client) and not self.adds_noise:
            work = call._replace(dropped=call.clients, jobs=jobs)
            nothing = Done(1, empty=1, steps=(0,), network=network, work=work)
            return now._replace(round=t + 1, since=now.since + nothing)
        began = time.perf_counter()
        if self.training is not None:
            parts = self.training.parts_of(jobs)
            result = combined(self.method, jobs, parts, self.remote.messages["train"])
        else:
            result = self._train(t, jobs, state, now.hparams, seconds)
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
            noisy = self._with_noise(hparams, "train")
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

    def _with_noise(self, hparams: HParams, kind: Summed) -> HParams:
        """The hyperparameters, with privacy also noise for the mean of such messages."""
        if not self.private:
            return hparams
        like = self.remote.messages[kind]
        if self.adds_noise:
            return {**hparams, "noise": system_normals(like)}
        # nodes have added it
        return {**hparams, "noise": jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), like)}

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
    ) -> Combined:
        """The results of clients' training in a round."""
        first = bool(self.remote.sent.initial and (self.used[jobs.client] == NEW).any())
        arrays = self.remote.arrays(state, hparams, self.params if first else None)
        possible = self.remote.possible(t, hparams)
        return self._asked(t, "train", jobs, arrays, state, seconds, possible, initial=first)

    def _mean_gradient(
        self, t: int, call: RoundWork, state: State, seconds: dict[int, float]
    ) -> tuple[Params, NDArray[np.bool_], dict[str, Any]]:
        """g^t over a first cohort, at which sweep points it is valid, and what it cost.

        The time that nodes take is subtracted from `seconds`, by node.
        """
        began, jobs = time.perf_counter(), call.exchange
        params = jax.vmap(self.method.algorithm.server.params)(state)
        arrays, own = [np.asarray(leaf) for leaf in jax.tree.leaves(params)], {}
        if seconds:
            rows = planned_rows(self.method.algorithm, self.method.solver, call.jobs)
            shares = shares_of_first(jobs, rows, call.jobs, self.server.owner)
            own = {node: share * seconds[node] for node, share in enumerate(shares.tolist())}
        result = self._asked(t, "gradients", jobs, arrays, state, own)
        took = {part.node: part.answered.head.seconds for part in result.parts}
        for node, most in own.items():
            # a longer answer was compiled meanwhile
            seconds[node] -= took[node] if 0 <= took.get(node, most) < most else most
        cost = self._cost(began, {each.node: each.answered for each in result.parts})
        valid = np.full(self.used.shape[1], self.adds_noise)
        return result.mean, valid | result.counts.any(axis=0), cost

    def _asked(
        self,
        t: int,
        kind: Literal["train", "gradients"],
        jobs: Jobs,
        arrays: Sequence[Array],
        state: State,
        seconds: Mapping[int, float],
        possible: Possible | None = None,
        *,
        initial: bool = False,
    ) -> Combined:
        """Ask nodes for their parts of some jobs, check what they answer, and combine it.

        It raises `InputError` if a node has lost client state, without which the run cannot go on.
        """
        server, remote, method = self.server, self.remote, self.method
        message, coded, points = remote.messages[kind], remote.coded, len(method.points)
        owner = server.owner[jobs.client]
        places = {index: np.flatnonzero(owner == index) for index in np.unique(owner).tolist()}
        participation = float(jobs.participation.sum())
        if self.private:  # who takes part is secret, and so is how many
            participation = self.setup.clients_per_round / self.setup.clients
        requests = {
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
        secret = self._secret_sum(kind, message)
        # under masks no node's message is among its arrays, and it is the sum that is checked
        sent = {
            index: None if secret else coded.shapes(len(at)) if coded else message
            for index, at in places.items()
        }

        def read(index: int, answered: Answered) -> NodePart:
            at, own = places[index], jobs.take(places[index])
            if secret is not None:
                secret.require_masked(answered)
            # noise of the node's own makes messages that no client can send
            noised = server.joined.descriptions[index].own is not None
            one = possible if secret is None and not noised else None
            part = checked_part(answered.arrays, own, sent[index], points, one)
            if secret is not None:
                require(
                    part.counts_at_each_point, "no update counts, and its message is in the sum"
                )
            elif coded is not None:
                part = coded.summed(part, own, self.setup.seed, t)
            if self.private and secret is None and not noised:
                clipped = part.message.message if kind == "train" else part.message
                require_clipped(part, clipped, np.asarray(state.clip))
            return NodePart(index, at, part, answered)

        try:
            if secret is not None:
                requests = secret.prepared(requests, arrays)
        except InputError as error:
            self._warn(f"round {t + 1}: {error}: without this round's updates")
            requests = {}
        self.asks |= bool(requests)
        beside = {} if secret is None else secret.allowed
        allowed = {
            index: part_shapes(len(places[index]), sent[index], points) | beside
            for index in requests
        }
        parts, failed = server.gather(server.begin(requests, arrays, allowed), read)
        if secret is not None:
            failed |= secret.problems
        for index, (why, _, lost) in sorted(failed.items()):
            clients, line = jobs.client[places[index]], f"node {server.name(index)!r}: {why}"
            stateful = kind == "train" and method.algorithm.client.state is not None
            # the rounds after this one would lack it too
            require(not (lost and stateful and (self.used[clients] != NEW).any()), line)
            many = plural(len(clients), "client")
            self._warn(f"round {t + 1}: {line}; without its {many}")
        found, total = list(parts.values()), None
        if secret is not None and found:
            try:
                if any(server.joined.descriptions[each.node].own for each in found):
                    possible = None
                found, total = _unmasked(secret, found, possible)
            except InputError as error:
                self._warn(f"round {t + 1}: {error}: without this round's updates")
                found = []
        size = optax.tree.norm if kind == "gradients" else None
        return combined(method, jobs, found, message, size, total)

    def _secret_sum(self, of: Summed, like: Any) -> SecureSum | None:
        """A secure sum; None if the coordinator sees each node's part."""
        if self.setup.secure is None:
            return None
        return SecureSum(self.server, self.setup, of, like, self._warn)

    def _work(self, jobs: Jobs) -> NodeWork:
        """Some jobs as a request has them."""
        names = self.server.protocol.federation.names
        return NodeWork(
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

    def _traffic(self, began: float, jobs: Jobs, result: Combined) -> dict[str, Any]:
        """The cost of a round, by the clients whose updates count; privacy hides who they are."""
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
        answered = {each.node: each.answered for each in result.parts}
        return self._cost(began, answered, clients)

    def _cost(
        self,
        began: float,
        answers: Mapping[int, Answered],
        clients: Mapping[str, Any] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """The cost of some answers of nodes, which were awaited since `began`."""
        return {
            "seconds": time.perf_counter() - began,
            "bytes_down": sum(each.bytes_down for each in answers.values()),
            "bytes_up": sum(each.bytes_up for each in answers.values()),
            "nodes": frozenset(map(self.server.name, answers)),
            "network": dict(clients),
        }

    def evaluate(self, state: State) -> Measuring:
        """Measure the evaluated model of a state on all nodes.

        Without a barrier it is not awaited yet, since a node may have to train before it.
        """
        began, server = time.perf_counter(), self.server
        arrays = [np.asarray(a) for a in jax.tree.leaves(self.remote.evaluated(state))]
        noised = self.setup.measures is not None
        nodes = range(len(server.nodes) if server.joined.reports or noised else 0)
        if noised:
            server.ledger.measure()
        requests: Mapping[int, Request] = {
            index: server.request("evaluate", self.setup, round=self.done) for index in nodes
        }
        allowed = arrays_of(self.remote.shapes)
        secret = self._secret_sum("evaluate", summable(self.remote.shapes))
        if secret is not None and requests:
            try:
                requests, allowed = secret.prepared(requests, arrays), secret.allowed
            except InputError as error:
                self._not_measured(error)
                requests = {}
                if noised:
                    server.ledger.leave_unmeasured(self.done)
        asked = server.begin(requests, arrays, dict.fromkeys(requests, allowed))
        measuring = cache(partial(self._measured, asked, began, secret))
        if self.training is None:
            measuring()
        return measuring

    def _measured(
        self, asked: Mapping[int, str], began: float, secret: SecureSum | None
    ) -> tuple[Measures, Done]:
        """Wait for an evaluation.

        Nothing is measured if nodes keep their measures to themselves, or a secure sum is given up.
        """
        server, remote = self.server, self.remote
        nodes_sums = list[tuple[float, NodeMeasures]]()

        def read(index: int, answered: Answered) -> Answered:
            if secret is not None:
                secret.require_masked(answered)
            else:
                declared = remote.declared[index]
                sums = sums_of(answered.arrays, remote.shapes, declared)
                nodes_sums.append((declared.share, sums))
            return answered

        answers, failed = server.gather(asked, read)
        if secret is not None:
            failed |= secret.problems
        without = "; evaluated without it" if secret is None else ""
        for index, each in sorted(failed.items()):
            line = f"node {server.name(index)!r}: {each.why}{without}"
            self._warn(line, of_update=False)
        if secret is not None and asked:
            try:
                nodes_sums = [(1.0, self._sum_of_measures(secret, answers))]
                answers = {index: secret.counted(index, each) for index, each in answers.items()}
            except InputError as error:
                self._not_measured(error)
        require(
            answers or secret is not None or not asked,
            f"{self.method.name}, seed {self.seed}: no node answered an evaluation; resume the run "
            "when nodes are connected",
        )
        protocol, noised = server.protocol, self.setup.measures
        if noised is not None and self.private and secret is None:  # else nodes add it
            reported = {name: each for _, sums in nodes_sums for name, each in sums.items()}
            nodes_sums += noise_of_operator(noised, self.setup.clients, reported)
        validated = protocol.federation.validation is not None
        measures = measures_together(protocol.model, nodes_sums, remote.shapes, validated=validated)
        return measures, Done(network=self._cost(began, answers))

    def _sum_of_measures(self, secret: SecureSum, answers: Mapping[int, Answered]) -> NodeMeasures:
        """The sum over nodes, as that of one node."""
        remote = self.remote
        total = secret.total(answers, np.full(len(self.method.points), len(answers), np.float32))
        shown = {measure: total[measure] for measure in total if measure in secret.measures}
        declared = declared_together([remote.declared[index] for index in answers])
        with unknown_liar():
            check_sums(shown, declared)
        return shown

    def measure_own(self, now: RunState) -> dict[str, list[float]]:
        """Nodes do not report measures of single clients."""
        del now
        return {}

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
        """Restore what `contents` returned."""
        rounds = dict(saved)
        for name in ("used", "before"):
            array, like = rounds.get(name, np.zeros(0)), self.used
            if array.dtype != like.dtype or array.shape != like.shape or (array < NEW).any():
                raise Damaged(f"its array {name!r} is not as it should be")
        self.used = rounds["used"]
        self.saved = [rounds["before"], self.used.copy()]

    def close(self) -> None:
        """Nothing is held."""


def _unmasked(
    secret: SecureSum, nodes: Sequence[NodePart], possible: Possible | None
) -> tuple[list[NodePart], Any]:
    """Some parts, whose answers' bytes include those of the sum's stages, and their sum."""
    parts = [each.part for each in nodes]
    counted = summed([part.counted for part in parts])
    total = secret.total({each.node: each.answered for each in nodes}, counted)
    if possible is not None and not secret.fixed.deviation:
        with unknown_liar():
            require_possible(possible, total, parts)
    return [
        each._replace(answered=secret.counted(each.node, each.answered)) for each in nodes
    ], total


def _faulty_rows(
    t: int, clients: NDArray[np.int64], faulty: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The faulty updates of a round, rows of (round, point, client)."""
    jobs, points = np.nonzero(faulty)
    return np.stack([np.full(len(jobs), t), points, clients[jobs]], axis=1)
