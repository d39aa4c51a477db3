"""The values that the loop and its two engines exchange.

`local.py` computes rounds on this machine's devices, `fedprox.deployment` on those of a network's
nodes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import HParams, State
from fedprox.engine.compiled.evaluation import Measures
from fedprox.engine.planning.batch_plan import Capacity
from fedprox.engine.planning.round_work import RoundWork
from fedprox.epsilon import GivenUp
from fedprox.loop.following import Report
from fedprox.model import Params
from fedprox.protocol.method import Method


@dataclass(frozen=True)
class Done:
    """The work of rounds and evaluations. `done + more` is the work of both.

    Numbers may not be known yet: some are arrays that devices still compute.

    Attributes:
        rounds: Number of rounds.
        empty: Number of rounds in which no client took part.
        messages: Number of messages of clients.
        steps: Steps of all clients, a number or an array (points,) for each call.
        faulty: A function for each call that waits for its faulty updates, rows of (round, point,
            client); empty without screening.
        clients: Client (jobs,), rounds (jobs,) and steps, (jobs,) or (slots, points), that the jobs
            of each call add; empty without client records.
        network: The cost on a network, by the names of `Record`; `nodes` are their names. Empty
            without one.
        work: The last round, as it was done.
        gamma: gamma_k of its jobs (slots, points); None if not measured.
        taken: Steps of its jobs (slots, points); None if clients take the planned steps.
    """

    rounds: int = 0
    empty: int = 0
    messages: int = 0
    steps: tuple[Any, ...] = ()
    faulty: tuple[Callable[[], NDArray[np.int64]], ...] = ()
    clients: tuple[tuple[Any, Any, Any], ...] = ()
    network: Mapping[str, Any] = field(default_factory=dict)
    work: RoundWork = field(default_factory=RoundWork)
    gamma: jax.Array | None = None
    taken: Any = None

    def __add__(self, more: "Done") -> "Done":
        last = more if more.rounds else self
        return Done(
            rounds=self.rounds + more.rounds,
            empty=self.empty + more.empty,
            messages=self.messages + more.messages,
            steps=self.steps + more.steps,
            faulty=self.faulty + more.faulty,
            clients=self.clients + more.clients,
            network=added(self.network, more.network),
            work=last.work,
            gamma=last.gamma,
            taken=last.taken,
        )

    def steps_at(self, points: int) -> NDArray[np.int64]:
        """Wait for the steps, (points,)."""
        return sum((np.broadcast_to(n, points) for n in self.steps), np.zeros(points, np.int64))

    def all_faulty(self) -> NDArray[np.int64]:
        """Wait for the faulty updates, rows of (round, point, client)."""
        none = np.zeros((0, 3), np.int64)
        return np.concatenate([none, *(wait() for wait in self.faulty)])

    def by_client(self, clients: int, points: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Wait for the rounds (clients,) and the steps (clients, points) of each client.

        >>> jobs = np.array([2, 0, 2]), np.array([1, 1, 0]), np.array([5, 1, 2])
        >>> rounds, steps = (Done(clients=(jobs,)) + Done(clients=(jobs,))).by_client(3, 1)
        >>> rounds.tolist(), steps[:, 0].tolist()
        ([2, 0, 2], [2, 0, 14])
        """
        rounds, steps = np.zeros(clients, np.int64), np.zeros((clients, points), np.int64)
        for client, took_part, taken in self.clients:
            each = np.asarray(taken)[: len(client)]
            np.add.at(rounds, client, took_part)
            np.add.at(steps, client, each if each.ndim == 2 else each[:, None])
        return rounds, steps


def added(one: Any, other: Any) -> Any:
    """The sum of two numbers, sets or tables of them; of two names the first.

    >>> added({"a": 1}, {"a": 2, "b": {"node": "x", "steps": 3}})
    {'a': 3, 'b': {'node': 'x', 'steps': 3}}
    """
    if isinstance(one, Mapping):
        both = {**one, **other}
        return {
            key: added(one[key], other[key]) if {key} <= one.keys() & other.keys() else value
            for key, value in both.items()
        }
    if isinstance(one, frozenset):
        return one | other
    return one if isinstance(one, str) else one + other


def faulty_updates(
    first: int, work: Sequence[RoundWork], slots: int, faulty: Any
) -> NDArray[np.int64]:
    """The faulty updates by the flags of `After.flagged`, rows of (round, point, client)."""
    flags, updates = np.asarray(faulty), [np.zeros((0, 3), np.int64)]
    for r, each in enumerate(work):
        for jobs, begin in ((each.jobs, 0), (each.exchange, slots)):
            points, at = np.nonzero(flags[:, r, begin : begin + len(jobs.client)])
            rounds = np.full(len(at), first + r)
            updates.append(np.stack([rounds, points, jobs.client[at]], axis=1))
    return np.concatenate(updates)


def by_job(work: Sequence[RoundWork], steps: Any) -> tuple[Any, Any, Any]:
    """The jobs of some rounds for `Done.clients`; `steps` are those of one round or None."""
    assert steps is None or len(work) == 1
    jobs = [each.jobs for each in work]
    first = [np.zeros(len(each.client), np.int64) for each in jobs]
    for each, is_first in zip(jobs, first, strict=True):
        # a client that was drawn twice has two jobs in one round
        is_first[np.unique(each.client, return_index=True)[1]] = 1
    return (
        np.concatenate([each.client for each in jobs]),
        np.concatenate(first),
        np.concatenate([each.steps for each in jobs]) if steps is None else steps,
    )


Measuring = Callable[[], tuple[Measures, Done]]
"""Waits for an evaluation, and returns the measures and what they cost on a network; each call
returns the same."""


class RunState(NamedTuple):
    """The state of a seed run, without client state and records.

    Attributes:
        round: Number of rounds done.
        state: The server's state.
        hparams: The current hyperparameters of all sweep points, which a method may adapt.
        memory: State of the method's adaptation of hyperparameters; None without one.
        since: The work of rounds since the last record.
        capacity: Capacity of the last call; None before the first call.
        best: The best models so far, leaves (points, ...); None if only the last model is kept. An
            evaluation counts only if its round is a multiple of `Evaluation.every`, since a longer
            run has no other.
    """

    round: int
    state: State
    hparams: Mapping[str, Any]
    memory: Any = None
    since: Done = Done()
    capacity: Capacity | None = None
    best: Params | None = None


class SeedExecution(Protocol):
    """Computes the rounds of one seed.

    Attributes:
        repeated: Rounds that were released before an interruption and are repeated.
        measured_before: Evaluations with noise likewise.
        measured: The last measures that this machine's devices compute, perhaps still; None without
            any.
    """

    repeated: Sequence[range]
    measured_before: int
    measured: Measures | None

    def given_up(self, rounds: int) -> GivenUp:
        """The rounds up to one that were counted as released, and were not."""

    def next(self, now: RunState) -> RunState:
        """The state after the next rounds, which one call computes.

        It may reuse the memory of `now.state`.
        """

    def evaluate(self, state: State) -> Measuring:
        """Begin to measure the evaluated model of a state."""

    def measure_own(self, now: RunState) -> Mapping[str, Sequence[float]]:
        """Measure the clients' own models, if there are any: by name at each sweep point."""

    def contents(self) -> Iterator[tuple[str, NDArray[Any]]] | None:
        """Client state for a checkpoint, see `Store.contents`; None without client state."""

    def restore(self, saved: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Restore what `contents` returned."""

    def close(self) -> None:
        """Free the memory."""


class Start(NamedTuple):
    """Where the remaining rounds of a seed begin.

    Attributes:
        seed: Seed of the run.
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
    """An engine that computes rounds: this machine's devices, or the nodes of a network.

    Attributes:
        mesh: The devices of the server's state.
    """

    mesh: Mesh

    def execution(
        self, method: Method, start: Start, report: Report
    ) -> AbstractContextManager[MethodExecution]:
        """The execution of a method, whose first seed begins at `start`."""
