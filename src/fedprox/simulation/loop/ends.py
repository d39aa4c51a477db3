"""When a run ends before its last round: divergence, a target, no progress, or the user's word."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedprox.errors import require, shown
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run


class Ends:
    """Which points of a sweep have come to an end.

    They have diverged, reached the target, made no progress for long enough, or been told to stop.
    """

    def __init__(self, protocol: Protocol, points: int) -> None:
        self.target, self.stop, self.points = protocol.target, protocol.stop_at_target, points
        self.diverged, self.reached, self.stopped = set[int](), set[int](), set[int]()
        self.patience, self.told = protocol.selection.patience, protocol.stop
        self.best = [protocol.best() for _ in range(points)] if self.patience else []
        self.seen = 0

    def over(self, runs: Sequence[Run], evaluations: int) -> bool:
        """Whether the rounds end early, to judge by the first so many evaluations."""
        for seen in range(self.seen, evaluations):
            for point, run in enumerate(runs):
                self._see(point, run.history[seen])
        self.seen = max(self.seen, evaluations)
        if self.stop == "any" and self.reached:
            return True
        ended = self.diverged | self.stopped
        if self.stop == "all":
            ended |= self.reached
        return len(ended) == self.points

    def _see(self, point: int, record: Record) -> None:
        if not math.isfinite(record.train_loss):
            self.diverged.add(point)
        if self.target and self.target.met(record.value(self.target.measure)):
            self.reached.add(point)
        if self.patience:
            best = self.best[point]
            best.see(record)
            if best.since >= self.patience:
                self.stopped.add(point)
        if self.told is not None and _told(self.told, record):
            self.stopped.add(point)


def _told(stop: Callable[[Record], bool], record: Record) -> bool:
    """What the user's function says of a record."""
    answer = stop(record)
    require(
        isinstance(answer, bool | np.bool_),
        f"stop(record) returns {shown(answer)}; it must return True or False",
    )
    return bool(answer)
