"""FedADMM against closed forms, FedDyn and the oracle."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Cohort, Evaluation, Solver, fedadmm, feddyn, simulate
from fedprox.algorithms.base import Solution
from tests import methods
from tests.byhand import CLIENTS, ROWS, SOME, START, ByHand, beside_the_oracle, distance
from tests.quadratics import one_run, quadratic_model, ragged_quadratics


@settings(max_examples=10)
@given(
    seed=st.integers(0, 99),
    rho=st.floats(0.2, 4),
    cohorts=st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=4),
)
def test_duals_are_gradients_and_the_model_is_the_mean_of_all_clients(
    seed: int, rho: float, cohorts: list[set[int]]
) -> None:
    """Exact solutions: grad F_k(w_k) + lambda_k' = 0, and w = mean_k (w_k + lambda_k / rho)."""
    for cohort in cohorts:
        # the rate is a number, so every cohort begins a run of its own
        ours = ByHand(
            fedadmm(rho, server_learning_rate=len(cohort) / 5), ragged_quadratics(seed, ROWS[:5])
        )
        for _ in range(3):
            found = ours.round(sorted(cohort))
            for k, w in found.items():
                gradient = methods.gradient(w, *ours.rows[k])
                _, dual = ours.client_state[k]
                np.testing.assert_allclose(dual, -gradient, rtol=1e-3, atol=1e-3)
            u = [np.asarray(last + dual / rho) for last, dual in ours.client_state]
            np.testing.assert_allclose(ours.params, np.mean(u, axis=0), rtol=1e-3, atol=1e-3)


def test_with_everyone_it_is_feddyn_with_alpha_rho() -> None:
    federation, model = ragged_quadratics(2, [3, 1, 7, 4]), quadratic_model(START)
    setting: dict[str, Any] = {"solver": Solver(0.05, 2, epochs=2), "rounds": 6}
    ours = one_run(federation, model, fedadmm(rho=0.8), **setting)
    theirs = one_run(federation, model, feddyn(alpha=0.8), **setting)
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-4)
    for rate in (0.5, 1.0):
        some = setting | {"cohort": Cohort(2)}
        ours = one_run(federation, model, fedadmm(0.8, server_learning_rate=rate), **some)
        theirs = one_run(federation, model, feddyn(0.8), **some)
        assert np.linalg.norm(np.asarray(ours.params) - np.asarray(theirs.params)) > 0.01


def test_it_reaches_the_minimiser_of_the_plain_mean_with_few_clients() -> None:
    federation = ragged_quadratics(0, ROWS)
    (run,) = simulate(
        federation,
        quadratic_model(START),
        fedadmm(rho=1.0, server_learning_rate=0.1),
        solver=Solver(0.1, "all", steps=60),
        cohort=SOME,
        rounds=800,
        evaluation=Evaluation(every=800, gradients=False),
    )
    assert distance(run, methods.minimiser(federation)) < 1e-3


def test_runs_are_the_oracles() -> None:
    beside_the_oracle(
        fedadmm(rho=[0.5, 2.0], server_learning_rate=0.3),
        lambda hparams, _: methods.FedAdmm(START, CLIENTS, hparams["rho"], 0.3),
    )


def test_a_client_is_judged_by_how_far_it_moved_and_not_by_how_long_it_was_away() -> None:
    # w_4 is still w^0, far from the model; w_0 is not
    ours = ByHand(fedadmm(1.0), ragged_quadratics(4, ROWS[:5]), start=100 * START)
    for _ in range(3):
        ours.round([0, 1])
    for k in (0, 4):
        context, hparams = ours.context(k), ours.hparams()
        problem = ours.algorithm.subproblem(ours.state, hparams, context)
        way = problem.start + jnp.array([0.3, 0.0, -0.4])
        solution = Solution(problem, way, jnp.int32(1))
        message, _ = ours.algorithm.client.message(ours.state, hparams, context, solution)
        assert float(ours.algorithm.client.size(message)) == pytest.approx(0.5, rel=1e-4)
