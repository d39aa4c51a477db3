"""The clock of a run: how long the clients' devices take, when they are on, and when rounds end.

A client receives the model, takes its steps and sends its message. The round ends when the last
message that counts has arrived, or at its deadline, if a client missed it. It ends later if the
server notices later that a client is lost. With over-selection it ends with message K.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require
from fedprox.federation import offsets_of
from fedprox.solver import Solver
from fedprox.streams import Purpose, Streams

TOO_EARLY = 1e-9
"""By how much, relatively, a client may go on, or take a step, too early."""


class Hours(NamedTuple):
    """When each client is on: intervals that repeat, sorted by client.

    Attributes:
        first: The first interval of each client, int64 (clients + 1,).
        begin: Seconds at which an interval begins, float64 (intervals,).
        length: Seconds that it lasts, float64 (intervals,).
        period: Seconds after which intervals repeat.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.float64]
    length: NDArray[np.float64]
    period: float

    @classmethod
    def without_end(cls) -> "Hours":
        """Those of clients that are always on: one interval for all of them."""
        return cls(np.zeros(1, np.int64), np.zeros(1), np.full(1, np.inf), math.inf)

    @property
    def always(self) -> bool:
        """Whether all clients are always on."""
        return self.period == math.inf

    def left(self, now: float, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds for which clients stay on from `now`, 0 for those that are off, (clients,)."""
        if self.always:
            return np.full(len(clients), np.inf)
        counts = self.first[clients + 1] - self.first[clients]
        before = offsets_of(counts)
        at = np.arange(before[-1]) + np.repeat(self.first[clients] - before[:-1], counts)
        since = np.mod(now - self.begin[at], self.period)
        since[self.period - since < TOO_EARLY * self.period] = 0.0
        found = np.zeros(len(clients))
        of_client = np.repeat(np.arange(len(clients)), counts)
        np.maximum.at(found, of_client, np.maximum(self.length[at] - since, 0.0))
        return found

    def wait(self, now: float) -> float:
        """Seconds from `now` until another client goes on."""
        seconds = np.mod(self.begin - now, self.period)
        return float(np.where(seconds > TOO_EARLY * self.period, seconds, self.period).min())


class Pace(NamedTuple):
    """How long clients take for the rounds of a method, and when they are on; arrays (clients,).

    Attributes:
        way: Seconds of an exchange's messages, there and back.
        reading: Seconds of a pass over all rows of the client.
        before: Seconds of the passes before the local steps.
        step: Seconds of a step of the local solver.
        hours: When clients are on.
    """

    way: NDArray[np.float64]
    reading: NDArray[np.float64]
    before: NDArray[np.float64]
    step: NDArray[np.float64]
    hours: Hours

    @classmethod
    def instant(cls, clients: int) -> "Pace":
        """That of clients for which nothing takes time."""
        none = np.broadcast_to(0.0, clients)
        return cls(none, none, none, none, Hours.without_end())

    def seconds(self, clients: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds from the server's message to the client's, shape (K,)."""
        return self.way[clients] + self.before[clients] + steps * self.step[clients]

    def in_time(self, clients: NDArray[np.int64], seconds: float) -> NDArray[np.float64]:
        """Steps for which clients have time if their message is due in `seconds`, shape (K,)."""
        if seconds == math.inf:
            return np.full(len(clients), math.inf)
        left = seconds - (self.way[clients] + self.before[clients])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # 0.3 / 0.1 must give three steps
            steps = np.floor(left / self.step[clients] * (1 + TOO_EARLY))
        return np.where(left < 0, 0.0, np.where(self.step[clients] > 0, steps, np.inf))


FIRST_SHARE = 0.25
"""The part of a deadline within which a first exchange must end; later gradients do not count."""


class Timeline:
    """The clock of one method and seed.

    Args:
        pace: How long each client takes.
        dropout: Chance that a client is lost within a round.
        clients: Number of clients.
        seed: Seed of the run.

    Attributes:
        now: Seconds from the begin of the run to the begin of the next round.
        stands: Whether nothing takes time and nobody is lost.
    """

    def __init__(self, pace: Pace, dropout: float, clients: int, seed: int) -> None:
        self.now = 0.0
        self.pace, self.dropout, self.clients = pace, dropout, clients
        self.dropouts = Streams(seed, Purpose.DROPOUT)
        takes_time = any(each.any() for each in (pace.way, pace.reading, pace.before, pace.step))
        self.stands = pace.hours.always and not (takes_time or dropout)

    def candidates(self) -> NDArray[np.int64] | None:
        """The clients that are on, after waiting for one; None for all clients."""
        if self.pace.hours.always:
            return None
        clients, hours = np.arange(self.clients), self.pace.hours
        while not (on := hours.left(self.now, clients) > 0).any():
            self.now += hours.wait(self.now)
        return np.flatnonzero(on)

    def first_exchange(
        self, clients: NDArray[np.int64], seconds: float
    ) -> tuple[NDArray[np.bool_], float]:
        """Whose gradients arrive within some seconds, shape (K,), and when the exchange ends."""
        arrival = self.pace.way[clients] + self.pace.reading[clients]
        return arrival <= seconds, min(float(arrival.max(initial=0.0)), seconds)

    def end(
        self,
        t: int,
        clients: NDArray[np.int64],
        steps: NDArray[np.int64],
        takes_part: NDArray[np.bool_],
        most: int,
        before: float,
        left: float,
    ) -> tuple[NDArray[np.bool_], float]:
        """Which clients of round t count, of which `most` end it, and when, in seconds.

        The exchange of messages begins `before` seconds after the round; messages count for `left`.
        """
        if self.stands and most >= len(clients) and left == math.inf:
            return takes_part, 0.0
        seconds = self.pace.seconds(clients, steps)
        lost = np.full(len(clients), math.inf)  # when the server notices that a client is lost
        if self.dropout:
            for i, client in enumerate(clients.tolist()):
                stream = self.dropouts.at(t, client)
                if stream.random() < self.dropout:
                    lost[i] = stream.random() * seconds[i]
        if not self.pace.hours.always:
            off = self.pace.hours.left(self.now, clients) - before
            lost = np.minimum(lost, np.where(off < seconds, np.maximum(off, 0.0), np.inf))
        arrival = np.where(takes_part & (lost == np.inf), seconds, np.inf)
        first = np.argsort(arrival, kind="stable")[:most]
        counts = np.zeros(len(arrival), bool)
        counts[first] = np.isfinite(arrival[first])
        ends = arrival[counts]
        if len(ends) < most:  # the server waits for the others
            ends = np.append(ends, lost[np.isfinite(lost)])
            if math.isfinite(left) and not takes_part.all():
                return counts, left
        return counts, min(float(ends.max(initial=0.0)), left)


class Devices(NamedTuple):
    """The clients' devices, each of which does a client's whole work of a method.

    Attributes:
        pace: How long each client takes.
        seconds: How long its whole work takes it, shape (clients,).
        dropout: Chance that a client is lost.
        seed: Seed of the run.
    """

    pace: Pace
    seconds: NDArray[np.float64]
    dropout: float
    seed: int


class Step(NamedTuple):
    """A step of a server that does not wait for a cohort.

    Attributes:
        clients: The clients in the buffer, in the order of their arrival, shape (B,).
        started: The step from whose state each client started, shape (B,).
        time: Seconds from the begin of the run.
        lost: Updates since the step before that were lost or too stale.
        factor: Weights of the updates, relative to fresh ones, shape (B,).
    """

    clients: NDArray[np.int64]
    started: NDArray[np.int64]
    time: float
    lost: int
    factor: NDArray[np.float64]

    def columns(self, t: int, solver: Solver) -> Mapping[str, NDArray[Any]]:
        """Steps since the clients started, and their rates relative to that of step t, this one."""
        rate, begun = solver.factor(t), [solver.factor(each) for each in self.started.tolist()]
        require(
            rate > 0 or solver.schedule is None or not any(begun),
            f"solver.learning_rate: in round {t} its function gives 0 after it was above 0; in "
            "asynchronous rounds, whose rates are relative to the server's, it must stay above 0",
        )
        rates = [each / rate if rate else 0.0 for each in begun]
        return {"age": t - self.started, "rate": np.array(rates)}
