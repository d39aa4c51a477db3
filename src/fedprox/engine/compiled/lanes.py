"""Inside a compiled program: lanes with ticks and segments, held client state, and a real clock.

A call of several rounds holds the state of the clients of all its rounds. Each device has a copy of
all of it. A round takes the state of its clients from the copy to their places. At its end, devices
exchange the new states, so that all copies remain equal.

By the clock, the jobs of a node stop. A look at it calls the host, so it is made every few ticks.
How many follows from the time between the last two looks. Nothing is known of a machine's speed
before, and nothing is kept.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprox.algorithms.base import ClientState
from fedprox.devices.mesh import AXIS
from fedprox.engine.planning.jobs import Segments
from fedprox.jax_internals import call_host
from fedprox.parts.part import beside

T = TypeVar("T")

LOOK_SECONDS = 0.02
"""Seconds between looks at the clock."""

FASTER = 4
"""By which factor the ticks between looks may grow from one look to the next."""

MOST_TICKS = 2**20
"""Most ticks between looks."""

Clock = Callable[[], float]
"""Seconds since the beginning of the current round, read from inside a program."""


def total(tree: T) -> T:
    """Sum over the devices, inside `spread`.

    All leaves are summed as one vector, so that devices wait for each other only once.
    """
    vector, restore = ravel_pytree(tree)
    return restore(jax.lax.psum(vector, AXIS))


def entries(tree: T, index: jax.Array | int) -> T:
    """The entries at `index` along the first axis of each leaf, the nearest if it is out of range.

    `leaf[index]` would add a comparison, a sum and a choice, in case the index is negative: a third
    of a round's operations.
    """
    first = jax.lax.convert_element_type(index, jnp.int32)
    n, where = first.ndim, jax.lax.expand_dims(first, (first.ndim,))

    def of(a: jax.Array) -> jax.Array:
        own = range(n, n + a.ndim - 1)
        dimensions = jax.lax.GatherDimensionNumbers(tuple(own), (0,), (0,))
        return jax.lax.gather(a, where, dimensions, (1, *a.shape[1:]), mode="clip")

    return jax.tree.map(of, tree)


LONG = 256
"""Numbers of a row from which a CPU copies it as a whole."""


def example_rows(tree: T, index: jax.Array) -> T:
    """As `entries`, for rows of examples; on a CPU, long ones are copied one after another.

    XLA's CPU compiler fuses a gather with what reads it, and finds the place of each number anew. A
    step of logistic regression on images then takes a quarter to two thirds more time.
    """
    flat = index.reshape(-1)

    def of(a: jax.Array) -> jax.Array:
        size = (1, *a.shape[1:])
        if math.prod(size) < LONG or jax.default_backend() != "cpu":
            return entries(a, index)

        def row(i: jax.Array) -> jax.Array:
            first = [i] + [jnp.zeros_like(i)] * (a.ndim - 1)
            return jax.lax.dynamic_slice(a, first, size, allow_negative_indices=False)

        return jax.lax.map(row, flat).reshape(*index.shape, *a.shape[1:])

    return jax.tree.map(of, tree)


def squeezed(tree: T, axes: int = 1) -> T:
    """Leaves without their first `axes`, of length 1, such as that of the devices in `spread`."""
    return jax.tree.map(lambda a: jax.lax.squeeze(a, range(axes)), tree)


def expanded(tree: T, axes: int = 1) -> T:
    """Leaves with so many first axes of length 1."""
    return jax.tree.map(lambda a: jax.lax.expand_dims(a, range(axes)), tree)


def over(f: Callable[..., Any], *in_axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """`f` for all lanes and sweep points: for each axis, the last first, 0 for arguments with it.

    A single lane or point is run without its axis. With it, XLA's CPU compiler would transpose the
    operands of every matrix multiplication.
    """
    *inner, outer = in_axes
    within = over(f, *inner) if inner else f
    batched = jax.vmap(within, in_axes=outer)
    counts = [len(axes) - axes.count(None) for axes in zip(*in_axes, strict=True)]

    def every(*args: Any) -> Any:
        counted = list(zip(args, counts, strict=True))
        if all(a.shape[:n] == (1,) * n for arg, n in counted if n for a in jax.tree.leaves(arg)):
            alone = [squeezed(arg, n) if n else arg for arg, n in counted]
            return expanded(f(*alone), len(in_axes))
        with_axis = [arg for arg, axis in zip(args, outer, strict=True) if axis is not None]
        if len(jax.tree.leaves(with_axis)[0]) > 1:
            return batched(*args)
        alone = [
            arg if axis is None else squeezed(arg) for arg, axis in zip(args, outer, strict=True)
        ]
        return expanded(within(*alone))

    return every


class Ahead(NamedTuple):
    """The batches of several ticks, read at once; of few small rows a read costs most of a step.

    Attributes:
        ticks: Number of ticks.
        read: (first tick) -> what the ticks from it read, leaves (ticks, ...).
    """

    ticks: int
    read: Callable[[jax.Array], Any]


def run_segments(
    ends: Segments,
    tick: Callable[..., T],
    end_jobs: Callable[[jax.Array, T], T],
    carry: T,
    *,
    begin_jobs: Callable[[jax.Array, T], T] | None = None,
    idle: Callable[[T], jax.Array] | None = None,
    ahead: Ahead | None = None,
) -> T:
    """Run all segments: each begins jobs, ticks to its end or until `idle`, and ends jobs.

    Jobs begin and end by their slots in each lane (lanes,), -1 for none. A tick gets its number,
    the carry and, without `idle`, what was read `ahead` for it.
    """

    def segment(s: jax.Array, carry: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        first, inner = carry
        begin, end, stop = entries((ends.begin, ends.end, ends.stop), s)
        if begin_jobs is not None:
            inner = begin_jobs(begin, inner)
        if ahead is not None:
            inner = _run_ahead(first, stop, tick, inner, ahead)
        elif idle is None:
            inner = jax.lax.fori_loop(first, stop, tick, inner)
        else:
            inner = jax.lax.while_loop(
                lambda at: (at[0] < stop) & ~idle(at[1]),
                lambda at: (at[0] + 1, tick(at[0], at[1])),
                (first, inner),
            )[1]
        return stop, end_jobs(end, inner)

    return jax.lax.fori_loop(0, ends.count, segment, (jnp.int32(0), carry))[1]


def _run_ahead(
    first: jax.Array, stop: jax.Array, tick: Callable[..., T], carry: T, ahead: Ahead
) -> T:
    """Run the ticks from `first` to `stop`, reading for some of them at a time."""

    def some(at: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        begin, inner = at
        end, read = jnp.minimum(begin + ahead.ticks, stop), ahead.read(begin)

        def one(i: jax.Array, inner: T) -> T:
            return tick(i, inner, entries(read, i - begin))

        return end, jax.lax.fori_loop(begin, end, one, inner)

    return jax.lax.while_loop(lambda at: at[0] < stop, some, (first, carry))[1]


def where_lanes(chosen: jax.Array, yes: T, no: T) -> T:
    """Choose `yes` in the `chosen` lanes (lanes,), `no` in the others; leaves are (lanes, ...).

    Use it only for lanes whose job begins or ends with the segment. A single lane's job always
    does, so `yes` is returned without a comparison.
    """
    return yes if len(chosen) == 1 else choose(chosen, yes, no)


def choose(chosen: jax.Array, yes: T, no: T) -> T:
    """Choose `yes` where `chosen` is true, else `no`.

    The axes of `chosen` are the first axes of the leaves, or have length 1.
    """
    return jax.tree.map(lambda a, b: jnp.where(beside(chosen, a), a, b), yes, no)


def put(places: T, index: jax.Array, values: T) -> T:
    """Write each lane's values, leaves (lanes, ...), to its `index` (lanes,) if in range."""
    return jax.tree.map(lambda p, v: p.at[index].set(v, mode="drop"), places, values)


def add_weighted(mean: T, weight: jax.Array, values: T) -> T:
    """Add to the mean the sum over lanes of weight (lanes,) times values, leaves (lanes, ...)."""
    return jax.tree.map(
        lambda m, a: m + jnp.tensordot(weight, a, 1, precision="highest"), mean, values
    )


def zeros_like(shapes: T) -> T:
    """Zeros of the shapes and types of a tree."""
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


def from_all_devices(tree: T) -> T:
    """The parts of all devices, one after another along the first axis."""
    return jax.tree.map(lambda a: jax.lax.all_gather(a, AXIS, tiled=True), tree)


def part_of_device(tree: T) -> T:
    """This device's part of the first axis."""

    def part(a: jax.Array) -> jax.Array:
        size = len(a) // jax.lax.axis_size(AXIS)
        return jax.lax.dynamic_slice_in_dim(a, jax.lax.axis_index(AXIS) * size, size)

    return jax.tree.map(part, tree)


def take_cohort(held: ClientState, at: jax.Array) -> ClientState:
    """The state of a round's clients on this device, by where each place's client is in `held`."""
    return entries(held, entries(at, jax.lax.axis_index(AXIS)))


def put_cohort(held: ClientState, at: jax.Array, cohort: ClientState) -> ClientState:
    """Write the new state of a round's clients, as `take_cohort` returned it, to `held`."""
    return put(held, at.ravel(), from_all_devices(cohort))


class Until(NamedTuple):
    """When the passes of a node's round end, and the jobs within them.

    A pass has the time from the end of the one before, so it inherits what that one left.

    Attributes:
        reading: Seconds since the beginning of the round at which reading the clients' own
            gradients and losses, or those of a first cohort, ends, float32.
        personal: Likewise the local work on the clients' own models.
        local: Likewise the method's local work.
        due: The part of the time of the local work after which each job's client stops, float32 in
            (0, 1] (slots,).
        reading_due: The part of the time of reading after which each of its jobs stops, float32
            (jobs,).
    """

    reading: Any
    personal: Any
    local: Any
    due: Any = ()
    reading_due: Any = ()


class Watch(NamedTuple):
    """The looks at the clock of one pass on one device.

    Attributes:
        seconds: Seconds on the clock at the last look, float32.
        since: Ticks since then, int32.
        every: Ticks from that look to the next, int32.
    """

    seconds: jax.Array
    since: jax.Array
    every: jax.Array


def begin_watch(clock: Clock, after: Any) -> Watch:
    """The first look of a pass, once the trees `after` are computed."""
    computed = [leaf.ravel()[:1] for leaf in jax.tree.leaves(after)]
    return Watch(_look(clock, *computed), jnp.int32(0), jnp.int32(1))


def before_tick(clock: Clock, watch: Watch) -> Watch:
    """Look at the clock before a tick, if it is time to."""

    def look(watch: Watch) -> Watch:
        seconds = _look(clock, watch.since)
        ticks = LOOK_SECONDS / (seconds - watch.seconds) * watch.since  # infinite after no time
        most = jnp.minimum(FASTER * watch.every, MOST_TICKS)
        every = jnp.clip(ticks, 1, most).astype(jnp.int32)
        return Watch(seconds, jnp.int32(0), every)

    watch = jax.lax.cond(watch.since >= watch.every, look, lambda same: same, watch)
    return watch._replace(since=watch.since + 1)


def deadline(began: jax.Array, until: jax.Array, due: jax.Array) -> jax.Array:
    """When jobs that are `due` after a part of a pass stop, seconds as the clock's."""
    return began + (until - began) * due


def _look(clock: Clock, *after: jax.Array) -> jax.Array:
    """Seconds on the clock, once the arrays are computed."""

    def read(*_: Any) -> Any:
        return np.float32(clock())

    seconds: jax.Array = call_host(read, jax.ShapeDtypeStruct((), jnp.float32), *after)
    return seconds
