"""FedSplit against closed forms, Peaceman-Rachford splitting and the oracle."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Evaluation, InputError, Solver, fedsplit, simulate
from fedprox.algorithms.base import Solution
from tests import methods
from tests.byhand import CLIENTS, ROWS, SOME, START, ByHand, beside_the_oracle, distance
from tests.quadratics import quadratic_model, ragged_quadratics


@settings(max_examples=10)
@given(seed=st.integers(0, 99), s=st.floats(0.2, 4), average=st.sampled_from(["all", "active"]))
def test_with_everyone_it_is_peaceman_rachfords(seed: int, s: float, average: Any) -> None:
    # z <- R_f R_mean z with the reflections R = 2 prox - 1, by closed forms
    federation = ragged_quadratics(seed, ROWS[:4])
    ours = ByHand(fedsplit(s, average=average), federation)
    z = np.tile(START, (4, 1))
    for _ in range(4):
        reflected = 2 * z.mean(axis=0) - z
        for k in range(4):
            # prox_{sF}(v) minimises F(w) + 1/(2s) ||w - v||^2
            problem = methods.Problem(np.zeros(3), 1 / s, reflected[k])
            z[k] = 2 * methods.exact(*ours.rows[k], problem) - reflected[k]
        ours.round(range(4))
        np.testing.assert_allclose(ours.params, z.mean(axis=0), rtol=1e-3, atol=1e-3)
        for k in range(4):
            anchor = 2 * z.mean(axis=0) - z[k]
            np.testing.assert_allclose(ours.posed(k).anchor, anchor, rtol=1e-3, atol=1e-3)


@settings(max_examples=10)
@given(seed=st.integers(0, 99), s=st.floats(0.2, 4), cohort=st.sets(st.integers(0, 4), min_size=1))
def test_the_minimiser_is_a_fixed_point(seed: int, s: float, cohort: set[int]) -> None:
    # at z_k = w* - s grad F_k(w*) x stays at w*, whoever takes part
    federation = ragged_quadratics(seed, ROWS[:5])
    star = methods.minimiser(federation)
    ours = ByHand(fedsplit(s, average="all"), federation, start=star)
    for k in range(5):
        away = s * methods.gradient(star, *ours.rows[k])
        ours.client_state[k] = jnp.asarray(star - away, jnp.float32)
    found = ours.round(sorted(cohort))
    for w in [*found.values(), ours.params]:
        np.testing.assert_allclose(w, star, atol=1e-4)


def test_active_averages_those_who_took_part_and_all_everyone() -> None:
    federation = ragged_quadratics(4, ROWS[:5])
    active = ByHand(fedsplit(1.0, average="active"), federation)
    everyone = ByHand(fedsplit(1.0, average="all"), federation)
    z = {"active": np.tile(START, (5, 1)), "all": np.tile(START, (5, 1))}
    for cohort in ([0, 1], [1, 4], [2]):
        for name, ours in (("active", active), ("all", everyone)):
            x = ours.params
            for k, w in ours.round(cohort).items():
                z[name][k] += 2 * (w - x)
        np.testing.assert_allclose(active.params, z["active"][cohort].mean(axis=0), atol=1e-4)
        np.testing.assert_allclose(everyone.params, z["all"].mean(axis=0), atol=1e-4)


def test_a_client_is_judged_by_how_far_it_moved_and_not_by_how_long_it_was_away() -> None:
    # z_4 is still w^0, far from x; z_0 is not
    ours = ByHand(fedsplit(1.0), ragged_quadratics(4, ROWS[:5]), start=100 * START)
    for _ in range(3):
        ours.round([0, 1])
    way = np.array([0.3, 0.0, -0.4])
    for k in (0, 4):
        context, hparams = ours.context(k), ours.hparams()
        problem = ours.algorithm.subproblem(ours.state, hparams, context)
        solution = Solution(problem, problem.start + way, jnp.int32(1))
        message, _ = ours.algorithm.client.message(ours.state, hparams, context, solution)
        assert float(ours.algorithm.client.size(message)) == pytest.approx(2 * 0.5, rel=1e-4)


def test_averaging_all_reaches_the_minimiser_with_few_clients() -> None:
    federation = ragged_quadratics(0, ROWS)
    runs = simulate(
        federation,
        quadratic_model(START),
        fedsplit(step_size=[0.5, 1.0], average="all"),
        solver=Solver(0.1, "all", steps=60),
        cohort=SOME,
        rounds=600,
        evaluation=Evaluation(every=600, gradients=False),
    )
    for run in runs:
        assert distance(run, methods.minimiser(federation)) < 1e-3, run.label


def test_runs_are_the_oracles() -> None:
    beside_the_oracle(
        fedsplit(step_size=[0.5, 2.0], average="all"),
        lambda hparams, _: methods.FedSplit(START, CLIENTS, hparams["step_size"], "all"),
    )


def test_an_average_is_over_all_or_the_active() -> None:
    with pytest.raises(InputError, match=r"fedsplit: average = 'some'; .* all, active"):
        fedsplit(1.0, average="some")  # type: ignore[arg-type]
