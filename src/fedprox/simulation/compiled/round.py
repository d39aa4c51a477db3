"""The engine: some rounds as one compiled program.

Inside the program a round is a loop over segments of a loop over ticks (`lanes.run_segments`);
a tick is one mini-batch of every lane (or a part of a wide one, or a search along a line), for all
points of the sweep at once, or else for one point after another, `point_by_point`. Where a job
ends, its message is added to the server's mean with its weight, what the client keeps goes to its
place, and the lane takes up its next one. One sum over the devices and the algorithm's update end
the round. Where clients know their own gradient, it is read before, as are those of the cohort of a
first exchange.

Axes of the arrays inside: lanes, then points of the sweep, then the parameter's own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Wrapped

from fedprox.algorithms.base import Algorithm, ClientContext, ClientState, HParams, State
from fedprox.features import Features, index_of, look_up
from fedprox.model import Model, Params
from fedprox.simulation.compiled.aggregation import Arrived, Result, aggregation
from fedprox.simulation.compiled.client_step import (
    ClientStep,
    LaneState,
    at_rest,
    of_the_round,
    random_key,
    steps_taken,
)
from fedprox.simulation.compiled.gradients import exchange_gradients
from fedprox.simulation.compiled.lanes import (
    choose,
    over,
    put,
    read_rows,
    run_segments,
    where_lanes,
)
from fedprox.simulation.compiled.screening import Screened
from fedprox.simulation.config.faults import Faults
from fedprox.simulation.devices.mesh import (
    AXIS,
    PER_DEVICE,
    PER_ROUND_AND_DEVICE,
    REPLICATED,
    spread,
)
from fedprox.simulation.planning.batch_plan import BatchPlan, Shape
from fedprox.simulation.planning.reads import Exchange
from fedprox.solver import Solver


class Local(NamedTuple):
    """What is known of the clients after a round.

    Attributes:
        params: Their models (slots, points, ...), those of idle slots zero; None where nobody asks.
        steps: Steps they took, int32 (slots, points); None where the plan says it.
    """

    params: Params | None
    steps: jax.Array | None


class After(NamedTuple):
    """What some rounds leave.

    Attributes:
        state: The server's state.
        problem_state: The state that defined the last round's local problems; None if not kept.
        local: The last round's clients.
        steps: Steps of all clients and rounds, int32 (points,); None where the plan says it.
        client_state: State of the last round's clients, leaves (devices * places, points, ...);
            None for a method without.
        faulty: Which updates were faulty, bool (points, rounds, jobs), the jobs being the slots and
            after them those of a first exchange; None without screening.
    """

    state: State
    problem_state: State | None
    local: Local
    steps: jax.Array | None
    client_state: ClientState
    faulty: jax.Array | None


def rounds_program(
    model: Model,
    algorithm: Algorithm,
    solver: Solver,
    mesh: Mesh,
    shape: Shape,
    *,
    augment: Callable[[jax.Array, jax.Array], jax.Array] | None,
    accumulate: bool,
    keep_local: bool,
    reading_lanes: int,
    width: int,
    batched: bool,
    faults: Faults | None,
    rows: Sequence[Any],
) -> Wrapped:
    """Compile-once program for up to `shape.rounds` rounds.

    Args:
        model: The model.
        algorithm: The method.
        solver: The local solver, already the algorithm's own.
        mesh: The devices.
        shape: Fixed shape of the plans.
        augment: As in `Federation`.
        accumulate: Whether a mini-batch can take several ticks.
        keep_local: Whether to keep the last round's local models.
        reading_lanes: Lanes per device that read whole clients.
        width: Rows of a slice when reading whole clients.
        batched: Whether a tick is one of all sweep points at once, or else the points do their
            rounds one after another.
        faults: What is done about faulty updates; None for no screening.
        rows: How x and y are spread over the devices.

    Returns:
        (state, hparams, x, y, plan, exchange, client_state, rounds) -> After: state and hparams
        have a leading axis of sweep points; `exchange` is None unless gradients are read first, and
        `client_state`, the state of the cohort's clients, is like that of `After`.
    """
    client = ClientStep(model, algorithm, solver, accumulate, width)
    begin_all = over(over(client.begin, (0, 0, 0, None)), (None, None, 0, 0))
    gradient_all = over(over(client.gradient, (0, None, None, None, None)), (0, 0, 0, 0, 0))
    # a single lane keeps its axis here: only so does XLA step in place, without a copy of the model
    tick_all = jax.vmap(
        jax.vmap(client.tick, in_axes=(0, 0, 0, 0, None, None)), (0, None, None, 0, 0, 0)
    )
    search_all = over(
        over(client.search, (0, 0, 0, None, None, None, None, None)),
        (0, None, None, None, None, 0, 0, 0),
    )
    message_all = over(over(client.message, (0, 0, 0, None)), (0, None, None, 0))
    read_all = over(read_rows, (None, 0))
    training_features = features_reader(augment)

    screened = faults if algorithm.exchange else None
    gradients = exchange_gradients(model, shape.slots, reading_lanes, width, screened)
    updates = aggregation(faults, algorithm.size, shape)

    def nothing_yet(
        state: State, hparams: HParams, client_state: ClientState
    ) -> tuple[LaneState, Any, Local]:
        """Idle lanes, no messages, no local models."""
        params = jax.vmap(algorithm.params)(state)
        context = nobody(
            params if algorithm.own_gradient else None, client_state, hparams, shape.lanes
        )
        workers = begin_all(state, hparams, context, jnp.zeros(shape.lanes))
        workers = at_rest(workers, jnp.ones(shape.lanes, bool))
        steps = jnp.zeros(shape.lanes, jnp.int32)
        messages, _ = jax.eval_shape(message_all, workers, state, hparams, steps)
        sums = updates.begin(messages, client_state)
        found = Local(workers.params if keep_local else None, steps_taken(workers))
        local = jax.tree.map(lambda a: jnp.zeros((shape.slots, *a.shape[1:]), a.dtype), found)
        return workers, sums, local

    def one_round(
        state: State,
        hparams: HParams,
        x: Features,
        y: jax.Array,
        plan: BatchPlan,
        exchange: Exchange | None,
        client_state: ClientState,
    ) -> tuple[State, State, Local, ClientState, jax.Array | None]:
        hparams = of_the_round(hparams, plan.rate, plan.participation)
        jobs, before, gradient, first = plan.jobs, (state, client_state), None, None
        places = jobs.place % max(shape.places, 1)  # on this device
        if exchange is not None:
            read = gradients(jax.vmap(algorithm.params)(state), x, y, exchange)
            gradient, mean_gradient, first = read
            if algorithm.exchange is not None:
                state = jax.vmap(algorithm.exchange)(state, mean_gradient)

        def begin_jobs(slot: jax.Array, carry: Any) -> Any:
            # what clients keep is read from before the round, and never from the carry, where it is
            # written: XLA would copy it all whenever a client ends whose message depends on it
            workers, *rest = carry
            share = jnp.broadcast_to(jobs.share[slot][:, None], workers.context.relative_size.shape)
            context = ClientContext(
                jax.tree.map(lambda a: a[slot], gradient),
                jax.tree.map(lambda a: a[places[slot]], client_state),
                share,
            )
            fresh = begin_all(state, hparams, context, jobs.gamma[slot])
            return where_lanes(slot >= 0, fresh, workers), *rest

        def tick(i: jax.Array, carry: Any) -> Any:
            workers, *rest = carry
            rows = plan.rows[i]
            real = rows >= 0
            rows = jnp.where(real, rows, ~rows)
            if solver.searches_line:
                first, active = rows[:, 0], real[:, 0]
                workers = search_all(workers, state, hparams, x, y, first, plan.size[i], active)
                return workers, *rest
            weights = real / plan.size[i][:, None].astype(jnp.float32)
            noise = None if plan.noise is None else plan.noise[i]
            features, labels = training_features(x, rows, noise), read_all(y, rows)
            gradient = gradient_all(workers.params, features, labels, weights, noise)
            check = None if plan.check is None else plan.check[i]
            workers = tick_all(workers, state, hparams, gradient, plan.last[i], check)
            return workers, *rest

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            workers, sums, local, client_state = carry
            ended = slot >= 0
            weight = jnp.where(ended, jobs.weight[slot], 0.0)
            sent = message_all(workers, state, hparams, jobs.steps[slot])
            sums, client_state = updates.take(
                sums, client_state, Arrived(slot, places[slot], weight, *sent)
            )
            found = Local(workers.params if keep_local else None, steps_taken(workers))
            local = put(local, jnp.where(ended, slot, shape.slots), found)
            return at_rest(workers, ended), sums, local, client_state

        def all_done(carry: Any) -> jax.Array:
            return jnp.all(carry[0].stop.done)

        _, sums, local, client_state = run_segments(
            plan.ends,
            tick,
            end_jobs,
            (*nothing_yet(state, hparams, client_state), client_state),
            begin_jobs=begin_jobs,
            idle=None if solver.gamma is None else all_done,
        )
        result, somebody = updates.end(sums, client_state, jobs), plan.participation > 0
        after, client_state, faulty = renew(
            algorithm, before, state, hparams, somebody, result, first
        )
        return after, state, local, client_state, faulty

    def rounds(
        state: State,
        hparams: HParams,
        x: Features,
        y: jax.Array,
        plan: BatchPlan,
        exchange: Exchange | None,
        client_state: ClientState,
        count: jax.Array,
    ) -> After:
        def body(r: jax.Array, carry: After) -> After:
            now = of_round(plan, exchange, r)
            found = one_round(carry.state, hparams, x, y, *now, carry.client_state)
            after, problem_state, local, client_state, faulty = found
            taken = jax.tree.map(lambda s: s.sum(axis=0), local.steps)
            steps = jax.tree.map(jnp.add, carry.steps, taken)
            faulty = flag(carry.faulty, r, faulty)
            return After(
                after, problem_state if keep_local else None, local, steps, client_state, faulty
            )

        first = of_the_round(hparams, plan.rate[0], plan.participation[0])
        local = nothing_yet(state, first, client_state)[2]
        steps = jax.tree.map(lambda s: s.sum(axis=0), local.steps)
        faulty = flags(faults, state, exchange, shape)
        before = After(state, state if keep_local else None, local, steps, client_state, faulty)
        after = jax.lax.fori_loop(0, count, body, before)
        # leaf by leaf, since a vector of all local models would be one more copy of them
        local, steps = jax.tree.map(lambda a: jax.lax.psum(a, AXIS), (after.local, after.steps))
        return after._replace(local=local, steps=steps)

    split: Any = PER_ROUND_AND_DEVICE
    same: Any = REPLICATED
    specs = (
        *[REPLICATED] * 2,
        *rows,
        BatchPlan(split, split, split, split, split, split, same, same, same),
        Exchange(split, REPLICATED, REPLICATED) if algorithm.own_gradient else None,
        PER_DEVICE,
        REPLICATED,
    )
    found = After(same, same, same, same, client_state=PER_DEVICE, faulty=same)
    body = rounds if batched else point_by_point(rounds)
    return spread(mesh, body, specs, out_specs=found, donated=(0, 6))


def features_reader(
    augment: Callable[[jax.Array, jax.Array], jax.Array] | None,
) -> Callable[[Features, jax.Array, jax.Array | None], jax.Array]:
    """(features, rows of all lanes, their ticks' noise) -> what the model sees of these rows."""
    read_all, look_up_all = over(read_rows, (None, 0)), over(look_up, (None, 0))

    def augmented(noise: jax.Array, client_state: jax.Array) -> jax.Array:
        assert augment is not None
        return augment(random_key(noise), client_state)

    augment_all = over(augmented, (0, 0))

    def read(x: Features, rows: jax.Array, noise: jax.Array | None) -> jax.Array:
        client_state = read_all(index_of(x), rows)
        if noise is None or augment is None:  # it may be there for the model
            return look_up_all(x, client_state)
        return augment_all(noise, client_state)

    return read


def point_by_point(rounds: Callable[..., After]) -> Callable[..., After]:
    """Some rounds of one sweep point after another, so that each has the caches to itself."""

    def every(
        state: State,
        hparams: HParams,
        x: Features,
        y: jax.Array,
        plan: BatchPlan,
        exchange: Exchange | None,
        client_state: ClientState,
        count: jax.Array,
    ) -> After:
        def one(point: tuple[State, HParams, ClientState]) -> After:
            state, hparams, client_state = jax.tree.map(lambda a: a[None], point)
            after = rounds(state, hparams, x, y, plan, exchange, swapped(client_state), count)
            return jax.tree.map(lambda a: a[0], turned(after))

        return turned(jax.lax.map(one, (state, hparams, swapped(client_state))))

    def swapped(tree: Any) -> Any:
        return jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), tree)

    def turned(after: After) -> After:
        """The points' axis first where it is second, and back."""
        return after._replace(local=swapped(after.local), client_state=swapped(after.client_state))

    return every


def renew(
    algorithm: Algorithm,
    before: tuple[State, ClientState],
    problem_state: State,
    hparams: HParams,
    somebody: jax.Array,
    result: Result,
    first: Screened | None,
) -> tuple[State, ClientState, jax.Array | None]:
    """The end of a round: the server's update, as if faulty clients had not been in the cohort.

    Args:
        algorithm: The method.
        before: The server's state, and what the clients kept, before the round.
        problem_state: The state from which local problems were problem_state.
        hparams: The hyperparameters of all point in the round.
        somebody: Whether anybody took part.
        result: What the cohort's updates come to.
        first: What a first exchange's gradients are worth, where they are screened.

    Returns:
        The state and what clients keep afterwards, and which updates were faulty, bool (jobs,
        points), those of the first exchange behind; None without screening.
    """
    client_state, faulty = result.client_state, result.faulty
    if result.share is not None:
        hparams = {**hparams, "participation": hparams["participation"] * result.share}
        somebody = somebody & (result.share > 0)
    if faulty is not None and first is not None:
        somebody = somebody & (first.share > 0)  # without g^t everybody has worked in vain
        client_state = choose(somebody[None], client_state, before[1])
        faulty = jnp.concatenate([faulty, first.faulty])
    after = jax.vmap(algorithm.update)(problem_state, result.mean, hparams)
    return choose(somebody, after, before[0]), client_state, faulty


def flags(
    faults: Faults | None, state: State, exchange: Exchange | None, shape: Shape
) -> jax.Array | None:
    """Nothing is faulty so far, see `After.faulty`; None without screening."""
    if faults is None:
        return None
    jobs = shape.slots if exchange is None else exchange.weight.shape[-1]
    return jnp.zeros((len(jax.tree.leaves(state)[0]), shape.rounds, jobs), bool)


def flag(known: jax.Array | None, r: jax.Array, faulty: jax.Array | None) -> jax.Array | None:
    """With those of round r."""
    return None if known is None or faulty is None else known.at[:, r].set(faulty.T)


def nobody(
    params: Params | None, client_state: ClientState, hparams: HParams, lanes: int
) -> ClientContext:
    """What idle lanes know: nothing, in the shapes of a gradient and of what clients keep."""

    def zeros(like: Any, *shape: int) -> jax.Array:
        return jnp.zeros((lanes, *shape), like.dtype)

    return ClientContext(
        jax.tree.map(lambda a: zeros(a, *a.shape), params),
        jax.tree.map(lambda a: zeros(a, *a.shape[1:]), client_state),
        jnp.ones((lanes, len(hparams["learning_rate"]))),
    )


def of_round(
    plan: BatchPlan, exchange: Exchange | None, r: jax.Array
) -> tuple[BatchPlan, Exchange | None]:
    """Round r of some rounds' plans, and of it what this device does."""

    def mine(part: Any) -> Any:
        return jax.tree.map(lambda a: a[r, 0], part)

    now = BatchPlan(*map(mine, plan[:6]), *jax.tree.map(lambda a: a[r], plan[6:]))
    if exchange is None:
        return now, None
    return now, Exchange(mine(exchange.reading), exchange.size[r], exchange.weight[r])
