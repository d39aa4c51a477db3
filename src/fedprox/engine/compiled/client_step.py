"""A client's local solver in a lane: its start, one step, its stop rule, and its message."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms.base import (
    Algorithm,
    Batch,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    State,
)
from fedprox.engine.compiled.lanes import entries, over
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.planning.jobs import Slots
from fedprox.engine.storage.training_data import DeviceRows
from fedprox.features import Features
from fedprox.model import (
    Model,
    Params,
    Variables,
    at_state,
    loss_and_next_state,
    next_state,
    read_slice,
    weighted_loss,
)
from fedprox.parts.part import LocalGradient, Part, known_columns, random_key
from fedprox.precision import real_type
from fedprox.solver import Solver
from fedprox.subproblem import Reference
from fedprox.user_code import call

MODEL_KEY = 0x6D6F6465
"""Number folded into a tick's random key for the model. It is so large that augmentation, which may
split the same key, never derives the model's key."""


def round_hparams(hparams: HParams, rate: jax.Array, participation: jax.Array) -> HParams:
    """The hyperparameters of a round at all sweep points, arrays (points,)."""
    base = hparams["learning_rate"]
    return {
        **hparams,
        "learning_rate": base * rate,
        "participation": jnp.broadcast_to(participation, base.shape),
    }


class LocalLoss(NamedTuple):
    """A client's loss F_k at some parameters, and its labels; None for what is not computed.

    Attributes:
        gradient: grad F_k, leaves (..., points, ...).
        value: F_k, shape (..., points).
        labels: How many labels of each class its rows have, (..., points, classes).
        probed: F_k of the models of `First.probe`, (..., points, models).
    """

    gradient: Params | None = None
    value: jax.Array | None = None
    labels: jax.Array | None = None
    probed: jax.Array | None = None


class Stop(NamedTuple):
    """A client's stop rule: ||grad h_k(w)|| <= gamma ||grad h_k(s_k)||, or its time is over.

    Attributes:
        gamma: The client's gamma; None if it does not stop by its gradient.
        reference: ||grad h_k(s_k)||, negative until it is computed; None without gamma.
        deadline: Seconds since the beginning of the round after which it stops, not above 0 if it
            must not begin; None if it does not stop by a clock.
        done: Whether the client has stopped.
        steps: Steps taken, int32.
    """

    gamma: jax.Array | None
    reference: Any
    deadline: Any
    done: jax.Array
    steps: jax.Array


class Broadcast(NamedTuple):
    """The server's values for the clients of a round, leaves (points, ...).

    Attributes:
        state: The server's state.
        hparams: The hyperparameters of the round, from `round_hparams`.
    """

    state: State
    hparams: HParams


class LaneState(NamedTuple):
    """The client of a lane.

    Attributes:
        params: The client's current model.
        optimizer: The optimizer's state.
        gradient: Sum of the gradients of the mini-batch's ticks so far; None if each mini-batch is
            one tick.
        context: The client's own gradient, state, size and memory.
        stop: The stop rule; None if the solver has none.
    """

    params: Params
    optimizer: Any
    gradient: Params | None
    context: ClientContext
    stop: Stop | None


def contexts_of(
    parts: tuple[Part, ...],
    jobs: Slots,
    slot: jax.Array,
    own: LocalLoss,
    state: ClientState,
    points: int,
    key: jax.Array | None = None,
) -> ClientContext:
    """The contexts of the clients in `slot` (lanes,), leaves (lanes, points, ...)."""

    def at_points(column: jax.Array) -> jax.Array:
        shape = (len(slot), points, *column.shape[1:])
        return jnp.broadcast_to(column[:, None], shape)

    columns = known_columns(parts, jobs.numbers(slot), key)
    return ClientContext(
        own.gradient,
        state,
        relative_size=at_points(entries(jobs.relative_size, slot)),
        loss=own.value,
        labels=own.labels,
        probed=own.probed,
        columns={name: at_points(column) for name, column in columns.items()},
    )


def learning_rate(broadcast: Broadcast, context: ClientContext) -> jax.Array:
    """A client's learning rate."""
    rate = broadcast.hparams["learning_rate"]
    return rate * context.columns["rate"] if "rate" in context.columns else rate


def steps_taken(lanes: LaneState) -> jax.Array | None:
    """Steps of each lane's client so far; None if clients take the planned steps."""
    return lanes.stop and lanes.stop.steps


def mark_done(lanes: LaneState, chosen: jax.Array) -> LaneState:
    """If there is a stop rule, mark the clients of the `chosen` lanes (lanes,) as done."""
    if lanes.stop is None:
        return lanes
    done = lanes.stop.done | chosen[:, None]
    return lanes._replace(stop=lanes.stop._replace(done=done))


class ClientStep:
    """The local solver: functions of one client, and of all lanes and sweep points.

    Args:
        model: The model that clients train.
        algorithm: The method.
        solver: The local solver, with the algorithm's settings.
        layout: The shapes of the method's programs.
        clock: Whether clients also stop by a clock.
        local_gradient: The replacement of a mini-batch's gradient in each step.

    Attributes:
        stops: Whether clients may take fewer than the planned steps.
    """

    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        solver: Solver,
        layout: Layout,
        clock: bool,
        local_gradient: LocalGradient,
    ) -> None:
        self.model, self.algorithm, self.solver = model, algorithm, solver
        self.local_gradient, self.by_gamma = local_gradient, solver.gamma is not None
        self.stops = clock or self.by_gamma
        self.objective = algorithm.client.objective or _loss_of_rows
        self.differentiated = DERIVED
        if algorithm.client.objective is not None:
            self.differentiated = f"{algorithm.name}: jax.grad of its objective"
        self.moves_state = model.state is not None and algorithm.moves_model_state
        self.accumulate, self.width = layout.accumulate, layout.reading.width
        self.begin_all = over(self.begin, (0, 0, None, None), (None, 0, 0, 0))
        self.gradient_all = over(self.gradient, (0, 0, 0, *[None] * 4), (0,) * 7)
        self.given_all = over(self.given, (0, 0), (0, None))
        self.reference_all = over(self.reference, (0, 0), (0, None))
        # a single lane keeps its axis here, since without it XLA copies the model in each step
        self.tick_all = jax.vmap(
            jax.vmap(self.tick, in_axes=(0, 0, 0, 0, None, None)), (0, None, 0, 0, 0, 0)
        )
        self.search_all = over(self.search, (0, 0, *[None] * 4), (0, None, None, 0, 0, 0))
        self.message_all = over(self.message, (0, 0, None), (0, None, 0))

    def begin(
        self,
        broadcast: Broadcast,
        context: ClientContext,
        gamma: jax.Array,
        deadline: jax.Array | None,
    ) -> LaneState:
        """A client before its first tick; `deadline` is None without a clock."""
        context = self.algorithm.begun(broadcast.state, context)
        params = self.algorithm.subproblem(*broadcast, context).start
        return LaneState(
            params,
            self.solver.init(params, learning_rate(broadcast, context)),
            jax.tree.map(jnp.zeros_like, params) if self.accumulate else None,
            context,
            _initial_stop(gamma if self.by_gamma else None, deadline) if self.stops else None,
        )

    def gradients(self, lanes: LaneState, broadcast: Broadcast, *batch: Any) -> tuple[Params, Any]:
        """The gradients of a tick of all lanes, less those at the references of their problems.

        With them come the states of the model in all lanes after the tick.
        """
        given, state = self.given_all(lanes, broadcast), lanes.context.model_state
        gradient, after = self.gradient_all(lanes.params, given, state, *batch)
        reference = self.reference_all(lanes, broadcast)
        if reference is None:
            return gradient, after
        at_reference, _ = self.gradient_all(reference.params, given, state, *batch)
        return jax.tree.map(jnp.subtract, gradient, at_reference), after

    def model_at(self, state: Any, weights: jax.Array | None = None) -> Model:
        """The model as a function of the parameters alone."""
        if state is None:
            return self.model
        mask = None if weights is None else _counting(weights)
        return at_state(self.model, state, mask, moves=self.moves_state)

    def given(self, lane: LaneState, broadcast: Broadcast) -> Any:
        """The values that a client's objective reads."""
        return self.algorithm.subproblem(*broadcast, lane.context).given

    def reference(self, lane: LaneState, broadcast: Broadcast) -> Reference | None:
        """The reference of a client's problem; None without, and if batches are all of its rows."""
        if self.solver.batch_size == "all":  # the correction is zero
            return None
        return self.algorithm.subproblem(*broadcast, lane.context).reference

    def gradient(
        self,
        params: Params,
        given: Any,
        state: Any,
        x: jax.Array,
        y: jax.Array,
        weights: jax.Array,
        noise: jax.Array | None,
    ) -> tuple[Params, Any]:
        """The gradient of rows with weights of 1 / the mini-batch's size, or 0 for padding.

        With it comes the state of the model after these rows.
        """
        key = None if self.model.train is None else _model_key(noise)
        if not self.moves_state:
            return self._gradient(params, given, state, Batch(x, y, weights, key)), state
        whole, mask = Variables(params, state), _counting(weights)
        if self.algorithm.client.objective is not None:
            gradient = self._gradient(params, given, state, Batch(x, y, weights, key))
            return gradient, next_state(self.model, whole, x, key, mask)

        def loss(params: Params) -> tuple[jax.Array, Any]:
            of = whole._replace(params=params)
            return loss_and_next_state(self.model, of, x, y, weights, key, mask)

        both: tuple[Params, Any] = call(self.differentiated, jax.grad(loss, has_aux=True), params)
        return both

    def _gradient(self, params: Params, given: Any, state: Any, batch: Batch) -> Params:
        """The gradient of a tick's rows, or the method's replacement of it."""
        model = self.model_at(state, batch.weights)
        step = partial(self.local_gradient.gradient, partial(self.objective, model))
        return call(self.differentiated, step, params, batch, given)

    def completed(
        self,
        gradients: Params,
        broadcast: Broadcast,
        size: jax.Array,
        last: jax.Array,
        noise: jax.Array,
    ) -> Params:
        """The gradients of a tick, changed in lanes whose mini-batch it completes."""

        def complete(gradient: Params, hparams: HParams, size: Any, words: jax.Array) -> Params:
            return self.local_gradient.completed(gradient, hparams, size, random_key(words))

        every = over(complete, (0, 0, None, None))

        def of_lane(given: Any) -> Params:
            gradient, size, words, last = given
            return jax.lax.cond(
                last, lambda g: every(g, broadcast.hparams, size, words), lambda g: g, gradient
            )

        lanes = gradients, size, noise, last
        if jax.default_backend() == "cpu":  # numbers for a lane that needs none would cost as much
            changed: Params = jax.lax.map(of_lane, lanes)
            return changed
        return jax.vmap(of_lane)(lanes)

    def tick(
        self,
        lane: LaneState,
        broadcast: Broadcast,
        gradient: Params,
        model_state: Any,
        last: jax.Array,
        check: jax.Array | None,
    ) -> LaneState:
        """One tick: a mini-batch step, a part of one, or a part of a check."""
        if self.accumulate:
            gradient = jax.tree.map(jnp.add, lane.gradient, gradient)
        problem = self.algorithm.subproblem(*broadcast, lane.context)
        reference = self.reference(lane, broadcast)
        gradient_f = gradient
        if reference is not None:
            gradient_f = jax.tree.map(jnp.add, gradient, reference.gradient)
        gradient_h = problem.gradient(lane.params, gradient_f)
        params, optimizer = self.solver.step(
            lane.params, lane.optimizer, gradient_h, learning_rate(broadcast, lane.context)
        )
        params = problem.moved(lane.params, params)
        stepped = self._stepped(lane, broadcast, params, optimizer, model_state)
        if not self.accumulate and lane.stop is None:
            return stepped
        stop, step = _apply_stop_rule(lane.stop, gradient_h, last, check)
        after = jax.tree.map(lambda a, b: jnp.where(step, a, b), stepped, lane)
        if self.accumulate:
            gradient = jax.tree.map(lambda g: jnp.where(last, 0.0, g), gradient)
        return after._replace(gradient=gradient if self.accumulate else None, stop=stop)

    def _stepped(
        self, lane: LaneState, broadcast: Broadcast, params: Params, optimizer: Any, state: Any
    ) -> LaneState:
        """The client after a step to `params`, which it may remember."""
        context, memory = lane.context, self.algorithm.client.memory
        if memory is not None:
            after = memory.update(*broadcast, context, params)
            context = context._replace(memory=after)
        context = context._replace(model_state=state)
        return lane._replace(params=params, optimizer=optimizer, context=context)

    def search(
        self,
        lane: LaneState,
        broadcast: Broadcast,
        rows: DeviceRows,
        first: jax.Array,
        size: jax.Array,
        active: jax.Array,
    ) -> LaneState:
        """One step of an optimizer that searches along a line, on all of the client's rows."""
        problem = self.algorithm.subproblem(*broadcast, lane.context)
        state = lane.context.model_state
        whole = _whole_client(self.model_at(state), self.width)

        def h(params: Params) -> jax.Array:
            return problem.value(params, whole(params, *rows, first, size))

        value, gradient = jax.value_and_grad(h)(lane.params)
        gradient = problem.moved(jax.tree.map(jnp.zeros_like, gradient), gradient)
        params, optimizer = self.solver.step(
            lane.params,
            lane.optimizer,
            gradient,
            learning_rate(broadcast, lane.context),
            value=value,
            grad=gradient,
            value_fn=h,
        )
        params = problem.moved(lane.params, params)
        stop, step = _apply_stop_rule(lane.stop, gradient, active, None)
        stepped = self._stepped(lane, broadcast, params, optimizer, state)
        after = jax.tree.map(lambda a, b: jnp.where(step, a, b), stepped, lane)
        return after._replace(stop=stop)

    def message(
        self, lane: LaneState, broadcast: Broadcast, steps: jax.Array
    ) -> tuple[Message, ClientState]:
        """The message of a client whose job has ended, and its new state."""
        problem = self.algorithm.subproblem(*broadcast, lane.context)
        taken = steps if lane.stop is None else lane.stop.steps
        solution = Solution(problem, lane.params, taken)
        return self.algorithm.client.message(*broadcast, lane.context, solution)


def _loss_of_rows(model: Model, params: Params, batch: Batch, given: Any) -> jax.Array:
    """F_k of a tick's rows."""
    del given
    return weighted_loss(model, params, *batch)


def _model_key(noise: jax.Array | None) -> jax.Array | None:
    """The random key of `Model.train` in a tick; None without noise."""
    return None if noise is None else jax.random.fold_in(random_key(noise), MODEL_KEY)


def _counting(weights: jax.Array) -> jax.Array:
    """Which rows of a mini-batch count; all of a tick without, as of a lane that waits."""
    counts = weights > 0
    return counts | ~counts.any()


def _initial_stop(gamma: jax.Array | None, deadline: jax.Array | None) -> Stop:
    reference = jax.tree.map(lambda _: jnp.asarray(-1, real_type()), gamma)
    done = jnp.bool_(False) if deadline is None else deadline <= 0
    return Stop(gamma, reference, deadline, done, jnp.int32(0))


def _apply_stop_rule(
    stop: Stop | None, gradient: Params, last: jax.Array, check: jax.Array | None
) -> tuple[Stop | None, jax.Array]:
    """The stop rule after a tick, and whether the client takes a step."""
    if stop is None:
        return None, last
    if stop.gamma is None:
        step = last & ~stop.done
        return stop._replace(steps=stop.steps + step), step
    is_full, planned = (last, last) if check is None else (last & check, last & ~check)
    norm = optax.tree.norm(gradient)
    reference = jnp.where(is_full & (stop.reference < 0), norm, stop.reference)
    done = stop.done | (is_full & (norm <= stop.gamma * reference))
    step = planned & ~done
    return stop._replace(reference=reference, done=done, steps=stop.steps + step), step


DERIVED = "model: jax.grad of its loss"
"""The failing part in messages about a model that works but cannot be differentiated."""


def _whole_client(model: Model, width: int) -> Callable[..., jax.Array]:
    """(params, x, y, first row, number of rows) -> F_k(params), differentiable in params.

    A client's rows are read slice by slice, so memory does not grow with their number. Value and
    gradient come from the same pass.
    """

    def both(
        params: Params, x: Features, y: jax.Array, first: jax.Array, size: jax.Array
    ) -> tuple[jax.Array, Params]:
        def add(j: jax.Array, sums: Any) -> Any:
            begin = first + j * width
            batch = read_slice(x, y, begin, first + size, width)
            slice_sums = call(
                DERIVED, jax.value_and_grad(weighted_loss, argnums=1), model, params, *batch
            )
            return jax.tree.map(jnp.add, sums, slice_sums)

        zeros = (jnp.zeros((), real_type()), jax.tree.map(jnp.zeros_like, params))
        sums = jax.lax.fori_loop(0, -(-size // width), add, zeros)
        return jax.tree.map(lambda a: a / size, sums)

    @jax.custom_vjp
    def value(
        params: Params, x: Features, y: jax.Array, first: jax.Array, size: jax.Array
    ) -> jax.Array:
        return both(params, x, y, first, size)[0]

    def backward(gradient: Params, scale: jax.Array) -> tuple[Params, None, None, None, None]:
        return jax.tree.map(lambda g: scale * g, gradient), None, None, None, None

    value.defvjp(both, backward)
    return value
