r"""Whether clients form clusters, before anything is trained.

Clients that belong together pull a model in the same direction. At one model, each client's
gradient is scaled to length 1, as in the clustering by cosines of Sattler et al. 2021. It is
projected on the directions in which clients differ most. Points form clusters if k-means fits k
centres to them far better than to points of one Gaussian with the same covariance. This is the gap
statistic (Tibshirani, Walther, Hastie 2001), with the reference of SigClust (Liu et al. 2008).
Simulated references say how often one Gaussian would look like that.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from fedprox.errors import require_whole
from fedprox.federation import Federation
from fedprox.model import Model, Params, check_params, opened, trainable, weighted_loss, with_base
from fedprox.model.check import check_model
from fedprox.precision import real_type
from fedprox.streams import Purpose, generator

Floats = NDArray[np.float64]

SKETCH = 1024
"""Numbers to which longer gradients are hashed; inner products keep within about 3 %."""

GRADIENT_BYTES = 2**26
"""Bytes of gradients that are computed together."""

READ_ROWS = 2**13
"""Rows that are read together."""

LEAST_SPREAD = 1e-4
"""How far rounding alone may move gradients of length 1."""

DIRECTIONS = 8
"""Most directions that are compared."""

MOST_CLUSTERS = 8
"""Most clusters that are tried."""

REFERENCES = 99
"""Simulated references, so that the smallest p is 1 / 100."""

STARTS, STEPS = 5, 12
"""Starts of k-means, and its steps. Of two starts, both miss in one of twenty cases."""

FEWEST_CLIENTS = 8
"""Fewest clients of whom clusters can be told."""

SURE = 0.05
"""The p below which there are clusters."""


class Grouping(NamedTuple):
    """Whether clients form clusters; see `grouping`.

    Attributes:
        clusters: Number of clusters; 1 if the clients form none, or are too few to tell.
        p: P-value: the probability that clients without clusters look as clustered as these, at
            least 0.01; NaN for fewer than 8 clients.
        gaps: The gap statistic for 1, 2, ... clusters, float64 (tried,); empty if not computed.
        labels: Each client's cluster, int64 (clients,); all 0 with one cluster.

    Example:
        >>> from fedprox.diagnostics import Grouping
        >>> Grouping(1, 0.3, np.zeros(2), np.zeros(9, np.int64)).clusters
        1
    """

    clusters: int
    p: float
    gaps: Floats
    labels: NDArray[np.int64]


def grouping(model: Model, params: Params, federation: Federation, *, seed: int = 0) -> Grouping:
    r"""Find out whether clients form clusters, from their gradients at one model.

    Client :math:`k` is the point :math:`\nabla F_k(w) / \|\nabla F_k(w)\|` in the few directions in
    which clients differ most. With :math:`W_j` the sum of squared distances to :math:`j` centres of
    k-means, and the mean over references drawn from one Gaussian of the same covariance, the gap is

    .. math:: \mathrm{Gap}(j) = \mathrm{E}^*[\log W_j^*] - \log W_j.

    The number of clusters is the smallest whose gap is within a standard deviation of the next
    one's (Tibshirani et al. 2001). There are none unless fewer than 5 % of the references reach the
    largest standardized gap.

    Clusters of labels count, too: clients that have one class each form a cluster for each class.
    Clients whose data differ, but without groups, form none.

    Args:
        model: The model to be trained.
        params: Its parameters, such as the initial ones.
        federation: The clients; only their training rows are read.
        seed: Seed of the references.

    Returns:
        The number of clusters, how sure that is, and each client's cluster.

    Raises:
        InputError: If the model does not fit the federation, or the parameters the model.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=12)  # each client has a rule of its own
        >>> model = fp.models.logistic(federation)
        >>> params = model.init(jax.random.key(0))
        >>> fp.diagnostics.grouping(model, params, federation).clusters
        1

    References:
        Tibshirani, Walther, Hastie, `Estimating the Number of Clusters in a Data Set via the Gap
        Statistic <https://doi.org/10.1111/1467-9868.00293>`_, JRSS B, 2001; Liu, Hayes, Nobel,
        Marron, `Statistical Significance of Clustering
        <https://doi.org/10.1198/016214508000000454>`_, JASA 2008; Sattler, Müller, Samek,
        `Clustered Federated Learning <https://arxiv.org/abs/1910.01991>`_, IEEE TNNLS 2021.
    """
    check_model(model, federation)
    check_params("params", params, model.shapes)
    require_whole("seed", seed, least=0)
    count = len(federation)
    if count < FEWEST_CLIENTS:
        return Grouping(1, math.nan, np.zeros(0), np.zeros(count, np.int64))
    return grouped(directions(gradients(model, params, federation)), seed)


def gradients(model: Model, params: Params, federation: Federation) -> Floats:
    """The clients' grad F_k, hashed to at most `SKETCH` numbers, float64 (clients, numbers)."""
    train, clients = federation.train, len(federation)
    size = sum(leaf.size for leaf in jax.tree.leaves(trainable(params)))
    hashed = generator(0, Purpose.REFERENCES)
    place, sign = hashed.integers(SKETCH, size=size), 2 * hashed.integers(2, size=size) - 1
    hashes = place.astype(np.int32), sign.astype(np.int8)

    @jax.jit
    def summed(base: Any, whole: Params, hashes: Any, x: Any, y: Any, inside: Any) -> Any:
        params, around = opened(whole)

        def loss(params: Params, *rows: Any) -> jax.Array:
            return weighted_loss(with_base(model, base), around(params), *rows)

        def one(x: Any, y: Any, inside: Any) -> Any:
            flat, _ = ravel_pytree(jax.grad(loss)(params, x, y, inside))
            if size <= SKETCH:
                return flat
            place, sign = hashes
            return jnp.zeros(SKETCH, flat.dtype).at[place].add(flat * sign)

        return jax.vmap(one)(x, y, inside)

    together = max(1, min(clients, GRADIENT_BYTES // (4 * size)))
    width = max(1, READ_ROWS // together)
    found = []
    for block in np.array_split(np.arange(clients), -(-clients // together)):
        at = np.resize(block, together)
        sums: Any = 0.0
        for first in range(0, int(train.sizes[block].max()), width):
            x, y, inside = train.padded(at, first, width)
            slices = summed(model.base, params, hashes, x, y, inside.astype(real_type()))
            sums = sums + np.asarray(slices, np.float64)
        found.append((sums / train.sizes[at][:, None])[: len(block)])
    return np.concatenate(found)


def directions(vectors: Floats) -> Floats:
    """Vectors of length 1, in the coordinates in which they differ most, (clients, directions)."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1)
    left, values, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    kept = min(DIRECTIONS, len(vectors) // 3, int((values > LEAST_SPREAD).sum()))
    return left[:, :kept] * values[:kept]


def grouped(points: Floats, seed: int = 0) -> Grouping:
    """Whether points (clients, directions) whose directions are uncorrelated form clusters.

    >>> centres = np.repeat([[0.0, 9.0], [9.0, 0.0], [0.0, -9.0], [-9.0, 0.0]], 10, axis=0)
    >>> found = grouped(centres + np.random.default_rng(0).normal(size=(40, 2)))
    >>> found.clusters, found.p, len(np.unique(found.labels[:10]))
    (4, 0.01, 1)
    """
    count, random = len(points), generator(seed, Purpose.REFERENCES, 1)
    tried = range(1, min(MOST_CLUSTERS, count // 3) + 1)
    spread = points.std(axis=0)
    if not spread.any():
        return Grouping(1, 1.0, np.zeros(len(tried)), np.zeros(count, np.int64))
    drawn = spread * random.standard_normal((REFERENCES, *points.shape))
    drawn -= drawn.mean(axis=1, keepdims=True)
    both = np.concatenate([points[None] - points.mean(axis=0), drawn])
    fits = [k_means(both, k, random) for k in tried]
    log_w = np.log(np.maximum([squares for squares, _ in fits], 1e-300))
    mean, deviation = log_w[:, 1:].mean(axis=1), log_w[:, 1:].std(axis=1, ddof=1)
    gaps = mean - log_w[:, 0]
    # one centre says nothing about clusters
    standard = (mean[1:, None] - log_w[1:]) / deviation[1:, None]
    largest = standard.max(axis=0, initial=-np.inf)
    p = (1 + int((largest[1:] >= largest[0]).sum())) / (REFERENCES + 1)
    clusters = 1
    if p < SURE:
        enough = gaps[:-1] >= gaps[1:] - deviation[1:] * math.sqrt(1 + 1 / REFERENCES)
        enough[0] = False  # p says that there are some
        clusters = int(enough.argmax()) + 1 if enough.any() else len(tried)
    return Grouping(clusters, p, gaps, fits[clusters - 1][1])


def k_means(sets: Floats, k: int, random: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """k-means of sets of points (sets, n, d): sums of squares, and the first set's labels."""
    count, n, _ = sets.shape
    best, labels = np.full(count, np.inf), np.zeros(n, np.int64)
    rows = np.arange(count)
    for _ in range(STARTS):
        # k-means++: each next centre far from those before
        centres = sets[rows, random.integers(n, size=count)][:, None]
        for _ in range(1, k):
            nearest = _distances(sets, centres).min(axis=2)
            ends = np.cumsum(nearest, axis=1)
            drawn = random.random((count, 1)) * ends[:, -1:]
            chosen = np.minimum((ends <= drawn).sum(axis=1), n - 1)
            centres = np.concatenate([centres, sets[rows, chosen][:, None]], axis=1)
        for _ in range(STEPS):
            member = _distances(sets, centres).argmin(axis=2)[..., None] == np.arange(k)
            sizes = member.sum(axis=1)[..., None]
            means = np.einsum("snk,snd->skd", member, sets) / np.maximum(sizes, 1)
            centres = np.where(sizes > 0, means, centres)
        apart = _distances(sets, centres)
        squares = apart.min(axis=2).sum(axis=1)
        if squares[0] < best[0]:
            labels = apart[0].argmin(axis=1)
        best = np.minimum(best, squares)
    return best, labels


def _distances(sets: Floats, centres: Floats) -> Floats:
    """Squared distances of points (sets, n, d) to centres (sets, k, d), (sets, n, k)."""
    cross = np.einsum("snd,skd->snk", sets, centres)
    squared = (sets**2).sum(axis=2)[..., None] + (centres**2).sum(axis=2)[:, None]
    distances: Floats = np.maximum(squared - 2 * cross, 0)
    return distances
