"""Gradient variance, B(w) and gamma."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import (
    Cohort,
    Evaluation,
    Run,
    Solver,
    Systems,
    Target,
    datasets,
    fedavg,
    fedprox,
    models,
    simulate,
)
from fedprox.engine.compiled.gradients import per_lane
from fedprox.measures import include, nothing
from fedprox.report.table import common_target
from fedprox.results.record import Record
from tests import objectives
from tests.catalogue import SAMPLED
from tests.quadratics import (
    one_run,
    quadratic_federation,
    quadratic_model,
    ragged_quadratics,
    random_quadratics,
)

measured = functools.partial(one_run, evaluation=Evaluation())
STILL = Solver(1e-30, batch_size="all", steps=1)


def test_identical_clients_have_no_variance_and_b_one() -> None:
    a, b = random_quadratics(0, 1, 4)
    federation = quadratic_federation(a * 7, b * 7, rows=[3] * 7)
    run = measured(federation, quadratic_model(np.ones(4)), fedavg(), STILL)
    assert run.final.gradient_variance < 1e-10
    assert run.final.dissimilarity == pytest.approx(1, abs=1e-6)


def test_two_clients_by_hand() -> None:
    # gradients at w = 0: -1 with p = 1/4 and -5 with p = 3/4; mean -4, variance 3
    a, b = [np.eye(1)] * 2, [np.array([1.0]), np.array([5.0])]
    federation = quadratic_federation(a, b, rows=[1, 3])
    run = measured(federation, quadratic_model(np.zeros(1)), fedavg(), STILL)
    assert run.final.gradient_variance == pytest.approx(3)
    assert run.final.dissimilarity == pytest.approx(np.sqrt((1 + 3 * 25) / 4 / 16))
    assert run.final.train_loss == pytest.approx((0.5 + 3 * 12.5) / 4)


def test_b_is_one_where_all_gradients_vanish_and_infinite_where_only_their_mean_does() -> None:
    a = [np.eye(1)] * 2
    for b, expected in (([0.0, 0.0], 1.0), ([-1.0, 1.0], np.inf)):
        federation = quadratic_federation(a, [np.array([v]) for v in b])
        run = measured(federation, quadratic_model(np.zeros(1)), fedavg(), STILL)
        assert run.history[0].dissimilarity == expected


@settings(max_examples=4)
@given(seed=st.integers(0, 1000), rows=st.lists(st.integers(1, 90), min_size=3, max_size=9))
def test_b_and_variance_equal_their_definitions(seed: int, rows: list[int]) -> None:
    a, b = random_quadratics(seed, len(rows), 3)
    federation = quadratic_federation(a, b, rows=rows)
    run = measured(federation, quadratic_model(np.ones(3)), fedavg(), STILL)
    p = np.array(rows) / sum(rows)
    gradients = np.array([a_k @ (1 - b_k) for a_k, b_k in zip(a, b, strict=True)])
    mean = p @ gradients
    variance = p @ ((gradients - mean) ** 2).sum(axis=1)
    b_squared = p @ (gradients**2).sum(axis=1) / (mean @ mean)
    assert run.final.gradient_variance == pytest.approx(variance, rel=1e-4)
    assert run.final.dissimilarity == pytest.approx(np.sqrt(b_squared), rel=1e-4)
    assert run.final.dissimilarity >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLED)
def test_measuring_gradients_changes_no_model(name: str) -> None:
    method, solver = SAMPLED[name].method, Solver(0.1, 3, epochs=2)
    federation, model = ragged_quadratics(0, [2, 5, 1, 4]), quadratic_model(np.ones(3))
    if method.client.objective is not None or method.own_parts or method.server.starts > 1:
        federation, model = objectives.federation(), objectives.MODEL
    options: dict[str, Any] = {"cohort": Cohort(2), "rounds": 4}
    run, without = (
        one_run(
            federation,
            model,
            method,
            solver,
            evaluation=Evaluation(gradients=gradients),
            **options,
        )
        for gradients in (True, False)
    )
    jax.tree.map(np.testing.assert_array_equal, run.params, without.params)
    assert run.final.train_loss == without.final.train_loss


def test_a_client_without_weight_scatters_nothing() -> None:
    # whether it comes first, between others, or last
    gradients, weights = jnp.array([[7.0], [1.0], [8.0], [5.0], [9.0]]), [0.0, 0.25, 0.0, 0.75, 0.0]
    found = nothing(jnp.zeros(1))
    for gradient, weight in zip(gradients, weights, strict=True):
        found = include(found, gradient, jnp.float32(weight))
    assert (float(found.weight), found.mean.tolist(), float(found.scatter)) == (1, [4], 3)


def test_the_sums_of_a_lane_are_divided_by_its_own_rows() -> None:
    # three lanes, two points of a sweep
    sums, size = {"w": np.ones((3, 2, 4)), "b": np.ones((3, 2))}, jnp.array([1.0, 2.0, 4.0])
    for leaf in per_lane(sums, size).values():
        for lane, share in zip(leaf, (1, 0.5, 0.25), strict=True):
            np.testing.assert_array_equal(lane, np.full(lane.shape, share))


@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_gamma_of_gradient_descent_on_quadratics(mu: float) -> None:
    a, b = random_quadratics(3, 4, 3)
    start, eta, steps = np.ones(3), 0.1, 5
    federation = quadratic_federation(a, b, rows=[1, 200, 3, 4])
    solver = Solver(eta, batch_size="all", steps=steps)
    run = measured(federation, quadratic_model(start), fedprox(mu=mu), solver)
    expected = []
    for a_k, b_k in zip(a, b, strict=True):
        w, h = start, a_k + mu * np.eye(3)
        first = a_k @ (start - b_k)
        for _ in range(steps):
            w = w - eta * (a_k @ (w - b_k) + mu * (w - start))
        last = np.linalg.matrix_power(np.eye(3) - eta * h, steps) @ first
        np.testing.assert_allclose(last, a_k @ (w - b_k) + mu * (w - start), atol=1e-12)
        expected.append(np.linalg.norm(last) / np.linalg.norm(first))
    assert run.final.gamma_mean == pytest.approx(np.mean(expected), rel=1e-4)


def test_gamma_is_one_without_work_and_vanishes_with_an_exact_solver() -> None:
    federation = quadratic_federation(*random_quadratics(4, 3, 3))
    model = quadratic_model(np.ones(3))
    still = measured(federation, model, fedprox(mu=1.0), STILL)
    assert still.final.gamma_mean == pytest.approx(1, abs=1e-6)
    exact = measured(federation, model, fedprox(mu=1.0), Solver(0.1, batch_size="all", steps=3000))
    assert exact.final.gamma_mean < 1e-5


def test_gamma_is_of_the_evaluated_round_only() -> None:
    # rounds 0 to 4 in one call; gamma must be that of round 4 from the model after round 3
    federation = datasets.synthetic(clients=6)
    setting: dict[str, Any] = {
        "solver": Solver(0.05, batch_size=10, epochs=2),
        "cohort": Cohort(3),
        "systems": Systems(0.5),
        "rounds": 5,
    }
    model = models.logistic(federation)
    (often,) = simulate(federation, model, fedprox(mu=0.5), **setting)
    (once,) = simulate(
        federation, model, fedprox(mu=0.5), evaluation=Evaluation(every=5), **setting
    )
    assert once.final == often.final
    assert [record.round for record in once.history] == [0, 5]


def run_with(accuracies: list[float], every: int = 1) -> Run:
    run = Run("m", {}, 0.1, 0, "m")
    run.history = [
        Record(
            *("m", "m", {}, 0.1, 0, every * i),
            {"train_loss": 0.0, "test_accuracy": a, "total_steps": i, "communication": i},
        )
        for i, a in enumerate(accuracies)
    ]
    return run


@pytest.mark.parametrize("best", [0.29, 0.57, 0.58, 1.0])
def test_the_common_target_is_a_whole_per_cent_that_every_sound_run_reaches(best: float) -> None:
    runs = [run_with([0.1, best]), run_with([0.1, best + 0.004])]
    assert common_target(runs) == Target("test_accuracy", best)
    diverged = run_with([0.1, 0.12])
    ruined = {**diverged.history[1].measures, "train_loss": np.inf}
    diverged.history[1] = replace(diverged.history[1], measures=ruined)
    assert common_target([*runs, diverged]) == Target("test_accuracy", best)
    assert common_target([run_with([np.nan, np.nan])]) is None
