"""Cold start: how well each way of beginning serves a client that has never taken part."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.diagnostics.clients import lowest, models_of
from fedprox.engine.compiled.evaluation import client_sums
from fedprox.errors import require, require_number, require_whole, shown
from fedprox.features import Features, arrays_at
from fedprox.federation import Federation, Rows
from fedprox.model import (
    Model,
    Params,
    check_params,
    has_accuracy,
    opened,
    weighted_loss,
    with_base,
)
from fedprox.model.check import check_model
from fedprox.precision import real_type
from fedprox.streams import Purpose, Streams
from fedprox.subproblem import Subproblem

Floats = NDArray[np.float64]

MODEL_BYTES = 2**26
"""Bytes of models that are trained together."""


class Newcomers(NamedTuple):
    """The results of each way to start, for newcomers; see `newcomers`.

    Attributes:
        rows: The numbers of rows that newcomers have.
        accuracy: For each way, the share of all newcomers' test labels that are met, float64
            (numbers of rows,); NaN for a model without accuracy.
        loss: For each way, the mean loss of all newcomers' test rows, float64 (numbers of rows,).
        by_client: For each way, each newcomer's test accuracy, float64 (numbers of rows, clients);
            NaN without test rows.
        nearest: The model that has the lowest loss on each newcomer's rows, int64 (numbers of rows,
            clients), -1 without rows; None without `models`.

    Example:
        >>> from fedprox.diagnostics.newcomers import Newcomers
        >>> found = Newcomers((0, 5), {"global": np.array([0.5, 0.5])}, {}, {}, None)
        >>> found.accuracy["global"].tolist()
        [0.5, 0.5]
    """

    rows: tuple[int, ...]
    accuracy: dict[str, Floats]
    loss: dict[str, Floats]
    by_client: dict[str, Floats]
    nearest: NDArray[np.int64] | None


def newcomers(
    model: Model,
    params: Params,
    federation: Federation,
    *,
    models: Params = None,
    alone: Params = None,
    rows: Sequence[int] = (0, 5, 10, 20, 50),
    steps: int = 20,
    learning_rate: float = 0.1,
    lam: float = 1.0,
    seed: int = 0,
) -> Newcomers:
    r"""Evaluate the models with which clients that have never taken part can start.

    A newcomer with :math:`r` rows, drawn at random from its training rows, can start in several
    ways. Each is measured on its test rows:

    * "global": the server's model :math:`w`, as it is.
    * "fine-tuned": :math:`s` steps of gradient descent on the mean loss of the :math:`r` rows, from
      :math:`w`.
    * "ditto": the same with :math:`\frac{\lambda}{2} \|v - w\|^2` added, as Ditto starts.
    * "cluster": with `models`, the one with the lowest loss on the :math:`r` rows; :math:`w`
      without rows.
    * "cluster, fine-tuned": the same, fine-tuned.
    * "alone": with `alone`, as fine-tuned, from these parameters, so that nothing is learned from
      others.

    Args:
        model: The model of the parameters.
        params: Its parameters, such as `Run.params`.
        federation: The newcomers, such as `Federation.of_clients` of those that were left out of
            the run. Each needs at least as many training rows as the largest of `rows`.
        models: Several models, such as `Run.models` of :func:`fedprox.ifca`.
        alone: Initial parameters, from which a newcomer would train without the others.
        rows: Numbers of rows :math:`r`, at least 0.
        steps: Steps :math:`s`.
        learning_rate: The steps' learning rate.
        lam: Ditto's :math:`\lambda`, at least 0.
        seed: Seed of the rows that are drawn. Fewer rows are a part of more.

    Returns:
        Accuracy and loss for each way and number of rows.

    Raises:
        InputError: If parameters do not fit the model, there are no test rows, a newcomer has too
            few rows, or an argument is out of range.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=6)
        >>> model = fp.models.logistic(federation)
        >>> params = model.init(jax.random.key(0))
        >>> few = federation.of_clients(np.arange(2))
        >>> found = fp.newcomers(model, params, few, rows=[0, 10])
        >>> sorted(found.accuracy), bool(found.loss["fine-tuned"][1] < found.loss["global"][1])
        (['ditto', 'fine-tuned', 'global'], True)

    References:
        Li et al., `Ditto: Fair and Robust Federated Learning Through Personalization
        <https://arxiv.org/abs/2012.04221>`_, ICML 2021; Ghosh et al., `An Efficient Framework for
        Clustered Federated Learning <https://arxiv.org/abs/2006.04088>`_, NeurIPS 2020.
    """
    check_model(model, federation)
    check_params("params", params, model.shapes)
    several = models is not None
    for each in models_of(models) if several else ():
        check_params("models", each, model.shapes)
    if alone is not None:
        check_params("alone", alone, model.shapes)
    numbers = _checked(rows, federation)
    require_whole("steps", steps)
    require_number("learning_rate", learning_rate, positive=True)
    require_number("lam", lam)
    x, y = _drawn(federation.train, max(1, *numbers), seed)
    descend, count = _descent(model, x, y, steps, learning_rate), len(federation)
    everyone, first = (
        jax.tree.map(lambda a: np.broadcast_to(np.asarray(a), (count, *np.shape(a))), each)
        for each in (params, alone)
    )
    of_global = _tested(model, everyone, federation.test)
    found: dict[str, list[tuple[Floats, Floats]]] = {}
    nearest = np.full((len(numbers), count), -1)
    for i, r in enumerate(numbers):
        ways = {"global": everyone}
        ways["fine-tuned"] = descend(everyone, r, 0.0)
        ways["ditto"] = descend(everyone, r, lam)
        if several:
            ways["cluster"] = everyone
            if r:
                nearest[i] = _nearest(model, models, *jax.tree.map(lambda a, r=r: a[:, :r], (x, y)))
                ways["cluster"] = jax.tree.map(lambda a, i=i: np.asarray(a)[nearest[i]], models)
            ways["cluster, fine-tuned"] = descend(ways["cluster"], r, 0.0)
        if alone is not None:
            ways["alone"] = descend(first, r, 0.0)
        for way, own in ways.items():
            tested = of_global if own is everyone else _tested(model, own, federation.test)
            found.setdefault(way, []).append(tested)
    by_way = {way: tuple(map(np.stack, zip(*each, strict=True))) for way, each in found.items()}
    labels, sizes = federation.test.labels, federation.test.sizes
    return Newcomers(
        numbers,
        {way: met.sum(axis=1) / labels.sum() for way, (_, met) in by_way.items()},
        {way: loss.sum(axis=1) / sizes.sum() for way, (loss, _) in by_way.items()},
        {
            way: np.where(labels > 0, met / np.maximum(labels, 1), np.nan)
            for way, (_, met) in by_way.items()
        },
        nearest if several else None,
    )


def _checked(rows: Sequence[int], federation: Federation) -> tuple[int, ...]:
    """The numbers of rows, which each newcomer must have."""
    require(
        len(rows) > 0 and all(isinstance(r, int | np.integer) and r >= 0 for r in rows),
        f"rows = {shown(rows)}; it must be one or several whole numbers of at least 0",
    )
    most, fewest = max(rows), int(federation.train.sizes.argmin())
    require(
        federation.train.sizes[fewest] >= most,
        f"client {federation.names[fewest]!r}: {federation.train.sizes[fewest]} training rows; "
        f"newcomers need {most}, the largest of rows",
    )
    require(len(federation.test) > 0, "federation: no test rows; newcomers are measured on theirs")
    return tuple(map(int, rows))


def _drawn(rows: Rows, most: int, seed: int) -> tuple[Features, NDArray[Any]]:
    """Features and labels of `most` random rows of each client, (clients, most, ...)."""
    streams = Streams(seed, Purpose.NEWCOMERS)
    at = np.stack(
        [
            first + streams.at(0, k).permutation(int(size))[:most]
            for k, (first, size) in enumerate(zip(rows.offsets, rows.sizes, strict=False))
        ]
    )
    x, y = jax.tree.map(
        lambda a: a.reshape(*at.shape, *a.shape[1:]), arrays_at((rows.x, rows.y), at.ravel())
    )
    return x, y


def _blocks(models: Params) -> list[slice]:
    """The clients whose models, leaves (clients, ...), are in memory together."""
    leaves = jax.tree.leaves(models)
    count, size = len(leaves[0]), sum(leaf[0].nbytes for leaf in leaves)
    together = max(1, min(count, MODEL_BYTES // max(size, 1)))
    return [slice(first, first + together) for first in range(0, count, together)]


def _descent(
    model: Model, x: Features, y: NDArray[Any], steps: int, rate: float
) -> Callable[[Params, int, float], Params]:
    """(models, r, lam) -> each client's model after gradient descent on its first r rows."""

    @jax.jit
    def program(base: Any, starts: Params, x: Any, y: Any, *numbers: Any) -> Params:
        (weights, rate, lam), whole = numbers, with_base(model, base)

        def one(own: Params, x: Any, y: Any) -> Params:
            start, around = opened(own)
            problem = Subproblem(start, lam, start)

            def loss(w: Params) -> jax.Array:
                return weighted_loss(whole, around(w), x, y, weights)

            def step(_: Any, w: Params) -> Params:
                of_h = problem.gradient(w, jax.grad(loss)(w))
                return jax.tree.map(lambda a, g: a - rate * g, w, of_h)

            return around(jax.lax.fori_loop(0, steps, step, start))

        return jax.vmap(one)(starts, x, y)

    def descend(starts: Params, r: int, lam: float) -> Params:
        if r == 0:
            return starts
        weights = (np.arange(y.shape[1]) < r) / np.asarray(r, real_type())
        numbers = [np.asarray(each, real_type()) for each in (weights, rate, lam)]
        parts = []
        for block in _blocks(starts):
            own = jax.tree.map(lambda a, block=block: a[block], (starts, x, y))
            moved = program(model.base, *own, *numbers)
            parts.append(jax.tree.map(np.asarray, moved))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    return descend


def _nearest(model: Model, models: Params, x: Features, y: NDArray[Any]) -> NDArray[np.int64]:
    """The model with the lowest loss on each client's rows, (clients,)."""
    clients, count = y.shape[:2]
    offsets = np.arange(clients + 1) * count
    x, y = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), (x, y))
    rows = Rows(x, y, offsets)
    return lowest(client_sums(model, models, rows, np.arange(clients), own=False)[0].T)


def _tested(model: Model, models: Params, test: Rows) -> tuple[Floats, Floats]:
    """The summed loss and the labels met of each client's model on its test rows, (clients,)."""
    parts = []
    for block in _blocks(models):
        own = jax.tree.map(lambda a, block=block: a[block][:, None], models)
        clients = np.arange(len(test.sizes))[block]
        sums = client_sums(model, own, test, clients, own=True)
        parts.append([np.asarray(each, np.float64)[:, 0] for each in sums])
    loss, met = (np.concatenate(each) for each in zip(*parts, strict=True))
    return loss, met if has_accuracy(model, test.y.dtype) else np.full_like(met, np.nan)
