"""Compiling the programs of one method for the shapes of its layout."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, ClientState, State
from fedprox.federation import Federation, Rows
from fedprox.model import Model, Params
from fedprox.simulation.compiled.evaluation import (
    Measures,
    StandFor,
    Validation,
    counts_tests_by_client,
    evaluation_program,
)
from fedprox.simulation.compiled.inexactness import inexactness_program
from fedprox.simulation.compiled.layout import Layout
from fedprox.simulation.compiled.round import After, rounds_program
from fedprox.simulation.config.faults import Faults
from fedprox.simulation.config.protocol import is_noisy
from fedprox.simulation.devices.mesh import PER_DEVICE, REPLICATED, on_all, replicate, shard
from fedprox.simulation.devices.ownership import Ownership
from fedprox.simulation.planning.batch_plan import BatchPlan, Jobs, no_jobs, plan_rounds
from fedprox.simulation.planning.packing import Array
from fedprox.simulation.planning.reads import (
    Exchange,
    Reading,
    plan_exchanges,
    plan_reading,
    read_everything,
    slice_width,
)
from fedprox.simulation.planning.round_work import RoundWork
from fedprox.simulation.storage.training_data import Data, DeviceRows, rows_spec
from fedprox.solver import Solver


class Programs(NamedTuple):
    """One method's compiled programs; see `rounds_program` and `evaluate`.

    Attributes:
        rounds: state, hparams, x, y, plan, exchange, what the cohort keeps, number of rounds ->
            After.
        evaluate: state -> Measures.
        inexactness: state, hparams, local models, x, y, how to read the cohort, see `read_cohort`
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
    held: DeviceRows,
    state: State,
    hparams: Mapping[str, Array],
    client_state: ClientState,
    layout: Layout,
    ownership: Ownership,
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
        hparams: The hyperparameters of all point.
        client_state: What a cohort's clients keep.
        layout: The shapes of the method's programs.
        ownership: Which process reads which of these clients.
        mesh: The devices.
        gradients: Whether to measure gradients.
        faults: What is done about faulty updates; None for no screening.
        by_client: Whether evaluations say what they find client by client too.
        before: The programs of a layout that holds less, of which the evaluation is taken over.
    """
    begin = time.perf_counter()
    shape = layout.rounds
    spec = tuple(rows_spec(a, ownership) for a in held)
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
    ).trace(state, hparams, *held, plan, exchanges([], layout), client_state, np.int32(0))
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
                ownership,
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
            cohort = read_cohort(no_jobs(), plan, 0, client_state, layout, mesh)
            traced["inexactness"] = program.trace(state, hparams, local, *held, *cohort)
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
    ownership: Ownership,
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
    owner = ownership.of(np.arange(len(measured)))

    def client_by_client(rows: Rows, width: int) -> Reading:
        base = ownership.first_rows(rows.offsets)[owner]
        return plan_reading(
            rows.offsets[:-1] - base,
            rows.offsets[1:] - base,
            width=width,
            devices=devices,
            lanes=lanes,
            owner=owner,
            processes=ownership.processes,
        )

    def in_slices(bounds: NDArray[np.int64], width: int) -> Reading:
        return read_everything(bounds, width=width, devices=devices, lanes=lanes)

    def held_out(rows: Rows, width: int) -> Reading:
        if each_client:
            return client_by_client(rows, width)
        return in_slices(ownership.first_rows(rows.offsets), width)

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
        kinds = (rows_spec(a, ownership) for a in data.validation)
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
        rows=tuple(rows_spec(a, ownership) for a in data.measured),
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
        client_state: What clients keep, leaves (places, points, ...) on every device, or None.
        places: Each client's place, int32 (slots,).
        rate: What the round's learning rate is multiplied by.
        participation: The share of all clients' weight that takes part.
    """

    reading: Reading
    sizes: Array
    shares: Array
    client_state: ClientState
    places: Array
    rate: Array
    participation: Array


def read_cohort(
    jobs: Jobs, plan: BatchPlan, index: int, client_state: ClientState, layout: Layout, mesh: Mesh
) -> ReadCohort:
    """How to read the clients of some jobs, the round `index` of a plan, given what they kept."""
    reading = plan_reading(
        jobs.offset,
        jobs.offset + jobs.size,
        width=layout.width,
        devices=layout.rounds.devices,
        lanes=layout.lanes,
        owner=jobs.owner,
        processes=layout.rounds.processes,
        ticks=layout.cohort_ticks,
        slots=layout.rounds.slots,
    )
    sizes, shares = np.ones((2, layout.rounds.slots), np.float32)
    sizes[: len(jobs.size)], shares[: len(jobs.size)] = jobs.size, jobs.share
    known = plan.jobs.place[index], plan.rate[index], plan.participation[index]
    return ReadCohort(reading, sizes, shares, replicate(mesh, client_state), *known)


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
        processes=layout.rounds.processes,
    )
