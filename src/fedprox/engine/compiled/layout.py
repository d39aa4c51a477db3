"""The layout of one method's programs: their fixed shapes and their number of lanes.

Cohorts and stragglers are functions of the seed and the round, so the work of the first rounds is
known before the run begins. These rounds determine the shapes, with spare room if rounds differ.
Planning continues while rounds run. If a later round needs more room, the shapes grow, and the
programs are compiled again. Results depend on the room only in their last bits. They depend neither
on the number of rounds nor on interruptions.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from fedprox.engine.planning.batch_plan import (
    Capacity,
    PoissonTicks,
    Shape,
    job_ticks,
    needs_checks,
    plan_bytes,
    tick_width,
)
from fedprox.engine.planning.jobs import Jobs, choose_lanes, pack
from fedprox.engine.planning.reads import slice_width, slices
from fedprox.engine.planning.round_work import RoundWork, drawn_works, example_width
from fedprox.engine.storage.training_data import TrainingRows
from fedprox.features import row_shapes
from fedprox.model import Params, bytes_of, trainable
from fedprox.protocol.method import Method
from fedprox.solver import Solver

SMALL_MODEL = 100_000
"""Most parameters of a model for which one call runs many rounds."""

SMALL_STEP = 10_000
"""Most parameters for which the fixed costs of a step on a CPU exceed its arithmetic."""

PLAN_BYTES = 2**25
"""Most bytes of one call's batch plan."""

STATE_BYTES = 2**23
"""Most bytes of client state that each device holds for a call of several rounds: the state of 250
clients with logistic regression on MNIST. Rounds with more state take much longer than a call."""

LANE_BYTES = 2**31
"""Most bytes of the lanes' parameters on an accelerator."""

AHEAD_BYTES = 2**17
"""Most bytes of rows that are read at once: with longer rows more is lost than gained."""

LEAST_AHEAD, MOST_AHEAD = 16, 128
"""Fewest and most ticks whose rows are read at once."""

SAMPLE_ROUNDS = 8, 256
"""Fewest and most rounds whose work determines the shapes."""

SAMPLE_CLIENTS = 2**16
"""Clients whose work determines the shapes, within `SAMPLE_ROUNDS`."""

TYPICAL_ROUNDS = 64
"""Most rounds whose work determines the number of lanes."""

MOST_TOGETHER = 256
"""Most rounds of one call."""


class Layout(NamedTuple):
    """The shapes of one method's programs.

    Attributes:
        shape: The numbers that all batch plans share.
        reading: The same for reading whole clients, slice by slice.
        room: How much a call's arrays hold.
        accumulate: Whether a mini-batch can take several ticks.
        batched: Whether a tick steps all sweep points at once.
        idle: Share of lane ticks in which a lane has no client, over the first rounds.
        clients: Number of clients of the federation.
        ahead: Ticks whose rows are read at once.
    """

    shape: Shape
    reading: Shape
    room: Capacity
    accumulate: bool
    batched: bool
    idle: float
    clients: int
    ahead: int

    @property
    def held(self) -> int:
        """Clients per device whose state is an input of a call, if the method has client state."""
        shape = self.shape
        if shape.rounds == 1:
            return self.room.places
        return -(-min(self.clients, shape.rounds * self.room.slots) // shape.devices)

    def together(self, rounds: int) -> "Layout":
        """The same layout for calls of at most so many rounds."""
        shape, reading = (each._replace(rounds=rounds) for each in self[:2])
        return self._replace(shape=shape, reading=reading)

    def fitting(self, needed: Capacity) -> "Layout":
        """This layout if its room is sufficient, else one with more.

        A part that is too small becomes 1.5 times what is needed, so that it rarely grows.
        """
        pairs = list(zip(self.room, needed, strict=True))
        if all(need <= have for have, need in pairs):
            return self
        larger = (have if need <= have else need + need // 2 for have, need in pairs)
        return self._replace(room=Capacity(*larger))


def bucket(count: int) -> int:
    """The next power of two; 0 for 0.

    >>> [bucket(n) for n in (0, 1, 5, 8)]
    [0, 1, 8, 8]
    """
    return 1 << (count - 1).bit_length() if count else 0


def spare(capacities: Sequence[Capacity]) -> Capacity:
    """The largest capacity that some rounds need, plus half of its range over the rounds.

    >>> room = spare([Capacity(10, 4), Capacity(20, 4)])
    >>> room.ticks, room.slots
    (25, 4)
    """
    columns = list(zip(*capacities, strict=True))
    return Capacity(*(max(c) + (max(c) - min(c)) // 2 for c in columns))


def needed(layout: Layout, solver: Solver, work: RoundWork) -> Capacity:
    """The capacity that one round needs, without gathered rows, of the fields that are used."""
    shape, room = layout.shape, layout.room
    processes, lanes = shape.processes, shape.devices * shape.lanes
    packing = pack(job_ticks(solver, work.jobs, shape.width), lanes, work.jobs.owner, processes)

    def reading(*parts: Jobs) -> int:
        lengths = slices(np.concatenate([part.size for part in parts]), layout.reading.width)
        owner = np.concatenate([part.owner for part in parts])
        return max(1, pack(lengths, shape.devices * layout.reading.lanes, owner, processes).ticks)

    on_device = np.bincount(packing.lane // shape.lanes, minlength=1)
    return Capacity(
        ticks=max(1, packing.ticks),
        slots=max(1, len(work.jobs.client)),
        places=max(1, int(on_device.max())) if room.places else 0,
        cohort_ticks=reading(work.jobs) if room.cohort_ticks else 0,
        exchange_slots=len(work.exchange.client),
        exchange_ticks=reading(work.jobs, work.exchange) if room.exchange_ticks else 0,
    )


def lay_out(method: Method, rows: TrainingRows, devices: int, params: Params) -> Layout:
    """Choose the shapes and the number of lanes for the first rounds of a method."""
    sample = sample_rounds(method)
    parameters = sum(a.size for a in jax.tree.leaves(trainable(params)))
    layout = _empty_layout(method, sample, devices, parameters)
    capacities = [needed(layout, method.solver, work) for work in sample]
    layout = layout._replace(room=_largest_cohort(method, spare(capacities)))
    most = min(_rounds_with_state(method, layout, params), rows.together(sample))
    together = _rounds_together(method, layout, most, parameters)
    layout = layout.together(together)
    calls = [sample[i : i + together] for i in range(0, len(sample), together)]
    width = layout.reading.width
    gathered = [capacities[0]._replace(rows=rows.needed(call, width)) for call in calls]
    shape = layout.shape
    used = sum(int(job_ticks(method.solver, w.jobs, shape.width).sum()) for w in sample)
    ticks = sum(need.ticks for need in capacities) * shape.devices
    room = layout.room._replace(rows=spare(gathered).rows)
    jobs = sum(len(work.jobs.client) for work in sample)
    return layout._replace(
        room=room,
        idle=1 - used / (ticks * shape.lanes) if used else 0.0,
        ahead=_ticks_ahead(method, layout, parameters, ticks / max(1, jobs)),
    )


def _ticks_ahead(method: Method, layout: Layout, parameters: int, ticks: float) -> int:
    """Ticks whose rows are read at once, a power of two, if one job ends after so many `ticks`.

    On a CPU a small model waits longer for its rows than it computes, unless they are read for many
    steps at once. Those of steps that a job does not have are wasted.
    """
    if jax.default_backend() != "cpu" or parameters * len(method.points) > SMALL_STEP:
        return 1
    examples = method.protocol.federation.train
    row = bytes_of((row_shapes(examples.x), row_shapes(examples.y)))
    fitting = AHEAD_BYTES // (layout.shape.lanes * layout.shape.width * row)
    most = min(fitting, int(ticks / 4), MOST_AHEAD)
    return 1 << most.bit_length() - 1 if most >= LEAST_AHEAD else 1


def _largest_cohort(method: Method, capacity: Capacity) -> Capacity:
    """The capacity with slots for the largest cohort, if its size has a limit."""
    most = method.protocol.capacity(method.algorithm)
    if most is None:
        return capacity
    return capacity._replace(slots=most, exchange_slots=most if capacity.exchange_slots else 0)


def stores_messages(method: Method) -> bool:
    """Whether each device stores the messages of a round until its end."""
    return method.reduction.stores


def _empty_layout(
    method: Method, sample: Sequence[RoundWork], devices: int, parameters: int
) -> Layout:
    """A layout with lanes and widths, and without room."""
    protocol, algorithm, solver = method.protocol, method.algorithm, method.solver
    train, measured = protocol.federation.train, protocol.measured
    largest = len(train) if algorithm.pooled else int(train.sizes.max())
    tick = (
        solver.batch_of(largest) if algorithm.client.whole_batches else tick_width(solver, largest)
    )
    if protocol.samples_rows:
        tick = example_width(protocol, solver)
    typical = sample[:: math.ceil(len(sample) / TYPICAL_ROUNDS)]
    lengths = [job_ticks(solver, work.jobs, tick) for work in typical]
    points = len(method.points)
    step, slice_, most = lane_cost(
        parameters * points,
        accelerator=jax.default_backend() != "cpu",
        samples_rows=protocol.samples_rows,
    )
    width = slice_width(measured.train.sizes)
    clients = slices(measured.train.sizes, width)
    has_places = algorithm.client.state is not None or stores_messages(method)
    lanes = choose_lanes(lengths, devices, step, most)
    shape = Shape(1, devices, lanes, width=tick, processes=protocol.ownership.processes)
    lanes = choose_lanes([clients], devices, slice_, most)
    return Layout(
        shape=shape,
        reading=shape._replace(lanes=lanes, width=width),
        room=Capacity(
            ticks=1,
            slots=1,
            places=int(has_places),
            cohort_ticks=int(protocol.evaluation.gradients),
            exchange_ticks=int(algorithm.first.reads),
        ),
        accumulate=protocol.samples_rows
        or (not solver.searches_line and (solver.batch_of(largest) > tick or needs_checks(solver))),
        batched=points == 1 or batch_points(parameters),
        idle=0.0,
        clients=len(protocol.federation),
        ahead=1,
    )


def _rounds_with_state(method: Method, layout: Layout, params: Params) -> int:
    """Most rounds of one call for whose clients each device can hold the state."""
    initial = method.algorithm.client.state
    if initial is None:
        return MOST_TOGETHER
    if layout.shape.processes > 1:  # each process stores the state of its own clients
        return 1
    leaves = jax.tree.leaves(jax.eval_shape(initial, params))
    size = len(method.points) * sum(a.size * a.dtype.itemsize for a in leaves)
    if layout.clients * size <= STATE_BYTES:
        return MOST_TOGETHER
    return max(1, STATE_BYTES // (layout.room.slots * size))


def _rounds_together(method: Method, layout: Layout, most: int, parameters: int) -> int:
    """Rounds of one call, at most `most`."""
    # an adaptive mu follows each round's loss; a call returns the steps that clients took only for
    # its last round
    if (
        parameters > SMALL_MODEL
        or method.algorithm.adapt is not None
        or (method.protocol.evaluation.client_records and method.solver.gamma is not None)
    ):
        return 1
    # independent of the number of rounds of the run, since it may be extended
    most = min(method.protocol.evaluation.every, MOST_TOGETHER, most)
    return max(1, min(most, PLAN_BYTES // plan_bytes(layout.together(1).shape, layout.room)))


def sample_rounds(method: Method) -> list[RoundWork]:
    """The work of the first rounds of the first seed, independent of the run's number of rounds."""
    protocol, solver = method.protocol, method.solver
    least, most = SAMPLE_ROUNDS
    count = max(least, min(most, SAMPLE_CLIENTS // protocol.cohort.clients_per_round))
    if callable(solver.gamma):  # may be undefined after the last round, and does not matter here
        solver = replace(solver, gamma=0.0)
    rounds = drawn_works(protocol, method.algorithm, solver, protocol.seeds[0])
    sample = list(itertools.islice(rounds, count))
    if not protocol.samples_rows:
        return sample
    # drawing the rows of so many rounds could take longer than the run
    ticks = PoissonTicks(solver, example_width(protocol, solver), protocol.seeds[0])
    return [
        work._replace(jobs=work.jobs.with_columns(ticks=ticks.usual(work.jobs))) for work in sample
    ]


def lane_cost(
    parameters: int, *, accelerator: bool, samples_rows: bool = False
) -> tuple[float, float, int]:
    """Overheads of a step and of reading a slice, in units of one lane's work, and the most lanes.

    On a CPU, four tenths of a small model's step are overhead (measured with logistic regression).
    Larger models are faster with one lane, since XLA transposes the operands of every matrix
    multiplication that has a batch axis. An accelerator runs tens of small lanes in the time of
    one, if their parameters fit.
    """
    if accelerator:
        fitting = LANE_BYTES // (12 * parameters)
        return 64.0, 64.0, max(1, min(1024, fitting))
    small = parameters <= SMALL_STEP and not samples_rows
    return (0.7, 0.0, 4) if small else (0.0, 0.0, 1)


def batch_points(parameters: int) -> bool:
    """Whether all sweep points should step together on the backend in use.

    They then share a mini-batch's rows and a tick's overhead, which is most of a small model's
    step. The parameters of a larger model should stay in a core's cache from step to step.
    """
    return jax.default_backend() != "cpu" or parameters <= SMALL_STEP
