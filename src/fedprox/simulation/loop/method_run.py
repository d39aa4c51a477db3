"""The run of one method: all its seeds and sweep points, through programs compiled once."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedprox.algorithms.base import Algorithm, State
from fedprox.model import Params
from fedprox.simulation.compiled.compile import Programs, compile_programs, evaluated
from fedprox.simulation.compiled.layout import Capacity, Layout, lay_out, sample_rounds
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.devices.mesh import replicate, zeros_on
from fedprox.simulation.loop.checkpoint import Checkpoints, End, Snapshot, arrays_of
from fedprox.simulation.loop.planner import PLANS_AHEAD, Planned, Planner, chunks
from fedprox.simulation.loop.progress import Progress
from fedprox.simulation.loop.records import best_loss
from fedprox.simulation.loop.rounds import CompiledMethod, RunState, run_rounds
from fedprox.simulation.loop.sweep import initial_client_state, initial_state, label, sweep_points
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.storage.client_store import open_store
from fedprox.simulation.storage.training_data import Data, DeviceRows, training_rows
from fedprox.solver import Solver


def with_ended(
    checkpoints: Checkpoints,
    begin: Snapshot,
    legs: Sequence[Algorithm],
    protocol: Protocol,
    params: Params,
    mesh: Mesh,
) -> Snapshot:
    """Where a comparison begins, given a checkpoint and the ends of the legs after it.

    Args:
        checkpoints: The checkpoints.
        begin: The last one.
        legs: The method of each leg.
        protocol: What compared methods share.
        params: Shapes of the parameters.
        mesh: The devices.
    """
    for algorithm in legs[begin.legs :]:
        end = checkpoints.end(begin.legs)
        if end is None or end.rounds < protocol.rounds:
            return _further(begin, end, protocol)
        state = end.snapshot.state(jax.tree.structure(jax.eval_shape(algorithm.init, params)))
        best = end.snapshot.best(jax.tree.structure(params))
        _give_models(protocol, end.snapshot.under_way, algorithm, replicate(mesh, state), best)
        begin = Snapshot((*begin.finished, *end.snapshot.under_way))
    return begin


def _further(begin: Snapshot, end: End | None, protocol: Protocol) -> Snapshot:
    """The same, with the next leg as far as its end says, if there is one and it is further.

    A shorter comparison has evaluated its last model in any case. Where this one does not, that
    record goes.
    """
    if end is None or end.snapshot.round <= begin.round:
        return begin
    for run in end.snapshot.under_way if end.rounds < protocol.rounds else ():
        if run.final.round % protocol.evaluation.every:
            run.history.pop()
            run.client_steps = run.final.total_steps
    return end.snapshot._replace(finished=begin.finished)


def _give_models(
    protocol: Protocol, runs: Sequence[Run], algorithm: Algorithm, state: State, best: Params | None
) -> None:
    """Set the parameters of a leg's runs.

    Args:
        protocol: What compared methods share.
        runs: The points' runs.
        algorithm: The method.
        state: The server's state at the end.
        best: See `RunState.best`.
    """
    last, best = (jax.tree.map(np.asarray, tree) for tree in (evaluated(algorithm, state), best))
    for i, run in enumerate(runs):
        run.model_round = run.final.round if best is None else protocol.best(run.history).round
        chosen = last if run.model_round == run.final.round else best
        run.params = jax.tree.map(lambda a, i=i: a[i], chosen)


class Session(NamedTuple):
    """What all methods of a comparison are run with."""

    protocol: Protocol
    mesh: Mesh
    data: Data
    runs: int
    checkpoints: Checkpoints | None
    on_record: Callable[[Record], None]
    on_progress: Callable[[Progress], None]


def run_method(
    session: Session,
    algorithm: Algorithm,
    seeds: Sequence[int],
    runs: list[Run],
    begin: Snapshot,
) -> Snapshot:
    """Some seeds and all sweep points of one method, through programs compiled once.

    Args:
        session: What all methods are run with.
        algorithm: The method.
        seeds: Its seeds that are left to do.
        runs: Finished runs of the comparison, to which these are added.
        begin: Where the first of the seeds stands.

    Returns:
        Where the leg after these stands.
    """
    protocol = session.protocol
    solver = algorithm.solver(protocol.solver)
    points = sweep_points(algorithm, solver)
    name = label(algorithm, solver, points[0])
    if len(points) > 1:
        name = f"{algorithm.name} ({len(points)} points together)"
    now = Progress(name, seeds[0], begin.round, protocol.rounds, phase="planning")
    session.on_progress(now)
    began = time.perf_counter()
    params = protocol.first_params(seeds[0])
    compile_seconds = time.perf_counter() - began
    train = protocol.federation.train
    rows = training_rows(session.mesh, train, session.data, protocol.ownership, ahead=PLANS_AHEAD)
    layout = lay_out(
        protocol.measured,
        algorithm,
        solver,
        sample_rounds(protocol, algorithm, solver),
        rows,
        largest=len(train) if algorithm.pooled else int(train.sizes.max()),
        devices=session.mesh.devices.size,
        processes=protocol.ownership.processes,
        parameters=sum(a.size for a in jax.tree.leaves(params)),
        points=len(points),
        # not fewer where the run is shorter: it may be extended
        together=1 if algorithm.adapt else protocol.evaluation.every,
        faults=protocol.screening(algorithm),
        gradients=protocol.evaluation.gradients,
        by_client=protocol.by_client,
    )
    pause = (session.checkpoints and session.checkpoints.every) or protocol.rounds
    calls = partial(
        chunks,
        rounds=protocol.rounds,
        evaluate_every=protocol.evaluation.every,
        most=layout.rounds.rounds,
        pause=pause,
    )
    with _cancelling(ThreadPoolExecutor(1)) as pool:

        def plan(seed: int, first: int, capacity: Capacity | None) -> Planned:
            shapes = layout if capacity is None else layout.holding(capacity)
            planner = Planner(protocol, algorithm, solver, rows, seed, shapes)
            return planner.ahead(pool, calls(first))

        # the first seed's planning goes on while the programs are being compiled
        planned = plan(seeds[0], begin.round, begin.capacity)
        session.on_progress(now._replace(phase="compiling"))
        programs = _Compiler(session, algorithm, solver, points, params, rows.like)
        first = programs(layout)
        ready = CompiledMethod(
            algorithm,
            solver,
            session.mesh,
            first.evaluate,
            _copying(algorithm) if protocol.selection.keep == "best" else lambda _: None,
            programs,
            programs.hparams,
        )
        compile_seconds += first.compile_seconds
        for seed in seeds:
            if seed != seeds[0]:
                params = protocol.first_params(seed)
                planned = plan(seed, begin.round, begin.capacity)
            batch = begin.under_way or [
                Run(
                    algorithm.name,
                    hparams={k: v for k, v in point.items() if k != "learning_rate"},
                    learning_rate=point["learning_rate"] * solver.factor(0),
                    seed=seed,
                    label=label(algorithm, solver, point),
                    sweep_points=len(points),
                    lane_idle=layout.idle,
                    memory=first.memory,
                    evaluated="server" if algorithm.pooled else protocol.evaluation.model,
                )
                for point in points
            ]
            for run in batch:
                run.compile_seconds += compile_seconds
            leg = _Leg(name, seed, batch)
            _run_leg(session, ready, leg, params, planned, runs, begin)
            runs += batch
            begin = Snapshot(tuple(runs))
            if session.checkpoints and len(runs) < session.runs:
                session.checkpoints.offer(partial(Snapshot, begin.finished), str(leg))
                begin = _further(begin, session.checkpoints.end(begin.legs), protocol)
                for record in begin._replace(finished=()).records:
                    session.on_record(record)
    return begin


def _copying(algorithm: Algorithm) -> Callable[[State], Params]:
    """The server's state -> a copy of the model that is evaluated.

    A call of rounds takes the memory of the state that it is given.
    """

    @jax.jit
    def copy(state: State) -> Params:
        return jax.tree.map(jnp.copy, evaluated(algorithm, state))

    return copy


class _Compiler:
    """Compiles a method's programs for each layout, once.

    Args:
        session: What all methods are run with.
        algorithm: The method.
        solver: The local solver, already the algorithm's own.
        points: The hyperparameters of each point of the sweep.
        params: Initial parameters of one point.
        like: The room for gathered rows -> training rows, or their shapes.
    """

    def __init__(
        self,
        session: Session,
        algorithm: Algorithm,
        solver: Solver,
        points: Sequence[Mapping[str, float]],
        params: Params,
        like: Callable[[int], DeviceRows],
    ) -> None:
        self.session, self.algorithm, self.solver = session, algorithm, solver
        self.hparams = replicate(
            session.mesh, {key: np.array([p[key] for p in points], np.float32) for key in points[0]}
        )
        self.params, self.points, self.like = params, len(points), like
        self._known: dict[Layout, Programs] = {}

    def __call__(self, layout: Layout) -> Programs:
        """The programs of some shapes."""
        if layout in self._known:
            return self._known[layout]
        session, algorithm = self.session, self.algorithm
        protocol, mesh = session.protocol, session.mesh
        places = layout.rounds.places * mesh.devices.size
        programs = compile_programs(
            protocol.model,
            algorithm,
            self.solver,
            protocol.sampled,
            protocol.measured,
            session.data,
            self.like(layout.rows),
            initial_state(algorithm, self.params, self.points, mesh),
            self.hparams,
            jax.tree.map(
                lambda a: zeros_on(mesh, (places, *a.shape), a.dtype),
                initial_client_state(algorithm, self.params, self.points),
            ),
            layout,
            protocol.measured_ownership,
            mesh,
            gradients=protocol.evaluation.gradients,
            faults=protocol.screening(algorithm),
            by_client=protocol.by_client,
            before=next(iter(self._known.values()), None),
        )
        self._known[layout] = programs
        return programs


class _Leg(NamedTuple):
    """All points of a method with one seed.

    Attributes:
        name: What the method is called in progress.
        seed: The seed.
        runs: The points' runs.
    """

    name: str
    seed: int
    runs: Sequence[Run]

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


def _run_leg(
    session: Session,
    ready: CompiledMethod,
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
    state = initial_state(algorithm, params, len(batch), session.mesh)
    standing = RunState(0, state, ready.hparams, best=ready.model(state))
    store = None
    if algorithm.client_state is not None:
        protocol = session.protocol
        client_state = initial_client_state(algorithm, params, len(batch))
        most = rounds * protocol.cohort.sizes(len(protocol.federation))[-1]
        clients = protocol.ownership.clients
        store = open_store(protocol.client_store, client_state, clients, session.mesh, most)

    def count_seconds() -> None:
        for run in batch:
            run.run_seconds = spent + time.perf_counter() - began

    def snapshot(stand: Callable[[], RunState]) -> Snapshot:
        now = stand()
        count_seconds()
        client_state = store.held() if store else None
        return Snapshot(finished, batch, now.round, arrays_of(now, len(batch)), client_state)

    def after_call(done: int, stand: Callable[[], RunState]) -> None:
        if checkpoints is not None:
            checkpoints.offer(lambda: snapshot(stand), str(leg), done)

    def report(done: int, loss: float | None) -> None:
        session.on_progress(Progress(leg.name, leg.seed, done, rounds, loss))

    report(begin.round, best_loss(batch) if begin.round else None)
    try:
        if begin.round:
            standing = begin.standing(standing, session.mesh)
            if store is not None:
                store.put_back(begin.client_state or ())
        standing = run_rounds(
            session.protocol,
            ready,
            planned if checkpoints is None else _noting(planned, checkpoints),
            standing,
            store,
            batch,
            session.on_record,
            report,
            after_call,
        )
        if checkpoints is not None:
            leg_number = Snapshot(finished).legs
            checkpoints.keep_end(leg_number, lambda: snapshot(lambda: standing))
    finally:
        if store is not None:
            store.close()
    done = batch[0].final.round
    session.on_progress(Progress(leg.name, leg.seed, done, done, best_loss(batch)))
    _give_models(session.protocol, batch, algorithm, standing.state, standing.best)
    count_seconds()


def _noting(planned: Planned, checkpoints: Checkpoints) -> Planned:
    """The planned calls; checkpoints are told of each before it begins."""
    for call in planned:
        checkpoints.begin_call()
        yield call


@contextmanager
def _cancelling(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """A pool whose waiting tasks are given up on leaving, by an early stop or an error."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
