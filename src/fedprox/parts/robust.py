r"""Robust rules: what a server takes in place of the mean of its clients' messages.

A rule reads the n messages of a round as vectors x_1 ... x_n, each counted once, and withstands f
of them that are chosen by an adversary.

The mean of adapters' products, in place of the means of their factors.

The mean of :math:`A_k B_k` is not the product of the means of :math:`A_k` and :math:`B_k`: it lacks
:math:`\frac{1}{n} \sum_k (A_k - \bar A) (B_k - \bar B)`. Clients send their factors, not how far
they moved, and the server takes those of the best approximation of the mean product at their rank.
That is FlexLoRA (Bai et al., `Federated Fine-tuning of Large Language Models under Heterogeneous
Tasks and Client Resources <https://arxiv.org/abs/2402.11505>`_, NeurIPS 2024), without the full
matrix. The exact mean has up to n times the rank. So its residual would have to be sent to all
clients and become part of their bases (FedEx-LoRA, FLoRA), which here never change.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

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
from fedprox.errors import PositiveFloat, Within, check_fields, require, require_whole
from fedprox.federation import Federation
from fedprox.model import Params
from fedprox.model.variants import FACTORS, adapted, rank_of
from fedprox.parts.part import Columns, Part, Reduction, Setting, beside
from fedprox.subproblem import Subproblem

RuleName = Literal[
    "mean",
    "product",
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "geometric-median",
    "centred-clipping",
]
"""The rule by which a round's messages become one."""

Before = Literal["nothing", "mixing", "bucketing"]
"""The treatment of the messages before a rule."""

WEISZFELD_STEPS, CLIPPING_STEPS = 50, 5
"""Iterations of the geometric median, and of centred clipping."""

SMALLEST = 1e-6
"""Distance to the geometric median below which weights grow no more, relative to the median one."""


@dataclass(frozen=True)
class Aggregation(Part):
    r"""How the server combines the messages of a round.

    Rules other than the mean store all messages of a round on each device. Robust rules, all but
    "mean" and "product", count each message once, whatever its client's rows. With :math:`n`
    messages they withstand
    :math:`f = \lceil \text{faulty} \cdot n \rceil`, at most :math:`\lceil n / 2 \rceil - 1`.

    Attributes:
        rule: "mean": the weighted mean, which one message can move anywhere. "product", for models
            of :func:`fedprox.lora`: the weighted mean of the adapters' products, approximated at
            their rank; "mean" averages their factors. "median": the median of each coordinate.
            "trimmed-mean": the mean of each coordinate without its f smallest and f largest values
            (both Yin et al. 2018). "krum": the message with the least sum of squared distances to
            its n - f - 2 nearest ones. "multi-krum": the mean of the n - f messages with the least
            such sums (Blanchard et al. 2017). "geometric-median": the point with the least sum of
            distances (Pillutla et al. 2022). "centred-clipping": :math:`v \leftarrow v +
            \frac{1}{n} \sum_i (x_i - v) \min(1, \tau / \|x_i - v\|)`, five times from 0
            (Karimireddy et al. 2021, which begin with the last round's).
        faulty: Largest share of a round's messages that may be faulty, from 0 to below 1/2.
        before: "mixing" replaces each message by the mean of the n - f nearest to it, itself
            included (Allouah et al. 2023). "bucketing" averages consecutive messages of the drawn
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

    rule: RuleName = "mean"
    faulty: Annotated[float, Within(below=0.5)] = 0.0
    before: Before = "nothing"
    bucket: Annotated[int, Within(2)] = 2
    radius: PositiveFloat = 1.0
    ranks: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_fields("aggregation", self)
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
        return self.rule in ROBUST

    @property
    def stores(self) -> bool:
        """Whether the rule reads all messages of a round together."""
        return self.rule != "mean"

    @cached_property
    def _rank_of(self) -> NDArray[np.int64]:
        """Rank of each client's adapters, if clients have different ones."""
        return np.array(self.ranks, np.int64)

    def columns(self, clients: NDArray[Any], federation: Federation) -> Columns:
        """The ranks of the clients' adapters."""
        del federation
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
        """One message of messages with leaves (n, ...), those that count, and their weights.

        Robust rules read no weights. None are equal ones. Without messages it is zero.

        >>> rule = Aggregation("median")
        >>> float(rule.of(jnp.array([1.0, 5.0, 2.0, 9.0]), jnp.array([True, True, True, False])))
        2.0
        """
        if not self.robust:
            weights = jnp.ones(counts.shape) if weights is None else weights
            if self.rule == "mean":
                return weighted_mean(messages, counts, weights)
            with jax.default_matmul_precision("highest"):
                return mean_product(messages, counts, weights)
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
        found = ROBUST[self.rule](rows, counts, faulty, self.radius)
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


def mean_row(rows: jax.Array, counts: jax.Array) -> jax.Array:
    """The mean of the rows (n, d) that count, shape (d,)."""
    total = jnp.where(counts[:, None], rows, 0).sum(axis=0)
    return total / jnp.maximum(counts.sum(), 1)


def median(rows: jax.Array, counts: jax.Array, *_: Any) -> jax.Array:
    """The median of each coordinate; the mean of the middle two if their number is even."""
    ordered, number = _sorted(rows, counts), jnp.maximum(counts.sum(), 1)
    return (ordered[(number - 1) // 2] + ordered[number // 2]) / 2


def trimmed_mean(rows: jax.Array, counts: jax.Array, faulty: jax.Array, _: float) -> jax.Array:
    """The mean of each coordinate without its f smallest and f largest values."""
    rank = jnp.arange(len(rows))
    return mean_row(_sorted(rows, counts), (rank >= faulty) & (rank < counts.sum() - faulty))


def squared_distances(rows: jax.Array) -> jax.Array:
    """||x_i - x_j||^2, shape (n, n).

    By differences, since a product of all rows would lose small distances beside a large row.
    """
    return jax.lax.map(lambda row: jnp.sum((rows - row) ** 2, axis=1), rows)


def distances(rows: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The squared distances (n, n) to the others that count, and their ranks from 0."""
    apart = jnp.where(counts[None], squared_distances(rows), jnp.inf)
    own = jnp.eye(len(rows), dtype=bool)
    order = jnp.argsort(jnp.where(own, -1.0, apart), axis=1)
    return apart, jnp.argsort(order, axis=1)


def scores(rows: jax.Array, counts: jax.Array, faulty: jax.Array) -> jax.Array:
    """Krum's sums of squared distances to the n - f - 2 nearest others, infinite if not counted."""
    apart, rank = distances(rows, counts)
    most = jnp.maximum(counts.sum() - faulty - 2, 1)
    chosen = (rank >= 1) & (rank <= most) & counts[None]
    found = jnp.where(chosen, apart, 0).sum(axis=1)
    return jnp.where(counts, found, jnp.inf)


def krum(rows: jax.Array, counts: jax.Array, faulty: jax.Array, _: float) -> jax.Array:
    """The row with the least score."""
    return rows[jnp.argmin(scores(rows, counts, faulty))]


def multi_krum(rows: jax.Array, counts: jax.Array, faulty: jax.Array, _: float) -> jax.Array:
    """The mean of the n - f rows with the least scores."""
    rank = jnp.argsort(jnp.argsort(scores(rows, counts, faulty)))
    return mean_row(rows, rank < counts.sum() - faulty)


def geometric_median(rows: jax.Array, counts: jax.Array, *_: Any) -> jax.Array:
    """The point with the least sum of distances, by Weiszfeld's iteration from the median."""

    def step(_: Any, point: jax.Array) -> jax.Array:
        apart = jnp.linalg.norm(rows - point, axis=1)
        middle = jnp.nanmedian(jnp.where(counts, apart, jnp.nan))
        least = SMALLEST * jnp.where(middle > 0, middle, 1.0)
        weight = jnp.where(counts, 1 / jnp.maximum(apart, least), 0)
        return weight @ rows / jnp.maximum(weight.sum(), jnp.finfo(rows.dtype).tiny)

    return jax.lax.fori_loop(0, WEISZFELD_STEPS, step, median(rows, counts))


def centred_clipping(rows: jax.Array, counts: jax.Array, _: Any, radius: float) -> jax.Array:
    """The mean of the rows, clipped to a radius around it."""

    def step(_: Any, centre: jax.Array) -> jax.Array:
        apart = rows - centre
        norm = jnp.linalg.norm(apart, axis=1, keepdims=True)
        scale = jnp.where(norm > radius, radius / norm, 1.0)
        return centre + mean_row(scale * apart, counts)

    return jax.lax.fori_loop(0, CLIPPING_STEPS, step, jnp.zeros_like(rows[0]))


def mixed(rows: jax.Array, counts: jax.Array, faulty: jax.Array) -> jax.Array:
    """Each row replaced by the mean of the n - f nearest to it."""
    _, rank = distances(rows, counts)
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


ROBUST: dict[str, Callable[[jax.Array, jax.Array, jax.Array, float], jax.Array]] = {
    "median": median,
    "trimmed-mean": trimmed_mean,
    "krum": krum,
    "multi-krum": multi_krum,
    "geometric-median": geometric_median,
    "centred-clipping": centred_clipping,
}
"""Robust rules: (rows (n, d), those that count, f, a radius) -> one row, shape (d,)."""


def by_products(algorithm: Algorithm, *, ranked: bool = False) -> Algorithm:
    """The same method, whose clients send the factors of adapters as they are.

    A client of a lower rank receives the leading columns of A and rows of B, and zeros for the
    others. This is the best approximation of the server's product at its rank. It trains those
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


def shares(counts: jax.Array, weights: jax.Array) -> jax.Array:
    """The shares (n,) of the messages that count in their weight; zeros if none does."""
    share = jnp.where(counts, weights, 0)
    return share / jnp.maximum(share.sum(), jnp.finfo(share.dtype).tiny)


def counted(messages: Any, counts: jax.Array) -> Any:
    """The messages, leaves (n, ...), with zeros for those that do not count."""
    return jax.tree.map(lambda leaf: jnp.where(beside(counts, leaf), leaf, 0), messages)
