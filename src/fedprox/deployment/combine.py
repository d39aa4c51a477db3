"""Combining the answers of nodes: the mean of their messages, and the sums of an evaluation."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import ROUNDING
from fedprox.deployment.conversation import Answered
from fedprox.deployment.payload import RoundPart
from fedprox.deployment.wire import (
    Array,
    DataKind,
    Description,
    prefixed,
    prefixed_names,
    tree_of,
)
from fedprox.devices.programs import jit_once
from fedprox.engine.compiled.evaluation import EvaluationSums, Measures, measures_of_sums
from fedprox.engine.planning.jobs import Jobs
from fedprox.errors import require
from fedprox.losses import is_of_library
from fedprox.measures import Scatter, squared_norms
from fedprox.metrics import terms_of
from fedprox.model import Model, has_accuracy, trainable
from fedprox.parts.part import Screen, Screened, beside, mean_of, scaled, sound
from fedprox.precision import in_shape
from fedprox.protocol.method import Method


class NodePart(NamedTuple):
    """A node's part of a round, as the coordinator holds it.

    Attributes:
        node: The node's index.
        at: Which of the round's jobs are the node's, shape (n,).
        part: The part, with these n jobs.
        answered: The answer that held it.
    """

    node: int
    at: NDArray[np.int64]
    part: RoundPart
    answered: Answered


class Combined(NamedTuple):
    """The answers of all nodes to a round.

    Attributes:
        parts: The nodes' parts.
        mean: Weighted mean of the messages that count, leaves (points, ...); zeros without any.
            With privacy, and without a barrier, their weighted sum.
        steps: Steps of each job, (jobs, points); 0 for jobs of nodes without answer.
        counts: Whether each job counts, (jobs, points).
        faulty: Whether each job's update, or its node's, was faulty, (jobs, points).
    """

    parts: Sequence[NodePart]
    mean: Any
    steps: NDArray[np.int64]
    counts: NDArray[np.bool_]
    faulty: NDArray[np.bool_]


def combined(
    method: Method,
    jobs: Jobs,
    nodes: Sequence[NodePart],
    message: Any,
    size: Callable[[Any], jax.Array] | None = None,
    total: Any = None,
) -> Combined:
    """Combine the parts of nodes, whose order does not matter.

    A part's message is one update: it is faulty if it is not finite, or if its mean is far larger
    than those of the others. A robust rule reads the means of the parts that count.
    """
    shape = len(jobs.client), len(method.points)
    steps, counts, faulty = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, bool)
    nodes = sorted(nodes, key=lambda each: (each.node, int(each.at[0])))
    for _, at, part, _ in nodes:
        steps[at], counts[at], faulty[at] = part.steps, part.counts, part.faulty
    if not nodes:
        mean = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), message)
    elif total is not None:
        mean = mean_of(total, jnp.asarray(summed([node.part.counted for node in nodes])))
    else:
        mean, scales, flagged = _screened(method, [node.part for node in nodes], size)
        for (_, at, part, _), scale, bad in zip(nodes, scales, flagged, strict=True):
            faulty[at] |= bad[None] & part.counts
            counts[at] &= (scale > 0)[None]
    return Combined(nodes, mean, steps, counts, faulty)


def _screened(
    method: Method, parts: Sequence[RoundPart], size: Callable[[Any], jax.Array] | None
) -> tuple[Any, Array, Array]:
    """The mean of some parts, the scale of each, and whether each is faulty, (parts, points)."""
    reduction = method.reduction
    assert reduction.screen is not None  # a deployment always screens
    answered = np.stack([part.counted > 0 for part in parts])
    of_part = jit_once(_mean_and_soundness)
    means, are_sound = zip(*(of_part(part.message, part.counted) for part in parts), strict=True)
    sizes = None
    if reduction.screen.compares:
        measure = jit_once(jax.vmap(size or method.algorithm.client.size))
        sizes = np.stack([measure(mean) for mean in means])
    weight = np.array([part.counted.max() for part in parts])
    which_count = jit_once(partial(_which_count, reduction.screen))
    screened = which_count(np.stack(are_sound) * answered, sizes, weight)
    scales, bad = np.asarray(screened.scale), answered & np.asarray(screened.flagged)
    if reduction.rule is not None:
        stacked = jax.tree.map(lambda *each: jnp.stack(each, axis=1), *means)
        kept = scaled(screened.scale.T, stacked)
        rule = jit_once(jax.vmap(reduction.rule.of, in_axes=(0, 0, None)))
        return rule(kept, screened.scale.T > 0, weight), scales, bad
    mean = weighted(scales, [part.message for part in parts])
    if not reduction.fixed:
        counted = [part.counted * (scale > 0) for part, scale in zip(parts, scales, strict=True)]
        mean = jit_once(mean_of)(mean, summed(counted))
    return mean, scales, bad


def _which_count(
    screen: Screen, sound: jax.Array, size: jax.Array | None, weight: jax.Array
) -> Screened:
    """`Screen.screened` by position, so that equal settings share a program."""
    return screen.screened(sound, size, weight)


def _mean_and_soundness(message: Any, counted: jax.Array) -> tuple[Any, jax.Array]:
    """The mean of a part's updates, and whether it is finite, at each sweep point."""
    mean = mean_of(message, counted)
    return mean, jax.vmap(sound)(mean)


def summed(parts: Sequence[Any]) -> Any:
    """The sum of some trees of arrays."""
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts)


def weighted(weights: Iterable[Any], trees: Iterable[Any]) -> Any:
    """The sum of trees with leaves (points, ...) times weights (points,).

    Where a weight is 0 the leaves may be infinite or NaN.
    """

    def times(weight: Array, leaf: Array) -> Array:
        weight = beside(weight, leaf)
        return np.where(weight > 0, weight * leaf, 0)

    with np.errstate(invalid="ignore"):  # 0 times infinity is not used
        return summed(
            [
                jax.tree.map(partial(times, weight), tree)
                for weight, tree in zip(weights, trees, strict=True)
            ]
        )


NodeMeasures = Mapping[str, Any]
"""A node's measures, or their shapes: a tree of arrays, leaves (points, ...), by measure."""

OF_LOSS = "loss", "weight", "unmeasured"
"""Measures that are reported together: the sum of losses, and of which clients it is."""

SHARED = "loss", "weight"
"""Means over a node's own clients, which count by its share of all rows."""


def by_measure(sums: EvaluationSums) -> dict[str, Any]:
    """The sums of an evaluation by measure, under the names by which they travel."""
    parts = {"train": sums.train, "test": sums.test or {}, "validation": sums.validation or {}}
    return {
        **{name: getattr(sums, name) for name in OF_LOSS},
        **{f"{part}/{name}": terms for part, each in parts.items() for name, terms in each.items()},
        "scatter": tuple(sums.scatter or ()),
    }


def arrays_of(measured: NodeMeasures) -> dict[str, Any]:
    """The arrays of measures, by name."""
    return {
        name: a for measure, tree in measured.items() for name, a in prefixed(measure, tree).items()
    }


def summable(measured: NodeMeasures) -> dict[str, Any]:
    """The measures that are sums, apart from those of gradients."""
    return {name: each for name, each in measured.items() if name != "scatter"}


def evaluation_shapes(model: Model, kind: DataKind, points: int) -> NodeMeasures:
    """The shapes that nodes may answer to an evaluation of a model."""
    x = kind.tree(lambda each: in_shape((1, *each.shape), each.type))
    y = in_shape((1, *kind.label), kind.label_type)

    def terms(params: Any, x: Any, y: Any) -> Any:
        return terms_of(model.metrics, model.apply(params, x), y)

    def at_points(shape: tuple[int, ...] = (), kind: Any = np.float32) -> Any:
        return jax.ShapeDtypeStruct((points, *shape), kind)

    by_row = jax.eval_shape(terms, model.shapes, x, y)
    metrics = jax.tree.map(lambda a: at_points(a.shape[1:]), by_row)
    number = at_points()
    mean = {"sum": number, "rows": number}
    held_out = {"loss": mean, "accuracy": mean, **metrics}
    gradients = jax.tree.map(lambda a: at_points(a.shape), trainable(model.shapes))
    unmeasured: Any = at_points(kind=np.int32)
    scatter = Scatter(number, gradients, number)
    sums = EvaluationSums(number, number, unmeasured, scatter, metrics, held_out, held_out)
    return by_measure(sums)


class Declared(NamedTuple):
    """The bounds of a node's measures: the rows that it says it holds, and the model.

    Attributes:
        share: Its share of all training rows.
        clients: The number of the node's clients.
        rows: Its rows over which a measure is a mean, at most.
        central: Whether some of its validation rows belong to no client.
        least_loss: Least loss of an example; -inf for a loss of the user's own.
        has_accuracy: Whether the model has an accuracy.
        weight: The largest weight of its measures.
        noise: Whether its measures have noise, with which they may be any finite numbers.
    """

    share: float
    clients: int
    rows: Mapping[str, int]
    central: bool
    least_loss: float
    has_accuracy: bool
    weight: float = 1.0
    noise: bool = False


def declared_by(description: Description, share: float, model: Model) -> Declared:
    """The bounds of the measures of a node with a share of all training rows."""
    clients, central = description.clients, description.central_validation
    validation = sum(clients.validation) + central
    rows = {
        "test/loss": sum(clients.test),
        "test/accuracy": sum(clients.labels),
        "validation/loss": validation,
        "validation/accuracy": validation * math.prod(description.kind.label),
    }
    least_loss = 0.0 if is_of_library(model.loss) else -math.inf
    accuracy = has_accuracy(model, description.kind.label_type)
    return Declared(share, len(clients.names), rows, bool(central), least_loss, accuracy)


def declared_together(nodes: Sequence[Declared]) -> Declared:
    """The bounds of the sum of some nodes' measures, in which each has its share already."""
    clients, share = sum(each.clients for each in nodes), sum(each.share for each in nodes)
    rows = {name: sum(each.rows[name] for each in nodes) for name in nodes[0].rows}
    central = any(each.central for each in nodes)
    return nodes[0]._replace(share=1.0, clients=clients, rows=rows, central=central, weight=share)


def sums_of(arrays: Mapping[str, Array], shapes: NodeMeasures, declared: Declared) -> NodeMeasures:
    """Check a node's answer to an evaluation, and read it."""
    sums = {
        measure: tree_of(like, arrays, measure)
        for measure, like in shapes.items()
        if any(name in arrays for name in prefixed_names(measure, like))
    }
    check_sums(sums, declared)
    return sums


def check_sums(sums: NodeMeasures, declared: Declared) -> None:
    """Raise `InputError` unless a node can have measured something."""
    missing = [name for name in OF_LOSS if name not in sums]
    require(len(missing) in (0, len(OF_LOSS)), f"the array {missing and missing[0]!r} is missing")
    if not missing:
        loss, weight, unmeasured = (sums[name] for name in OF_LOSS)
        require(
            ((weight >= 0) & (weight <= declared.weight * (1 + ROUNDING))).all(),
            f"it measures weights {weight.tolist()}; they must be from 0 to {declared.weight:g}",
        )
        require(np.isfinite(loss).all(), "its losses are not finite")
        _require_least("training", loss, declared.least_loss)
        require(
            ((unmeasured >= 0) & (unmeasured <= declared.clients)).all(),
            f"it did not measure {unmeasured.tolist()} clients; it has {declared.clients}",
        )
    for measure, most in declared.rows.items():
        if measure in sums:
            part, _, name = measure.partition("/")
            has_value = name == "loss" or declared.has_accuracy
            # a model that diverged has no finite loss on rows that are always measured
            finite = has_value and not (declared.central and part == "validation")
            _check_mean(part, name, sums[measure], most, finite=finite, noise=declared.noise)
            if name == "loss":
                _require_least(part, sums[measure]["sum"], declared.least_loss)
    if "scatter" in sums:
        weight, means, scatter = sums["scatter"]
        known = (weight >= 0) & (weight <= 1 + ROUNDING) & ~(scatter < 0)
        for leaf in jax.tree.leaves(means):
            finite = np.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim)))
            known &= finite | (weight == 0)
        require(known.all(), "its gradients have a weight or scatter that cannot be")


def _check_mean(
    part: str, name: str, mean: Mapping[str, Array], most: int, *, finite: bool, noise: bool
) -> None:
    """Raise `InputError` unless a measure's sum and number of rows can be."""
    total, rows = mean["sum"], mean["rows"]
    what = "labels" if name == "accuracy" else "rows"
    require(
        ((rows >= 0) & (rows <= most * (1 + ROUNDING))).all(),
        f"it measures {rows.tolist()} {part} {what}; it has {most}",
    )
    require(
        not finite or np.isfinite(total).all(),
        f"its {part} {name} is not finite: {total.tolist()}",
    )
    require(
        noise or name == "loss" or not ((total < 0) | (total > rows * (1 + ROUNDING))).any(),
        f"it counts {total.tolist()} correct {part} labels of {rows.tolist()}",
    )


def _require_least(part: str, losses: Array, least: float) -> None:
    require(
        not (losses < least).any(),
        f"its {part} losses are {losses.tolist()}; this model's are at least {least:g}",
    )


def measures_together(
    model: Model,
    nodes: Sequence[tuple[float, NodeMeasures]],
    shapes: NodeMeasures,
    *,
    validated: bool,
) -> Measures:
    """The measures of nodes, each with its share of all training rows.

    Those that no node reports are None or NaN.
    """
    total: dict[str, Any] = {}
    for measure, like in summable(shapes).items():
        given = [
            jax.tree.map(partial(np.multiply, share if measure in SHARED else 1), sums[measure])
            for share, sums in nodes
            if measure in sums
        ]
        unknown = jax.tree.map(lambda a: np.full(a.shape, np.nan, np.float32), like)
        total[measure] = summed(given) if given else unknown

    def terms(part: str) -> dict[str, Any]:
        prefix = f"{part}/"
        return {
            name.removeprefix(prefix): a for name, a in total.items() if name.startswith(prefix)
        }

    loss, weight = (jnp.asarray(total[name]) for name in SHARED)  # divided by 0 without a warning
    scatters = [(share, Scatter(*sums["scatter"])) for share, sums in nodes if "scatter" in sums]
    measured = any("loss" in sums for _, sums in nodes)
    sums = EvaluationSums(
        loss=loss,
        weight=weight,
        unmeasured=total["unmeasured"] if measured else None,
        scatter=_merged(scatters, weight) if scatters else None,
        train=terms("train"),
        test=terms("test"),
        validation=terms("validation") if validated else None,
    )
    measures = measures_of_sums(model, sums)
    return measures if measured else measures._replace(given=False)


def _merged(parts: Sequence[tuple[float, Scatter]], of: jax.Array) -> Scatter:
    """Merge the scatters of nodes, each with its share."""
    weights = [share * each.weight for share, each in parts]
    total = summed(weights)
    with np.errstate(invalid="ignore"):  # NaN without a measured client
        added = weighted(weights, [each.mean for _, each in parts])
        means = jax.tree.map(lambda a: a / beside(total, a), added)
        scatters = []
        for weight, (share, each) in zip(weights, parts, strict=True):
            apart = jax.tree.map(np.subtract, each.mean, means)
            distance = np.asarray(squared_norms(apart))
            scatters.append(np.where(weight > 0, share * each.scatter + weight * distance, 0))
    return Scatter(total, means, summed(scatters) * (of / total))
