"""Robust rules: what a server takes in place of the mean of its clients' messages.

A rule reads the n messages of a round as vectors x_1 ... x_n, each counted once, and withstands f
of them that are chosen by an adversary.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.errors import require, require_number, require_one_of, require_whole
from fedprox.model.variants import rank_of
from fedprox.parts.part import Columns, Part, Reduction, Setting
from fedprox.parts.products import by_products, counted, mean_product, shares

Rule = Literal[
    "mean",
    "product",
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "geometric-median",
    "centred-clipping",
]
"""What is taken of a round's messages."""

Before = Literal["nothing", "mixing", "bucketing"]
"""What happens to the messages before a rule."""

WEISZFELD_STEPS, CLIPPING_STEPS = 50, 5
"""Iterations of the geometric median, and of centred clipping."""

SMALLEST = 1e-6
"""Distance to the geometric median below which weights grow no more, relative to the median one."""


@dataclass(frozen=True)
class Aggregation(Part):
    r"""How the server makes one message of a round's.

    Rules other than the mean store all messages of a round on each device. Robust rules, all but
    "mean" and "product", count each message once, whatever its client's rows. With :math:`n`
    messages they withstand
    :math:`f = \lceil \text{faulty} \cdot n \rceil`, at most :math:`\lceil n / 2 \rceil - 1`.

    Attributes:
        rule: "mean": the weighted mean, which one message can move anywhere. "product", for models
            of :func:`fedprox.lora`: the same, but of adapters the mean of their products, as the
            best approximation at their rank, where "mean" averages the factors. "median": the
            median of each coordinate. "trimmed-mean": the mean of each coordinate without its f
            smallest and f largest values (both Yin et al. 2018). "krum": the message with the least
            sum of squared distances to its n - f - 2 nearest ones; "multi-krum": the mean of the
            n - f messages with the least such sums (Blanchard et al. 2017). "geometric-median": the
            point with the least sum of distances (Pillutla et al. 2022). "centred-clipping":
            :math:`v \leftarrow v + \frac{1}{n} \sum_i (x_i - v) \min(1, \tau / \|x_i - v\|)`, five
            times from 0 (Karimireddy et al. 2021, which begin with the last round's).
        faulty: Largest share of a round's messages that may be faulty, from 0 to below 1/2.
        before: "mixing" replaces each message by the mean of the n - f nearest to it, itself
            included (Allouah et al. 2023); "bucketing" averages consecutive messages of the drawn
            cohort (Karimireddy et al. 2022); f faulty ones may then be in as many buckets.
        bucket: Messages of a bucket, at least 2.
        radius: :math:`\tau` of centred clipping, above 0.
        ranks: With "product", the rank of each client's adapters, from 1 to that of the model, in a
            simulation. A client receives the best approximation of the server's products at its
            rank, and trains only that. None if all clients have the model's rank.

    Raises:
        InputError: If a setting is unknown or out of range.

    Example:
        >>> Aggregation("trimmed-mean", faulty=0.2).rule
        'trimmed-mean'

    References:
        Yin et al., `Byzantine-Robust Distributed Learning <https://arxiv.org/abs/1803.01498>`_,
        ICML 2018, Definitions 1 and 2; Blanchard et al., `Machine Learning with Adversaries
        <https://arxiv.org/abs/1703.02757>`_, NeurIPS 2017, section 4; Pillutla et al., `Robust
        Aggregation for Federated Learning <https://arxiv.org/abs/1912.13445>`_, 2022, Algorithm 2;
        Karimireddy et al., `Learning from History <https://arxiv.org/abs/2012.10333>`_, ICML 2021,
        Algorithm 2; Karimireddy et al., `Byzantine-Robust Learning on Heterogeneous Datasets via
        Bucketing <https://arxiv.org/abs/2006.09365>`_, ICLR 2022, Algorithm 1; Allouah et al.,
        `Fixing by Mixing <https://arxiv.org/abs/2302.01772>`_, AISTATS 2023, Algorithm 1.
    """

    rule: Rule = "mean"
    faulty: float = 0.0
    before: Before = "nothing"
    bucket: int = 2
    radius: float = 1.0
    ranks: Sequence[int] | None = None

    def __post_init__(self) -> None:
        require_one_of("aggregation.rule", self.rule, get_args(Rule))
        require_number("aggregation.faulty", self.faulty, most=0.5)
        require(self.faulty < 0.5, "aggregation.faulty = 0.5; it must be below 1/2")
        require_one_of("aggregation.before", self.before, get_args(Before))
        require_whole("aggregation.bucket", self.bucket, least=2)
        require_number("aggregation.radius", self.radius, positive=True)
        require(
            self.before == "nothing" or self.robust,
            f'aggregation.before = "{self.before}"; it is for robust rules',
        )
        if self.ranks is not None:
            require(self.rule == "product", 'aggregation.ranks: they are for rule = "product"')
            for k, rank in enumerate(self.ranks):
                require_whole(f"aggregation.ranks[{k}]", rank)
            object.__setattr__(self, "ranks", tuple(map(int, self.ranks)))

    @property
    def robust(self) -> bool:
        """Whether some dishonest clients cannot move what the rule gives far."""
        return self.rule in RULES

    @property
    def stores(self) -> bool:
        """Whether the rule reads all messages of a round together."""
        return self.rule != "mean"

    @cached_property
    def _rank_of(self) -> NDArray[np.int64]:
        """Rank of each client's adapters, if clients have different ones."""
        return np.array(self.ranks, np.int64)

    def columns(self, clients: NDArray[Any], count: int) -> Columns:
        """The ranks of the clients' adapters."""
        del count
        return {} if self.ranks is None else {"rank": self._rank_of[clients]}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        """Each client knows its rank."""
        del key
        return {} if self.ranks is None else {"rank": numbers["rank"]}

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The method whose clients send factors as they are, if their products are averaged."""
        del setting
        if self.rule != "product":
            return method
        return by_products(method, ranked=self.ranks is not None)

    def reduce(self, reduction: Reduction) -> Reduction:
        """The rule takes the place of the sum."""
        return reduction._replace(rule=self) if self.stores else reduction

    def check(self, setting: Setting, sizes: NDArray[np.int64]) -> None:
        """Raise `InputError` unless each client has a rank that the model's adapters have."""
        if self.ranks is None:
            return
        require(
            len(self.ranks) == len(sizes),
            f"aggregation.ranks has {len(self.ranks)} ranks; there are {len(sizes)} clients",
        )
        most = rank_of(setting.params)
        require(
            max(self.ranks) <= most,
            f"aggregation.ranks: {max(self.ranks)}; the model's adapters have rank {most}",
        )

    def of(self, messages: Any, counts: Any, weights: Any = None) -> Any:
        """What the rule makes of messages.

        Args:
            messages: Leaves (n, ...).
            counts: Which of them count, bool (n,).
            weights: Their weights, shape (n,), for "mean" and "product"; robust rules do not read
                them. None for equal ones.

        Returns:
            A message, leaves (...); zeros if none counts.

        >>> rule = Aggregation("median")
        >>> float(rule.of(jnp.array([1.0, 5.0, 2.0, 9.0]), jnp.array([True, True, True, False])))
        2.0
        """
        if not self.robust:
            weights = jnp.ones(counts.shape) if weights is None else weights
            of = mean_product if self.rule == "product" else weighted_mean
            return of(messages, counts, weights)
        rows = jax.vmap(lambda message: ravel_pytree(message)[0])(messages)
        restore = ravel_pytree(jax.tree.map(lambda a: a[0], messages))[1]
        rows, number = jnp.where(counts[:, None], rows, 0), counts.sum()
        faulty = jnp.minimum(
            jnp.ceil(self.faulty * number - 1e-6).astype(jnp.int32),
            jnp.maximum(number - 1, 0) // 2,
        )
        if self.before == "mixing":
            rows = mixed(rows, counts, faulty)
        if self.before == "bucketing":
            rows, counts = bucketed(rows, counts, self.bucket)
            faulty = jnp.minimum(faulty, jnp.maximum(counts.sum() - 1, 0) // 2)
        found = RULES[self.rule](self, rows, counts, faulty)
        return restore(jnp.where(number > 0, found, 0))


def weighted_mean(messages: Any, counts: jax.Array, weights: jax.Array) -> Any:
    """The weighted mean of the messages, leaves (n, ...), that count; zeros if none does."""
    share = shares(counts, weights)
    return jax.tree.map(
        lambda leaf: jnp.tensordot(share.astype(leaf.dtype), leaf, 1), counted(messages, counts)
    )


def _sorted(rows: jax.Array, counts: jax.Array) -> jax.Array:
    """Each coordinate in ascending order, those that do not count at the end."""
    return jnp.sort(jnp.where(counts[:, None], rows, jnp.inf), axis=0)


def mean(rows: jax.Array, counts: jax.Array) -> jax.Array:
    """The mean of the rows (n, d) that count, shape (d,)."""
    total = jnp.where(counts[:, None], rows, 0).sum(axis=0)
    return total / jnp.maximum(counts.sum(), 1)


def median(setting: Aggregation, rows: jax.Array, counts: jax.Array, faulty: Any) -> jax.Array:
    """The median of each coordinate; the mean of the middle two if their number is even."""
    del setting, faulty
    ordered, number = _sorted(rows, counts), jnp.maximum(counts.sum(), 1)
    return (ordered[(number - 1) // 2] + ordered[number // 2]) / 2


def trimmed_mean(
    setting: Aggregation, rows: jax.Array, counts: jax.Array, faulty: jax.Array
) -> jax.Array:
    """The mean of each coordinate without its f smallest and f largest values."""
    del setting
    rank = jnp.arange(len(rows))
    return mean(_sorted(rows, counts), (rank >= faulty) & (rank < counts.sum() - faulty))


def squared_distances(rows: jax.Array) -> jax.Array:
    """||x_i - x_j||^2, shape (n, n).

    By differences, since a product of all rows would lose small distances beside a large row.
    """
    return jax.lax.map(lambda row: jnp.sum((rows - row) ** 2, axis=1), rows)


def nearest(rows: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The squared distances (n, n) to the others that count, and their ranks from 0."""
    apart = jnp.where(counts[None], squared_distances(rows), jnp.inf)
    own = jnp.eye(len(rows), dtype=bool)
    order = jnp.argsort(jnp.where(own, -1.0, apart), axis=1)
    return apart, jnp.argsort(order, axis=1)


def scores(rows: jax.Array, counts: jax.Array, faulty: jax.Array) -> jax.Array:
    """Krum's sums of squared distances to the n - f - 2 nearest others, infinite if not counted."""
    apart, rank = nearest(rows, counts)
    most = jnp.maximum(counts.sum() - faulty - 2, 1)
    chosen = (rank >= 1) & (rank <= most) & counts[None]
    found = jnp.where(chosen, apart, 0).sum(axis=1)
    return jnp.where(counts, found, jnp.inf)


def krum(setting: Aggregation, rows: jax.Array, counts: jax.Array, faulty: jax.Array) -> jax.Array:
    """The row with the least score."""
    del setting
    return rows[jnp.argmin(scores(rows, counts, faulty))]


def multi_krum(
    setting: Aggregation, rows: jax.Array, counts: jax.Array, faulty: jax.Array
) -> jax.Array:
    """The mean of the n - f rows with the least scores."""
    del setting
    rank = jnp.argsort(jnp.argsort(scores(rows, counts, faulty)))
    return mean(rows, rank < counts.sum() - faulty)


def geometric_median(
    setting: Aggregation, rows: jax.Array, counts: jax.Array, faulty: Any
) -> jax.Array:
    """The point with the least sum of distances, by Weiszfeld's iteration from the median."""

    def step(_: Any, point: jax.Array) -> jax.Array:
        apart = jnp.linalg.norm(rows - point, axis=1)
        middle = jnp.nanmedian(jnp.where(counts, apart, jnp.nan))
        least = SMALLEST * jnp.where(middle > 0, middle, 1.0)
        weight = jnp.where(counts, 1 / jnp.maximum(apart, least), 0)
        return weight @ rows / jnp.maximum(weight.sum(), jnp.finfo(rows.dtype).tiny)

    return jax.lax.fori_loop(0, WEISZFELD_STEPS, step, median(setting, rows, counts, faulty))


def centred_clipping(
    setting: Aggregation, rows: jax.Array, counts: jax.Array, faulty: Any
) -> jax.Array:
    """The mean of the rows, clipped to a radius around it."""
    del faulty

    def step(_: Any, centre: jax.Array) -> jax.Array:
        apart = rows - centre
        norm = jnp.linalg.norm(apart, axis=1, keepdims=True)
        scale = jnp.where(norm > setting.radius, setting.radius / norm, 1.0)
        return centre + mean(scale * apart, counts)

    return jax.lax.fori_loop(0, CLIPPING_STEPS, step, jnp.zeros_like(rows[0]))


def mixed(rows: jax.Array, counts: jax.Array, faulty: jax.Array) -> jax.Array:
    """Each row replaced by the mean of the n - f nearest to it."""
    _, rank = nearest(rows, counts)
    kept = counts.sum() - faulty
    weight = (rank < kept) & counts[None]
    return weight @ rows / jnp.maximum(kept, 1)


def bucketed(rows: jax.Array, counts: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """The means of consecutive rows that count, and which of them there are."""
    buckets = math.ceil(len(rows) / size)
    bucket = jnp.where(counts, (jnp.cumsum(counts) - 1) // size, buckets)
    inside = bucket[None] == jnp.arange(buckets)[:, None]
    number = inside.sum(axis=1)
    return inside @ rows / jnp.maximum(number, 1)[:, None], number > 0


RULES: dict[str, Callable[[Aggregation, jax.Array, jax.Array, jax.Array], jax.Array]] = {
    "median": median,
    "trimmed-mean": trimmed_mean,
    "krum": krum,
    "multi-krum": multi_krum,
    "geometric-median": geometric_median,
    "centred-clipping": centred_clipping,
}
