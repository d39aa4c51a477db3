"""The work of a round: which clients take part, and how much work each of them does."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.engine.planning.batch_plan import PoissonTicks, poisson_width
from fedprox.engine.planning.jobs import Jobs, jobs_of, no_jobs
from fedprox.parts.clock import FIRST_SHARE, Step, Timeline
from fedprox.protocol.cohort import Drawn, weights
from fedprox.protocol.method import Method, kept
from fedprox.protocol.protocol import Protocol
from fedprox.solver import Solver
from fedprox.streams import Purpose
from fedprox.user_code import call


class RoundWork(NamedTuple):
    """One round's cohort and the jobs that a method makes of it.

    Attributes:
        clients: Number of clients in the cohort.
        stragglers: How many of these cannot finish.
        dropped: How many of these do not count, so that they have no job.
        jobs: The jobs of the other clients.
        exchange: Jobs of the first cohort, if the method has a first exchange; they take no steps.
            If this is the round's own, its clients have a job of each kind.
        time: Seconds from the begin of the run to the end of the round; 0 without a clock.
    """

    clients: int = 0
    stragglers: int = 0
    dropped: int = 0
    jobs: Jobs = no_jobs()
    exchange: Jobs = no_jobs()
    time: float = 0.0


def works(
    protocol: Protocol, algorithm: Algorithm, solver: Solver, seed: int, first: int = 0
) -> Iterator[RoundWork]:
    """The work of a method's rounds from `first` on.

    With a clock, when a round begins depends on all rounds before it, so their work is drawn again.
    """
    drawn = drawn_works(protocol, algorithm, solver, seed, first)
    if not protocol.samples_rows:
        yield from drawn
        return
    ticks = PoissonTicks(solver, example_width(protocol, solver), seed)
    for t, work in enumerate(drawn, first):
        yield work._replace(jobs=work.jobs.with_columns(ticks=ticks.count(work.jobs, t)))


def example_width(protocol: Protocol, solver: Solver) -> int:
    """Rows of a tick of steps that sample rows."""
    largest = int(protocol.federation.train.sizes.max())
    return poisson_width(solver, largest, protocol.model.size_bytes)


def drawn_works(
    protocol: Protocol, algorithm: Algorithm, solver: Solver, seed: int, first: int = 0
) -> Iterator[RoundWork]:
    """As `works`, without the ticks of Poisson mini-batches."""
    steps = protocol.steps(algorithm, solver, seed)
    if steps is not None:
        buffered = buffered_works(protocol, algorithm, solver, steps)
        yield from itertools.islice(buffered, first, None)
    timeline = protocol.timeline(algorithm, solver, seed)
    # by a clock, a round begins when the one before ends
    begin = 0 if protocol.has_clock(algorithm) else first
    each = (
        round_work(protocol, algorithm, solver, seed, t, timeline) for t in itertools.count(begin)
    )
    yield from itertools.islice(each, first - begin, None)


def buffered_works(
    protocol: Protocol, algorithm: Algorithm, solver: Solver, steps: Iterator[Step], first: int = 0
) -> Iterator[RoundWork]:
    """The work of the server's steps without a barrier, from step `first` on: its buffer."""
    for t, step in enumerate(steps, first):
        jobs = whole_jobs(protocol, algorithm, solver, step.clients)
        jobs = jobs._replace(weight=jobs.weight * step.factor)
        jobs = jobs.with_columns(**step.columns(t, solver))
        clients = len(step.clients) + step.lost
        yield RoundWork(clients, step.lost, step.lost, jobs, time=step.time)


def whole_jobs(
    protocol: Protocol, algorithm: Algorithm, solver: Solver, clients: NDArray[np.int64]
) -> Jobs:
    """The jobs of clients that do all their work."""
    sizes = protocol.federation.train.sizes[clients]
    steps, gamma = solver.steps_for(sizes), np.zeros(len(sizes))
    return _jobs(protocol, algorithm, Drawn(clients, sizes), steps, gamma)


def round_work(
    protocol: Protocol,
    algorithm: Algorithm,
    solver: Solver,
    seed: int,
    t: int,
    timeline: Timeline,
) -> RoundWork:
    """Draw the cohort and the stragglers of round t, and make the jobs of the round."""
    systems, sizes = protocol.systems, protocol.federation.train.sizes
    candidates, alone = timeline.candidates(), protocol.independent

    def draw(purpose: Purpose) -> Drawn:
        return protocol.cohort.draw(
            *(seed, t, protocol.federation.train.offsets, purpose),
            poisson=alone,
            capacity=protocol.capacity(algorithm),
            candidates=candidates,
        )

    drawn = draw(Purpose.COHORT)
    first, chosen, exchanges = drawn, drawn.clients, algorithm.first.exchange is not None
    if exchanges and algorithm.first.cohort == "another":
        first = draw(Purpose.GRADIENT_COHORT)
    if algorithm.client.round_steps is not None:
        steps = call(f"{algorithm.name}: round_steps", algorithm.client.round_steps, seed, t)
        solver = solver.changed(steps=steps)
    left = math.inf if systems.deadline is None else systems.deadline
    read, before = np.ones(len(first.clients), bool), 0.0
    if exchanges:
        read, before = timeline.first_exchange(first.clients, FIRST_SHARE * left)
        if alone and left < math.inf:  # nobody's time must depend on the others
            before = FIRST_SHARE * left
        left -= before
    in_time = timeline.pace.in_time(chosen, left)
    work = systems.work(seed, t, chosen, sizes[chosen], solver, in_time=in_time, independent=alone)
    if algorithm.pooled:
        jobs = _pooled_jobs(protocol, solver, t, int(work.steps.sum()))
        return RoundWork(len(chosen), int(work.stragglers.sum()), 0, jobs)
    takes_part = ~work.stragglers if algorithm.stragglers == "drop" else work.steps > 0
    takes_part &= read if first is drawn else not len(read) or read.any()
    most = min(protocol.cohort.messages, len(chosen))
    takes_part, seconds = timeline.end(t, chosen, work.steps, takes_part, most, before, left)
    timeline.now += before + seconds
    # whoever arrives late, or never, could not finish either
    stragglers = int((work.stragglers | ~takes_part).sum())
    counted = Drawn(chosen[takes_part], drawn.mass[takes_part])
    if alone:  # the user's function must not see who else takes part
        gamma = np.array([solver.gammas(t, client)[0] for client in counted.clients[:, None]])
    else:
        gamma = solver.gammas(t, counted.clients)
    jobs = _jobs(protocol, algorithm, counted, work.steps[takes_part], gamma)
    exchange = no_jobs()
    if exchanges:
        first = counted if first is drawn else Drawn(first.clients[read], first.mass[read])
        zeros = np.zeros(len(first.clients))
        exchange = _jobs(protocol, algorithm, first, zeros.astype(np.int64), zeros)
    dropped = int((~takes_part).sum())
    return RoundWork(len(chosen), stragglers, dropped, jobs, exchange, timeline.now)


def _pooled_jobs(protocol: Protocol, solver: Solver, t: int, steps: int) -> Jobs:
    """The job of one client with all rows, if it takes steps."""
    if not steps:
        return no_jobs()
    one, clients = np.ones(1, np.int64), len(protocol.federation)
    return Jobs(
        one * clients,
        first_row=one * 0,
        size=one * len(protocol.federation.train),
        steps=one * steps,
        weight=np.ones(1),
        gamma=solver.gammas(t, one * clients),
        participation=np.ones(1),
        relative_size=np.ones(1),
        owner=one * 0,
        device_row=one * 0,
    )


def _jobs(
    protocol: Protocol,
    algorithm: Algorithm,
    drawn: Drawn,
    steps: NDArray[np.int64],
    gamma: NDArray[np.float64],
) -> Jobs:
    """The jobs of clients with these steps and gammas.

    If the method counts each client once, their masses are equal.
    """
    clients = len(protocol.federation)
    if algorithm.average != "rows" and protocol.cohort.sampling != "proportional":
        drawn = Drawn(drawn.clients, np.ones_like(drawn.mass))
    rows = protocol.federation.train.sizes[drawn.clients]
    total = len(protocol.federation.train) if algorithm.average == "rows" else clients
    if protocol.cohort.sampling == "proportional":
        total = protocol.cohort.clients_per_round  # draws
    weight, relative_size = weights(drawn.mass), rows * clients / len(protocol.federation.train)
    if protocol.independent:
        # what other clients have, and how many came, must not show
        weight = np.full(len(rows), 1 / protocol.cohort.clients_per_round)
        relative_size = np.ones(len(rows))
    return jobs_of(
        protocol.federation.train,
        protocol.ownership,
        drawn.clients,
        steps=steps,
        weight=weight,
        gamma=gamma,
        participation=drawn.mass / total,
        relative_size=relative_size,
        columns=protocol.columns(drawn.clients),
    )


class LocalSteps:
    """The local steps of the clients of a seed, counted from round to round.

    Args:
        method: The method that is trained.
        seed: Seed of the run.
        repeated: Rounds that are done once more each time that they are here.
    """

    def __init__(self, method: Method, seed: int, repeated: Sequence[range] = ()) -> None:
        self.method, self.seed = method, seed
        self.again = sum((self._within(rounds) for rounds in repeated), start=self._no_steps())
        self._begin()

    def _begin(self) -> None:
        self.works, self.rounds, self.counts = self._works(), 0, self._no_steps()

    def _no_steps(self) -> NDArray[np.int64]:
        return np.zeros(len(self.method.protocol.federation), np.int64)

    def _works(self, first: int = 0) -> Iterator[RoundWork]:
        method = self.method
        return drawn_works(method.protocol, method.algorithm, method.solver, self.seed, first)

    def _within(self, rounds: range) -> NDArray[np.int64]:
        """The steps of each client in some rounds."""
        counts = self._no_steps()
        for work in itertools.islice(self._works(rounds.start), len(rounds)):
            counts[work.jobs.client] += work.jobs.steps
        return counts

    def counted(self, rounds: int, but: Sequence[int] = ()) -> NDArray[np.int64]:
        """The steps of each client in the first rounds and the repeated ones, without some."""
        if rounds < self.rounds:
            self._begin()
        while self.rounds < rounds:
            jobs = next(self.works).jobs
            self.counts[jobs.client] += jobs.steps
            self.rounds += 1
        given_up = sum((self._within(range(t, t + 1)) for t in but), start=self._no_steps())
        return self.counts + self.again - given_up

    def after(self, rounds: int, but: Sequence[int] = ()) -> list[tuple[int, int, int]]:
        """As `counted`, for each client that took some: its rows, those of a batch, the steps."""
        sizes = self.method.protocol.federation.train.sizes
        return [
            (size, self.method.solver.batch_of(size), count)
            for size, count in zip(sizes.tolist(), self.counted(rounds, but).tolist(), strict=True)
            if count
        ]


@kept
def steps_of_run(method: Method) -> tuple[tuple[int, int, int], ...]:
    """As `LocalSteps.after` a whole run, in all seeds."""
    protocol = method.protocol
    taken = (LocalSteps(method, seed).after(protocol.rounds) for seed in protocol.seeds)
    return tuple(steps for each in taken for steps in each)
