r"""The mean of adapters' products, in place of the means of their factors.

The mean of :math:`A_k B_k` is not the product of the means of :math:`A_k` and :math:`B_k`: it lacks
:math:`\frac{1}{n} \sum_k (A_k - \bar A) (B_k - \bar B)`. Clients send their factors, not how far
they moved, and the server takes those of the best approximation of the mean product at their rank.
That is FlexLoRA (Bai et al., `Federated Fine-tuning of Large Language Models under Heterogeneous
Tasks and Client Resources <https://arxiv.org/abs/2402.11505>`_, NeurIPS 2024), without the full
matrix. The exact mean has up to n times the rank, so its residual would have to be sent to all
clients and become part of their bases (FedEx-LoRA, FLoRA), which here never change.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    add,
    difference,
)
from fedprox.algorithms.lift import lift
from fedprox.model import Params
from fedprox.model.variants import FACTORS, adapted
from fedprox.parts.sums import beside
from fedprox.subproblem import Subproblem


def by_products(algorithm: Algorithm, *, ranked: bool = False) -> Algorithm:
    """The same method, whose clients send the factors of adapters as they are.

    A client of a lower rank receives the leading columns of A and rows of B, which are the best
    approximation of the server's product at its rank, and zeros for the others. It trains those
    alone, so what is zero stays zero.
    """

    def received(state: Params, context: ClientContext) -> Params:
        return _at_rank(state, context.columns["rank"])

    def message(
        state: Params, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Message, ClientState]:
        sent, own = difference(state, hparams, context, solution)
        return sent | {name: solution.params[name] for name in _factors(sent)}, own

    def update(state: Params, mean: Params, hparams: HParams) -> Params:
        return add(state, mean, hparams) | {name: mean[name] for name in _factors(mean)}

    averaged = algorithm._replace(
        client=algorithm.client._replace(message=message),
        server=algorithm.server._replace(update=update),
    )
    if not ranked:
        return averaged
    inner = lift(averaged, seen=received)

    def subproblem(state: Params, hparams: HParams, context: ClientContext) -> Subproblem:
        problem = inner.subproblem(state, hparams, context)
        ones = jax.tree.map(lambda w: jnp.ones(w.shape, bool), state)
        return problem._replace(trained=received(ones, context))

    return inner._replace(subproblem=subproblem, server=inner.server._replace(received=received))


def _at_rank(params: Params, rank: jax.Array) -> Params:
    """The parameters with zeros in the factors of adapters beyond a rank."""
    found = dict(params)
    for name in adapted(params):
        a, b = (name + factor for factor in FACTORS)
        within = jnp.arange(params[a].shape[1]) < rank
        found[a] = jnp.where(within, params[a], 0)
        found[b] = jnp.where(within[:, None], params[b], 0)
    return found


def _factors(params: Params) -> list[str]:
    """The names of all factors."""
    return [name + factor for name in adapted(params) for factor in FACTORS]


def mean_product(messages: dict[str, Any], counts: jax.Array, weights: jax.Array) -> Message:
    """Factors of the mean of products at their rank, and the means of all other arrays.

    >>> a, b = jnp.eye(2)[:, :, None], jnp.eye(2)[:, None, :]  # products diag(1, 0) and diag(0, 1)
    >>> both = mean_product({"w.A": a, "w.B": b}, jnp.ones(2, bool), jnp.array([1.0, 3.0]))
    >>> bool(jnp.allclose(both["w.A"] @ both["w.B"], jnp.diag(jnp.array([0, 0.75])), atol=1e-6))
    True
    """
    with jax.default_matmul_precision("highest"):
        return _mean_product(messages, counts, weights)


def shares(counts: jax.Array, weights: jax.Array) -> jax.Array:
    """The shares (n,) of the messages that count in their weight; zeros if none does."""
    share = jnp.where(counts, weights, 0)
    return share / jnp.maximum(share.sum(), jnp.finfo(share.dtype).tiny)


def counted(messages: Any, counts: jax.Array) -> Any:
    """The messages, leaves (n, ...), with zeros for those that do not count."""
    return jax.tree.map(lambda leaf: jnp.where(beside(counts, leaf), leaf, 0), messages)


def _mean_product(messages: dict[str, Any], counts: jax.Array, weights: jax.Array) -> Message:
    share, kept = shares(counts, weights), counted(messages, counts)
    found = {name: jnp.tensordot(share, array, 1) for name, array in kept.items()}
    for name in adapted(messages):
        first, second = (name + factor for factor in FACTORS)
        a, b = kept[first], kept[second]
        rows, rank, columns = a.shape[1], a.shape[2], b.shape[2]
        # the mean is left @ right, whose singular vectors are in the ranges of both
        left = jnp.moveaxis(share[:, None, None] * a, 0, 1).reshape(rows, -1)
        right = b.reshape(-1, columns)
        (q, upper), (p, lower) = jnp.linalg.qr(left), jnp.linalg.qr(right.T)
        u, values, v = jnp.linalg.svd(upper @ lower.T, full_matrices=False)
        # A keeps its size, whose square is the mean of the clients', and has full rank also where
        # the products are zero
        length = jnp.sqrt(share @ jnp.sum(a**2, axis=(1, 2)) / rank)
        length = jnp.where(length > 0, length, 1)
        found[first] = length * q @ u[:, :rank]
        found[second] = values[:rank, None] / length * (v[:rank] @ p.T)
    return found
