"""The clock of a synchronous run: when its rounds begin and end, by the clients' devices.

A client receives the model, takes its steps and sends its message. The round ends when the last
message that counts has arrived; or at its deadline, if a client missed it; or when the server
notices that a client is lost, if that comes later. With over-selection it ends with message K.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.parts.time.pace import Pace
from fedprox.streams import Purpose, Streams

FIRST_SHARE = 0.25
"""The part of a deadline within which a first exchange must end; later gradients do not count."""


class Times(NamedTuple):
    """When the clients of a cohort are done, seconds since the begin of its exchange, shape (K,).

    Attributes:
        arrival: When their messages arrive; infinity for a client that is lost.
        lost: When the server notices that a client is lost; infinity for the others.
    """

    arrival: NDArray[np.float64]
    lost: NDArray[np.float64]


class Timeline:
    """The clock of one method and seed.

    Args:
        pace: How long each client takes.
        dropout: Chance that a client is lost within a round.
        clients: Number of clients.
        seed: The seed.

    Attributes:
        now: Seconds from the begin of the run to the begin of the next round.
    """

    def __init__(self, pace: Pace, dropout: float, clients: int, seed: int) -> None:
        self.now = 0.0
        self.pace, self.dropout, self.clients = pace, dropout, clients
        self.dropouts = Streams(seed, Purpose.DROPOUT)

    def candidates(self) -> NDArray[np.int64] | None:
        """The clients that are on, after waiting for one; None for all clients."""
        if self.pace.hours is None:
            return None
        clients, hours = np.arange(self.clients), self.pace.hours
        while not (on := hours.left(self.now, clients) > 0).any():
            self.now += hours.wait(self.now)
        return np.flatnonzero(on)

    def first_exchange(
        self, clients: NDArray[np.int64], seconds: float
    ) -> tuple[NDArray[np.bool_], float]:
        """Whose gradients arrive within some seconds, shape (K,), and when the exchange ends."""
        arrival = self.pace.first_exchange(clients)
        return arrival <= seconds, min(float(arrival.max(initial=0.0)), seconds)

    def times(
        self, t: int, clients: NDArray[np.int64], steps: NDArray[np.int64], begin: float
    ) -> Times:
        """When the clients of round t are done, and which of them are lost."""
        seconds = self.pace.seconds(clients, steps)
        lost = np.full(len(clients), math.inf)
        if self.dropout:
            for i, client in enumerate(clients.tolist()):
                stream = self.dropouts.at(t, client)
                if stream.random() < self.dropout:
                    lost[i] = stream.random() * seconds[i]
        if self.pace.hours is not None:
            off = self.pace.hours.left(self.now, clients) - begin
            lost = np.minimum(lost, np.where(off < seconds, np.maximum(off, 0.0), np.inf))
        return Times(np.where(lost < np.inf, np.inf, seconds), lost)

    def end(
        self,
        times: Times,
        takes_part: NDArray[np.bool_],
        most: int,
        seconds: float,
    ) -> tuple[NDArray[np.bool_], float]:
        """Which clients count, of which `most` end the round, and the seconds of their exchange."""
        arrival = np.where(takes_part, times.arrival, np.inf)
        first = np.argsort(arrival, kind="stable")[:most]
        counts = np.zeros(len(arrival), bool)
        counts[first] = np.isfinite(arrival[first])
        ends = arrival[counts]
        if len(ends) < most:  # the server waits for the others
            ends = np.append(ends, times.lost[np.isfinite(times.lost)])
            if math.isfinite(seconds) and not takes_part.all():
                return counts, seconds
        return counts, min(float(ends.max(initial=0.0)), seconds)
