"""The sums of an evaluation: what nodes answer, checked and added."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedprox.algorithms.base import ROUNDING
from fedprox.deployment.combine import summed, weighted
from fedprox.deployment.messages import (
    Allowed,
    Array,
    DataKind,
    Description,
    prefixed_names,
    tree_of,
)
from fedprox.errors import require
from fedprox.measures import Scatter
from fedprox.messages.sums import beside
from fedprox.metrics import terms_of
from fedprox.model import Model, cross_entropy
from fedprox.precision import in_shape
from fedprox.simulation.compiled.evaluation import EvaluationSums, Measures, measures_of_sums


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
        trees = {"scatter": self.scatter}
        trees |= {f"train/{name}": like for name, like in self.train.items()}
        for part in ("test", "validation"):
            trees |= {f"{part}/{name}": like for name, like in self.held_out.items()}
        return {
            "loss": {"loss": number, "weight": number, "unmeasured": whole},
            **{
                measure: dict(
                    zip(prefixed_names(measure, tree), jax.tree.leaves(tree), strict=True)
                )
                for measure, tree in trees.items()
            },
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
    """What a node says it holds.

    Args:
        description: What the node says of itself.
        share: Its share of all training rows.
    """
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
    """What a node answers to an evaluation, checked; None for what it does not report.

    Attributes:
        share: The node's share of all training rows.
        sums: Its sums, with means over its own clients where they are weighted by p_k.
    """

    share: float
    sums: Mapping[str, Any]


def sums_of(arrays: Mapping[str, Array], shapes: Shapes, declared: Declared) -> NodeSums:
    """Check a node's answer to an evaluation, and read it.

    Args:
        arrays: The arrays of the answer.
        shapes: What nodes answer, in shape.
        declared: What the node says it holds.

    Raises:
        InputError: If an array is missing, has another shape, or is not what a node can measure.
    """
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
    """Raise `InputError` unless a measure's sum and number of rows can be.

    Args:
        part: "test" or "validation".
        name: "loss" or "accuracy".
        mean: The sum and the number of rows, or of labels.
        most: The largest number that the node can have.
        finite: Whether the sum must be finite.
    """
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


def measures_of(
    model: Model, nodes: Sequence[NodeSums], shapes: Shapes, *, validated: bool
) -> Measures:
    """The measures of an evaluation; None or NaN for what no node reports.

    Args:
        model: The model.
        nodes: The answers.
        shapes: What nodes answer, in shape.
        validated: Whether there are validation rows.
    """
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
    """Merge the scatters of nodes, each with its share.

    Args:
        parts: The nodes' shares and scatters.
        of: The weight (points,) of the measures, by which they are divided. Nodes that report
            losses need not be those that report gradients.
    """
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
