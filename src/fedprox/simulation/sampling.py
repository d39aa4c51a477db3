"""Which clients take part in a round, and what weight each one's answer gets."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, require_whole
from fedprox.streams import Purpose, generator


@dataclass(frozen=True)
class Cohort:
    """How a round's clients are chosen.

    Attributes:
        clients_per_round: K, the clients of a round.
        sampling: "uniform": K clients uniformly without replacement, averaged with weights
            n_k / sum of the cohort's n_j. It is what all the papers' experiments use (McMahan et
            al. 2017, Algorithm 1; Li et al. 2020, section 5.1).
    """

    clients_per_round: int
    sampling: Literal["uniform"] = "uniform"

    def __post_init__(self) -> None:
        require_whole("cohort.clients_per_round", self.clients_per_round)
        require(
            self.sampling == "uniform",
            f'cohort.sampling = {self.sampling!r}; it must be "uniform"',
        )

    def draw(self, seed: int, round_: int, clients: int) -> NDArray[np.int64]:
        """The cohort of a round, shape (K,): distinct indices below `clients`.

        Its cost does not grow with `clients`.

        >>> bool((Cohort(3).draw(0, 7, 10**9) == Cohort(3).draw(0, 7, 10**9)).all())
        True
        """
        stream = generator(seed, Purpose.COHORT, round_)
        return stream.choice(clients, self.clients_per_round, replace=False)


def weights(sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """n_k / sum_j n_j over the clients that took part, given their n_k.

    >>> weights(np.array([30, 10])).tolist()
    [0.75, 0.25]
    """
    return sizes / max(int(sizes.sum()), 1)
