"""The run of one method: all its seeds and sweep points."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedprox.algorithms.base import Algorithm, State
from fedprox.errors import InputError
from fedprox.files.arrays import Damaged
from fedprox.model import Params
from fedprox.simulation.compiled.compile import evaluated
from fedprox.simulation.config.method import Method
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.devices.mesh import replicate
from fedprox.simulation.loop.checkpoint import Checkpoints
from fedprox.simulation.loop.execution import (
    Execute,
    MethodExecution,
    Planned,
    RunState,
    SeedExecution,
    Start,
)
from fedprox.simulation.loop.progress import Phase, Progress
from fedprox.simulation.loop.records import best_loss
from fedprox.simulation.loop.rounds import Listeners, Rounds
from fedprox.simulation.loop.snapshot import End, Snapshot, arrays_of
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run


class Session(NamedTuple):
    """The environment in which all methods of a comparison run.

    Attributes:
        protocol: The protocol of the comparison.
        mesh: The devices of the server's state.
        execute: Makes the execution of a method.
        runs: Number of runs of the whole comparison.
        checkpoints: Where and how often checkpoints are written; None means no checkpoints.
        on_record: Called with each record.
        on_progress: Called when a phase begins and when rounds end.
    """

    protocol: Protocol
    mesh: Mesh
    execute: Execute
    runs: int
    checkpoints: Checkpoints | None
    on_record: Callable[[Record], None]
    on_progress: Callable[[Progress], None]


def run_method(
    session: Session, method: Method, seeds: Sequence[int], runs: list[Run], begin: Snapshot
) -> Snapshot:
    """Run the remaining seeds of one method at all sweep points.

    Args:
        session: The environment.
        method: The method.
        seeds: The seeds that are not finished.
        runs: The finished runs of the comparison; the new runs are appended.
        begin: The comparison before the first of these seeds ends.

    Returns:
        The comparison after the last of these seeds.
    """
    protocol, checkpoints = session.protocol, session.checkpoints
    session.on_progress(phase_of(method, seeds[0], begin.round, "planning"))
    began = time.perf_counter()
    params = protocol.first_params(seeds[0])
    initial_seconds = time.perf_counter() - began
    start = Start(seeds[0], params, begin.round, begin.capacity)
    del params
    with session.execute(method, start) as execution:
        for seed in seeds:
            if seed != start.seed:
                params = protocol.first_params(seed)
                start = Start(seed, params, begin.round, begin.capacity)
                del params
            under_way = begin.under_way or new_runs(method, seed, execution)
            for run in under_way:
                run.compile_seconds += initial_seconds + execution.compile_seconds
            seed_run = SeedRun(session, method, execution, start, under_way, runs)
            seed_run.run(begin)
            runs += under_way
            begin = Snapshot(tuple(runs))
            if checkpoints and len(runs) < session.runs:
                checkpoints.offer(partial(Snapshot, begin.finished), str(seed_run))
                begin = advance(begin, checkpoints.end(begin.seed_runs), protocol)
                for record in begin._replace(finished=()).records:
                    session.on_record(record)
    return begin


def phase_of(method: Method, seed: int, done: int, phase: Phase) -> Progress:
    """Progress in a phase before the first of the remaining rounds."""
    return Progress(method.name, seed, done, method.protocol.rounds, phase=phase)


def new_runs(method: Method, seed: int, execution: MethodExecution | None = None) -> list[Run]:
    """The runs of all sweep points with one seed, before their first round.

    Args:
        method: The method.
        seed: The seed.
        execution: Computes the rounds; None before there is one.
    """
    algorithm, solver = method.algorithm, method.solver
    return [
        Run(
            algorithm.name,
            hparams={k: v for k, v in point.items() if k != "learning_rate"},
            learning_rate=point["learning_rate"] * solver.factor(0),
            seed=seed,
            label=label,
            sweep_points=len(method.points),
            lane_idle=execution.lane_idle if execution else 0.0,
            memory=execution.memory if execution else 0,
            evaluated="server" if algorithm.pooled else method.protocol.evaluation.model,
            noise_multiplier=method.mechanism and method.mechanism.noise_multiplier,
        )
        for point, label in zip(method.points, method.labels, strict=True)
    ]


def _model_copier(method: Method) -> Callable[[State], Params | None]:
    """(state) -> a copy of the evaluated model, since the next call reuses the state's memory.

    The copy is None if only the last model is kept.
    """
    if method.protocol.selection.keep != "best":
        return lambda _: None

    @jax.jit
    def copy(state: State) -> Params:
        return jax.tree.map(jnp.copy, evaluated(method.algorithm, state))

    return copy


class SeedRun:
    """All rounds of a method with one seed, at all sweep points.

    Args:
        session: The environment.
        method: The method.
        execution: Computes its rounds.
        start: The start of the remaining rounds.
        runs: The runs of the sweep points, to which records and parameters are added.
        finished: The finished runs of the comparison.
    """

    def __init__(
        self,
        session: Session,
        method: Method,
        execution: MethodExecution,
        start: Start,
        runs: Sequence[Run],
        finished: Sequence[Run],
    ) -> None:
        self.session, self.method, self.execution, self.start = session, method, execution, start
        self.seed, self.runs, self.finished = start.seed, runs, finished
        self.copy = _model_copier(method)
        self.began, self.spent = time.perf_counter(), runs[0].run_seconds

    def __str__(self) -> str:
        return f"{self.method.name}, seed {self.seed}"

    def run(self, begin: Snapshot) -> None:
        """Run the remaining rounds.

        Args:
            begin: The comparison at the beginning of these rounds.
        """
        session, checkpoints, runs = self.session, self.session.checkpoints, self.runs
        execution = self.execution.begin(self.start)
        self._report(begin.round, best_loss(runs) if begin.round else None)
        try:
            now = self._first_state()
            if begin.round:
                now = begin.run_state(now, session.mesh)
                restore(execution, begin)
            planned = execution.planned
            if checkpoints is not None:
                planned = _notify(planned, checkpoints)
            after_call = partial(self._offer, execution)
            listeners = Listeners(session.on_record, self._report, after_call)
            rounds = Rounds(self.method, execution, self.copy, now, runs, listeners)
            del now  # its memory is reused by the first call
            end = rounds.run(planned)
            if checkpoints is not None:
                number = Snapshot(self.finished).seed_runs
                checkpoints.write_end(number, lambda: self._snapshot(execution, end))
        finally:
            execution.close()
        done = runs[0].final.round
        session.on_progress(Progress(self.method.name, self.seed, done, done, best_loss(runs)))
        set_params(session.protocol, runs, self.method.algorithm, end.state, end.best)
        self._count_seconds()

    def _first_state(self) -> RunState:
        """The state before round 0."""
        state = self.method.initial_state(self.start.params, self.session.mesh)
        hparams, adapt, memory = self.execution.hparams, self.method.algorithm.adapt, None
        if adapt is not None:  # only its shape matters: the first evaluation sets it
            memory = adapt.init(hparams, jnp.full(len(self.runs), jnp.nan))
        return RunState(0, state, hparams, memory, best=self.copy(state))

    def _count_seconds(self) -> None:
        for run in self.runs:
            run.run_seconds = self.spent + time.perf_counter() - self.began

    def _snapshot(self, execution: SeedExecution, now: RunState) -> Snapshot:
        self._count_seconds()
        clients = len(self.session.protocol.federation)
        arrays = arrays_of(now, len(self.runs), clients)
        return Snapshot(self.finished, self.runs, now.round, arrays, execution.contents())

    def _offer(self, execution: SeedExecution, done: int, now: Callable[[], RunState]) -> None:
        """Offer a checkpoint after a call."""
        if self.session.checkpoints is not None:
            offered: Callable[[], Snapshot] = lambda: self._snapshot(execution, now())  # noqa: E731
            self.session.checkpoints.offer(offered, str(self), done)

    def _report(self, done: int, loss: float | None) -> None:
        rounds = self.session.protocol.rounds
        self.session.on_progress(Progress(self.method.name, self.seed, done, rounds, loss))


def restore(execution: SeedExecution, begin: Snapshot) -> None:
    """Restore the client state of a checkpoint.

    Raises:
        InputError: If it is not such as this comparison writes.
    """
    try:
        execution.restore(begin.client_state or ())
    except Damaged as error:
        problem = str(error).removeprefix(f"{begin.file}: ")
        raise InputError(f"{begin.file}: {problem}; begin anew, without resuming") from None


def skip_finished(
    checkpoints: Checkpoints, begin: Snapshot, methods: Sequence[Method], mesh: Mesh
) -> Snapshot:
    """Advance a comparison from its last checkpoint over later seed runs with stored ends.

    Args:
        checkpoints: The checkpoints.
        begin: The last checkpoint.
        methods: The method of each seed run.
        mesh: The devices.
    """
    for method in methods[begin.seed_runs :]:
        protocol, algorithm = method.protocol, method.algorithm
        end = checkpoints.end(begin.seed_runs)
        if end is None or end.rounds < protocol.rounds:
            return advance(begin, end, protocol)
        params = protocol.model.shapes
        state = end.snapshot.state(jax.tree.structure(jax.eval_shape(algorithm.init, params)))
        best = end.snapshot.best(jax.tree.structure(params))
        runs = end.snapshot.under_way
        set_params(protocol, runs, algorithm, replicate(mesh, state), best)
        begin = Snapshot((*begin.finished, *runs))
    return begin


def advance(begin: Snapshot, end: End | None, protocol: Protocol) -> Snapshot:
    """Advance `begin` to the stored end of its next seed run, if that has more rounds.

    A shorter comparison always evaluates its last model. If this comparison does not evaluate that
    round, the record is removed.
    """
    if end is None or end.snapshot.round <= begin.round:
        return begin
    for run in end.snapshot.under_way if end.rounds < protocol.rounds else ():
        if run.final.round % protocol.evaluation.every:
            run.history.pop()
            run.client_steps = run.final.total_steps
    return end.snapshot._replace(finished=begin.finished)


def set_params(
    protocol: Protocol, runs: Sequence[Run], algorithm: Algorithm, state: State, best: Params | None
) -> None:
    """Set the final parameters of a seed's runs.

    Args:
        protocol: The protocol of the comparison.
        runs: The runs of the sweep points.
        algorithm: The method.
        state: The server's state at the end.
        best: The best models, as in `RunState.best`.
    """
    last, best = (jax.tree.map(np.asarray, tree) for tree in (evaluated(algorithm, state), best))
    for i, run in enumerate(runs):
        run.model_round = run.final.round if best is None else protocol.best(run.history).round
        chosen = last if run.model_round == run.final.round else best
        run.params = jax.tree.map(lambda a, i=i: a[i], chosen)


def _notify(planned: Planned, checkpoints: Checkpoints) -> Planned:
    """Yield the planned calls, and notify the checkpoints before each of them."""
    for call in planned:
        checkpoints.begin_call()
        yield call
