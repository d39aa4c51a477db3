"""Planning calls of the round program ahead of time, in a background thread."""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from fedprox.engine.compiled.compile import Call, plan_call
from fedprox.engine.compiled.layout import Layout, needed
from fedprox.engine.planning.round_work import RoundWork, works
from fedprox.engine.storage.training_data import TrainingRows
from fedprox.protocol.method import Method

PLANS_AHEAD = 3
"""Number of calls that are planned ahead in the background."""


def chunks(
    begin: int, rounds: int, evaluate_every: int, most: int, pause: int
) -> Iterator[tuple[int, int]]:
    """Divide the remaining rounds into calls, which end at recorded rounds and at pauses.

    >>> list(chunks(1, 7, evaluate_every=5, most=3, pause=2))
    [(1, 2), (2, 4), (4, 5), (5, 6), (6, 7)]
    """
    while begin < rounds:
        following = (begin // each * each + each for each in (evaluate_every, pause))
        last = min(begin + most, rounds, *following)
        yield begin, last
        begin = last


class Planner:
    """Plans the calls of one seed, and enlarges their shapes if a round needs more room.

    Programs with different shapes may differ in the last bits. Therefore the shapes for a round
    depend only on the seed and on the rounds up to it, not on how rounds are grouped into calls.
    """

    def __init__(
        self, method: Method, rows: TrainingRows, seed: int, layout: Layout, first: int
    ) -> None:
        self.method, self.solver = method, method.solver
        self.rows, self.seed, self.layout = rows, seed, layout
        self.works = works(method.protocol, method.algorithm, method.solver, seed, first)

    def plan(self, begin: int, end: int) -> list[Call]:
        """Plan the calls of the next rounds: one, or more if the shapes grow within them."""
        calls, first, work = [], begin, list[RoundWork]()
        for t in range(begin, end):
            current = next(self.works)
            layout = self.layout.fitting(needed(self.layout, self.solver, current))
            if layout is not self.layout and work:
                calls.append(self._call(first, work))
                first, work = t, []
            self.layout = layout
            work.append(current)
        calls.append(self._call(first, work))
        return calls

    def _call(self, first: int, work: Sequence[RoundWork]) -> Call:
        """The call for rounds with this work, beginning with round `first`."""
        room = self.rows.needed(work, self.layout.reading.width)
        self.layout = self.layout.fitting(self.layout.room._replace(rows=room))
        return plan_call(self.method, self.rows, self.layout, self.seed, first, work)

    def ahead(self, pool: ThreadPoolExecutor, waiting: Iterator[tuple[int, int]]) -> Iterator[Call]:
        """The calls of some ranges of rounds, planned ahead in the background."""

        def submit(count: int) -> list[Future[list[Call]]]:
            return [pool.submit(self.plan, *part) for part in itertools.islice(waiting, count)]

        under_way = deque(submit(PLANS_AHEAD))

        def planned() -> Iterator[Call]:
            while under_way:
                calls = under_way.popleft()
                under_way.extend(submit(1))
                yield from calls.result()

        return planned()
