"""The rounds of one seed: calls of rounds, followed by evaluations and records."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.algorithms.base import State
from fedprox.model import Params
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.config.method import Method
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.loop.client_records import client_records_of
from fedprox.simulation.loop.ends import EarlyEnd
from fedprox.simulation.loop.execution import Computed, Planned, RunState, SeedExecution
from fedprox.simulation.loop.planner import Chunk
from fedprox.simulation.loop.records import Counts, PendingEvaluation, best_loss, records_of
from fedprox.simulation.planning.round_work import no_work
from fedprox.simulation.results.clients import checksum_of, client_columns
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run

RECORDS_BEHIND = 1
"""Number of evaluations that may be pending while the next rounds are computed."""


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
        method: The method.
        execution: Computes the rounds.
        copy: (state) -> a copy of the evaluated model, or None if only the last model is kept.
        now: State of the rounds. The initial model is not yet evaluated, later ones are.
        runs: The runs of the sweep points so far.
        listeners: Functions that are called while rounds run.
    """

    def __init__(
        self,
        method: Method,
        execution: SeedExecution,
        copy: Callable[[State], Params | None],
        now: RunState,
        runs: Sequence[Run],
        listeners: Listeners,
    ) -> None:
        self.method, self.protocol = method, method.protocol
        self.execution, self.copy, self.now = execution, copy, now
        self.runs, self.listeners = runs, listeners
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
        measures, traffic = self.execution.evaluate(now.state)
        adapt = self.method.algorithm.adapt
        if adapt is not None:
            memory = adapt.init(now.hparams, measures.train_loss)
            self.now = now._replace(memory=memory)
        first = PendingEvaluation(
            *(0, no_work(), now.hparams, measures, None, None, (), (), 0, self.best, traffic),
            own=self.execution.measure_own(now),
        )
        self.pending.append(first)

    def _next_is_done(self, computed: int) -> bool:
        """Whether the oldest pending evaluation is done, after `computed` rounds."""
        return bool(self.pending) and self.pending[0].round < computed

    def _record_next(self) -> None:
        """Wait for the oldest pending evaluation, and record it."""
        oldest, solver = self.pending.popleft(), self.method.solver
        rate = None if solver.schedule is None else solver.factor(max(oldest.round - 1, 0))
        spent = self.method.epsilon(oldest.round + self.execution.repeated)
        records = records_of(oldest, self.method, self.runs, self.counts, rate, spent)
        clients = client_records_of(oldest, self.protocol, self.counts, len(self.runs))
        for run, record, by_client in zip(self.runs, records, clients, strict=True):
            run.client_steps = record.total_steps
            if by_client is not None:
                checksum = checksum_of(client_columns(by_client))
                record = record._replace(by_client_checksum=checksum)
            run.history.append(record)
            self.listeners.record(record._replace(by_client=by_client))
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

    def _call(self, chunk: Chunk, call: Any) -> None:
        """Start the rounds of one call, and the evaluation that follows them, if any."""
        before, self.now = self.now, self.now._replace(state=None)  # its memory is reused
        computed = self.execution.run(chunk, call, before)
        state, hparams = computed.state, self.now.hparams
        del before
        self.now = self.now._replace(
            round=chunk.last,
            state=state,
            taken=(*self.now.taken, computed.steps),
            faulty=self.now.faulty + computed.faulty,
            empty=self.now.empty + computed.empty,
            capacity=computed.capacity,
            traffic=self.now.traffic + computed.traffic,
            trained=self.now.trained + computed.trained,
        )
        measures = None
        if chunk.recorded or self.adapt is not None:
            measures, traffic = self.execution.evaluate(state)
            self.now = self.now._replace(traffic=self.now.traffic + traffic)
        if chunk.recorded and measures is not None:
            self._await(computed, measures)
            self.calls.append((chunk.last, measures.train_loss))
        else:  # a copy, since the next call reuses the memory of the state
            leaf = jax.tree.leaves(state)[0].addressable_data(0)
            self.calls.append((chunk.last, jnp.ravel(leaf)[:1]))
        if self.adapt is not None and measures is not None:
            adapted, memory = self.adapt(hparams, self.now.memory, measures.train_loss)
            self.now = self.now._replace(hparams=adapted, memory=memory)

    def _await(self, computed: Computed, measures: Measures) -> None:
        """Add an evaluation of the current model to the pending ones."""
        now = self.now
        self.pending.append(
            PendingEvaluation(
                now.round,
                computed.work,
                now.hparams,
                measures,
                computed.gamma,
                computed.local_steps,
                now.taken,
                now.faulty,
                now.empty,
                self.copy(now.state),
                now.traffic,
                self.execution.measure_own(now),
                now.trained,
            )
        )
        if now.round % self.protocol.evaluation.every == 0:
            self.now = now._replace(taken=(), faulty=(), empty=0, traffic=(), trained=())


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
