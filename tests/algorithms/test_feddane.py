"""FedDANE against DANE, against FedProx, and with its two cohorts."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Cohort, Evaluation, Solver, feddane, fedprox, models, simulate
from fedprox.engine.compiled import layout
from fedprox.streams import Purpose
from tests.engine.compiled.test_round import ragged_federation
from tests.quadratics import (
    Vector,
    one_run,
    quadratic_federation,
    quadratic_model,
    random_quadratics,
)
from tests.variants import mostly_slow

ROWS = [1, 200, 3, 40, 129]


def dane(
    a: list[Vector], b: list[Vector], p: Vector, start: Vector, mu: float, eta: float, steps: int
) -> Vector:
    """One round of inexact DANE (Shamir et al. 2014, equation 13) by gradient descent."""
    mean = sum(p_k * a_k @ (start - b_k) for p_k, a_k, b_k in zip(p, a, b, strict=True))
    solved = []
    for a_k, b_k in zip(a, b, strict=True):
        linear, w = mean - a_k @ (start - b_k), start
        for _ in range(steps):
            w = w - eta * (a_k @ (w - b_k) + linear + mu * (w - start))
        solved.append(w)
    return np.asarray(np.tensordot(p, solved, 1))


@settings(max_examples=4)
@given(seed=st.integers(0, 99), mu=st.sampled_from([0.0, 0.5]), lanes=st.sampled_from([1, 2, 3]))
def test_with_everyone_in_both_cohorts_it_is_dane(seed: int, mu: float, lanes: int) -> None:
    a, b = random_quadratics(seed, 5, 3)
    start, p = np.ones(3), np.array(ROWS) / sum(ROWS)
    solver = Solver(0.1, batch_size="all", steps=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "choose_lanes", lambda *_: lanes)
        federation = quadratic_federation(a, b, rows=ROWS)
        run = one_run(federation, quadratic_model(start), feddane(mu=mu), solver, rounds=2)
    once = dane(a, b, p, start, mu, 0.1, 7)
    np.testing.assert_allclose(run.params, dane(a, b, p, once, mu, 0.1, 7), rtol=1e-4, atol=1e-5)


def test_dane_reaches_the_minimiser_where_fedprox_does_not() -> None:
    a, b = random_quadratics(1, 5, 3)
    minimiser = np.linalg.solve(sum(a), sum(x @ y for x, y in zip(a, b, strict=True)))
    solver = Solver(0.05, batch_size="all", steps=100)
    setting: dict[str, Any] = {"solver": solver, "rounds": 60}
    setting["evaluation"] = Evaluation(every=60, gradients=False)
    federation, model = quadratic_federation(a, b), quadratic_model(np.ones(3))
    ours = one_run(federation, model, feddane(mu=1.0), **setting)
    other = one_run(federation, model, fedprox(mu=1.0), **setting)
    np.testing.assert_allclose(ours.params, minimiser, atol=1e-3)
    assert np.linalg.norm(other.params - minimiser) > 0.05


def test_with_identical_clients_it_is_fedprox() -> None:
    rng = np.random.default_rng(0)
    one = (rng.normal(size=(30, 6)), rng.integers(0, 3, 30))
    federation = type(ragged_federation([1])).from_arrays([one] * 4, [one] * 4, classes=3)
    ours, theirs = simulate(
        federation,
        models.logistic(federation),
        [feddane(mu=0.2), fedprox(mu=0.2)],
        solver=Solver(0.1, batch_size=10, epochs=3),
        cohort=Cohort(2),
        rounds=3,
        evaluation=Evaluation(gradients=False),
    )
    for x, y in zip(jax.tree.leaves(ours.params), jax.tree.leaves(theirs.params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sampling", mostly_slow(["uniform", "proportional"], "proportional"))
def test_the_mean_gradient_is_of_a_cohort_of_its_own(sampling: Any) -> None:
    a, b = random_quadratics(2, 5, 3)
    federation, start = quadratic_federation(a, b, rows=ROWS), np.ones(3)
    cohort, offsets = Cohort(2, sampling=sampling), federation.train.offsets
    gradients = [a_k @ (start - b_k) for a_k, b_k in zip(a, b, strict=True)]
    differ = 0
    for seed in range(4):
        run = one_run(
            federation,
            quadratic_model(start),
            feddane(mu=0.5),
            Solver(0.1, batch_size="all", steps=1),
            cohort=cohort,
            seed=seed,
        )
        first = cohort.draw(seed, 0, offsets, Purpose.GRADIENT_COHORT)
        differ += set(first.clients) != set(cohort.draw(seed, 0, offsets).clients)
        mean = sum(m * gradients[k] for k, m in zip(first.clients, first.mass, strict=True))
        # one step from w^t: grad h_k(w^t) = g^t, whoever takes it
        np.testing.assert_allclose(run.params, start - 0.1 * mean / first.mass.sum(), rtol=1e-5)
    assert differ > 0


@pytest.mark.parametrize("evaluated", ["cohort", "clients"])
def test_the_mean_gradient_is_kept_whichever_model_is_evaluated(evaluated: Any) -> None:
    # one step from w^t: grad h_k(w^t) = g^t, so every w_k is w^t - eta g^t
    a, b = random_quadratics(2, 5, 3)
    federation, start, cohort = quadratic_federation(a, b, rows=ROWS), np.ones(3), Cohort(2)
    run = one_run(
        federation,
        quadratic_model(start),
        feddane(mu=0.5),
        Solver(0.1, batch_size="all", steps=1),
        cohort=cohort,
        rounds=3,
        evaluation=Evaluation(model=evaluated, gradients=False),
    )
    offsets, w, last = federation.train.offsets, start, np.tile(start, (5, 1))
    for t in range(3):
        first = cohort.draw(0, t, offsets, Purpose.GRADIENT_COHORT)
        gradients = [a[k] @ (w - b[k]) for k in first.clients]
        w = w - 0.1 * np.average(gradients, axis=0, weights=first.mass)
        last[cohort.draw(0, t, offsets).clients] = w
    expected = w if evaluated == "cohort" else np.average(last, axis=0, weights=ROWS)
    np.testing.assert_allclose(run.params, expected, rtol=1e-5)


def test_a_round_counts_two_exchanges() -> None:
    federation = quadratic_federation(*random_quadratics(3, 3, 2))
    setting: dict[str, Any] = {"solver": Solver(0.1, batch_size="all", steps=2), "rounds": 4}
    ours = one_run(federation, quadratic_model(np.ones(2)), feddane(mu=0.5), **setting)
    theirs = one_run(federation, quadratic_model(np.ones(2)), fedprox(mu=0.5), **setting)
    assert [record.communication for record in ours.history] == [0, 2, 4, 6, 8]
    assert [record.communication for record in theirs.history] == [0, 1, 2, 3, 4]


def test_gamma_is_of_the_corrected_problem() -> None:
    a, b = random_quadratics(4, 3, 3)
    federation, start = quadratic_federation(a, b), np.ones(3)
    solver = Solver(0.1, batch_size="all", steps=4)
    measured = Evaluation()
    run = one_run(federation, quadratic_model(start), feddane(mu=0.7), solver, evaluation=measured)
    expected = [
        np.linalg.norm(np.linalg.matrix_power(np.eye(3) - 0.1 * (a_k + 0.7 * np.eye(3)), 4) @ g)
        / np.linalg.norm(g)
        for a_k, g in ((a_k, sum(x @ (start - y) for x, y in zip(a, b, strict=True))) for a_k in a)
    ]
    assert run.final.gamma_mean == pytest.approx(np.mean(expected), rel=1e-4)
    ruled = one_run(
        federation,
        quadratic_model(start),
        feddane(mu=0.7),
        Solver(0.1, batch_size="all", steps=400, gamma=0.3),
        evaluation=measured,
    )
    assert 0 < ruled.final.gamma_max <= 0.3 * 1.001


@pytest.mark.slow
def test_a_sweep_and_rounds_in_one_call_change_nothing() -> None:
    federation = ragged_federation([5, 12, 30, 44])
    setting: dict[str, Any] = {
        "solver": Solver(0.1, batch_size=10, epochs=2),
        "cohort": Cohort(2),
        "rounds": 4,
    }
    model = models.logistic(federation)
    seldom, often = Evaluation(every=4, gradients=False), Evaluation(gradients=False)
    swept = simulate(federation, model, feddane(mu=[0.0, 1.0]), evaluation=seldom, **setting)
    (alone,) = simulate(federation, model, feddane(mu=1.0), evaluation=often, **setting)
    for x, y in zip(jax.tree.leaves(alone.params), jax.tree.leaves(swept[1].params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
