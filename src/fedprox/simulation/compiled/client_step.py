"""A client's local solver in a lane: its start, one step, its stop rule, and its message."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    State,
)
from fedprox.features import Features
from fedprox.model import Model, Params, read_slice, weighted_loss
from fedprox.simulation.compiled.lanes import over
from fedprox.simulation.compiled.layout import Layout
from fedprox.simulation.storage.training_data import DeviceRows
from fedprox.solver import Solver
from fedprox.user_code import call

OF_MODEL = 0x6D6F6465
"""Folded into a tick's random key for the model. It is so large that augmentation, which may split
the same key, never derives the model's."""


def random_key(noise: jax.Array) -> jax.Array:
    """A tick's random key, given its two words."""
    return jax.random.wrap_key_data(noise, impl="threefry2x32")


def of_the_round(hparams: HParams, rate: jax.Array, participation: jax.Array) -> HParams:
    """The hyperparameters of a round at all sweep points, arrays (points,).

    Args:
        hparams: The algorithm's hyperparameters, and the base learning rate.
        rate: What the learning rate is multiplied by.
        participation: The share of all clients' weight that takes part.
    """
    base = hparams["learning_rate"]
    return {
        **hparams,
        "learning_rate": base * rate,
        "participation": jnp.broadcast_to(participation, base.shape),
    }


class Stop(NamedTuple):
    """A client's stop rule: ||grad h_k(w)|| <= gamma ||grad h_k(s_k)||.

    Attributes:
        gamma: The client's gamma.
        reference: ||grad h_k(s_k)||, negative until it is known.
        done: Whether the rule is met.
        steps: Steps taken, int32.
    """

    gamma: jax.Array
    reference: jax.Array
    done: jax.Array
    steps: jax.Array


class Broadcast(NamedTuple):
    """What the server sends to the clients of a round, leaves (points, ...).

    Attributes:
        state: The server's state.
        hparams: The hyperparameters of the round, see `of_the_round`.
    """

    state: State
    hparams: HParams


class LaneState(NamedTuple):
    """The client of a lane.

    Attributes:
        params: Its model so far.
        optimizer: Its optimizer's state.
        gradient: The gradient of its mini-batch so far, if a mini-batch can take several ticks.
        context: What it knows by itself.
        stop: Its stop rule, if the solver has one.
    """

    params: Params
    optimizer: Any
    gradient: Params | None
    context: ClientContext
    stop: Stop | None


def steps_taken(lanes: LaneState) -> jax.Array | None:
    """Steps of each lane's client so far; None if it takes those that are planned."""
    return None if lanes.stop is None else lanes.stop.steps


def at_rest(lanes: LaneState, chosen: jax.Array) -> LaneState:
    """Mark the `chosen` lanes (lanes,) as waiting for a client, if there is a stop rule."""
    if lanes.stop is None:
        return lanes
    done = lanes.stop.done | chosen[:, None]
    return lanes._replace(stop=lanes.stop._replace(done=done))


class ClientStep:
    """What the clients of a program do: functions of one client, and of all lanes and points.

    Args:
        model: The model.
        algorithm: The method.
        solver: The local solver, with the algorithm's own settings.
        layout: The shapes of the method's programs.
    """

    def __init__(self, model: Model, algorithm: Algorithm, solver: Solver, layout: Layout) -> None:
        self.model, self.algorithm, self.solver = model, algorithm, solver
        self.accumulate, self.width = layout.accumulate, layout.width
        self.begin_all = over(over(self.begin, (0, 0, None)), (None, 0, 0))
        self.gradient_all = over(over(self.gradient, (0, *[None] * 4)), (0, 0, 0, 0, 0))
        # a single lane keeps its axis here: only so does XLA step in place, without a copy of the
        # model
        self.tick_all = jax.vmap(
            jax.vmap(self.tick, in_axes=(0, 0, 0, None, None)), (0, None, 0, 0, 0)
        )
        self.search_all = over(over(self.search, (0, 0, *[None] * 4)), (0, None, None, 0, 0, 0))
        self.message_all = over(over(self.message, (0, 0, None)), (0, None, 0))

    def begin(self, broadcast: Broadcast, context: ClientContext, gamma: jax.Array) -> LaneState:
        """A client before its first tick."""
        params = self.algorithm.subproblem(*broadcast, context).start
        return LaneState(
            params,
            self.solver.init(params, broadcast.hparams["learning_rate"]),
            jax.tree.map(jnp.zeros_like, params) if self.accumulate else None,
            context,
            None if self.solver.gamma is None else _not_done(gamma),
        )

    def gradient(
        self,
        params: Params,
        x: jax.Array,
        y: jax.Array,
        weights: jax.Array,
        noise: jax.Array | None,
    ) -> Params:
        """The gradient of a tick's rows.

        Args:
            params: The client's model so far.
            x: Features of the rows (B, ...).
            y: Their labels.
            weights: 1 / the mini-batch's size for rows that count, else 0, shape (B,).
            noise: The tick's random key, uint32 (2,); None where nothing is random.
        """
        key = None
        if noise is not None and self.model.train is not None:
            key = jax.random.fold_in(random_key(noise), OF_MODEL)
        gradient = jax.grad(weighted_loss, argnums=1)
        return call(DERIVED, gradient, self.model, params, x, y, weights, key)

    def tick(
        self,
        lane: LaneState,
        broadcast: Broadcast,
        gradient: Params,
        last: jax.Array,
        check: jax.Array | None,
    ) -> LaneState:
        """A mini-batch step, a part of one, or a part of a check.

        Args:
            lane: The client.
            broadcast: What the server has sent.
            gradient: The gradient of the tick's rows.
            last: Whether the tick completes its mini-batch.
            check: Whether that is a check of the stop rule; None for a solver without checks.
        """
        if self.accumulate:
            gradient = jax.tree.map(jnp.add, lane.gradient, gradient)
        problem = self.algorithm.subproblem(*broadcast, lane.context)
        gradient_h = problem.gradient(lane.params, gradient)
        params, optimizer = self.solver.step(
            lane.params, lane.optimizer, gradient_h, broadcast.hparams["learning_rate"]
        )
        stepped = lane._replace(params=params, optimizer=optimizer)
        if not self.accumulate and lane.stop is None:
            return stepped
        stop, step = _apply_stop_rule(lane.stop, gradient_h, last, check)
        after = jax.tree.map(lambda a, b: jnp.where(step, a, b), stepped, lane)
        if self.accumulate:
            gradient = jax.tree.map(lambda g: jnp.where(last, 0.0, g), gradient)
        return after._replace(gradient=gradient if self.accumulate else None, stop=stop)

    def search(
        self,
        lane: LaneState,
        broadcast: Broadcast,
        rows: DeviceRows,
        first: jax.Array,
        size: jax.Array,
        active: jax.Array,
    ) -> LaneState:
        """One step of an optimizer that searches along a line, on all of the client's rows.

        Args:
            lane: The client.
            broadcast: What the server has sent.
            rows: All clients' features and labels.
            first: The client's first row.
            size: Its number of rows.
            active: Whether the lane has a client.
        """
        problem = self.algorithm.subproblem(*broadcast, lane.context)
        whole = _whole_client(self.model, self.width)

        def h(params: Params) -> jax.Array:
            return problem.value(params, whole(params, *rows, first, size))

        value, gradient = jax.value_and_grad(h)(lane.params)
        params, optimizer = self.solver.step(
            lane.params,
            lane.optimizer,
            gradient,
            broadcast.hparams["learning_rate"],
            value=value,
            grad=gradient,
            value_fn=h,
        )
        stop, step = _apply_stop_rule(lane.stop, gradient, active, None)
        stepped = lane._replace(params=params, optimizer=optimizer)
        after = jax.tree.map(lambda a, b: jnp.where(step, a, b), stepped, lane)
        return after._replace(stop=stop)

    def message(
        self, lane: LaneState, broadcast: Broadcast, steps: jax.Array
    ) -> tuple[Message, ClientState]:
        """What a client sends once its job has ended, and its new state.

        Args:
            lane: The client.
            broadcast: What the server has sent.
            steps: Mini-batch steps that were planned for it.
        """
        problem = self.algorithm.subproblem(*broadcast, lane.context)
        taken = steps if lane.stop is None else lane.stop.steps
        solution = Solution(problem, lane.params, taken)
        return self.algorithm.message(*broadcast, lane.context, solution)


def _not_done(gamma: jax.Array) -> Stop:
    return Stop(gamma, jnp.float32(-1), jnp.bool_(False), jnp.int32(0))


def _apply_stop_rule(
    stop: Stop | None, gradient: Params, last: jax.Array, check: jax.Array | None
) -> tuple[Stop | None, jax.Array]:
    """The stop rule after a tick, and whether the client takes a step.

    Args:
        stop: The rule so far; None for none.
        gradient: grad h_k where the client stands.
        last: Whether the gradient is complete.
        check: Whether it is for the rule alone; None where every gradient is of all rows.
    """
    if stop is None:
        return None, last
    known = last if check is None else last & check
    norm = optax.tree.norm(gradient)
    reference = jnp.where(known & (stop.reference < 0), norm, stop.reference)
    done = stop.done | (known & (norm <= stop.gamma * reference))
    step = last & ~done if check is None else last & ~done & ~check
    return Stop(stop.gamma, reference, done, stop.steps + step), step


DERIVED = "model: jax.grad of its loss"
"""What fails where a model's functions work and cannot be differentiated."""


def _whole_client(model: Model, width: int) -> Callable[..., jax.Array]:
    """(params, x, y, first row, rows) -> F_k(params), differentiable in params.

    A client's rows are read slice by slice, so memory does not grow with them; values and gradient
    come from the same pass.
    """

    def both(
        params: Params, x: Features, y: jax.Array, first: jax.Array, size: jax.Array
    ) -> tuple[jax.Array, Params]:
        def add(j: jax.Array, sums: Any) -> Any:
            begin = first + j * width
            batch = read_slice(x, y, begin, first + size, width)
            found = call(
                DERIVED, jax.value_and_grad(weighted_loss, argnums=1), model, params, *batch
            )
            return jax.tree.map(jnp.add, sums, found)

        nothing = (jnp.float32(0), jax.tree.map(jnp.zeros_like, params))
        sums = jax.lax.fori_loop(0, -(-size // width), add, nothing)
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
