"""Attacks: what dishonest clients send, for experiments with robust rules."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import PositiveFloat, Within, check_fields, require
from fedprox.federation import Federation, Rows
from fedprox.parts.part import Columns, Part, Reduction, beside
from fedprox.streams import Purpose, check_seed, generator

Kind = Literal["sign-flip", "label-flip", "noise", "a-little-is-enough", "inner-product"]
"""The kind of attack."""


@dataclass(frozen=True)
class Attack(Part):
    r"""Dishonest clients in a simulation, which send false messages or train on false labels.

    The attackers are the same clients in all rounds and runs. They know all honest messages of
    their round, with mean :math:`\mu` and standard deviation :math:`\sigma` of each coordinate.

    Attributes:
        kind: The attackers' messages, with z the scale: "sign-flip": -z times their own message.
            "noise": their message with z times standard normal numbers added. "a-little-is-enough":
            :math:`\mu - z \sigma` (Baruch et al. 2019). "inner-product": :math:`-z \mu` (Xie et al.
            2019). "label-flip": they are honest, but the classes c of their training rows are C - 1
            - c.
        share: Share of the clients that attack, above 0 and below 1, rounded to whole clients.
        scale: z, above 0.
        seed: Seed by which the attackers are drawn.

    Raises:
        InputError: If a setting is unknown or out of range.

    Example:
        >>> Attack("sign-flip", share=0.25).clients(8).sum()
        np.int64(2)

    References:
        Baruch et al., `A Little Is Enough <https://arxiv.org/abs/1902.06156>`_, NeurIPS 2019,
        Algorithm 3; Xie et al., `Fall of Empires <https://arxiv.org/abs/1903.03936>`_, UAI 2019,
        section 4.
    """

    kind: Kind
    share: Annotated[float, Within(below=1, positive=True)]
    scale: PositiveFloat = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields("attack", self)
        check_seed(self.seed, "attack.seed")

    @property
    def changes_messages(self) -> bool:
        """Whether attackers change what they send, and not their data."""
        return self.kind != "label-flip"

    def clients(self, count: int) -> NDArray[np.bool_]:
        """Which of `count` clients attack."""
        return _attackers(self.seed, self.share, count).copy()

    @property
    def keyed(self) -> bool:
        """Whether attackers send random numbers."""
        return self.kind == "noise"

    def columns(self, clients: NDArray[Any], federation: Federation) -> Columns:
        """1 for the clients that change their messages, else 0."""
        if not self.changes_messages:
            return {}
        attackers = _attackers(self.seed, self.share, len(federation))
        return {"attacks": attackers[clients].astype(np.int64)}

    def reduce(self, reduction: Reduction) -> Reduction:
        """Attackers see the messages of their round, and change their own."""
        return reduction._replace(change=self) if self.changes_messages else reduction

    def changed(
        self, messages: Any, counts: jax.Array, numbers: Mapping[str, Any], key: jax.Array | None
    ) -> Any:
        """The messages of a round as they are sent, given the clients' columns."""
        return self.sent(messages, counts, numbers["attacks"] > 0, key)

    def data(self, federation: Federation) -> Federation:
        """The federation whose attackers have flipped labels, if that is the attack.

        Raises:
            InputError: If labels are not classes.
        """
        if self.changes_messages:
            return federation
        require(federation.classes > 0, 'attack.kind = "label-flip"; the labels are not classes')
        train = federation.train
        rows = np.repeat(self.clients(len(federation)), train.sizes)
        flip = beside(rows, train.y) & (train.y >= 0)
        y = np.where(flip, federation.classes - 1 - train.y, train.y).astype(train.y.dtype)
        return replace(federation, train=Rows(train.x, y, train.offsets))

    def sent(
        self, messages: Any, counts: jax.Array, attacks: jax.Array, key: jax.Array | None
    ) -> Any:
        """The messages of a round, with those of the attackers.

        Args:
            messages: Honest messages, leaves (n, ...).
            counts: Which of them there are, bool (n,).
            attacks: Which clients attack, bool (n,).
            key: Random key of the round.

        >>> attack = Attack("inner-product", share=0.3)
        >>> third = jnp.array([False, False, True])
        >>> attack.sent(jnp.array([1.0, 3.0, 9.0]), jnp.ones(3, bool), third, None).tolist()
        [1.0, 3.0, -2.0]
        """
        honest = counts & ~attacks
        number = jnp.maximum(honest.sum(), 1)

        def leaf_sent(leaf: jax.Array, key: jax.Array | None) -> jax.Array:
            mean = jnp.where(beside(honest, leaf), leaf, 0).sum(axis=0) / number
            if self.kind == "sign-flip":
                changed = -self.scale * leaf
            elif self.kind == "noise":
                assert key is not None
                changed = leaf + self.scale * jax.random.normal(key, leaf.shape, leaf.dtype)
            elif self.kind == "inner-product":
                changed = jnp.broadcast_to(-self.scale * mean, leaf.shape)
            else:
                square = jnp.where(beside(honest, leaf), (leaf - mean) ** 2, 0)
                deviation = jnp.sqrt(square.sum(axis=0) / number)
                changed = jnp.broadcast_to(mean - self.scale * deviation, leaf.shape)
            return jnp.where(beside(attacks & counts, leaf), changed, leaf)

        leaves, structure = jax.tree.flatten(messages)
        keys: Any = [None] * len(leaves) if key is None else jax.random.split(key, len(leaves))
        return jax.tree.unflatten(structure, map(leaf_sent, leaves, keys))


@lru_cache(maxsize=8)
def _attackers(seed: int, share: float, count: int) -> NDArray[np.bool_]:
    """Which of `count` clients attack."""
    attacks = np.zeros(count, bool)
    order = generator(seed, Purpose.ATTACK).permutation(count)
    attacks[order[: round(share * count)]] = True
    return attacks
