"""The run of one method: all its seeds and sweep points."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
from fedprox.simulation.loop.snapshot import Snapshot
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run


class Session(NamedTuple):
    """The environment in which all methods of a comparison run.

    Attributes:
        protocol: The protocol of the comparison.
        mesh: The devices of the server's state.
        execute: Makes the execution of a method.
        checkpoints: Where and how often checkpoints are written; None means no checkpoints.
        on_record: Called with each record.
        on_progress: Called when a phase begins and when rounds end.
    """

    protocol: Protocol
    mesh: Mesh
    execute: Execute
    checkpoints: Checkpoints | None
    on_record: Callable[[Record], None]
    on_progress: Callable[[Progress], None]


def run_method(session: Session, method: Method, first: int) -> list[Run]:
    """Run all seeds of one method at all sweep points, each from its last checkpoint.

    Args:
        session: The environment.
        method: The method.
        first: Number of its first seed run.

    Returns:
        The runs.
    """
    protocol, checkpoints, execution = session.protocol, session.checkpoints, None
    runs = list[Run]()
    with ExitStack() as opened:
        for number, seed in enumerate(protocol.seeds, first):
            saved = None if checkpoints is None else checkpoints.last(number)
            if saved is not None:
                saved.fit_to(protocol)
                for record in saved.records:
                    session.on_record(record)
                if saved.is_over(protocol):
                    now = on_mesh(saved.now, session.mesh)
                    set_params(protocol, saved.runs, method.algorithm, now.state, now.best)
                    runs += saved.runs
                    continue
            done, capacity = (saved.now.round, saved.now.capacity) if saved else (0, None)
            if execution is None:
                session.on_progress(phase_of(method, seed, done, "planning"))
            began = time.perf_counter()
            start = Start(seed, protocol.first_params(seed), done, capacity)
            initial_seconds = time.perf_counter() - began
            if execution is None:
                execution = opened.enter_context(session.execute(method, start))
            under_way = saved.runs if saved else new_runs(method, seed, execution)
            for run in under_way:
                run.compile_seconds += initial_seconds + execution.compile_seconds
            SeedRun(session, method, execution, start, number, under_way).run(saved)
            runs += under_way
    return runs


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
        number: Its number in the comparison.
        runs: The runs of the sweep points, to which records and parameters are added.
    """

    def __init__(
        self,
        session: Session,
        method: Method,
        execution: MethodExecution,
        start: Start,
        number: int,
        runs: Sequence[Run],
    ) -> None:
        self.session, self.method, self.execution, self.start = session, method, execution, start
        self.seed, self.number, self.runs = start.seed, number, runs
        self.copy = _model_copier(method)
        self.began, self.spent = time.perf_counter(), runs[0].run_seconds

    def __str__(self) -> str:
        return f"{self.method.name}, seed {self.seed}"

    def run(self, saved: Snapshot | None) -> None:
        """Run the remaining rounds.

        Args:
            saved: What they begin from; None for all rounds.
        """
        session, runs = self.session, self.runs
        execution = self.execution.begin(self.start)
        self._report(self.start.round, best_loss(runs) if saved else None)
        try:
            if saved is None:
                now = self._first_state()
            else:
                now = on_mesh(saved.now, session.mesh)
                restore(execution, saved)
            planned = execution.planned
            if session.checkpoints is not None:
                planned = _notify(planned, session.checkpoints)
            after_call = partial(self._offer, execution, over=False)
            listeners = Listeners(session.on_record, self._report, after_call)
            rounds = Rounds(self.method, execution, self.copy, now, runs, listeners)
            del now  # its memory is reused by the first call
            end = rounds.run(planned)
            self._offer(execution, end.round, lambda: end, over=True)
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

    def _offer(
        self, execution: SeedExecution, done: int, now: Callable[[], RunState], *, over: bool
    ) -> None:
        """Offer a checkpoint after a call, or at the end."""

        def snapshot() -> Snapshot:
            state = now()
            self._count_seconds()
            early = over and done < self.session.protocol.rounds
            return Snapshot(self.runs, state, early, execution.contents())

        if self.session.checkpoints is not None:
            self.session.checkpoints.offer(self.number, str(self), done, snapshot, over=over)

    def _report(self, done: int, loss: float | None) -> None:
        rounds = self.session.protocol.rounds
        self.session.on_progress(Progress(self.method.name, self.seed, done, rounds, loss))


def on_mesh(now: RunState, mesh: Mesh) -> RunState:
    """A state from a checkpoint, on the devices."""
    state, hparams, memory, best = replicate(mesh, (now.state, now.hparams, now.memory, now.best))
    return now._replace(state=state, hparams=hparams, memory=memory, best=best)


def restore(execution: SeedExecution, saved: Snapshot) -> None:
    """Restore the client state of a checkpoint.

    Raises:
        InputError: If it is not such as this comparison writes.
    """
    try:
        execution.restore(saved.client_state or ())
    except Damaged as error:
        problem = str(error).removeprefix(f"{saved.file}: ")
        raise InputError(f"{saved.file}: {problem}; begin anew, without resuming") from None


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
