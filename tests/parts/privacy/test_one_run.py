"""The bound of an audit in one run, against the paper's program, brute force and jax-privacy."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox.parts.privacy.one_run import SHARES, Guesses, bound_of, guessed, lower_bound


def tail(made: int, right: int, epsilon: float) -> float:
    """The probability of so many successes, as a sum."""
    q = 1 / (1 + math.exp(-epsilon))
    return sum(math.comb(made, k) * q**k * (1 - q) ** (made - k) for k in range(right, made + 1))


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """The program of the paper's appendix D."""
    canaries, made, right = guesses
    base, slope = tail(made, right, epsilon), 0.0
    for i in range(1, right + 1):
        slope = max(slope, (tail(made, right - i, epsilon) - base) / i)
    return min(1.0, base + 2 * canaries * delta * slope)


counts = st.integers(1, 30).flatmap(
    lambda made: st.tuples(st.integers(made + 1, 60), st.just(made), st.integers(0, made))
)


@settings(max_examples=30)
@given(counts, st.sampled_from([1e-9, 1e-5, 1e-2]), st.sampled_from([0.005, 0.05]))
def test_the_bound_is_where_the_papers_p_value_passes_the_significance(
    count: tuple[int, int, int], delta: float, significance: float
) -> None:
    guesses = Guesses(*count)
    bound = lower_bound(guesses, delta, significance)
    assert p_value(guesses, bound + 1e-4, delta) > significance
    assert bound == 0 or p_value(guesses, bound - 1e-4, delta) < significance


@pytest.mark.parametrize("made", [20, 200])
def test_the_bound_of_right_guesses_has_a_closed_form(made: int) -> None:
    q = 0.05 ** (1 / made)
    expected = math.log(q / (1 - q))
    assert lower_bound(Guesses(made, made, made), 1e-15, 0.05) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("count", "delta"),
    [
        ((1000, 1000, 700), 1e-5),
        ((400, 100, 88), 1e-4),
        ((500, 50, 50), 1e-3),
        ((500, 50, 50), 1e-5),
        ((500, 50, 10), 1e-5),
        ((500, 50, 0), 1e-5),
    ],
)
def test_bounds_are_those_of_jax_privacy(count: tuple[int, int, int], delta: float) -> None:
    auditing = pytest.importorskip("jax_privacy.auditing", reason="an optional extra")
    expected = auditing._epsilon_one_run(0, *count, 0.05, delta)
    assert lower_bound(Guesses(*count), delta, 0.05) == pytest.approx(expected, abs=1e-9)


def test_randomized_response_is_seldom_refuted() -> None:
    """Brute force over all answers of a mechanism whose epsilon is exact."""
    coins, epsilon, significance = 8, 0.5, 0.4
    q = 1 / (1 + math.exp(-epsilon))
    bounds = [lower_bound(Guesses(coins, coins, v), 1e-15, significance) for v in range(coins + 1)]
    refuted = 0.0
    for flips in product([False, True], repeat=coins):
        chance = math.prod(1 - q if flip else q for flip in flips)
        refuted += chance * (bounds[coins - sum(flips)] > epsilon)
    assert 0 < refuted <= significance


@given(st.integers(20, 300), st.integers(0, 1000))
def test_guesses_are_right_as_often_as_coins_say(canaries: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    present, scores = rng.random(canaries) < 0.5, rng.normal(size=canaries)
    order, found = np.argsort(scores), guessed(scores, present)
    for i, share in enumerate(SHARES):
        half = max(1, int(share * canaries / 2))
        inside = present[order[canaries - half :]].sum()
        right = inside + (~present[order[:half]]).sum()
        assert found[2 * i : 2 * i + 2] == [
            Guesses(canaries, 2 * half, right),
            Guesses(canaries, half, inside),
        ]


def test_the_best_bound_counts_and_all_are_corrected_for() -> None:
    tried = [Guesses(100, 100, 90), Guesses(100, 50, 50)]
    bound = bound_of(tried, 1e-6, 0.95)
    found = max(lower_bound(each, 1e-6, 0.025) for each in tried)
    assert bound.epsilon == pytest.approx(found)
    assert bound.guesses == tried[1]
    assert bound.most == pytest.approx(lower_bound(Guesses(100, 100, 100), 1e-6, 0.025))
