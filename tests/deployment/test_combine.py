"""Combining the answers of nodes equals plain loops over what they answered."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedprox.deployment.combine import (
    NodePart,
    arrays_of,
    combined,
    evaluation_shapes,
    measures_together,
)
from fedprox.deployment.conversation import Answered
from fedprox.deployment.payload import RoundPart
from fedprox.deployment.wire import Answer, ArrayKind, DataKind
from fedprox.measures import Scatter
from fedprox.metrics import Metric
from fedprox.model import Model
from fedprox.parts.faults import Faults
from fedprox.parts.part import Reduction
from tests.deployment.test_answers import jobs_of

SHAPES: dict[str, tuple[int, ...]] = {"a": (), "b": (2,), "c": (2, 3)}
"""The shapes of a message's leaves."""

JOBS = jobs_of([9] * 8, [0.125] * 8)
AT = {0: [0, 3], 1: [1], 2: [2, 4], 3: [5, 6]}
"""The jobs of each node; the node of job 7 did not answer."""

Means = Sequence[Sequence[float]]


def method_of(faults: Faults, *, private: bool = False) -> Any:
    """A method of two points, whose messages have the size of "a"."""
    client = SimpleNamespace(size=lambda message: jnp.abs(message["a"]))
    points: list[dict[str, float]] = [{}, {}]
    return SimpleNamespace(
        points=points,
        reduction=Reduction(screen=faults, fixed=private),
        algorithm=SimpleNamespace(client=client),
    )


def part_of(node: int, means: Sequence[float], weights: Sequence[float]) -> NodePart:
    """A node's part with these mean messages and weights at two points."""
    at = AT[node]
    weight, mean = np.array(weights, np.float32), np.array(means, np.float32)
    counts = np.tile(weight > 0, (len(at), 1))
    faulty = ~counts
    steps = 10 * np.array(at)[:, None] + [1, 2]
    message = {name: np.multiply.outer(weight * mean, np.ones(s)) for name, s in SHAPES.items()}
    message = jax.tree.map(lambda a: np.asarray(a, np.float32), message)
    part = RoundPart(message, weight, steps, counts, faulty)
    return NodePart(node, np.array(at), part, Answered(Answer(id=""), {}, 0, 0))


def result_of(
    faults: Faults, means: Means, weights: Means, *, private: bool = False, size: Any = None
) -> Any:
    parts = [part_of(i, *both) for i, both in enumerate(zip(means, weights, strict=True))]
    like = {n: jax.ShapeDtypeStruct((2, *s), np.float32) for n, s in SHAPES.items()}
    return combined(method_of(faults, private=private), JOBS, parts[::-1], like, size)


WEIGHTS = [(0.25, 0.5), (0.5, 0.25), (0.125, 0.25), (0.0, 0.5)]
ONE = [1.0] * 4


@pytest.mark.parametrize(
    ("faults", "means", "weights", "scales"),
    [
        # everyone counts
        (Faults("drop"), [(1, 2), (3, 4), (5, 6), (0, 8)], WEIGHTS, [ONE, ONE]),
        # one message is not finite at a point, and one is too large at the other
        (
            Faults("drop", norm=3.0),
            [(1, 90), (3, 4), (np.inf, 6), (0, 8)],
            WEIGHTS,
            [[1, 1, 0, 0], [0, 1, 1, 1]],
        ),
        (Faults("drop", norm=3.0), [(9, 1), (3, 4), (-5, 6), (0, 8)], WEIGHTS, [ONE, ONE]),
        # the medians of (1, 3, 50) and (2, 4, 6, 80) are 3 and 4
        (
            Faults("clip", norm=2.0),
            [(1, 2), (3, 4), (50, -80), (0, 6)],
            WEIGHTS,
            [[1, 1, 6 / 50, 0], [1, 1, 8 / 80, 1]],
        ),
        # sizes are not compared, and a weight may be large
        (Faults("drop", norm=np.inf), [(1, 2), (3, 4), (-5, 900), (0, 2)], WEIGHTS, [ONE, ONE]),
        (Faults("drop"), [(1, 2), (3, 4)], [(40, 2), (3, 0.5)], [[1, 1], [1, 1]]),
        (Faults("drop"), [(1, 2)], [(0.25, 0.5)], [[1], [1]]),
        # nobody counts
        (
            Faults("drop"),
            [(1, np.nan), (3, np.inf), (5, np.nan), (0, np.inf)],
            [(0, 0.5), (0, 0.25), (0, 0.25), (0, 0.5)],
            [[0] * 4, [0] * 4],
        ),
    ],
)
@pytest.mark.parametrize("private", [False, True])
def test_the_mean_of_a_round_is_that_of_the_messages_that_count(
    faults: Faults, means: Means, weights: Means, scales: Means, private: bool
) -> None:
    result = result_of(faults, means, weights, private=private)
    counts, faulty = np.zeros((8, 2), bool), np.zeros((8, 2), bool)
    steps = np.zeros((8, 2), int)
    for point in (0, 1):
        total = summed = 0.0
        for node in range(len(means)):
            scale, weight = scales[point][node], weights[node][point]
            jobs = AT[node]
            steps[jobs, point] = 10 * np.array(jobs) + point + 1
            counts[jobs, point] = weight > 0 and scale > 0
            faulty[jobs, point] = weight == 0 or scale < 1
            if scale > 0 and weight > 0:
                total += weight
                summed += scale * weight * means[node][point]
        mean = summed if private else summed / (total or 1)
        for name, shape in SHAPES.items():
            assert result.mean[name].dtype == np.float32
            expected = np.full(shape, mean)
            np.testing.assert_allclose(result.mean[name][point], expected, rtol=1e-6)
    np.testing.assert_array_equal(result.counts, counts)
    np.testing.assert_array_equal(result.faulty, faulty)
    np.testing.assert_array_equal(result.steps, steps)


def test_sizes_are_the_methods_unless_others_are_given() -> None:
    def last_of(message: Any) -> Any:
        return message["c"][1, 2] * 0 + 1

    means, weights = [(1, 1), (2, 2), (90, 1)], [(1, 1)] * 3
    assert result_of(Faults("drop"), means, weights).faulty[[2, 4], 0].all()
    assert not result_of(Faults("drop"), means, weights, size=last_of).faulty.any()
    norms = result_of(Faults("drop"), means, weights, size=optax.tree.norm)
    assert norms.faulty[[2, 4], 0].all()


def test_the_order_of_answers_changes_no_bit() -> None:
    means, weights = [(1e8, 1), (1, 1), (-1e8, 1), (0.1, 1)], [(0.3, 0.3)] * 4
    result = result_of(Faults("drop", norm=np.inf), means, weights)
    for order in ([2, 0, 3, 1], [1, 3, 0, 2], [0, 1, 2, 3]):
        parts = [result.parts[i] for i in order]
        other = combined(method_of(Faults("drop", norm=np.inf)), JOBS, parts, None)
        assert jax.tree.all(jax.tree.map(np.array_equal, other.mean, result.mean))


def test_a_round_without_answers_has_no_message() -> None:
    result = result_of(Faults("drop"), [], [])
    assert {name: (a.shape, a.dtype) for name, a in result.mean.items()} == {
        name: ((2, *shape), np.float32) for name, shape in SHAPES.items()
    }
    for array in (*jax.tree.leaves(result.mean), result.steps, result.counts, result.faulty):
        assert not array.any()
    assert result.steps.shape == result.counts.shape == result.faulty.shape == (8, 2)
    assert (result.steps.dtype, result.counts.dtype) == (np.int64, np.bool_)


def near(outputs: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    """Terms of a metric, one of which is a vector."""
    assert y.dtype == jnp.int32
    assert len(outputs) == len(y)
    return {"near": jnp.abs(outputs - y[:, None]) < 1, "rows": jnp.ones(len(y))}


def init(key: jax.Array) -> dict[str, jax.Array]:
    del key
    return {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}


def apply(params: Any, x: jax.Array) -> jax.Array:
    assert x.dtype == jnp.float32
    return x @ params["w"] + params["b"]


def apart(outputs: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum((outputs - y[:, None]) ** 2, axis=1)


METRIC = Metric(near, lambda sums: sums["near"].sum() / sums["rows"])
MODEL = Model(init, apply, apart, metrics={"near": METRIC})
KIND = DataKind(
    classes=0,
    features=[ArrayKind(name="", shape=[3], type="float64", greatest=0)],
    label=[],
    label_type="int64",
    augmented=False,
)


def test_what_nodes_answer_to_an_evaluation() -> None:
    single, whole = np.float32, np.int32
    shapes = evaluation_shapes(MODEL, KIND, 4)
    names: dict[str, Any] = {
        "train/near['near']": ((4, 2), single),
        "train/near['rows']": ((4,), single),
        "scatter[0]": ((4,), single),
        "scatter[1]['b']": ((4, 2), single),
        "scatter[1]['w']": ((4, 3, 2), single),
        "scatter[2]": ((4,), single),
    }
    for part in ("test", "validation"):
        for name in ("loss", "accuracy"):
            names |= {f"{part}/{name}['{term}']": ((4,), single) for term in ("sum", "rows")}
        names |= {f"{part}/near['near']": ((4, 2), single), f"{part}/near['rows']": ((4,), single)}
    names |= {"loss": ((4,), single), "weight": ((4,), single), "unmeasured": ((4,), whole)}
    given = {name: (a.shape, a.dtype.type) for name, a in arrays_of(shapes).items()}
    assert given == names
    classes = evaluation_shapes(Model(init, apply), KIND, 1)
    held_out = {
        f"{part}/{name}" for part in ("test", "validation") for name in ("loss", "accuracy")
    }
    assert classes.keys() == {"loss", "weight", "unmeasured", "scatter"} | held_out


GRADIENTS = {
    "b": np.array([[[1.0, 2.0], [0.0, 4.0]], [[3.0, -2.0], [8.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]]]),
    "w": np.arange(36.0).reshape(3, 2, 3, 2) / 7,
}
"""The gradients of three clients at two points."""

P = np.array([0.5, 0.2, 0.3])
"""The clients' weights."""


def scatter_of(clients: Sequence[int], p: Any) -> Scatter:
    """The scatter of some clients' gradients at two points, with weights (clients, points)."""
    weight = np.asarray(p).sum(axis=0)
    gradients = {name: a[list(clients)] for name, a in GRADIENTS.items()}
    mean = {name: np.einsum("kp,kp...->p...", p, a) for name, a in gradients.items()}
    mean = {n: a / weight.reshape((-1,) + (1,) * (a.ndim - 1)) for n, a in mean.items()}
    squares = sum(
        ((a - mean[n]) ** 2).reshape(len(clients), 2, -1).sum(axis=2) for n, a in gradients.items()
    )
    single = jax.tree.map(lambda a: a.astype(np.float32), mean)
    scatter = (p * squares).sum(axis=0).astype(np.float32)
    return Scatter(weight.astype(np.float32), single, scatter)


def mean(sum_: Sequence[float], rows: Sequence[float]) -> dict[str, Any]:
    return {"sum": np.array(sum_, np.float32), "rows": np.array(rows, np.float32)}


def metric(scale: float) -> dict[str, Any]:
    numbers = scale * np.array([[1, 2], [3, 4]], np.float32)
    return {"near": numbers, "rows": numbers.sum(axis=1) + scale}


MEASURED = evaluation_shapes(MODEL, KIND, 2)


def test_the_measures_of_nodes_are_those_of_all_clients() -> None:
    """Two nodes report gradients, other two report losses, one neither."""
    share = [0.5, 0.3, 0.2]
    one: dict[str, Any] = {
        "loss": np.array([2.0, 8.0], np.float32),
        "weight": np.array([1.0, 0.5], np.float32),
        "unmeasured": np.array([0, 1], np.int32),
        "scatter": tuple(scatter_of([0], np.array([[1.0, 0.5]]))),
        "train/near": metric(1.0),
        "test/loss": mean([3, 4], [2, 4]),
        "test/accuracy": mean([3, 5], [8, 8]),
        "test/near": metric(0.5),
        "validation/loss": mean([3, 5], [2, 2]),
        "validation/accuracy": mean([1, 2], [4, 4]),
    }
    two = {
        "scatter": tuple(scatter_of([1, 2], np.array([[0.4, 1.0], [0.6, 0.0]]))),
        "train/near": metric(3.0),
        "test/loss": mean([1, 4], [2, 1]),
        "test/accuracy": mean([2, 0], [2, 2]),
    }
    three = {
        "loss": np.array([5.0, 1.0], np.float32),
        "weight": np.array([0.5, 1.0], np.float32),
        "unmeasured": np.array([2, 0], np.int32),
        "validation/loss": mean([1, 1], [2, 1]),
    }
    measured: list[dict[str, Any]] = [one, two, three]
    nodes = [*zip(share, measured, strict=True)]
    measures = measures_together(MODEL, nodes, MEASURED, validated=True)
    weight = np.array([0.5 * 1 + 0.2 * 0.5, 0.5 * 0.5 + 0.2 * 1])
    loss = np.array([0.5 * 2 + 0.2 * 5, 0.5 * 8 + 0.2 * 1])
    near = pytest.approx
    assert measures.train_loss == near(loss / weight)
    assert np.asarray(measures.unmeasured).tolist() == [2, 1]
    p = np.array([[0.5, 0.25], [0.12, 0.3], [0.18, 0.0]])
    pooled = scatter_of([0, 1, 2], p)
    variance = pooled.scatter / pooled.weight
    assert measures.gradient_variance == near(variance, rel=1e-5)
    squared = sum((a.reshape(2, -1) ** 2).sum(axis=1) for a in pooled.mean.values())
    assert measures.dissimilarity == near(np.sqrt(1 + variance / squared), rel=1e-5)
    held_out = {name: each["sum"] / each["rows"] for name, each in measures.held_out.items()}
    assert held_out["test_accuracy"] == near([0.5, 0.5])
    assert held_out["test_loss"] == near([1.0, 8 / 5])
    assert measures.metrics["train_near"] == near([12 / 16, 28 / 32])
    assert measures.metrics["test_near"] == near([1.5 / 2, 3.5 / 4])
    assert np.isnan(measures.metrics["validation_near"]).all()
    assert measures.metrics["validation_near"].dtype == np.float32
    assert held_out["validation_loss"] == near([1.0, 2.0])
    assert held_out["validation_accuracy"] == near([0.25, 0.5])
    assert measures.by_client is None


def test_what_no_node_reports_is_nan() -> None:
    number = np.array([1, 0], np.float32)
    sums: dict[str, Any] = {"loss": number, "weight": number, "unmeasured": np.zeros(2, np.int32)}
    measures = measures_together(MODEL, [(1.0, sums)], MEASURED, validated=False)
    assert measures.gradient_variance is measures.dissimilarity is None
    for name in ("train_near", "test_near"):
        np.testing.assert_array_equal(measures.metrics[name], [np.nan, np.nan])
    np.testing.assert_array_equal(measures.train_loss, [1, np.nan])
    assert np.isnan(np.concatenate(jax.tree.leaves(measures.held_out))).all()
    assert "validation_near" not in measures.metrics


def test_gradients_of_nodes_without_a_measured_client_do_not_count() -> None:
    """The mean of no gradients is not a number."""
    number = np.ones(2, np.float32)
    sums: dict[str, Any] = {"loss": number, "weight": number, "unmeasured": np.zeros(2, np.int32)}

    def variance(*weights: Sequence[float]) -> list[float]:
        nodes = []
        for clients, weight in zip(([0, 1], [2]), weights, strict=True):
            each = scatter_of(clients, np.full((len(clients), 2), 1 / len(clients)))
            known = np.array(weight, np.float32)
            means, scatter = jax.tree.map(
                lambda a, known=known: np.where(
                    known.reshape((2,) + (1,) * (a.ndim - 1)), a, np.nan
                ),
                each[1:],
            )
            given = sums | {"scatter": (known, means, scatter)}
            nodes.append((0.5, given))
        measures = measures_together(MODEL, nodes, MEASURED, validated=False)
        return np.asarray(measures.gradient_variance).tolist()

    alone = scatter_of([0, 1], np.full((2, 2), 0.5)).scatter
    both = variance([1, 1], [1, 1])
    near = pytest.approx
    assert variance([1, 1], [0, 1]) == near([alone[0], both[1]], rel=1e-5)
    assert variance([1, 0], [0, 0]) == near([alone[0], np.nan], rel=1e-5, nan_ok=True)
