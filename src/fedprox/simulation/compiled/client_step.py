"""A client's local solver in a lane: its start, one step, its stop rule, and its message."""

from collections.abc import Callable
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
from fedprox.features import Features
from fedprox.messages.normals import standard_normals
from fedprox.messages.private import EXAMPLES
from fedprox.model import Model, Params, read_slice, weighted_loss
from fedprox.precision import real_type
from fedprox.simulation.compiled.clipped import clipped_sum
from fedprox.simulation.compiled.gradients import LocalLoss
from fedprox.simulation.compiled.lanes import over
from fedprox.simulation.compiled.layout import Layout
from fedprox.simulation.planning.jobs import Slots
from fedprox.simulation.storage.training_data import DeviceRows
from fedprox.solver import Solver
from fedprox.subproblem import Reference
from fedprox.user_code import call

MODEL_KEY = 0x6D6F6465
"""Number folded into a tick's random key for the model. It is so large that augmentation, which may
split the same key, never derives the model's key."""


EXAMPLES_KEY = 0x65786D70
"""Number folded into a tick's random key for the noise that hides examples."""


CODEC_KEY = 0x636F6465
"""Number folded into a round's random key for the codecs of messages."""


def random_key(noise: jax.Array) -> jax.Array:
    """A tick's random key from its two words."""
    return jax.random.wrap_key_data(noise, impl="threefry2x32")


def round_hparams(
    hparams: HParams,
    rate: jax.Array,
    participation: jax.Array,
    noise_key: jax.Array | None = None,
) -> HParams:
    """The hyperparameters of a round at all sweep points, arrays (points,).

    Args:
        hparams: The algorithm's hyperparameters, and the base learning rate.
        rate: Factor of the learning rate in this round.
        participation: Share of the weight of all clients that takes part.
        noise_key: Random key of the round's noise, two words; None without privacy. Each sweep
            point of each method gets a key of its own, by the "noise_words" in `hparams`.
    """
    base = hparams["learning_rate"]
    given = {
        **hparams,
        "learning_rate": base * rate,
        "participation": jnp.broadcast_to(participation, base.shape),
    }
    if noise_key is None:
        return given

    def own_key(words: jax.Array) -> jax.Array:
        key = jax.random.fold_in(random_key(noise_key), words[0])
        return jax.random.key_data(jax.random.fold_in(key, words[1]))

    return given | {"noise_key": jax.vmap(own_key)(hparams["noise_words"])}


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
    reference: jax.Array | None
    deadline: jax.Array | None
    done: jax.Array
    steps: jax.Array


class Broadcast(NamedTuple):
    """What the server sends to the clients of a round, leaves (points, ...).

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


def client_keys(jobs: Slots, slot: jax.Array, noise_key: jax.Array | None) -> jax.Array | None:
    """Random keys for the messages of the clients in `slot`, two words each (lanes, 2).

    Args:
        jobs: The jobs of the round.
        slot: The slots.
        noise_key: Random key of the round, two words; None without.
    """
    if jobs.client is None or noise_key is None:
        return None
    return jax.vmap(client_key, in_axes=(None, 0))(noise_key, jobs.client[slot])


def client_key(noise_key: jax.Array, client: jax.Array) -> jax.Array:
    """Random key for the message of a client, two words, from that of the round."""
    key = jax.random.fold_in(random_key(noise_key), CODEC_KEY)
    return jax.random.key_data(jax.random.fold_in(key, client))


def contexts_of(
    jobs: Slots,
    slot: jax.Array,
    own: LocalLoss,
    state: ClientState,
    points: int,
    noise_key: jax.Array | None = None,
) -> ClientContext:
    """What the clients in `slot` (lanes,) know, leaves (lanes, points, ...).

    Args:
        jobs: The jobs of the round.
        slot: The slots.
        own: What these clients computed at w^t.
        state: Their state.
        points: Number of sweep points.
        noise_key: Random key of the round, two words, if codecs need one; else None.
    """

    def at_points(column: Any) -> Any:
        return None if column is None else jnp.broadcast_to(column[slot][:, None], shape)

    shape, words = (len(slot), points), client_keys(jobs, slot, noise_key)
    return ClientContext(
        own.gradient,
        state,
        relative_size=at_points(jobs.relative_size),
        loss=own.value,
        labels=own.labels,
        probed=own.probed,
        staleness=at_points(jobs.staleness),
        rate=at_points(jobs.rate),
        rank=at_points(jobs.rank),
        key=None if words is None else jnp.broadcast_to(words[:, None], (*shape, 2)),
    )


def learning_rate(broadcast: Broadcast, context: ClientContext) -> jax.Array:
    """A client's learning rate."""
    rate = broadcast.hparams["learning_rate"]
    return rate if context.rate is None else rate * context.rate


def steps_taken(lanes: LaneState) -> jax.Array | None:
    """Steps of each lane's client so far; None if clients take the planned steps."""
    return None if lanes.stop is None else lanes.stop.steps


def mark_done(lanes: LaneState, chosen: jax.Array) -> LaneState:
    """If there is a stop rule, mark the clients of the `chosen` lanes (lanes,) as done."""
    if lanes.stop is None:
        return lanes
    done = lanes.stop.done | chosen[:, None]
    return lanes._replace(stop=lanes.stop._replace(done=done))


class Hiding(NamedTuple):
    """How local steps hide examples.

    Attributes:
        clip: Largest norm of the gradient of an example.
        noise: Standard deviation of the noise in the sum of a mini-batch's gradients.
    """

    clip: float
    noise: float


class ClientStep:
    """The local solver: functions of one client, and of all lanes and sweep points.

    Args:
        model: The model.
        algorithm: The method.
        solver: The local solver, with the algorithm's settings.
        layout: The shapes of the method's programs.
        clock: Whether clients also stop by a clock.
        hiding: How steps hide examples; None if they do not.

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
        hiding: Hiding | None,
    ) -> None:
        self.model, self.algorithm, self.solver = model, algorithm, solver
        self.hiding = hiding
        self.stops = clock or solver.gamma is not None
        self.accumulate, self.width = layout.accumulate, layout.width
        self.begin_all = over(over(self.begin, (0, 0, None, None)), (None, 0, 0, 0))
        self.gradient_all = over(over(self.gradient, (0, 0, *[None] * 4)), (0, 0, 0, 0, 0, 0))
        self.given_all = over(over(self.given, (0, 0)), (0, None))
        self.reference_all = over(over(self.reference, (0, 0)), (0, None))
        # a single lane keeps its axis here, since without it XLA copies the model in each step
        self.tick_all = jax.vmap(
            jax.vmap(self.tick, in_axes=(0, 0, 0, None, None)), (0, None, 0, 0, 0)
        )
        self.search_all = over(over(self.search, (0, 0, *[None] * 4)), (0, None, None, 0, 0, 0))
        self.message_all = over(over(self.message, (0, 0, None)), (0, None, 0))

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
            _initial_stop(None if self.solver.gamma is None else gamma, deadline)
            if self.stops
            else None,
        )

    def gradients(self, lanes: LaneState, broadcast: Broadcast, *batch: Any) -> Params:
        """The gradients of a tick of all lanes, less those at the references of their problems.

        Args:
            lanes: The clients.
            broadcast: The server's broadcast.
            batch: The other arguments of `gradient`, with an axis of lanes.
        """
        given = self.given_all(lanes, broadcast)
        gradient = self.gradient_all(lanes.params, given, *batch)
        reference = self.reference_all(lanes, broadcast)
        if reference is None:
            return gradient
        at_reference = self.gradient_all(reference.params, given, *batch)
        return jax.tree.map(jnp.subtract, gradient, at_reference)

    def given(self, lane: LaneState, broadcast: Broadcast) -> Any:
        """What a client's objective reads; None for F_k."""
        if self.algorithm.client.objective is None:
            return None
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
        x: jax.Array,
        y: jax.Array,
        weights: jax.Array,
        noise: jax.Array | None,
    ) -> Params:
        """The gradient of a tick's rows.

        Args:
            params: The client's current model.
            given: What the client's objective reads; None for F_k.
            x: Features of the rows (B, ...).
            y: Labels of the rows.
            weights: 1 / the mini-batch's size, or 0 for padding, shape (B,).
            noise: The tick's random key, uint32 (2,); None if nothing is random.
        """
        key = None
        if noise is not None and self.model.train is not None:
            key = jax.random.fold_in(random_key(noise), MODEL_KEY)
        what = DERIVED
        if self.algorithm.client.objective is not None:
            what = f"{self.algorithm.name}: jax.grad of its objective"
        gradient = jax.grad(self._loss) if self.hiding is None else self._clipped
        return call(what, gradient, params, given, Batch(x, y, weights, key))

    def _loss(self, params: Params, given: Any, batch: Batch) -> jax.Array:
        """The loss of a tick's rows."""
        if self.algorithm.client.objective is None:
            return weighted_loss(self.model, params, *batch)
        return self.algorithm.client.objective(self.model, params, batch, given)

    def _clipped(self, params: Params, given: Any, batch: Batch) -> Params:
        """As the gradient of `_loss`, with the gradient of each row clipped."""
        assert self.hiding is not None
        x, y, weights, key = batch
        one = jnp.ones(1, weights.dtype)
        keys = None if key is None else jax.random.key_data(jax.random.split(key, len(x)))

        def loss(params: Params, x: jax.Array, y: jax.Array, words: jax.Array | None) -> jax.Array:
            own = None if words is None else random_key(words)
            return self._loss(params, given, Batch(x[None], y[None], one, own))

        total = clipped_sum(loss, self.hiding.clip, params, x, y, keys)(weights > 0)
        return jax.tree.map(lambda a: weights.max() * a, total)

    def noised(
        self,
        gradients: Params,
        broadcast: Broadcast,
        size: jax.Array,
        last: jax.Array,
        noise: jax.Array,
    ) -> Params:
        """The gradients of a tick, with the noise of the mini-batches that it completes.

        Args:
            gradients: The gradients of all lanes and sweep points.
            broadcast: The server's broadcast.
            size: Mean size of each lane's mini-batches, (lanes,).
            last: Whether the tick completes a lane's mini-batch, (lanes,).
            noise: The lanes' random keys, uint32 (lanes, 2).
        """
        assert self.hiding is not None
        deviation = self.hiding.noise * last / size

        def added(gradient: Params, words: jax.Array, scale: jax.Array, noise: jax.Array) -> Params:
            key = jax.random.fold_in(random_key(noise), EXAMPLES_KEY)
            for word in (0, 1):  # no two runs of a comparison share noise
                key = jax.random.fold_in(key, words[word])
            normals = standard_normals(jax.random.key_data(key), EXAMPLES, gradient)
            return jax.tree.map(lambda g, n: g + scale * n, gradient, normals)

        every = over(added, (0, 0, None, None))
        words = broadcast.hparams["noise_words"]

        def of_lane(given: Any) -> Params:
            gradient, scale, noise, last = given
            return jax.lax.cond(
                last, lambda g: every(g, words, scale, noise), lambda same: same, gradient
            )

        lanes = gradients, deviation, noise, last
        if jax.default_backend() == "cpu":  # numbers for a lane that needs none would cost as much
            noisy: Params = jax.lax.map(of_lane, lanes)
            return noisy
        return jax.vmap(of_lane)(lanes)

    def tick(
        self,
        lane: LaneState,
        broadcast: Broadcast,
        gradient: Params,
        last: jax.Array,
        check: jax.Array | None,
    ) -> LaneState:
        """One tick: a mini-batch step, a part of one, or a part of a check.

        Args:
            lane: The client.
            broadcast: The server's broadcast.
            gradient: The gradient of the tick's rows, from `gradients`.
            last: Whether the tick completes its mini-batch.
            check: Whether the mini-batch is a check of the stop rule; None for a solver without
                checks.
        """
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
        stepped = self._stepped(lane, broadcast, params, optimizer)
        if not self.accumulate and lane.stop is None:
            return stepped
        stop, step = _apply_stop_rule(lane.stop, gradient_h, last, check)
        after = jax.tree.map(lambda a, b: jnp.where(step, a, b), stepped, lane)
        if self.accumulate:
            gradient = jax.tree.map(lambda g: jnp.where(last, 0.0, g), gradient)
        return after._replace(gradient=gradient if self.accumulate else None, stop=stop)

    def _stepped(
        self, lane: LaneState, broadcast: Broadcast, params: Params, optimizer: Any
    ) -> LaneState:
        """The client after a step to `params`, which it may remember."""
        context, memory = lane.context, self.algorithm.client.memory
        if memory is not None:
            after = memory.update(*broadcast, context, params)
            context = context._replace(memory=after)
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
        """One step of an optimizer that searches along a line, on all of the client's rows.

        Args:
            lane: The client.
            broadcast: The server's broadcast.
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
        stepped = self._stepped(lane, broadcast, params, optimizer)
        after = jax.tree.map(lambda a, b: jnp.where(step, a, b), stepped, lane)
        return after._replace(stop=stop)

    def message(
        self, lane: LaneState, broadcast: Broadcast, steps: jax.Array
    ) -> tuple[Message, ClientState]:
        """The message of a client whose job has ended, and its new state.

        Args:
            lane: The client.
            broadcast: The server's broadcast.
            steps: The planned mini-batch steps.
        """
        problem = self.algorithm.subproblem(*broadcast, lane.context)
        taken = steps if lane.stop is None else lane.stop.steps
        solution = Solution(problem, lane.params, taken)
        return self.algorithm.client.message(*broadcast, lane.context, solution)


def _initial_stop(gamma: jax.Array | None, deadline: jax.Array | None) -> Stop:
    reference = None if gamma is None else jnp.asarray(-1, real_type())
    done = jnp.bool_(False) if deadline is None else deadline <= 0
    return Stop(gamma, reference, deadline, done, jnp.int32(0))


def _apply_stop_rule(
    stop: Stop | None, gradient: Params, last: jax.Array, check: jax.Array | None
) -> tuple[Stop | None, jax.Array]:
    """The stop rule after a tick, and whether the client takes a step.

    Args:
        stop: The stop rule before the tick; None without a rule.
        gradient: grad h_k at the client's current model.
        last: Whether the gradient is complete.
        check: Whether the gradient is a check; None if every gradient is of all rows.
    """
    if stop is None:
        return None, last
    if stop.gamma is None or stop.reference is None:
        step = last & ~stop.done
        return stop._replace(steps=stop.steps + step), step
    is_full = last if check is None else last & check
    norm = optax.tree.norm(gradient)
    reference = jnp.where(is_full & (stop.reference < 0), norm, stop.reference)
    done = stop.done | (is_full & (norm <= stop.gamma * reference))
    step = last & ~done if check is None else last & ~done & ~check
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
