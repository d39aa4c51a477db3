"""Ownership: if several processes share a federation, each client is owned by one of them.

Process p of P owns a block of consecutive clients with about n / P of the rows. It reads only their
rows, does their work and stores their state. Cohorts do not depend on ownership, so a round waits
for the process whose clients have the most work.
"""

from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray


class Ownership(NamedTuple):
    """Which process owns which clients.

    Attributes:
        bounds: First client of each process, and the number of clients, shape (processes + 1,).
        process_index: Index of this process.
    """

    bounds: NDArray[np.int64]
    process_index: int

    @property
    def processes(self) -> int:
        """Number of processes."""
        return len(self.bounds) - 1

    @property
    def clients(self) -> range:
        """The clients of this process."""
        return range(int(self.bounds[self.process_index]), int(self.bounds[self.process_index + 1]))

    def of(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The process that owns each client."""
        return np.searchsorted(self.bounds, clients, side="right") - 1

    def first_rows(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """First row of each process, and the number of rows, shape (processes + 1,)."""
        return offsets[self.bounds]


def find_ownership(offsets: NDArray[np.int64], processes: int, process_index: int = 0) -> Ownership:
    """Divide clients into consecutive blocks with about equal numbers of rows.

    Args:
        offsets: First row of each client, and the number of rows, shape (clients + 1,).
        processes: Number of processes.
        process_index: Index of this process.

    >>> find_ownership(np.array([0, 5, 10, 20, 30, 40]), processes=2).bounds.tolist()
    [0, 3, 5]
    """
    ideal = np.arange(1, processes) * (offsets[-1] / processes)
    bounds = np.concatenate([[0], np.searchsorted(offsets, ideal), [len(offsets) - 1]])
    return Ownership(bounds.astype(np.int64), process_index)


def ownership_of_processes(offsets: NDArray[np.int64]) -> Ownership:
    """Ownership among the JAX processes of this run."""
    return find_ownership(offsets, jax.process_count(), jax.process_index())
