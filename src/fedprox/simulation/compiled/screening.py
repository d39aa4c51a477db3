"""Screening: which updates of a round are faulty, and the mean of the others."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.precision import real_type
from fedprox.simulation.config.faults import Faults


def sound(*trees: Any) -> jax.Array:
    """1.0 if the sum of the squares of all numbers is finite, else 0.0.

    >>> float(sound(jnp.ones(3), None)), float(sound(jnp.array([0.0, jnp.nan])))
    (1.0, 0.0)
    """
    floats = [a for a in jax.tree.leaves(trees) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.isfinite(optax.tree.norm(floats, squared=True)).astype(real_type())


class Screened(NamedTuple):
    """Which updates of a round count, and how much.

    Attributes:
        scale: Factor of each update, 0 if it is left out, float32 (jobs, points).
        faulty: Whether each update is faulty, bool (jobs, points).
        counted: Weight of the updates that are not left out, float32 (points,); exactly 1 if no
            update is left out, or those left out count as zero.
    """

    scale: jax.Array
    faulty: jax.Array
    counted: jax.Array


def screen(
    faults: Faults,
    sound: jax.Array,
    size: jax.Array | None,
    weight: jax.Array,
    *,
    fixed: bool = False,
) -> Screened:
    """Find the faulty updates of a round.

    Args:
        faults: How faulty updates are treated.
        sound: 1 for finite updates, else 0, shape (jobs, points).
        size: Sizes of the updates, finite if the update is, shape (jobs, points); None if sizes are
            not compared.
        weight: Weights in the mean, 0 for slots without a job, shape (jobs,).
        fixed: Whether updates that are left out count as zero, so that the others keep their
            weight.

    >>> sizes = jnp.array([[1.0], [3.0], [2.0], [50.0]])
    >>> screen(Faults("clip"), jnp.ones((4, 1)), sizes, jnp.full(4, 0.25)).scale[:, 0].tolist()
    [1.0, 1.0, 1.0, 0.4000000059604645]
    """
    is_job = (weight > 0)[:, None]
    finite = is_job & (sound > 0)
    scale, beyond = finite.astype(real_type()), jnp.zeros_like(finite)
    if size is not None:
        ordered = jnp.sort(jnp.where(finite, size, jnp.inf), axis=0)
        middle = jnp.maximum(finite.sum(axis=0) - 1, 0) // 2
        median = jnp.take_along_axis(ordered, middle[None], axis=0)
        bound = jnp.where(median > 0, faults.norm * median, jnp.inf)
        beyond = finite & (size > bound)
        scale = jnp.where(beyond, bound / size if faults.policy == "clip" else 0.0, scale)
    counts = scale > 0
    counted = jnp.sum(weight[:, None] * counts, axis=0)
    all_count = (counts | ~is_job).all(axis=0)
    all_count |= fixed
    return Screened(scale, is_job & (~finite | beyond), jnp.where(all_count, 1.0, counted))


def scaled(scale: jax.Array, tree: Any) -> Any:
    """Scale times a tree; 0 where the scale is 0, even if the tree is NaN or infinite.

    Args:
        scale: The factors, shape (jobs, points).
        tree: Leaves (jobs, points, ...).
    """

    def one(a: jax.Array) -> jax.Array:
        s = scale.reshape(scale.shape + (1,) * (a.ndim - 2))
        return jnp.where(s > 0, s * a, 0)

    return jax.tree.map(one, tree)


def mean_of_others(sums: Any, counted: jax.Array) -> Any:
    """Sums over the counted updates, leaves (points, ...), divided by their weight (points,)."""
    divisor = jnp.where(counted > 0, counted, 1.0)
    return jax.tree.map(lambda a: a / divisor.reshape((-1,) + (1,) * (a.ndim - 1)), sums)


def screened_mean(
    faults: Faults, vectors: Any, weight: jax.Array, *, fixed: bool = False
) -> tuple[Any, Screened]:
    """The weighted mean of stacked vectors, and which of them count.

    Args:
        faults: How faulty vectors are treated.
        vectors: Leaves (jobs, points, ...).
        weight: Weights of the vectors (jobs,), 0 for slots without a vector.
        fixed: As in `screen`.
    """

    def every(f: Any) -> jax.Array:
        return jax.vmap(jax.vmap(f))(vectors)

    finite = every(sound)
    size = jnp.where(finite > 0, every(optax.tree.norm), 0) if faults.compares else None
    screened = screen(faults, finite, size, weight, fixed=fixed)
    parts = scaled(weight[:, None] * screened.scale, vectors)
    sums = jax.tree.map(lambda a: a.sum(axis=0), parts)
    return mean_of_others(sums, screened.counted), screened
