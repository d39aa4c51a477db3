"""Which clients trained since the previous record, and how many steps each took."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.simulation.planning.round_work import RoundWork


class Trained(NamedTuple):
    """Jobs of some rounds, or sums over jobs.

    Attributes:
        client: Index of each job's client, int64 (jobs,).
        rounds: Rounds that the job adds to the client's rounds, int64 (jobs,).
        steps: Mini-batch steps, an array of shape (jobs,), or (slots, points) with at least as many
            slots as jobs.
    """

    client: NDArray[np.int64]
    rounds: NDArray[np.int64]
    steps: Any


class Participation(NamedTuple):
    """What each client of the federation did in some rounds.

    Attributes:
        rounds: Rounds in which the client trained, int64 (clients,).
        steps: Its mini-batch steps in them, int64 (clients, points).
    """

    rounds: NDArray[np.int64]
    steps: NDArray[np.int64]

    def again(self) -> Trained:
        """These sums, to be added to those of later rounds."""
        return Trained(np.arange(len(self.rounds)), self.rounds, self.steps)


def trained(work: Sequence[RoundWork], steps: Any) -> Trained:
    """The jobs of the rounds of one call.

    Args:
        work: The work of each round.
        steps: Steps of the jobs (slots, points), if there is one round whose clients do not take
            the planned steps; else None.
    """
    assert steps is None or len(work) == 1
    jobs = [each.jobs for each in work]
    first = [np.zeros(len(each.client), np.int64) for each in jobs]
    for each, is_first in zip(jobs, first, strict=True):
        # a client that was drawn twice has two jobs in one round
        is_first[np.unique(each.client, return_index=True)[1]] = 1
    return Trained(
        np.concatenate([each.client for each in jobs]),
        np.concatenate(first),
        np.concatenate([each.steps for each in jobs]) if steps is None else steps,
    )


def participation(parts: Sequence[Trained], clients: int, points: int) -> Participation:
    """The sums over some jobs, once their steps are known.

    >>> jobs = Trained(np.array([2, 0, 2]), np.array([1, 1, 0]), np.array([5, 1, 2]))
    >>> found = participation([jobs, jobs], clients=3, points=1)
    >>> found.rounds.tolist(), found.steps[:, 0].tolist()
    ([2, 0, 2], [2, 0, 14])
    """
    rounds, steps = np.zeros(clients, np.int64), np.zeros((clients, points), np.int64)
    for part in parts:
        taken = np.asarray(part.steps)[: len(part.client)]
        np.add.at(rounds, part.client, part.rounds)
        np.add.at(steps, part.client, taken.reshape(len(part.client), -1))
    return Participation(rounds, steps)
