"""Systems heterogeneity: which clients of a cohort cannot finish, and how far they get.

Li et al. 2020, section 5.2: in every round a fraction of the cohort performs x epochs, x uniform
on {1, ..., E}, where the others perform E.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require_number
from fedprox.solver import Solver
from fedprox.streams import Purpose, generator


class Work(NamedTuple):
    """A round's work: `steps` (K,) mini-batches of each client, `stragglers` (K,) booleans."""

    steps: NDArray[np.int64]
    stragglers: NDArray[np.bool_]


@dataclass(frozen=True)
class Systems:
    """How clients differ in the work they can do.

    Attributes:
        stragglers: Fraction of every cohort that cannot finish, from 0 to 1.
    """

    stragglers: float = 0.0

    def __post_init__(self) -> None:
        require_number("systems.stragglers", self.stragglers, most=1)

    def work(
        self,
        seed: int,
        round_: int,
        cohort: NDArray[np.int64],
        sizes: NDArray[np.int64],
        solver: Solver,
    ) -> Work:
        """The work of each client of a cohort.

        Of K clients, round(s K) are stragglers, whichever they are. A straggler does a whole
        number of epochs, uniform on {1, ..., E}, independent of every other client; where the
        solver counts steps, or E = 1, a number of steps, uniform on {1, ..., all of them}.

        Args:
            seed: Seed of the run.
            round_: Round t.
            cohort: The clients' indices, shape (K,).
            sizes: Their training rows n_k, shape (K,).
            solver: What a client that finishes would do.
        """
        steps = np.array([solver.steps_for(int(n)) for n in sizes], np.int64)
        stragglers = np.zeros(len(cohort), np.bool_)
        chosen = generator(seed, Purpose.STRAGGLERS, round_).permutation(len(cohort))
        stragglers[chosen[: round(self.stragglers * len(cohort))]] = True
        for slot in np.flatnonzero(stragglers):
            stream = generator(seed, Purpose.WORK, round_, int(cohort[slot]))
            if solver.epochs is not None and solver.epochs > 1:
                epochs = int(stream.integers(1, solver.epochs, endpoint=True))
                steps[slot] = epochs * solver.steps_per_epoch(int(sizes[slot]))
            else:
                steps[slot] = stream.integers(1, steps[slot], endpoint=True)
        return Work(steps, stragglers)
