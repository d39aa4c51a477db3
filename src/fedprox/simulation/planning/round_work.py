"""The work of a round: which clients take part, and how much each of them does."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.simulation.config.cohort import Drawn, weights
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.planning.batch_plan import Jobs, no_jobs
from fedprox.solver import Solver
from fedprox.streams import Purpose


class RoundWork(NamedTuple):
    """One round's cohort and the jobs that a method makes of it.

    Attributes:
        clients: Clients of the cohort.
        stragglers: Of these, those that cannot finish.
        dropped: Of these, those whose work does not count.
        jobs: The others' work.
        exchange: Clients of the first exchange, if the method has one; they take no steps.
    """

    clients: int
    stragglers: int
    dropped: int
    jobs: Jobs
    exchange: Jobs


def round_work(
    protocol: Protocol, algorithm: Algorithm, solver: Solver, seed: int, t: int
) -> RoundWork:
    """Who works on what in round t."""
    train = protocol.federation.train
    drawn = protocol.cohort.draw(seed, t, train.offsets)
    chosen = drawn.clients
    sizes = train.offsets[chosen + 1] - train.offsets[chosen]
    work = protocol.systems.work(seed, t, chosen, sizes, solver)
    stragglers = int(work.stragglers.sum())
    if algorithm.pooled and not work.steps.sum():
        return RoundWork(len(chosen), stragglers, 0, no_jobs(), no_jobs())
    if algorithm.pooled:
        one = np.ones(1, np.int64)
        jobs = Jobs(
            client=one * len(protocol.federation),
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
    kept = ~work.stragglers if algorithm.stragglers == "drop" else work.steps > 0
    gamma = solver.gammas(t, chosen[kept])
    taking_part = _counted(protocol, algorithm, Drawn(chosen[kept], drawn.mass[kept]))
    jobs = _jobs(protocol, algorithm, taking_part, work.steps[kept], gamma)
    exchange = no_jobs()
    if algorithm.exchange is not None:
        first = protocol.cohort.draw(seed, t, train.offsets, Purpose.GRADIENT_COHORT)
        nothing = np.zeros(len(first.clients))
        first = _counted(protocol, algorithm, first)
        exchange = _jobs(protocol, algorithm, first, nothing.astype(np.int64), nothing)
    return RoundWork(len(chosen), stragglers, int((~kept).sum()), jobs, exchange)


def _counted(protocol: Protocol, algorithm: Algorithm, drawn: Drawn) -> Drawn:
    """The same clients, with what each counts in the method's mean."""
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
    clients = len(protocol.federation)
    offsets = protocol.federation.train.offsets
    rows = offsets[drawn.clients + 1] - offsets[drawn.clients]
    total = len(protocol.federation.train) if algorithm.average == "rows" else clients
    if protocol.cohort.sampling == "proportional":
        total = protocol.cohort.clients_per_round  # draws
    return Jobs(
        client=drawn.clients,
        first_row=offsets[drawn.clients],
        size=rows,
        steps=steps,
        weight=weights(drawn.mass),
        gamma=gamma,
        participation=drawn.mass / total,
        relative_size=rows * clients / len(protocol.federation.train),
        owner=protocol.ownership.of(drawn.clients),
        device_row=offsets[drawn.clients],
    )
