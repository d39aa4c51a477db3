"""When a run ends early: by divergence, a target, no progress, or the user's function."""

from collections.abc import Callable, Sequence

import numpy as np

from fedprox.errors import require, shown
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run


class EarlyEnd:
    """Decides whether the rounds of a seed run end early.

    A sweep point is over when it has diverged, reached the target, run out of patience, or been
    stopped by the user's function.
    """

    def __init__(self, protocol: Protocol, points: int) -> None:
        self.target, self.stop, self.points = protocol.target, protocol.stop_at_target, points
        self.diverged, self.reached, self.stopped = set[int](), set[int](), set[int]()
        self.patience, self.user_stop = protocol.selection.patience, protocol.stop
        self.best = [protocol.best() for _ in range(points)] if self.patience else []
        self.seen = 0

    def over(self, runs: Sequence[Run], evaluations: int) -> bool:
        """Whether the rounds end after the first `evaluations` records of each run."""
        for index in range(self.seen, evaluations):
            for point, run in enumerate(runs):
                self._see(point, run.history[index])
        self.seen = max(self.seen, evaluations)
        if self.stop == "any" and self.reached:
            return True
        ended = self.diverged | self.stopped
        if self.stop == "all":
            ended |= self.reached
        return len(ended) == self.points

    def _see(self, point: int, record: Record) -> None:
        if record.diverged:
            self.diverged.add(point)
        if self.target and self.target.met(record.value(self.target.measure)):
            self.reached.add(point)
        if self.patience and record.measured is not False:
            best = self.best[point]
            best.see(record)
            if best.since >= self.patience:
                self.stopped.add(point)
        if self.user_stop is not None and _ask(self.user_stop, record):
            self.stopped.add(point)


def _ask(stop: Callable[[Record], bool], record: Record) -> bool:
    """Whether the user's function ends the run at a record."""
    answer = stop(record)
    require(
        isinstance(answer, bool | np.bool_),
        f"stop(record) returns {shown(answer)}; it must return True or False",
    )
    return bool(answer)
