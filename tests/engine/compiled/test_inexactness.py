"""Gamma-inexact local solves, by any local solver."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import (
    Callback,
    Cohort,
    Evaluation,
    Federation,
    InputError,
    Population,
    Record,
    Solver,
    Systems,
    centralised,
    fedavg,
    feddane,
    fedprox,
    fedsgd,
    line_search_descent,
    models,
    simulate,
)
from fedprox.engine.compiled import layout
from fedprox.protocol.protocol import initial_params
from tests import oracle
from tests.engine.compiled.test_round import as_oracle, ragged_federation
from tests.methods import objective
from tests.quadratics import (
    one_run,
    quadratic_federation,
    quadratic_model,
    ragged_quadratics,
    random_quadratics,
)
from tests.variants import mostly_slow

ROWS = [1, 9, 10, 11, 150, 300]

SOLVERS: dict[str, dict[str, Any]] = {
    "mini-batches": {"learning_rate": 0.02, "batch_size": 10, "epochs": 200},
    "gradient descent": {"learning_rate": 0.2, "batch_size": "all", "steps": 2000},
    "line search": {
        "learning_rate": 4.0,
        "batch_size": "all",
        "steps": 300,
        "optimizer": line_search_descent,
    },
    "L-BFGS": {"learning_rate": 1.0, "batch_size": "all", "steps": 60, "optimizer": optax.lbfgs},
}


@pytest.mark.parametrize("name", mostly_slow(SOLVERS, "mini-batches"))
@pytest.mark.parametrize("lanes", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_solver_meets_its_gamma(name: str, lanes: int) -> None:
    federation = ragged_federation(ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "choose_lanes", lambda *_: lanes)
        runs = simulate(
            federation,
            models.logistic(federation),
            fedprox(mu=[0.5, 2.0]),
            solver=Solver(**SOLVERS[name], gamma=0.2),
            cohort=Cohort(len(ROWS)),
            rounds=3,
        )
    for run in runs:
        for record in run.history[1:]:
            assert 0 < record.gamma_max <= 0.2 * 1.001
            assert record.unsolved == 0
            assert record.client_steps > 0
        taken = np.cumsum([record.client_steps for record in run.history])
        assert [record.total_steps for record in run.history] == taken.tolist()
        assert run.client_steps == taken[-1]
    # a stronger proximal term makes the local problem easier
    assert runs[1].client_steps < runs[0].client_steps


@pytest.mark.slow
def test_a_client_that_is_done_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # one after another nobody waits; side by side a client must not go on until the last is done
    federation = quadratic_federation(*random_quadratics(8, 4, 3), rows=[1, 150, 3, 4])
    solver = Solver(**SOLVERS["line search"], gamma=0.6)
    found = []
    for lanes in (1, 4):
        monkeypatch.setattr(layout, "choose_lanes", lambda *_, lanes=lanes: lanes)
        model = quadratic_model(np.ones(3))
        run = one_run(federation, model, fedprox(mu=0.1), solver, devices=1)
        found.append((run.client_steps, np.asarray(run.params)))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5)


def descent_steps(
    a: np.ndarray, b: np.ndarray, start: np.ndarray, mu: float, eta: float, gamma: float
) -> int:
    """Steps of gradient descent on h until ||grad h|| <= gamma ||grad h(start)||."""
    w, steps = start, 0
    first = np.linalg.norm(a @ (w - b))
    while np.linalg.norm(a @ (w - b) + mu * (w - start)) > gamma * first:
        w, steps = w - eta * (a @ (w - b) + mu * (w - start)), steps + 1
    return steps


@settings(max_examples=3)
@given(seed=st.integers(0, 99), gamma=st.sampled_from([0.9, 0.3, 0.05]), mu=st.floats(0, 3))
def test_gradient_descent_stops_at_the_first_step_that_meets_gamma(
    seed: int, gamma: float, mu: float
) -> None:
    a, b = random_quadratics(seed, 5, 3)
    start, eta = np.ones(3), 0.1
    federation = quadratic_federation(a, b, rows=[1, 200, 3, 4, 129])
    solver = Solver(eta, batch_size="all", steps=3000, gamma=gamma)
    run = one_run(federation, quadratic_model(start), fedprox(mu=mu), solver)
    expected = [descent_steps(*pair, start, mu, eta, gamma) for pair in zip(a, b, strict=True)]
    assert abs(run.client_steps - sum(expected)) <= 1  # rounding at the very edge


@pytest.mark.slow
def test_mini_batches_stop_after_the_first_epoch_that_meets_gamma() -> None:
    # the same mini-batches as without a rule, cut at an epoch's end
    federation = ragged_federation([73])
    model = models.logistic(federation)
    setting: dict[str, Any] = {"cohort": Cohort(1), "rounds": 1}

    def after(**stop: Any) -> Any:
        solver = Solver(0.05, batch_size=10, **stop)
        (run,) = simulate(federation, model, fedprox(mu=0.3), solver=solver, **setting)
        return run

    stopped = after(epochs=60, gamma=0.25)
    epochs, left = divmod(stopped.client_steps, 8)
    assert left == 0
    assert 1 < epochs < 60
    exact, before = after(epochs=epochs), after(epochs=epochs - 1)
    for x, y in zip(jax.tree.leaves(stopped.params), jax.tree.leaves(exact.params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)
    assert exact.final.gamma_max <= 0.25 < before.final.gamma_max


def test_gamma_may_differ_by_client_and_round() -> None:
    asked = np.array([0.6, 0.2, 0.05])

    def gammas(round_: int, clients: np.ndarray) -> np.ndarray:
        return asked[clients] / (1 + round_)

    federation = quadratic_federation(*random_quadratics(5, 3, 4))
    solver = Solver(0.02, batch_size="all", steps=5000, gamma=gammas)
    options: dict[str, Any] = {"rounds": 2, "evaluation": Evaluation()}
    run = one_run(federation, quadratic_model(np.ones(4)), fedprox(mu=0.1), solver, **options)
    for t, record in enumerate(run.history[1:]):
        # small steps overshoot little
        assert record.gamma_mean == pytest.approx(asked.mean() / (1 + t), rel=0.1)
        assert record.gamma_max <= 0.6 / (1 + t) * 1.001
        assert record.unsolved == 0


@pytest.mark.parametrize("values", [[0.1, 0.2], [0.1, 0.2, 1.5], [0.1, 0.2, np.nan]])
def test_a_gamma_function_must_give_numbers_from_0_to_1(values: list[float]) -> None:
    federation = quadratic_federation(*random_quadratics(5, 3, 4))
    solver = Solver(0.1, batch_size="all", steps=5, gamma=lambda _t, _k: np.array(values))
    with pytest.raises(InputError, match=r"in round 0 its function gives .* 3 numbers from 0 to 1"):
        one_run(federation, quadratic_model(np.ones(4)), fedprox(mu=0.1), solver)


def test_a_gamma_function_may_give_whole_numbers_and_both_bounds() -> None:
    clients = np.arange(3)
    solver = Solver(0.1, "all", steps=5, gamma=lambda _, k: np.array([0, 1, 1])[k])
    assert solver.gammas(0, clients).tolist() == [0.0, 1.0, 1.0]
    assert replace(solver, gamma=0.25).gammas(0, clients).tolist() == [0.25] * 3
    assert replace(solver, gamma=None).gammas(0, clients).tolist() == [0.0] * 3
    for wrong in ([True, True, True], ["a", "b", "c"], [[0.1], [0.2], [0.3]], 0.5):
        with pytest.raises(InputError, match="3 numbers from 0 to 1"):
            replace(solver, gamma=lambda *_, wrong=wrong: wrong).gammas(0, clients)


def test_the_limit_is_reported_where_it_comes_first() -> None:
    federation = quadratic_federation(*random_quadratics(6, 4, 3))
    solver, model = Solver(0.01, batch_size="all", steps=3, gamma=0.1), quadratic_model(np.ones(3))
    run = one_run(federation, model, fedprox(mu=0.1), solver, evaluation=Evaluation())
    assert run.final.unsolved == 4
    assert run.final.client_steps == 12
    assert run.final.gamma_max > 0.1


def test_gamma_one_asks_for_no_work() -> None:
    federation = ragged_federation([20, 30])
    run = one_run(
        federation,
        models.logistic(federation),
        fedavg(),  # with a deadline it would be refused
        Solver(0.1, batch_size=10, epochs=3, gamma=1.0),
        evaluation=Evaluation(),
    )
    assert run.client_steps == 0
    assert run.final.gamma_mean == pytest.approx(1)
    assert run.history[0].train_loss == run.final.train_loss


def test_stragglers_lower_the_limit() -> None:
    federation = ragged_federation([40, 40, 40, 40])
    run = one_run(
        federation,
        models.logistic(federation),
        fedprox(mu=0.1),
        Solver(0.001, batch_size=10, epochs=4, gamma=0.0),
        systems=Systems(stragglers=1.0),
        seed=3,
        evaluation=Evaluation(),
    )
    assert run.final.unsolved == 4
    assert run.client_steps < 4 * 4 * 4


@pytest.mark.slow
def test_a_line_search_minimises_exactly_and_handles_linear_terms() -> None:
    a, b = random_quadratics(7, 3, 4)
    federation = quadratic_federation(a, b, rows=[1, 130, 7])
    mu, start = 0.3, np.ones(4)
    solver = Solver(1.0, batch_size="all", steps=30, optimizer=optax.lbfgs)
    run = one_run(federation, quadratic_model(start), feddane(mu=mu), solver)
    p = np.array([1, 130, 7]) / 138
    g = [a_k @ (start - b_k) for a_k, b_k in zip(a, b, strict=True)]
    mean = np.tensordot(p, g, 1)
    # grad h = A (w - b) + (g^t - grad F_k(w^t)) + mu (w - w^t) = 0
    solved = [
        np.linalg.solve(a_k + mu * np.eye(4), a_k @ b_k - mean + g_k + mu * start)
        for a_k, b_k, g_k in zip(a, b, g, strict=True)
    ]
    np.testing.assert_allclose(run.params, np.tensordot(p, solved, 1), rtol=1e-3, atol=1e-4)


def test_a_line_search_step_equals_the_oracles() -> None:
    federation = ragged_federation([150])
    model = models.logistic(federation)
    solver = Solver(8.0, batch_size="all", steps=1, optimizer=line_search_descent)
    run = one_run(federation, model, fedprox(mu=0.0), solver)
    x, y = oracle.client_rows(federation, 0)
    begin = as_oracle(initial_params(model, 0))
    loss, gradient = oracle.loss_and_gradient(begin, x, y)
    squared = sum((g**2).sum() for g in gradient)
    eta = 8.0
    while True:
        end = oracle.Params(*(w - eta * g for w, g in zip(begin, gradient, strict=True)))
        if oracle.loss_and_gradient(end, x, y)[0] <= loss - 1e-4 * eta * squared:
            break
        eta /= 2
    assert eta < 8
    for got, expected in zip(as_oracle(run.params), end, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


def test_a_line_search_is_given_the_value_of_h() -> None:
    def to_the_value(learning_rate: float) -> optax.GradientTransformationExtraArgs:
        del learning_rate

        def update(gradient: Any, state: Any, params: Any, *, value: Any, **_: Any) -> Any:
            del gradient
            return jnp.full_like(params, value) - params, state

        return optax.GradientTransformationExtraArgs(lambda _: (), update)

    federation, start, mu = ragged_quadratics(0, [130]), np.array([2.0, -1.0, 0.5]), 0.3
    solver = Solver(1.0, "all", steps=2, optimizer=to_the_value)
    run = one_run(federation, quadratic_model(start), fedprox(mu=mu), solver)
    first = objective(federation, start) * np.ones(3)
    second = objective(federation, first) + mu / 2 * float(np.sum((first - start) ** 2))
    np.testing.assert_allclose(run.params, second * np.ones(3), rtol=1e-4)


def test_a_line_search_needs_whole_clients() -> None:
    with pytest.raises(InputError, match='searches along a line, which needs "all"'):
        Solver(1.0, batch_size=10, steps=5, optimizer=optax.lbfgs)
    momentum = functools.partial(optax.sgd, momentum=0.9)
    assert not Solver(1.0, batch_size=10, steps=5, optimizer=momentum).searches_line


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_a_gamma_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(InputError, match=r"solver.gamma = .*; it must be from 0 to 1"):
        Solver(1.0, batch_size=10, steps=5, gamma=gamma)


@pytest.mark.slow
def test_an_oracle_agrees_when_the_rule_never_binds() -> None:
    federation: Federation = ragged_federation(ROWS)
    model = models.logistic(federation)
    setting: dict[str, Any] = {
        "cohort": Cohort(4),
        "rounds": 2,
        "systems": Systems(0.5),
    }
    free, ruled = (
        simulate(federation, model, fedprox(mu=0.1), solver=solver, **setting)[0]
        for solver in (
            Solver(0.1, batch_size=10, epochs=3),
            Solver(0.1, batch_size=10, epochs=3, gamma=0.0),
        )
    )
    assert free.client_steps == ruled.client_steps
    for x, y in zip(jax.tree.leaves(free.params), jax.tree.leaves(ruled.params), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_a_solver_asks_for_a_factory_of_optimizers() -> None:
    for batch in (10, "all"):
        for optimizer in (optax.sgd(0.1), lambda learning_rate: learning_rate):
            with pytest.raises(InputError, match="must be a function of learning_rate="):
                Solver(0.1, batch, epochs=2, optimizer=optimizer)


def test_an_optimizer_for_vectors_only_may_be_used() -> None:
    assert not Solver(0.1, 10, epochs=1, optimizer=optax.sm3).searches_line


def test_who_is_late_must_be_known_before_the_work() -> None:
    federation = quadratic_federation(*random_quadratics(6, 3, 3))
    solver = Solver(0.1, batch_size="all", steps=50, gamma=0.5)
    timed: Any = {"systems": Systems(deadline=5.0), "population": Population(step_seconds=1.0)}
    model = quadratic_model(np.ones(3))
    with pytest.raises(InputError, match="fedavg: it drops stragglers"):
        one_run(federation, model, fedavg(), solver, **timed)
    records: list[Record] = []
    with pytest.raises(InputError, match="fedavg: it drops stragglers"):
        simulate(
            federation,
            model,
            [fedprox(mu=0.1), fedavg()],
            solver=solver,
            cohort=Cohort(3),
            rounds=1,
            **timed,
            callbacks=[Callback(on_record=records.append)],
        )
    assert not records  # refused before the first method runs
    run = one_run(federation, model, fedprox(mu=0.1), solver, **timed)
    assert run.final.client_steps <= 15


@pytest.mark.parametrize("batch", mostly_slow([10, 200, "all"], 200))
def test_the_pooled_baseline_and_wide_batches_meet_their_gamma(batch: Any) -> None:
    federation = ragged_federation(ROWS)
    runs = simulate(
        federation,
        models.logistic(federation),
        [centralised(), fedprox(mu=0.5)],
        solver=Solver(0.1, batch_size=batch, epochs=150, gamma=0.5),
        cohort=Cohort(3),
        rounds=1,
    )
    for run in runs:
        assert run.final.gamma_max <= 0.5 * 1.001
        assert run.client_steps > 0
    assert [run.final.solves for run in runs] == [1, 3]


def test_a_pooled_round_without_time_for_a_step_measures_nothing() -> None:
    federation = ragged_federation([20, 30, 40])
    (run,) = simulate(
        federation,
        models.logistic(federation),
        centralised(),
        solver=Solver(0.1, batch_size=10, epochs=2),
        cohort=Cohort(1),
        systems=Systems(deadline=0.5),
        population=Population(step_seconds=[0.1, 1.0, 1.0]),
        rounds=12,
    )
    empty = [record for record in run.history[1:] if record.empty_rounds]
    assert 0 < len(empty) < 12
    assert np.isnan([record.gamma_mean for record in empty]).all()
    assert {(record.solves, record.client_steps) for record in empty} == {(0, 0)}


def test_the_pooled_baseline_refuses_a_gamma_for_each_client() -> None:
    federation = ragged_federation([20, 30])
    solver = Solver(0.1, batch_size=10, epochs=2, gamma=lambda _t, k: np.full(len(k), 0.5))
    with pytest.raises(
        InputError, match=r"centralised: .* solver\.gamma as a function of clients does not fit"
    ):
        one_run(federation, models.logistic(federation), centralised(), solver)


def test_one_full_batch_step_of_fedsgd_may_search_its_line() -> None:
    federation = ragged_federation([20, 300])
    (run,) = simulate(
        federation,
        models.logistic(federation),
        fedsgd(),
        solver=Solver(4.0, "all", steps=1, optimizer=line_search_descent),
        cohort=Cohort(2),
        rounds=5,
        evaluation=Evaluation(gradients=False),
    )
    assert run.final.train_loss < 0.9 * run.history[0].train_loss
    assert run.client_steps == 10
