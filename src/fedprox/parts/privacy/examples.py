"""Privacy of examples: local steps take clipped gradients of single rows, with noise.

The gradient of a matrix is a product over the positions at which an example meets it: one for a
dense layer, one for each patch of a convolution. The norm of such a product, and the weighted sum
of the products of all examples, follow from the two factors. So the large matrices of dense layers
never have a gradient for each example, and a step costs little more than one without clipping. The
gradients of other parameters are formed for each example.

An example's part of the sum must not exceed its bound, also where its numbers cancel. So an
example is scaled by an upper bound of the norm of what it adds, with all rounding errors.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import Batch, HParams
from fedprox.features import Features
from fedprox.jax_internals import (
    Program,
    attempt,
    equations_of,
    is_literal,
    repeat,
    results_of,
    run_program,
    with_results,
)
from fedprox.model import Params
from fedprox.parts.part import LocalGradient, random_key
from fedprox.parts.privacy.numerics import EXAMPLES, norm_bound, product_bound, standard_normals
from fedprox.precision import real_type

EXAMPLES_KEY = 0x65786D70
"""Number folded into a tick's random key for the noise that hides examples."""


@dataclass(frozen=True)
class NoisedGradient(LocalGradient):
    """The mean of clipped gradients of rows, with noise.

    Attributes:
        clip: Largest norm of the gradient of an example.
        noise: Standard deviation of the noise in the sum of a mini-batch's gradients.
    """

    clip: float
    noise: float

    @property
    def completes(self) -> bool:
        """Whether there is noise."""
        return self.noise > 0

    def gradient(
        self, loss: Callable[..., jax.Array], params: Params, batch: Batch, given: Any
    ) -> Params:
        """The sum of the rows' clipped gradients over the size of the mini-batch."""
        x, y, weights, key = batch
        one = jnp.ones(1, weights.dtype)
        keys = None if key is None else jax.random.key_data(jax.random.split(key, len(y)))

        def of_row(params: Params, x: Features, y: jax.Array, words: jax.Array | None) -> jax.Array:
            rows = jax.tree.map(lambda a: a[None], x)
            return loss(params, Batch(rows, y[None], one, random_key(words)), given)

        total = clipped_sum(of_row, self.clip, params, x, y, keys)(weights > 0)
        return jax.tree.map(lambda a: weights.max() * a, total)

    def completed(self, gradient: Params, hparams: HParams, size: Any, key: jax.Array) -> Params:
        """The gradient of a mini-batch with noise of its own."""
        key = jax.random.fold_in(key, EXAMPLES_KEY)
        for word in (0, 1):  # no two runs of a comparison share noise
            key = jax.random.fold_in(key, hparams["noise_words"][word])
        normals = standard_normals(jax.random.key_data(key), EXAMPLES, gradient)
        scale = self.noise / size
        return jax.tree.map(lambda g, n: g + scale * n, gradient, normals)


RESHAPING = "transpose", "reshape", "squeeze", "expand_dims"
"""Operations that only order the numbers of a gradient anew."""


EXACT = jax.lax.Precision.HIGHEST
"""All digits of each factor, which GPUs and TPUs otherwise round."""


class Factors(NamedTuple):
    """How a gradient is a product of two arrays.

    Attributes:
        at: Where the two factors are among what is computed.
        contracted: Their axes that are summed over.
        after: The operations that order the product's numbers as the parameter's, in their order.
    """

    at: tuple[int, int]
    contracted: tuple[tuple[int, ...], tuple[int, ...]]
    after: tuple[Any, ...]


def clipped_sum(
    loss: Callable[..., jax.Array], clip: float, params: Params, *examples: Any
) -> Callable[[jax.Array], Params]:
    r"""The sum of the gradients of examples, each scaled to a norm of at most :math:`C`.

    An example whose gradient is not finite counts as zero.

    >>> x = jnp.array([[3.0, 4.0], [0.3, 0.4], [9.0, 9.0]])
    >>> total = clipped_sum(lambda w, each: w @ each, 1.0, jnp.zeros(2), x)
    >>> [round(float(each), 5) for each in total(jnp.array([True, True, False]))]
    [0.9, 1.2]
    """
    examples = jax.tree.map(jnp.asarray, examples)  # of the types that JAX computes with
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), examples)
    closed, shapes = jax.make_jaxpr(jax.grad(loss), return_shape=True)(params, *one)
    leaves, structure = jax.tree.flatten(shapes)
    split = attempt("norms of gradients from their factors", _split, closed, len(leaves))
    found, program = ([*range(len(leaves))], closed) if split is None else split
    first = jax.tree.leaves(params)

    def of_one(example: Any) -> list[Any]:
        return run_program(program, [*first, *jax.tree.leaves(example)])

    # XLA must not simplify the numbers in one way for the norm, and in another for the sum
    computed = jax.lax.optimization_barrier(jax.vmap(of_one)(examples))
    bounds = jnp.stack([_bound(each, computed) for each in found], axis=1)
    norm = jax.vmap(norm_bound)(bounds)
    scale = jnp.where(norm > clip, clip / norm, 1.0)

    def total(real: jax.Array) -> Params:
        counts = real & jnp.isfinite(norm)
        sums = [_weighted(each, computed, jnp.where(counts, scale, 0.0), counts) for each in found]
        return jax.tree.unflatten(structure, sums)

    return total


def _split(closed: Program, gradients: int) -> tuple[list[Factors | int], Program]:
    """How to compute each gradient from the results of a program, and that program."""
    wanted: list[Any] = []
    found = [_factors(closed, k, wanted) for k in range(gradients)]
    return found, with_results(closed, wanted)


def _factors(closed: Program, k: int, wanted: list[Any]) -> Factors | int:
    """How to compute gradient k, whose variables are appended to what is `wanted`."""
    made_by = {v: eqn for eqn in equations_of(closed) for v in eqn.outvars}
    gradient: Any = results_of(closed)[k]
    variable = gradient
    after: list[Any] = []
    while not is_literal(variable):
        eqn = made_by.get(variable)
        if eqn is None or eqn.primitive.name not in (*RESHAPING, "dot_general"):
            break
        if eqn.primitive.name != "dot_general":
            after.insert(0, eqn)
            variable = eqn.invars[0]
            continue
        contracted, batched = eqn.params["dimension_numbers"]
        if any(batched) or any(map(is_literal, eqn.invars)):
            break
        positions = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted[0])
        sizes = [v.aval.size // positions for v in eqn.invars]
        if positions * sum(sizes) >= math.prod(sizes):
            break
        wanted += eqn.invars
        at = len(wanted) - 2, len(wanted) - 1
        return Factors(at, contracted, tuple(after))
    wanted.append(gradient)
    return len(wanted) - 1


def _matrices(factors: Factors, computed: list[Any]) -> list[jax.Array]:
    """The two factors of each example as matrices, (B, positions, numbers)."""
    matrices = []
    for at, axes in zip(factors.at, factors.contracted, strict=True):
        array = computed[at].astype(real_type())
        inner = [axis + 1 for axis in axes]
        array = jnp.moveaxis(array, inner, range(1, 1 + len(inner)))
        positions = math.prod(array.shape[1 : 1 + len(inner)])
        matrices.append(array.reshape(len(array), positions, -1))
    return matrices


def _bound(found: Factors | int, computed: list[Any]) -> jax.Array:
    """An upper bound of the norm of each example's gradient as it is summed, (B,)."""
    if isinstance(found, int):
        return jax.vmap(norm_bound)(computed[found])
    return product_bound(*_matrices(found, computed))


def _weighted(
    found: Factors | int, computed: list[Any], weights: jax.Array, counts: jax.Array
) -> jax.Array:
    """The weighted sum of the examples' gradients, those that do not count left out."""

    def kept(array: jax.Array) -> jax.Array:  # zero times infinity is not zero
        return jnp.where(counts.reshape(-1, *[1] * (array.ndim - 1)), array, 0.0)

    if isinstance(found, int):
        return jnp.tensordot(weights, kept(computed[found]), axes=1, precision=EXACT)
    a, b = (kept(each) for each in _matrices(found, computed))
    total = jnp.einsum("bpm,bpn->mn", weights[:, None, None] * a, b, precision=EXACT)
    return _ordered(found, computed, total)


def _ordered(factors: Factors, computed: list[Any], product: jax.Array) -> jax.Array:
    """A product in the order of the parameter's numbers."""
    shape: list[int] = []
    for at, axes in zip(factors.at, factors.contracted, strict=True):
        of_example = computed[at].shape[1:]
        shape += [size for axis, size in enumerate(of_example) if axis not in axes]
    product = product.reshape(shape)
    for eqn in factors.after:
        product = repeat(eqn, product)
    return product
