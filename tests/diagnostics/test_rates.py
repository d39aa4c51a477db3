"""FedProx's rates: their numbers, and that their promises are kept."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import Cohort, Evaluation, InputError, Run, Solver, fedprox, simulate
from fedprox.diagnostics import (
    Constants,
    best_mu,
    convex_case,
    convex_rate,
    dissimilarity_bound,
    rho,
    rho_by_round,
    rounds_needed,
)
from tests.quadratics import Vector, quadratic_federation, quadratic_model


def runs_of(
    a: Vector, b: Vector, start: Vector, mu: float, *, clients: int, rounds: int, **options: Any
) -> list[Run]:
    """FedProx on F_k(w) = a_k / 2 ||w - b_k||^2, whose cohorts are drawn as in Theorem 4."""
    return simulate(
        quadratic_federation([a_k * np.eye(len(start)) for a_k in a], list(b)),
        quadratic_model(start),
        fedprox(mu),
        cohort=Cohort(clients, sampling="proportional"),
        rounds=rounds,
        **options,
    )


# Theorem 6.


@given(st.floats(1e-6, 1e6), st.floats(0.0, 1e6), st.floats(1e-6, 1e6))
def test_theorem_6_is_the_least_number_of_rounds(rho: float, gap: float, epsilon: float) -> None:
    rounds = rounds_needed(rho, gap, epsilon)
    assert gap / (rho * rounds) <= epsilon * (1 + 1e-9)
    assert rounds == 1 or gap / (rho * (rounds - 1)) >= epsilon * (1 - 1e-9)


class Shrinking:
    """F_k(w) = a_k / 2 ||w||^2: B(w) is the same everywhere, so one rho holds in all rounds."""

    def __init__(self, a: Vector, clients: int) -> None:
        self.a, self.clients = a, clients
        self.b = float(np.sqrt(np.mean(a**2)) / np.mean(a))
        self.gap = 0.5 * float(np.mean(a))  # of a start of length 1
        self.constants = Constants(float(a.max()), max(1.0, self.b), clients)

    def gradients(self, mu: float, rounds: int) -> Vector:
        """E ||grad f(w^t)||^2 of exact FedProx: w^{t+1} is the mean of K factors times w^t."""
        factors = mu / (mu + self.a)
        shrinks = float(np.mean(factors) ** 2 + np.var(factors) / self.clients)
        first = np.mean(self.a) ** 2
        return np.asarray(first * shrinks ** np.arange(rounds), float)


@given(
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6),
    st.integers(5, 1000),
    st.floats(1e-3, 1.0),
)
def test_theorem_6_keeps_its_promise(a: list[float], clients: int, epsilon: float) -> None:
    one = Shrinking(np.array(a), clients)
    mu = best_mu(one.constants)
    if mu is None:
        return
    rounds = rounds_needed(rho(mu, one.constants), one.gap, epsilon)
    assert one.gradients(mu, rounds).mean() <= epsilon


def test_theorem_6_is_tight_for_equal_clients_and_a_large_mu() -> None:
    """All but f's own decrease in a round, 1 / mu, is lost in the limit; a tenth fewer rounds fail.

    The sum of all squared gradients of w^{t+1} = w^t mu / (mu + a) is Delta / rho then.
    """
    one = Shrinking(np.ones(3), 10**9)
    mu, epsilon = 1000.0, 1e-4
    rounds = rounds_needed(rho(mu, one.constants), one.gap, epsilon)
    path = one.gradients(mu, rounds)
    assert path.mean() <= epsilon
    assert path[: int(0.9 * rounds)].mean() > epsilon


@pytest.mark.parametrize("seed", [0, 1])
def test_runs_keep_the_promise_of_theorem_6(seed: int) -> None:
    """The mean over the seeds of the mean over the rounds; a step 1 / (a + mu) is exact."""
    start = np.array([0.6, 0.8])
    one = Shrinking(np.random.default_rng(seed).uniform(0.9, 1.1, 4), 20)
    mu = best_mu(one.constants)
    assert mu is not None
    mean = float(np.mean(one.a))
    epsilon = mean**2 / 8
    rounds = rounds_needed(rho(mu, one.constants), one.gap, epsilon)
    runs = runs_of(
        one.a,
        np.zeros((4, 2)),
        start,
        mu,
        clients=20,
        rounds=rounds,
        solver=Solver(1 / (mean + mu), "all", steps=3),
        seed=range(4),
        evaluation=Evaluation(gradients=False),
    )
    losses = np.array([[record.train_loss for record in run.history] for run in runs])
    gradients = 2 * mean * losses[:, :rounds]  # f = mean a / 2 ||w||^2
    assert gradients.mean() <= epsilon
    np.testing.assert_allclose(gradients.mean(), one.gradients(mu, rounds).mean(), rtol=0.02)
    # not for want of rounds: a bound 10 times as tight would be wrong
    assert gradients[:, : rounds // 10].mean() > epsilon


# Remark 8.


@given(st.floats(1e-3, 1e3), st.floats(0.0, 1e3), st.floats(1e-3, 1e3))
def test_remark_8_is_theorem_6_with_corollaries_7_and_10(
    smoothness: float, variance: float, epsilon: float
) -> None:
    found = convex_rate(smoothness, 2.0, variance, epsilon)
    b = dissimilarity_bound(variance, epsilon)
    mu, decrease = convex_case(smoothness, b)
    assert found.mu == mu
    sgd = smoothness * 2 / epsilon + smoothness * 2 * variance / epsilon**2
    assert abs(found.rounds - max(1.0, 24 * sgd)) <= 1 + 1e-9 * found.rounds
    assert abs(found.rounds - rounds_needed(decrease, 2.0, epsilon)) <= 1 + 1e-9 * found.rounds
    # the fewest clients for which Theorem 4 has this rho
    clients = found.clients_per_round
    assert rho(mu, Constants(smoothness, b, clients)) >= decrease * (1 - 1e-9)
    assert rho(mu, Constants(smoothness, b, clients - 1)) < decrease


def test_remark_8_needs_more_clients_than_corollary_7_says() -> None:
    b2 = 10.0**6
    found = convex_rate(1.0, 1.0, b2 - 1, 1.0)
    assert found.clients_per_round == pytest.approx(4.5 * b2, rel=0.01)
    mu, decrease = convex_case(1.0, 1000.0)
    assert rho(mu, Constants(1.0, 1000.0, 4 * 10**6)) < decrease
    assert rho(mu, Constants(1.0, 1000.0, 4 * 10**6), draft=True) > decrease


def test_runs_reach_a_small_gradient_within_the_rounds_of_remark_8() -> None:
    """F_k = 1/2 ||w - b_k||^2: the variance is that of the b_k, everywhere.

    B(w) is bounded where the gradient is large alone, so the promise is about the first round with
    a small gradient, in the mean over the seeds.
    """
    b = np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    variance, epsilon = 4.0, 1.0
    start = np.array([3.0, 0.0])
    found = convex_rate(1.0, 4.5, variance, epsilon)
    assert (round(found.mu, 9), found.clients_per_round, found.rounds) == (30.0, 39, 540)
    runs = runs_of(
        np.ones(4),
        b,
        start,
        found.mu,
        clients=found.clients_per_round,
        rounds=60,
        solver=Solver(1 / (1 + found.mu), "all", steps=1),
        seed=range(8),
        evaluation=Evaluation(gradients=False),
    )
    gradients = np.array([[2 * (r.train_loss - 2.0) for r in run.history] for run in runs])
    first = (gradients <= epsilon).argmax(axis=1)
    assert (gradients[:, 0] > epsilon).all()
    assert (first > 0).all()
    assert first.mean() <= found.rounds
    # the order alone, without the factor of 24, is not enough
    assert first.mean() > found.rounds / 24


# Corollary 9.


@given(st.lists(st.floats(0.0, 1.0), max_size=5), st.floats(0.0, 100.0))
def test_corollary_9_is_theorem_4_round_by_round(gammas: list[float], mu: float) -> None:
    constants = Constants(1.0, 1.5, 30, 0.5, gamma=0.7)
    expected = [rho(mu, Constants(1.0, 1.5, 30, 0.5, gamma)) for gamma in gammas]
    assert rho_by_round(mu, constants, gammas) == expected
    assert rho_by_round(mu, constants, [*gammas, 1.5, math.inf])[-2:] == [-math.inf] * 2


def test_runs_with_partial_work_keep_the_promise_of_corollary_9() -> None:
    """Sum of the recorded rounds' promises, from gammas that shrink by the round.

    F_k = 1/2 ||w - b_k||^2, and a step of rate eta leaves gamma = 1 - eta (1 + mu) of each client's
    gradient. Every round's gamma is that of all clients, drawn or not.
    """
    rng = np.random.default_rng(0)
    b = 0.1 * rng.normal(size=(5, 2))
    b -= b.mean(axis=0)
    spread = float((b**2).sum(axis=1).mean())
    start, clients, rounds, mu = np.array([2.0, 1.0]), 200, 6, 8.0
    runs = runs_of(
        np.ones(5),
        b,
        start,
        mu,
        clients=clients,
        rounds=rounds,
        solver=Solver(lambda t: (0.75 + 0.04 * t) / (1 + mu), "all", steps=1),
        seed=range(8),
        evaluation=Evaluation(),
    )
    promised, kept = [], []
    for run in runs:
        gammas = [record.gamma_max for record in run.history[1:]]
        np.testing.assert_allclose(gammas, 0.25 - 0.04 * np.arange(rounds), atol=1e-5)
        excess = np.array([record.train_loss for record in run.history]) - spread / 2
        worst = max(record.dissimilarity for record in run.history[:-1])
        values = rho_by_round(mu, Constants(1.0, worst, clients), gammas)
        assert min(values) > 0
        assert values == sorted(values)
        promised.append(float(np.sum(np.array(values) * 2 * excess[:-1])))
        kept.append(excess[0] - excess[-1])
    assert np.mean(kept) >= np.mean(promised)
    assert np.mean(kept) < 4 * np.mean(promised)


# Bad input.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rounds_needed(0.0, 1.0, 1.0), r"rho = 0\.0"),
        (lambda: rounds_needed(1.0, -1.0, 1.0), r"gap = -1\.0"),
        (lambda: rounds_needed(1.0, 1.0, 0.0), r"epsilon = 0\.0"),
        (lambda: rounds_needed(1e-200, 1e200, 1e-200), "rounds: the bound is inf"),
        (lambda: convex_rate(0.0, 1.0, 1.0, 1.0), r"smoothness = 0\.0"),
        (lambda: convex_rate(1.0, math.nan, 1.0, 1.0), "gap = nan"),
        (lambda: convex_rate(1.0, 1.0, -1.0, 1.0), r"variance = -1\.0"),
        (lambda: convex_rate(1.0, 1.0, 1.0, 0.0), r"epsilon = 0\.0"),
        (lambda: rho_by_round(-1.0, Constants(1, 1, 8), [0.0]), r"mu = -1\.0"),
        (lambda: rho_by_round(1.0, Constants(1, 1, 8), [0.1, math.nan]), r"gammas\[1\] = nan; it"),
        (lambda: rho_by_round(1.0, Constants(1, 1, 8), [-0.1]), r"gammas\[0\] = -0\.1; it"),
    ],
)
def test_numbers_out_of_range_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
