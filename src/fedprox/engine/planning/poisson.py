"""Poisson mini-batches: each row is drawn on its own in each step.

A mini-batch has any number of rows, so it takes as many ticks as it needs, and at least one. No
row that was drawn is left out, and the size of a mini-batch has no limit to account for.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedprox.engine.planning.jobs import Jobs
from fedprox.solver import Solver
from fedprox.streams import Purpose, Streams

WIDEST_SAMPLE = 512
"""Most rows of a tick of a Poisson mini-batch, whose usual size is known."""

RARE = 1e-9
"""Chance of more rows in a mini-batch that is left out of an estimate."""

EXAMPLE_BYTES = 2**28
"""Most bytes of the gradients of a tick's examples, if each has one of its own."""


def poisson_width(solver: Solver, largest: int, parameter_bytes: int) -> int:
    """Rows of a tick: most mini-batches take the same number of ticks.

    >>> solver = Solver(0.1, 64, epochs=1)
    >>> poisson_width(solver, 600, 31400), poisson_width(solver, 70, 31400)
    (80, 70)
    """
    mean = solver.batch_of(largest)
    usual = min(largest, mean + math.ceil(2 * math.sqrt(mean)))
    most = max(1, min(WIDEST_SAMPLE, EXAMPLE_BYTES // parameter_bytes))
    return -(-usual // -(-usual // most))


def poisson_places(
    stream: np.random.Generator, size: int, batch: int, steps: int
) -> NDArray[np.int64]:
    """Which rows are drawn in which steps: `step * size + row` of each, in ascending order.

    Each row is drawn with probability `batch / size`. The gaps between draws are geometric. The
    draws of the first steps do not depend on how many follow.

    >>> poisson_places(np.random.default_rng(0), 3, 3, 2).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    end, rate = size * steps, batch / size
    last, parts = -1, [np.zeros(0, np.int64)]
    while last < end:
        expected = (end - last) * rate
        gaps = stream.geometric(rate, int(expected + 4 * math.sqrt(expected)) + 1)
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    places = np.concatenate(parts)
    return places[: np.searchsorted(places, end)]


class PoissonTicks:
    """The ticks of the Poisson mini-batches of clients.

    Args:
        solver: The local solver.
        width: Rows of a tick.
        seed: Seed of the run.
    """

    def __init__(self, solver: Solver, width: int, seed: int) -> None:
        self.solver, self.width, self.streams = solver, width, Streams(seed, Purpose.ROWS)

    def count(self, jobs: Jobs, t: int) -> NDArray[np.int64]:
        """Ticks of each job of round t, shape (jobs,)."""
        each = [self._drawn(job, t)[2].sum() for job in range_of(jobs)]
        return np.array(each, np.int64)

    def of(self, job: Jobs, t: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """The ticks of a job of round t, given with scalars for arrays."""
        places, drawn, ticks = self._drawn(job, t)
        step, row = np.divmod(places, int(job.size))
        ends = np.cumsum(ticks)
        last = np.zeros(int(ticks.sum()), bool)
        last[ends - 1] = True
        first = int(job.device_row)
        rows = np.full((len(last), self.width), ~first, np.int32)
        number = np.arange(len(places)) - np.repeat(np.cumsum(drawn) - drawn, drawn)
        rows.reshape(-1)[(ends - ticks)[step] * self.width + number] = first + row
        return rows, last

    def usual(self, jobs: Jobs) -> NDArray[np.int64]:
        """Ticks that jobs seldom exceed, by four standard deviations, without drawing rows."""
        from scipy.special import bdtrc

        size, steps = jobs.size, jobs.steps
        rate = np.array([self.solver.batch_of(n) for n in size.tolist()]) / np.maximum(size, 1)
        most = int(size.max(initial=0)) // self.width
        mean, square = np.ones(len(size)), np.zeros(len(size))
        for more in range(1, most + 1):  # ticks beyond the first
            chance = bdtrc(np.minimum(more * self.width, size), size, rate)
            if chance.max() < RARE:
                break
            mean, square = mean + chance, square + (2 * more - 1) * chance
        variance = np.maximum(0, square - (mean - 1) ** 2)  # less than 0 by rounding
        return np.ceil(steps * mean + 4 * np.sqrt(steps * variance)).astype(np.int64)

    def _drawn(self, job: Jobs, t: int) -> tuple[NDArray[np.int64], ...]:
        """Which rows are drawn in which steps, how many in each, and the ticks of each step."""
        size, steps = int(job.size), int(job.steps)
        stream = self.streams.at(int(job.started(t)), int(job.client))
        places = poisson_places(stream, size, self.solver.batch_of(size), steps)
        drawn = np.bincount(places // size, minlength=steps)
        return places, drawn, np.maximum(1, -(-drawn // self.width))


def range_of(jobs: Jobs) -> list[Jobs]:
    """Each job, with scalars for arrays."""
    return [jobs.take(i) for i in range(len(jobs.client))]
