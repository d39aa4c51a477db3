r"""Upper bounds of norms, which rounding does not undercut.

A guarantee that a vector is clipped needs a norm that is not too small. A sum of :math:`n` numbers
has, in any order, a relative rounding error of at most

.. math:: \gamma_n = \frac{n u}{1 - n u}

of the sum of their absolute values, where :math:`u` is the unit roundoff (Higham, *Accuracy and
Stability of Numerical Algorithms*, SIAM 2002, section 3.1). The bounds here add such errors.

Standard normal numbers in compiled programs, for noise that hides something.

Each number is :math:`\sqrt{-2 \ln u} \cos(2 \pi v)` (Box and Muller 1958) of 64 random bits of its
own: 42 give u and 22 give v. So its distribution has no gaps that single precision can tell but
beyond 7.7, where a normal number is with a probability of :math:`2^{-43}`. `jax.random.normal` has
23 bits for a number and ends at 5.4, which models of many parameters reach.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprox.precision import real_type

ADDED_TOGETHER = 128
"""Squares that are added one after the other; more would have a larger rounding error."""

MORE_ROUNDINGS = 8
"""Operations beside those of a sum: products, roots, and the error bound itself."""


def unit_roundoff() -> float:
    """The largest relative error of one operation.

    >>> unit_roundoff() == 2.0**-24
    True
    """
    return float(jnp.finfo(real_type()).eps) / 2


def rounding(count: int) -> float:
    """The largest relative rounding error of a sum of so many products, with `MORE_ROUNDINGS`.

    >>> f"{rounding(100):.1e}"
    '6.4e-06'
    """
    error = (count + MORE_ROUNDINGS) * unit_roundoff()
    return error / (1 - error)


def underflow() -> float:
    """A number whose rounding is larger than any number that is taken for zero."""
    return float(jnp.finfo(real_type()).tiny) / unit_roundoff()


def square_bound(array: jax.Array) -> jax.Array:
    """An upper bound of the sum of squares, in real numbers of the computation; a scalar.

    >>> many = jnp.full(3_000_000, 1.1)
    >>> [round(float(f(many)) / (3e6 * 1.1**2), 3) for f in (square_bound, lambda a: a @ a)]
    [1.0, 1.0]
    """
    sums = array.astype(real_type()).reshape(-1) ** 2
    while sums.size > 1:
        width = min(ADDED_TOGETHER, sums.size)
        sums = jnp.pad(sums, (0, -sums.size % width)).reshape(width, -1).sum(axis=0)
        sums *= 1 + rounding(width)  # between the sums, so that XLA does not make them one
    return sums.reshape(())


def norm_bound(tree: Any) -> jax.Array:
    """An upper bound of the norm of all arrays together, above it by 1e-4 of it at most.

    It is infinite if a square is beyond the real numbers, and NaN with a number that is so.

    >>> round(float(norm_bound({"a": jnp.array([3.0]), "b": jnp.array([4.0])})), 4)
    5.0
    """
    leaves = jax.tree.leaves(tree)
    squares = sum(map(square_bound, leaves), start=jnp.zeros((), real_type()))
    return jnp.sqrt(squares) * (1 + rounding(len(leaves)))


def product_bound(a: jax.Array, b: jax.Array) -> jax.Array:
    r"""An upper bound of the norms of sums of outer products, as they are computed.

    The square of the norm of :math:`\sum_p a_p b_p^\top` is
    :math:`\sum_{p, q} (a_p^\top a_q) (b_p^\top b_q)`, whose terms can cancel. So the rounding
    errors of the terms and of their sum are added, and that of the sum of products itself.

    a is (B, P, M), b is (B, P, N), and the bounds are (B,).

    >>> a, b = jnp.ones((1, 2, 3)), jnp.array([[[1.0], [-1.0]]])
    >>> 0 < float(product_bound(a, b)[0]) < 0.01
    True
    """
    positions = a.shape[1]
    if positions == 1:
        of_each = jax.vmap(norm_bound)
        return of_each(a) * of_each(b) * (1 + rounding(1)) + underflow() ** 0.5
    (gram_a, error_a, norms_a), (gram_b, error_b, norms_b) = map(_gram, (a, b))
    pairs = gram_a * gram_b
    most = (jnp.abs(gram_a) + error_a) * (jnp.abs(gram_b) + error_b)
    bounds = jnp.sum(pairs + (most - jnp.abs(pairs)), axis=2)
    bounds += 3 * rounding(positions) * jnp.sum(most, axis=2)  # of the sums over both axes
    square = jnp.maximum(jnp.sum(bounds, axis=1), 0.0)
    total = jnp.sum(norms_a * norms_b, axis=1)
    bound = jnp.sqrt(square) + rounding(positions) * (1 + rounding(positions)) * total
    return bound * (1 + rounding(1)) + positions * underflow() ** 0.5


PIECES, NARROWEST = 8, 256
"""A dot product is a sum of at most so many, each of at least so many numbers, which has a smaller
rounding error."""


def _gram(vectors: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The dot products of all pairs of vectors, (B, P, P), bounds of their errors, and of norms."""
    size = vectors.shape[2]
    width = max(NARROWEST, -(-size // PIECES))
    pieces = [vectors[..., first : first + width] for first in range(0, size, width)]
    gram = sum(
        jnp.einsum("bpm,bqm->bpq", each, each, precision=jax.lax.Precision.HIGHEST)
        for each in pieces
    )
    assert isinstance(gram, jax.Array)
    error = rounding(min(size, width) + len(pieces))
    squares = jnp.diagonal(gram, axis1=1, axis2=2) * (1 + 2 * error) + 2 * size * underflow()
    norms = jnp.sqrt(squares) * (1 + rounding(1))
    return gram, error * norms[:, :, None] * norms[:, None, :], norms


ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)

MESSAGES, GRADIENTS, EXAMPLES = range(3)
"""Purposes of noise within a round, or a local step."""

PARITY = np.uint32(0x1BD11BDA)

SINE = [(-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(7)]
"""The series of sin(pi a), whose rest is below 1e-9 up to 1/2."""


def standard_normals(words: jax.Array, purpose: int, tree: Any) -> Any:
    """Independent standard normal numbers, one for each number of a tree."""
    key = jax.random.fold_in(jax.random.wrap_key_data(words, impl="threefry2x32"), purpose)
    own = jax.random.key_data(key)
    leaves, structure = jax.tree.flatten(tree)
    normals = [_normals(own, number, leaf) for number, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, normals)


def _normals(words: jax.Array, number: int, like: jax.Array) -> jax.Array:
    """Standard normal numbers for a leaf of a tree."""
    counter = jax.lax.iota(jnp.uint32, like.size)
    normals = normal_of(*threefry(words, jnp.full_like(counter, number), counter))
    return normals.reshape(like.shape).astype(like.dtype)


def normal_of(first: jax.Array, second: jax.Array) -> jax.Array:
    """Standard normal numbers of random words."""
    lower = (second & np.uint32(1023)).astype(jnp.float32)
    u = (first.astype(jnp.float32) + (lower + 0.5) * np.float32(2**-10)) * np.float32(2**-32)
    half_turns = jax.lax.bitcast_convert_type(second >> np.uint32(10) << np.uint32(10), jnp.int32)
    # cos(pi t) = sin(pi a) with |a| at most 1/2, for t from -1 to 1
    a = 0.5 - jnp.abs(half_turns.astype(jnp.float32) * np.float32(2**-31))
    return jnp.sqrt(-2 * jnp.log(u)) * a * jnp.polyval(jnp.array(SINE[::-1], jnp.float32), a * a)


def threefry(words: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Random words of a key and counters, by Threefry-2x32 with 20 rounds (Salmon et al. 2011).

    As JAX computes them, but in one expression, which takes a third of the time on a CPU.
    """
    keys = words[0], words[1], words[0] ^ words[1] ^ PARITY
    first, second = first + keys[0], second + keys[1]
    for number in range(5):
        for distance in map(np.uint32, ROTATIONS[number % 2]):
            first = first + second
            second = (second << distance | second >> np.uint32(32) - distance) ^ first
        first = first + keys[(number + 1) % 3]
        second = second + keys[(number + 2) % 3] + np.uint32(number + 1)
    return first, second
