"""Normal numbers of compiled programs: their words, their distribution, and how far it goes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedprox.parts.privacy.numerics import normal_of, standard_normals, threefry

COUNT = 1 << 18

WORDS = np.concatenate(
    [
        np.random.default_rng(0).integers(2**32, size=(1000, 2), dtype=np.uint32),
        [(a, b) for a in (0, 1, 2**31, 2**32 - 1) for b in (0, 2**10, 2**31, 2**32 - 1)],
    ]
).astype(np.uint32)
"""Pairs of random words, and of the least and the largest."""


@jax.jit
@jax.vmap
def both_words(key: Any, counter: Any) -> Any:
    """Our words of some counters, and those of JAX of all counters up to their number."""
    like = jax.random.bits(jax.random.wrap_key_data(key, impl="threefry2x32"), counter.shape)
    return *threefry(key, jnp.zeros_like(counter), counter), like


def test_the_words_are_those_of_jax() -> None:
    counters = np.tile(np.arange(40, dtype=np.uint32), (len(WORDS), 1))
    first, second, like = jax.device_get(both_words(WORDS, counters))
    np.testing.assert_array_equal(first ^ second, like)


def test_a_known_answer() -> None:
    # the vectors that the authors of Threefry publish with Random123
    key, counter, answer = np.array(
        [
            [(0, 0), (0x13198A2E, 0x03707344)],
            [(0, 0), (0x243F6A88, 0x85A308D3)],
            [(0x6B200159, 0x99BA4EFE), (0xC4923A9C, 0x483DF7A0)],
        ],
        np.uint32,
    )
    found = jax.jit(jax.vmap(threefry))(key, *counter.T)
    np.testing.assert_array_equal(np.stack(found, axis=1), answer)


def test_a_number_is_that_of_box_and_muller() -> None:
    """Also the furthest numbers, of words 0 and of 0 and 2^31."""
    first, second = WORDS.T.astype(np.int64)
    u = (first + (second % 1024 + 0.5) / 1024) / 2**32
    v = (second >> 10) / 2**22
    expected = np.sqrt(-2 * np.log(u)) * np.cos(2 * math.pi * v)
    # in single precision u is 1 within 2^-25, where the radius is 3e-4
    close = np.where(first > 2**32 - 2**20, 4e-4, 4e-6)
    assert (np.abs(jax.device_get(jax.jit(normal_of)(*WORDS.T)) - expected) < close).all()
    assert expected.max() == -expected.min() == pytest.approx(math.sqrt(2 * 43 * math.log(2)))


@pytest.fixture(scope="module")
def numbers() -> NDArray[np.float64]:
    """Many numbers, in two leaves, and in another purpose's second leaf."""
    words = np.array([3, 5], np.uint32)
    tree = {"a": np.zeros((COUNT // 2, 2), np.float32), "b": np.zeros(COUNT, np.float32)}
    drawn = jax.jit(lambda words: [standard_normals(words, purpose, tree) for purpose in (0, 1)])
    here, there = jax.device_get(drawn(words))
    assert jax.tree.map(np.shape, here) == jax.tree.map(np.shape, tree)
    return np.stack([here["a"].ravel(), here["b"], there["b"]]).astype(np.float64)


def test_numbers_are_normal(numbers: NDArray[Any]) -> None:
    assert stats.kstest(numbers.ravel(), "norm").pvalue > 1e-6
    beyond = int((np.abs(numbers) > 4).sum())
    expected = 2 * stats.norm.sf(4) * numbers.size
    assert abs(beyond - expected) < 5 * math.sqrt(expected)


def test_leaves_neighbours_and_purposes_are_independent(numbers: NDArray[Any]) -> None:
    first, second, other = numbers
    for one, two in ((first, second), (first[1:], first[:-1]), (second, other)):
        assert abs(np.mean(one * two)) < 5 / math.sqrt(COUNT)
        assert abs(np.mean(one**2 * two**2) - 1) < 5 * math.sqrt(8 / COUNT)
