"""SCAFFOLD against closed forms and the oracle."""

import functools
from typing import Any

import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Cohort, Evaluation, InputError, Solver, fedavg, scaffold, simulate
from fedprox.engine.compiled import layout
from tests import methods
from tests.byhand import ROWS, SOME, START, ByHand, Local, beside_the_oracle, distance
from tests.methods import Vector
from tests.quadratics import one_run, quadratic_model, ragged_quadratics

FEW = Solver(0.05, "all", steps=10)


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
    seed=st.integers(0, 99),
    option=st.sampled_from([1, 2]),
    rounds=st.lists(
        st.tuples(
            st.sets(st.integers(0, 4), min_size=1), st.integers(1, 7), st.sampled_from([0.1, 0.03])
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_control_variates_are_gradients_and_c_moves_by_the_share_that_took_part(
    seed: int, option: Any, rounds: list[tuple[set[int], int, float]]
) -> None:
    ours = ByHand(scaffold(option=option), ragged_quadratics(seed, ROWS[:5]))
    expected = np.zeros((5, 3))
    for cohort, steps, rate in rounds:
        x, c, c_k = ours.params, control(ours), controls(ours)
        walks = {k: sgd(ours, k, steps + k, rate) for k in sorted(cohort)}
        answers = {k: walk[0] for k, walk in walks.items()}
        found = ours.round(answers, answers.__getitem__, learning_rate=rate)
        for k in cohort:
            expected[k] = methods.gradient(x, *ours.rows[k]) if option == 1 else walks[k][1]
        # who was not chosen keeps c_k
        np.testing.assert_allclose(controls(ours), expected, rtol=1e-3, atol=1e-3)
        change = np.mean([expected[k] - c_k[k] for k in cohort], axis=0)
        np.testing.assert_allclose(
            control(ours), c + len(cohort) / 5 * change, rtol=1e-3, atol=1e-3
        )
        # all c_k start at 0, so c is always their mean, who took part or not
        np.testing.assert_allclose(control(ours), expected.mean(axis=0), rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(ours.params, np.mean(list(found.values()), axis=0), rtol=1e-4)


def test_a_client_that_took_no_step_keeps_its_control_variate() -> None:
    # its stop rule was met where it began
    ours = ByHand(scaffold(), ragged_quadratics(3, ROWS[:3]))
    first = {k: sgd(ours, k, 3, 0.1)[0] for k in range(3)}
    ours.round(first, first.__getitem__)
    before, c = controls(ours), control(ours)
    assert np.linalg.norm(c) > 0.1
    walked, gradient = sgd(ours, 1, 3, 0.1)
    ours.round([0, 1], {0: Local(ours.params, steps=0), 1: walked}.__getitem__)
    expected = np.array([before[0], gradient, before[2]])
    np.testing.assert_allclose(controls(ours), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(control(ours), expected.mean(axis=0), rtol=1e-4, atol=1e-4)


def test_the_servers_step_scales_the_mean_movement() -> None:
    ours = ByHand(scaffold(server_learning_rate=0.25), ragged_quadratics(3, ROWS[:4]))
    ours.round([0, 2], lambda k: Local(np.full(3, float(k))))
    np.testing.assert_allclose(ours.params, START + 0.25 * (1 - START), rtol=1e-5)


@pytest.mark.parametrize("option", [1, 2])
def test_the_first_round_is_fedavgs_and_the_end_is_the_minimiser(option: Any) -> None:
    federation = ragged_quadratics(0, [3] * 5)
    ours = ByHand(scaffold(option=option), federation)
    solver = Solver(0.1, "all", steps=8)
    plain = methods.run(
        methods.FedProx(START, 5), federation, cohort=Cohort(5), rounds=40, solver=solver
    )
    for t in range(40):
        walks = {k: sgd(ours, k, 8, 0.1)[0] for k in range(5)}
        ours.round(walks, walks.__getitem__)
        if t == 0:  # all control variates are 0 so far
            np.testing.assert_allclose(ours.params, plain.server[1], rtol=1e-5)
    star = methods.minimiser(federation)
    np.testing.assert_allclose(ours.params, star, atol=1e-4)
    assert np.linalg.norm(plain.server[-1] - star) > 0.05


def test_it_reaches_the_minimiser_of_the_plain_mean_with_few_clients() -> None:
    federation, model = ragged_quadratics(0, ROWS), quadratic_model(START)
    setting: dict[str, Any] = {
        "solver": FEW,
        "cohort": SOME,
        "rounds": 400,
        "evaluation": Evaluation(every=400, gradients=False),
    }
    (ours,) = simulate(federation, model, scaffold(), **setting)
    (theirs,) = simulate(federation, model, fedavg(), **setting)
    assert distance(ours, methods.minimiser(federation)) < 1e-4
    for by_rows in (False, True):
        assert distance(theirs, methods.minimiser(federation, by_rows=by_rows)) > 0.05


@pytest.mark.parametrize(("option", "devices", "lanes"), [(1, 2, 1), (2, 1, 2)])
def test_runs_are_the_oracles(
    option: Any, devices: int, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "choose_lanes", lambda *_: lanes)
    beside_the_oracle(
        scaffold(option=option, server_learning_rate=0.8),
        lambda _, federation: methods.Scaffold(START, len(federation), option, 0.8),
        devices=devices,
    )


def test_option_2_divides_by_the_steps_that_a_stop_rule_left() -> None:
    federation, eta, gamma = ragged_quadratics(1, [3, 1, 2]), 0.2, 0.5
    rows = [methods.rows_of(federation, k) for k in range(3)]
    solver, model = Solver(eta, "all", steps=50, gamma=gamma), quadratic_model(START)
    run = one_run(federation, model, scaffold(), solver, rounds=3)
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


@pytest.mark.parametrize("option", [0, 3, "2"])
def test_there_are_two_options(option: Any) -> None:
    with pytest.raises(InputError, match=r"scaffold: option = .*; it must be one of 1, 2"):
        scaffold(option=option)


@pytest.mark.parametrize("optimizer", [functools.partial(optax.sgd, momentum=0.9), optax.adam])
def test_option_2_counts_steps_of_plain_sgd(optimizer: Any) -> None:
    solver = Solver(0.1, "all", steps=2, optimizer=optimizer)
    federation, model = ragged_quadratics(0, [1, 2]), quadratic_model(START)
    with pytest.raises(InputError, match=r"scaffold: option 2 needs .*sgd"):
        one_run(federation, model, scaffold(option=2), solver)
    assert scaffold(option=1).solver(solver) == solver
