"""Planning calls of the round program ahead of time, in a background thread."""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from fedprox.engine.compiled.call_inputs import Held, exchanges, held_state
from fedprox.engine.compiled.layout import Layout, needed
from fedprox.engine.planning.batch_plan import BatchPlan, plan_rounds
from fedprox.engine.planning.reads import Exchange
from fedprox.engine.planning.round_work import RoundWork, works
from fedprox.engine.storage.training_data import DeviceRows, TrainingRows
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


class Call(NamedTuple):
    """The inputs of one call of the rounds' program.

    Attributes:
        first: The first of its rounds.
        work: The work of its rounds; `device_row` refers to `rows`.
        rows: The training rows.
        plan: The batch plan.
        exchange: How gradients are read before the work; None if the method does not.
        held: Whose state the call holds; None for a method without client state.
        layout: The shapes of these inputs.
    """

    first: int
    work: Sequence[RoundWork]
    rows: DeviceRows
    plan: BatchPlan
    exchange: Exchange | None
    held: Held | None
    layout: Layout

    @property
    def done(self) -> int:
        """Number of rounds done after it."""
        return self.first + len(self.work)


def plan_call(
    method: Method,
    rows: TrainingRows,
    layout: Layout,
    seed: int,
    first: int,
    work: Sequence[RoundWork],
) -> Call:
    """Plan the call of some rounds."""
    protocol = method.protocol
    on_devices, placed = rows.of(work, layout.width, layout.room.rows)
    plan = plan_rounds(
        layout.shape,
        layout.room,
        method.solver,
        seed,
        [(t, each.jobs) for t, each in enumerate(placed, start=first)],
        noisy=protocol.noisy,
        keyed=method.keyed,
        columns=method.no_columns,
        process_index=protocol.ownership.process_index,
    )
    held = None
    if method.algorithm.client.state is not None:
        held = held_state(plan, placed, layout)
    return Call(first, placed, on_devices, plan, exchanges(placed, layout), held, layout)


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
        room = self.rows.needed(work, self.layout.width)
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
