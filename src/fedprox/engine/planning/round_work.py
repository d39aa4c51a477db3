"""The work of a round: which clients take part, and how much work each of them does."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.engine.planning.jobs import Jobs, jobs_of, no_jobs
from fedprox.engine.planning.poisson import PoissonTicks, poisson_width
from fedprox.parts.clock import FIRST_SHARE, Step, Timeline
from fedprox.protocol.cohort import Drawn, weights
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
        time: Seconds from the begin of the run to the end of the round; None without a clock.
    """

    clients: int
    stragglers: int
    dropped: int
    jobs: Jobs
    exchange: Jobs
    time: float | None = None


def no_work(time: float | None = None) -> RoundWork:
    """The work of a round without clients, which ends at some time."""
    return RoundWork(0, 0, 0, no_jobs(), no_jobs(), time)


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
    begin = first if timeline is None else 0  # a round begins when the one before ends
    each = (
        round_work(protocol, algorithm, solver, seed, t, timeline) for t in itertools.count(begin)
    )
    yield from itertools.islice(each, first - begin, None)


def buffered_works(
    protocol: Protocol, algorithm: Algorithm, solver: Solver, steps: Iterator[Step], first: int = 0
) -> Iterator[RoundWork]:
    """The work of the server's steps without a barrier, from step `first` on: its buffer."""
    timed = protocol.begin_time(algorithm) is not None
    for t, step in enumerate(steps, first):
        jobs = whole_jobs(protocol, algorithm, solver, step.clients)
        jobs = jobs._replace(weight=jobs.weight * step.factor)
        jobs = jobs.with_columns(**step.columns(t, solver))
        clients, time = len(step.clients) + step.lost, step.time if timed else None
        yield RoundWork(clients, step.lost, step.lost, jobs, no_jobs(), time)


def whole_jobs(
    protocol: Protocol, algorithm: Algorithm, solver: Solver, clients: NDArray[np.int64]
) -> Jobs:
    """The jobs of clients that do all their work."""
    sizes = protocol.federation.train.sizes[clients]
    drawn = _with_method_mass(protocol, algorithm, Drawn(clients, sizes))
    return _jobs(protocol, algorithm, drawn, solver.steps_for(sizes), np.zeros(len(sizes)))


def round_work(
    protocol: Protocol,
    algorithm: Algorithm,
    solver: Solver,
    seed: int,
    t: int,
    timeline: Timeline | None = None,
) -> RoundWork:
    """Draw the cohort and the stragglers of round t, and make the jobs of the round."""
    train, deadline = protocol.federation.train, protocol.systems.deadline
    candidates = None if timeline is None else timeline.candidates()
    drawn = _draw(protocol, algorithm, seed, t, Purpose.COHORT, candidates)
    chosen = drawn.clients
    first = drawn
    if algorithm.first.exchange is not None and algorithm.first.cohort == "another":
        first = _draw(protocol, algorithm, seed, t, Purpose.GRADIENT_COHORT, candidates)
    sizes = train.sizes[chosen]
    if algorithm.client.round_steps is not None:
        steps = call(f"{algorithm.name}: round_steps", algorithm.client.round_steps, seed, t)
        solver = solver.changed(steps=steps)
    alone = protocol.independent
    left: float = math.inf if deadline is None else deadline
    in_time: Any = math.inf
    read, before = np.ones(len(first.clients), bool), 0.0
    if timeline is not None:
        if algorithm.first.exchange is not None:
            read, before = timeline.first_exchange(first.clients, FIRST_SHARE * left)
            if alone and deadline is not None:  # nobody's time must depend on the others
                before = FIRST_SHARE * deadline
        left -= before
        in_time = timeline.pace.in_time(chosen, left)
    work = protocol.systems.work(seed, t, chosen, sizes, solver, in_time=in_time, independent=alone)
    stragglers = int(work.stragglers.sum())
    if algorithm.pooled and not work.steps.sum():
        return RoundWork(len(chosen), stragglers, 0, no_jobs(), no_jobs())
    if algorithm.pooled:
        one = np.ones(1, np.int64)
        jobs = Jobs(  # one client with all rows
            one * len(protocol.federation),
            first_row=one * 0,
            size=one * len(train),
            steps=one * work.steps.sum(),
            weight=np.ones(1),
            gamma=solver.gammas(t, one * len(protocol.federation)),
            participation=np.ones(1),
            relative_size=np.ones(1),
            owner=one * 0,
            device_row=one * 0,
        )
        return RoundWork(len(chosen), stragglers, 0, jobs, no_jobs())
    takes_part = ~work.stragglers if algorithm.stragglers == "drop" else work.steps > 0
    if timeline is not None:
        takes_part &= read if first is drawn else read.any()
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
    counted = _with_method_mass(protocol, algorithm, counted)
    jobs = _jobs(protocol, algorithm, counted, work.steps[takes_part], gamma)
    exchange = no_jobs()
    if algorithm.first.exchange is not None:
        if first is drawn:
            first = counted
        else:
            first = Drawn(first.clients[read], first.mass[read])
            first = _with_method_mass(protocol, algorithm, first)
        zeros = np.zeros(len(first.clients))
        exchange = _jobs(protocol, algorithm, first, zeros.astype(np.int64), zeros)
    dropped, now = int((~takes_part).sum()), None if timeline is None else timeline.now
    return RoundWork(len(chosen), stragglers, dropped, jobs, exchange, now)


def _draw(
    protocol: Protocol,
    algorithm: Algorithm,
    seed: int,
    t: int,
    purpose: Purpose,
    candidates: NDArray[np.int64] | None,
) -> Drawn:
    """A cohort of round t, from the candidates; None for all clients."""
    return protocol.cohort.draw(
        *(seed, t, protocol.federation.train.offsets, purpose),
        poisson=protocol.independent,
        capacity=protocol.capacity(algorithm),
        candidates=candidates,
    )


def _with_method_mass(protocol: Protocol, algorithm: Algorithm, drawn: Drawn) -> Drawn:
    """The same clients, with equal masses if the method counts each client once."""
    if algorithm.average == "rows" or protocol.cohort.sampling == "proportional":
        return drawn
    return Drawn(drawn.clients, np.ones_like(drawn.mass))


def _jobs(
    protocol: Protocol,
    algorithm: Algorithm,
    drawn: Drawn,
    steps: NDArray[np.int64],
    gamma: NDArray[np.float64],
) -> Jobs:
    """The jobs of clients with these steps and gammas."""
    clients = len(protocol.federation)
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
