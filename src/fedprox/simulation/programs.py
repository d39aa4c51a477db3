"""The programs of one method: their fixed shapes, and compilation.

Cohorts and stragglers are functions of the seed and the round, so the work of some rounds can be
looked at before the run begins. These rounds fix the shapes, with room to spare where rounds
differ. Planning goes on while rounds run. The rare round that needs more room enlarges the shapes,
and the programs are then compiled again. What is computed does not depend on how much room there
is, but for the last bits; neither the number of rounds nor the place where a run was interrupted
changes any of these.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, Kept, State
from fedprox.federation import Federation, Rows
from fedprox.model import Model, Params
from fedprox.simulation.engine import After, rounds_program
from fedprox.simulation.evaluate import (
    Measures,
    StandFor,
    Validation,
    counts_tests_by_client,
    evaluation_program,
    inexactness_program,
)
from fedprox.simulation.exchange import Exchange, plan_exchanges
from fedprox.simulation.faults import Faults
from fedprox.simulation.homes import Homes
from fedprox.simulation.lanes import PER_DEVICE, REPLICATED, on_all, replicate, shard
from fedprox.simulation.protocol import Protocol, RoundWork, is_noisy
from fedprox.simulation.reading import (
    Reading,
    plan_reading,
    read_everything,
    slice_width,
    slices,
)
from fedprox.simulation.rows import Data, Held, TrainingRows, rows_spec
from fedprox.simulation.schedule import (
    Array,
    Jobs,
    Plan,
    Shape,
    choose_lanes,
    job_ticks,
    needs_checks,
    no_jobs,
    pack,
    plan_rounds,
    tick_width,
)
from fedprox.solver import Solver

SMALL_MODEL = 100_000
"""Parameters up to which several rounds are one call."""

SMALL_STEP = 10_000
"""Parameters up to which the fixed costs of a step on a CPU outweigh its arithmetic."""

PLAN_BYTES = 2**25
"""Most memory of one call's batch plan."""

LANE_BYTES = 2**31
"""Most memory of the lanes' parameters on an accelerator."""

SIZE, HOME = map(Jobs._fields.index, ("size", "home"))

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
    homes, lanes = shape.homes, shape.devices * shape.lanes
    packing = pack(job_ticks(solver, work.jobs, shape.width), lanes, work.jobs.home, homes)

    def reading(*parts: Jobs) -> int:
        sizes, home = (np.concatenate([part[i] for part in parts]) for i in (SIZE, HOME))
        lengths = slices(sizes, layout.width)
        return max(1, pack(lengths, shape.devices * layout.lanes, home, homes).ticks)

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


def lay_out(
    measured: Federation,
    algorithm: Algorithm,
    solver: Solver,
    sample: Sequence[RoundWork],
    rows: TrainingRows,
    *,
    largest: int,
    devices: int,
    homes: int,
    parameters: int,
    points: int,
    together: int,
    faults: Faults | None,
    gradients: bool,
    by_client: bool,
) -> Layout:
    """Find the shapes that fit some rounds, and the lanes that make them fast.

    Args:
        measured: The clients with the rows that evaluations read.
        algorithm: The method.
        solver: The local solver, already the algorithm's own.
        sample: The work of the first rounds.
        rows: The training rows.
        largest: Rows of the largest job.
        devices: Devices the lanes are spread over.
        homes: Processes that share them.
        parameters: Parameters of the model.
        points: Points of the sweep.
        together: Most rounds that can run without a look at the model.
        faults: What is done about faulty updates; None for no screening.
        gradients: Whether evaluations measure gradients.
        by_client: Whether evaluations say what they find client by client too.
    """
    tick = tick_width(solver, largest)
    lengths = [job_ticks(solver, w.jobs, tick) for w in sample]
    cost = lane_cost(parameters * points, accelerator=jax.default_backend() != "cpu")
    typical = lengths[:: math.ceil(len(lengths) / TYPICAL_ROUNDS)]
    width = slice_width(measured.train.sizes)
    clients = slices(measured.train.sizes, width)
    tests = np.array([max(len(measured.test), 1)])
    if counts_tests_by_client(by_client=by_client, screened=faults is not None):
        tests = measured.test.sizes
    has_places = algorithm.kept is not None or (faults is not None and faults.compares)
    layout = Layout(
        rounds=Shape(
            rounds=1,
            devices=devices,
            lanes=choose_lanes(typical, devices, cost.step, cost.most),
            ticks=1,
            slots=1,
            width=tick,
            places=int(has_places),
            homes=homes,
        ),
        accumulate=not solver.searches_line
        and (solver.batch_of(largest) > tick or needs_checks(solver)),
        batched=points == 1 or batch_points(parameters),
        idle=0.0,
        lanes=choose_lanes([clients], devices, cost.reading, cost.most),
        width=width,
        test_width=slice_width(tests),
        cohort_ticks=int(gradients),
        exchange_slots=0,
        exchange_ticks=int(algorithm.own_gradient),
        rows=0,
    )
    each = [needed(layout, solver, work) for work in sample]
    layout = layout.holding(spare(each))
    shape = layout.rounds
    # what clients keep is fetched for one round
    if parameters <= SMALL_MODEL and algorithm.kept is None:
        most = min(together, MOST_TOGETHER, PLAN_BYTES // shape.plan_bytes)
        shape = shape._replace(rounds=max(1, min(most, rows.together(sample))))
    calls = [sample[i : i + shape.rounds] for i in range(0, len(sample), shape.rounds)]
    gathered = spare([each[0]._replace(rows=rows.needed(call, width)) for call in calls])
    used = sum(int(length.sum()) for length in lengths)
    room = sum(need.ticks for need in each) * shape.devices * shape.lanes
    return layout._replace(rounds=shape, rows=gathered.rows, idle=1 - used / room if used else 0.0)


def sample_rounds(protocol: Protocol, algorithm: Algorithm, solver: Solver) -> list[RoundWork]:
    """The work of the first rounds of the first seed, however many rounds the run has.

    Args:
        protocol: What compared methods share.
        algorithm: The method.
        solver: The local solver, already the algorithm's own.
    """
    least, most = SAMPLE_ROUNDS
    count = max(least, min(most, SAMPLE_CLIENTS // protocol.cohort.clients_per_round))
    if callable(solver.gamma):  # it does not change the work, and may end with the rounds
        solver = replace(solver, gamma=0.0)
    seed = protocol.seeds[0]
    return [protocol.round_work(algorithm, solver, seed, t) for t in range(count)]


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
        accelerator: Whether it is one.
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


class Programs(NamedTuple):
    """One method's compiled programs; see `rounds_program` and `evaluate`.

    Attributes:
        rounds: state, numbers, x, y, plan, exchange, what the cohort keeps, number of rounds ->
            After.
        evaluate: state -> Measures.
        inexactness: state, numbers, local models, x, y, how to read the cohort, see `read_cohort`
            -> gamma; None where gradients are not measured.
        compile_seconds: How long they took to compile.
        memory: Bytes that the rounds' program has on a device at most, data included.
    """

    rounds: Callable[..., After]
    evaluate: Callable[[State], Measures]
    inexactness: Callable[..., jax.Array] | None
    compile_seconds: float
    memory: int


def compile_programs(
    model: Model,
    algorithm: Algorithm,
    solver: Solver,
    federation: Federation,
    measured: Federation,
    data: Data,
    held: Held,
    state: State,
    numbers: Mapping[str, Array],
    kept: Kept,
    layout: Layout,
    homes: Homes,
    mesh: Mesh,
    *,
    gradients: bool,
    faults: Faults | None,
    by_client: bool,
    before: Programs | None = None,
) -> Programs:
    """Compile a method's programs, side by side, for exactly the shapes they will see.

    Args:
        model: The model.
        algorithm: The method.
        solver: The local solver, already the algorithm's own.
        federation: The clients that evaluations read, with all their rows.
        measured: The same with the rows that they read.
        data: What evaluations read.
        held: The training rows of a call, or their shapes.
        state: The server's state.
        numbers: The numbers of all points.
        kept: What a cohort's clients keep.
        layout: The shapes of the method's programs.
        homes: Which process reads which of these clients.
        mesh: The devices.
        gradients: Whether to measure gradients.
        faults: What is done about faulty updates; None for no screening.
        by_client: Whether evaluations say what they find client by client too.
        before: The programs of a layout that holds less, of which the evaluation is taken over.
    """
    begin = time.perf_counter()
    shape = layout.rounds
    spec = tuple(rows_spec(a, homes) for a in held)
    plan = plan_rounds(shape, solver, 0, [], noisy=is_noisy(federation, model))
    traced: dict[str, Any] = {}
    traced["rounds"] = rounds_program(
        model,
        algorithm,
        solver,
        mesh,
        shape,
        augment=federation.augment,
        accumulate=layout.accumulate,
        keep_local=gradients,
        reading_lanes=layout.lanes,
        width=layout.width,
        batched=layout.batched,
        faults=faults,
        rows=spec,
    ).trace(state, numbers, *held, plan, exchanges([], layout), kept, np.int32(0))
    # measurements are made in full precision, also where an accelerator trains in less
    with jax.default_matmul_precision("highest"):
        if before is None:
            traced["evaluation"], read = _trace_evaluation(
                model,
                evaluated(algorithm, state),
                federation,
                measured,
                data,
                layout,
                homes,
                mesh,
                gradients=gradients,
                screened=faults is not None,
                by_client=by_client,
            )
        if gradients:
            replicated = NamedSharding(mesh, REPLICATED)
            local = jax.tree.map(
                lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=replicated),
                traced["rounds"].out_info.local.params,
            )
            program = inexactness_program(
                model, algorithm, mesh, lanes=layout.lanes, width=layout.width, rows=spec
            )
            cohort = read_cohort(no_jobs(), plan, 0, kept, layout, mesh)
            traced["inexactness"] = program.trace(state, numbers, local, *held, *cohort)
    with ThreadPoolExecutor() as pool:
        compiled = pool.map(lambda each: each.lower().compile(), traced.values())
        programs = dict(zip(traced, compiled, strict=True))
    memory = programs["rounds"].memory_analysis()
    ready = {name: on_all(program) for name, program in programs.items()}

    def evaluate(state: State) -> Measures:
        return ready["evaluation"](evaluated(algorithm, state), *read)

    return Programs(
        rounds=ready["rounds"],
        evaluate=evaluate if before is None else before.evaluate,
        inexactness=ready.get("inexactness"),
        compile_seconds=time.perf_counter() - begin,
        memory=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
    )


def _trace_evaluation(
    model: Model,
    params: Params,
    federation: Federation,
    measured: Federation,
    data: Data,
    layout: Layout,
    homes: Homes,
    mesh: Mesh,
    *,
    gradients: bool,
    screened: bool,
    by_client: bool,
) -> tuple[Any, tuple[Any, ...]]:
    """The traced evaluation of models, and what it is given beside them; see `compile_programs`."""
    train, test, validation = measured.train, measured.test, measured.validation
    devices, lanes = layout.rounds.devices, layout.lanes
    each_client = counts_tests_by_client(by_client=by_client, screened=screened)
    home = homes.of(np.arange(len(measured)))

    def client_by_client(rows: Rows, width: int) -> Reading:
        base = homes.first_rows(rows.offsets)[home]
        return plan_reading(
            rows.offsets[:-1] - base,
            rows.offsets[1:] - base,
            width=width,
            devices=devices,
            lanes=lanes,
            home=home,
            homes=homes.processes,
        )

    def in_slices(bounds: NDArray[np.int64], width: int) -> Reading:
        return read_everything(bounds, width=width, devices=devices, lanes=lanes)

    def held_out(rows: Rows, width: int) -> Reading:
        if each_client:
            return client_by_client(rows, width)
        return in_slices(homes.first_rows(rows.offsets), width)

    def stands_for(whole: Rows, some: Rows) -> Array:
        return (whole.sizes / np.maximum(some.sizes, 1)).astype(np.float32)

    reading = client_by_client(train, layout.width)
    test_reading = held_out(test, layout.test_width)
    reading, test_reading = shard(mesh, (reading, test_reading))
    stand_for = StandFor(
        train=stands_for(federation.train, train), test=stands_for(federation.test, test)
    )
    sizes, shares, stand_for = replicate(
        mesh, (train.sizes.astype(np.float32), federation.shares.astype(np.float32), stand_for)
    )
    held, spec, width = None, None, 0
    whole = federation.validation
    if data.validation is not None and isinstance(validation, Rows) and isinstance(whole, Rows):
        width = slice_width(validation.sizes if each_client else np.array([len(validation)]))
        weights = replicate(mesh, stands_for(whole, validation)) if each_client else None
        held = Validation(*data.validation, shard(mesh, held_out(validation, width)), weights)
        kinds = (rows_spec(a, homes) for a in data.validation)
        spec = (*kinds, PER_DEVICE, REPLICATED if each_client else None)
    elif data.validation is not None:
        rows = len(data.validation[1])
        width = slice_width(np.array([rows]))
        everything = shard(mesh, in_slices(np.array([0, rows]), width))
        held = Validation(*data.validation, everything, None)
        spec = (REPLICATED, REPLICATED, PER_DEVICE, None)
    read = *data.measured, reading, sizes, shares, stand_for, test_reading, held
    program = evaluation_program(
        model,
        mesh,
        gradients=gradients,
        screened=screened,
        by_client=by_client,
        lanes=lanes,
        width=layout.width,
        test_width=layout.test_width,
        rows=tuple(rows_spec(a, homes) for a in data.measured),
        validation_width=width,
        validation=None if spec is None else Validation(*spec),
    )
    return program.trace(params, *read), read


def evaluated(algorithm: Algorithm, state: State) -> Params:
    """The model that is evaluated."""
    return (algorithm.evaluated or algorithm.params)(state)


class ReadCohort(NamedTuple):
    """How to read all rows of the clients of some jobs, and what is known of each.

    Attributes:
        reading: Which rows each lane reads.
        sizes: Rows of each client, float32 (slots,).
        shares: n_k / the mean n, float32 (slots,).
        kept: What clients keep, leaves (places, points, ...) on every device, or None.
        places: Each client's place, int32 (slots,).
        rate: What the round's learning rate is multiplied by.
        participation: The share of all clients' weight that takes part.
    """

    reading: Reading
    sizes: Array
    shares: Array
    kept: Kept
    places: Array
    rate: Array
    participation: Array


def read_cohort(
    jobs: Jobs, plan: Plan, index: int, kept: Kept, layout: Layout, mesh: Mesh
) -> ReadCohort:
    """How to read the clients of some jobs, the round `index` of a plan, given what they kept."""
    reading = plan_reading(
        jobs.offset,
        jobs.offset + jobs.size,
        width=layout.width,
        devices=layout.rounds.devices,
        lanes=layout.lanes,
        home=jobs.home,
        homes=layout.rounds.homes,
        ticks=layout.cohort_ticks,
        slots=layout.rounds.slots,
    )
    sizes, shares = np.ones((2, layout.rounds.slots), np.float32)
    sizes[: len(jobs.size)], shares[: len(jobs.size)] = jobs.size, jobs.share
    known = plan.jobs.place[index], plan.rate[index], plan.participation[index]
    return ReadCohort(reading, sizes, shares, replicate(mesh, kept), *known)


def exchanges(work: Sequence[RoundWork], layout: Layout) -> Exchange | None:
    """How to read gradients before the work of some rounds; None where nobody does."""
    if not layout.exchange_ticks:
        return None
    return plan_exchanges(
        [(w.jobs, w.exchange) for w in work],
        room=layout.rounds.rounds,
        slots=layout.rounds.slots,
        first_slots=layout.exchange_slots,
        ticks=layout.exchange_ticks,
        width=layout.width,
        devices=layout.rounds.devices,
        lanes=layout.lanes,
        homes=layout.rounds.homes,
    )
