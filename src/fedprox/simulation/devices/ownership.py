"""Ownership: where several processes share a federation, each client's work is done by one of them.

Process p of P is home to a block of consecutive clients with about n / P of the rows. It reads
their rows and no others, and keeps their state. Who takes part in a round does not depend on it, so
a round waits for the process whose clients have most to do.
"""

from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray


class Ownership(NamedTuple):
    """Which process is home to which clients.

    Attributes:
        bounds: The first client of each process, and their number, shape (processes + 1,).
        process_index: This process.
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
        """The home of each client."""
        return np.searchsorted(self.bounds, clients, side="right") - 1

    def first_rows(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the rows of each process begin, and where the last one's end."""
        return offsets[self.bounds]


def find_ownership(offsets: NDArray[np.int64], processes: int, process_index: int = 0) -> Ownership:
    """Blocks of consecutive clients with about the same number of rows.

    Args:
        offsets: Where each client's rows begin, shape (clients + 1,).
        processes: Number of processes.
        process_index: This process.

    >>> find_ownership(np.array([0, 5, 10, 20, 30, 40]), processes=2).bounds.tolist()
    [0, 3, 5]
    """
    ideal = np.arange(1, processes) * (offsets[-1] / processes)
    bounds = np.concatenate([[0], np.searchsorted(offsets, ideal), [len(offsets) - 1]])
    return Ownership(bounds.astype(np.int64), process_index)


def ownership_of_processes(offsets: NDArray[np.int64]) -> Ownership:
    """Ownership of all processes of this run."""
    return find_ownership(offsets, jax.process_count(), jax.process_index())
