"""Reading rows and gradients of whole clients inside compiled programs."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.engine.compiled.clock import (
    Clock,
    Until,
    Watch,
    before_tick,
    begin_watch,
    deadline,
)
from fedprox.engine.compiled.lanes import (
    add_weighted,
    over,
    put,
    run_segments,
    total,
    where_lanes,
)
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.planning.reads import Exchange, Reading
from fedprox.features import Features
from fedprox.model import Model, Params, read_slice, weighted_loss
from fedprox.parts.part import Screen, Screened, beside, screened_sum


def my_part(reading: Reading) -> Reading:
    """One device's part of a reading, inside `spread`."""
    return jax.tree.map(lambda a: a[0], reading)


def reader(width: int) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
    """A function (x, y, reading, tick) -> each lane's slice, see `read_slice`."""

    def read(
        x: Features, y: jax.Array, begin: jax.Array, end: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        return read_slice(x, y, begin, end, width)

    read_all = over(read, (None, None, 0, 0))
    return lambda x, y, reading, i: read_all(x, y, reading.begin[i], reading.end[i])


class LocalLoss(NamedTuple):
    """A client's loss F_k at some parameters, and its labels; None for what is not computed.

    Attributes:
        gradient: grad F_k, leaves (..., points, ...).
        value: F_k, shape (..., points).
        labels: How many labels of each class its rows have, (..., points, classes).
        probed: F_k of the models of `First.probe`, (..., points, models).
    """

    gradient: Params | None
    value: jax.Array | None
    labels: jax.Array | None = None
    probed: jax.Array | None = None


def label_counts(y: jax.Array, inside: jax.Array, classes: int) -> jax.Array:
    """How many labels of each class rows have, shape (classes,).

    >>> label_counts(jnp.array([[2, -1], [0, 2]]), jnp.ones(2), 3).tolist()
    [1.0, 0.0, 2.0]
    """
    each = jnp.broadcast_to(inside.reshape((-1,) + (1,) * (y.ndim - 1)), y.shape)
    of_class = jnp.where(y < 0, classes, y)
    return jnp.zeros(classes, inside.dtype).at[of_class].add(each, mode="drop")


def summed_losses(
    model: Model, *, shared: bool, gradient: bool = True, value: bool = False, classes: int = 0
) -> Callable[..., LocalLoss]:
    """Gradients and losses summed over each lane's slice, at all sweep points."""

    def summed(params: Params, x: jax.Array, y: jax.Array, inside: jax.Array) -> LocalLoss:
        losses = losses_at(params, x, y, inside)
        if not classes:
            return losses
        return losses._replace(labels=label_counts(y, inside, classes))

    def losses_at(params: Params, x: jax.Array, y: jax.Array, inside: jax.Array) -> LocalLoss:
        if not gradient:
            return LocalLoss(None, weighted_loss(model, params, x, y, inside) if value else None)
        if not value:
            return LocalLoss(jax.grad(weighted_loss, argnums=1)(model, params, x, y, inside), None)
        both = jax.value_and_grad(weighted_loss, argnums=1)(model, params, x, y, inside)
        return LocalLoss(both[1], both[0])

    points = over(summed, (0, None, None, None))
    return over(points, (None if shared else 0, 0, 0, 0))


def with_probe(
    losses_of: Callable[..., LocalLoss], model: Model, models: Params | None
) -> Callable[..., LocalLoss]:
    """The same function of each lane's slice, which also sums the losses of other models."""
    if models is None:
        return losses_of
    of_models = jax.vmap(partial(weighted_loss, model), in_axes=(0, None, None, None))
    probed = over(over(of_models, (0, None, None, None)), (None, 0, 0, 0))

    def both(params: Params, *rows: jax.Array) -> LocalLoss:
        return losses_of(params, *rows)._replace(probed=probed(models, *rows))

    return both


def measured_like(
    params: Params, *, gradient: bool, loss: bool, classes: int, probes: int = 0
) -> LocalLoss:
    """Zeros, or parameters, of the shapes of what clients compute, leaves (points, ...)."""
    points = len(jax.tree.leaves(params)[0])
    return LocalLoss(
        params if gradient else None,
        jnp.zeros(points) if loss else None,
        jnp.zeros((points, classes)) if classes else None,
        jnp.zeros((points, probes)) if probes else None,
    )


def per_lane(sums: Params, size: jax.Array) -> Params:
    """Each lane's sums, leaves (lanes, ...), divided by its number of rows, shape (lanes,)."""
    return jax.tree.map(lambda g: g / beside(size, g), sums)


class Exchanged(NamedTuple):
    """What a first exchange computed.

    Attributes:
        own: What the clients about to work computed, leaves (slots, points, ...).
        sums: The gradients of the first cohort that count, times their weights, summed; None
            without gradients. Divided by the weight that counts it is g^t.
        screened: Which of the first cohort's gradients count; None without screening.
        late: Whether the time of each client about to work was over before, bool (slots,); None
            without a clock.
    """

    own: LocalLoss
    sums: Params | None
    screened: Screened | None
    late: jax.Array | None


class _Times(NamedTuple):
    """The time of the lanes while gradients are read by a clock.

    Attributes:
        watch: The looks at the clock.
        deadline: When each lane's job stops, (lanes,).
        done: Whether it has stopped, bool (lanes,).
        late: 1 for jobs that stopped before their end, float32 (jobs,).
    """

    watch: Watch
    deadline: jax.Array
    done: jax.Array
    late: jax.Array

    @classmethod
    def begun(cls, watch: Watch | None, lanes: int, jobs: int) -> "_Times | None":
        """The time before any job; None without a clock."""
        if watch is None:
            return None
        return cls(watch, jnp.zeros(lanes), jnp.ones(lanes, bool), jnp.zeros(jobs))


def exchange_gradients(
    model: Model,
    layout: Layout,
    screen: Screen | None,
    send: Callable[[Params], Params],
    *,
    fixed: bool,
    gradient: bool = True,
    loss: bool = False,
    classes: int = 0,
    probes: int = 0,
    clock: Clock | None = None,
) -> Callable[..., Exchanged]:
    """The first exchange of one round, inside the rounds' program.

    With screening, all gradients are stored until the last one is computed. Those that the clock
    stops have no weight, which needs screening.
    """
    slots, lanes = layout.room.slots, layout.lanes
    read = reader(layout.width)
    summed = partial(summed_losses, model, gradient=gradient, value=loss, classes=classes)
    send_all = jax.vmap(jax.vmap(send))

    def gradients(
        params: Params,
        x: Features,
        y: jax.Array,
        exchange: Exchange,
        until: Until | None,
        received: Callable[[jax.Array], Params] | None = None,
        models: Params | None = None,
    ) -> Exchanged:
        losses_of = with_probe(summed(shared=received is None), model, models)
        room = slots if screen is None else len(exchange.jobs.weight)
        counted = {"classes": classes, "probes": probes}
        like = measured_like(params, gradient=gradient, loss=loss, **counted)
        watch = None if clock is None else begin_watch(clock, ())

        def zeros(like: Any, *shape: int) -> Any:
            return jax.tree.map(lambda a: jnp.zeros((*shape, *a.shape), a.dtype), like)

        def begin_jobs(slot: jax.Array, carry: Any) -> Any:
            *computed, start, times = carry
            if received is not None:
                start = where_lanes(slot >= 0, received(slot), start)
            if watch is None:
                return *computed, start, times
            assert until is not None
            assert exchange.due is not None
            stop = deadline(watch.seconds, until.reading, exchange.due[slot])
            stop = jnp.where(slot >= 0, stop, times.deadline)
            times = times._replace(deadline=stop, done=times.done & (slot < 0))
            return *computed, start, times

        def tick(i: jax.Array, carry: Any) -> Any:
            losses, own, sums, start, times = carry
            if clock is not None:
                now = before_tick(clock, times.watch)
                done = times.done | (now.seconds >= times.deadline)
                times = times._replace(watch=now, done=done)
            slices = losses_of(start, *read(x, y, exchange.reading, i))
            return jax.tree.map(jnp.add, losses, slices), own, sums, start, times

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            losses, own, sums, start, times = carry
            ended = slot >= 0
            computed = per_lane(losses, exchange.jobs.size[slot])._replace(labels=losses.labels)
            none = jax.tree.map(jnp.zeros_like, losses)
            if sums is not None:
                weight = jnp.where(ended, exchange.jobs.weight[slot], 0.0)
                counted = where_lanes(ended, send_all(computed.gradient), none.gradient)
                sums = add_weighted(sums, weight, counted)
            # without screening, slots from `room` on are the first cohort's and are not stored
            target = jnp.where(ended, slot, room)
            own = put(own, target, computed)
            if times is not None:
                late = put(times.late, target, times.done.astype(jnp.float32))
                times = times._replace(late=late, done=times.done | ended)
            return where_lanes(ended, none, losses), own, sums, start, times

        def all_done(carry: Any) -> jax.Array:
            return jnp.all(carry[-1].done)

        # with screening, they are added at the end
        sums = zeros(params) if gradient and screen is None else None
        times = _Times.begun(watch, lanes, room)
        start = params if received is None else zeros(params, lanes)
        carry = (zeros(like, lanes), zeros(like, room), sums, start, times)
        _, own, sums, _, times = run_segments(
            exchange.reading.ends,
            tick,
            end_jobs,
            carry,
            begin_jobs=begin_jobs if clock is not None or received is not None else None,
            idle=None if clock is None else all_done,
        )
        own, sums, late = total((own, sums, None if times is None else times.late))
        own_late = None if late is None else late[:slots] > 0
        if screen is None:
            return Exchanged(own, sums, None, own_late)
        first = send_all(jax.tree.map(lambda a: a[slots:], own.gradient))
        weight = exchange.jobs.weight[slots:]
        if late is not None:
            weight = jnp.where(late[slots:] > 0, 0.0, weight)
        sums, screened = screened_sum(screen, first, weight, fixed=fixed)
        return Exchanged(jax.tree.map(lambda a: a[:slots], own), sums, screened, own_late)

    return gradients
