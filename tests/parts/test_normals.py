"""Normal numbers of compiled programs: their words, their distribution, and how far it goes."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedprox.parts.privacy.numerics import normal_of, standard_normals, threefry

COUNT = 1 << 20

word = st.integers(0, 2**32 - 1)


@given(words=st.tuples(word, word), count=st.integers(1, 40))
def test_the_words_are_those_of_jax(words: tuple[int, int], count: int) -> None:
    key = jnp.array(words, jnp.uint32)
    counter = jnp.arange(count, dtype=jnp.uint32)
    first, second = threefry(key, jnp.zeros_like(counter), counter)
    like = jax.random.bits(jax.random.wrap_key_data(key, impl="threefry2x32"), (count,))
    np.testing.assert_array_equal(first ^ second, like)


def test_a_known_answer() -> None:
    # the vectors that the authors of Threefry publish with Random123
    for key, counter, answer in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ):
        given_words = (jnp.array([n], jnp.uint32) for n in counter)
        first, second = threefry(jnp.array(key, jnp.uint32), *given_words)
        assert (int(first[0]), int(second[0])) == answer


@given(first=word, second=word)
def test_a_number_is_that_of_box_and_muller(first: int, second: int) -> None:
    u = (first + (second % 1024 + 0.5) / 1024) / 2**32
    v = (second >> 10) / 2**22
    expected = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
    ours = float(normal_of(jnp.uint32(first), jnp.uint32(second)))
    # in single precision u is 1 within 2^-25, where the radius is 3e-4
    assert ours == pytest.approx(expected, abs=4e-4 if first > 2**32 - 2**20 else 4e-6)


def test_the_furthest_numbers() -> None:
    nothing = jnp.uint32(0)
    furthest = math.sqrt(2 * 43 * math.log(2))
    assert float(normal_of(nothing, nothing)) == pytest.approx(furthest, rel=1e-6)
    assert float(normal_of(nothing, jnp.uint32(2**31))) == pytest.approx(-furthest, rel=1e-6)


@pytest.fixture(scope="module")
def numbers() -> np.ndarray:
    """Many numbers, in two leaves."""
    words = jnp.array([3, 5], jnp.uint32)
    tree = {"a": jnp.zeros((COUNT // 2, 2)), "b": jnp.zeros(COUNT)}
    drawn = standard_normals(words, 0, tree)
    assert jax.tree.map(jnp.shape, drawn) == jax.tree.map(jnp.shape, tree)
    return np.stack([np.ravel(drawn["a"]), drawn["b"]]).astype(np.float64)


def test_numbers_are_normal(numbers: np.ndarray) -> None:
    assert stats.kstest(numbers.ravel(), "norm").pvalue > 1e-6
    beyond = int((np.abs(numbers) > 4).sum())
    expected = 2 * stats.norm.sf(4) * numbers.size
    assert abs(beyond - expected) < 5 * math.sqrt(expected)


def test_leaves_neighbours_and_purposes_are_independent(numbers: np.ndarray) -> None:
    other = standard_normals(jnp.array([3, 5], jnp.uint32), 1, {"b": jnp.zeros(COUNT)})["b"]
    first, second = numbers
    for one, two in ((first, second), (first[1:], first[:-1]), (first, np.asarray(other))):
        assert abs(np.mean(one * two)) < 5 / math.sqrt(COUNT)
        assert abs(np.mean(one**2 * two**2) - 1) < 5 * math.sqrt(8 / COUNT)
