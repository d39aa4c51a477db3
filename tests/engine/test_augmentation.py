"""Augmentation against plain NumPy, and what its draws are like."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedprox import Cohort, Evaluation, Federation, Solver, fedavg, models, simulate
from fedprox.datasets import images as augmentation
from fedprox.engine.compiled import layout
from fedprox.features import Prepared
from fedprox.federation import Rows
from fedprox.streams import Purpose, generator
from tests.quadratics import one_run, quadratic_federation, quadratic_model

MEAN, DEVIATION = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def photographs(count: int, side: int = 32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), np.uint8)


@given(
    images=arrays(np.uint8, (3, 7, 7, 2)),
    places=arrays(np.int32, (2, 3), elements=st.integers(-3, 3)),
    flip=arrays(bool, 3),
)
def test_a_window_is_what_padding_and_slicing_cut(images: Any, places: Any, flip: Any) -> None:
    top, left = jnp.asarray(places)
    found = augmentation.crop(jnp.asarray(images), top, left, flip, 7)
    for image, top, left, mirrored, window in zip(images, *places, flip, found, strict=True):
        whole = image[:, ::-1] if mirrored else image
        padded = np.pad(whole, ((3, 3), (3, 3), (0, 0)), mode="edge")
        np.testing.assert_array_equal(window, padded[top + 3 :, left + 3 :][:7, :7])


@given(images=arrays(np.uint8, (2, 5, 5, 3)), factor=st.floats(0.2, 1.8))
def test_contrast_and_whitening_by_their_definitions(images: Any, factor: float) -> None:
    x = images.astype(np.float64)
    means = x.mean(axis=(1, 2), keepdims=True)
    stretched = (x - means) * factor + means
    given = jnp.asarray(images, jnp.float32)
    found = augmentation.contrast(given, jnp.full(2, factor))
    np.testing.assert_allclose(found, stretched, rtol=1e-5, atol=1e-3)
    whitened = augmentation.whiten(given)
    for image, one in zip(x, whitened, strict=True):
        expected = (image - image.mean()) / max(image.std(), 1 / np.sqrt(75))
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)


def offsets(key: jax.Array, count: int) -> Any:
    """Where feddyn_training cuts its windows, and which images it mirrors.

    Pixels are numbered from 1 on, so a window's pixels tell where they come from.
    """
    number = np.arange(1, 32 * 32 + 1).reshape(32, 32)
    image = np.stack([number // 256, number % 256, number * 0], axis=-1).astype(np.uint8)
    batch = jnp.asarray(np.broadcast_to(image, (count, 32, 32, 3)))
    unit = {"mean": (0.0, 0.0, 0.0), "deviation": (1 / 255, 1 / 255, 1 / 255)}
    seen = np.asarray(augmentation.feddyn_training(key, batch, **unit)).round().astype(int)
    found = seen[..., 0] * 256 + seen[..., 1]
    middle = found[:, 12, 12] - 1
    flip = found[:, 12, 13] < found[:, 12, 12]
    row, column = middle // 32, np.where(flip, 31 - middle % 32, middle % 32)
    return row - 12, column - 12, flip, found, number


@pytest.mark.slow
def test_feddyn_mirrors_half_and_moves_half_with_zeros_outside() -> None:
    count = 8000
    top, left, flip, found, number = offsets(jax.random.key(0), count)
    assert flip.mean() == pytest.approx(0.5, abs=0.02)
    for k in range(0, count, 50):
        whole = number[:, ::-1] if flip[k] else number
        expected = np.pad(whole, 4)[top[k] + 4 :, left[k] + 4 :][:32, :32]
        np.testing.assert_array_equal(found[k], expected)
    # half stay; the other half move to one of 81 places, of which one is no move
    still = (top == 0) & (left == 0)
    assert still.mean() == pytest.approx(0.5 + 0.5 / 81, abs=0.02)
    moved = np.bincount((9 * (top + 4) + left + 4)[~still], minlength=81)
    assert (moved > 0).sum() == 80
    assert moved.max() < 2 * count / 162
    # what is mirrored says nothing about what moves
    assert np.corrcoef(flip, still)[0, 1] == pytest.approx(0, abs=0.04)


def test_feddyn_pads_after_standardising_so_that_outside_is_the_mean() -> None:
    images = jnp.asarray(photographs(64))
    seen = augmentation.feddyn_training(jax.random.key(3), images, MEAN, DEVIATION)
    standard = (np.asarray(images) / 255 - np.array(MEAN)) / np.array(DEVIATION)
    assert seen.shape == images.shape
    kept = np.sort(np.asarray(seen).reshape(64, -1), axis=1)
    same = np.sort(standard.reshape(64, -1), axis=1)
    untouched = np.isclose(kept, same, atol=1e-4).all(axis=1)
    assert 0.3 < untouched.mean() < 0.7
    corners = np.asarray(seen)[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners[~untouched] == 0).any()


@pytest.mark.slow
def test_fedavg_sees_whitened_windows_of_24() -> None:
    images = jnp.asarray(photographs(200))
    seen = np.asarray(augmentation.fedavg_training(jax.random.key(1), images))
    assert seen.shape == (200, 24, 24, 3)
    np.testing.assert_allclose(seen.mean(axis=(1, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(seen.std(axis=(1, 2, 3)), 1, atol=1e-3)


def test_fedavgs_draws_are_uniform() -> None:
    # a ramp downwards, one to the right, and two flat channels, which contrast leaves
    ramp = 7 * np.arange(32)
    channels = np.broadcast_arrays(ramp[:, None], ramp, 0 * ramp, 0 * ramp + 100)
    image = np.stack(channels, axis=-1).astype(np.uint8)
    batch = jnp.asarray(np.broadcast_to(image, (4000, *image.shape)))
    seen = np.asarray(augmentation.fedavg_training(jax.random.key(2), batch), np.float64)
    # the flat channels undo whitening; a ramp's mean over a window says where the window is
    scale = 100 / (seen[:, 0, 0, 3] - seen[:, 0, 0, 2])
    top, left = (
        (seen[..., c].mean(axis=(1, 2)) - seen[:, 0, 0, 2]) * scale / 7 - 11.5 for c in range(2)
    )
    step = (seen[:, 0, 1, 1] - seen[:, 0, 0, 1]) * scale / 7
    flip, factor = step < 0, np.abs(step)
    # the columns that a mirrored window shows are counted from the right
    left = np.where(flip, 8 - left, left)
    cells = np.rint(9 * top + left).astype(int)
    np.testing.assert_allclose(9 * top + left, cells, atol=0.01)
    counts = np.bincount(cells, minlength=81)
    assert len(counts) == 81
    assert counts.min() > 20
    assert counts.max() < 2 * 4000 / 81
    assert flip.mean() == pytest.approx(0.5, abs=0.03)
    assert factor.min() == pytest.approx(0.2, abs=0.01)
    assert factor.max() == pytest.approx(1.8, abs=0.01)
    assert factor.mean() == pytest.approx(1.0, abs=0.03)


def test_fedavg_measures_the_middle() -> None:
    images = photographs(3)
    seen = augmentation.fedavg_evaluation(jnp.asarray(images))
    middle = images[:, 4:28, 4:28].astype(float)
    for window, one in zip(middle, seen, strict=True):
        np.testing.assert_allclose(one, (window - window.mean()) / window.std(), atol=1e-4)


@pytest.mark.parametrize("lanes", [1, 3])
def test_each_client_draws_from_a_stream_of_its_own(
    lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one step on F_k(w) = (1 + u_k) / 2 ||w - b_k||^2, with u_k from the client's key
    monkeypatch.setattr(layout, "choose_lanes", lambda *_: lanes)

    def augment(key: jax.Array, raw: jax.Array) -> jax.Array:
        return raw * (1 + jax.random.uniform(key))

    b = np.linspace(-1, 1, 6)[:, None]
    plain = quadratic_federation([np.eye(1)] * 6, list(b))
    federation, model = replace(plain, augment=augment), quadratic_model(np.array([3.0]))
    run = one_run(federation, model, fedavg(), Solver(0.1, "all", steps=1), seed=5)
    keys = [
        generator(5, Purpose.AUGMENTATION, 0, k).integers(2**32, size=2, dtype=np.uint32)
        for k in range(6)
    ]
    u = [float(jax.random.uniform(jax.random.wrap_key_data(jnp.asarray(key)))) for key in keys]
    expected = 3 - 0.1 * np.mean((1 + np.array(u)) * (3 - b[:, 0]))
    np.testing.assert_allclose(run.params, [expected], rtol=1e-5)


def test_measurements_never_see_augmentation() -> None:
    """Training differs with the augmentation, and the loss at the start does not."""
    images = photographs(40, side=8)
    labels = np.arange(40) % 2
    offsets = np.array([0, 20, 40])

    def prepare(raw: jax.Array) -> jax.Array:
        return augmentation.standardise(raw, MEAN, DEVIATION)

    def augment(key: jax.Array, raw: jax.Array) -> jax.Array:
        return augmentation.feddyn_training(key, raw, MEAN, DEVIATION)

    rows = Rows(Prepared(images, prepare), labels, offsets)
    histories = []
    for change in (None, augment):
        federation = Federation(rows, rows, 2, ("a", "b"), change)
        (run,) = simulate(
            federation,
            models.logistic(federation),
            fedavg(),
            solver=Solver(learning_rate=0.05, batch_size=5, epochs=2),
            cohort=Cohort(2),
            rounds=2,
            evaluation=Evaluation(gradients=False),
        )
        histories.append(run.history)
    plain, changed = histories
    assert plain[0].train_loss == changed[0].train_loss
    assert plain[0].test_accuracy == changed[0].test_accuracy
    assert plain[2].train_loss != changed[2].train_loss
    # what is learnt from changed images fits the images themselves less well
    assert plain[2].train_loss < changed[2].train_loss
