"""The bound of an audit in one run, against the paper's program, brute force and jax-privacy."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.parts.privacy.one_run import (
    Guesses,
    bound_of,
    guessed,
    lower_bound,
    numbers_of_guesses,
    p_value,
)


def tail(made: int, right: int, epsilon: float) -> float:
    """The probability of so many successes, as a sum."""
    q = 1 / (1 + math.exp(-epsilon))
    return sum(math.comb(made, k) * q**k * (1 - q) ** (made - k) for k in range(right, made + 1))


counts = st.integers(1, 30).flatmap(
    lambda made: st.tuples(st.integers(made, 60), st.just(made), st.integers(0, made))
)


@given(counts, st.floats(0, 5), st.sampled_from([0.0, 1e-5, 1e-2]))
def test_p_values_are_those_of_the_paper(
    count: tuple[int, int, int], epsilon: float, delta: float
) -> None:
    guesses = Guesses(*count)
    base = tail(guesses.made, guesses.right, epsilon)
    slope = 0.0
    for i in range(1, guesses.right + 1):  # the program of appendix D
        slope = max(slope, (tail(guesses.made, guesses.right - i, epsilon) - base) / i)
    expected = min(1.0, base + 2 * guesses.canaries * delta * slope)
    assert p_value(guesses, epsilon, delta) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("made", [20, 200])
def test_the_bound_of_right_guesses_has_a_closed_form(made: int) -> None:
    q = 0.05 ** (1 / made)
    expected = math.log(q / (1 - q))
    assert lower_bound(Guesses(made, made, made), 0.0, 0.05) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("count", "delta", "expected"),
    [  # jax_privacy 2.0.0, auditing._epsilon_one_run at a significance of 0.05
        ((1000, 1000, 700), 1e-5, 0.732150),
        ((400, 100, 88), 1e-4, 1.412446),
        ((500, 50, 50), 1e-3, 0.0),
    ],
)
def test_bounds_are_those_of_jax_privacy(
    count: tuple[int, int, int], delta: float, expected: float
) -> None:
    assert lower_bound(Guesses(*count), delta, 0.05) == pytest.approx(expected, abs=1e-4)


def test_randomized_response_is_seldom_refuted() -> None:
    """Brute force over all answers of a mechanism whose epsilon is exact."""
    coins, epsilon, confidence = 8, 0.5, 0.6
    q = 1 / (1 + math.exp(-epsilon))
    refuted = 0.0
    for flips in product([False, True], repeat=coins):
        chance = math.prod(1 - q if flip else q for flip in flips)
        right = coins - sum(flips)
        refuted += chance * (p_value(Guesses(coins, coins, right), epsilon, 0.0) <= 1 - confidence)
    assert 0 < refuted <= 1 - confidence


@given(st.integers(20, 300), st.integers(0, 1000))
def test_guesses_are_right_as_often_as_coins_say(canaries: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    present, scores = rng.random(canaries) < 0.5, rng.normal(size=canaries)
    for made, found in zip(numbers_of_guesses(canaries), guessed(scores, present), strict=True):
        order = np.argsort(scores)
        half = made // 2
        right = present[order[canaries - half :]].sum() + (~present[order[:half]]).sum()
        assert found == Guesses(canaries, made, right)


def test_a_bound_is_above_epsilon_exactly_if_the_p_value_is_small() -> None:
    tried = [Guesses(100, 100, 90), Guesses(100, 50, 50)]
    bound = bound_of(tried, 1.0, 1e-6, 0.95)
    below = bound_of(tried, bound.epsilon - 1e-4, 1e-6, 0.95)
    above = bound_of(tried, bound.epsilon + 1e-4, 1e-6, 0.95)
    assert below.p <= 0.05 < above.p
    assert bound.epsilon <= bound.most
