"""Running methods: rounds, evaluations and their history, for every sweep point and seed."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedprox.algorithms.base import Algorithm
from fedprox.algorithms.check import check_algorithm
from fedprox.algorithms.reporting import Evaluated
from fedprox.errors import require
from fedprox.federation import Federation
from fedprox.model import Model, Params, check_model
from fedprox.simulation.checkpoint import Checkpoints, Comparison, Snapshot, arrays_of
from fedprox.simulation.clients import ClientState, open_store
from fedprox.simulation.faults import Faults
from fedprox.simulation.history import Progress, Record, Run
from fedprox.simulation.lanes import lane_mesh, replicate, zeros_on
from fedprox.simulation.points import (
    initial_kept,
    initial_params,
    initial_state,
    label,
    sweep_points,
)
from fedprox.simulation.programs import (
    Layout,
    compile_programs,
    evaluated,
    lay_out,
)
from fedprox.simulation.protocol import Protocol, RoundWork
from fedprox.simulation.rounds import (
    PLANS_AHEAD,
    Planned,
    Ready,
    Standing,
    chunks,
    plan_ahead,
    run_rounds,
)
from fedprox.simulation.rows import (
    Data,
    Held,
    check_measured,
    resident,
    rounds_together,
    training_rows,
)
from fedprox.simulation.sampling import Cohort
from fedprox.simulation.settle import best_loss
from fedprox.simulation.systems import Systems
from fedprox.simulation.target import StopAtTarget, Target
from fedprox.solver import Solver
from fedprox.user_code import describe


def simulate(
    federation: Federation,
    model: Model,
    methods: Algorithm | Sequence[Algorithm],
    *,
    solver: Solver,
    cohort: Cohort,
    systems: Systems = Systems(),  # noqa: B008 (frozen)
    faults: Faults | None = None,
    rounds: int,
    evaluate_every: int = 1,
    evaluate_rows: int | None = None,
    evaluate_clients: int | None = None,
    evaluate_model: Evaluated = "server",
    measure_gradients: bool = True,
    client_state: ClientState = "auto",
    seed: int | Sequence[int] = 0,
    target: Target | None = None,
    stop_at_target: StopAtTarget = "never",
    devices: int | None = None,
    checkpoints: Checkpoints | None = None,
    on_record: Callable[[Record], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Run]:
    """Train a method on a federation, or several on the same clients, stragglers and mini-batches.

    Args:
        federation: The clients and their data.
        model: The model to train.
        methods: The algorithm, such as `fedprox(mu=1.0)`, or several. A method's numbers and the
            solver's learning rate may each be several: every combination is a point, and all
            points run as one batched axis of the same program over the same plan.
        solver: The local solver.
        cohort: How a round's clients are chosen.
        systems: Which of them cannot finish.
        faults: What is done about updates that are not finite, or far larger than the others'.
            None for nothing: they count, and a run that they ruin is shown as diverged.
        rounds: Rounds T.
        evaluate_every: Rounds between evaluations.
        evaluate_rows: Training rows, and test rows, of each client that evaluations read at most:
            a random choice, the same for all methods, seeds and rounds; in losses and accuracies
            a client still counts by all it has. All where left out.
        evaluate_clients: Clients that evaluations read at most, drawn uniformly without
            replacement: the same for all methods, seeds and rounds. Records then are estimates of
            f(w) and of accuracy, with their standard errors; gradient variance and B(w) are those
            of these clients. All where left out.
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
        devices: How many of the devices that JAX sees share a round's clients; all where left out.
            The result differs in the last bits, by the order of sums.
        checkpoints: Where and how often checkpoints are made; none where left out. A run that goes
            on from one is the same as one that was never interrupted, bit for bit.
        on_record: Called with each record as soon as it is known, and first with those of a
            checkpoint.
        on_progress: Called now and then.

    Returns:
        One run for each method, seed and point, methods outermost and points innermost.

    Raises:
        InputError: A number out of range, a cohort larger than the federation, a stop without a
            target, training rows that stay with the host and are too many to be evaluated on
            unasked, a method that is not as `Algorithm` says or whose functions give arrays of
            wrong shapes, a model with fewer outputs than classes, or a faulty update where
            `faults.policy` is "fail".
    """
    methods = _several(methods)
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
        evaluate_clients=evaluate_clients,
        evaluate_model=evaluate_model,
        measure_gradients=measure_gradients,
        client_state=client_state,
        seeds=tuple(seed) if isinstance(seed, Sequence | np.ndarray) else (seed,),
        target=target,
        stop_at_target=stop_at_target,
    )
    params = model.shapes
    check_model(model, federation)
    for method in methods:
        check_algorithm(method, params)
    methods = [protocol.reported(method) for method in methods]
    for method in methods:
        protocol.check(method, method.solver(solver))
    points = [
        (method, point)
        for method in methods
        for point in sweep_points(method, method.solver(solver))
    ]
    labels = [label(method, method.solver(solver), point) for method, point in points]
    for name, count in Counter(labels).items():
        require(
            count == 1,
            f"methods: {name!r} is given {count} times; once is enough, and numbers must differ in "
            "their first six digits",
        )
    begin = Snapshot(())
    if checkpoints:
        known = {
            "parameters": describe(params),
            "points": [list(point.values()) for _, point in points],  # labels have six digits
        }
        begin = checkpoints.begin(
            Comparison(
                tuple(labels), protocol.seeds, protocol.rounds, protocol.settings | known, model
            )
        )
    mesh = lane_mesh(devices)
    if evaluate_clients is None:
        check_measured(mesh, federation, protocol.measured)
    session = _Session(
        protocol,
        mesh,
        resident(mesh, federation, protocol.measured, protocol.homes, protocol.measured_homes),
        len(labels) * len(protocol.seeds),
        checkpoints,
        on_record or _ignore,
        on_progress or _ignore,
    )
    for record in begin.records:
        session.on_record(record)
    runs = list(begin.finished)
    for number, method in enumerate(methods):
        left = protocol.seeds[max(0, begin.legs - number * len(protocol.seeds)) :]
        if left:
            _run_method(session, method, left, runs, begin)
            begin = Snapshot(tuple(runs))
    return runs


def _several(methods: Algorithm | Sequence[Algorithm]) -> list[Algorithm]:
    """The methods of a comparison, of which there may be one."""
    one = isinstance(methods, Algorithm) or not isinstance(methods, Sequence)
    several: list[Any] = [methods] if one else list(methods)
    require(len(several) > 0, "methods: none given; at least one is needed")
    for method in several:
        require(
            isinstance(method, Algorithm),
            f"methods: {method!r}; each must be an algorithm, such as fedprox(mu=1.0)",
        )
    return several


def _ignore(_: Any) -> None:
    pass


class _Session(NamedTuple):
    """What all methods of a comparison are run with."""

    protocol: Protocol
    mesh: Mesh
    data: Data
    runs: int
    checkpoints: Checkpoints | None
    on_record: Callable[[Record], None]
    on_progress: Callable[[Progress], None]


def _run_method(
    session: _Session,
    algorithm: Algorithm,
    seeds: Sequence[int],
    runs: list[Run],
    begin: Snapshot,
) -> None:
    """Some seeds and all sweep points of one method, through programs compiled once.

    Args:
        session: What all methods are run with.
        algorithm: The method.
        seeds: Its seeds that are left to do.
        runs: Finished runs of the comparison, to which these are added.
        begin: Where the first of the seeds stands.
    """
    protocol = session.protocol
    solver = algorithm.solver(protocol.solver)
    points = sweep_points(algorithm, solver)
    name = label(algorithm, solver, points[0]) if len(points) == 1 else algorithm.name
    session.on_progress(Progress(name, seeds[0], begin.round, protocol.rounds, math.nan))
    # of all seeds: the programs are the same where some are done already
    work = {
        seed: [protocol.round_work(algorithm, solver, seed, t) for t in range(protocol.rounds)]
        for seed in protocol.seeds
    }
    began = time.perf_counter()
    params = initial_params(protocol.model, seeds[0])
    compile_seconds = time.perf_counter() - began
    train, every_round = protocol.federation.train, list(itertools.chain(*work.values()))
    together = min(1 if algorithm.adapt else protocol.evaluate_every, protocol.rounds)
    if session.data.x is None:
        together = min(together, rounds_together(train, every_round))
    layout = lay_out(
        protocol.measured,
        algorithm,
        solver,
        every_round,
        devices=session.mesh.devices.size,
        homes=protocol.homes.processes,
        parameters=sum(a.size for a in jax.tree.leaves(params)),
        points=len(points),
        together=together,
        faults=protocol.screening(algorithm),
        by_client=protocol.by_client,
    )
    pause = (session.checkpoints and session.checkpoints.every) or protocol.rounds
    calls = partial(
        chunks,
        rounds=protocol.rounds,
        evaluate_every=protocol.evaluate_every,
        most=layout.rounds.rounds,
        pause=pause,
    )
    legs = [(seeds[0], begin.round), *((seed, 0) for seed in protocol.seeds)]
    rows = training_rows(
        session.mesh,
        train,
        session.data,
        (work[seed][c.first : c.last] for seed, first in legs for c in calls(first)),
        protocol.homes,
        width=layout.width,
        ahead=PLANS_AHEAD,
    )
    with _cancelling(ThreadPoolExecutor(1)) as pool:
        plan = partial(plan_ahead, pool, protocol, solver, layout, rows)
        # the first seed's planning goes on while the programs are being compiled
        planned = plan(seeds[0], work[seeds[0]], calls(begin.round))
        ready = _compile(session, algorithm, solver, layout, rows.like, points, params)
        compile_seconds += ready.programs.compile_seconds
        for seed in seeds:
            if seed != seeds[0]:
                params = initial_params(protocol.model, seed)
                planned = plan(seed, work[seed], calls(0))
            batch = begin.under_way or [
                Run(
                    algorithm.name,
                    numbers={k: v for k, v in point.items() if k != "learning_rate"},
                    learning_rate=point["learning_rate"],
                    seed=seed,
                    label=label(algorithm, solver, point),
                    sweep_points=len(points),
                    lane_idle=layout.idle,
                    memory=ready.programs.memory,
                    evaluated="server" if algorithm.pooled else protocol.evaluate_model,
                )
                for point in points
            ]
            for run in batch:
                run.compile_seconds += compile_seconds
            leg = _Leg(name, seed, batch, work[seed])
            _run_leg(session, ready, leg, params, planned, runs, begin)
            runs += batch
            begin = Snapshot(tuple(runs))
            if session.checkpoints and len(runs) < session.runs:
                session.checkpoints.offer(partial(Snapshot, begin.finished), str(leg))


def _compile(
    session: _Session,
    algorithm: Algorithm,
    solver: Solver,
    layout: Layout,
    held: Held,
    points: Sequence[Mapping[str, float]],
    params: Params,
) -> Ready:
    """A method's programs, for initial parameters like these."""
    protocol, mesh = session.protocol, session.mesh
    numbers = replicate(
        mesh, {key: np.array([p[key] for p in points], np.float32) for key in points[0]}
    )
    places = layout.rounds.places * mesh.devices.size
    programs = compile_programs(
        protocol.model,
        algorithm,
        solver,
        protocol.sampled,
        protocol.measured,
        session.data,
        held,
        initial_state(algorithm, params, len(points), mesh),
        numbers,
        jax.tree.map(
            lambda a: zeros_on(mesh, (places, *a.shape), a.dtype),
            initial_kept(algorithm, params, len(points)),
        ),
        layout,
        protocol.measured_homes,
        mesh,
        gradients=protocol.measure_gradients,
        faults=protocol.screening(algorithm),
        by_client=protocol.by_client,
    )
    return Ready(algorithm, solver, layout, mesh, programs, numbers)


class _Leg(NamedTuple):
    """All points of a method with one seed.

    Attributes:
        name: What the method is called in progress.
        seed: The seed.
        runs: The points' runs.
        work: The work of every round.
    """

    name: str
    seed: int
    runs: Sequence[Run]
    work: Sequence[RoundWork]

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


def _run_leg(
    session: _Session,
    ready: Ready,
    leg: _Leg,
    params: Params,
    planned: Planned,
    finished: Sequence[Run],
    begin: Snapshot,
) -> None:
    """All rounds of a leg that are left.

    Args:
        session: What all methods are run with.
        ready: The method.
        leg: The leg, whose runs are filled.
        params: w^0.
        planned: The rounds that are left.
        finished: Finished runs of the comparison.
        begin: Where the leg stands.
    """
    batch, rounds = leg.runs, session.protocol.rounds
    began, spent = time.perf_counter(), batch[0].run_seconds
    algorithm, checkpoints = ready.algorithm, session.checkpoints
    standing = Standing(
        0, initial_state(algorithm, params, len(batch), session.mesh), ready.numbers
    )
    store = None
    if algorithm.kept is not None:
        homes = session.protocol.homes
        clients = np.unique(np.concatenate([w.jobs.client for w in leg.work]))
        clients = clients[homes.of(clients) == homes.here]
        kept = initial_kept(algorithm, params, len(batch))
        store = open_store(session.protocol.client_state, kept, clients, session.mesh)

    def count_seconds() -> None:
        for run in batch:
            run.run_seconds = spent + time.perf_counter() - began

    def snapshot(stand: Callable[[], Standing]) -> Snapshot:
        now = stand()
        count_seconds()
        kept = store.held() if store else None
        return Snapshot(finished, batch, now.round, arrays_of(now, len(batch)), kept)

    def after_call(done: int, stand: Callable[[], Standing]) -> None:
        if checkpoints is not None:
            checkpoints.offer(lambda: snapshot(stand), str(leg), done)

    def report(done: int, loss: float) -> None:
        session.on_progress(Progress(leg.name, leg.seed, done, rounds, loss))

    try:
        if begin.round:
            standing = begin.standing(standing, session.mesh)
            if store is not None:
                store.put_back(begin.kept or ())
        state = run_rounds(
            session.protocol,
            ready,
            planned,
            standing,
            store,
            batch,
            session.on_record,
            report,
            after_call,
        )
    finally:
        if store is not None:
            store.close()
    done = batch[0].final.round
    session.on_progress(Progress(leg.name, leg.seed, done, done, best_loss(batch)))
    found = jax.tree.map(np.asarray, evaluated(algorithm, state))
    for i, run in enumerate(batch):
        run.params = jax.tree.map(lambda a, i=i: a[i], found)
    count_seconds()


@contextmanager
def _cancelling(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """A pool whose waiting tasks are given up on leaving, by an early stop or an error."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
