"""Messages of single clients that travel coded: packed by a node, decoded and summed here."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedprox.deployment.round_part import RoundPart
from fedprox.messages.compression import Compression, client_key, word_of
from fedprox.messages.normals import random_key
from fedprox.messages.packing import packed, packed_shapes, unpacked
from fedprox.model import Params
from fedprox.simulation.devices.programs import jit_once
from fedprox.simulation.planning.batch_plan import round_key
from fedprox.simulation.planning.jobs import Jobs


class Coded:
    """How the messages of a method's clients travel.

    Args:
        setting: The codec.
        params: Shapes and types of the model's parameters.
        points: Number of sweep points.
    """

    def __init__(self, setting: Compression, params: Params, points: int) -> None:
        zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), params)
        flat, restore = ravel_pytree(zeros)
        codec = setting.codec_of(flat.size, word_of(flat))
        key = jax.eval_shape(lambda: jax.random.key(0))
        self.like = jax.eval_shape(codec.encode, flat, key)
        self.widths, self.points = codec.widths, points

        def weighted(code: Any, weight: jax.Array, noise_key: jax.Array, client: Any) -> Any:
            """A client's message at one sweep point, times its weight."""
            key = random_key(client_key(noise_key, client))
            message = restore(codec.decode(code, key))
            return jax.tree.map(lambda a: jnp.where(weight > 0, weight * a, 0), message)

        self.weighted = jit_once(jax.vmap(weighted, in_axes=(0, 0, None, None)))

    def shapes(self, jobs: int) -> Any:
        """What a node sends for so many clients, in shape."""
        return packed_shapes(self.like, self.widths, jobs, self.points)

    def packed(self, codes: Any, jobs: int) -> Any:
        """What a node sends for its first jobs, of codes with leaves (points, slots, ...)."""
        return packed(
            jax.tree.map(lambda a: np.moveaxis(np.asarray(a), 1, 0)[:jobs], codes), self.widths
        )

    def summed(self, part: RoundPart, jobs: Jobs, seed: int, t: int) -> RoundPart:
        """A node's part with the weighted sum of the messages that count.

        Args:
            part: The part, with the messages as they travel.
            jobs: The node's jobs.
            seed: Seed of the run.
            t: Round t.
        """
        codes, noise_key = unpacked(part.message, self.like, self.widths), round_key(seed, t)
        weights = (jobs.weight[:, None] * part.counts).astype(np.float32)
        messages: Sequence[Any] = [
            self.weighted(
                jax.tree.map(lambda a, j=j: a[j], codes), weights[j], noise_key, np.int32(client)
            )
            for j, client in enumerate(jobs.client.tolist())
        ]
        total = jax.tree.map(lambda *each: np.asarray(sum(each[1:], each[0])), *messages)
        return part._replace(message=total)
