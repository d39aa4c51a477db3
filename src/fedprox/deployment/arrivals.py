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
from numpy.typing import NDArray

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
from fedprox.model import Variables
from fedprox.parts.asynchronous import Asynchronous, Events, from_now, server_steps
from fedprox.streams import Purpose, generator

REST = 20.0
"""Seconds in which a node whose client failed is not asked again, unless the server steps."""

Started = tuple[int, int]
"""A client, and the step of the server from which it started."""


class Training:
    """The training of single clients, from the server's states at several steps.

    By the real clock it is the `AtWork` of nodes: a client is drawn among those of the connected
    nodes with the fewest open requests.

    Attributes:
        current: The state of the run after the last step, set by `at`.
        open: The requests without an answer.
        parts: The answers to the other requests, until they are used; empty for one that cannot be.
        sent: The last step from which clients started, and the arrays that they were sent.
        rest: Until when a node is not asked again, since the last step.
    """

    current: RunState
    now = float("nan")
    """A record has no time by the real clock."""

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
        self.parts: dict[Started, list[NodePart]] = {}
        self.sent: tuple[int, Digested] = -1, []
        self.clients = len(self.server.owner)
        self.busy = np.zeros(self.clients, bool)
        self.rest: dict[int, float] = {}

    def works(self, first: int) -> Iterator[RoundWork]:
        """The work of the server's steps from one on, as clients arrive.

        With a population, they arrive in the order of their devices' events, which are drawn again
        from the first step on; else as the nodes answer.
        """
        settings, seed = self.settings, self.setup.seed
        method = self.method.protocol, self.method.algorithm, self.method.solver
        most = method[0].cohort.clients_per_round
        if method[0].population is None:
            self.stream, self.step = generator(seed, Purpose.ARRIVALS, first), first
            steps = server_steps(settings, self, most, first)
        else:

            def send(client: int, step: int) -> None:
                if step >= first:
                    self.send(client, step)

            events = Events(method[0].devices(*method[1:], seed), send)
            steps = itertools.islice(server_steps(settings, events, most), first, None)
        return buffered_works(*method, steps, first)

    def at(self, current: RunState) -> None:
        """Go on with the state after a step; what is too old by now is forgotten."""
        self.current = current
        oldest = current.round - self.settings.most_staleness
        self.parts = {key: part for key, part in self.parts.items() if key[1] >= oldest}

    def state(self, step: int) -> State:
        """The method's state at a step, one of the last."""
        count = self.settings.most_staleness + 1
        return jax.tree.map(lambda a: np.asarray(a[:, step % count]), self.current.state.past)

    def send(self, client: int, step: int) -> None:
        """Ask a client to train from the state at a step."""
        if self.sent[0] != step:
            arrays = self.remote.arrays(self.state(step), self.current.hparams)
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

    def read(self, key: Started, ended: Answered | Failed) -> list[NodePart]:
        """A client's part of a step; empty, with a warning, if there is none that can be used."""
        client, step = key
        index, message = int(self.server.owner[client]), self.remote.messages["train"]
        if isinstance(ended, Answered):
            try:
                possible = self.remote.possible(step, self.current.hparams)
                points = len(self.method.points)
                part = checked_part(ended.arrays, self.jobs(client), message, points, possible)
                return [NodePart(index, np.zeros(1, np.int64), part, ended)]
            except InputError as error:
                ended = Failed(f"its answer is refused: {error}")
        name, node = self.server.protocol.federation.names[client], self.server.name(index)
        line = f"client {name}, from step {step + 1}: node {node!r}: {ended.why}"
        unused, seed = self.server.conversation.unused, self.setup.seed
        unused[self.method.algorithm.name, seed] = line
        logging.getLogger(__name__).warning("%s, seed %d: %s", self.method.name, seed, line)
        return []

    def parts_of(self, jobs: Jobs) -> list[NodePart]:
        """The parts of the clients in the buffer, times their weights.

        Who started before the run was interrupted is asked again.
        """
        parts = []
        starts = jobs.started(self.current.round).tolist()
        for i, key in enumerate(zip(jobs.client.tolist(), starts, strict=True)):
            if key not in self.parts and key not in self.open:
                self.send(*key)
            while key not in self.parts:
                self.turn()
            for part in self.parts.pop(key):
                own = self.weighted(part.part, float(jobs.weight[i]), key[1])
                parts.append(part._replace(at=np.array([i]), part=own))
        return parts

    def weighted(self, part: RoundPart, weight: float, step: int) -> RoundPart:
        """A part with its message times a weight."""
        factor, message = np.float32(weight), part.message
        models = self.settings.adds == "models"
        if models or isinstance(message, Variables):
            states = self.state(step), self.current.state.state
            start, now = (jax.tree.map(np.asarray, self.remote.params(each)) for each in states)
            message = from_now(message, start, now, part.counted, models=models)
        return part._replace(
            message=jax.tree.map(lambda m: factor * m, message), counted=factor * part.counted
        )

    def start(self, most: int, step: int) -> int:
        """Start clients at a step, at most so many, and return their number."""
        if step != self.step:
            self.step, self.rest = step, {}
        for started in range(most):
            free = self.startable()
            if not len(free):
                return started
            client = int(self.stream.choice(free))
            self.busy[client] = True
            self.send(client, step)
        return most

    def startable(self) -> NDArray[np.int64]:
        """The clients of which one may start next."""
        online, now = set(self.server.conversation.network.nodes()), time.monotonic()
        free = np.flatnonzero(~self.busy)
        owner = self.server.owner[free]
        load = Counter(int(self.server.owner[client]) for client, _ in self.open)
        loads = {
            index: load[index]
            for index in np.unique(owner).tolist()
            if self.server.nodes[index] in online and self.rest.get(index, 0.0) <= now
        }
        least = min(loads.values(), default=0)
        return free[np.isin(owner, [index for index, each in loads.items() if each == least])]

    def next(self, *, full: bool) -> Iterator[tuple[int, int, bool]]:
        """The clients whose requests end next, as `AtWork` says."""
        del full
        if not self.open:
            end = time.monotonic() + self.server.conversation.patience
            while not len(self.startable()):
                require(
                    time.monotonic() < end,
                    f"{self.method.name}: no node trains; resume the run when nodes are connected",
                )
                time.sleep(0.1)
        for client, step in self.turn() if self.open else ():
            arrives = bool(self.parts[client, step])
            if not arrives:
                self.rest[int(self.server.owner[client])] = time.monotonic() + REST
            yield client, step, arrives

    def free(self, clients: list[int]) -> None:
        """Let clients be drawn again."""
        self.busy[clients] = False


def training_of(
    remote: RemoteMethod, setup: Setup, work_of: Callable[[Jobs], NodeWork]
) -> Training | None:
    """The training of single clients of a method; None if its rounds have a barrier."""
    settings = remote.method.protocol.asynchronous
    return None if settings is None else Training(remote, setup, work_of, settings)
