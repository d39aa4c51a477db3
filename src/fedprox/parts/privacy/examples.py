"""Privacy of examples as a part: local steps take clipped gradients of single rows, with noise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import Batch, HParams
from fedprox.model import Params
from fedprox.parts.normals import random_key, standard_normals
from fedprox.parts.part import LocalGradient, Part, Taken
from fedprox.parts.privacy.accounting import Steps, calibrated_steps
from fedprox.parts.privacy.clients import EXAMPLES
from fedprox.parts.privacy.clipped import clipped_sum
from fedprox.parts.privacy.setting import Privacy

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
        keys = None if key is None else jax.random.key_data(jax.random.split(key, len(x)))

        def of_row(
            params: Params, x: jax.Array, y: jax.Array, words: jax.Array | None
        ) -> jax.Array:
            return loss(params, Batch(x[None], y[None], one, random_key(words)), given)

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


@dataclass(frozen=True)
class HiddenExamples(Part):
    """Privacy of the examples of clients.

    Attributes:
        privacy: The setting.
    """

    privacy: Privacy

    own_noise = True
    """Whether each sweep point of each method has noise of its own."""

    samples_rows = True
    """Each row is drawn on its own, as the accounting of a step says."""

    def local_gradient(self, taken: Taken) -> LocalGradient | None:
        """Local steps take clipped gradients of rows."""
        multiplier = noise_of_steps(self.privacy, taken)
        # without a bound there is no noise
        deviation = multiplier * self.privacy.clip if multiplier else 0.0
        return NoisedGradient(self.privacy.clip, deviation)


def noise_of_steps(privacy: Privacy, taken: Taken) -> float:
    """The noise multiplier of a step, for the client with the most to hide among all seeds."""
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    return calibrated_steps(privacy, tuple(Steps(*each) for each in taken()))
