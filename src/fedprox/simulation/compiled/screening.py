"""Screening: which updates of a round are faulty, and the mean of the others."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.simulation.config.faults import Faults


def sound(*trees: Any) -> jax.Array:
    """Whether the sum of the squares of all numbers is finite: 1.0 or 0.0, as sums need it.

    >>> float(sound(jnp.ones(3), None)), float(sound(jnp.array([0.0, jnp.nan])))
    (1.0, 0.0)
    """
    hparams = [a for a in jax.tree.leaves(trees) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.isfinite(optax.tree.norm(hparams, squared=True)).astype(jnp.float32)


class Screened(NamedTuple):
    """Which updates of a round count, and how much.

    Attributes:
        scale: What each is multiplied by, 0 for one that is left out, float32 (jobs, points).
        faulty: Whether it is faulty, bool (jobs, points).
        counted: The weight of those that are not left out, float32 (points,); exactly 1 if none is.
    """

    scale: jax.Array
    faulty: jax.Array
    counted: jax.Array


def screen(faults: Faults, sound: jax.Array, size: jax.Array | None, weight: jax.Array) -> Screened:
    """Tell the faulty updates of a round from the others.

    Args:
        faults: What is done about them.
        sound: 1 for updates that are finite, else 0, shape (jobs, points).
        size: Their sizes, finite for these, likewise; None where they are not compared.
        weight: Their weights in the mean, 0 where there is no job, shape (jobs,).

    >>> sizes = jnp.array([[1.0], [3.0], [2.0], [50.0]])
    >>> screen(Faults("clip"), jnp.ones((4, 1)), sizes, jnp.full(4, 0.25)).scale[:, 0].tolist()
    [1.0, 1.0, 1.0, 0.4000000059604645]
    """
    there = (weight > 0)[:, None]
    finite = there & (sound > 0)
    scale, beyond = finite.astype(jnp.float32), jnp.zeros_like(finite)
    if size is not None:
        ordered = jnp.sort(jnp.where(finite, size, jnp.inf), axis=0)
        middle = jnp.maximum(finite.sum(axis=0) - 1, 0) // 2
        median = jnp.take_along_axis(ordered, middle[None], axis=0)
        bound = jnp.where(median > 0, faults.norm * median, jnp.inf)
        beyond = finite & (size > bound)
        scale = jnp.where(beyond, bound / size if faults.policy == "clip" else 0.0, scale)
    counts = scale > 0
    counted = jnp.sum(weight[:, None] * counts, axis=0)
    everybody = (counts | ~there).all(axis=0)
    return Screened(scale, there & (~finite | beyond), jnp.where(everybody, 1.0, counted))


def scaled(scale: jax.Array, tree: Any) -> Any:
    """Scale times a tree, and 0 where the scale is 0, whatever stands there.

    Args:
        scale: Of shape (jobs, points).
        tree: Leaves (jobs, points, ...).
    """

    def one(a: jax.Array) -> jax.Array:
        s = scale.reshape(scale.shape + (1,) * (a.ndim - 2))
        return jnp.where(s > 0, s * a, 0)

    return jax.tree.map(one, tree)


def mean_of_others(sums: Any, counted: jax.Array) -> Any:
    """Sums over the updates that count, leaves (points, ...), divided by their weight (points,)."""
    divisor = jnp.where(counted > 0, counted, 1.0)
    return jax.tree.map(lambda a: a / divisor.reshape((-1,) + (1,) * (a.ndim - 1)), sums)


def screened_mean(faults: Faults, vectors: Any, weight: jax.Array) -> tuple[Any, Screened]:
    """The weighted mean of vectors that lie side by side, and which of them count.

    Args:
        faults: What is done about faulty ones.
        vectors: Leaves (jobs, points, ...).
        weight: Their weights (jobs,), 0 where there is none.
    """

    def every(f: Any) -> jax.Array:
        return jax.vmap(jax.vmap(f))(vectors)

    finite = every(sound)
    size = jnp.where(finite > 0, every(optax.tree.norm), 0) if faults.compares else None
    screened = screen(faults, finite, size, weight)
    parts = scaled(weight[:, None] * screened.scale, vectors)
    sums = jax.tree.map(lambda a: a.sum(axis=0), parts)
    return mean_of_others(sums, screened.counted), screened
