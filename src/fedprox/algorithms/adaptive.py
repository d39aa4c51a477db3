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

from fedprox.algorithms.base import Adaptation, HParams

STEP = 0.1
FALLS = 5


class Trend(NamedTuple):
    """The last loss, and how many times in a row the loss has fallen."""

    loss: jax.Array
    falls: jax.Array


def init(hparams: HParams, loss: jax.Array) -> Trend:
    """The trend after the evaluation of w^0."""
    del hparams
    return Trend(loss, jnp.zeros(jnp.shape(loss), jnp.int32))


def update(hparams: HParams, trend: Trend, loss: jax.Array) -> tuple[HParams, Trend]:
    """The hyperparameters of the next round, given the loss after this one.

    >>> hparams, trend = {"mu": jnp.array(1.0)}, init({}, jnp.array(3.0))
    >>> for loss in (2.9, 2.8, 2.7, 2.6, 2.5, 2.6):
    ...     hparams, trend = update(hparams, trend, jnp.array(loss))
    ...     print(f"{float(hparams['mu']):.1f}", end=" ")
    1.0 1.0 1.0 1.0 0.9 1.0
    """
    mu = hparams["mu"]
    rose = (loss > trend.loss) | ~jnp.isfinite(loss)
    falls = jnp.where(loss < trend.loss, trend.falls + 1, 0)
    enough = falls >= FALLS
    mu = jnp.where(rose, mu + STEP, jnp.where(enough, jnp.maximum(mu - STEP, 0.0), mu))
    return {**hparams, "mu": mu}, Trend(loss, jnp.where(enough, 0, falls))


ADAPTIVE_MU = Adaptation(init, update)
