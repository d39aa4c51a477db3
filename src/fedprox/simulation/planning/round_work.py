"""The work of a round: which clients take part, and how much work each of them does."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.simulation.config.cohort import Drawn, weights
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.planning.jobs import Jobs, jobs_of, no_jobs
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
    """

    clients: int
    stragglers: int
    dropped: int
    jobs: Jobs
    exchange: Jobs


def no_work() -> RoundWork:
    """The work of a round without clients."""
    return RoundWork(0, 0, 0, no_jobs(), no_jobs())


def round_work(
    protocol: Protocol, algorithm: Algorithm, solver: Solver, seed: int, t: int
) -> RoundWork:
    """Draw the cohort and the stragglers of round t, and make the jobs of the round."""
    train = protocol.federation.train
    drawn = _draw(protocol, algorithm, seed, t, Purpose.COHORT)
    chosen = drawn.clients
    sizes = train.offsets[chosen + 1] - train.offsets[chosen]
    if algorithm.round_steps is not None:
        steps = call(f"{algorithm.name}: round_steps", algorithm.round_steps, seed, t)
        solver = solver.changed(steps=steps)
    private = protocol.privacy is not None
    work = protocol.systems.work(seed, t, chosen, sizes, solver, independent=private)
    stragglers = int(work.stragglers.sum())
    if algorithm.pooled and not work.steps.sum():
        return RoundWork(len(chosen), stragglers, 0, no_jobs(), no_jobs())
    if algorithm.pooled:
        one = np.ones(1, np.int64)
        jobs = Jobs(  # one client with all rows
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
    takes_part = ~work.stragglers if algorithm.stragglers == "drop" else work.steps > 0
    counted = Drawn(chosen[takes_part], drawn.mass[takes_part])
    if private:  # the user's function must not see who else takes part
        gamma = np.array([solver.gammas(t, alone)[0] for alone in counted.clients[:, None]])
    else:
        gamma = solver.gammas(t, counted.clients)
    counted = _with_method_mass(protocol, algorithm, counted)
    jobs = _jobs(protocol, algorithm, counted, work.steps[takes_part], gamma)
    exchange = no_jobs()
    if algorithm.exchange is not None:
        first = counted
        if algorithm.exchange_cohort == "another":
            first = _draw(protocol, algorithm, seed, t, Purpose.GRADIENT_COHORT)
            first = _with_method_mass(protocol, algorithm, first)
        zeros = np.zeros(len(first.clients))
        exchange = _jobs(protocol, algorithm, first, zeros.astype(np.int64), zeros)
    return RoundWork(len(chosen), stragglers, int((~takes_part).sum()), jobs, exchange)


def _draw(protocol: Protocol, algorithm: Algorithm, seed: int, t: int, purpose: Purpose) -> Drawn:
    """A cohort of round t."""
    mechanism = protocol.mechanism(algorithm)
    return protocol.cohort.draw(
        *(seed, t, protocol.federation.train.offsets, purpose),
        poisson=mechanism is not None,
        capacity=None if mechanism is None else mechanism.capacity,
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
    if protocol.privacy is not None:
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
    )
