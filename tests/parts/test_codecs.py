"""Codecs beside the bounds of their papers, loops and bits counted by hand."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from fedprox.parts.codecs import Codec, contraction, full, hadamard, quantize, random_k, sign, top_k

SIZE, DRAWS = 100, 4000

MESSAGES = {
    "normal": np.random.default_rng(0).normal(size=SIZE),
    "heavy-tailed": np.random.default_rng(1).standard_t(2, size=SIZE),
    "sparse": np.where(np.arange(SIZE) % 33 == 5, 3.0, 0.0),
}

UNBIASED: dict[str, Callable[[], Codec]] = {
    "full": lambda: full(SIZE, 32),
    "random-k": lambda: random_k(SIZE, 32, 7),
    "quantize 2": lambda: quantize(SIZE, 32, 2, 512, rotate=False),
    "quantize 4": lambda: quantize(SIZE, 32, 4, 512, rotate=False),
    "quantize 3 in buckets": lambda: quantize(SIZE, 32, 3, 16, rotate=False),
    "quantize 3 rotated": lambda: quantize(SIZE, 32, 3, 64, rotate=True),
}

BIASED: dict[str, Callable[[], Codec]] = {
    "top-k": lambda: top_k(SIZE, 32, 7),
    "sign": lambda: sign(SIZE, 32, 512, rotate=False),
    "sign in buckets": lambda: sign(SIZE, 32, 16, rotate=False),
    "sign rotated": lambda: sign(SIZE, 32, 64, rotate=True),
}


def arrivals(codec: Codec, x: NDArray[Any], draws: int = DRAWS) -> NDArray[np.float64]:
    """What arrives of a message, by many keys, (draws, d)."""
    message = jnp.asarray(x, jnp.float32)

    def one(key: Any) -> jax.Array:
        return codec.decode(codec.encode(message, key), key)

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), draws))
    return np.asarray(found, np.float64)


def bias(found: NDArray[np.float64], x: NDArray[Any]) -> tuple[float, float]:
    """The squared error of the mean of some draws, and what it is expected to be without bias."""
    error = float(((found.mean(axis=0) - x) ** 2).sum())
    return error, float(((found - found.mean(axis=0)) ** 2).sum(axis=1).mean() / len(found))


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize("message", MESSAGES)
def test_what_arrives_is_the_message_on_average(name: str, message: str) -> None:
    codec, x = UNBIASED[name](), MESSAGES[message]
    found = arrivals(codec, x)
    error, expected = bias(found, x)
    # the sum of at least three independent squares is rarely six times its mean
    assert error <= 6 * expected + 1e-9
    assert codec.omega is not None
    spread = ((found - x) ** 2).sum(axis=1).mean() / (x**2).sum()
    assert spread <= codec.omega * 1.1 + 1e-12


def test_the_test_of_bias_finds_one() -> None:
    x = MESSAGES["normal"]
    for codec in (sign(SIZE, 32, 512, rotate=False), contraction(random_k(SIZE, 32, 50))):
        error, expected = bias(arrivals(codec, x), x)
        assert error > 20 * expected


def test_the_variance_of_random_places_is_that_of_the_paper() -> None:
    for x in MESSAGES.values():
        found = arrivals(random_k(SIZE, 32, 20), x)
        spread = ((found - x) ** 2).sum(axis=1).mean() / (x**2).sum()
        assert spread == pytest.approx(SIZE / 20 - 1, rel=0.1)


@pytest.mark.parametrize("name", [*UNBIASED, *BIASED])
@pytest.mark.parametrize("message", MESSAGES)
def test_error_feedback_gets_contractions(name: str, message: str) -> None:
    x = MESSAGES[message]
    codec = contraction((UNBIASED | BIASED)[name]())
    found = arrivals(codec, x, 400)
    left = ((found - x) ** 2).sum(axis=1).mean() / (x**2).sum()
    assert left < 1
    if name == "top-k":
        assert left <= 1 - 7 / SIZE
    if name == "sign":
        expected = 1 - np.abs(x).sum() ** 2 / (SIZE * (x**2).sum())
        assert left == pytest.approx(expected, rel=1e-5)
    if name in UNBIASED:
        omega = UNBIASED[name]().omega or 0.0
        assert left <= (1 - 1 / (1 + omega)) * 1.05 + 1e-12


@pytest.mark.parametrize("message", ["normal", "log-normal"])
def test_drive_has_the_errors_of_its_paper(message: str) -> None:
    size = 4096
    rng = np.random.default_rng(2)
    x = rng.normal(size=size) if message == "normal" else rng.lognormal(size=size)
    for unbiased, expected in ((False, 1 - 2 / math.pi), (True, math.pi / 2 - 1)):
        codec = sign(size, 32, 4096, rotate=True, unbiased=unbiased)
        found = arrivals(codec, x, 500)
        left = ((found - x) ** 2).sum(axis=1).mean() / (x**2).sum()
        assert left == pytest.approx(expected, rel=0.03)
        error, by_chance = bias(found, x)
        assert (error < 1.2 * by_chance) == unbiased


SPARSE: dict[str, Any] = {
    "one": [1.0],
    "two": [1.0, 0.6],
    "three": [3.0, 2.0, 1.5],
    "powers": [1.0, 0.5, 0.25, 0.125, 0.06],
    "five": [1.0, 1.0, 1.0, 1.0, 0.5],
    "scales": np.random.default_rng(1).lognormal(sigma=3.0, size=64),
}


@pytest.mark.parametrize("width", [64, 512])
@pytest.mark.parametrize("message", SPARSE)
def test_rotated_signs_are_nearly_unbiased_for_few_large_numbers(message: str, width: int) -> None:
    """With one rotation the relative bias of some of them is 0.2 to 0.6."""
    x, large = np.zeros(width), SPARSE[message]
    x[np.random.default_rng(0).permutation(width)[: len(large)]] = large
    codec = sign(width, 32, width, rotate=True, unbiased=True)
    found = arrivals(codec, x, 20_000)
    error, by_chance = bias(found, x)
    assert error - by_chance < (0.02 * np.linalg.norm(x)) ** 2


def test_exactly_k_numbers_arrive_also_of_ties() -> None:
    ties = np.ones(SIZE)
    for k in (1, 7, SIZE):
        for codec in (top_k(SIZE, 32, k), random_k(SIZE, 32, k)):
            assert ((arrivals(codec, ties, 20) != 0).sum(axis=1) == k).all()
    x = MESSAGES["normal"]
    largest = np.argsort(-np.abs(x))[:7]
    expected = np.zeros(SIZE)
    expected[largest] = x[largest]
    np.testing.assert_allclose(arrivals(top_k(SIZE, 32, 7), x, 1)[0], expected, rtol=1e-6)


def test_random_places_are_uniform() -> None:
    counts = (arrivals(random_k(SIZE, 32, 10), np.ones(SIZE)) != 0).mean(axis=0)
    np.testing.assert_allclose(counts, 0.1, atol=5 * math.sqrt(0.09 / DRAWS))


def test_levels_are_the_two_nearest() -> None:
    x, width, most = MESSAGES["heavy-tailed"], 16, 3
    found = arrivals(quantize(SIZE, 32, 3, width, rotate=False), x, 200)
    for first in range(0, SIZE, width):
        row = x[first : first + width]
        norm = np.linalg.norm(row)
        levels = found[:, first : first + width] / norm * most
        np.testing.assert_allclose(levels, levels.round(), atol=1e-4)
        exact = np.abs(row) / norm * most
        below, above = np.floor(exact - 1e-5), np.ceil(exact + 1e-5)
        assert (levels.round() * np.sign(row) >= below).all()
        assert (levels.round() * np.sign(row) <= above).all()


def test_signs_have_the_mean_magnitude_of_their_bucket() -> None:
    x, width = MESSAGES["normal"], 16
    (found,) = arrivals(sign(SIZE, 32, width, rotate=False), x, 1)
    for first in range(0, SIZE, width):
        row = x[first : first + width]
        expected = np.abs(row).mean() * np.sign(row)
        np.testing.assert_allclose(found[first : first + width], expected, rtol=1e-5)


def test_a_rotation_is_that_of_the_hadamard_matrix() -> None:
    h = np.ones((1, 1))
    for _ in range(5):
        h = np.block([[h, h], [h, -h]])
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(3, 32)), jnp.float32)
    expected = np.asarray(rows) @ h / math.sqrt(32)
    np.testing.assert_allclose(np.asarray(hadamard(rows)), expected, atol=1e-5)
    np.testing.assert_allclose(np.asarray(hadamard(hadamard(rows))), np.asarray(rows), atol=1e-5)


@pytest.mark.parametrize(
    ("codec", "bits"),
    [
        (full(1000, 32), 32_000),
        (full(1000, 64), 64_000),
        (top_k(1000, 32, 10), 10 * 32 + 10 * 10),
        (top_k(1025, 32, 10), 10 * 32 + 10 * 11),
        (top_k(1, 32, 1), 33),
        (random_k(1000, 32, 10), 10 * 32),
        (quantize(1000, 32, 4, 512, rotate=False), 2 * 32 + 4 * 1000),
        (quantize(1000, 32, 4, 2000, rotate=False), 32 + 4 * 1000),
        (quantize(1000, 32, 4, 256, rotate=True), 4 * 32 + 4 * 1024),
        (sign(1000, 32, 512, rotate=False), 2 * 32 + 1000),
        (sign(1000, 32, 4096, rotate=True), 32 + 1024),
        (sign(3, 32, 512, rotate=True), 32 + 4),
    ],
)
def test_bits_are_those_counted_by_hand(codec: Codec, bits: int) -> None:
    assert codec.bits == bits


@pytest.mark.parametrize("name", [*UNBIASED, *BIASED])
def test_nothing_arrives_as_nothing(name: str) -> None:
    found = arrivals((UNBIASED | BIASED)[name](), np.zeros(SIZE), 3)
    np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize("name", sorted({*UNBIASED, *BIASED} - {"random-k"}))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_does_not_become_so(name: str, bad: float) -> None:
    x = MESSAGES["normal"].copy()
    x[41] = bad
    assert not np.isfinite(arrivals((UNBIASED | BIASED)[name](), x, 3)).all(axis=1).any()
