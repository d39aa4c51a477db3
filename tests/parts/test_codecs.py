"""Codecs beside the bounds of their papers, loops and bits counted by hand."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from fedprox.parts.codecs import Codec, contraction, full, hadamard, quantize, random_k, sign, top_k

SIZE, KEPT, WIDTH, DRAWS, FEW = 100, 7, 16, 4000, 20

MESSAGES = {
    "normal": np.random.default_rng(0).normal(size=SIZE),
    "heavy-tailed": np.random.default_rng(1).standard_t(2, size=SIZE),
    "sparse": np.where(np.arange(SIZE) % 33 == 5, 3.0, 0.0),
}
"""Those that are drawn often."""

SPECIAL = {"ties": np.ones(SIZE), "zeros": np.zeros(SIZE)} | {
    str(bad): np.where(np.arange(SIZE) == 41, bad, MESSAGES["normal"])
    for bad in (math.nan, math.inf, -math.inf)
}
"""Those that are drawn a few times."""

UNBIASED = {
    "full": full(SIZE, 32),
    "random-k": random_k(SIZE, 32, KEPT),
    "quantize 2": quantize(SIZE, 32, 2, 512, rotate=False),
    "quantize 3 in buckets": quantize(SIZE, 32, 3, WIDTH, rotate=False),
    "quantize 3 rotated": quantize(SIZE, 32, 3, 64, rotate=True),
}

BIASED = {
    "top-k": top_k(SIZE, 32, KEPT),
    "sign in buckets": sign(SIZE, 32, WIDTH, rotate=False),
    "sign rotated": sign(SIZE, 32, 64, rotate=True),
}

CODECS = UNBIASED | BIASED

Draws = dict[str, NDArray[np.float64]]
"""What arrives of messages by many keys, (draws, d)."""


def draws(codec: Codec, messages: Mapping[str, NDArray[Any]], counts: list[int]) -> Draws:
    """So many draws of each message, in one program."""
    rows = np.repeat(np.array(list(messages.values()), np.float32), counts, axis=0)

    def one(x: Any, key: Any) -> Any:
        return codec.decode(codec.encode(x, key), key)

    found = jax.jit(jax.vmap(one))(rows, jax.random.split(jax.random.key(0), len(rows)))
    parts = np.split(np.asarray(found, np.float64), np.cumsum(counts)[:-1])
    return dict(zip(messages, parts, strict=True))


@functools.cache
def arrivals(name: str) -> Draws:
    """What arrives of all messages by a codec."""
    counts = [DRAWS] * len(MESSAGES) + [FEW] * len(SPECIAL)
    return draws(CODECS[name], MESSAGES | SPECIAL, counts)


def bias(found: NDArray[np.float64], x: NDArray[Any]) -> tuple[float, float]:
    """The squared error of the mean of some draws, and what it is expected to be without bias."""
    error = float(((found.mean(axis=0) - x) ** 2).sum())
    return error, float(((found - found.mean(axis=0)) ** 2).sum(axis=1).mean() / len(found))


def left(found: NDArray[np.float64], x: NDArray[Any]) -> float:
    """The mean squared error of some draws, relative to the message's squared norm."""
    return float(((found - x) ** 2).sum(axis=1).mean() / (x**2).sum())


@pytest.mark.parametrize("name", UNBIASED)
def test_what_arrives_is_the_message_on_average(name: str) -> None:
    omega = UNBIASED[name].omega
    assert omega is not None
    for message, x in MESSAGES.items():
        found = arrivals(name)[message]
        error, expected = bias(found, x)
        # the sum of at least three independent squares is rarely six times its mean
        assert error <= 6 * expected + 1e-9, message
        assert left(found, x) <= omega * 1.1 + 1e-12, message


def test_random_places_are_uniform_and_have_the_variance_of_the_paper() -> None:
    share = KEPT / SIZE
    for message, x in MESSAGES.items():
        found = arrivals("random-k")[message]
        assert left(found, x) == pytest.approx(1 / share - 1, rel=0.1)
    counts = (arrivals("random-k")["normal"] != 0).mean(axis=0)
    np.testing.assert_allclose(counts, share, atol=5 * math.sqrt(share * (1 - share) / DRAWS))


@pytest.mark.slow
def test_error_feedback_gets_contractions() -> None:
    """An unbiased codec over 1 + omega is one, by its variance."""
    doubled = Codec(lambda x, _: x, lambda code, _: 2 * code, 8, 0, omega=3.0)
    scaled = contraction(doubled)
    assert scaled.decode(8.0, None) == 4.0
    assert (scaled.omega, scaled.bits) == (None, doubled.bits)
    for name in ("full", *BIASED):
        assert contraction(CODECS[name]) is CODECS[name]
        for message, x in MESSAGES.items():
            delta = KEPT / SIZE if name == "top-k" else 1e-3
            assert left(arrivals(name)[message], x) <= 1 - delta


SPARSE: dict[str, Any] = {
    "one": [1.0],
    "two": [1.0, 0.6],
    "three": [3.0, 2.0, 1.5],
    "powers": [1.0, 0.5, 0.25, 0.125, 0.06],
    "five": [1.0, 1.0, 1.0, 1.0, 0.5],
    "scales": np.random.default_rng(1).lognormal(sigma=3.0, size=64),
}


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 512])
def test_drive_has_the_errors_of_its_paper_and_is_nearly_unbiased(width: int) -> None:
    """With one rotation the relative bias of some sparse messages is 0.2 to 0.6."""
    rng, messages = np.random.default_rng(0), dict[str, NDArray[Any]]()
    for name, large in SPARSE.items():
        messages[name] = np.zeros(width)
        messages[name][rng.permutation(width)[: len(large)]] = large
    messages |= {"normal": rng.normal(size=width), "log-normal": rng.lognormal(size=width)}
    for unbiased, expected in ((False, 1 - 2 / math.pi), (True, math.pi / 2 - 1)):
        codec = sign(width, 32, width, rotate=True, unbiased=unbiased)
        found = draws(codec, messages, [2**17 // width] * len(messages))
        for name, x in messages.items():
            error, by_chance = bias(found[name], x)
            assert (error - by_chance < (0.02 * np.linalg.norm(x)) ** 2) == unbiased, name
            if name not in SPARSE:
                assert left(found[name], x) == pytest.approx(expected, rel=0.03)


def test_exactly_k_numbers_arrive_also_of_ties() -> None:
    for name in ("top-k", "random-k"):
        assert ((arrivals(name)["ties"] != 0).sum(axis=1) == KEPT).all()
    values = np.unique(arrivals("random-k")["ties"])
    np.testing.assert_allclose(values, [0, SIZE / KEPT], rtol=1e-6)
    x = MESSAGES["normal"]
    largest = np.argsort(-np.abs(x))[:KEPT]
    expected = np.where(np.isin(np.arange(SIZE), largest), x, 0)
    np.testing.assert_allclose(arrivals("top-k")["normal"][0], expected, rtol=1e-6)


def test_levels_are_the_two_nearest() -> None:
    x, most = MESSAGES["heavy-tailed"], 3
    found = arrivals("quantize 3 in buckets")["heavy-tailed"]
    for first in range(0, SIZE, WIDTH):
        row = x[first : first + WIDTH]
        norm = np.linalg.norm(row)
        levels = found[:, first : first + WIDTH] / norm * most
        np.testing.assert_allclose(levels, levels.round(), atol=1e-4)
        exact = np.abs(row) / norm * most
        below, above = np.floor(exact - 1e-5), np.ceil(exact + 1e-5)
        assert (levels.round() * np.sign(row) >= below).all()
        assert (levels.round() * np.sign(row) <= above).all()


def test_signs_have_the_mean_magnitude_of_their_bucket() -> None:
    x, found = MESSAGES["normal"], arrivals("sign in buckets")["normal"][0]
    for first in range(0, SIZE, WIDTH):
        row = x[first : first + WIDTH]
        expected = np.abs(row).mean() * np.sign(row)
        np.testing.assert_allclose(found[first : first + WIDTH], expected, rtol=1e-5)


def test_a_rotation_is_that_of_the_hadamard_matrix() -> None:
    h = np.ones((1, 1))
    for _ in range(5):
        h = np.block([[h, h], [h, -h]])
    rows = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)
    found = jax.jit(hadamard)(rows)
    np.testing.assert_allclose(found, rows @ h / math.sqrt(32), atol=1e-5)


@pytest.mark.parametrize(
    ("codec", "bits", "omega"),
    [
        (full(1000, 32), 32_000, 0),
        (full(1000, 64), 64_000, 0),
        (top_k(1000, 32, 10), 10 * 32 + 10 * 10, None),
        (top_k(1025, 32, 10), 10 * 32 + 10 * 11, None),
        (top_k(1, 32, 1), 33, None),
        (random_k(1000, 32, 10), 10 * 32, 99),
        (quantize(1000, 32, 4, 512, rotate=False), 2 * 32 + 4 * 1000, math.sqrt(512) / 7),
        (quantize(1000, 32, 4, 2000, rotate=False), 32 + 4 * 1000, math.sqrt(1000) / 7),
        (quantize(1000, 32, 4, 256, rotate=True), 4 * 32 + 4 * 1024, 16 / 7),
        (quantize(1000, 32, 4, 16, rotate=False), 63 * 32 + 4 * 1000, 16 / 49),
        (sign(1000, 32, 512, rotate=False), 2 * 32 + 1000, None),
        (sign(1000, 32, 4096, rotate=True), 32 + 1024, None),
        (sign(3, 32, 512, rotate=True), 32 + 4, None),
    ],
)
def test_bits_and_variances_are_those_counted_by_hand(
    codec: Codec, bits: int, omega: float | None
) -> None:
    assert (codec.bits, codec.omega) == (bits, omega)


@pytest.mark.parametrize("name", CODECS)
def test_nothing_arrives_as_nothing_and_what_is_not_finite_does_not_become_so(name: str) -> None:
    np.testing.assert_array_equal(arrivals(name)["zeros"], 0)
    for message in ("nan", "inf", "-inf") if name != "random-k" else ():
        assert not np.isfinite(arrivals(name)[message]).all(axis=1).any()
