"""Faulty updates: what a client sends that is not finite, or far larger than what the others send.

An update is the message that a client sends and what it would keep. It is faulty at a point of a
sweep if a number in it is NaN or infinite, or its square is (beyond 1.8e19 in single precision); or
if its size is more than `norm` times the median of the round's finite updates,

    s_k > norm * median_j s_j,   s_k = ||message_k||,

the lower median where their count is even. So up to half of a cohort may be faulty in size and the
others are still told from them. In a cohort of two the smaller is the measure of the larger, and a
single update is never beyond itself; where the median is 0 there is nothing to compare with.

What a method calls the size of its message is `Algorithm.size`: the norm of all of it, but for
parts that differ between sound clients for a reason. Updates are then left out, as if their clients
had not been in the cohort: the mean is over the others, the share of the clients that took part is
theirs, and the client keeps what it had. Without a sound update the round changes nothing.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from fedprox.errors import as_float, require, require_one_of, shown

Policy = Literal["drop", "fail", "clip"]
"""What becomes of a faulty update, or of the run."""


@dataclass(frozen=True)
class Faults:
    """What is done about faulty updates.

    Finding those that are not finite takes a pass over each message as it comes in. Comparing sizes
    takes all of a round's messages at its end: each device then has room for the messages of its
    clients in the round, and for what they would keep, until the next.

    Attributes:
        policy: "drop": a faulty update is left out; "fail": the run ends; "clip": one that is only
            too large is scaled down to `norm` times the median, what its client keeps changes by
            the same share, and one that is not finite is left out.
        norm: How many times the median size an update may have, at least 1; infinity for any.

    Raises:
        InputError: Another policy, a number out of range, or nothing to clip to.

    >>> Faults(norm=5)
    Faults(policy='drop', norm=5)
    """

    policy: Policy = "drop"
    norm: float = 10.0

    def __post_init__(self) -> None:
        require_one_of("faults.policy", self.policy, get_args(Policy))
        number = isinstance(self.norm, Real) and not isinstance(self.norm, bool)
        require(
            number and self.norm >= 1,
            f"faults.norm = {shown(self.norm)}; it must be a number of at least 1, or inf",
        )
        require(
            self.policy != "clip" or self.compares,
            f'faults.norm = {shown(self.norm)}; with faults.policy = "clip" it must be finite',
        )

    @property
    def compares(self) -> bool:
        """Whether the sizes of a round's updates are compared."""
        return math.isfinite(as_float(self.norm))


def sound(*trees: Any) -> jax.Array:
    """Whether the sum of the squares of all numbers is finite: 1.0 or 0.0, as sums need it.

    >>> float(sound(jnp.ones(3), None)), float(sound(jnp.array([0.0, jnp.nan])))
    (1.0, 0.0)
    """
    numbers = [a for a in jax.tree.leaves(trees) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.isfinite(optax.tree.norm(numbers, squared=True)).astype(jnp.float32)


class Judged(NamedTuple):
    """What a round's updates are worth.

    Attributes:
        scale: What each is multiplied by, 0 for one that is left out, float32 (jobs, points).
        faulty: Whether it is faulty, bool (jobs, points).
        share: The weight of those that are not left out, float32 (points,); exactly 1 if none is.
    """

    scale: jax.Array
    faulty: jax.Array
    share: jax.Array


def judge(faults: Faults, sound: jax.Array, size: jax.Array | None, weight: jax.Array) -> Judged:
    """Tell the faulty updates of a round from the others.

    Args:
        faults: What is done about them.
        sound: 1 for updates that are finite, else 0, shape (jobs, points).
        size: Their sizes, finite for these, likewise; None where they are not compared.
        weight: Their weights in the mean, 0 where there is no job, shape (jobs,).

    >>> sizes = jnp.array([[1.0], [3.0], [2.0], [50.0]])
    >>> judge(Faults("clip"), jnp.ones((4, 1)), sizes, jnp.full(4, 0.25)).scale[:, 0].tolist()
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
    counted = scale > 0
    share = jnp.sum(weight[:, None] * counted, axis=0)
    everybody = (counted | ~there).all(axis=0)
    return Judged(scale, there & (~finite | beyond), jnp.where(everybody, 1.0, share))


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


def mean_of_others(sums: Any, share: jax.Array) -> Any:
    """Sums over the updates that count, leaves (points, ...), divided by their weight (points,)."""
    divisor = jnp.where(share > 0, share, 1.0)
    return jax.tree.map(lambda a: a / divisor.reshape((-1,) + (1,) * (a.ndim - 1)), sums)


def screened_mean(faults: Faults, vectors: Any, weight: jax.Array) -> tuple[Any, Judged]:
    """The weighted mean of vectors that lie side by side, and what each is worth.

    Args:
        faults: What is done about faulty ones.
        vectors: Leaves (jobs, points, ...).
        weight: Their weights (jobs,), 0 where there is none.
    """

    def every(f: Any) -> jax.Array:
        return jax.vmap(jax.vmap(f))(vectors)

    finite = every(sound)
    size = jnp.where(finite > 0, every(optax.tree.norm), 0) if faults.compares else None
    judged = judge(faults, finite, size, weight)
    parts = scaled(weight[:, None] * judged.scale, vectors)
    sums = jax.tree.map(lambda a: a.sum(axis=0), parts)
    return mean_of_others(sums, judged.share), judged
