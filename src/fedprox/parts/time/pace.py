"""How long the clients' devices take for the rounds of a method, and when they are on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.parts.time.availability import Hours

ROUNDING = 1e-9
"""By how much, relatively, a client may take a step too early."""


class Legs(NamedTuple):
    """What a client does in a round of a method.

    Attributes:
        models: Models that it receives, and sends, in an exchange.
        passes: Passes over all of its rows before the local steps.
        solves: Local problems, each with all of the steps.
    """

    models: float
    passes: int
    solves: int


def legs_of(algorithm: Algorithm, probes: int = 0) -> Legs:
    """What a client does in a round of a method, whose probe has so many models.

    >>> from fedprox.algorithms import fedavg, feddane, scaffold
    >>> legs_of(fedavg()).models, legs_of(scaffold()).models, legs_of(feddane(mu=0.1)).models
    (1.0, 2.0, 1.0)
    """
    exchanges = 1 if algorithm.first.exchange is None else 2
    # the round's own clients know the gradient of the first exchange
    knows = exchanges == 2 and algorithm.first.cohort == "own"
    personal = algorithm.personal is not None and algorithm.personal.subproblem is not None
    return Legs(
        models=algorithm.communication / exchanges,
        passes=int(algorithm.first.measures and not knows) + probes,
        solves=1 + personal,
    )


class Pace(NamedTuple):
    """How long clients take for the rounds of a method, and when they are on; arrays (clients,).

    Attributes:
        way: Seconds of an exchange's messages, there and back.
        reading: Seconds of a pass over all rows of the client.
        before: Seconds of the passes before the local steps.
        step: Seconds of a step of the local solver.
        hours: When clients are on; None for always.
    """

    way: NDArray[np.float64]
    reading: NDArray[np.float64]
    before: NDArray[np.float64]
    step: NDArray[np.float64]
    hours: Hours | None

    def first_exchange(self, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds until the gradients of a first cohort have arrived, shape (K,)."""
        return (self.way + self.reading)[clients]

    def seconds(self, clients: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds from the server's message to the client's, shape (K,)."""
        return (self.way + self.before)[clients] + steps * self.step[clients]

    def in_time(self, clients: NDArray[np.int64], seconds: float) -> NDArray[np.float64]:
        """Steps for which clients have time if their message is due in `seconds`, shape (K,)."""
        left = seconds - (self.way + self.before)[clients]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # 0.3 / 0.1 must give three steps
            steps = np.floor(left / self.step[clients] * (1 + ROUNDING))
        return np.where(left < 0, 0.0, np.where(self.step[clients] > 0, steps, np.inf))
