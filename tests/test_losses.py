"""The library's losses: their formulas in plain NumPy, and which of them a model has by default."""

import dataclasses
import math
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedprox as fp
from fedprox.engine.compiled import evaluation
from fedprox.losses import LOSSES, by_labels, fitting, is_of_library, met_by_labels, top_1
from fedprox.model import check as checks
from fedprox.same import by_value
from tests import outputs as oracle
from tests.quadratics import one_run

Array = NDArray[Any]

SHAPES = ((6,), (4, 3), (3, 2, 5))
"""Shapes of labels: a class for each row, sequences, and a class at each pixel."""

WEIGHTS, SMOOTHING, CLASSES = (0.5, 0.0, 2.0, 1.5), 0.2, 4

OF_CLASSES = {
    "plain": fp.losses.cross_entropy(),
    "weights": fp.losses.cross_entropy(weights=WEIGHTS),
    "smoothing": fp.losses.cross_entropy(smoothing=SMOOTHING),
    "both": fp.losses.cross_entropy(weights=WEIGHTS, smoothing=SMOOTHING),
    "by labels": by_labels,
}
OF_NUMBERS = {
    "sigmoid": fp.losses.sigmoid_cross_entropy(),
    "squared": fp.losses.squared(),
    "huber": fp.losses.huber(delta=0.5),
}


@jax.jit
def computed(cases: Any) -> Any:
    """All losses of all shapes, in one program."""
    found: dict[str, Any] = {}
    for i, (outputs, y, numbers) in enumerate(cases):
        found |= {f"{name} {i}": loss(outputs, y) for name, loss in OF_CLASSES.items()}
        found[f"met {i}"] = met_by_labels(outputs, y)
        last = outputs[..., :1] if i else outputs[..., 0]  # a last axis of 1 does not count
        found |= {f"{name} {i}": loss(last, numbers[name]) for name, loss in OF_NUMBERS.items()}
        found[f"sigmoid met {i}"] = met_by_labels(outputs[..., 0], numbers["sigmoid"])
    return found


def of_label(z: Array, y: int, weights: Any, smoothing: float) -> float:
    """The loss of one label."""
    log_p = z - z.max() - math.log(np.exp(z - z.max()).sum())
    q = [(1 - smoothing) * (c == y) + smoothing / CLASSES for c in range(CLASSES)]
    return -sum(weights[c] * q[c] * log_p[c] for c in range(CLASSES))


def mean_of_known(values: list[float]) -> float:
    return sum(values) / max(len(values), 1)


@given(st.integers(0, 10**6))
def test_losses_are_their_formulas(seed: int) -> None:
    """Weights, smoothing, and rows with all, some or no labels."""
    rng = np.random.default_rng(seed)
    cases: list[tuple[Array, Array, dict[str, Array]]] = []
    for shape in SHAPES:
        least = -1 if len(shape) > 1 else 0
        y = rng.integers(least, CLASSES, shape).astype(np.int32)
        binary = rng.integers(least, 2, shape).astype(np.int32)
        if len(shape) > 1:
            y[0] = binary[0] = -1
        z = (3 * rng.normal(size=(*shape, CLASSES))).astype(np.float32)
        target = rng.normal(size=shape).astype(np.float32)
        cases.append((z, y, {"sigmoid": binary, "squared": target, "huber": target}))
    found = jax.device_get(computed(cases))
    ones = [1.0] * CLASSES
    arguments: dict[str, tuple[Any, float]] = {
        "plain": (ones, 0.0),
        "weights": (WEIGHTS, 0.0),
        "smoothing": (ones, SMOOTHING),
        "both": (WEIGHTS, SMOOTHING),
        "by labels": (ones, 0.0),
    }
    for i, (z, y, numbers) in enumerate(cases):
        for row in range(len(y)):
            labels = [(z[row].reshape(-1, CLASSES)[j], c) for j, c in enumerate(y[row].flat)]
            for name, given_ in arguments.items():
                expected = [of_label(a.astype(float), c, *given_) for a, c in labels if c >= 0]
                np.testing.assert_allclose(
                    found[f"{name} {i}"][row], mean_of_known(expected), rtol=2e-5, atol=2e-6
                )
            o = z[row][..., 0].astype(float).ravel()
            of_sigmoid = [
                math.log1p(math.exp(-abs(a))) + max(a, 0) - a * b
                for a, b in zip(o, numbers["sigmoid"][row].flat, strict=True)
                if b >= 0
            ]
            error = o - numbers["squared"][row].ravel()
            large = np.abs(error) > 0.5
            of_huber = np.where(large, 0.5 * np.abs(error) - 0.125, error**2 / 2)
            for name, expected_ in (
                ("sigmoid", mean_of_known(of_sigmoid)),
                ("squared", float((error**2).mean())),
                ("huber", float(of_huber.mean())),
            ):
                np.testing.assert_allclose(
                    found[f"{name} {i}"][row], expected_, rtol=2e-5, atol=2e-6
                )
        np.testing.assert_array_equal(found[f"met {i}"], z.argmax(axis=-1) == y)
        binary = numbers["sigmoid"]
        right = ((z[..., 0] > 0) == (binary == 1)) & (binary >= 0)
        np.testing.assert_array_equal(found[f"sigmoid met {i}"], right)


@pytest.mark.parametrize(("name", "weights"), [("plain", np.ones(CLASSES)), ("weights", WEIGHTS)])
def test_the_gradient_of_cross_entropy_is_the_softmax_without_the_label(
    name: str, weights: Any
) -> None:
    """And no scatter, which is slow on CPUs. The loss of a label that is no class is NaN."""
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(6, CLASSES)).astype(np.float32), np.arange(6) % CLASSES

    def total(outputs: jax.Array) -> jax.Array:
        return OF_CLASSES[name](outputs, jnp.asarray(y)).sum()

    softmax = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    expected = np.asarray(weights)[y][:, None] * (softmax - np.eye(CLASSES)[y])
    np.testing.assert_allclose(jax.jit(jax.grad(total))(z), expected, rtol=1e-5, atol=1e-6)
    assert "scatter" not in str(jax.make_jaxpr(jax.grad(total))(z))
    assert np.isnan(fp.losses.cross_entropy()(jnp.asarray(z[:2]), jnp.array([-1, CLASSES]))).all()


def test_what_has_no_label_changes_nothing_and_a_nan_meets_no_label() -> None:
    def slopes(outputs: jax.Array, y: jax.Array) -> Any:
        losses = (fp.losses.cross_entropy(smoothing=0.1), fp.losses.sigmoid_cross_entropy())
        both = [jax.grad(lambda o, loss=loss: loss(o, y).sum()) for loss in losses]
        return both[0](outputs), both[1](outputs[..., 0])

    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(2, 3, 2)).astype(np.float32), np.array([[1, -1, 0], [-1, -1, 1]])
    of_classes, of_numbers = jax.jit(slopes)(z, y)
    assert (np.asarray(of_classes)[y < 0] == 0).all()
    assert (np.asarray(of_numbers)[y < 0] == 0).all()
    assert np.asarray(of_classes)[y >= 0].all()
    broken = z + np.where(np.arange(2) == 1, np.nan, 0)[:, None, None]
    met = jax.jit(met_by_labels)
    assert not np.asarray(met(broken, y))[1].any()
    assert not np.asarray(met(broken[..., 0], y))[1].any()


def test_losses_with_equal_arguments_are_equal_and_the_librarys() -> None:
    made = fp.losses.cross_entropy(weights=[1, 2], smoothing=0.1)
    same = fp.losses.cross_entropy(weights=np.array([1.0, 2.0]), smoothing=0.1)
    others = [
        fp.losses.cross_entropy(weights=[1, 3], smoothing=0.1),
        fp.losses.cross_entropy(weights=[1, 2]),
        fp.losses.cross_entropy(),
        *OF_NUMBERS.values(),
    ]
    assert made == same == pickle.loads(pickle.dumps(made))
    assert hash(made) == hash(same)
    assert by_value(made) == by_value(same)
    assert all(made != other and by_value(made) != by_value(other) for other in others)
    assert all(map(checks.is_of_library, [made, by_labels, *others]))
    assert all(map(is_of_library, [made, by_labels, *others]))
    assert not is_of_library(lambda outputs, y: outputs - y)


def test_arguments_that_cannot_be_are_one_line() -> None:
    untyped: Any = fp.losses
    for call, line in (
        (
            lambda: untyped.cross_entropy(weights=[1, -1]),
            "weights = [1, -1]; they must be at least",
        ),
        (lambda: untyped.cross_entropy(weights=[0, 0]), "weights = [0, 0]; they must be at least"),
        (lambda: untyped.cross_entropy(weights=[math.nan, 1]), "weights = [nan, 1]; they must be"),
        (lambda: untyped.cross_entropy(weights=2.0), "weights = 2.0; it must be a list"),
        (lambda: untyped.cross_entropy(weights=["a"]), "weights = ['a']; it must be a list"),
        (lambda: untyped.cross_entropy(smoothing=1.0), "smoothing = 1.0; it must be at least 0 an"),
        (lambda: untyped.cross_entropy(smoothing=-0.1), "smoothing = -0.1; it must be"),
        (lambda: untyped.huber(delta=0), "delta = 0; it must be"),
    ):
        with pytest.raises(fp.InputError) as refused:
            call()
        assert line in str(refused.value)
    for name in LOSSES:
        with pytest.raises(fp.InputError, match=rf"fp.losses.{name}; call it: fp.losses.{name}\("):
            fp.Model(lambda _: jnp.ones(1), lambda w, x: w * x, getattr(fp.losses, name))


def spec(shape: tuple[int, ...], kind: Any = np.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, kind)


@pytest.mark.parametrize(
    ("outputs", "labels", "kind", "loss"),
    [
        ((7, 3), (7,), np.int32, fp.losses.cross_entropy()),
        ((7, 5, 3), (7, 5), np.int32, fp.losses.cross_entropy()),
        ((7, 4, 4, 3), (7, 4, 4), np.int32, fp.losses.cross_entropy()),
        ((7, 1), (7,), np.int32, fp.losses.cross_entropy()),
        ((7, 5), (7, 5), np.int32, fp.losses.sigmoid_cross_entropy()),
        ((7,), (7,), np.int32, fp.losses.sigmoid_cross_entropy()),
        ((7,), (7,), np.float32, fp.losses.squared()),
        ((7, 1), (7,), np.float32, fp.losses.squared()),
        ((7, 2), (7, 2), np.float32, fp.losses.squared()),
        ((7, 3), (7, 2), np.int32, "cross-entropy needs an output for each class at each label"),
        ((7, 3, 4, 4), (7, 4, 4), np.int32, "along the last axis"),
        ((7, 3), (7,), np.float32, "regression needs one output for each label"),
    ],
)
def test_the_default_loss_is_what_shapes_and_types_say(
    outputs: tuple[int, ...], labels: tuple[int, ...], kind: Any, loss: Any
) -> None:
    given_ = spec(outputs), spec(labels, kind)
    if isinstance(loss, str):
        with pytest.raises(fp.InputError, match=loss):
            fitting(*given_)
    else:
        assert fitting(*given_) == loss


def linear(shape: tuple[int, ...], loss: Any = by_labels) -> fp.Model:
    """A linear model of four features with outputs of a shape."""

    def apply(w: Any, x: jax.Array) -> jax.Array:
        return jnp.tensordot(x, w, 1)

    def init(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (4, *shape))

    return fp.Model(init, apply, loss)


def labelled(y: Array, classes: int | None = None) -> fp.Federation:
    """Two clients with equal labels and four random features."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(len(y), 4)), y) for _ in range(2)]
    return fp.Federation.from_arrays(clients, clients, classes=classes)


TAGS = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]])
ONE_HOT = np.eye(3, dtype=int)[[0, 1, 2, 0, 1]]


@pytest.mark.parametrize(
    ("labels", "shape", "loss", "line"),
    [
        (ONE_HOT, (3,), by_labels, r"one 1: if they are classes, give numpy.argmax\(y, axis=1\)"),
        (TAGS + 1, (3,), by_labels, "labels up to 2: sigmoid cross-entropy needs 0 and 1; for cla"),
        (TAGS * 1.0, (3,), by_labels, "which are 0.0 and 1.0: give loss=fedprox.losses.sigmoid_c"),
        (ONE_HOT * 1.0, (3,), by_labels, "of which each row has one 1"),
        (TAGS[:, 0], (1,), by_labels, "1 outputs for 2 classes; .* and loss=fedprox.losses.sigm"),
        (TAGS[:, 1] * 2, (2,), fp.losses.cross_entropy(), "2 outputs for 3 classes; it needs one"),
        (
            TAGS[:, 1],
            (2,),
            fp.losses.cross_entropy(weights=[1, 2, 3]),
            "weights: 3 weights for 2 outputs",
        ),
        (TAGS, (3,), fp.losses.cross_entropy(), "an output for each class at each label"),
        (TAGS[:, 0] / 2, (2,), fp.losses.cross_entropy(), "cross-entropy needs whole numbers"),
        (TAGS, (2,), fp.losses.squared(), r"squared: outputs float32\[2,2\] for labels int32\[2,3"),
        (TAGS * 1.5, (3,), fp.losses.sigmoid_cross_entropy(), r"labels up to 1.5: sigmoid"),
    ],
)
def test_labels_that_a_loss_does_not_fit_are_refused_with_what_does(
    labels: Array, shape: tuple[int, ...], loss: Any, line: str
) -> None:
    with pytest.raises(fp.InputError, match=line):
        checks.check_model(linear(shape, loss), labelled(labels))


@pytest.mark.parametrize(
    ("labels", "shape", "loss"),
    [
        (TAGS, (3,), by_labels),
        (TAGS - 1, (3,), by_labels),  # -1 and 0: some are not known
        (TAGS[:, 0], (), by_labels),
        (TAGS[:, 0], (1,), fp.losses.sigmoid_cross_entropy()),
        (TAGS * 1.0, (3,), fp.losses.sigmoid_cross_entropy()),
        (TAGS * 1.0, (3,), fp.losses.squared()),
        (TAGS * 0.5, (3,), by_labels),
        (ONE_HOT[:4], (3,), by_labels),  # few rows may be tagged so
        (TAGS, (3,), fp.losses.huber()),
        (ONE_HOT, (3,), fp.losses.sigmoid_cross_entropy()),
    ],
)
def test_labels_that_a_loss_fits_are_taken(
    labels: Array, shape: tuple[int, ...], loss: Any
) -> None:
    checks.check_model(linear(shape, loss), labelled(labels))


def test_label_maps_are_measured_by_pixel() -> None:
    """A client's loss is a mean over rows, accuracy a share of all pixels with a label."""
    rng = np.random.default_rng(1)
    y = rng.integers(-1, 3, (5, 2, 3))
    federation, model = labelled(y), linear((2, 3, 3))
    params = np.asarray(model.init(jax.random.key(0)))
    found = fp.evaluate(model, params, federation)
    for k, loss in enumerate(found.by_client["train_loss"]):
        x, labels = federation.train.client(k)
        outputs = np.tensordot(np.asarray(x, float), params.astype(float), 1)
        assert loss == pytest.approx(oracle.losses(outputs, labels).mean(), rel=1e-5)
        share = oracle.met(outputs, labels).sum() / (labels >= 0).sum()
        assert found.by_client["test_accuracy"][k] == pytest.approx(share)


def trained(model: fp.Model, y: Array) -> fp.Run:
    return one_run(labelled(y), model, fp.fedlc(0.5), fp.Solver(0.1, 2, epochs=1))


@pytest.mark.slow
def test_maps_of_one_pixel_train_like_classes() -> None:
    """FedLC counts labels, so it reads maps in every way that the engine does."""
    y, loss = np.array([0, 2, 1, 2, 0]), fp.losses.cross_entropy(weights=[1, 2, 0.5])
    plain = trained(linear((3,), loss), y)
    mapped = trained(linear((1, 1, 3), loss), y[:, None, None])
    # equal draws: a flat key makes the same numbers in either shape
    np.testing.assert_allclose(mapped.params.reshape(4, 3), plain.params, rtol=1e-5, atol=1e-6)
    assert mapped.final.test_accuracy == plain.final.test_accuracy


@pytest.mark.slow
def test_a_regression_by_default_has_no_accuracy_and_tags_have() -> None:
    y = np.array([0.5, -1.0, 2.0])
    run = one_run(labelled(y), linear((1,)), fp.fedavg(), fp.Solver(0.1, 2, epochs=1))
    assert math.isnan(run.final.test_accuracy)
    assert run.final.train_loss < run.history[0].train_loss
    federation, model = labelled(TAGS), linear((3,))
    found = fp.evaluate(model, model.init(jax.random.key(0)), federation)
    outputs = federation.test.x @ np.asarray(model.init(jax.random.key(0)))
    assert found.test_accuracy == pytest.approx(((outputs > 0) == (federation.test.y > 0)).mean())


def test_more_labels_than_a_number_counts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_LABELS", 29)
    y = np.arange(30).reshape(5, 2, 3) % 3  # 60 test labels of two clients
    with pytest.raises(fp.InputError, match="60 test labels are counted in one number, which hol"):
        one_run(labelled(y, 3), linear((2, 3, 3)), fp.fedavg(), fp.Solver(0.1, 2, epochs=1))


def test_accuracy_of_ones_own_counts_beside_a_default_loss() -> None:
    def near(outputs: jax.Array, y: jax.Array) -> jax.Array:
        return abs(outputs[:, 0] - y) < 1e9

    model = dataclasses.replace(linear((1,)), correct=near)
    found = fp.evaluate(model, model.init(jax.random.key(0)), labelled(np.array([0.5, 1.0])))
    assert found.test_accuracy == 1


def test_another_loss_brings_its_accuracy() -> None:
    model = linear((3,))
    assert dataclasses.replace(model, loss=fp.losses.squared()).correct is None
    assert dataclasses.replace(model, loss=fp.losses.cross_entropy(smoothing=0.1)).correct is top_1
    own = dataclasses.replace(model, loss=lambda outputs, y: fitting(outputs, y)(outputs, y) ** 2)
    assert own.correct is met_by_labels  # as of the classes that it had
