"""The curvature of the clients' objectives at a point: L and L_- by Lanczos.

No Hessian is formed. Its product with a vector v is the gradient of <grad F_k(w), v>, summed over
slices of the client's rows. Lanczos (1950) approximates the extreme eigenvalues from a few
products. The approximations lie within the true range, so they bound L and L_- from below. The
extreme ones converge first: 20 products give L to a few digits, whatever the number of parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from fedprox.errors import require, require_whole
from fedprox.features import Features
from fedprox.federation import Federation
from fedprox.model import Model, Params, opened, read_slice, weighted_loss, with_base
from fedprox.streams import Purpose, generator

Eigenvalues = NDArray[np.float64]

SLICE_ROWS = 64
"""Rows of a slice: the fastest number on MNIST over 1,000 clients, on two cores."""


class Curvature(NamedTuple):
    """Extreme eigenvalues of Hessians at one point; see `curvature`.

    Attributes:
        smallest: Smallest eigenvalue of each client's Hessian, float64 (clients,).
        largest: Largest eigenvalue of each client's Hessian, float64 (clients,).
        smallest_of_f: Smallest eigenvalue of the Hessian of f.
        largest_of_f: Largest eigenvalue of the Hessian of f.

    Example:
        >>> import numpy as np
        >>> from fedprox.diagnostics import Curvature
        >>> at_w = Curvature(np.array([-1.0, 0.5]), np.array([2.0, 3.0]), 0.1, 2.5)
        >>> at_w.smoothness, at_w.negative_curvature
        (3.0, 1.0)
    """

    smallest: Eigenvalues
    largest: Eigenvalues
    smallest_of_f: float
    largest_of_f: float

    @property
    def smoothness(self) -> float:
        """The smoothness L, the largest absolute eigenvalue of any client's Hessian."""
        return float(max(self.largest.max(), -self.smallest.min()))

    @property
    def negative_curvature(self) -> float:
        """:math:`L_-`: minus the least eigenvalue of any client's Hessian, or 0 if positive."""
        return max(0.0, -float(self.smallest.min()))


def curvature(
    federation: Federation, model: Model, params: Params, *, iterations: int = 20, seed: int = 0
) -> Curvature:
    r"""Extreme eigenvalues of the Hessians of f and of every client's objective.

    Theorem 4 of the reference depends on the largest values over all models of

    .. math:: L = \max_k \|\nabla^2 F_k(w)\|, \qquad
        L_- = \max(0, -\min_k \lambda_{\min}(\nabla^2 F_k(w))),

    which Lanczos' method bounds from below.

    Args:
        federation: The clients, whose training rows are read.
        model: The model of the parameters.
        params: The parameters w.
        iterations: Lanczos steps, at least 1. Each computes a product with the Hessian and stores a
            vector as large as the parameters. They end early if they have found all eigenvalues.
        seed: Seed of the first vector.

    Returns:
        The eigenvalues, with `smoothness` L and `negative_curvature` :math:`L_-`.

    Raises:
        InputError: If `iterations` is not a whole number of at least 1, or a Hessian is not finite.

    Example:
        F(w) = 1/2 (3 w_0^2 - w_1^2):

        >>> import jax.numpy as jnp
        >>> import fedprox as fp
        >>> def apply(w, x):
        ...     return jnp.broadcast_to((3 * w[0] ** 2 - w[1] ** 2) / 2, len(x))
        >>> model = fp.Model(lambda key: jnp.ones(2), apply, lambda outputs, y: outputs, None)
        >>> federation = fp.Federation.from_arrays([([[0.0]], [0.0])])
        >>> at_w = fp.diagnostics.curvature(federation, model, jnp.ones(2))
        >>> round(at_w.smoothness, 4), round(at_w.negative_curvature, 4)
        (3.0, 1.0)

    References:
        Li et al., `Federated Optimization in Heterogeneous Networks
        <https://arxiv.org/abs/1812.06127>`_, MLSys 2020, Theorem 4; and
        Lanczos, `An iteration method for the solution of the eigenvalue problem of linear
        differential and integral operators <https://doi.org/10.6028/jres.045.026>`_, Journal of
        Research of the National Bureau of Standards, 1950.
    """
    require_whole("iterations", iterations)
    train = federation.train
    trained, around = opened(params)
    flat, restore = ravel_pytree(trained)
    steps = min(iterations, flat.size)
    start = generator(seed, Purpose.CURVATURE).standard_normal(flat.size)
    # f is one more range of rows: all of them
    first = np.append(train.offsets[:-1], 0).astype(np.int32)
    last = np.append(train.offsets[1:], len(train)).astype(np.int32)

    @jax.jit
    def program(base: Any, *arguments: Any) -> tuple[jax.Array, jax.Array]:
        whole = with_base(model, base)

        def objective(w: jax.Array, x: Features, y: jax.Array, weights: jax.Array) -> jax.Array:
            return weighted_loss(whole, around(restore(w)), x, y, weights)

        return _lanczos(objective, steps, min(SLICE_ROWS, len(train)), *arguments)

    with jax.default_matmul_precision("highest"):
        entries = program(
            model.base,
            flat,
            (start / np.linalg.norm(start)).astype(flat.dtype),
            (train.x, train.y),
            (first, last),
        )
    diagonal, beside = (np.asarray(a, np.float64) for a in entries)
    require(np.isfinite(diagonal[:, 0]).all(), "params: the Hessian is not finite there")
    smallest, largest = _extremes(diagonal, beside)
    return Curvature(smallest[:-1], largest[:-1], float(smallest[-1]), float(largest[-1]))


def _extremes(diagonal: Eigenvalues, beside: Eigenvalues) -> tuple[Eigenvalues, Eigenvalues]:
    """The smallest and the largest eigenvalue of tridiagonal matrices.

    A row of `diagonal` (matrices, steps) is NaN beyond the end of its matrix. Entry i of a row of
    `beside` stands between the entries i and i + 1 of the diagonal, and is 0 at the end.
    """
    steps = diagonal.shape[1]
    # a separate entry equal to the first one lies within the range of the others
    diagonal = np.where(np.isnan(diagonal), diagonal[:, :1], diagonal)
    matrices = np.zeros((len(diagonal), steps, steps))
    i = np.arange(steps)
    matrices[:, i, i] = diagonal
    matrices[:, i[1:], i[:-1]] = beside[:, :-1]  # eigvalsh reads the lower half
    values = np.linalg.eigvalsh(matrices)
    return values[:, 0].astype(np.float64), values[:, -1].astype(np.float64)


SliceLoss = Callable[[jax.Array, Features, jax.Array, jax.Array], jax.Array]
"""(parameters as a vector, features, labels, weights of the rows) -> weighted loss."""


def _lanczos(
    objective: SliceLoss,
    steps: int,
    width: int,
    flat: jax.Array,
    start: jax.Array,
    data: tuple[Features, jax.Array],
    ranges: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """The tridiagonal matrices of the mean losses of ranges of rows; see `_extremes`."""
    x, y = data

    def product(v: jax.Array, first: jax.Array, last: jax.Array) -> jax.Array:
        """The Hessian of the mean loss of rows first, ..., last - 1, times v."""

        def slope(w: jax.Array, x: jax.Array, y: jax.Array, weights: jax.Array) -> jax.Array:
            # reverse over reverse: a layer may define its own backward pass, which has no jvp
            gradient = jax.grad(lambda w: objective(w, x, y, weights))(w)
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
            # orthogonalize against the whole basis, twice: rounding errors would accumulate
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

    return jax.lax.map(one, ranges)
