"""Augmentation against plain NumPy, and what its draws are like."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedprox import Federation, Solver, fedavg, models
from fedprox.datasets import images as augmentation
from fedprox.features import Prepared
from fedprox.federation import Rows
from tests.quadratics import one_run

MEAN, DEVIATION = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def photographs(count: int, side: int = 32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), np.uint8)


CROP = jax.jit(augmentation.crop, static_argnums=4)
FEDAVG = jax.jit(augmentation.fedavg_training)
FEDDYN = jax.jit(augmentation.feddyn_training, static_argnums=(2, 3))


@settings(max_examples=25)
@given(
    images=arrays(np.uint8, (3, 7, 7, 2)),
    places=arrays(np.int32, (2, 3), elements=st.integers(-3, 3)),
    flip=arrays(bool, 3),
)
def test_a_window_is_what_padding_and_slicing_cut(images: Any, places: Any, flip: Any) -> None:
    found = CROP(images, *places, flip, 7)
    for image, top, left, mirrored, window in zip(images, *places, flip, found, strict=True):
        whole = image[:, ::-1] if mirrored else image
        padded = np.pad(whole, ((3, 3), (3, 3), (0, 0)), mode="edge")
        np.testing.assert_array_equal(window, padded[top + 3 :, left + 3 :][:7, :7])


FLAT = np.eye(75, dtype=np.uint8)[:2].reshape(2, 5, 5, 3) * 3
"""Images whose deviation is 0.34, a little above the least."""


@jax.jit
def both(x: jax.Array, factor: jax.Array) -> Any:
    """Contrast, and whitening."""
    return augmentation.contrast(x, factor), augmentation.whiten(x)


@settings(max_examples=25)
@example(images=FLAT, factor=1.0)
@given(images=arrays(np.uint8, (2, 5, 5, 3)), factor=st.floats(0.2, 1.8))
def test_contrast_and_whitening_by_their_definitions(images: Any, factor: float) -> None:
    x = images.astype(np.float64)
    means = x.mean(axis=(1, 2), keepdims=True)
    stretched = (x - means) * factor + means
    found, whitened = both(images.astype(np.float32), np.full(2, factor, np.float32))
    np.testing.assert_allclose(found, stretched, rtol=1e-5, atol=1e-3)
    for image, one in zip(x, whitened, strict=True):
        expected = (image - image.mean()) / max(image.std(), 1 / np.sqrt(75))
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-4)


def offsets(key: jax.Array, count: int) -> Any:
    """Where feddyn_training cuts its windows, and which images it mirrors.

    Pixels are numbered from 1 on, so a window's pixels tell where they come from.
    """
    number = np.arange(1, 32 * 32 + 1).reshape(32, 32)
    image = np.stack([number // 256, number % 256, number * 0], axis=-1).astype(np.uint8)
    batch = np.broadcast_to(image, (count, 32, 32, 3))
    mean, deviation = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)
    seen = np.asarray(FEDDYN(key, batch, mean, deviation)).round().astype(int)
    found = seen[..., 0] * 256 + seen[..., 1]
    middle = found[:, 12, 12] - 1
    flip = found[:, 12, 13] < found[:, 12, 12]
    row, column = middle // 32, np.where(flip, 31 - middle % 32, middle % 32)
    return row - 12, column - 12, flip, found, number


def test_feddyn_mirrors_half_and_moves_half_with_zeros_outside() -> None:
    count = 4000
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
    images = photographs(64)
    seen = FEDDYN(jax.random.key(3), images, MEAN, DEVIATION)
    standard = (images / 255 - np.array(MEAN)) / np.array(DEVIATION)
    assert seen.shape == images.shape
    kept = np.sort(np.asarray(seen).reshape(64, -1), axis=1)
    same = np.sort(standard.reshape(64, -1), axis=1)
    untouched = np.isclose(kept, same, atol=1e-4).all(axis=1)
    assert 0.3 < untouched.mean() < 0.7
    corners = np.asarray(seen)[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners[~untouched] == 0).any()


@pytest.mark.slow
def test_fedavg_sees_whitened_windows_of_24() -> None:
    seen = np.asarray(FEDAVG(jax.random.key(1), photographs(200)))
    assert seen.shape == (200, 24, 24, 3)
    np.testing.assert_allclose(seen.mean(axis=(1, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(seen.std(axis=(1, 2, 3)), 1, atol=1e-3)


@pytest.mark.slow
def test_fedavgs_draws_are_uniform() -> None:
    # a ramp downwards, one to the right, and two flat channels, which contrast leaves
    ramp = 7 * np.arange(32)
    channels = np.broadcast_arrays(ramp[:, None], ramp, 0 * ramp, 0 * ramp + 100)
    image = np.stack(channels, axis=-1).astype(np.uint8)
    batch = np.broadcast_to(image, (4000, *image.shape))
    seen = np.asarray(FEDAVG(jax.random.key(2), batch), np.float64)
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
    seen = jax.jit(augmentation.fedavg_evaluation)(images)
    middle = images[:, 4:28, 4:28].astype(float)
    for window, one in zip(middle, seen, strict=True):
        np.testing.assert_allclose(one, (window - window.mean()) / window.std(), atol=1e-4)


@pytest.mark.slow
def test_measurements_never_see_augmentation() -> None:
    """That training does shows test_augmentation_changes_training_alone_and_repeats."""
    images = photographs(40, side=8)
    labels = np.arange(40) % 2

    def prepare(raw: jax.Array) -> jax.Array:
        return augmentation.standardise(raw, MEAN, DEVIATION)

    def augment(key: jax.Array, raw: jax.Array) -> jax.Array:
        return augmentation.feddyn_training(key, raw, MEAN, DEVIATION)

    rows = Rows(Prepared(images, prepare), labels, np.array([0, 20, 40]))
    federation = Federation(rows, rows, 2, ("a", "b"), augment)
    model = models.logistic(federation)
    run = one_run(federation, model, fedavg(), Solver(0.05, 5, epochs=2))
    losses = jax.jit(lambda w, raw, y: model.loss(model.apply(w, prepare(raw)), y))
    expected = np.mean(losses(run.params, images, labels))
    np.testing.assert_allclose(run.final.train_loss, expected, rtol=1e-5)
