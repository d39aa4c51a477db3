"""The local problem: one form with which every method states what a client minimizes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedprox.model import Params


class Reference(NamedTuple):
    """A point at which each mini-batch's gradient is taken too, to correct the client's steps.

    Attributes:
        params: The point r, a pytree like the parameters.
        gradient: grad F_k(r) over all of the client's rows, a pytree like the parameters.
    """

    params: Params
    gradient: Params


class Subproblem(NamedTuple):
    r"""A client's local problem :math:`h_k`.

    Client :math:`k` approximately minimizes

    .. math:: h_k(w) = F_k(w) + \langle c_k, w \rangle + \frac{\mu}{2} \|w - a_k\|^2,

    starting from :math:`s_k`. FedAvg has neither of the two terms; FedProx has the anchor
    :math:`a_k = w^t`. With a method's own `objective`, that takes the place of :math:`F_k`.

    Attributes:
        start: :math:`s_k`, a pytree like the parameters.
        mu: :math:`\mu`, a scalar, or a pytree of scalars, each for all parameters below its place;
            None without a proximal term.
        anchor: :math:`a_k`, a pytree like the parameters; None if and only if `mu` is.
        linear: :math:`c_k`, a pytree like the parameters; None without a linear term.
        reference: A point :math:`r` with :math:`\nabla F_k(r)`. Steps on a mini-batch :math:`z`
            then use :math:`\nabla F_k(w; z) - \nabla F_k(r; z) + \nabla F_k(r)` in place of
            :math:`\nabla F_k(w; z)`, and cost a second gradient. None for plain mini-batches.
        given: Arrays that the method's `objective` reads beside the parameters and the mini-batch,
            a pytree of arrays.
        trained: Whether the client trains each parameter: a pytree of truth values like the
            parameters, one for a whole array or one for each of its numbers. The others keep their
            values, whatever noise, weight decay and the optimizer do. None for all.

    Example:
        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> h = fp.Subproblem(start=jnp.zeros(1), mu=jnp.array(2.0), anchor=jnp.ones(1))
        >>> float(h.value(jnp.array([4.0]), value_of_f=jnp.array(0.5)))
        9.5

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, equation 2.
    """

    start: Params
    mu: Any = None
    anchor: Params | None = None
    linear: Params | None = None
    reference: Reference | None = None
    given: Any = None
    trained: Any = None

    def gradient(self, params: Params, gradient_of_f: Params) -> Params:
        """The gradient of h_k: grad F_k(w) + c_k + mu (w - a_k), 0 where it does not train.

        Args:
            params: The parameters w.
            gradient_of_f: grad F_k(w), a pytree like the parameters.

        Returns:
            grad h_k(w).

        >>> h = Subproblem(start=jnp.zeros(1), mu=jnp.array(2.0), anchor=jnp.ones(1))
        >>> h.gradient(jnp.array([4.0]), gradient_of_f=jnp.array([0.5])).tolist()
        [6.5]
        """
        gradient = gradient_of_f
        if self.linear is not None:
            gradient = jax.tree.map(jnp.add, gradient, self.linear)
        if self.mu is not None:
            trees = gradient, params, self.anchor

            def add(mu: jax.Array, *below: Params) -> Params:
                return jax.tree.map(lambda g, w, a: g + mu * (w - a), *below)

            gradient = jax.tree.map(add, self.mu, *trees)
        return self.moved(jax.tree.map(jnp.zeros_like, gradient), gradient)

    def moved(self, before: Params, after: Params) -> Params:
        """Parameters after a step, of which those that the client does not train are as before.

        Args:
            before: The parameters before the step.
            after: The parameters after it.

        Returns:
            A pytree like the parameters.

        >>> h = Subproblem(start=jnp.zeros(2), trained=jnp.array([True, False]))
        >>> h.moved(jnp.zeros(2), jnp.ones(2)).tolist()
        [1.0, 0.0]
        """
        if self.trained is None:
            return after
        return jax.tree.map(jnp.where, self.trained, after, before)

    def value(self, params: Params, value_of_f: jax.Array) -> jax.Array:
        """The value of h_k: F_k(w) + <c_k, w> + (mu / 2) ||w - a_k||^2.

        Args:
            params: The parameters w.
            value_of_f: F_k(w), a scalar.

        Returns:
            h_k(w).
        """
        value = value_of_f
        if self.linear is not None:
            value += optax.tree.vdot(self.linear, params)
        if self.mu is not None:
            distance = jax.tree.map(jnp.subtract, params, self.anchor)
            terms = jax.tree.map(lambda mu, d: mu / 2 * optax.tree.vdot(d, d), self.mu, distance)
            value += sum(jax.tree.leaves(terms))
        return value


def inexactness(at_solution: Params, at_start: Params) -> jax.Array:
    """The inexactness ||grad h_k(w_k)|| / ||grad h_k(w^t)|| (Li et al. 2020, Definition 2).

    It is 1 without a step and 0 for an exact solution. For a stationary start it is 0 if the solver
    stays there, else infinity.

    >>> float(inexactness(jnp.array([3.0, 4.0]), jnp.array([0.0, 10.0])))
    0.5
    """
    end, start = optax.tree.norm(at_solution), optax.tree.norm(at_start)
    return jnp.where(end == 0, 0.0, end / start)
