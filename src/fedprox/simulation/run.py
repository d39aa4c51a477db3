"""Running methods: rounds, evaluations and their history, for every sweep point and seed."""

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.adaptive import first_trend, follow
from fedprox.algorithms.base import Algorithm, State
from fedprox.algorithms.reporting import Evaluated
from fedprox.algorithms.shapes import check_shapes
from fedprox.errors import require
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.simulation.clients import ClientState, Store, open_store
from fedprox.simulation.exchange import Exchange
from fedprox.simulation.faults import Faults
from fedprox.simulation.history import Progress, Record, Run
from fedprox.simulation.lanes import lane_mesh, replicate, zeros_on
from fedprox.simulation.points import initial_kept, initial_state, label, sweep_points
from fedprox.simulation.programs import (
    Data,
    Layout,
    Programs,
    compile_programs,
    evaluated,
    exchanges,
    lay_out,
    read_cohort,
    resident,
)
from fedprox.simulation.protocol import Protocol, RoundWork
from fedprox.simulation.sampling import Cohort
from fedprox.simulation.schedule import Plan, no_jobs, plan_rounds
from fedprox.simulation.settle import Ends, Evaluation, Flagged, best_loss, records_of
from fedprox.simulation.systems import Systems
from fedprox.simulation.target import StopAtTarget, Target
from fedprox.solver import Solver

PLANS_AHEAD = 3
"""Calls whose batch plans are made in the background before they are needed."""

RECORDS_BEHIND = 1
"""Evaluations still under way while the next rounds are already being computed."""

Observer = Callable[[Any], None]

_follow = jax.jit(follow)


def simulate(
    federation: Federation,
    model: Model,
    method: Algorithm,
    *,
    solver: Solver,
    cohort: Cohort,
    systems: Systems = Systems(),  # noqa: B008 (frozen)
    faults: Faults | None = None,
    rounds: int,
    evaluate_every: int = 1,
    evaluate_rows: int | None = None,
    evaluate_model: Evaluated = "server",
    measure_gradients: bool = True,
    client_state: ClientState = "auto",
    seed: int | Sequence[int] = 0,
    target: Target | None = None,
    stop_at_target: StopAtTarget = "never",
    on_record: Callable[[Record], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Run]:
    """Train one method on a federation.

    Args:
        federation: The clients and their data.
        model: The model to train.
        method: The algorithm, such as `fedprox(mu=1.0)`. Its numbers and the solver's learning
            rate may each be several: every combination is a point, and all points run as one
            batched axis of the same program over the same plan.
        solver: The local solver.
        cohort: How a round's clients are chosen.
        systems: Which of them cannot finish.
        faults: What is done about updates that are not finite, or far larger than the others'.
            None for nothing: they count, and a run that they ruin is shown as diverged.
        rounds: Rounds T.
        evaluate_every: Rounds between evaluations.
        evaluate_rows: Training rows, and test rows, of each client that evaluations read at most:
            a random choice, the same for all methods, seeds and rounds. All where left out.
        evaluate_model: Which model they measure: "server", the one sent out; "cohort", the mean of
            the last round's clients; or "clients", the mean of every client's last model.
        measure_gradients: Whether evaluations measure gradient variance, B(w) and gamma. Without,
            they take a third of the time and no client's model is kept after its round.
        client_state: Where that lies which clients keep from round to round: "device", "host", a
            file on "disk", or the first of them where it fits. Results are the same.
        seed: Seed, or several: each a run of its own through the same compiled program.
        target: A test accuracy to reach or a training loss to come down to, for `stop_at_target`.
        stop_at_target: Whether a run ends at the first evaluation where "all", or "any", of its
            points have reached the target; points that have diverged are not waited for. Until
            there it is the same run, bit for bit.
        on_record: Called with each record as soon as it is known.
        on_progress: Called now and then.

    Returns:
        One run for each seed and point, seeds outermost.

    Raises:
        InputError: A number out of range, a cohort larger than the federation, a stop without a
            target, a method whose functions give arrays of wrong shapes, or a faulty update where
            `faults.policy` is "fail".
    """
    return compare(
        federation,
        model,
        [method],
        solver=solver,
        cohort=cohort,
        systems=systems,
        faults=faults,
        rounds=rounds,
        evaluate_every=evaluate_every,
        evaluate_rows=evaluate_rows,
        evaluate_model=evaluate_model,
        measure_gradients=measure_gradients,
        client_state=client_state,
        seed=seed,
        target=target,
        stop_at_target=stop_at_target,
        on_record=on_record,
        on_progress=on_progress,
    )


def compare(
    federation: Federation,
    model: Model,
    methods: Sequence[Algorithm],
    *,
    solver: Solver,
    cohort: Cohort,
    systems: Systems = Systems(),  # noqa: B008 (frozen)
    faults: Faults | None = None,
    rounds: int,
    evaluate_every: int = 1,
    evaluate_rows: int | None = None,
    evaluate_model: Evaluated = "server",
    measure_gradients: bool = True,
    client_state: ClientState = "auto",
    seed: int | Sequence[int] = 0,
    target: Target | None = None,
    stop_at_target: StopAtTarget = "never",
    on_record: Callable[[Record], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Run]:
    """Train several methods on the same clients, stragglers and mini-batches.

    Arguments and result are those of `simulate`; runs come method by method.
    """
    require(len(methods) > 0, "methods: none given; at least one is needed")
    seeds = tuple(seed) if isinstance(seed, Sequence) else (seed,)
    protocol = Protocol(
        federation=federation,
        model=model,
        solver=solver,
        cohort=cohort,
        systems=systems,
        faults=faults,
        rounds=rounds,
        evaluate_every=evaluate_every,
        evaluate_rows=evaluate_rows,
        evaluate_model=evaluate_model,
        measure_gradients=measure_gradients,
        client_state=client_state,
        seeds=seeds,
        target=target,
        stop_at_target=stop_at_target,
    )
    for method in methods:
        check_shapes(method, jax.eval_shape(model.init, jax.random.key(0)))
    methods = [protocol.reported(method) for method in methods]
    for method in methods:
        protocol.check(method, method.solver(solver))
    labels = [
        label(method, method.solver(solver), point)
        for method in methods
        for point in sweep_points(method, method.solver(solver))
    ]
    for name, count in Counter(labels).items():
        require(count == 1, f"methods: {name!r} is given {count} times; once is enough")
    mesh = lane_mesh()
    data = resident(mesh, federation, protocol.measured)
    runs = []
    for method in methods:
        runs += _run_method(
            protocol, method, mesh, data, on_record or _ignore, on_progress or _ignore
        )
    return runs


def _ignore(_: Any) -> None:
    pass


def _run_method(
    protocol: Protocol,
    algorithm: Algorithm,
    mesh: Mesh,
    data: Data,
    on_record: Observer,
    on_progress: Observer,
) -> list[Run]:
    """All seeds and sweep points of one method, through programs compiled once."""
    begin = time.perf_counter()
    solver = algorithm.solver(protocol.solver)
    points = sweep_points(algorithm, solver)
    name = label(algorithm, solver, points[0]) if len(points) == 1 else algorithm.name
    on_progress(Progress(name, protocol.seeds[0], 0, protocol.rounds, math.nan))
    work = {
        seed: [protocol.round_work(algorithm, solver, seed, t) for t in range(protocol.rounds)]
        for seed in protocol.seeds
    }
    compiling = time.perf_counter()
    state = initial_state(protocol.model, algorithm, protocol.seeds[0], len(points), mesh)
    compile_seconds = time.perf_counter() - compiling
    layout = lay_out(
        protocol.measured,
        algorithm,
        solver,
        itertools.chain.from_iterable(work.values()),
        devices=mesh.devices.size,
        parameters=sum(a.size for a in jax.tree.leaves(algorithm.params(state))) // len(points),
        points=len(points),
        together=min(1 if algorithm.adapt else protocol.evaluate_every, protocol.rounds),
        faults=protocol.screening(algorithm),
    )
    numbers = replicate(
        mesh, {key: np.array([p[key] for p in points], np.float32) for key in points[0]}
    )
    federations = protocol.federation, protocol.measured
    runs: list[Run] = []
    with _cancelling(ThreadPoolExecutor(1)) as pool:
        plan = partial(_plan_ahead, pool, protocol, solver, layout)
        # the first seed's planning goes on while the programs are being compiled
        begun = {protocol.seeds[0]: plan(protocol.seeds[0], work[protocol.seeds[0]])}
        places = layout.rounds.places * mesh.devices.size
        kept = initial_kept(protocol.model, algorithm, protocol.seeds[0], len(points))
        programs = compile_programs(
            protocol.model,
            algorithm,
            solver,
            *federations,
            data,
            state,
            numbers,
            jax.tree.map(lambda a: zeros_on(mesh, (places, *a.shape), a.dtype), kept),
            layout,
            mesh,
            gradients=protocol.measure_gradients,
            faults=protocol.screening(algorithm),
        )
        del state
        compile_seconds += programs.compile_seconds
        begin += compile_seconds
        for seed in protocol.seeds:
            batch = [
                Run(
                    algorithm.name,
                    numbers={k: v for k, v in point.items() if k != "learning_rate"},
                    learning_rate=point["learning_rate"],
                    seed=seed,
                    label=label(algorithm, solver, point),
                    compile_seconds=compile_seconds,
                    sweep_points=len(points),
                    lane_idle=layout.idle,
                    memory=programs.memory,
                    evaluated="server" if algorithm.pooled else protocol.evaluate_model,
                )
                for point in points
            ]
            planned = begun.pop(seed, None) or plan(seed, work[seed])
            store = None
            if algorithm.kept is not None:
                clients = np.unique(np.concatenate([w.jobs.client for w in work[seed]]))
                kept = initial_kept(protocol.model, algorithm, seed, len(points))
                store = open_store(protocol.client_state, kept, clients, mesh)
            try:
                state = _run_rounds(
                    protocol,
                    algorithm,
                    layout,
                    mesh,
                    programs,
                    planned,
                    work[seed],
                    initial_state(protocol.model, algorithm, seed, len(points), mesh),
                    store,
                    numbers,
                    batch,
                    on_record,
                    partial(_report, on_progress, name, seed, protocol.rounds),
                )
            finally:
                if store is not None:
                    store.close()
            done = batch[0].final.round
            on_progress(Progress(name, seed, done, done, best_loss(batch)))
            params = jax.tree.map(np.asarray, evaluated(algorithm, state))
            del state
            for i, run in enumerate(batch):
                run.params = jax.tree.map(lambda a, i=i: a[i], params)
                run.run_seconds = time.perf_counter() - begin
            runs += batch
            begin = time.perf_counter()
    return runs


def _report(
    on_progress: Observer, name: str, seed: int, rounds: int, round_: int, loss: float
) -> None:
    on_progress(Progress(name, seed, round_, rounds, loss))


@contextmanager
def _cancelling(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """A pool whose waiting tasks are given up on leaving, by an early stop or an error."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class _Chunk(NamedTuple):
    """Rounds first, ..., last - 1, which run in one call, and whether the last is recorded."""

    first: int
    last: int
    recorded: bool


def _chunks(rounds: int, evaluate_every: int, most: int) -> Iterator[_Chunk]:
    recorded = [*range(evaluate_every, rounds, evaluate_every), rounds]
    for begin, end in itertools.pairwise([0, *recorded]):
        for first in range(begin, end, most):
            last = min(first + most, end)
            yield _Chunk(first, last, last == end)


Planned = Iterator[tuple[_Chunk, Plan, Exchange | None]]


def _plan_ahead(
    pool: ThreadPoolExecutor,
    protocol: Protocol,
    solver: Solver,
    layout: Layout,
    seed: int,
    work: Sequence[RoundWork],
) -> Planned:
    """Each chunk with its plans, made in the background before they are asked for."""

    def make(chunk: _Chunk) -> tuple[Plan, Exchange | None]:
        rounds = [(t, work[t].jobs) for t in range(chunk.first, chunk.last)]
        first = exchanges(work[chunk.first : chunk.last], layout)
        augmented = protocol.federation.augment is not None
        return plan_rounds(layout.rounds, solver, seed, rounds, augmented=augmented), first

    chunks = _chunks(protocol.rounds, protocol.evaluate_every, layout.rounds.rounds)
    waiting = deque((c, pool.submit(make, c)) for c in itertools.islice(chunks, PLANS_AHEAD))

    def planned() -> Planned:
        while waiting:
            chunk, plan = waiting.popleft()
            waiting.extend((c, pool.submit(make, c)) for c in itertools.islice(chunks, 1))
            yield chunk, *plan.result()

    return planned()


def _run_rounds(
    protocol: Protocol,
    algorithm: Algorithm,
    layout: Layout,
    mesh: Mesh,
    programs: Programs,
    planned: Planned,
    work: Sequence[RoundWork],
    state: State,
    store: Store | None,
    numbers: Mapping[str, Any],
    runs: Sequence[Run],
    on_record: Observer,
    on_progress: Callable[[int, float], None],
) -> State:
    """Run the rounds of one seed; records go into the runs' histories as they become known.

    A run that stops at its target waits for each evaluation before it goes on, so that neither its
    records nor its last model lie beyond the stop.
    """
    behind = RECORDS_BEHIND if protocol.stop_at_target == "never" else 0
    ends = Ends(protocol, len(runs))
    tests = int(protocol.measured.test.labels.sum()) if protocol.model.correct else 0

    def settle(done: Evaluation) -> None:
        """Wait for an evaluation and write it down."""
        for i, record in enumerate(records_of(done, algorithm, runs, tests, protocol)):
            runs[i].client_steps = record.total_steps
            runs[i].history.append(record)
            ends.see(i, record)
            on_record(record)
        on_progress(done.round, best_loss(runs))

    measures = programs.evaluate(state)
    trend = first_trend(measures.train_loss) if algorithm.adapt else None
    nobody = RoundWork(0, 0, 0, no_jobs(), no_jobs())
    pending = deque([Evaluation(0, nobody, numbers, measures, None, None, (), ())])
    taken: list[Any] = []
    flagged: list[Flagged] = []
    for chunk, plan, exchange in planned:
        while len(pending) > behind:
            settle(pending.popleft())
        if ends.over:
            break
        count = np.int32(chunk.last - chunk.first)
        here = clients_by_place(plan, work[chunk.first], layout)
        kept = None if store is None else store.read(here)
        after = programs.rounds(state, numbers, plan, exchange, kept, count)
        kept = None
        if store is not None:
            if chunk.recorded and programs.inexactness is not None:
                kept = store.read(here)  # what it was: the round has used up its own copy
            store.write(here, after.kept)
            after = after._replace(kept=None)
        state = after.state
        if after.steps is None:
            taken.append(sum(int(w.jobs.steps.sum()) for w in work[chunk.first : chunk.last]))
        else:
            taken.append(after.steps)
        rounds = work[chunk.first : chunk.last]
        flagged.append(Flagged(chunk.first, rounds, layout.rounds.slots, after.faulty))
        if chunk.recorded or trend is not None:
            measures = programs.evaluate(state)
        if chunk.recorded:
            done = work[chunk.last - 1]
            gamma = None
            if programs.inexactness is not None:
                index = chunk.last - chunk.first - 1
                gamma = programs.inexactness(
                    after.posed,
                    numbers,
                    after.local.params,
                    *read_cohort(done.jobs, plan, index, kept, layout, mesh),
                )
            steps = after.local.steps
            pending.append(
                Evaluation(chunk.last, done, numbers, measures, gamma, steps, taken, flagged)
            )
            taken, flagged = [], []
        del after, kept  # the cohort's models go before the next one's come
        if trend is not None:
            mu, trend = _follow(numbers["mu"], trend, measures.train_loss)
            numbers = {**numbers, "mu": mu}
    while pending:
        settle(pending.popleft())
    return state


def clients_by_place(plan: Plan, work: RoundWork, layout: Layout) -> NDArray[np.int64]:
    """The client at each place of a round, -1 for none, shape (devices * places,)."""
    clients = np.full(layout.rounds.devices * layout.rounds.places, -1)
    if len(clients):
        clients[plan.jobs.place[0, : len(work.jobs.client)]] = work.jobs.client
    return clients
