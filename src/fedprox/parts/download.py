r"""What the server sends in fewer bits, as a transformation of a method.

The server keeps its state in full and sends a rounded model. In rows of n numbers, which share one
scale, a number :math:`x` is sent as

.. math:: q = \operatorname{round}(x / s), \qquad s = \max_i |x_i| / (2^{b-1} - 1),

so that it arrives with an error of at most :math:`s / 2` (Caldas et al., `Expanding the Reach of
Federated Learning by Reducing Client Resource Requirements <https://arxiv.org/abs/1812.07210>`_,
2018, section 3.1, without its random transform). Clients start from what arrives and send their
change from there, which the server adds to its model in full: errors do not add up over rounds.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedprox.algorithms.base import (
    Algorithm,
    ClientContext,
    HParams,
    Message,
    State,
)
from fedprox.algorithms.lift import lift
from fedprox.jax_internals import inputs_returned
from fedprox.model import Params


class Sent(NamedTuple):
    """The server's state, and the model as it is sent.

    Attributes:
        state: The method's state.
        whole: q, whole numbers (d,).
        scale: s of each row, (rows, 1).
    """

    state: State
    whole: jax.Array
    scale: jax.Array


def sent_bits(size: int, bits: int, row: int, word: int = 32) -> int:
    """Bits of a model of so many numbers on its way.

    >>> sent_bits(1000, 8, 512)
    8064
    """
    return size * bits + math.ceil(size / row) * word


def rounded(flat: jax.Array, bits: int, row: int) -> tuple[jax.Array, jax.Array]:
    """The whole numbers and scales of some numbers (d,).

    >>> whole, scale = rounded(jnp.array([0.5, -1.0, 0.25]), 8, 2)
    >>> whole.tolist(), arrived(whole, scale, 2).round(2).tolist()
    ([64, -127, 127], [0.5, -1.0, 0.25])
    """
    most, rows = 2 ** (bits - 1) - 1, _rows(flat, row)
    scale = jnp.abs(rows).max(axis=1, keepdims=True) / most
    whole = jnp.round(jnp.where(scale > 0, rows / scale, 0.0))
    return whole.reshape(-1)[: flat.size].astype(f"int{bits}"), scale


def arrived(whole: jax.Array, scale: jax.Array, row: int) -> jax.Array:
    """The numbers (d,) that arrive."""
    return (_rows(whole.astype(scale.dtype), row) * scale).reshape(-1)[: whole.size]


def _rows(flat: jax.Array, row: int) -> jax.Array:
    return jnp.pad(flat, (0, -flat.size % row)).reshape(-1, row)


def downloaded(algorithm: Algorithm, bits: int, row: int, params: Params) -> Algorithm:
    """The same method, whose clients receive the model in 8 or 16 bits a number."""
    at = places(algorithm, params)
    restore = ravel_pytree(jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), params))[1]

    def received(state: Sent) -> Params:
        return restore(arrived(state.whole, state.scale, row))

    def seen(state: Sent, _: ClientContext) -> State:
        """The state as clients have it, with the model that has arrived."""
        leaves, structure = jax.tree.flatten(state.state)
        for place, leaf in zip(at, jax.tree.leaves(received(state)), strict=True):
            leaves[place] = leaf
        return jax.tree.unflatten(structure, leaves)

    def sent(state: State, _: Params) -> Sent:
        return Sent(state, *rounded(ravel_pytree(algorithm.server.params(state))[0], bits, row))

    inner = lift(algorithm, server=sent, seen=seen)

    def update(state: Sent, mean: Message, hparams: HParams) -> Sent:
        return sent(inner.server.update(state, mean, hparams).state, None)

    return inner._replace(
        server=inner.server._replace(
            params=received, evaluated=inner.server.evaluated or inner.server.params, update=update
        )
    )


def places(algorithm: Algorithm, params: Params) -> list[int]:
    """Which leaves of a method's state are the parameters that it sends; -1 for none of them."""
    return inputs_returned(algorithm.server.params, algorithm.state_like(params))
