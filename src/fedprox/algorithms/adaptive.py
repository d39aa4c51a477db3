"""Adaptive mu: a heuristic for any method with a proximal term (Li et al. 2020, section 5.3.2).

After each round, with the loss f(w) over all training rows,

    mu <- mu + 0.1             if f rose (or is no longer finite),
    mu <- max(mu - 0.1, 0)     if f fell five times in a row, after which the count restarts.

The paper starts at mu = 1 on IID data and at mu = 0 elsewhere, far from the best value in both
cases (appendix C.3.3).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

STEP = 0.1
FALLS = 5


class Trend(NamedTuple):
    """The last loss, and how many times in a row the loss has fallen."""

    loss: jax.Array
    falls: jax.Array


def first_trend(loss: jax.Array) -> Trend:
    """The trend after the evaluation of w^0."""
    return Trend(loss, jnp.zeros(jnp.shape(loss), jnp.int32))


def follow(mu: jax.Array, trend: Trend, loss: jax.Array) -> tuple[jax.Array, Trend]:
    """The next mu, given the loss after a round; arrays of one shape, such as (points,).

    >>> mu, trend = jnp.array(1.0), first_trend(jnp.array(3.0))
    >>> for loss in (2.9, 2.8, 2.7, 2.6, 2.5, 2.6):
    ...     mu, trend = follow(mu, trend, jnp.array(loss))
    ...     print(f"{float(mu):.1f}", end=" ")
    1.0 1.0 1.0 1.0 0.9 1.0
    """
    rose = (loss > trend.loss) | ~jnp.isfinite(loss)
    falls = jnp.where(loss < trend.loss, trend.falls + 1, 0)
    enough = falls >= FALLS
    mu = jnp.where(rose, mu + STEP, jnp.where(enough, jnp.maximum(mu - STEP, 0.0), mu))
    return mu, Trend(loss, jnp.where(enough, 0, falls))
