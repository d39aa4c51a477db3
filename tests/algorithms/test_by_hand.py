"""Methods whose clients remember, driven by hand against closed forms."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from tests import methods
from tests.byhand import ROWS, START, ByHand, Local
from tests.methods import Vector
from tests.quadratics import one_run, quadratic_model, ragged_quadratics

SEED = st.integers(0, 99)
COHORT = st.sets(st.integers(0, 4), min_size=1)
COHORTS = st.lists(COHORT, min_size=1, max_size=4)


def same(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


# FedDyn


@settings(max_examples=12)
@given(seed=SEED, alpha=st.floats(0.05, 5), balance=st.booleans(), cohorts=COHORTS)
def test_after_an_exact_solve_g_of_feddyn_is_the_clients_own_gradient(
    seed: int, alpha: float, balance: bool, cohorts: list[set[int]]
) -> None:
    rows = ROWS[:5]
    ours = ByHand(fp.feddyn(alpha, balance=balance), ragged_quadratics(seed, rows))
    share = np.array(rows) / np.mean(rows) if balance else np.ones(5)
    gradients = np.zeros((5, 3))  # grad F_k(w_k) of the last w_k, 0 before the first
    for cohort in cohorts:
        found = ours.round(sorted(cohort))
        for k, w in found.items():
            gradients[k] = methods.gradient(w, *ours.rows[k])
        for k in range(5):
            problem = ours.posed(k)
            # equation 2: the linear term of h_k is -g_k, and g_k = grad F_k(w_k)
            same(-problem.linear, gradients[k])
            assert problem.mu == pytest.approx(alpha / share[k], rel=1e-5)
            np.testing.assert_allclose(problem.anchor, ours.params, rtol=1e-6)
        # w = mean w_k - h / alpha, and h is the mean of all g_k
        h = alpha * (np.mean(list(found.values()), axis=0) - ours.params)
        same(h, (share[:, None] * gradients).mean(axis=0))


def test_balanced_feddyn_ends_and_stays_at_the_minimiser_over_rows() -> None:
    federation = ragged_quadratics(2, ROWS[:5])
    ours = ByHand(fp.feddyn(1.0, balance=True), federation)
    for _ in range(60):
        ours.round(range(5))
    star = methods.minimiser(federation, by_rows=True)
    np.testing.assert_allclose(ours.params, star, atol=1e-4)
    assert np.linalg.norm(ours.params - methods.minimiser(federation)) > 0.05
    # g_k = grad F_k(w*): every exact answer is w* again
    for w in [*ours.round([1, 3]).values(), ours.params]:
        np.testing.assert_allclose(w, star, atol=2e-4)


# FedADMM and FedSplit


@settings(max_examples=8)
@given(seed=SEED, rho=st.floats(0.2, 4), cohorts=COHORTS)
def test_duals_of_fedadmm_are_gradients_and_the_model_is_the_mean_of_all_clients(
    seed: int, rho: float, cohorts: list[set[int]]
) -> None:
    """Exact solutions: grad F_k(w_k) + lambda_k' = 0, and w = mean_k (w_k + lambda_k / rho)."""
    for cohort in cohorts:
        # the rate is a number, so every cohort begins a run of its own
        method = fp.fedadmm(rho, server_learning_rate=len(cohort) / 5)
        ours = ByHand(method, ragged_quadratics(seed, ROWS[:5]))
        for _ in range(3):
            found = ours.round(sorted(cohort))
            for k, w in found.items():
                same(ours.client_state[k][1], -methods.gradient(w, *ours.rows[k]))
            u = [np.asarray(last + dual / rho) for last, dual in ours.client_state]
            same(ours.params, np.mean(u, axis=0))


@settings(max_examples=8)
@given(seed=SEED, s=st.floats(0.2, 4), average=st.sampled_from(["all", "active"]))
def test_fedsplit_of_everyone_is_peaceman_rachfords(seed: int, s: float, average: Any) -> None:
    # z <- R_f R_mean z with the reflections R = 2 prox - 1, by closed forms
    ours = ByHand(fp.fedsplit(s, average=average), ragged_quadratics(seed, ROWS[:4]))
    z = np.tile(START, (4, 1))
    for _ in range(4):
        reflected = 2 * z.mean(axis=0) - z
        for k in range(4):
            # prox_{sF}(v) minimises F(w) + 1/(2s) ||w - v||^2
            problem = methods.Problem(np.zeros(3), 1 / s, reflected[k])
            z[k] = 2 * methods.exact(*ours.rows[k], problem) - reflected[k]
        ours.round(range(4))
        same(ours.params, z.mean(axis=0))
        for k in range(4):
            same(ours.posed(k).anchor, 2 * z.mean(axis=0) - z[k])


# SCAFFOLD


def control(ours: ByHand) -> Vector:
    """c: h_k's linear term for a client that has kept nothing yet."""
    return ours.posed(0, ours.context(0)._replace(state=ours.nothing)).linear


def controls(ours: ByHand) -> Vector:
    """All c_k: h_k's linear term is c - c_k."""
    linear = [ours.posed(k).linear for k in range(len(ours.rows))]
    return np.asarray(control(ours) - np.array(linear))


def sgd(ours: ByHand, k: int, steps: int, rate: float) -> tuple[Local, Vector]:
    """Client k's answer, and the mean of grad F_k on the way to it."""
    w, path, linear = ours.params, [], ours.posed(k).linear
    for _ in range(steps):
        path.append(methods.gradient(w, *ours.rows[k]))
        w = w - rate * (path[-1] + linear)
    return Local(w, steps), np.mean(path, axis=0)


@settings(max_examples=10)
@given(
    seed=SEED,
    option=st.sampled_from([1, 2]),
    rounds=st.lists(
        st.tuples(COHORT, st.integers(1, 7), st.sampled_from([0.1, 0.03])), min_size=1, max_size=4
    ),
)
def test_control_variates_are_gradients_and_c_moves_by_the_share_that_took_part(
    seed: int, option: Any, rounds: list[tuple[set[int], int, float]]
) -> None:
    ours = ByHand(fp.scaffold(option=option), ragged_quadratics(seed, ROWS[:5]))
    expected = np.zeros((5, 3))  # all control variates begin at 0, so round 1 is FedAvg's
    for cohort, steps, rate in rounds:
        x, c, c_k = ours.params, control(ours), controls(ours)
        walks = {k: sgd(ours, k, steps + k, rate) for k in sorted(cohort)}
        answers = {k: walk[0] for k, walk in walks.items()}
        found = ours.round(answers, answers.__getitem__, learning_rate=rate)
        for k in cohort:
            expected[k] = methods.gradient(x, *ours.rows[k]) if option == 1 else walks[k][1]
        # who was not chosen keeps c_k
        same(controls(ours), expected)
        change = np.mean([expected[k] - c_k[k] for k in cohort], axis=0)
        same(control(ours), c + len(cohort) / 5 * change)
        # all c_k start at 0, so c is always their mean, who took part or not
        same(control(ours), expected.mean(axis=0))
        np.testing.assert_allclose(ours.params, np.mean(list(found.values()), axis=0), rtol=1e-4)


@pytest.mark.slow
def test_option_2_of_scaffold_divides_by_the_steps_that_a_stop_rule_left() -> None:
    federation, eta, gamma = ragged_quadratics(1, [3, 1, 2]), 0.2, 0.5
    rows = [methods.rows_of(federation, k) for k in range(3)]
    solver = fp.Solver(eta, "all", steps=50, gamma=gamma)
    run = one_run(federation, quadratic_model(START), fp.scaffold(), solver, rounds=3)
    oracle, taken = methods.Scaffold(START, 3), list[int]()
    for _ in range(3):
        answers = {}
        for k in range(3):
            linear, path = oracle.problem(k).linear, [oracle.params]
            norms = [np.linalg.norm(methods.gradient(path[0], *rows[k]) + linear)]
            while norms[-1] > gamma * norms[0]:
                path.append(path[-1] - eta * (methods.gradient(path[-1], *rows[k]) + linear))
                norms.append(np.linalg.norm(methods.gradient(path[-1], *rows[k]) + linear))
            answers[k] = methods.Answer(path[-1], len(path) - 1)
        taken += [answer.steps for answer in answers.values()]
        oracle.finish(answers, np.ones(3), eta, lambda w: w)
    assert run.client_steps == sum(taken)
    assert 0 < min(taken) < max(taken) < 50
    np.testing.assert_allclose(run.params, oracle.params, rtol=1e-4)
