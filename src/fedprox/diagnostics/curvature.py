"""How strongly the clients' objectives bend at a point: L and L_- by Lanczos.

    L   = max_k ||Hessian of F_k||        L_- = max(0, -min_k smallest eigenvalue of that Hessian)

are what Li et al. 2020, Theorem 4, asks of the local functions. No Hessian is formed: a product
with a vector is the derivative of <grad F_k(w), v>, summed over slices of the client's rows, and
Lanczos (1950) finds the extreme eigenvalues from a few of them. The eigenvalues found lie within
the true range, so L and L_- are bounded from below, and those at the ends are found first: 20
products give L to a few digits, whatever the number of parameters.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from fedprox.errors import require, require_whole
from fedprox.features import Features
from fedprox.federation import Federation
from fedprox.model import Model, Params, read_slice, weighted_loss
from fedprox.streams import Purpose, generator

Eigenvalues = NDArray[np.float64]

WIDTH = 64
"""Rows of a slice; measured on MNIST over 1,000 clients, two cores."""


class Curvature(NamedTuple):
    """Extreme eigenvalues of Hessians at one point.

    Attributes:
        smallest: Smallest eigenvalue of each F_k's Hessian, shape (clients,).
        largest: Largest eigenvalue of each F_k's Hessian, shape (clients,).
        smallest_of_f: Smallest eigenvalue of the Hessian of f.
        largest_of_f: Largest eigenvalue of the Hessian of f.
    """

    smallest: Eigenvalues
    largest: Eigenvalues
    smallest_of_f: float
    largest_of_f: float

    @property
    def smoothness(self) -> float:
        """L, the greatest |eigenvalue| of any F_k."""
        return float(max(self.largest.max(), -self.smallest.min()))

    @property
    def negative_curvature(self) -> float:
        """L_-, how far the eigenvalues of the F_k reach below 0."""
        return max(0.0, -float(self.smallest.min()))


def curvature(
    federation: Federation, model: Model, params: Params, *, iterations: int = 20, seed: int = 0
) -> Curvature:
    """Extreme eigenvalues of the Hessians of f and of every F_k.

    Args:
        federation: The clients; their training rows are read.
        model: The model.
        params: The point w.
        iterations: Lanczos steps, each a product with the Hessian; fewer where the Hessian is
            exhausted sooner. As many vectors like the parameters are kept.
        seed: Seed of the first vector.

    Raises:
        InputError: `iterations` is not a whole number of at least 1, or a Hessian is not finite.

    F(w) = 1/2 (3 w_0^2 - w_1^2):

    >>> def apply(w, x):
    ...     return jnp.broadcast_to((3 * w[0] ** 2 - w[1] ** 2) / 2, len(x))
    >>> model = Model(lambda key: jnp.ones(2), apply, lambda outputs, y: outputs, None)
    >>> federation = Federation.from_arrays([([[0.0]], [0.0])])
    >>> found = curvature(federation, model, jnp.ones(2))
    >>> round(found.smoothness, 4), round(found.negative_curvature, 4)
    (3.0, 1.0)
    """
    require_whole("iterations", iterations)
    train = federation.train
    flat, restore = ravel_pytree(params)
    steps = min(iterations, flat.size)
    start = generator(seed, Purpose.CURVATURE).standard_normal(flat.size)
    # f is one more range of rows: all of them
    first = np.append(train.offsets[:-1], 0).astype(np.int32)
    last = np.append(train.offsets[1:], len(train)).astype(np.int32)
    program = jax.jit(partial(_lanczos, model, restore, steps, min(WIDTH, len(train))))
    with jax.default_matmul_precision("highest"):
        found = program(
            flat, (start / np.linalg.norm(start)).astype(flat.dtype), train.x, train.y, first, last
        )
    diagonal, beside = (np.asarray(a, np.float64) for a in found)
    require(np.isfinite(diagonal[:, 0]).all(), "params: the Hessian is not finite there")
    smallest, largest = _extremes(diagonal, beside)
    return Curvature(smallest[:-1], largest[:-1], float(smallest[-1]), float(largest[-1]))


def _extremes(diagonal: Eigenvalues, beside: Eigenvalues) -> tuple[Eigenvalues, Eigenvalues]:
    """Least and greatest eigenvalue of tridiagonal matrices.

    Args:
        diagonal: Shape (matrices, steps); NaN from where a matrix has ended.
        beside: Shape (matrices, steps); entry i joins i and i + 1, and is 0 where a matrix ends.
    """
    steps = diagonal.shape[1]
    # an entry of its own equal to the first lies within the others' range
    diagonal = np.where(np.isnan(diagonal), diagonal[:, :1], diagonal)
    matrices = np.zeros((len(diagonal), steps, steps))
    i = np.arange(steps)
    matrices[:, i, i] = diagonal
    matrices[:, i[1:], i[:-1]] = beside[:, :-1]  # eigvalsh reads the lower half
    values = np.linalg.eigvalsh(matrices)
    return values[:, 0].astype(np.float64), values[:, -1].astype(np.float64)


def _lanczos(
    model: Model,
    restore: Callable[[jax.Array], Params],
    steps: int,
    width: int,
    flat: jax.Array,
    start: jax.Array,
    x: Features,
    y: jax.Array,
    first: jax.Array,
    last: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Tridiagonal matrices, their entries (ranges, steps), of the mean loss of ranges of rows."""

    def product(v: jax.Array, first: jax.Array, last: jax.Array) -> jax.Array:
        """The Hessian of sum_i loss_i / (last - first) times v."""

        def slope(w: jax.Array, x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
            # reverse over reverse: a layer may have a backward pass of its own, which has no jvp
            gradient = jax.grad(lambda w: weighted_loss(model, restore(w), x, y, weights))(w)
            return jnp.vdot(gradient, v)

        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            begin = first + i * width
            return total + jax.grad(slope)(flat, *read_slice(x, y, begin, last, width))

        slices = (last - first + width - 1) // width
        return jax.lax.fori_loop(0, slices, add, jnp.zeros_like(v)) / (last - first)

    def one(range_: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tiny = 100 * jnp.finfo(flat.dtype).eps

        def step(carry: Any) -> Any:
            i, _, scale, basis, diagonal, beside = carry
            v = basis[i]
            image = product(v, *range_)
            diagonal = diagonal.at[i].set(jnp.vdot(v, image))
            scale = jnp.maximum(scale, jnp.linalg.norm(image))
            # all of the basis is taken out, twice: rounding would let the first vectors back in
            for _ in range(2):
                image = image - (basis @ image) @ basis
            left = jnp.linalg.norm(image)
            more = left > tiny * scale
            basis = basis.at[i + 1].set(jnp.where(more, image / left, 0.0), mode="drop")
            beside = beside.at[i].set(jnp.where(more, left, 0.0))
            return i + 1, more, scale, basis, diagonal, beside

        def unfinished(carry: Any) -> jax.Array:
            i, more, *_ = carry
            return (i < steps) & more

        basis = jnp.zeros((steps, len(flat)), flat.dtype).at[0].set(start)
        entries = jnp.full(steps, jnp.nan, flat.dtype)
        begin = (0, True, jnp.zeros((), flat.dtype), basis, entries, jnp.zeros_like(entries))
        *_, diagonal, beside = jax.lax.while_loop(unfinished, step, begin)
        return diagonal, beside

    return jax.lax.map(one, (first, last))
