"""FedDyn against closed forms and the oracle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Evaluation, Solver, feddyn, simulate
from tests import methods
from tests.byhand import CLIENTS, ROWS, SOME, START, ByHand, beside_the_oracle, distance
from tests.quadratics import quadratic_model, ragged_quadratics


@settings(max_examples=15)
@given(
    seed=st.integers(0, 99),
    alpha=st.floats(0.05, 5),
    balance=st.booleans(),
    cohorts=st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=4),
)
def test_after_an_exact_solve_g_is_the_clients_own_gradient(
    seed: int, alpha: float, balance: bool, cohorts: list[set[int]]
) -> None:
    rows = ROWS[:5]
    federation = ragged_quadratics(seed, rows)
    ours = ByHand(feddyn(alpha, balance=balance), federation)
    share = np.array(rows) / np.mean(rows) if balance else np.ones(5)
    gradients = np.zeros((5, 3))  # grad F_k(w_k) of the last w_k, 0 before the first
    for cohort in cohorts:
        found = ours.round(sorted(cohort))
        for k, w in found.items():
            gradients[k] = methods.gradient(w, *ours.rows[k])
        for k in range(5):
            problem = ours.posed(k)
            # equation 2: the linear term of h_k is -g_k, and g_k = grad F_k(w_k)
            np.testing.assert_allclose(-problem.linear, gradients[k], rtol=1e-3, atol=1e-3)
            assert problem.mu == pytest.approx(alpha / share[k], rel=1e-5)
            np.testing.assert_allclose(problem.anchor, ours.params, rtol=1e-6)
        # w = mean w_k - h / alpha, and h is the mean of all g_k
        h = alpha * (np.mean(list(found.values()), axis=0) - ours.params)
        expected = (share[:, None] * gradients).mean(axis=0)
        np.testing.assert_allclose(h, expected, rtol=1e-3, atol=1e-3)


def test_the_first_round_adds_the_mean_movement_once_more() -> None:
    # with everyone, h^1 = -alpha (mean w_k - w^0), so w^1 = 2 mean w_k - w^0
    ours = ByHand(feddyn(0.7), ragged_quadratics(1, ROWS[:4]))
    found = ours.round(range(4))
    expected = 2 * np.mean(list(found.values()), axis=0) - START
    np.testing.assert_allclose(ours.params, expected, rtol=1e-4)


@pytest.mark.parametrize("balance", [False, True])
def test_it_ends_and_stays_at_the_minimiser_of_the_plain_mean_or_that_over_rows(
    balance: bool,
) -> None:
    federation = ragged_quadratics(2, ROWS[:5])
    ours = ByHand(feddyn(1.0, balance=balance), federation)
    for _ in range(60):
        ours.round(range(5))
    star = methods.minimiser(federation, by_rows=balance)
    np.testing.assert_allclose(ours.params, star, atol=1e-4)
    other = methods.minimiser(federation, by_rows=not balance)
    assert np.linalg.norm(ours.params - other) > 0.05
    # g_k = grad F_k(w*): every exact answer is w* again
    for w in [*ours.round([1, 3]).values(), ours.params]:
        np.testing.assert_allclose(w, star, atol=2e-4)


def test_it_reaches_the_minimiser_with_few_clients_whatever_alpha() -> None:
    federation = ragged_quadratics(0, ROWS)
    runs = simulate(
        federation,
        quadratic_model(START),
        feddyn(alpha=[0.5, 1.0, 5.0]),
        solver=Solver(0.1, "all", steps=20),
        cohort=SOME,
        rounds=800,
        evaluation=Evaluation(every=800, gradients=False),
    )
    for run in runs:
        assert distance(run, methods.minimiser(federation)) < 1e-3, run.label
        assert distance(run, methods.minimiser(federation, by_rows=True)) > 0.1


def test_runs_are_the_oracles() -> None:
    beside_the_oracle(
        feddyn(alpha=[0.3, 2.0]),
        lambda hparams, _: methods.FedDyn(START, CLIENTS, hparams["alpha"]),
    )
