"""The events of asynchronous rounds: who starts when, and whose updates each step has.

How long each client takes is known before any training, so events are ordered on the host, and a
step of the server is a round of B jobs with their staleness.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from typing import Protocol as TypingProtocol

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require
from fedprox.parts.asynchronous import Asynchronous
from fedprox.parts.part import Columns
from fedprox.parts.time.availability import ROUNDING, Hours
from fedprox.parts.time.pace import Pace
from fedprox.solver import Solver
from fedprox.streams import Purpose, Streams, generator

DRAWN_TOGETHER = 1024
"""Random numbers that are drawn together, since each call costs as much as tens of numbers."""

TRIES = 64
"""How often a client is drawn that cannot start, before those that can are listed."""


MOST_LOST = 10_000
"""Most updates that may be lost between two steps, or ten for each client."""


class Step(NamedTuple):
    """A step of the server.

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

    def columns(self, t: int, solver: Solver) -> Columns:
        """Steps since the clients started, and their rates relative to that of step t, this one."""
        rate, begun = solver.factor(t), [solver.factor(each) for each in self.started.tolist()]
        require(
            rate > 0 or solver.schedule is None or not any(begun),
            f"solver.learning_rate: in round {t} its function gives 0 after it was above 0; in "
            "asynchronous rounds, whose rates are relative to the server's, it must stay above 0",
        )
        rates = [each / rate if rate else 0.0 for each in begun]
        return {"age": t - self.started, "rate": np.array(rates)}


class AtWork(TypingProtocol):
    """The clients at work, by a clock.

    Attributes:
        clients: Number of clients.
    """

    clients: int

    @property
    def now(self) -> float:
        """Seconds from the begin of the run."""

    def start(self, most: int, step: int) -> int:
        """Start clients at a step, at most so many, and return their number."""

    def next(self, *, full: bool) -> Iterator[tuple[int, int, bool]]:
        """Who is done next: client, the step at which it started, whether it arrives.

        Unless M clients are at work (`full`), nobody may be done before another goes on.
        """

    def free(self, clients: list[int]) -> None:
        """Let clients be drawn again."""


def server_steps(
    asynchronous: Asynchronous, events: AtWork, most: int, first: int = 0
) -> Iterator[Step]:
    """The steps of the server.

    Updates that arrive at the same time count in the order in which their clients started. New
    clients start after all that happens at a time, from the newest state.
    """
    at_work, step, lost = 0, first, 0
    clients, versions = list[int](), list[int]()
    while True:
        at_work += events.start(most - at_work, step)
        for client, started, arrives in events.next(full=at_work == most):
            at_work -= 1
            if not arrives or step - started > asynchronous.most_staleness:
                events.free([client])
                lost += 1
                require(
                    lost < max(MOST_LOST, 10 * events.clients),
                    f"asynchronous: {lost} updates in a row were lost or too old, and none arrived "
                    f"for step {step}: clients must be on for as long as they need, and "
                    "most_staleness not be too small",
                )
                continue
            clients.append(client)
            versions.append(started)
            if len(clients) == asynchronous.buffer:
                starts = np.array(versions)
                factor = asynchronous.factor(step - starts)
                yield Step(np.array(clients), starts, events.now, lost, factor)
                events.free(clients)
                step, lost, clients, versions = step + 1, 0, [], []


def blocks(draw: Callable[[], NDArray[Any]]) -> Iterator[Any]:
    """The numbers of blocks that are drawn when they are needed."""
    while True:
        yield from draw().tolist()


class Clocks:
    """`Hours` of one client after the other, in Python's numbers, which are faster then."""

    def __init__(self, hours: Hours) -> None:
        self.hours, self.period = hours, hours.period
        self.first, self.begin, self.length = (a.tolist() for a in hours[:3])

    def left(self, now: float, client: int) -> float:
        """Seconds for which a client stays on, 0 if it is off."""
        for at in range(self.first[client], self.first[client + 1]):
            since = (now - self.begin[at]) % self.period
            if self.period - since < ROUNDING * self.period:
                since = 0.0
            if since < self.length[at]:
                return float(self.length[at] - since)
        return 0.0


class Events:
    """The clients at work, by when their devices are done.

    Args:
        pace: How long each client takes.
        seconds: How long its whole work takes it, shape (clients,).
        dropout: Chance that a client is lost.
        seed: The seed.
        on_start: Called with each client that starts and will arrive, and with its step.
    """

    def __init__(
        self,
        pace: Pace,
        seconds: NDArray[np.float64],
        dropout: float,
        seed: int,
        on_start: Callable[[int, int], None] = lambda client, step: None,  # noqa: ARG005
    ) -> None:
        self.on_start = on_start
        self.clients, self.dropout = len(seconds), dropout
        self.seconds: list[float] = seconds.tolist()
        self.hours = pace.hours and Clocks(pace.hours)
        self.now, self.order = 0.0, 0
        self.busy, self.count = bytearray(self.clients), 0
        self.queue: list[tuple[float, int, int, int, bool]] = []
        self.cohorts = Streams(seed, Purpose.COHORT)
        stream = generator(seed, Purpose.ARRIVALS)
        self.drawn = blocks(lambda: stream.integers(self.clients, size=DRAWN_TOGETHER))
        losses = generator(seed, Purpose.DROPOUT)
        self.losses = blocks(lambda: losses.random(DRAWN_TOGETHER))

    def free(self, clients: list[int]) -> None:
        """Let clients be drawn again."""
        for client in clients:
            self.busy[client] = 0
        self.count -= len(clients)

    def start(self, most: int, step: int) -> int:
        """Start clients at a step, at most so many, and return their number."""
        chosen = list[int]()
        if not self.count and self.hours is None:  # as the cohort of a round with a barrier
            stream = self.cohorts.at(step, 0)
            chosen = stream.choice(self.clients, min(most, self.clients), replace=False).tolist()
            self.take(chosen)
        while len(chosen) < most and (client := self.draw()) is not None:
            chosen.append(client)
            self.take([client])
        for client in chosen:
            seconds, arrives = self.seconds[client], True
            if self.dropout or self.hours is not None:
                seconds, arrives = self.end(client)
            if arrives:
                self.on_start(client, step)
            heapq.heappush(self.queue, (self.now + seconds, self.order, client, step, arrives))
            self.order += 1
        return len(chosen)

    def draw(self) -> int | None:
        """A client that is neither at work nor in the buffer, and on; None if there is none."""
        if self.count == self.clients:
            return None
        for client in itertools.islice(self.drawn, TRIES):
            if not self.busy[client] and (self.hours is None or self.hours.left(self.now, client)):
                return client
        free = np.flatnonzero(np.frombuffer(self.busy, np.uint8) == 0).tolist()
        if self.hours is not None:
            free = [client for client in free if self.hours.left(self.now, client)]
        return free[next(self.drawn) % len(free)] if free else None

    def take(self, clients: list[int]) -> None:
        """Mark clients as busy."""
        for client in clients:
            self.busy[client] = 1
        self.count += len(clients)

    def end(self, client: int) -> tuple[float, bool]:
        """Seconds until a client that starts now is done or lost, and whether it arrives."""
        seconds = lost = self.seconds[client]
        if self.dropout and next(self.losses) < self.dropout:
            lost = next(self.losses) * seconds
        if self.hours is not None:
            lost = min(lost, self.hours.left(self.now, client))
        return lost, lost == seconds

    def next(self, *, full: bool) -> Iterator[tuple[int, int, bool]]:
        """The clients that are done next, as `AtWork` says."""
        if self.hours is not None and not full:
            goes_on = self.now + self.hours.hours.wait(self.now)
            if not self.queue or goes_on < self.queue[0][0]:
                self.now = goes_on
                return
        self.now = self.queue[0][0]
        while self.queue and self.queue[0][0] == self.now:
            _, _, client, started, arrives = heapq.heappop(self.queue)
            yield client, started, arrives
