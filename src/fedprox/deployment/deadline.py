"""How the time of a node's round is shared out: between its requests, passes and clients.

The shares are those of the planned work, in rows whose gradients are computed. What a pass leaves
is there for the next one, so a share that is too large costs little.
"""

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.simulation.compiled.clock import Until
from fedprox.simulation.planning.batch_plan import job_ticks
from fedprox.simulation.planning.jobs import Jobs
from fedprox.simulation.planning.packing import Segments
from fedprox.solver import Solver

READING = 0.25
"""Smallest share of reading gradients before the work. By its rows alone it could be too short even
to call a program, and without these gradients nothing counts."""


def planned_rows(algorithm: Algorithm, solver: Solver, jobs: Jobs) -> NDArray[np.int64]:
    """The rows that jobs compute gradients of in each pass of `Until`, shape (3, jobs)."""
    reads = algorithm.first.reads
    personal = algorithm.personal is not None and algorithm.personal.subproblem is not None
    local = job_ticks(solver, jobs, 1)  # ticks of one row
    if solver.searches_line:
        local = jobs.steps * jobs.size
    return np.stack([reads * jobs.size, personal * local, local])


def passes_until(seconds: float, rows: NDArray[np.int64]) -> Until:
    """When the passes of a request with so many seconds end.

    >>> passes_until(8.0, np.array([[10], [40], [20]]))
    Until(reading=np.float32(2.0), personal=np.float32(6.0), local=np.float32(8.0))
    """
    reading, personal, local = rows.sum(axis=1).tolist()
    first = _share_of_reading(reading, personal + local)
    second = first + (1 - first) * personal / max(personal + local, 1)
    return Until(*(np.float32(seconds * part) for part in (first, second, 1.0)))


def due(ends: Segments, slots: int) -> NDArray[np.float32]:
    """The part of all ticks at which the job in each slot ends.

    A node that is too slow thus shortens all of its clients' work alike.

    Args:
        ends: The segments of the devices, without an axis of rounds.
        slots: Number of slots.
    """
    parts = np.ones(slots, np.float32)
    device, segment, lane = np.nonzero(ends.end >= 0)
    stops = ends.stop[device, segment]
    parts[ends.end[device, segment, lane]] = stops / max(stops.max(initial=0), 1)
    return parts


def shares_of_first(
    first: Jobs, rows: NDArray[np.int64], jobs: Jobs, owner: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Each node's share of its round for the gradients of a first cohort.

    Args:
        first: The first cohort.
        rows: `planned_rows` of the jobs.
        jobs: The clients about to work.
        owner: The node of each client.
    """
    nodes = int(owner.max()) + 1
    reading = np.bincount(owner[first.client], first.size, nodes)
    working = np.bincount(owner[jobs.client], rows.sum(axis=0), nodes)
    return np.array(list(map(_share_of_reading, reading.tolist(), working.tolist())))


def _share_of_reading(reading: float, working: float) -> float:
    """The share of reading so many rows before working on others."""
    return max(READING, reading / (reading + working)) if reading else 0.0
