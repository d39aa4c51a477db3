"""Lanes inside a compiled program: ticking, ending jobs, reading rows, several devices."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled, Wrapped

from fedprox.errors import require, require_whole
from fedprox.simulation.schedule import Segments

T = TypeVar("T")

AXIS = "lanes"
REPLICATED = PartitionSpec()
PER_DEVICE = PartitionSpec(AXIS)
PER_ROUND_AND_DEVICE = PartitionSpec(None, AXIS)


def lane_mesh(count: int | None = None) -> Mesh:
    """Some or all devices in a row, for lanes to be spread over.

    Of several processes those of the first come first, and each has the same number.

    Args:
        count: How many devices of this process; all where left out.

    Raises:
        InputError: There are not so many.
    """
    devices = jax.local_devices()
    if count is not None:
        require_whole("devices", count)
        require(count <= len(devices), f"devices = {count}; JAX sees {len(devices)} here")
        devices = devices[:count]
    if jax.process_count() > 1:
        each = {p: jax.local_devices(p)[: len(devices)] for p in range(jax.process_count())}
        counts = {len(theirs) for theirs in each.values()}
        require(len(counts) == 1, f"devices: processes have {sorted(counts)}; give --devices")
        devices = [device for p in sorted(each) for device in each[p]]
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def replicate(mesh: Mesh, tree: T) -> T:
    """A copy of every array of `tree` on every device of `mesh`."""
    return put_on(NamedSharding(mesh, REPLICATED), tree)


def shard(mesh: Mesh, tree: T) -> T:
    """Each device's part of every array of `tree`, whose first axis is the devices."""
    return put_on(NamedSharding(mesh, PER_DEVICE), tree)


def put_on(sharding: NamedSharding, tree: T) -> T:
    """Every array of `tree` on the devices.

    Of several processes each puts its own part of a host array there.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def one(array: Any) -> jax.Array:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return jax.jit(lambda a: a, out_shardings=sharding)(array)
        host = np.asarray(array)
        return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])

    return jax.tree.map(one, tree)


def on_all(compiled: Compiled) -> Callable[..., Any]:
    """A compiled program that takes host arrays, also where its devices are several processes'."""

    def none(part: Any) -> bool:
        return part is None

    # None also stands for what the program does not use
    shardings = jax.tree.leaves(compiled.input_shardings[0], is_leaf=none)
    if all(s is None or s.is_fully_addressable for s in shardings):
        return compiled

    def call(*arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments, is_leaf=none)
        put = [
            put_on(sharding, leaf)
            if isinstance(leaf, np.ndarray | np.generic) and sharding
            else leaf
            for leaf, sharding in zip(leaves, shardings, strict=True)
        ]
        return compiled(*jax.tree.unflatten(structure, put))

    return call


def zeros_on(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Zeros whose first axis is spread over the devices."""
    return jnp.zeros(shape, dtype, device=NamedSharding(mesh, PER_DEVICE))


def spread(
    mesh: Mesh,
    body: Callable[..., Any],
    in_specs: tuple[Any, ...],
    *,
    out_specs: Any = REPLICATED,
    donated: tuple[int, ...] = (),
) -> Wrapped:
    """`body` on every device with its part of the lanes; replicated results must be equal on all.

    Memory of the `donated` arguments is used for the results: the caller gives them up.
    """
    mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return jax.jit(mapped, donate_argnums=donated)


def total(tree: T) -> T:
    """Sum over the devices, inside `spread`.

    All leaves travel as one vector: devices wait for each other once.
    """
    vector, restore = ravel_pytree(tree)
    return restore(jax.lax.psum(vector, AXIS))


def over(f: Callable[..., Any], in_axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """`f` for all lanes, or all points of a sweep, at once.

    One alone is run without the axis: with it XLA's CPU compiler transposes the operands of every
    matrix product.

    Args:
        f: The function of one.
        in_axes: 0 for each argument with the axis, the first of its leaves, and None for others.
    """
    batched = jax.vmap(f, in_axes=in_axes)

    def every(*args: Any) -> Any:
        with_axis = [arg for arg, axis in zip(args, in_axes, strict=True) if axis is not None]
        if len(jax.tree.leaves(with_axis)[0]) > 1:
            return batched(*args)
        alone = [
            arg if axis is None else jax.tree.map(lambda a: a[0], arg)
            for arg, axis in zip(args, in_axes, strict=True)
        ]
        return jax.tree.map(lambda a: a[None], f(*alone))

    return every


def run_segments(
    ends: Segments,
    tick: Callable[[jax.Array, T], T],
    end_jobs: Callable[[jax.Array, T], T],
    carry: T,
    *,
    begin_jobs: Callable[[jax.Array, T], T] | None = None,
    idle: Callable[[T], jax.Array] | None = None,
) -> T:
    """Let jobs begin, tick to the segment's end, let the jobs that end there end, and go on.

    Args:
        ends: One device's segments: `stop` (jobs,), `count` (), `begin` and `slot` (jobs, lanes).
        tick: Tick number, carry -> carry.
        end_jobs: Slot that ends in each lane (-1 for none), shape (lanes,), carry -> carry.
        carry: Where to begin.
        begin_jobs: Slot that begins in each lane, likewise.
        idle: Carry -> whether the rest of the segment's ticks would change nothing.
    """

    def segment(s: jax.Array, carry: tuple[jax.Array, T]) -> tuple[jax.Array, T]:
        first, inner = carry
        stop = ends.stop[s]
        if begin_jobs is not None:
            inner = begin_jobs(ends.begin[s], inner)
        if idle is None:
            inner = jax.lax.fori_loop(first, stop, tick, inner)
        else:
            inner = jax.lax.while_loop(
                lambda at: (at[0] < stop) & ~idle(at[1]),
                lambda at: (at[0] + 1, tick(at[0], at[1])),
                (first, inner),
            )[1]
        return stop, end_jobs(ends.slot[s], inner)

    return jax.lax.fori_loop(0, ends.count, segment, (jnp.int32(0), carry))[1]


def where_lanes(chosen: jax.Array, yes: T, no: T) -> T:
    """Choose `yes` in the `chosen` lanes (lanes,), `no` in the others; leaves are (lanes, ...).

    Lanes are chosen where their job begins or ends with the segment; a single lane's always does.
    """
    return yes if len(chosen) == 1 else choose(chosen, yes, no)


def choose(chosen: jax.Array, yes: T, no: T) -> T:
    """Choose `yes` where `chosen`, else `no`; its axes are the first ones of the leaves', or 1."""

    def one(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(chosen.reshape(chosen.shape + (1,) * (a.ndim - chosen.ndim)), a, b)

    return jax.tree.map(one, yes, no)


def put(places: T, index: jax.Array, values: T) -> T:
    """Write each lane's values, leaves (lanes, ...), to a place of its own (lanes,) if there is."""
    return jax.tree.map(lambda p, v: p.at[index].set(v, mode="drop"), places, values)


def add_weighted(mean: T, weight: jax.Array, values: T) -> T:
    """Mean + sum over lanes of weight (lanes,) times values, leaves (lanes, ...)."""
    return jax.tree.map(
        lambda m, a: m + jnp.tensordot(weight, a, 1, precision="highest"), mean, values
    )


def read_rows(source: jax.Array, rows: jax.Array) -> jax.Array:
    """source[rows] for rows (width,) within bounds.

    On a CPU a loop that copies row by row is up to five times faster than XLA's gather, which
    computes an address for every element.
    """
    if source.ndim == 1:
        return source.at[rows].get(mode="promise_in_bounds")

    def gather(source: jax.Array, rows: jax.Array) -> jax.Array:
        return source.at[rows].get(mode="promise_in_bounds")

    def copy(source: jax.Array, rows: jax.Array) -> jax.Array:
        def one(j: jax.Array, out: jax.Array) -> jax.Array:
            row = jax.lax.dynamic_slice_in_dim(source, rows[j], 1)
            return jax.lax.dynamic_update_slice_in_dim(out, row, j, 0)

        out = jnp.zeros((len(rows), *source.shape[1:]), source.dtype)
        return jax.lax.fori_loop(0, len(rows), one, out)

    return jax.lax.platform_dependent(source, rows, cpu=copy, default=gather)
