"""Privacy of clients as a transformation of a method: clip what clients send, and add noise once.

The engine sums the clipped messages with the equal weights 1 / (q N), whoever came, so that a
client changes the sum by at most C / (q N). The noise is added here, to that sum, before the
method's own update reads it. A client's state stays with the client: it is neither clipped nor
released. How many clients came is not public, so the method reads the fixed share q in place of the
share that took part.

A method with a first exchange releases two sums a round: gradients, then messages. Both are clipped
to the same norm and get noise of their own.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedprox.algorithms.base import (
    ROUNDING,
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    State,
    add_scaled,
)
from fedprox.algorithms.lift import lift
from fedprox.model import Params
from fedprox.parts.faults import Faults
from fedprox.parts.normals import standard_normals
from fedprox.parts.part import Reduction, Setting
from fedprox.parts.privacy.accounting import Mechanism, mechanism_of
from fedprox.parts.privacy.norms import norm_bound
from fedprox.parts.privacy.setting import CLIPS, Hiding, Privacy
from fedprox.precision import real_type


class Guarded(NamedTuple):
    """A method's state and the current clipping norm, a scalar."""

    state: State
    clip: jax.Array


class Clipped(NamedTuple):
    """What a client sends.

    Attributes:
        message: The method's message, of a norm of at most the clipping norm.
        within: 1/2 if the message was not clipped, else -1/2; None if the norm does not adapt.
    """

    message: Message
    within: jax.Array | None


def clip_to(norm: jax.Array | float, tree: Any) -> tuple[Any, jax.Array]:
    """A tree scaled to at most a norm, and an upper bound of its norm before.

    A tree with a number that is not finite stays so, and screening leaves it out of the sum.

    >>> clipped, before = clip_to(1.0, {"a": jnp.array([3.0]), "b": jnp.array([4.0])})
    >>> round(float(clipped["a"][0]), 4), round(float(before), 4)
    (0.6, 5.0)
    """
    before = norm_bound(tree)
    scale = jnp.where(before > norm, norm / before, 1.0)
    return jax.tree.map(lambda a: a * scale, tree), before


def possible(hparams: HParams, mean: Clipped, steps: jax.Array) -> jax.Array:
    """The mean of numbers that are 1/2 or -1/2 is between them."""
    del hparams, steps
    return ~(jnp.abs(0.0 if mean.within is None else mean.within) > 0.5 * (1 + ROUNDING))


MESSAGES, GRADIENTS, EXAMPLES = range(3)
"""Purposes of noise within a round, or a local step."""


def normals_of(hparams: HParams, purpose: int, mean: Any) -> Any:
    """The standard normal numbers that are given for a mean, else those of the round's key."""
    given = hparams.get("noise")
    return standard_normals(hparams["noise_key"], purpose, mean) if given is None else given


def releases(algorithm: Algorithm) -> int:
    """How many noised sums a round of a method releases.

    >>> from fedprox.algorithms import fedavg, feddane
    >>> releases(fedavg()), releases(feddane(mu=0.1))
    (1, 2)
    """
    return 1 if algorithm.first.exchange is None else 2


def private(
    algorithm: Algorithm, privacy: Privacy, noise_multiplier: float, cohort: int, clients: int
) -> Algorithm:
    r"""The same method with clipped messages and noise.

    The server's functions read ``hparams["noise_key"]``, the random key of the round and sweep
    point; or, if it is there, ``hparams["noise"]``: standard normal numbers with the structure of
    the mean that they are added to.

    References:
        McMahan et al., `Learning Differentially Private Recurrent Language Models
        <https://arxiv.org/abs/1710.06963>`_, ICLR 2018, Algorithm 1; Andrew et al.,
        `Differentially Private Learning with Adaptive Clipping
        <https://arxiv.org/abs/1905.03871>`_, NeurIPS 2021, Algorithm 1.
    """
    adaptive = privacy.adaptive_clip
    z = privacy.update_noise(noise_multiplier)

    def public(hparams: HParams, _: ClientContext | None) -> HParams:
        share = jnp.full_like(hparams["participation"], cohort / clients)
        return {**hparams, "participation": share}

    def guarded(state: State, _: Params) -> Guarded:
        return Guarded(state, jnp.asarray(privacy.clip, real_type()))

    inner = lift(algorithm, server=guarded, hparams=public)

    def message(
        state: Guarded, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Clipped, ClientState]:
        sent, own_state = inner.client.message(state, hparams, context, solution)
        clipped, norm = clip_to(state.clip, sent)
        within = None if adaptive is None else jnp.where(norm <= state.clip, 0.5, -0.5)
        return Clipped(clipped, within), own_state

    def update(state: Guarded, mean: Clipped, hparams: HParams) -> Guarded:
        clip, (sent, within) = state.clip, mean
        if z:
            normals: Clipped = normals_of(hparams, MESSAGES, mean)
            sent = add_scaled(sent, z * clip / cohort, normals.message)
            if adaptive is not None:
                within = add_scaled(within, adaptive.count_noise / cohort, normals.within)
        if adaptive is not None and within is not None:
            clip = clip * jnp.exp(-adaptive.rate * (within + 0.5 - adaptive.quantile))
            clip = jnp.clip(clip, *CLIPS)
        after: Guarded = inner.server.update(state, sent, hparams)
        return after._replace(clip=clip)

    def exchange(state: Guarded, mean: Params, hparams: HParams) -> Guarded:
        assert inner.first.exchange is not None
        if z:
            mean = add_scaled(mean, z * state.clip / cohort, normals_of(hparams, GRADIENTS, mean))
        return inner.first.exchange(state, mean, hparams)

    return inner._replace(
        average="clients",
        client=inner.client._replace(
            message=message,
            size=lambda sent: algorithm.client.size(sent.message),
            possible=possible,
        ),
        server=inner.server._replace(update=update),
        first=inner.first._replace(
            exchange=None if algorithm.first.exchange is None else exchange,
            sent=lambda gradient: clip_to(privacy.clip, gradient)[0],
        ),
    )


@dataclass(frozen=True)
class HiddenClients(Hiding):
    """Privacy of clients."""

    @property
    def keyed(self) -> bool:
        """Whether a round needs a random key: for its noise."""
        return True

    independent = True
    """What other clients have, and how many came, must not show."""

    always_updates = True
    """Without messages, noise is still released."""

    def mechanism(self, method: Algorithm, setting: Setting) -> Mechanism:
        """What a run of a method releases about its clients."""
        _, clients, per_round, sampling, rounds, _ = setting
        return mechanism_of(self.privacy, clients, per_round, sampling, rounds, releases(method))

    def capacity(self, method: Algorithm, setting: Setting) -> int | None:
        """Most clients of a round for which privacy accounts."""
        return self.mechanism(method, setting).capacity

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The method with clipped messages and noise."""
        what = self.mechanism(method, setting)
        noise = what.noise_multiplier, what.clients_per_round, what.clients
        return private(method, self.privacy, *noise)

    def reduce(self, reduction: Reduction) -> Reduction:
        """What is not finite counts as zero, with or without `Faults`."""
        screen = reduction.screen or Faults(norm=math.inf)
        return reduction._replace(screen=screen, fixed=True)

    def hparams(self, hparams: HParams, key: Any) -> HParams:
        """With the random key of the round and sweep point."""
        if key is None or "noise_words" not in hparams:  # as on a node, which adds no noise
            return hparams
        words = hparams["noise_words"]
        own = jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])
        return {**hparams, "noise_key": jax.random.key_data(own)}
