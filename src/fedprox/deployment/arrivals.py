"""Clients of nodes that work without a barrier: what each was asked, and what came back.

Each request asks one client to train, from the server's state at one step; several may be open at a
node, which answers one after the other. Nodes see no difference from a round with a barrier.
"""

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

import jax
import numpy as np

from fedprox.algorithms.base import State
from fedprox.deployment.combine import NodePart
from fedprox.deployment.conversation import Answered, Digested, Failed, digested
from fedprox.deployment.coordinator import RemoteMethod
from fedprox.deployment.payload import RoundPart, checked_part, part_shapes
from fedprox.deployment.wire import NodeWork, Setup
from fedprox.engine.planning.jobs import Jobs
from fedprox.engine.planning.round_work import RoundWork, buffered_works, whole_jobs
from fedprox.errors import InputError, require
from fedprox.loop.execution import RunState
from fedprox.parts.asynchronous import Asynchronous, server_steps
from fedprox.parts.part import beside
from fedprox.streams import Purpose, generator

REST = 20.0
"""Seconds in which a node whose client failed is not asked again, unless the server steps."""

Started = tuple[int, int]
"""A client, and the step of the server from which it started."""


class Training:
    """The training of single clients, from the server's states at several steps.

    Attributes:
        now: The current state of the run, set by `at`.
        open: The requests without an answer.
        parts: What came of the others, until it is used; None if it cannot be.
        sent: The last step from which clients started, and the arrays that they were sent.
    """

    now: RunState

    def __init__(
        self,
        remote: RemoteMethod,
        setup: Setup,
        work_of: Callable[[Jobs], NodeWork],
        settings: Asynchronous,
    ) -> None:
        self.remote, self.setup, self.work_of, self.settings = remote, setup, work_of, settings
        self.server, self.method = remote.server, remote.method
        self.open: dict[Started, str] = {}
        self.parts: dict[Started, NodePart | None] = {}
        self.sent: tuple[int, Digested] | None = None

    def at(self, now: RunState) -> None:
        """Go on with the state after a step; what is too old by now is forgotten."""
        self.now = now
        oldest = now.round - self.settings.most_staleness
        for key in [key for key in self.parts if key[1] < oldest]:
            del self.parts[key]

    def state(self, step: int) -> State:
        """The method's state at a step, one of the last."""
        count = self.settings.most_staleness + 1
        return jax.tree.map(lambda a: np.asarray(a[:, step % count]), self.now.state.past)

    def send(self, client: int, step: int) -> None:
        """Ask a client to train from the state at a step."""
        if self.sent is None or self.sent[0] != step:
            arrays = self.remote.arrays(self.state(step), self.now.hparams)
            self.sent = step, digested(arrays)
        jobs = self.jobs(client)
        request = self.server.request(
            "train",
            self.setup,
            round=step,
            participation=float(jobs.participation.sum()),
            work=self.work_of(jobs),
        )
        allowed = part_shapes(1, self.remote.messages["train"], len(self.method.points))
        node = self.server.nodes[self.server.owner[client]]
        self.server.conversation.begin(node, request, self.sent[1], allowed)
        self.open[client, step] = request.id

    def jobs(self, client: int) -> Jobs:
        """The job of a client that does all its work, with weight 1."""
        clients = np.array([client], np.int64)
        return whole_jobs(self.method.protocol, self.method.algorithm, self.method.solver, clients)

    def turn(self) -> list[Started]:
        """Wait a while for answers, and return whose requests have ended."""
        conversation = self.server.conversation
        conversation.turn()
        over = [key for key, number in self.open.items() if number in conversation.ended]
        for key in over:
            self.parts[key] = self.read(key, conversation.ended.pop(self.open.pop(key)))
        return over

    def read(self, key: Started, ended: Answered | Failed) -> NodePart | None:
        """A client's part of a step; None, with a warning, if there is none that can be used."""
        client, step = key
        index, message = int(self.server.owner[client]), self.remote.messages["train"]
        if isinstance(ended, Answered):
            try:
                possible = self.remote.possible(step, self.now.hparams)
                points = len(self.method.points)
                part = checked_part(ended.arrays, self.jobs(client), message, points, possible)
                return NodePart(index, np.zeros(1, np.int64), part, ended)
            except InputError as error:
                ended = Failed(f"its answer is refused: {error}")
        name, node = self.server.protocol.federation.names[client], self.server.name(index)
        line = f"client {name}, from step {step + 1}: node {node!r}: {ended.why}"
        conversation = self.server.conversation
        conversation.unused[self.method.algorithm.name, self.setup.seed] = line
        logging.getLogger(__name__).warning(
            "%s, seed %d: %s", self.method.name, self.setup.seed, line
        )
        return None

    def parts_of(self, jobs: Jobs) -> list[NodePart]:
        """The parts of the clients in the buffer, times their weights.

        Who started before the run was interrupted is asked again.
        """
        parts = []
        for i, client in enumerate(jobs.client.tolist()):
            key = client, int(jobs.started(self.now.round)[i])
            if key not in self.parts and key not in self.open:
                self.send(*key)
            while key not in self.parts:
                self.turn()
            part = self.parts.pop(key)
            if part is not None:
                own = self.weighted(part.part, float(jobs.weight[i]), key[1])
                parts.append(part._replace(at=np.array([i]), part=own))
        return parts

    def weighted(self, part: RoundPart, weight: float, step: int) -> RoundPart:
        """A part with its message times a weight."""
        message = part.message
        if self.settings.adds == "models":
            start, now = map(self.remote.params, (self.state(step), self.now.state.state))
            message = jax.tree.map(
                lambda m, a, b: m + beside(part.counted, m) * (np.asarray(a) - np.asarray(b)),
                *(message, start, now),
            )
        factor = np.float32(weight)
        return part._replace(
            message=jax.tree.map(lambda m: factor * m, message), counted=factor * part.counted
        )


def works_at_nodes(training: Training, seed: int, first: int) -> Iterator[RoundWork]:
    """The work of the server's steps, as clients arrive.

    With a population, they arrive in the order of their devices' events, which are drawn again from
    the first step on; else as the nodes answer.
    """
    method, settings = training.method, training.settings
    protocol, algorithm, solver = method.protocol, method.algorithm, method.solver
    most = protocol.cohort.clients_per_round
    if protocol.population is None:
        steps = server_steps(settings, NodeClock(training, seed, first), most, first)
    else:

        def send(client: int, step: int) -> None:
            if step >= first:
                training.send(client, step)

        events = protocol.events(algorithm, solver, seed, send)
        steps = itertools.islice(server_steps(settings, events, most), first, None)
    return buffered_works(protocol, algorithm, solver, steps, first)


class NodeClock:
    """The clients at work, by the real clock: `AtWork` of nodes.

    A client is drawn among those of the connected nodes with the fewest open requests.
    """

    def __init__(self, training: Training, seed: int, first: int) -> None:
        self.training, self.server = training, training.server
        self.clients = len(self.server.owner)
        self.busy = np.zeros(self.clients, bool)
        self.stream = generator(seed, Purpose.ARRIVALS, first)
        self.began, self.step = time.monotonic(), first
        self.rest: dict[int, float] = {}

    @property
    def now(self) -> float:
        """Seconds since the run began or was resumed."""
        return time.monotonic() - self.began

    def start(self, most: int, step: int) -> int:
        """Start clients at a step, at most so many, and return their number."""
        if step != self.step:
            self.step, self.rest = step, {}
        started = 0
        while started < most and (client := self.draw()) is not None:
            self.busy[client] = True
            self.training.send(client, step)
            started += 1
        return started

    def draw(self) -> int | None:
        """A client that may start; None if there is none."""
        online, now = set(self.server.conversation.network.nodes()), time.monotonic()
        free = np.flatnonzero(~self.busy)
        load = Counter(int(self.server.owner[client]) for client, _ in self.training.open)
        loads = {
            index: load[index]
            for index in np.unique(self.server.owner[free]).tolist()
            if self.server.nodes[index] in online and self.rest.get(index, 0.0) <= now
        }
        if not loads:
            return None
        least = min(loads.values())
        chosen = [index for index, each in loads.items() if each == least]
        return int(self.stream.choice(free[np.isin(self.server.owner[free], chosen)]))

    def next(self, *, full: bool) -> Iterator[tuple[int, int, bool]]:
        """The clients whose requests end next, as `AtWork` says."""
        del full
        if not self.training.open:
            require(
                self.wait(),
                f"{self.training.method.name}: no node trains; resume the run when nodes are "
                "connected",
            )
            return
        for client, step in self.training.turn():
            arrives = self.training.parts[client, step] is not None
            if not arrives:
                self.rest[int(self.server.owner[client])] = time.monotonic() + REST
            yield client, step, arrives

    def wait(self) -> bool:
        """Wait until a client may start, as long as for a node's answer; whether one may."""
        end = time.monotonic() + self.server.conversation.patience
        while self.draw() is None:
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        return True

    def free(self, clients: list[int]) -> None:
        """Let clients be drawn again."""
        self.busy[clients] = False
