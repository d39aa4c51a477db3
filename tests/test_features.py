"""Kept features train as the arrays they stand for; augmentation; sampled measurements."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprox import (
    Cohort,
    Evaluation,
    Federation,
    InputError,
    Model,
    Rows,
    Run,
    Solver,
    evaluate,
    feddane,
    fedprox,
    simulate,
)
from fedprox.devices.mesh import lane_mesh
from fedprox.devices.processes import find_ownership
from fedprox.diagnostics.clients import client_measures
from fedprox.engine.planning.batch_plan import Capacity, Shape, plan_rounds
from fedprox.engine.planning.jobs import Jobs
from fedprox.engine.storage.training_data import copy_to_devices
from fedprox.features import Features, Prepared, Vectors, Windows
from fedprox.models import logistic

SIZES = [7, 1, 12, 5]
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)]).astype(np.int64)
DRAW = np.random.default_rng(0)
LABELS = DRAW.integers(3, size=sum(SIZES)).astype(np.int32)


def twice(raw: jax.Array) -> jax.Array:
    return raw.astype(jnp.float32) * 2


def federation_of(x: Features, **options: Any) -> Federation:
    rows = Rows(x, LABELS, OFFSETS)
    return Federation(rows, rows, 3, tuple("abcd"), **options)


KINDS: dict[str, Features] = {
    "windows": Windows(
        DRAW.integers(5, size=60).astype(np.uint8),
        DRAW.integers(56, size=sum(SIZES)).astype(np.int32),
        4,
    ),
    "vectors": Vectors(
        DRAW.integers(6, size=(sum(SIZES), 3)).astype(np.int32),
        DRAW.normal(size=(6, 2)).astype(np.float32),
    ),
    "prepared": Prepared(DRAW.integers(9, size=(sum(SIZES), 2, 2)).astype(np.uint8), twice),
}


def linear(features: jax.ShapeDtypeStruct) -> Model:
    """A linear model on floating-point features or one on symbols."""
    shape = (int(np.prod(features.shape)), 3)

    def apply(w: jax.Array, x: jax.Array) -> jax.Array:
        assert x.dtype == features.dtype
        assert x.shape[1:] == features.shape
        return x.reshape(len(x), -1).astype(jnp.float32) @ w

    return Model(lambda _: jnp.zeros(shape), apply)


def train(federation: Federation, model: Model, **options: Any) -> Run:
    settings: dict[str, Any] = {
        "solver": Solver(learning_rate=0.1, batch_size=4, epochs=2),
        "cohort": Cohort(3),
        "rounds": 3,
        "evaluation": Evaluation(gradients=False),
    }
    return simulate(federation, model, fedprox(mu=0.1), **settings | options)[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kept_features_train_like_the_array_they_stand_for(kind: str) -> None:
    kept = KINDS[kind]
    array = np.asarray(kept)
    assert kept.shape == array.shape
    assert kept.dtype == array.dtype
    np.testing.assert_array_equal(np.asarray(kept[3:6]), array[3:6])
    np.testing.assert_array_equal(np.asarray(kept[np.array([4, 0])]), array[[4, 0]])
    ours, plain = federation_of(kept), federation_of(array)
    model = linear(ours.features)
    a, b = (
        train(each, model, evaluation=Evaluation(gradients=kind == "vectors"))
        for each in (ours, plain)
    )
    np.testing.assert_array_equal(a.params, b.params)
    for record, other in zip(a.history, b.history, strict=True):
        assert str(record) == str(other)
    np.testing.assert_array_equal(
        client_measures(ours, model, a.params)["test_accuracy"],
        client_measures(plain, model, a.params)["test_accuracy"],
    )


def test_windows_and_vectors_are_what_they_say() -> None:
    windows, vectors = KINDS["windows"], KINDS["vectors"]
    for i in (0, 11):
        start = windows.starts[i]
        assert np.asarray(windows)[i].tolist() == windows.text[start : start + 4].tolist()
        np.testing.assert_array_equal(np.asarray(vectors)[i], vectors.table[vectors.ids[i]])


def noisy(key: jax.Array, kept: jax.Array) -> jax.Array:
    return kept + jax.random.normal(key, kept.shape)


@pytest.mark.parametrize(("ids", "message"), [([[0, 5]], "0 to 5"), ([[-1, 4]], "-1 to 4")])
def test_ids_without_a_vector_are_refused(ids: list[list[int]], message: str) -> None:
    with pytest.raises(InputError, match=f"rows: ids {message}; the table has 5 vectors"):
        Rows(Vectors(np.array(ids), np.zeros((5, 2))), np.zeros(1, int), np.array([0, 1]))


@pytest.mark.slow
def test_augmentation_changes_training_alone_and_repeats() -> None:
    x = DRAW.normal(size=(sum(SIZES), 2)).astype(np.float32)
    plain = federation_of(x)
    augmented = federation_of(x, augment=noisy)
    model = linear(plain.features)
    once, again, without = train(augmented, model), train(augmented, model), train(plain, model)
    np.testing.assert_array_equal(once.params, again.params)
    assert not np.allclose(once.params, without.params)
    # the initial model is measured on the features themselves
    assert once.history[0].train_loss == without.history[0].train_loss
    none = train(federation_of(x, augment=lambda _, kept: kept), model)
    np.testing.assert_array_equal(none.params, without.params)


def test_augmentation_keys_depend_on_seed_round_client_and_step_alone() -> None:
    """However the round is packed, a job's ticks get the same keys."""
    solver = Solver(learning_rate=0.1, batch_size=4, epochs=2)
    sizes = np.array(SIZES, np.int64)
    steps = np.array([solver.steps_for(int(n)) for n in sizes])
    ones = np.ones(4)
    jobs = Jobs(
        np.arange(4),
        first_row=OFFSETS[:-1],
        size=sizes,
        steps=steps,
        weight=ones,
        gamma=ones,
        participation=ones,
        relative_size=ones,
        owner=np.zeros(4, int),
        device_row=OFFSETS[:-1],
    )

    def keys(seed: int, round_: int, devices: int, lanes: int) -> dict[int, set[tuple[int, ...]]]:
        shape = Shape(1, devices, lanes, 4)
        plan = plan_rounds(shape, Capacity(20, 4), solver, seed, [(round_, jobs)], noisy=True).ticks
        found: dict[int, set[tuple[int, ...]]] = {}
        for at in np.argwhere(plan.rows[0, ..., 0] >= 0):
            row = plan.rows[(0, *at, 0)]
            client = int(np.searchsorted(OFFSETS, row, side="right")) - 1
            assert plan.noise is not None
            found.setdefault(client, set()).add(tuple(plan.noise[(0, *at)].tolist()))
        return found

    one = keys(0, 0, 1, 1)
    assert one == keys(0, 0, 2, 1) == keys(0, 0, 1, 3)
    assert sum(map(len, one.values())) == steps.sum()  # all different
    others = [keys(1, 0, 1, 1), keys(0, 1, 1, 1)]
    assert all(not one[k] & other[k] for other in others for k in range(4))


def test_augmentation_refuses_what_needs_one_objective() -> None:
    federation = federation_of(KINDS["prepared"], augment=noisy)
    with pytest.raises(InputError, match=r"solver\.gamma = 0\.5 does not go with augmentation"):
        train(
            federation,
            linear(federation.features),
            solver=Solver(0.1, 4, epochs=1, gamma=0.5),
            evaluation=Evaluation(),
        )


def test_augmentation_refuses_a_first_exchange() -> None:
    federation = federation_of(KINDS["prepared"], augment=noisy)
    settings: dict[str, Any] = {"solver": Solver(0.1, 4, epochs=1), "cohort": Cohort(3)}
    with pytest.raises(InputError, match=r"feddane: .*, so augmentation of data does not fit"):
        simulate(federation, linear(federation.features), feddane(mu=0.0), rounds=1, **settings)


@pytest.mark.parametrize(
    ("train", "test", "line"),
    [
        ([(3, 5), (3, 4)], None, r"client '1', train: labels of shape \(4,\); .* have \(5,\)"),
        ([(3,)], [(3, 5)], r"client '0', test: labels of shape \(5,\); other clients' have \(\)"),
    ],
)
def test_labels_are_of_one_shape(
    train: list[tuple[int, ...]], test: list[tuple[int, ...]] | None, line: str
) -> None:
    def clients(shapes: list[tuple[int, ...]]) -> list[Any]:
        return [(np.zeros((3, 2)), np.zeros(shape, int)) for shape in shapes]

    with pytest.raises(InputError, match=line):
        Federation.from_arrays(clients(train), None if test is None else clients(test))


def test_labels_that_do_not_match_outputs_are_one_line() -> None:
    rows = [(np.zeros((3, 2)), np.arange(3)[:, None])]  # a column
    federation = Federation.from_arrays(rows, classes=3)
    with pytest.raises(InputError, match="model logistic: labels of shape"):
        logistic(federation)
    with pytest.raises(InputError, match="cross-entropy needs an output for each class"):
        train(federation, linear(federation.features), cohort=Cohort(1))


def test_a_sample_has_some_rows_of_each_client() -> None:
    federation = federation_of(np.arange(sum(SIZES), dtype=np.float32)[:, None])
    sampled = federation.sample(5)
    assert sampled.train.sizes.tolist() == [5, 1, 5, 5]
    for k in range(4):
        mine, all_mine = (f.train.client(k)[0].ravel().tolist() for f in (sampled, federation))
        assert set(mine) <= set(all_mine)
        assert sorted(set(mine)) == mine
    assert federation.sample(5).train.x.tolist() == sampled.train.x.tolist()
    with pytest.raises(InputError, match="rows = 0"):
        federation.sample(0)


@pytest.mark.slow
def test_measuring_less_trains_the_same_and_weighs_clients_alike() -> None:
    x = DRAW.normal(size=(sum(SIZES), 2)).astype(np.float32)
    federation = federation_of(x)
    model = logistic(federation)
    full = train(federation, model, evaluation=Evaluation())
    loss_alone = train(federation, model, evaluation=Evaluation(gradients=False))
    sampled = train(federation, model, evaluation=Evaluation(rows=5))
    for run in (loss_alone, sampled):
        jax.tree.map(np.testing.assert_array_equal, run.params, full.params)
    np.testing.assert_allclose(loss_alone.final.train_loss, full.final.train_loss, rtol=1e-6)
    assert loss_alone.final.test_accuracy == full.final.test_accuracy
    assert np.isnan([loss_alone.final.gradient_variance, loss_alone.final.gamma_mean]).all()
    assert np.isfinite(sampled.final.gamma_mean)
    # f(w) weighs each client's sampled mean by all of its rows
    few = federation.sample(5)
    means = []
    for k in range(4):
        rows, labels = few.train.client(k)
        losses = model.loss(model.apply(full.params, jnp.asarray(rows)), jnp.asarray(labels))
        means.append(float(losses.mean()))
    expected = np.dot(federation.shares, means)
    np.testing.assert_allclose(sampled.final.train_loss, expected, rtol=1e-5)


def test_sequences_count_positions_that_have_a_label() -> None:
    labels = np.array([[0, 1, -1], [2, -1, -1], [1, 1, 1]], np.int32)
    x = np.arange(3, dtype=np.int32)[:, None] + np.zeros((3, 3), np.int32)
    rows = Rows(x, labels, np.array([0, 2, 3]))
    federation = Federation(rows, rows, 3, ("a", "b"))
    assert rows.labels.tolist() == [3, 3]

    def apply(w: jax.Array, x: jax.Array) -> jax.Array:
        return w[x]  # (B, 3, classes)

    model = Model(lambda _: jnp.zeros((3, 3)), apply)
    weights = np.zeros((3, 3), np.float32)
    start = evaluate(model, weights, federation)
    np.testing.assert_allclose(start.train_loss, np.log(3), rtol=1e-6)
    assert start.test_accuracy == pytest.approx(1 / 6)  # argmax of equal outputs is class 0
    weights[0, 0], weights[2, 1] = 5.0, 9.0
    measured = evaluate(model, weights, federation)
    assert measured.by_client["test_accuracy"].tolist() == pytest.approx([1 / 3, 1.0])
    # the mean of the rows' means, over two positions with a label, over one, and over all three
    first, last = np.log(1 + 2 * np.exp([-5.0, -9.0]))
    expected = (first + 2.5 + np.log(3) + last) / 3
    np.testing.assert_allclose(measured.train_loss, expected, rtol=1e-5)
    padded = replace(federation, train=Rows(x, np.where(labels < 0, -1, labels), rows.offsets))
    assert padded.train.labels.sum() == 6
    pairs = [(x[:2], labels[:2]), (x[2:], labels[2:])]
    assert Federation.from_arrays(pairs, pairs).classes == 3
    with pytest.raises(InputError, match="label"):
        Federation.from_arrays([(x, labels - 1)], classes=3)


def test_what_parts_share_is_on_a_device_once() -> None:
    windows = KINDS["windows"]
    rows = Rows(windows, LABELS, OFFSETS)
    few = Rows(windows[:5], LABELS[:5], np.array([0, 1, 2, 3, 5]))
    federation = Federation(rows, few, 3, tuple("abcd"))
    alone = find_ownership(OFFSETS, 1)
    data = copy_to_devices(lane_mesh(), federation, federation.sample(5), alone, alone)
    assert data.train is not None
    texts = [x.text for x, _ in (data.train, data.read["train"], data.read["test"])]
    assert texts[0] is texts[1] is texts[2]
    whole = copy_to_devices(lane_mesh(), federation, federation, alone, alone)
    assert whole.train is not None
    assert whole.train[0].starts is whole.read["train"][0].starts
    assert whole.train[1] is whole.read["train"][1]
