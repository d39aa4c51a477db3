"""The rounds of one seed: calls of the compiled program, evaluations and records behind them."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.adaptive import Trend, first_trend, follow
from fedprox.algorithms.base import Algorithm, ClientState, State
from fedprox.model import Params
from fedprox.simulation.compiled.compile import Programs, read_cohort
from fedprox.simulation.compiled.evaluation import Measures
from fedprox.simulation.compiled.layout import Capacity, Layout
from fedprox.simulation.compiled.round import After
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.loop.ends import Ends
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
from fedprox.solver import Solver

RECORDS_BEHIND = 1
"""Evaluations still under way while the next rounds are already being computed."""


_follow = jax.jit(follow)


@jax.jit
def _choose(models: Params, others: Params, are_better: jax.Array) -> Params:
    """At each point the other model where that is better; leaves are (points, ...)."""

    def one(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(are_better.reshape((-1,) + (1,) * (a.ndim - 1)), b, a)

    return jax.tree.map(one, models, others)


class CompiledMethod(NamedTuple):
    """A method with all that its seeds share.

    Attributes:
        algorithm: The method.
        solver: The local solver, already the algorithm's own.
        mesh: The devices.
        evaluate: See `Programs`.
        model: The server's state -> a copy of the model that is evaluated; None where no model but
            the last is kept.
        programs: Layout -> the programs of these shapes, compiled when they are first asked for.
        hparams: The points' hyperparameters, each (points,) on every device.
    """

    algorithm: Algorithm
    solver: Solver
    mesh: Mesh
    evaluate: Callable[[State], Measures]
    model: Callable[[State], Params | None]
    programs: Callable[[Layout], Programs]
    hparams: Mapping[str, Any]


class RunState(NamedTuple):
    """Where the rounds of a seed stand, but for what clients keep and the records so far.

    Attributes:
        round: Rounds done.
        state: The server's state.
        hparams: The points' hyperparameters now: mu may adapt.
        trend: What an adaptive mu remembers, else None.
        taken: Steps of all rounds since the evaluation before, a number or (points,) for each call.
        faulty: Their faulty updates, likewise, see `PendingEvaluation`.
        empty: How many of them no client took part in.
        capacity: How much the last call's arrays held; None before the first call.
        best: The best models at the evaluations that a run of more rounds would have had, leaves
            (points, ...); None where no model but the last is kept.
    """

    round: int
    state: State
    hparams: Mapping[str, Any]
    trend: Trend | None = None
    taken: tuple[Any, ...] = ()
    faulty: tuple[Faulty, ...] = ()
    empty: int = 0
    capacity: Capacity | None = None
    best: Params | None = None


def run_rounds(
    protocol: Protocol,
    ready: CompiledMethod,
    planned: Planned,
    standing: RunState,
    store: Store | None,
    runs: Sequence[Run],
    on_record: Callable[[Record], None],
    on_progress: Callable[[int, float], None],
    after_call: Callable[[int, Callable[[], RunState]], None],
) -> RunState:
    """Run the rounds of one seed; records go into the runs' histories as they become known.

    A run that stops at its target waits for each evaluation before it goes on, so that neither its
    records nor its last model lie beyond the stop.

    Args:
        protocol: What compared methods share.
        ready: The method.
        planned: What is left to do.
        standing: Where the rounds stand; the model of round 0 is not yet evaluated, later ones are.
        store: What clients keep, if they do.
        runs: The points' runs so far.
        on_record: Called with each record.
        on_progress: Called with the rounds done and the best loss.
        after_call: Called after each call of the program with the rounds done and a function that
            waits until all of them are written down and says where they stand.

    Returns:
        Where the rounds stand at the end. Steps, faulty updates and empty rounds are those since
        the evaluation before that a run of more rounds would have had.
    """
    algorithm, solver = ready.algorithm, ready.solver
    behind = 0 if protocol.waits else RECORDS_BEHIND
    keep_best = _keeping_best(protocol, runs)
    ends = Ends(protocol, len(runs))
    counts = Counts.of(protocol)
    pending, calls = deque[PendingEvaluation](), deque[tuple[int, jax.Array]]()
    done, state, hparams, trend, taken, faulty, empty, capacity, best = standing

    def settle() -> None:
        """Wait for the oldest evaluation and write it down."""
        nonlocal best
        oldest = pending.popleft()
        rate = None if solver.schedule is None else solver.factor(max(oldest.round - 1, 0))
        found = records_of(oldest, algorithm, runs, counts, protocol, rate)
        for run, record in zip(runs, found, strict=True):
            run.client_steps = record.total_steps
            run.history.append(record)
            on_record(record)
        best = keep_best(best, oldest)
        on_progress(oldest.round, best_loss(runs))

    def settled(now: RunState) -> RunState:
        """Where the rounds stand, once all evaluations are written down."""
        while pending:
            settle()
        return now._replace(best=best)

    if not done:
        measures = ready.evaluate(state)
        trend = first_trend(measures.train_loss) if algorithm.adapt else None
        nobody = RoundWork(0, 0, 0, no_jobs(), no_jobs())
        pending.append(PendingEvaluation(0, nobody, hparams, measures, None, None, (), (), 0, best))
    for chunk, call in planned:
        computed = _computed(calls)
        while len(pending) > behind or (pending and pending[0].round < computed):
            settle()
        _report(on_progress, computed, runs)
        # not those behind, also where they have come in already: the same run stops the same
        if ends.over(runs, len(runs[0].history) + len(pending) - behind):
            break
        layout, programs = call.layout, ready.programs(call.layout)
        here = clients_by_place(call.plan, call.work[0], layout)
        client_state = None if store is None else store.read(here)
        count = np.int32(chunk.last - chunk.first)
        after = programs.rounds(
            state, hparams, *call.rows, call.plan, call.exchange, client_state, count
        )
        client_state = None
        if store is not None:
            if chunk.recorded and programs.inexactness is not None:
                client_state = store.read(here)  # what it was: the round has used up its own copy
            store.write(here, after.client_state)
            after = after._replace(client_state=None)
        state = after.state
        faulty += _faulty(chunk, call, after)
        empty += sum(not len(w.jobs.client) for w in call.work)
        planned_steps = sum(int(w.jobs.steps.sum()) for w in call.work)
        taken += (planned_steps if after.steps is None else after.steps,)
        if chunk.recorded or trend is not None:
            measures = ready.evaluate(state)
        if chunk.recorded:
            work = call.work[-1]
            gamma = _gamma(ready, programs, call, after, hparams, client_state)
            steps = after.local.steps
            model = ready.model(state)
            found = PendingEvaluation(
                chunk.last, work, hparams, measures, gamma, steps, taken, faulty, empty, model
            )
            pending.append(found)
            regular = chunk.last % protocol.evaluation.every == 0
            taken, faulty, empty = ((), (), 0) if regular else (taken, faulty, empty)
            calls.append((chunk.last, measures.train_loss))
        else:  # a copy, since the next call is given the state
            some = jax.tree.leaves(state)[0].addressable_data(0)
            calls.append((chunk.last, jnp.ravel(some)[:1]))
        del after, client_state, call  # the cohort's models and rows go before the next one's come
        if trend is not None:
            mu, trend = _follow(hparams["mu"], trend, measures.train_loss)
            hparams = {**hparams, "mu": mu}

        done, capacity = chunk.last, layout.capacity
        now = RunState(done, state, hparams, trend, taken, faulty, empty, capacity)
        after_call(done, partial(settled, now))
        del now  # so that the state can be given up to the next call
    return settled(RunState(done, state, hparams, trend, taken, faulty, empty, capacity))


def _keeping_best(
    protocol: Protocol, runs: Sequence[Run]
) -> Callable[[Params | None, PendingEvaluation], Params | None]:
    """(best models so far, evaluation whose records are the runs' last) -> best models."""
    if protocol.selection.keep == "last":
        return lambda *_: None
    bests = [protocol.best(run.history) for run in runs]

    def keep(models: Params | None, done: PendingEvaluation) -> Params | None:
        if done.round % protocol.evaluation.every:
            return models  # a run of more rounds has no such evaluation
        better = [best.see(run.final) for best, run in zip(bests, runs, strict=True)]
        return _choose(models, done.model, np.array(better))

    return keep


def _computed(calls: deque[tuple[int, jax.Array]]) -> int:
    """Wait until one call is under way at most, and return the rounds done by those before it.

    Without this the host would run far ahead wherever nothing is evaluated.
    """
    done = 0
    while len(calls) > 1:
        done, result = calls.popleft()
        jax.block_until_ready(result)
    return done


def _report(on_progress: Callable[[int, float], None], done: int, runs: Sequence[Run]) -> None:
    """Report rounds that no evaluation has reported."""
    if runs[0].history and done > runs[0].final.round:
        on_progress(done, best_loss(runs))


def _faulty(chunk: Chunk, call: Call, after: After) -> tuple[Faulty, ...]:
    """The faulty updates of a call, if updates are screened."""
    if after.faulty is None:
        return ()
    slots = call.layout.rounds.slots
    return (partial(faulty_updates, chunk.first, call.work, slots, after.faulty),)


def _gamma(
    ready: CompiledMethod,
    programs: Programs,
    call: Call,
    after: After,
    hparams: Mapping[str, Any],
    client_state: ClientState,
) -> jax.Array | None:
    """gamma_k of a call's last round, given what the clients kept before it, if it is measured."""
    if programs.inexactness is None:
        return None
    jobs, last = call.work[-1].jobs, len(call.work) - 1
    cohort = read_cohort(jobs, call.plan, last, client_state, call.layout, ready.mesh)
    return programs.inexactness(
        after.problem_state, hparams, after.local.params, *call.rows, *cohort
    )


def clients_by_place(plan: BatchPlan, work: RoundWork, layout: Layout) -> NDArray[np.int64]:
    """The client at each place of a round, -1 for none, shape (devices * places,)."""
    clients = np.full(layout.rounds.devices * layout.rounds.places, -1)
    if len(clients):
        clients[plan.jobs.place[0, : len(work.jobs.client)]] = work.jobs.client
    return clients
