"""Combining the answers of nodes: the mean of their messages, and the sums of an evaluation."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from fedprox.algorithms.base import ROUNDING
from fedprox.deployment.conversation import Answered
from fedprox.deployment.payload import RoundPart
from fedprox.deployment.wire import (
    Allowed,
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
from fedprox.measures import Scatter
from fedprox.metrics import terms_of
from fedprox.model import Model, cross_entropy
from fedprox.parts.part import beside, mean_of, scaled, sound
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
    points = len(method.points)
    shape = (len(jobs.client), points)
    steps, counts = np.zeros(shape, np.int64), np.zeros(shape, bool)
    faulty = np.zeros(shape, bool)
    nodes = sorted(nodes, key=lambda each: (each.node, int(each.at[0])))
    parts = [node.part for node in nodes]
    for _, at, part, _ in nodes:
        steps[at], counts[at], faulty[at] = part.steps, part.counts, part.faulty
    if not nodes:
        zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), message)
        return Combined(nodes, zeros, steps, counts, faulty)
    if total is not None:
        mean = mean_of(total, jnp.asarray(summed([part.counted for part in parts])))
        return Combined(nodes, mean, steps, counts, faulty)
    reduction = method.reduction
    assert reduction.screen is not None  # a deployment always screens
    answered = np.stack([part.counted > 0 for part in parts])
    means = [mean_of(part.message, jnp.asarray(part.counted)) for part in parts]
    is_sound = jit_once(jax.vmap(sound))
    finite = jnp.stack([is_sound(mean) for mean in means])
    sizes = None
    if reduction.screen.compares:
        measure = jit_once(jax.vmap(size or method.algorithm.client.size))
        sizes = jnp.stack([measure(mean) for mean in means])
    weight = jnp.array([part.counted.max() for part in parts])
    screened = reduction.screened(finite * answered, sizes, weight)
    scales = np.asarray(screened.scale)
    bad = answered & np.asarray(screened.flagged)
    for i, (_, at, part, _) in enumerate(nodes):
        faulty[at] |= bad[i][None] & part.counts
        counts[at] &= (scales[i] > 0)[None]
    if reduction.rule is not None:
        stacked = jax.tree.map(lambda *each: jnp.stack(each, axis=1), *means)
        kept = scaled(screened.scale.T, stacked)
        rule = jit_once(jax.vmap(reduction.rule.of, in_axes=(0, 0, None)))
        taken = rule(kept, screened.scale.T > 0, weight)
        return Combined(nodes, taken, steps, counts, faulty)
    mean = weighted(scales, [part.message for part in parts])
    if not reduction.fixed:
        counted = [part.counted * (scale > 0) for part, scale in zip(parts, scales, strict=True)]
        mean = mean_of(mean, summed(counted))
    return Combined(nodes, mean, steps, counts, faulty)


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


class Shapes(NamedTuple):
    """What nodes answer to an evaluation, in shape, leaves (points, ...).

    Attributes:
        points: Number of sweep points.
        train: Terms of the metrics.
        held_out: Terms of the loss, the accuracy and the metrics.
        scatter: Mean and scatter of the gradients.
        least_loss: Least loss of an example; -inf for a loss of the user's own.
        has_accuracy: Whether the model has an accuracy.
    """

    points: int
    train: Mapping[str, Any]
    held_out: Mapping[str, Any]
    scatter: Any
    least_loss: float
    has_accuracy: bool

    def arrays(self) -> Allowed:
        """The arrays of an answer; a node leaves out what it does not report."""
        return {name: leaf for each in self.by_measure().values() for name, leaf in each.items()}

    def by_measure(self) -> dict[str, Allowed]:
        """The arrays of each measure."""
        number, whole = (
            jax.ShapeDtypeStruct((self.points,), kind) for kind in (np.float32, np.int32)
        )
        return by_measure(
            *(number, number, whole, self.scatter, self.train, self.held_out, self.held_out)
        )


def by_measure(
    loss: Any,
    weight: Any,
    unmeasured: Any,
    scatter: Any,
    train: Mapping[str, Any],
    test: Mapping[str, Any] | None,
    validation: Mapping[str, Any] | None,
) -> dict[str, Mapping[str, Any]]:
    """The arrays of each measure of an evaluation, by the names under which they travel."""
    own = {"loss": loss, "weight": weight, "unmeasured": unmeasured}
    trees = {"scatter": scatter}
    for part, terms in (("train", train), ("test", test), ("validation", validation)):
        trees |= {f"{part}/{name}": each for name, each in (terms or {}).items()}
    return {
        "loss": {name: array for name, array in own.items() if array is not None},
        **{measure: prefixed(measure, tree) for measure, tree in trees.items()},
    }


def summable(shapes: Shapes) -> dict[str, Allowed]:
    """The arrays of each measure that is a sum, apart from measures of gradients."""
    return {name: each for name, each in shapes.by_measure().items() if name != "scatter"}


def summed_arrays(shapes: Shapes) -> Allowed:
    """The arrays of these measures."""
    return {name: like for each in summable(shapes).values() for name, like in each.items()}


def evaluation_shapes(model: Model, kind: DataKind, points: int) -> Shapes:
    """What nodes answer to an evaluation of a model."""
    x = in_shape((1, *kind.features), kind.feature_type)
    y = in_shape((1, *kind.label), kind.label_type)

    def terms(params: Any, x: Any, y: Any) -> Any:
        return terms_of(model.metrics, model.apply(params, x), y)

    by_row = jax.eval_shape(terms, model.shapes, x, y)

    def at_points(tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((points, *a.shape), np.float32), tree)

    metrics = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct((points, *a.shape[1:]), np.float32), by_row
    )
    number = jax.ShapeDtypeStruct((points,), np.float32)
    mean = {"sum": number, "rows": number}
    scatter = (number, at_points(model.shapes), number)
    held_out = {"loss": mean, "accuracy": mean, **metrics}
    least = 0.0 if model.loss is cross_entropy else -np.inf
    return Shapes(points, metrics, held_out, scatter, least, model.correct is not None)


class Declared(NamedTuple):
    """What a node says it holds, which bounds what it can measure.

    Attributes:
        share: Its share of all training rows.
        clients: Its clients.
        test: Its test rows.
        labels: Labels of its test rows.
        validation: Its validation rows.
        validation_labels: Labels of its validation rows, at most.
        central: Whether some of its validation rows belong to no client.
        weight: The largest weight of its measures.
    """

    share: float
    clients: int
    test: int
    labels: int
    validation: int
    validation_labels: int
    central: bool
    weight: float = 1.0


def declared_by(description: Description, share: float) -> Declared:
    """What a node says it holds."""
    clients, length = description.clients, math.prod(description.kind.label)
    test, validation = sum(clients.test), sum(clients.validation) + description.central_validation
    central = bool(description.central_validation)
    count = len(clients.names)
    labels = sum(clients.labels)
    return Declared(share, count, test, labels, validation, validation * length, central)


def declared_together(nodes: Sequence[Declared]) -> Declared:
    """What some nodes hold together, whose sums have each one's share already."""
    added = [sum(column) for column in zip(*nodes, strict=True)]
    together = Declared._make(added)
    central = any(each.central for each in nodes)
    return together._replace(share=1.0, weight=together.share, central=central)


class NodeSums(NamedTuple):
    """What a node with a share of all training rows answers to an evaluation, checked.

    Sums that are weighted by p_k are means over the node's own clients.
    """

    share: float
    sums: Mapping[str, Any]


def sums_of(arrays: Mapping[str, Array], shapes: Shapes, declared: Declared) -> NodeSums:
    """Check a node's answer to an evaluation, and read it."""
    kinds = {"loss": np.float32, "weight": np.float32, "unmeasured": np.int32}
    sums: dict[str, Any] = {}
    if "loss" in arrays:
        for name, kind in kinds.items():
            sums[name] = tree_of(jax.ShapeDtypeStruct((shapes.points,), kind), arrays, name)
        weight, unmeasured = sums["weight"], sums["unmeasured"]
        require(
            ((weight >= 0) & (weight <= declared.weight * (1 + ROUNDING))).all(),
            f"it measures weights {weight.tolist()}; they must be from 0 to {declared.weight:g}",
        )
        require(np.isfinite(sums["loss"]).all(), "its losses are not finite")
        _require_least("training", sums["loss"], shapes.least_loss)
        require(
            ((unmeasured >= 0) & (unmeasured <= declared.clients)).all(),
            f"it did not measure {unmeasured.tolist()} clients; it has {declared.clients}",
        )
    sums["train"] = _terms(arrays, "train", shapes.train)
    for part, rows, labels, central in (
        ("test", declared.test, declared.labels, False),
        ("validation", declared.validation, declared.validation_labels, declared.central),
    ):
        sums[part] = _terms(arrays, part, shapes.held_out)
        for name, most in (("loss", rows), ("accuracy", labels)):
            if name in sums[part]:
                has_value = name == "loss" or shapes.has_accuracy
                # a model that diverged has no finite loss on rows that are always measured
                _check_mean(part, name, sums[part][name], most, finite=has_value and not central)
        if "loss" in sums[part]:
            _require_least(part, sums[part]["loss"]["sum"], shapes.least_loss)
    if any(name.startswith("scatter") for name in arrays):
        sums["scatter"] = tree_of(shapes.scatter, arrays, "scatter")
        weight, means, scatter = sums["scatter"]
        known = (weight >= 0) & (weight <= 1 + ROUNDING) & ~(scatter < 0)
        for leaf in jax.tree.leaves(means):
            finite = np.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim)))
            known &= finite | (weight == 0)
        require(known.all(), "its gradients have a weight or scatter that cannot be")
    return NodeSums(declared.share, sums)


def _check_mean(
    part: str, name: str, mean: Mapping[str, Array], most: int, *, finite: bool
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
        name == "loss" or not ((total < 0) | (total > rows * (1 + ROUNDING))).any(),
        f"it counts {total.tolist()} correct {part} labels of {rows.tolist()}",
    )


def _require_least(part: str, losses: Array, least: float) -> None:
    require(
        not (losses < least).any(),
        f"its {part} losses are {losses.tolist()}; this model's are at least {least:g}",
    )


def _terms(arrays: Mapping[str, Array], part: str, like: Mapping[str, Any]) -> dict[str, Any]:
    """The terms of those measures of a part that a node reports."""
    return {
        name: tree_of(shape, arrays, f"{part}/{name}")
        for name, shape in like.items()
        if any(each in arrays for each in prefixed_names(f"{part}/{name}", shape))
    }


def measures_together(
    model: Model, nodes: Sequence[NodeSums], shapes: Shapes, *, validated: bool
) -> Measures:
    """The measures of an evaluation; None or NaN for what no node reports."""
    measured = [node for node in nodes if "loss" in node.sums]

    def shared(name: str) -> jax.Array:
        parts = [node.share * node.sums[name] for node in measured]
        given = summed(parts) if parts else np.full(shapes.points, np.nan, np.float32)
        return jnp.asarray(given)  # it divides by 0 without a warning

    def terms(part: str, like: Mapping[str, Any]) -> dict[str, Any]:
        sums = {}
        for name, shape in like.items():
            given = [node.sums[part][name] for node in nodes if name in node.sums[part]]
            unknown = jax.tree.map(lambda a: np.full(a.shape, np.nan, a.dtype), shape)
            sums[name] = summed(given) if given else unknown
        return sums

    scatters = [
        (node.share, Scatter(*node.sums["scatter"])) for node in nodes if "scatter" in node.sums
    ]
    weight = shared("weight")
    unmeasured = [node.sums["unmeasured"] for node in measured]
    sums = EvaluationSums(
        loss=shared("loss"),
        weight=weight,
        unmeasured=summed(unmeasured) if unmeasured else None,
        scatter=_merged(scatters, weight) if scatters else None,
        train=terms("train", shapes.train),
        test=terms("test", shapes.held_out),
        validation=terms("validation", shapes.held_out) if validated else None,
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
            distance = jax.vmap(optax.tree.norm)(apart) ** 2
            scatters.append(np.where(weight > 0, share * each.scatter + weight * distance, 0))
    return Scatter(total, means, summed(scatters) * (of / total))
