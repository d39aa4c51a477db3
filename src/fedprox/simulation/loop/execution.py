"""What the loop and its two engines tell each other.

`local.py` computes rounds on this machine's devices, `fedprox.deployment` on those of a network's
nodes.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import HParams, State
from fedprox.model import Params
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.config.method import Method
from fedprox.simulation.loop.own_models import OwnMeasures
from fedprox.simulation.loop.progress import Report
from fedprox.simulation.planning.batch_plan import Capacity
from fedprox.simulation.planning.round_work import RoundWork

Faulty = Callable[[], NDArray[np.int64]]
"""Waits for a call of the rounds' program, and returns its faulty updates, rows of (round, point,
client)."""


class ClientTraffic(NamedTuple):
    """What a client did in a round of a deployment.

    Attributes:
        node: Name of its node.
        steps: Mini-batch steps that it took.
        seconds: Seconds in which its node computed the round.
        bytes_down: Its part of the bytes that its node received, divided equally among the node's
            clients of the round.
        bytes_up: Its part of the bytes that its node sent.
    """

    node: str
    steps: int
    seconds: float
    bytes_down: int
    bytes_up: int


class Traffic(NamedTuple):
    """What a round or an evaluation cost on a network.

    Attributes:
        seconds: Seconds from the first request to the last answer.
        bytes_down: Bytes sent to nodes.
        bytes_up: Bytes received from nodes.
        nodes: Names of the nodes that answered.
        clients: The clients whose updates were used, by name.
    """

    seconds: float
    bytes_down: int
    bytes_up: int
    nodes: frozenset[str]
    clients: Mapping[str, ClientTraffic] = MappingProxyType({})


class Trained(NamedTuple):
    """Jobs of some rounds, or sums over jobs.

    Attributes:
        client: Index of each job's client, int64 (jobs,).
        rounds: Rounds that the job adds to the client's rounds, int64 (jobs,).
        steps: Mini-batch steps, an array of shape (jobs,), or (slots, points) with at least as many
            slots as jobs.
    """

    client: NDArray[np.int64]
    rounds: NDArray[np.int64]
    steps: Any


class Tally(NamedTuple):
    """What some rounds did; their numbers may not be known yet.

    Attributes:
        steps: Steps of all clients, a number or an array (points,) for each call.
        empty: Number of rounds in which no client took part.
        faulty: Faulty updates, one item for each call; empty without screening.
        traffic: What rounds and evaluations cost on a network; empty without one.
        trained: The jobs, one item for each call; empty without client records.
        messages: Number of messages of clients.
    """

    steps: tuple[Any, ...] = ()
    empty: int = 0
    faulty: tuple[Faulty, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    trained: tuple[Trained, ...] = ()
    messages: int = 0

    def plus(self, more: "Tally") -> "Tally":
        """What these rounds and others did."""
        return Tally(*map(operator.add, self, more))

    def steps_at(self, points: int) -> NDArray[np.int64]:
        """Wait for the steps, (points,)."""
        return sum((np.broadcast_to(n, points) for n in self.steps), np.zeros(points, np.int64))

    def all_faulty(self) -> NDArray[np.int64]:
        """Wait for the faulty updates, rows of (round, point, client)."""
        none = np.zeros((0, 3), np.int64)
        return np.concatenate([none, *(wait() for wait in self.faulty)])

    def participation(self, clients: int, points: int) -> "Participation":
        """Wait for the steps of each client of the federation."""
        return participation(self.trained, clients, points)


def faulty_updates(
    first: int, work: Sequence[RoundWork], slots: int, faulty: Any
) -> NDArray[np.int64]:
    """The faulty updates of some rounds, rows of (round, point, client).

    Args:
        first: The first of the rounds.
        work: The work of each round.
        slots: Slots of a round's jobs, which those of the first cohort follow.
        faulty: The flags from `After.faulty`.
    """
    flags, updates = np.asarray(faulty), [np.zeros((0, 3), np.int64)]
    for r, each in enumerate(work):
        for jobs, begin in ((each.jobs, 0), (each.exchange, slots)):
            points, at = np.nonzero(flags[:, r, begin : begin + len(jobs.client)])
            rounds = np.full(len(at), first + r)
            updates.append(np.stack([rounds, points, jobs.client[at]], axis=1))
    return np.concatenate(updates)


class Participation(NamedTuple):
    """What each client of the federation did in some rounds.

    Attributes:
        rounds: Rounds in which the client trained, int64 (clients,).
        steps: Its mini-batch steps in them, int64 (clients, points).
    """

    rounds: NDArray[np.int64]
    steps: NDArray[np.int64]

    def again(self) -> Trained:
        """These sums, to be added to those of later rounds."""
        return Trained(np.arange(len(self.rounds)), self.rounds, self.steps)


def trained(work: Sequence[RoundWork], steps: Any) -> Trained:
    """The jobs of the rounds of one call.

    Args:
        work: The work of each round.
        steps: Steps of the jobs (slots, points), if there is one round whose clients do not take
            the planned steps; else None.
    """
    assert steps is None or len(work) == 1
    jobs = [each.jobs for each in work]
    first = [np.zeros(len(each.client), np.int64) for each in jobs]
    for each, is_first in zip(jobs, first, strict=True):
        # a client that was drawn twice has two jobs in one round
        is_first[np.unique(each.client, return_index=True)[1]] = 1
    return Trained(
        np.concatenate([each.client for each in jobs]),
        np.concatenate(first),
        np.concatenate([each.steps for each in jobs]) if steps is None else steps,
    )


def participation(parts: Sequence[Trained], clients: int, points: int) -> Participation:
    """The sums over some jobs, once their steps are known.

    >>> jobs = Trained(np.array([2, 0, 2]), np.array([1, 1, 0]), np.array([5, 1, 2]))
    >>> nobody = Trained(*np.zeros((3, 0), np.int64))
    >>> found = participation([jobs, nobody, jobs], clients=3, points=1)
    >>> found.rounds.tolist(), found.steps[:, 0].tolist()
    ([2, 0, 2], [2, 0, 14])
    """
    rounds, steps = np.zeros(clients, np.int64), np.zeros((clients, points), np.int64)
    for part in parts:
        taken = np.asarray(part.steps)[: len(part.client)]
        np.add.at(rounds, part.client, part.rounds)
        np.add.at(steps, part.client, taken if taken.ndim == 2 else taken[:, None])
    return Participation(rounds, steps)


Measuring = Callable[[], tuple[Measures, Tally]]
"""Waits for an evaluation, and returns the measures and what they cost on a network; each call
returns the same."""


class LastRound(NamedTuple):
    """The last round of a call.

    Attributes:
        work: Its work, as it was done.
        gamma: gamma_k of its jobs (slots, points); None if not measured.
        steps: Steps of its jobs (slots, points); None if clients take the planned steps.
    """

    work: RoundWork
    gamma: jax.Array | None = None
    steps: Any = None


class Computed(NamedTuple):
    """The results of one call of rounds.

    Attributes:
        round: Number of rounds done.
        state: The server's state.
        last: The last round.
        tally: What the rounds did.
        capacity: Capacity of the call; None if shapes are not fixed.
    """

    round: int
    state: State
    last: LastRound
    tally: Tally
    capacity: Capacity | None = None


class RunState(NamedTuple):
    """The state of a seed run, without client state and records.

    Attributes:
        round: Number of rounds done.
        state: The server's state.
        hparams: The current hyperparameters of all sweep points, which a method may adapt.
        memory: State of the method's adaptation of hyperparameters; None without one.
        since: What rounds did since the last record.
        capacity: Capacity of the last call; None before the first call.
        best: The best models so far, leaves (points, ...); None if only the last model is kept. An
            evaluation counts only if its round is a multiple of `Evaluation.every`, since a longer
            run has no other.
    """

    round: int
    state: State
    hparams: Mapping[str, Any]
    memory: Any = None
    since: Tally = Tally()
    capacity: Capacity | None = None
    best: Params | None = None


class SeedExecution(Protocol):
    """Computes the rounds of one seed.

    Attributes:
        repeated: Rounds with privacy that were released before an interruption and are repeated.
        measured: The last measures that this machine's devices compute, perhaps still; None without
            any.
    """

    repeated: Sequence[range]
    measured: Measures | None

    def next(self, now: RunState) -> Computed:
        """Compute the next rounds in one call. It may reuse the memory of `now.state`."""

    def evaluate(self, state: State) -> Measuring:
        """Begin to measure the evaluated model of a state."""

    def measure_own(self, now: RunState) -> OwnMeasures | None:
        """Measure the clients' own models; None without any."""

    def contents(self) -> Iterator[tuple[str, NDArray[Any]]] | None:
        """Client state for a checkpoint, see `Store.contents`; None without client state."""

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore what `contents` returned."""

    def close(self) -> None:
        """Free the memory."""


class Start(NamedTuple):
    """Where the remaining rounds of a seed begin.

    Attributes:
        seed: The seed.
        params: Its initial parameters w^0.
        round: The first of the remaining rounds.
        capacity: Capacity of the call before this round; None before the first call.
    """

    seed: int
    params: Params
    round: int
    capacity: Capacity | None


class MethodExecution(Protocol):
    """Computes the rounds of all seeds of a method.

    Attributes:
        hparams: The hyperparameters of all sweep points, arrays (points,).
        compile_seconds: Seconds to compile its programs.
        memory: Peak bytes of the rounds' program on one device.
        lane_idle: Share of lane ticks without a client.
    """

    hparams: HParams
    compile_seconds: float
    memory: int
    lane_idle: float

    def begin(self, start: Start) -> SeedExecution:
        """Begin the remaining rounds of a seed."""


class Engine(Protocol):
    """What computes rounds: this machine's devices, or the nodes of a network.

    Attributes:
        mesh: The devices of the server's state.
    """

    mesh: Mesh

    def execution(
        self, method: Method, start: Start, report: Report
    ) -> AbstractContextManager[MethodExecution]:
        """The execution of a method, whose first seed begins at `start`."""
