"""The layout of one method's programs: their fixed shapes and their number of lanes.

Cohorts and stragglers are functions of the seed and the round, so the work of the first rounds is
known before the run begins. These rounds determine the shapes, with room to spare where rounds
differ. Planning continues while rounds run. A rare round that needs more room enlarges the shapes,
and the programs are compiled again. Results depend on the room only in their last bits; neither the
number of rounds nor the place where a run was interrupted changes them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from fedprox.simulation.config.method import Method
from fedprox.simulation.planning.batch_plan import Jobs, Shape, job_ticks, needs_checks, tick_width
from fedprox.simulation.planning.packing import Grid, choose_lanes, pack
from fedprox.simulation.planning.reads import slice_width, slices
from fedprox.simulation.planning.round_work import RoundWork, round_work
from fedprox.simulation.storage.training_data import TrainingRows
from fedprox.solver import Solver

SMALL_MODEL = 100_000
"""Parameters up to which several rounds are one call."""

SMALL_STEP = 10_000
"""Parameters up to which the fixed costs of a step on a CPU outweigh its arithmetic."""

PLAN_BYTES = 2**25
"""Most memory of one call's batch plan."""

LANE_BYTES = 2**31
"""Most memory of the lanes' parameters on an accelerator."""

SIZE, OWNER = map(Jobs._fields.index, ("size", "owner"))

SAMPLE_ROUNDS = 8, 256
"""Rounds that are looked at to choose the shapes, at least and at most."""

SAMPLE_CLIENTS = 2**16
"""Clients of these rounds at most, where their number is between the two."""

TYPICAL_ROUNDS = 64
"""Rounds looked at to choose the number of lanes."""

MOST_TOGETHER = 256
"""Rounds of one call at most."""


class Capacity(NamedTuple):
    """How much a call's arrays hold, or how much its rounds need.

    Attributes:
        ticks: Ticks of a round.
        slots: Jobs of a round.
        places: Jobs of a round on one device, where clients keep a state or their updates are
            compared; else 0.
        cohort_ticks: Ticks to read a cohort; 0 where gamma is not measured.
        exchange_slots: Clients of a first exchange's own cohort; 0 for a method without.
        exchange_ticks: Ticks to read gradients before the work; 0 where no client does.
        rows: Training rows that are gathered for a call; 0 where all of them are on the devices.
    """

    ticks: int
    slots: int
    places: int
    cohort_ticks: int
    exchange_slots: int
    exchange_ticks: int
    rows: int


class Layout(NamedTuple):
    """The shapes of one method's programs.

    Attributes:
        rounds: Shape of the batch plans.
        accumulate: Whether a mini-batch can take several ticks.
        batched: Whether a tick is one of all sweep points at once.
        idle: Share of lane ticks, over the first rounds, in which a lane has no client.
        lanes: Lanes per device that read whole clients.
        width: Training rows of a slice when reading whole clients.
        test_width: Test rows of a slice.
        cohort_ticks: As in `Capacity`.
        exchange_slots: Likewise.
        exchange_ticks: Likewise.
        rows: Likewise.
    """

    rounds: Shape
    accumulate: bool
    batched: bool
    idle: float
    lanes: int
    width: int
    test_width: int
    cohort_ticks: int
    exchange_slots: int
    exchange_ticks: int
    rows: int

    @property
    def reading_grid(self) -> Grid:
        """The lanes that read whole clients."""
        return Grid(self.rounds.devices, self.lanes, self.rounds.processes)

    @property
    def capacity(self) -> Capacity:
        """How much a call's arrays hold."""
        shape = self.rounds
        return Capacity(shape.ticks, shape.slots, shape.places, *self[-4:])

    def holding(self, capacity: Capacity) -> "Layout":
        """The same shapes but for how much they hold."""
        ticks, slots, places, *others = capacity
        shape = self.rounds._replace(ticks=ticks, slots=slots, places=places)
        return Layout(shape, *self[1:-4], *others)

    def fitting(self, needed: Capacity) -> "Layout":
        """These shapes where they hold what is needed, or else larger ones.

        They grow by half of what is needed, so that they grow seldom.
        """
        held = self.capacity
        pairs = list(zip(held, needed, strict=True))
        if all(need <= have for have, need in pairs):
            return self
        return self.holding(
            Capacity(*(have if need <= have else need + need // 2 for have, need in pairs))
        )


def spare(capacities: Sequence[Capacity]) -> Capacity:
    """The most that some rounds need, and half of how much they differ on top.

    >>> some = [Capacity(10, 4, 0, 0, 0, 0, 0), Capacity(20, 4, 0, 0, 0, 0, 0)]
    >>> spare(some)[:2]
    (25, 4)
    """
    columns = list(zip(*capacities, strict=True))
    return Capacity(*(max(c) + (max(c) - min(c)) // 2 for c in columns))


def needed(layout: Layout, solver: Solver, work: RoundWork) -> Capacity:
    """What one round needs, gathered rows apart.

    Args:
        layout: The shapes, in which how much they hold is not looked at.
        solver: The local solver, already the algorithm's own.
        work: The round's work.
    """
    shape = layout.rounds
    processes, lanes = shape.processes, shape.devices * shape.lanes
    packing = pack(job_ticks(solver, work.jobs, shape.width), lanes, work.jobs.owner, processes)

    def reading(*parts: Jobs) -> int:
        sizes, owner = (np.concatenate([part[i] for part in parts]) for i in (SIZE, OWNER))
        lengths = slices(sizes, layout.width)
        return max(1, pack(lengths, shape.devices * layout.lanes, owner, processes).ticks)

    on_device = np.bincount(packing.lane // shape.lanes, minlength=1)
    return Capacity(
        ticks=max(1, packing.ticks),
        slots=max(1, len(work.jobs.client)),
        places=max(1, int(on_device.max())) if shape.places else 0,
        cohort_ticks=reading(work.jobs) if layout.cohort_ticks else 0,
        exchange_slots=len(work.exchange.client),
        exchange_ticks=reading(work.jobs, work.exchange) if layout.exchange_ticks else 0,
        rows=0,
    )


def lay_out(method: Method, rows: TrainingRows, devices: int, parameters: int) -> Layout:
    """The shapes that fit the first rounds, and the lanes that make them fast.

    Args:
        method: The method.
        rows: The training rows.
        devices: Devices that the lanes are spread over.
        parameters: Parameters of the model.
    """
    sample = sample_rounds(method)
    layout = _lanes_of(method, sample, devices, parameters)
    each = [needed(layout, method.solver, work) for work in sample]
    layout = layout.holding(spare(each))
    together = _rounds_together(method, layout, rows.together(sample), parameters)
    layout = layout._replace(rounds=layout.rounds._replace(rounds=together))
    calls = [sample[i : i + together] for i in range(0, len(sample), together)]
    gathered = [each[0]._replace(rows=rows.needed(call, layout.width)) for call in calls]
    shape = layout.rounds
    used = sum(int(job_ticks(method.solver, w.jobs, shape.width).sum()) for w in sample)
    room = sum(need.ticks for need in each) * shape.devices * shape.lanes
    return layout._replace(rows=spare(gathered).rows, idle=1 - used / room if used else 0.0)


def _lanes_of(method: Method, sample: Sequence[RoundWork], devices: int, parameters: int) -> Layout:
    """A layout with its lanes and widths, which holds nothing yet."""
    protocol, algorithm, solver = method.protocol, method.algorithm, method.solver
    train, measured, faults = protocol.federation.train, protocol.measured, method.faults
    largest = len(train) if algorithm.pooled else int(train.sizes.max())
    tick = tick_width(solver, largest)
    typical = sample[:: math.ceil(len(sample) / TYPICAL_ROUNDS)]
    lengths = [job_ticks(solver, work.jobs, tick) for work in typical]
    points = len(method.points)
    cost = lane_cost(parameters * points, accelerator=jax.default_backend() != "cpu")
    width = slice_width(measured.train.sizes)
    clients = slices(measured.train.sizes, width)
    tests = np.array([max(len(measured.test), 1)])
    if method.tests_by_client:
        tests = measured.test.sizes
    has_places = algorithm.client_state is not None or (faults is not None and faults.compares)
    return Layout(
        rounds=Shape(
            rounds=1,
            devices=devices,
            lanes=choose_lanes(lengths, devices, cost.step, cost.most),
            ticks=1,
            slots=1,
            width=tick,
            places=int(has_places),
            processes=protocol.ownership.processes,
        ),
        accumulate=not solver.searches_line
        and (solver.batch_of(largest) > tick or needs_checks(solver)),
        batched=points == 1 or batch_points(parameters),
        idle=0.0,
        lanes=choose_lanes([clients], devices, cost.reading, cost.most),
        width=width,
        test_width=slice_width(tests),
        cohort_ticks=int(protocol.evaluation.gradients),
        exchange_slots=0,
        exchange_ticks=int(algorithm.own_gradient),
        rows=0,
    )


def _rounds_together(method: Method, layout: Layout, gathered: int, parameters: int) -> int:
    """Rounds of one call, given how many of them can be gathered for it."""
    algorithm = method.algorithm
    # client state is fetched for one round, and an adaptive mu follows each round's loss
    if (
        parameters > SMALL_MODEL
        or algorithm.client_state is not None
        or algorithm.adapt is not None
    ):
        return 1
    # not fewer if the run is shorter, since it may be extended
    most = min(method.protocol.evaluation.every, MOST_TOGETHER)
    return max(1, min(most, PLAN_BYTES // layout.rounds.plan_bytes, gathered))


def sample_rounds(method: Method) -> list[RoundWork]:
    """The work of the first rounds of the first seed, however many rounds the run has."""
    protocol, solver = method.protocol, method.solver
    least, most = SAMPLE_ROUNDS
    count = max(least, min(most, SAMPLE_CLIENTS // protocol.cohort.clients_per_round))
    if callable(solver.gamma):  # it does not change the work, and may end with the rounds
        solver = replace(solver, gamma=0.0)
    seed = protocol.seeds[0]
    return [round_work(protocol, method.algorithm, solver, seed, t) for t in range(count)]


class LaneCost(NamedTuple):
    """What a tick costs beside its lanes' work, in units of one lane's.

    Attributes:
        step: Of a tick that is a mini-batch step.
        reading: Of a tick that reads a slice of rows.
        most: Most lanes per device.
    """

    step: float
    reading: float
    most: int


def lane_cost(parameters: int, *, accelerator: bool) -> LaneCost:
    """The cost of ticks on an accelerator or on a CPU.

    On a CPU, measured with logistic regression, four tenths of a small model's step are overhead;
    larger models are faster one lane after another, since XLA transposes the operands of every
    product that has a batch axis. An accelerator runs tens of small lanes in the time of one, as
    long as their parameters fit.

    Args:
        parameters: Parameters of one lane, all points of the sweep together.
        accelerator: Whether the backend is a GPU or TPU.
    """
    if accelerator:
        fitting = LANE_BYTES // (12 * parameters)
        return LaneCost(step=64.0, reading=64.0, most=max(1, min(1024, fitting)))
    small = parameters <= SMALL_STEP
    return LaneCost(step=0.7, reading=0.0, most=4) if small else LaneCost(0.0, 0.0, 1)


def batch_points(parameters: int) -> bool:
    """Whether the points of a sweep should step together on the backend in use.

    They share a mini-batch's rows and a tick's overhead, which is most of a small model's step. A
    larger model's parameters should stay in a core's cache from one step to the next.

    Args:
        parameters: Parameters of the model at one point.
    """
    return jax.default_backend() != "cpu" or parameters <= SMALL_STEP
