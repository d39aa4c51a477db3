"""The loop: the methods of a comparison on the same protocol, seed after seed and call after call.

A call computes some rounds. If they end at an evaluation, the model is evaluated, and a record is
made of it once it is known, mostly while the next call runs. An engine computes the rounds:
this machine's devices (`local.py`) or the nodes of a network (`fedprox.deployment`).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm, State
from fedprox.devices.mesh import replicate
from fedprox.devices.programs import jit_once
from fedprox.engine.compiled.compile import evaluated
from fedprox.engine.compiled.lanes import choose
from fedprox.epsilon import Spent, noise_of
from fedprox.errors import InputError, require, shown
from fedprox.files.arrays import Damaged
from fedprox.loop.checkpoint import Checkpoints
from fedprox.loop.described import describe_comparison, fingerprint
from fedprox.loop.execution import (
    Done,
    Engine,
    Measuring,
    MethodExecution,
    RunState,
    Start,
)
from fedprox.loop.following import Callback, Progress, Report, following, pass_on, showing
from fedprox.loop.records import (
    PendingEvaluation,
    best_loss,
    client_records_of,
    records_of,
)
from fedprox.loop.snapshot import Snapshot, Stage
from fedprox.model import Params
from fedprox.precision import real_type
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol
from fedprox.results.record import Record, checksum_of, client_columns
from fedprox.results.run import Run

RECORDS_BEHIND = 1
"""Number of evaluations that may be pending while the next rounds are computed."""


class Session(NamedTuple):
    """The environment in which all methods of a comparison run.

    Attributes:
        engine: The engine that computes the rounds.
        checkpoints: Where and how often checkpoints are written; None means no checkpoints.
        on_record: Called with each record.
        report: Called when a phase begins and when rounds end.
        experiment: The settings of the comparison, for its runs.
        owned: Whether a user owns the loop, and has each evaluation before rounds go on.
        start: Where the only seed run begins; None for its checkpoint, if there is one.
    """

    engine: Engine
    checkpoints: Checkpoints | None
    on_record: Callable[[Record], None]
    report: Report
    experiment: Mapping[str, Any]
    owned: bool
    start: Snapshot | None


def training(
    methods: Sequence[Method],
    engine: Engine,
    runs: list[Run],
    *,
    checkpoints: Checkpoints | None = None,
    callbacks: Sequence[Callback] = (),
    on_progress: Report | None = None,
    progress: bool = False,
    owned: bool = False,
    start: Snapshot | None = None,
) -> Iterator[Stage | None]:
    """Run methods on all seeds: it yields after each evaluation, and adds finished runs to `runs`.

    How it is followed is as in `simulate`; `owned` and `start` are as in `Session`.
    """
    protocol = methods[0].protocol
    on_record: Callable[[Record], None] = partial(pass_on, callbacks)
    seed_runs = [(method, seed) for method in methods for seed in protocol.seeds]
    planned = [new_runs(method, seed) for method, seed in seed_runs]
    if checkpoints:
        settings = fingerprint(protocol, methods)
        checkpoints.begin(settings, [method for method, _ in seed_runs], planned)
        on_record = checkpoints.before_first(on_record)
    experiment = describe_comparison(protocol, [method.algorithm for method in methods])
    announced = [replace(run, experiment=experiment) for group in planned for run in group]
    with following(callbacks, announced) as finished:
        with showing(progress, on_progress) as report:
            session = Session(engine, checkpoints, on_record, report, experiment, owned, start)
            for number, method in enumerate(methods):
                yield from train_method(session, method, number * len(protocol.seeds), runs)
        finished += runs


def train_method(
    session: Session, method: Method, first: int, runs: list[Run]
) -> Iterator[Stage | None]:
    """Run all seeds of one method at all sweep points, each from its last checkpoint."""
    protocol, checkpoints = method.protocol, session.checkpoints
    execution: MethodExecution | None = None
    with ExitStack() as opened:
        for number, seed in enumerate(protocol.seeds, first):
            saved = session.start or (checkpoints and checkpoints.last(number))
            saved = saved or Snapshot(new_runs(method, seed), RunState(0, None, {}))
            saved.fit_to(protocol)
            for record in saved.records:
                session.on_record(record)
            if saved.is_over(protocol):
                finish(session, saved.runs, method, _on_mesh(saved.now, session.engine.mesh))
                runs += saved.runs
                continue
            done = saved.now.round
            if not execution:
                session.report(Progress(method.name, seed, done, protocol.rounds, phase="planning"))
            began = time.perf_counter()
            start = Start(seed, protocol.first_params(seed), done, saved.now.capacity)
            initial_seconds = time.perf_counter() - began
            if not execution:
                opening = session.engine.execution(method, start, session.report)
                execution = opened.enter_context(opening)
            for run in saved.runs:
                run.compile_seconds += initial_seconds + execution.compile_seconds
                if not run.history:
                    run.lane_idle, run.memory = execution.lane_idle, execution.memory
            yield from SeedRun(session, method, execution, start, number, saved.runs).run(saved)
            runs += saved.runs


def new_runs(method: Method, seed: int) -> list[Run]:
    """The runs of all sweep points with one seed, before their first round."""
    algorithm, noise = method.algorithm, noise_of(method)
    return [
        Run(
            algorithm.name,
            hparams={k: v for k, v in point.items() if k != "learning_rate"},
            learning_rate=point["learning_rate"] * method.solver.factor(0),
            seed=seed,
            label=label,
            sweep_points=len(method.points),
            evaluated="server" if algorithm.pooled else method.protocol.evaluation.model,
            noise_multiplier=noise if noise is None else float(noise),
            columns=method.protocol.federation.columns,
        )
        for point, label in zip(method.points, method.labels, strict=True)
    ]


class SeedRun:
    """All rounds of a method with one seed, at all sweep points.

    If an evaluation may end the run, each evaluation is awaited before the next call, so that there
    are no records and no model from after the end.
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
        self.session, self.method, self.start = session, method, start
        self.protocol, self.number, self.runs = method.protocol, number, runs
        self.stopwatch = Stopwatch(runs[0].run_seconds, runs[0].callback_seconds)
        self.execution, self.hparams = execution.begin(start), execution.hparams
        self.copy = _model_copier(method)
        self.behind = 0 if self.protocol.waits or session.owned else RECORDS_BEHIND
        self.stage: Stage | None = None
        self.keep_best = _best_keeper(self.protocol, runs)
        self.early_end = EarlyEnd(self.protocol, len(runs))
        before = self.execution.repeated, self.execution.measured_before
        self.spent = Spent(method, start.seed, *before)
        self.pending = deque[PendingEvaluation]()
        self.calls = deque[tuple[int, jax.Array]]()
        adapt = method.algorithm.adapt
        self.adapt = adapt and jit_once(adapt.update)

    def __str__(self) -> str:
        return f"{self.method.name}, seed {self.start.seed}"

    def run(self, saved: Snapshot) -> Iterator[Stage | None]:
        """Run the remaining rounds, up to an early end, and yield after each evaluation."""
        try:
            self._report(self.start.round, self._loss)
            known = len(self.runs[0].history)
            if known:
                self.now = _on_mesh(saved.now, self.session.engine.mesh)
                self.best = self.now.best
                self._restore(saved)
            else:
                self._begin()
            while True:
                self._record_due()
                if len(self.runs[0].history) > known:
                    known = len(self.runs[0].history)
                    yield self._stage()
                if self._is_over():
                    break
                self._call()
                self._offer(over=False)
            end = self._recorded(self.now)
            self._offer(over=True)
            done = self.runs[0].final.round
            with self._calling_back():
                last = Progress(self.method.name, self.start.seed, done, done, self._loss)
                self.session.report(last)
            self._end(end)
        except GeneratorExit:  # the user left the loop
            self._end(self.now)
            raise
        finally:
            self.execution.close()
            self.stopwatch.close()

    def _stage(self) -> Stage | None:
        """The user's stage after an evaluation; None unless the user owns the loop."""
        if not self.session.owned:
            return None
        self._count_seconds()
        copied = self.now._replace(state=_copy(self.now.state), best=self.best)
        self.stage = Stage(
            *(self.method, self.runs[0], copied, self.done, self.set_rate, self.client_state)
        )
        return self.stage

    def set_rate(self, rate: float) -> None:
        """Give the rounds that follow another learning rate."""
        array = replicate(self.session.engine.mesh, np.array([rate], real_type()))
        self.now = self.now._replace(hparams={**self.now.hparams, "learning_rate": array})

    def client_state(self) -> list[tuple[str, NDArray[Any]]]:
        """A copy of the client state."""
        return [(name, np.array(array)) for name, array in self.execution.contents() or ()]

    def _end(self, end: RunState) -> None:
        """Set what the runs have at their end."""
        if self.stage:
            self.stage.leave(self.client_state())
        finish(self.session, self.runs, self.method, end)
        self._count_seconds()

    def _begin(self) -> None:
        """The state before round 0, and its evaluation."""
        starts = self.protocol.starts(self.method.algorithm, self.start.seed, self.start.params)
        state = self.method.initial_state(starts, self.session.engine.mesh)
        self.best = self.copy(state)
        now = RunState(0, state, self.hparams, best=self.best)
        measuring = self.execution.evaluate(state)
        adapt = self.method.algorithm.adapt
        if adapt:
            now = now._replace(memory=adapt.init(self.hparams, measuring()[0].train_loss))
        self.now = now
        self._await(measuring)

    def _restore(self, saved: Snapshot) -> None:
        """Restore the client state of a checkpoint."""
        try:
            self.execution.restore(saved.client_state or ())
        except Damaged as error:
            problem = str(error).removeprefix(f"{saved.file}: ")
            raise InputError(f"{saved.file}: {problem}; begin anew, without resuming") from None

    def _record_due(self) -> None:
        """Record what is known, and report how far the rounds are."""
        computed = self._computed()
        while len(self.pending) > self.behind or (
            self.pending and self.pending[0].now.round < computed
        ):
            self._record_next()
        if self.runs[0].history and computed > self.runs[0].final.round:
            self._report(computed, self._loss)

    def _is_over(self) -> bool:
        """Whether no more rounds follow."""
        if self.now.round == self.protocol.rounds:
            return True
        # ignore pending evaluations even if they are done: a run always ends at the same round
        evaluations = len(self.runs[0].history) + len(self.pending) - self.behind
        return self.early_end.over(self.runs, evaluations)

    def _computed(self) -> int:
        """Wait until at most one call is running, and return the rounds done by the calls before.

        Without this, the host would run far ahead of the devices between evaluations.
        """
        done = 0
        while len(self.calls) > 1:
            done, result = self.calls.popleft()
            jax.block_until_ready(result)
        return done

    def _call(self) -> None:
        """Start the rounds of one call, and the evaluation that follows them, if any."""
        if self.session.checkpoints:
            self.session.checkpoints.begin_call()
        if self.stage:
            self.stage.leave(None)
        before, self.now = self.now, self.now._replace(state=None)  # its memory is reused
        self.now = self.execution.next(before)
        del before
        done, state, hparams = self.now.round, self.now.state, self.now.hparams
        recorded = self.protocol.is_recorded(done)
        if recorded or self.adapt:
            measuring = self.execution.evaluate(state)
        if recorded:
            self._await(measuring)
        else:  # a copy, since the next call reuses the memory of the state
            leaf = jax.tree.leaves(state)[0].addressable_data(0)
            self.calls.append((done, jnp.ravel(leaf)[:1]))
        if self.adapt:
            measures, cost = measuring()
            if not recorded:
                self.now = self.now._replace(since=self.now.since + cost)
            if measures.given is not False:
                adapted, memory = self.adapt(hparams, self.now.memory, measures.train_loss)
                self.now = self.now._replace(hparams=adapted, memory=memory)

    def _await(self, measuring: Measuring) -> None:
        """Add an evaluation of the current model to the pending ones.

        The work of rounds is counted since the last record that a longer run would have, too.
        """
        now, own = self.now, self.execution.measure_own(self.now)
        model = self.copy(now.state) if now.round else self.best
        evaluated_now = now._replace(state=None, best=model)
        self.pending.append(PendingEvaluation(evaluated_now, measuring, own))
        if now.round % self.protocol.evaluation.every == 0:
            self.now = now._replace(since=Done())

    def _record_next(self) -> None:
        """Wait for the oldest pending evaluation, and record it."""
        oldest = self.pending.popleft()
        self.done = oldest.now.since
        done = oldest.now.round
        spent = self.spent.epsilon(done, self.execution.given_up(done))
        records = records_of(oldest, self.method, self.runs, spent)
        clients = client_records_of(oldest, self.protocol, len(self.runs))
        known = list[Record]()
        for run, record, by_client in zip(self.runs, records, clients, strict=True):
            run.client_steps = record.total_steps
            if by_client:
                checksum = checksum_of(client_columns(by_client))
                record = replace(record, by_client_checksum=checksum)
            run.history.append(record)
            known.append(replace(record, by_client=by_client))
        self.best = self.keep_best(self.best, oldest)
        with self._calling_back():
            for record in known:
                self.session.on_record(record)
            self.session.report(self._progress(oldest.now.round, self._loss))

    def _recorded(self, now: RunState) -> RunState:
        """Wait until all evaluations are recorded, and return the state `now`."""
        while self.pending:
            self._record_next()
        return now._replace(best=self.best)

    def _offer(self, *, over: bool) -> None:
        """Offer a checkpoint after a call, or at the end."""
        now = self.now

        def snapshot() -> Snapshot:
            state = self._recorded(now)
            self._count_seconds()
            early = over and now.round < self.protocol.rounds
            return Snapshot(self.runs, state, early, self.execution.contents())

        checkpoints = self.session.checkpoints
        if checkpoints:
            before = checkpoints.seconds
            checkpoints.offer(self.number, str(self), now.round, snapshot, over=over)
            self.stopwatch.leave_out(checkpoints.seconds - before)

    def _count_seconds(self) -> None:
        for run in self.runs:
            run.run_seconds, run.callback_seconds = self.stopwatch.run, self.stopwatch.callbacks

    def _calling_back(self) -> AbstractContextManager[None]:
        """Callbacks' time, once the devices have computed what was begun before."""
        begun = [result for _, result in self.calls]
        return self.stopwatch.calling_back((begun, self.execution.measured))

    def _report(self, done: int, loss: float | None) -> None:
        with self._calling_back():
            self.session.report(self._progress(done, loss))

    def _progress(self, done: int, loss: float | None) -> Progress:
        return Progress(self.method.name, self.start.seed, done, self.protocol.rounds, loss)

    @property
    def _loss(self) -> float | None:
        return best_loss(self.runs)


def _model_copier(method: Method) -> Callable[[State], Params | None]:
    """(state) -> a copy of the evaluated model, since the next call reuses the state's memory.

    The copy is None if only the last model is kept.
    """
    if method.protocol.selection.keep != "best":
        return lambda _: None

    return jit_once(partial(_copied, method.algorithm))


def _copied(algorithm: Algorithm, state: State) -> Params:
    return jax.tree.map(jnp.copy, evaluated(algorithm, state))


_choose = jax.jit(choose)

_copy = jax.jit(partial(jax.tree.map, jnp.copy))


def _best_keeper(
    protocol: Protocol, runs: Sequence[Run]
) -> Callable[[Params | None, PendingEvaluation], Params | None]:
    """A function (best models so far, evaluation of the runs' last records) -> best models."""
    if protocol.selection.keep == "last":
        return lambda *_: None
    bests = [protocol.best(run.history) for run in runs]

    def keep(models: Params | None, done: PendingEvaluation) -> Params | None:
        if done.now.round % protocol.evaluation.every:
            return models  # a longer run has no such evaluation
        better = [best.see(run.final) for best, run in zip(bests, runs, strict=True)]
        return _choose(np.array(better), done.now.best, models)

    return keep


def _on_mesh(now: RunState, mesh: Mesh) -> RunState:
    """A state from a checkpoint, on the devices."""
    state, hparams, memory, best = replicate(mesh, (now.state, now.hparams, now.memory, now.best))
    return now._replace(state=state, hparams=hparams, memory=memory, best=best)


def finish(session: Session, runs: Sequence[Run], method: Method, end: RunState) -> None:
    """Set the final parameters and the settings of a seed's runs."""
    protocol, algorithm = method.protocol, method.algorithm
    last, best = jax.tree.map(np.asarray, (evaluated(algorithm, end.state), end.best))
    models = None
    if algorithm.first.probe:
        models = jax.tree.map(np.asarray, jax.vmap(algorithm.first.probe)(end.state))
    for i, run in enumerate(runs):
        run.experiment = session.experiment
        run.models = jax.tree.map(lambda a, i=i: a[i], models)
        run.model_round = run.final.round if best is None else protocol.best(run.history).round
        chosen = last if run.model_round == run.final.round else best
        run.params = jax.tree.map(lambda a, i=i: a[i], chosen)


class EarlyEnd:
    """Decides whether the rounds of a seed run end early.

    A sweep point is over when it has diverged, reached the target, run out of patience, or been
    stopped by the user's function.
    """

    def __init__(self, protocol: Protocol, points: int) -> None:
        self.target, self.stop, self.points = protocol.target, protocol.stop_at_target, points
        self.diverged, self.reached, self.stopped = set[int](), set[int](), set[int]()
        self.patience, self.user_stop = protocol.selection.patience, protocol.stop
        self.best = [protocol.best() for _ in range(points)] if self.patience else []
        self.seen = 0

    def over(self, runs: Sequence[Run], evaluations: int) -> bool:
        """Whether the rounds end after the first `evaluations` records of each run."""
        for index in range(self.seen, evaluations):
            for point, run in enumerate(runs):
                self._see(point, run.history[index])
        self.seen = max(self.seen, evaluations)
        if self.stop == "any" and self.reached:
            return True
        ended = self.diverged | self.stopped
        if self.stop == "all":
            ended |= self.reached
        return len(ended) == self.points

    def _see(self, point: int, record: Record) -> None:
        if record.diverged:
            self.diverged.add(point)
        if self.target and self.target.met(record.value(self.target.measure)):
            self.reached.add(point)
        if self.patience and record.measured is not False:
            best = self.best[point]
            best.see(record)
            if best.since >= self.patience:
                self.stopped.add(point)
        if self.user_stop and _ask(self.user_stop, record):
            self.stopped.add(point)


def _ask(stop: Callable[[Record], bool], record: Record) -> bool:
    """Whether the user's function ends the run at a record."""
    answer = stop(record)
    require(
        isinstance(answer, bool | np.bool_),
        f"stop(record) returns {shown(answer)}; it must return True or False",
    )
    return bool(answer)


class Stopwatch:
    """Counts the seconds of rounds and evaluations, and apart from them those of callbacks.

    While callbacks run, the devices compute the rounds that were begun before. So only the time
    from the end of these rounds to the end of the callbacks is that of callbacks alone.
    """

    def __init__(self, run: float, callbacks: float) -> None:
        self._began = time.perf_counter() - run
        self.callbacks, self._elsewhere = callbacks, 0.0
        self._waiting = ThreadPoolExecutor(1, "stopwatch")

    @property
    def run(self) -> float:
        """Seconds of rounds and evaluations so far."""
        return time.perf_counter() - self._began - self._elsewhere

    @contextmanager
    def calling_back(self, computing: Any) -> Iterator[None]:
        """Count the time here as callbacks', once the devices have computed some arrays."""
        began = time.perf_counter()
        ready = self._waiting.submit(_ready_at, computing)
        try:
            yield
        finally:
            over = time.perf_counter()
            idle = over - max(began, ready.result()) if ready.done() else 0.0
            self.leave_out(idle)
            self.callbacks += idle

    def leave_out(self, seconds: float) -> None:
        """Do not count some seconds that have passed, such as those of writing a checkpoint."""
        self._elsewhere += seconds

    def close(self) -> None:
        """End the thread that waits for the devices."""
        self._waiting.shutdown(wait=False, cancel_futures=True)


def _ready_at(arrays: Any) -> float:
    """Wait for some arrays, and return the time."""
    with suppress(Exception):  # the loop raises it, where it needs the arrays
        jax.block_until_ready(arrays)
    return time.perf_counter()
