"""Dissimilarity of the clients' gradients.

With E_k the mean over clients with weights p_k = n_k / n, so that E_k[grad F_k] = grad f:

    gradient variance = E_k ||grad F_k(w) - grad f(w)||^2
    B(w)              = sqrt(E_k ||grad F_k(w)||^2 / ||grad f(w)||^2)
                      = sqrt(1 + gradient variance / ||grad f(w)||^2)

(Li et al. 2020, section 5.3.3 and Definition 3). The variance is accumulated one client at a time
(Welford 1962; pairwise as in Chan et al. 1983), so no client's gradient is stored, identical
clients give 0 up to rounding, and B(w) is at least 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.model import Params


class Scatter(NamedTuple):
    """Weighted mean of some gradients and their scatter around it.

    Attributes:
        weight: Sum of the weights.
        mean: Weighted mean, a pytree like the parameters.
        scatter: sum_k weight_k ||g_k - mean||^2.
    """

    weight: jax.Array
    mean: Params
    scatter: jax.Array


def nothing(like: Params) -> Scatter:
    """The scatter of no gradients."""
    return Scatter(jnp.zeros(()), jax.tree.map(jnp.zeros_like, like), jnp.zeros(()))


def include(so_far: Scatter, gradient: Params, weight: jax.Array) -> Scatter:
    """Add one client's gradient.

    >>> s = nothing(jnp.zeros(1))
    >>> for g, p in ((1.0, 0.25), (5.0, 0.75)):
    ...     s = include(s, jnp.array([g]), jnp.array(p))
    >>> s.mean.tolist(), float(s.scatter)
    ([4.0], 3.0)
    """
    weight_after = so_far.weight + weight
    share = weight / jnp.where(weight_after > 0, weight_after, 1.0)
    deviation = jax.tree.map(jnp.subtract, gradient, so_far.mean)
    mean = jax.tree.map(lambda m, d: m + share * d, so_far.mean, deviation)
    distance = optax.tree.norm(deviation) ** 2
    return Scatter(weight_after, mean, so_far.scatter + so_far.weight * share * distance)


def dissimilarity(variance: jax.Array, gradient_norm_squared: jax.Array) -> jax.Array:
    """B(w) = sqrt(1 + variance / ||grad f||^2); 1 where all gradients vanish.

    Li et al. 2020, Definition 3 and its footnote.

    >>> dissimilarity(jnp.array([3.0, 0.0]), jnp.array([1.0, 0.0])).tolist()
    [2.0, 1.0]
    """
    ratio = jnp.where(variance == 0, 0.0, variance / gradient_norm_squared)
    return jnp.sqrt(1 + ratio)
