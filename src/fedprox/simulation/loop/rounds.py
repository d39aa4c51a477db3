"""The rounds of one seed: calls of the compiled program, followed by evaluations and records."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import ClientState, State
from fedprox.model import Params
from fedprox.simulation.compiled.compile import Compiler, Programs, read_cohort
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.compiled.layout import Capacity, Layout
from fedprox.simulation.compiled.round import After, Inputs, Server
from fedprox.simulation.config.method import Method
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.loop.ends import EarlyEnd
from fedprox.simulation.loop.planner import Call, Chunk, Planned
from fedprox.simulation.loop.records import (
    Counts,
    Faulty,
    PendingEvaluation,
    best_loss,
    faulty_updates,
    records_of,
)
from fedprox.simulation.planning.batch_plan import BatchPlan, no_jobs
from fedprox.simulation.planning.round_work import RoundWork
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run
from fedprox.simulation.storage.client_store import Store

RECORDS_BEHIND = 1
"""Number of evaluations that may be pending while the next rounds are computed."""


class CompiledMethod(NamedTuple):
    """A method and the programs that its seeds share.

    Attributes:
        method: The method.
        mesh: The devices.
        programs: (layout) -> the programs for it, compiled on first use.
        evaluate: (state) -> Measures.
        copy: (state) -> a copy of the evaluated model, or None if only the last model is kept.
    """

    method: Method
    mesh: Mesh
    programs: Compiler
    evaluate: Callable[[State], Measures]
    copy: Callable[[State], Params | None]


class RunState(NamedTuple):
    """The state of a seed's rounds, without client state and records.

    Attributes:
        round: Number of rounds done.
        state: The server's state.
        hparams: The current hyperparameters of all sweep points, which a method may adapt.
        memory: State of the method's adaptation of hyperparameters; None without one.
        taken: Steps since the last evaluation, a number or an array (points,) for each call.
        faulty: Faulty updates since the last evaluation, one item for each call; empty without
            screening.
        empty: Number of rounds since the last evaluation in which no client took part.
        capacity: Capacity of the last call; None before the first call.
        best: The best models so far, leaves (points, ...); None if only the last model is kept. An
            evaluation counts only if its round is a multiple of `Evaluation.every`, since a longer
            run has no other.
    """

    round: int
    state: State
    hparams: Mapping[str, Any]
    memory: Any = None
    taken: tuple[Any, ...] = ()
    faulty: tuple[Faulty, ...] = ()
    empty: int = 0
    capacity: Capacity | None = None
    best: Params | None = None


class Listeners(NamedTuple):
    """Functions that are called while rounds run.

    Attributes:
        record: Called with each record.
        progress: Called with the number of rounds done and the best loss.
        call: Called after each call of the program, with the number of rounds done and a function
            that waits for their records and returns their state.
    """

    record: Callable[[Record], None]
    progress: Callable[[int, float], None]
    call: Callable[[int, Callable[[], RunState]], None]


class Rounds:
    """Runs the rounds of one seed, and appends records to the histories of its runs.

    If an evaluation may end the run, each evaluation is awaited before the next call, so that there
    are no records and no model from after the end.

    Args:
        compiled: The method.
        now: State of the rounds. The initial model is not yet evaluated, later ones are.
        store: Store of the client state; None for a method without client state.
        runs: The runs of the sweep points so far.
        listeners: Functions that are called while rounds run.
    """

    def __init__(
        self,
        compiled: CompiledMethod,
        now: RunState,
        store: Store | None,
        runs: Sequence[Run],
        listeners: Listeners,
    ) -> None:
        self.compiled, self.now, self.store = compiled, now, store
        self.runs, self.listeners = runs, listeners
        self.method, self.protocol = compiled.method, compiled.method.protocol
        self.behind = 0 if self.protocol.waits else RECORDS_BEHIND
        self.keep_best = _best_keeper(self.protocol, runs)
        self.best = now.best
        self.early_end = EarlyEnd(self.protocol, len(runs))
        self.counts = Counts.of(self.protocol)
        self.pending = deque[PendingEvaluation]()
        self.calls = deque[tuple[int, jax.Array]]()
        adapt = self.method.algorithm.adapt
        self.adapt = None if adapt is None else jax.jit(adapt.update)

    def run(self, planned: Planned) -> RunState:
        """Run the planned rounds, up to an early end.

        Returns:
            The state at the end. Steps, faulty updates and empty rounds are counted since the last
            evaluation whose round is a multiple of `Evaluation.every`, since the run may be
            extended.
        """
        if not self.now.round:
            self._evaluate_first()
        for chunk, call in planned:
            computed = _computed(self.calls)
            while len(self.pending) > self.behind or self._next_is_done(computed):
                self._record_next()
            self._report(computed)
            # ignore pending evaluations even if they are done: a run always ends at the same round
            evaluations = len(self.runs[0].history) + len(self.pending) - self.behind
            if self.early_end.over(self.runs, evaluations):
                break
            self._call(chunk, call)
            del call  # the rows of the cohort are freed before the next ones arrive
            self.listeners.call(self.now.round, partial(self._recorded, self.now))
        return self._recorded(self.now)

    def _evaluate_first(self) -> None:
        """Evaluate the initial model."""
        now = self.now
        measures = self.compiled.evaluate(now.state)
        adapt = self.method.algorithm.adapt
        if adapt is not None:
            memory = adapt.init(now.hparams, measures.train_loss)
            self.now = now._replace(memory=memory)
        no_work = RoundWork(0, 0, 0, no_jobs(), no_jobs())
        first = PendingEvaluation(
            0, no_work, now.hparams, measures, None, None, (), (), 0, self.best
        )
        self.pending.append(first)

    def _next_is_done(self, computed: int) -> bool:
        """Whether the oldest pending evaluation is done, after `computed` rounds."""
        return bool(self.pending) and self.pending[0].round < computed

    def _record_next(self) -> None:
        """Wait for the oldest pending evaluation, and record it."""
        oldest, solver = self.pending.popleft(), self.method.solver
        rate = None if solver.schedule is None else solver.factor(max(oldest.round - 1, 0))
        records = records_of(oldest, self.method, self.runs, self.counts, rate)
        for run, record in zip(self.runs, records, strict=True):
            run.client_steps = record.total_steps
            run.history.append(record)
            self.listeners.record(record)
        self.best = self.keep_best(self.best, oldest)
        self.listeners.progress(oldest.round, best_loss(self.runs))

    def _recorded(self, now: RunState) -> RunState:
        """Wait until all evaluations are recorded, and return the state `now`."""
        while self.pending:
            self._record_next()
        return now._replace(best=self.best)

    def _report(self, done: int) -> None:
        """Report rounds that are done and that no record has reported."""
        if self.runs[0].history and done > self.runs[0].final.round:
            self.listeners.progress(done, best_loss(self.runs))

    def _call(self, chunk: Chunk, call: Call) -> None:
        """Start the rounds of one call, and the evaluation that follows them, if any."""
        programs = self.compiled.programs(call.layout)
        clients = clients_by_place(call.plan, call.work[0], call.layout)
        hparams = self.now.hparams
        after = self._run_program(programs, chunk, call, clients)
        client_state = None
        if self.store is not None:
            if chunk.recorded and programs.inexactness is not None:
                # the state before the round; the program has reused the memory of the first copy
                client_state = self.store.read(clients)
            self.store.write(clients, after.client_state)
            after = after._replace(client_state=None)
        planned_steps = sum(int(w.jobs.steps.sum()) for w in call.work)
        self.now = self.now._replace(
            round=chunk.last,
            state=after.state,
            taken=(*self.now.taken, planned_steps if after.steps is None else after.steps),
            faulty=self.now.faulty + _faulty(chunk, call, after),
            empty=self.now.empty + sum(not len(w.jobs.client) for w in call.work),
            capacity=call.layout.capacity,
        )
        measures = None
        if chunk.recorded or self.adapt is not None:
            measures = self.compiled.evaluate(after.state)
        if chunk.recorded and measures is not None:
            gamma = self._gamma(programs, call, after, client_state)
            self._await(call.work[-1], measures, gamma, after.local.steps)
            self.calls.append((chunk.last, measures.train_loss))
        else:  # a copy, since the next call reuses the memory of the state
            leaf = jax.tree.leaves(after.state)[0].addressable_data(0)
            self.calls.append((chunk.last, jnp.ravel(leaf)[:1]))
        if self.adapt is not None and measures is not None:
            adapted, memory = self.adapt(hparams, self.now.memory, measures.train_loss)
            self.now = self.now._replace(hparams=adapted, memory=memory)

    def _run_program(
        self, programs: Programs, chunk: Chunk, call: Call, clients: NDArray[np.int64]
    ) -> After:
        """Call the program, which reuses the memory of the server's and the clients' state."""
        state, self.now = self.now.state, self.now._replace(state=None)
        client_state = None if self.store is None else self.store.read(clients)
        count = np.int32(chunk.last - chunk.first)
        x, y = call.rows
        inputs = Inputs(self.now.hparams, x, y, call.plan, call.exchange, count)
        return programs.rounds(Server(state, client_state), inputs)

    def _await(
        self, work: RoundWork, measures: Measures, gamma: jax.Array | None, steps: Any
    ) -> None:
        """Add an evaluation of the current model to the pending ones."""
        now = self.now
        self.pending.append(
            PendingEvaluation(
                now.round,
                work,
                now.hparams,
                measures,
                gamma,
                steps,
                now.taken,
                now.faulty,
                now.empty,
                self.compiled.copy(now.state),
            )
        )
        if now.round % self.protocol.evaluation.every == 0:
            self.now = now._replace(taken=(), faulty=(), empty=0)

    def _gamma(
        self, programs: Programs, call: Call, after: After, client_state: ClientState
    ) -> jax.Array | None:
        """gamma_k of a call's last round, from the client state before it; None if not measured."""
        if programs.inexactness is None:
            return None
        jobs, last = call.work[-1].jobs, len(call.work) - 1
        cohort = read_cohort(jobs, call.plan, last, client_state, call.layout, self.compiled.mesh)
        local, hparams = after.local.params, self.now.hparams
        return programs.inexactness(after.problem_state, hparams, local, call.rows, cohort)


@jax.jit
def _choose(models: Params, others: Params, are_better: jax.Array) -> Params:
    """At each sweep point, the other model if it is better; leaves are (points, ...)."""

    def choose_leaf(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(are_better.reshape((-1,) + (1,) * (a.ndim - 1)), b, a)

    return jax.tree.map(choose_leaf, models, others)


def _best_keeper(
    protocol: Protocol, runs: Sequence[Run]
) -> Callable[[Params | None, PendingEvaluation], Params | None]:
    """A function (best models so far, evaluation of the runs' last records) -> best models."""
    if protocol.selection.keep == "last":
        return lambda *_: None
    bests = [protocol.best(run.history) for run in runs]

    def keep(models: Params | None, done: PendingEvaluation) -> Params | None:
        if done.round % protocol.evaluation.every:
            return models  # a longer run has no such evaluation
        better = [best.see(run.final) for best, run in zip(bests, runs, strict=True)]
        return _choose(models, done.model, np.array(better))

    return keep


def _computed(calls: deque[tuple[int, jax.Array]]) -> int:
    """Wait until at most one call is running, and return the rounds done by the calls before it.

    Without this, the host would run far ahead of the devices between evaluations.
    """
    done = 0
    while len(calls) > 1:
        done, result = calls.popleft()
        jax.block_until_ready(result)
    return done


def _faulty(chunk: Chunk, call: Call, after: After) -> tuple[Faulty, ...]:
    """The faulty updates of a call as one item; no item without screening."""
    if after.faulty is None:
        return ()
    slots = call.layout.rounds.slots
    return (partial(faulty_updates, chunk.first, call.work, slots, after.faulty),)


def clients_by_place(plan: BatchPlan, work: RoundWork, layout: Layout) -> NDArray[np.int64]:
    """The client at each place of a round, -1 for none, shape (devices * places,)."""
    clients = np.full(layout.rounds.devices * layout.rounds.places, -1)
    if len(clients):
        clients[plan.jobs.place[0, : len(work.jobs.client)]] = work.jobs.client
    return clients
