"""The programs of one method: their fixed shapes, found before the first round, and compilation.

Cohorts and stragglers are functions of the seed and the round, so the work of every round is known
before the run begins. The shapes are the largest that any round will need: nothing is compiled
twice, and no room is wasted on rounds that will not come.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedprox.algorithms.base import Algorithm, Kept, State
from fedprox.federation import Federation, Rows
from fedprox.model import Model, Params
from fedprox.simulation.engine import After, rounds_program
from fedprox.simulation.evaluate import Measures, evaluation_program, inexactness_program
from fedprox.simulation.exchange import Exchange, plan_exchanges
from fedprox.simulation.faults import Faults
from fedprox.simulation.homes import Homes
from fedprox.simulation.lanes import REPLICATED, on_all, replicate, shard
from fedprox.simulation.protocol import RoundWork
from fedprox.simulation.reading import (
    Reading,
    plan_reading,
    read_everything,
    slice_width,
    slices,
)
from fedprox.simulation.rows import Data, Held, rows_spec
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

TYPICAL_ROUNDS = 64
"""Rounds looked at to choose the number of lanes."""


class Layout(NamedTuple):
    """The shapes of one method's programs.

    Attributes:
        rounds: Shape of the batch plans.
        accumulate: Whether a mini-batch can take several ticks.
        batched: Whether a tick is one of all sweep points at once.
        idle: Share of lane ticks, over all rounds, in which a lane has no client.
        lanes: Lanes per device that read whole clients.
        width: Training rows of a slice when reading whole clients.
        test_width: Test rows of a slice.
        cohort_ticks: Most ticks to read a cohort.
        exchange_slots: Most clients of a first exchange's own cohort; 0 for a method without.
        exchange_ticks: Most ticks to read gradients before the work; 0 where nobody does.
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


def lay_out(
    measured: Federation,
    algorithm: Algorithm,
    solver: Solver,
    work: Iterable[RoundWork],
    *,
    devices: int,
    homes: int,
    parameters: int,
    points: int,
    together: int,
    faults: Faults | None,
    by_client: bool,
) -> Layout:
    """Find the shapes that fit all rounds, and the lanes that make them fast.

    Args:
        measured: The clients with the rows that evaluations read.
        algorithm: The method.
        solver: The local solver, already the algorithm's own.
        work: The work of every round of every seed.
        devices: Devices the lanes are spread over.
        homes: Processes that share them.
        parameters: Parameters of the model.
        points: Points of the sweep.
        together: Most rounds that can run without a look at the model.
        faults: What is done about faulty updates; None for no screening.
        by_client: Whether evaluations say what they find client by client too.
    """
    jobs, first = zip(*((w.jobs, w.exchange) for w in work), strict=True)
    largest = max((int(j.size.max(initial=1)) for j in jobs), default=1)
    tick = tick_width(solver, largest)
    lengths = [job_ticks(solver, j, tick) for j in jobs]
    cost = lane_cost(parameters * points, accelerator=jax.default_backend() != "cpu")
    typical = lengths[:: math.ceil(len(lengths) / TYPICAL_ROUNDS)]
    lanes = choose_lanes(typical, devices, cost.step, cost.most)
    packings = [
        pack(length, devices * lanes, j.home, homes)
        for length, j in zip(lengths, jobs, strict=True)
    ]
    ticks = np.array([packing.ticks for packing in packings])
    room = int(ticks.sum()) * devices * lanes
    used = sum(int(length.sum()) for length in lengths)
    longest = max(1, int(ticks.max()))
    slots = max(1, max(len(length) for length in lengths))
    places = 0
    if algorithm.kept is not None or (faults is not None and faults.compares):
        places = max(1, *(int(np.bincount(p.lane // lanes, minlength=1).max()) for p in packings))
    shape = Shape(1, devices, lanes, longest, slots, tick, places, homes)
    # what clients keep is fetched for one round
    if parameters <= SMALL_MODEL and algorithm.kept is None:
        most_rounds = max(1, PLAN_BYTES // shape.plan_bytes)
        shape = shape._replace(rounds=min(together, most_rounds))

    width = slice_width(measured.train.sizes)
    clients = slices(measured.train.sizes, width)
    read_lanes = choose_lanes([clients], devices, cost.reading, cost.most)

    def most_ticks(rounds: Iterable[Sequence[Jobs]]) -> int:
        def ticks(parts: Sequence[Jobs]) -> int:
            sizes, home = (np.concatenate([p[i] for p in parts]) for i in (SIZE, HOME))
            return pack(slices(sizes, width), devices * read_lanes, home, homes).ticks

        return max(1, *map(ticks, rounds))

    exchange_slots = max(len(e.size) for e in first)
    tests = measured.test.sizes if by_client else np.array([max(len(measured.test), 1)])
    return Layout(
        rounds=shape,
        accumulate=not solver.searches_line
        and (solver.batch_of(largest) > tick or needs_checks(solver)),
        batched=points == 1 or batch_points(parameters),
        idle=1 - used / room if room else 0.0,
        lanes=read_lanes,
        width=width,
        test_width=slice_width(tests),
        cohort_ticks=most_ticks((j,) for j in jobs),
        exchange_slots=exchange_slots,
        exchange_ticks=most_ticks(zip(jobs, first, strict=True)) if algorithm.own_gradient else 0,
    )


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
    """
    begin = time.perf_counter()
    shape = layout.rounds
    train, test = measured.train, measured.test
    home = homes.of(np.arange(len(measured)))

    def client_by_client(rows: Rows, width: int) -> Reading:
        base = homes.first_rows(rows.offsets)[home]
        return plan_reading(
            rows.offsets[:-1] - base,
            rows.offsets[1:] - base,
            width=width,
            devices=shape.devices,
            lanes=layout.lanes,
            home=home,
            homes=homes.processes,
        )

    reading = client_by_client(train, layout.width)
    if by_client:
        test_reading = client_by_client(test, layout.test_width)
    else:
        test_reading = read_everything(
            homes.first_rows(test.offsets),
            width=layout.test_width,
            devices=shape.devices,
            lanes=layout.lanes,
        )
    reading, test_reading = shard(mesh, (reading, test_reading))
    sizes, shares = replicate(
        mesh, (train.sizes.astype(np.float32), federation.shares.astype(np.float32))
    )
    plan = plan_rounds(shape, solver, 0, [], augmented=federation.augment is not None)
    rounds = rounds_program(
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
        rows=tuple(rows_spec(a, homes) for a in held),
    ).trace(state, numbers, *held, plan, exchanges([], layout), kept, np.int32(0))
    # measurements are made in full precision, also where an accelerator trains in less
    with jax.default_matmul_precision("highest"):
        evaluation = evaluation_program(
            model,
            mesh,
            gradients=gradients,
            screened=faults is not None,
            by_client=by_client,
            lanes=layout.lanes,
            width=layout.width,
            test_width=layout.test_width,
            rows=tuple(rows_spec(a, homes) for a in data[2:]),
        ).trace(evaluated(algorithm, state), *data[2:], reading, sizes, shares, test_reading)
        traced = [rounds, evaluation]
        if gradients:
            replicated = NamedSharding(mesh, REPLICATED)
            local = jax.tree.map(
                lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=replicated),
                rounds.out_info.local.params,
            )
            program = inexactness_program(
                model,
                algorithm,
                mesh,
                lanes=layout.lanes,
                width=layout.width,
                rows=tuple(rows_spec(a, homes) for a in held),
            )
            cohort = read_cohort(no_jobs(), plan, 0, kept, layout, mesh)
            traced.append(program.trace(state, numbers, local, *held, *cohort))
    with ThreadPoolExecutor() as pool:
        run, measure, *gamma = pool.map(lambda each: each.lower().compile(), traced)
    memory = run.memory_analysis()
    run, measure, *gamma = map(on_all, (run, measure, *gamma))

    return Programs(
        rounds=run,
        evaluate=lambda state: measure(
            evaluated(algorithm, state), *data[2:], reading, sizes, shares, test_reading
        ),
        inexactness=gamma[0] if gradients else None,
        compile_seconds=time.perf_counter() - begin,
        memory=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
    )


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
