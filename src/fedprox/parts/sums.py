"""Sums of a round's messages, of which some may not count."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedprox.precision import real_type


class Screened(NamedTuple):
    """Which updates of a round count, and how much.

    Attributes:
        scale: Factor of each update, 0 if it is left out, float32 (jobs, points).
        flagged: Whether something is wrong with each update, bool (jobs, points).
        counted: Weight of the updates that are not left out, float32 (points,); exactly 1 if no
            update is left out, or those left out count as zero.
    """

    scale: jax.Array
    flagged: jax.Array
    counted: jax.Array


class Screen(Protocol):
    """A setting by which messages are left out of a round, such as `Faults`."""

    @property
    def compares(self) -> bool:
        """Whether the sizes of a round's messages are compared."""

    def measures_of(
        self, flagged: NDArray[np.int64], runs: Sequence[str], names: Sequence[str]
    ) -> dict[str, list[Any]]:
        """What records say of messages that were left out, for each run, unless one ends it."""

    def screened(
        self, sound: jax.Array, size: jax.Array | None, weight: jax.Array, *, fixed: bool = False
    ) -> Screened:
        """Which messages count."""


def sound(*trees: Any) -> jax.Array:
    """1.0 if the sum of the squares of all numbers is finite, else 0.0.

    >>> float(sound(jnp.ones(3), None)), float(sound(jnp.array([0.0, jnp.nan])))
    (1.0, 0.0)
    """
    floats = [a for a in jax.tree.leaves(trees) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.isfinite(optax.tree.norm(floats, squared=True)).astype(real_type())


def beside(numbers: Any, leaf: Any) -> Any:
    """Numbers, whose axes are the first ones of a leaf, in a shape that goes with the leaf's.

    >>> beside(jnp.ones((2, 3)), jnp.ones((2, 3, 4, 5))).shape
    (2, 3, 1, 1)
    """
    return numbers.reshape(numbers.shape + (1,) * (leaf.ndim - numbers.ndim))


def scaled(scale: jax.Array, tree: Any) -> Any:
    """Scale times a tree; 0 where the scale is 0, even if the tree is NaN or infinite."""

    def one(a: jax.Array) -> jax.Array:
        s = beside(scale, a)
        return jnp.where(s > 0, s * a, 0)

    return jax.tree.map(one, tree)


def times(factor: jax.Array, tree: Any) -> Any:
    """A tree, leaves (points, ...), times a factor (points,)."""
    return jax.tree.map(lambda a: a * beside(factor, a), tree)


def mean_of(sums: Any, counted: jax.Array | None) -> Any:
    """Sums over the counted updates, leaves (points, ...), divided by their weight (points,).

    Without screening, `counted` is None: all count, and their weights sum to 1.
    """
    if counted is None:
        return sums
    divisor = jnp.where(counted > 0, counted, 1.0)
    return jax.tree.map(lambda a: a / beside(divisor, a), sums)


def mean_if_screened(sums: Any, screened: Screened | None) -> Any:
    """As `mean_of`; None if all count."""
    return mean_of(sums, None if screened is None else screened.counted)


def screened_sum(
    setting: Screen, vectors: Any, weight: jax.Array, *, fixed: bool = False
) -> tuple[Any, Screened]:
    """The weighted sum of stacked vectors that count, and which of them do."""

    def every(f: Any) -> jax.Array:
        return jax.vmap(jax.vmap(f))(vectors)

    finite = every(sound)
    size = jnp.where(finite > 0, every(optax.tree.norm), 0) if setting.compares else None
    screened = setting.screened(finite, size, weight, fixed=fixed)
    parts = scaled(weight[:, None] * screened.scale, vectors)
    return jax.tree.map(lambda a: a.sum(axis=0), parts), screened
