"""The one local problem that every method poses to a client.

On client k in round t, approximately minimise

    h_k(w) = F_k(w) + <c_k, w> + (mu / 2) ||w - a_k||^2,   starting from s_k.

FedAvg has c_k = 0 and mu = 0; FedProx has the anchor a_k = w^t (Li et al. 2020, equation 2).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.model import Params


class Subproblem(NamedTuple):
    """The three knobs of h_k and where its solution starts.

    Attributes:
        start: s_k, a pytree like the parameters.
        mu: Weight of the proximal term; None for none at all.
        anchor: a_k, a pytree like the parameters; None where `mu` is.
        linear: c_k, a pytree like the parameters; None for zero.
    """

    start: Params
    mu: jax.Array | None = None
    anchor: Params | None = None
    linear: Params | None = None

    def gradient(self, params: Params, gradient_of_f: Params) -> Params:
        """Grad h_k(w) = grad F_k(w) + c_k + mu (w - a_k), given grad F_k(w).

        >>> h = Subproblem(start=jnp.zeros(1), mu=jnp.array(2.0), anchor=jnp.ones(1))
        >>> h.gradient(jnp.array([4.0]), gradient_of_f=jnp.array([0.5])).tolist()
        [6.5]
        """
        gradient = gradient_of_f
        if self.linear is not None:
            gradient = jax.tree.map(jnp.add, gradient, self.linear)
        if self.mu is not None:
            mu = self.mu
            gradient = jax.tree.map(lambda g, w, a: g + mu * (w - a), gradient, params, self.anchor)
        return gradient

    def value(self, params: Params, value_of_f: jax.Array) -> jax.Array:
        """h_k(w) = F_k(w) + <c_k, w> + (mu / 2) ||w - a_k||^2, given F_k(w).

        >>> h = Subproblem(start=jnp.zeros(1), mu=jnp.array(2.0), anchor=jnp.ones(1))
        >>> float(h.value(jnp.array([4.0]), value_of_f=jnp.array(0.5)))
        9.5
        """
        value = value_of_f
        if self.linear is not None:
            value += optax.tree.vdot(self.linear, params)
        if self.mu is not None:
            apart = jax.tree.map(jnp.subtract, params, self.anchor)
            value += self.mu / 2 * optax.tree.vdot(apart, apart)
        return value


def inexactness(at_solution: Params, at_start: Params) -> jax.Array:
    """Gamma = ||grad h_k(w_k)|| / ||grad h_k(w^t)|| (Li et al. 2020, Definition 2).

    1 where nothing was done, 0 for an exact solution. A start that is already stationary counts
    as solved (0) unless the solver left it (infinity).

    >>> float(inexactness(jnp.array([3.0, 4.0]), jnp.array([0.0, 10.0])))
    0.5
    """
    end, start = optax.tree.norm(at_solution), optax.tree.norm(at_start)
    return jnp.where(end == 0, 0.0, end / start)
