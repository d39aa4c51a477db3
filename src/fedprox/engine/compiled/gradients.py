"""Reading rows of whole clients inside compiled programs: gradients before and after local work.

Before the work, clients may need their own gradients and losses, or the mean gradient of a first
cohort. After it, gradients say how accurately each client solved its local problem: gamma_k.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Wrapped

from fedprox.algorithms.base import ClientContext, ClientState, HParams, State
from fedprox.devices.mesh import PER_DEVICE, REPLICATED, spread
from fedprox.engine.compiled.client_step import (
    Broadcast,
    LocalLoss,
    contexts_of,
    round_hparams,
)
from fedprox.engine.compiled.lanes import (
    Clock,
    Until,
    Watch,
    add_weighted,
    before_tick,
    begin_watch,
    deadline,
    entries,
    over,
    put,
    run_segments,
    squeezed,
    total,
    where_lanes,
)
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.planning.jobs import Slots
from fedprox.engine.planning.reads import Exchange, ReadSlices
from fedprox.engine.storage.training_data import DeviceRows
from fedprox.features import Features
from fedprox.model import (
    Model,
    Params,
    opened,
    read_slice,
    trainable,
    weighted_loss,
    with_base,
)
from fedprox.parts.part import Screen, Screened, beside, screened_sum
from fedprox.protocol.method import Method
from fedprox.subproblem import inexactness


def reader(width: int) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
    """A function (x, y, reading, tick) -> each lane's slice, see `read_slice`."""

    def read(
        x: Features, y: jax.Array, begin: jax.Array, end: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        return read_slice(x, y, begin, end, width)

    read_all = over(read, (None, None, 0, 0))
    return lambda x, y, reading, i: read_all(x, y, *entries((reading.begin, reading.end), i))


def label_counts(y: jax.Array, inside: jax.Array, classes: int) -> jax.Array:
    """How many labels of each class rows have, shape (classes,).

    >>> label_counts(jnp.array([[2, -1], [0, 2]]), jnp.ones(2), 3).tolist()
    [1.0, 0.0, 2.0]
    """
    each = jnp.broadcast_to(inside.reshape((-1,) + (1,) * (y.ndim - 1)), y.shape)
    of_class = jnp.where(y < 0, classes, y)
    return jnp.zeros(classes, inside.dtype).at[of_class].add(each, mode="drop")


class Measured(NamedTuple):
    """The computations of clients on all their rows before the local work.

    Attributes:
        gradient: Whether they compute grad F_k.
        loss: Whether they compute F_k.
        classes: Classes whose labels they count; 0 for none.
        probes: Models of `First.probe`.
    """

    gradient: bool = True
    loss: bool = False
    classes: int = 0
    probes: int = 0

    def like(self, params: Params) -> LocalLoss:
        """Zeros, or parameters, of the shapes of what they compute, leaves (points, ...)."""
        points = len(jax.tree.leaves(params)[0])
        return LocalLoss(
            params if self.gradient else None,
            jnp.zeros(points) if self.loss else None,
            jnp.zeros((points, self.classes)) if self.classes else None,
            jnp.zeros((points, self.probes)) if self.probes else None,
        )

    def summed(self, model: Model, *, shared: bool, models: Params = None) -> Callable[..., Any]:
        """Sums over each lane's slice at all sweep points; `models` are those of the probe."""

        def summed(whole: Params, x: jax.Array, y: jax.Array, inside: jax.Array) -> LocalLoss:
            value, slope, (params, around) = None, None, opened(whole)

            def loss(params: Params) -> jax.Array:
                return weighted_loss(model, around(params), x, y, inside)

            if self.gradient and self.loss:
                value, slope = jax.value_and_grad(loss)(params)
            elif self.gradient:
                slope = jax.grad(loss)(params)
            elif self.loss:
                value = loss(params)
            labels = label_counts(y, inside, self.classes) if self.classes else None
            return LocalLoss(slope, value, labels)

        of_lanes = over(summed, (0, None, None, None), (None if shared else 0, 0, 0, 0))
        probe = jax.vmap(partial(weighted_loss, model), in_axes=(0, None, None, None))
        probe_all = over(probe, (0, None, None, None), (None, 0, 0, 0))

        def both(params: Params, *rows: jax.Array) -> LocalLoss:
            sums: LocalLoss = of_lanes(params, *rows)
            return sums._replace(probed=probe_all(models, *rows)) if self.probes else sums

        return both


def per_lane(sums: Params, size: jax.Array) -> Params:
    """Each lane's sums, leaves (lanes, ...), divided by its number of rows, shape (lanes,)."""
    return jax.tree.map(lambda g: g / beside(size, g), sums)


def zeros_of(like: Any, *shape: int) -> Any:
    """Zeros with more axes before those of a tree's leaves."""
    return jax.tree.map(lambda a: jnp.zeros((*shape, *a.shape), a.dtype), like)


class Exchanged(NamedTuple):
    """The results of a first exchange.

    Attributes:
        own: The gradients of the clients that work next, leaves (slots, points, ...).
        sums: The gradients of the first cohort that count, times their weights, summed; None
            without gradients. Divided by the weight that counts it is g^t.
        screened: Which of the first cohort's gradients count; None without screening.
        late: Whether the time of each client about to work was over before, bool (slots,).
    """

    own: LocalLoss
    sums: Params | None
    screened: Screened | None
    late: jax.Array


def exchange_gradients(
    method: Method,
    model: Model,
    layout: Layout,
    measured: Measured,
    screen: Screen | None,
    clock: Clock | None,
) -> Callable[..., Exchanged]:
    """The first exchange of one round, inside the rounds' program.

    With screening, all gradients are stored until the last one is computed. Those that the clock
    stops have no weight, which needs screening.
    """
    slots, lanes = layout.room.slots, layout.reading.lanes
    read, send_all = reader(layout.reading.width), jax.vmap(jax.vmap(method.algorithm.first.sent))
    timed, now_by = clock is not None, cast("Clock", clock)
    adds = measured.gradient and screen is None  # with screening, they are added at the end

    def gradients(
        params: Params,
        x: Features,
        y: jax.Array,
        exchange: Exchange,
        until: Until | None,
        received: Callable[[jax.Array], Params] | None = None,
        models: Params | None = None,
    ) -> Exchanged:
        ends = cast("Until", until)
        shared, start_of = received is None, cast("Callable[[jax.Array], Params]", received)
        losses_of = measured.summed(model, shared=shared, models=models)
        room = slots if screen is None else len(exchange.jobs.weight)
        began = cast("Watch", begin_watch(now_by, ()) if timed else None)

        def begin_jobs(slot: jax.Array, carry: Any) -> Any:
            *computed, start, (watch, stops, done, late) = carry
            if not shared:
                start = where_lanes(slot >= 0, start_of(slot), start)
            if timed:
                stop = deadline(began.seconds, ends.reading, entries(ends.reading_due, slot))
                stops, done = jnp.where(slot >= 0, stop, stops), done & (slot < 0)
            return *computed, start, (watch, stops, done, late)

        def tick(i: jax.Array, carry: Any) -> Any:
            losses, *rest, start, (watch, stops, done, late) = carry
            if timed:
                watch = before_tick(now_by, watch)
                done = done | (watch.seconds >= stops)
            slices = losses_of(start, *read(x, y, exchange.reading, i))
            losses = jax.tree.map(jnp.add, losses, slices)
            return losses, *rest, start, (watch, stops, done, late)

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            losses, own, sums, start, (watch, stops, done, late) = carry
            ended = slot >= 0
            size, weight = entries((exchange.jobs.size, exchange.jobs.weight), slot)
            computed = per_lane(losses, size)._replace(labels=losses.labels)
            none = jax.tree.map(jnp.zeros_like, losses)
            if adds:
                weight = jnp.where(ended, weight, 0.0)
                counted = where_lanes(ended, send_all(computed.gradient), none.gradient)
                sums = add_weighted(sums, weight, counted)
            # without screening, slots from `room` on are the first cohort's and are not stored
            target = jnp.where(ended, slot, room)
            own = put(own, target, computed)
            if timed:
                late, done = put(late, target, done.astype(jnp.float32)), done | ended
            losses = where_lanes(ended, none, losses)
            return losses, own, sums, start, (watch, stops, done, late)

        def all_done(carry: Any) -> jax.Array:
            return jnp.all(carry[-1][2])

        like = measured.like(trainable(params))
        # the looks at the clock; when each lane's job stops, (lanes,); whether it has stopped; 1
        # for jobs that stopped before their end, float32 (jobs,)
        times: Any = (None,) * 4
        if timed:
            times = began, jnp.zeros(lanes), jnp.ones(lanes, bool), jnp.zeros(room)
        start = params if shared else zeros_of(params, lanes)
        sums = zeros_of(trainable(params)) if adds else None
        _, own, sums, _, (*_, late) = run_segments(
            exchange.reading.ends,
            tick,
            end_jobs,
            (zeros_of(like, lanes), zeros_of(like, room), sums, start, times),
            begin_jobs=begin_jobs if timed or not shared else None,
            idle=all_done if timed else None,
        )
        own, sums, late = total((own, sums, late))
        own_late = late[:slots] > 0 if timed else jnp.zeros(slots, bool)
        if screen is None:
            return Exchanged(own, sums, None, own_late)
        first = send_all(jax.tree.map(lambda a: a[slots:], own.gradient))
        weight = exchange.jobs.weight[slots:]
        if timed:
            weight = jnp.where(late[slots:] > 0, 0.0, weight)
        sums, screened = screened_sum(screen, first, weight, fixed=method.reduction.fixed)
        return Exchanged(jax.tree.map(lambda a: a[:slots], own), sums, screened, own_late)

    return gradients


def inexactness_program(
    method: Method, layout: Layout, mesh: Mesh, rows: tuple[Any, ...]
) -> Wrapped:
    """Compile-once program for gamma_k = ||grad h_k(w_k)|| / ||grad h_k(s_k)|| of a cohort.

    Li et al. 2020, Definition 2; both gradients are over all of the client's training rows.

    Its first arguments are `Model.base`, and the server's state and hyperparameters at the
    beginning of the round. Then come the factor of the learning rate, the share of weight that
    takes part, and the local models (slots, points, ...). They are followed by the training rows,
    how they are read, and the jobs (slots,). The last are each client's place in the client state
    before the round (slots,), and that state.
    """
    algorithm, read_train = method.algorithm, reader(layout.reading.width)

    def gamma(broadcast: Broadcast, params: Params, sums: Any, context: ClientContext) -> jax.Array:
        end, begin = sums
        context = algorithm.begun(broadcast.state, context)
        problem = algorithm.subproblem(*broadcast, context)
        first = problem.gradient(problem.start, begin.gradient)
        return inexactness(problem.gradient(trainable(params), end.gradient), first)

    gamma_all = over(gamma, (0, 0, 0, 0), (None, 0, 0, 0))

    def program(
        base: Any,
        state: State,
        hparams: HParams,
        of_round: tuple[jax.Array, jax.Array],
        local: Params,
        rows: DeviceRows,
        reading: ReadSlices,
        jobs: Slots,
        places: jax.Array,
        client_state: ClientState,
    ) -> jax.Array:
        model, reading = with_base(method.protocol.model, base), squeezed(reading)
        end_only, measured = Measured(), Measured(loss=algorithm.first.loss)
        at_end = end_only.summed(model, shared=False)
        at_start = measured.summed(model, shared=True)
        broadcast = Broadcast(state, round_hparams(hparams, *of_round))
        start = jax.vmap(algorithm.server.params)(state)
        slots, points = jax.tree.leaves(local)[0].shape[:2]

        def tick(i: jax.Array, carry: Any) -> Any:
            (end, begin), gammas = carry
            batch = read_train(*rows, reading, i)
            params = entries(local, entries(reading.job, i))
            end = jax.tree.map(jnp.add, end, at_end(params, *batch))
            begin = jax.tree.map(jnp.add, begin, at_start(start, *batch))
            return (end, begin), gammas

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            sums, gammas = carry
            losses = per_lane(sums, entries(jobs.size, slot))
            params = entries(local, slot)
            state = entries(client_state, entries(places, slot))
            own = LocalLoss(losses[1].gradient if algorithm.first.gradient else None)
            own = own._replace(value=losses[1].value)
            context = contexts_of(method.parts, jobs, slot, own, state, points)
            new = gamma_all(broadcast, params, losses, context)
            gammas = put(gammas, jnp.where(slot >= 0, slot, slots), new)
            return where_lanes(slot >= 0, jax.tree.map(jnp.zeros_like, sums), sums), gammas

        like = end_only.like(trainable(start)), measured.like(trainable(start))
        carry = (zeros_of(like, layout.reading.lanes), jnp.zeros((slots, points)))
        return total(run_segments(reading.ends, tick, end_jobs, carry)[1])

    same: Any = REPLICATED
    split: Any = PER_DEVICE
    return spread(mesh, program, (*[same] * 5, rows, split, same, same, same))
