"""Clip, weight decay and learning rate decay: steps by hand and runs."""

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
    Algorithm,
    Cohort,
    Evaluation,
    Federation,
    InputError,
    Model,
    Solver,
    Subproblem,
    fedavg,
    fedopt,
    fedprox,
    fedsgd,
    line_search_descent,
    simulate,
)
from fedprox.protocol.method import label, sweep_points
from tests import methods
from tests.byhand import START
from tests.quadratics import one_run, quadratic_federation, quadratic_model, ragged_quadratics

NUMBER = st.floats(-5, 5, width=32)
VECTOR = st.tuples(NUMBER, NUMBER, NUMBER)


@settings(max_examples=30)
@given(
    w=VECTOR,
    gradient=VECTOR,
    linear=VECTOR,
    anchor=VECTOR,
    mu=st.floats(0, 3),
    clip=st.floats(0.1, 20) | st.none(),
    decay=st.sampled_from([0.0, 0.3]),
)
def test_the_clip_takes_all_of_h_and_the_weight_decay_comes_after(
    w: Any, gradient: Any, linear: Any, anchor: Any, mu: float, clip: float | None, decay: float
) -> None:
    solver = Solver(0.1, 10, epochs=1, clip=clip, weight_decay=decay)
    w, gradient, linear, anchor = (np.array(v) for v in (w, gradient, linear, anchor))
    # over the whole pytree, and not leaf by leaf
    trees = [
        {"a": jnp.asarray(v[:1], jnp.float32), "b": jnp.asarray(v[1:], jnp.float32)}
        for v in (w, gradient, linear, anchor)
    ]
    problem = Subproblem(trees[0], jnp.float32(mu), trees[3], trees[2])
    rate = jnp.float32(0.2)
    of_h = problem.gradient(trees[0], trees[1])
    stepped, _ = solver.step(trees[0], solver.init(trees[0], rate), of_h, rate)
    whole = gradient + linear + mu * (w - anchor)
    norm = np.linalg.norm(whole)
    if clip is not None and norm > clip:
        whole = whole * clip / norm
    expected = w - 0.2 * (whole + decay * w)
    found = np.concatenate([stepped["a"], stepped["b"]])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_gradient_of_nothing_is_not_clipped_to_nan() -> None:
    solver = Solver(0.1, 10, epochs=1, clip=1.0)
    w, rate = jnp.ones(3), jnp.float32(0.1)
    stepped, _ = solver.step(w, solver.init(w, rate), jnp.zeros(3), rate)
    np.testing.assert_array_equal(stepped, w)


def test_a_gradient_whose_square_overflows_has_diverged_and_does_not_stand_still() -> None:
    solver = Solver(0.1, 10, epochs=1, clip=1.0)
    w, rate = jnp.ones(3), jnp.float32(0.1)
    stepped, _ = solver.step(w, solver.init(w, rate), jnp.full(3, 1e25), rate)
    assert np.isnan(stepped).all()


def frozen(learning_rate: float) -> optax.GradientTransformation:
    """SGD that leaves the slopes as they are."""
    groups = {"slope": optax.set_to_zero(), "bias": optax.sgd(learning_rate)}
    return optax.multi_transform(groups, {"slope": "slope", "bias": "bias"})


def frozen_by_function(learning_rate: float) -> optax.GradientTransformation:
    """The same, with the groups by a function of the parameters."""
    groups = {"slope": optax.set_to_zero(), "bias": optax.sgd(learning_rate)}
    return optax.multi_transform(groups, lambda w: {n: n for n in groups if w[n] is not None})


@pytest.mark.parametrize(
    "method",
    [
        fedavg().with_solver(optimizer=frozen),
        pytest.param(fedopt(frozen), marks=pytest.mark.slow),
        pytest.param(fedavg().with_solver(optimizer=frozen_by_function), marks=pytest.mark.slow),
        pytest.param(fedopt(frozen_by_function), marks=pytest.mark.slow),
    ],
)
def test_an_optimizer_may_know_the_models_parameters_by_name(method: Algorithm) -> None:
    def apply(w: Any, x: jax.Array) -> jax.Array:
        return x @ w["slope"] + w["bias"]

    model = Model(
        lambda _: {"slope": jnp.ones(2), "bias": jnp.zeros(())},
        apply,
        lambda outputs, y: (outputs - y) ** 2,
        correct=None,
    )
    x, y = np.ones((4, 2), np.float32), np.ones(4, np.float32)
    run = one_run(Federation.from_arrays([(x, y)] * 2), model, method, Solver(0.1, 4, epochs=1))
    assert run.params["slope"].tolist() == [1, 1]
    assert run.params["bias"] != 0


def test_a_methods_own_rates_may_be_an_array() -> None:
    method = fedavg().with_solver(learning_rate=np.array([0.01, 0.02]))
    np.testing.assert_array_equal(
        method.solver(Solver(0.1, 4, epochs=1)).learning_rate, [0.01, 0.02]
    )


def test_momentum_sees_clip_and_weight_decay_and_the_rate_decays_from_round_0() -> None:
    """Once each, and the proximal term within the clip."""
    a, b, w, mu = 2.0, 3.0, 1.0, 0.7
    solver = Solver(
        0.1,
        "all",
        steps=3,
        learning_rate_decay=0.5,
        weight_decay=0.2,
        clip=3.0,
        optimizer=functools.partial(optax.sgd, momentum=0.9),
    )
    federation = quadratic_federation([np.array([[a]])], [np.array([b])])
    run = one_run(federation, quadratic_model(np.array([w])), fedprox(mu=mu), solver, rounds=3)
    clipped = set()
    for rate in (0.1, 0.05, 0.025):
        buffer, anchor = 0.0, w  # the optimizer starts afresh in every round
        for _ in range(3):
            gradient = a * (w - b) + mu * (w - anchor)
            clipped.add(abs(gradient) > 3)
            buffer = 0.9 * buffer + float(np.clip(gradient, -3, 3)) + 0.2 * w
            w -= rate * buffer
    assert clipped == {False, True}
    np.testing.assert_allclose(run.params, [w], rtol=1e-5)


@pytest.mark.slow
def test_a_methods_own_settings_are_the_solvers_for_it_alone() -> None:
    federation, model = ragged_quadratics(2, [3, 8, 5]), quadratic_model(START)
    common: dict[str, Any] = {"cohort": Cohort(3), "rounds": 2}
    mine, plain = simulate(
        federation,
        model,
        [fedprox(mu=0.0).with_solver(steps=7, clip=0.5), fedavg()],
        solver=Solver(0.1, 3, epochs=2),
        evaluation=Evaluation(gradients=False),
        **common,
    )
    for run, solver in ((mine, Solver(0.1, 3, steps=7, clip=0.5)), (plain, Solver(0.1, 3, 2))):
        path = methods.run(methods.FedProx(START, 3), federation, solver=solver, **common)
        np.testing.assert_allclose(run.params, path.server[-1], rtol=1e-4)
    assert mine.client_steps == 2 * 3 * 7
    assert plain.client_steps == 2 * 2 * (1 + 3 + 2)


def test_labels_tell_methods_by_their_own_settings() -> None:
    solver, shown = Solver(0.1, 3, epochs=2, clip=1.0), []
    for method in (
        fedavg().with_solver(learning_rate=0.2),
        fedavg().with_solver(clip=None),
        fedavg().with_solver(epochs=5).with_solver(steps=3),
        fedavg().with_solver(steps=3).with_solver(epochs=5),
    ):
        (point,) = sweep_points(method, method.solver(solver))
        shown.append(label(method, method.solver(solver), point))
    expected = ["learning_rate=0.2", "clip=None", "steps=3", "epochs=5"]
    assert shown == [f"fedavg {words}" for words in expected]


def test_a_methods_own_settings_are_checked_like_the_experiments() -> None:
    federation, model = ragged_quadratics(2, [3, 8]), quadratic_model(START)
    augmented = replace(federation, augment=lambda _, kept: kept)
    plain, without = Solver(0.1, 3, epochs=2), {"evaluation": Evaluation(gradients=False)}
    own_gamma = fedavg().with_solver(gamma=0.5)
    search = fedavg().with_solver(batch_size="all", optimizer=line_search_descent)
    with pytest.raises(InputError, match=r"evaluation\.gradients = False"):
        one_run(federation, model, own_gamma, plain, **without)
    for method in (own_gamma, search):
        with pytest.raises(
            InputError, match="does not go with augmentation of data, since each mini-batch"
        ):
            one_run(augmented, model, method, plain, evaluation=Evaluation())
    with pytest.raises(InputError, match="fedsgd: its epochs is always 1, not 5"):
        one_run(federation, model, fedsgd().with_solver(epochs=5), plain)
    with pytest.raises(InputError, match=r"solver.*'epoch'"):
        one_run(federation, model, fedavg().with_solver(epoch=3), plain)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("learning_rate", -0.1, "must be above 0"),
        ("learning_rate", 1e-40, "is beyond single precision"),
        ("learning_rate_decay", 0.0, "must be above 0 and at most 1"),
        ("learning_rate_decay", -0.5, "must be above 0 and at most 1"),
        ("learning_rate_decay", 1.01, "must be above 0 and at most 1"),
        ("learning_rate_decay", float("nan"), "must be above 0 and at most 1"),
        ("weight_decay", -1e-4, "must be at least 0"),
        ("weight_decay", float("inf"), "must be finite and at least 0"),
        ("weight_decay", 1e39, "is beyond single precision"),
        ("clip", 0.0, "must be above 0"),
        ("clip", -1.0, "must be above 0"),
        ("clip", 1e-40, "is beyond single precision"),
        ("clip", "10", "must be a number above 0"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: Any, why: str) -> None:
    with pytest.raises(InputError, match=rf"^solver\.{name} = .*; it {why}") as told:
        Solver(**{"learning_rate": 0.1, "batch_size": 10, "epochs": 2, name: value})
    assert "\n" not in str(told.value)


def test_gamma_is_of_a_problem_without_weight_decay() -> None:
    with pytest.raises(InputError, match=r"solver\.weight_decay.*gamma"):
        Solver(0.1, 10, epochs=2, gamma=0.1, weight_decay=1e-3)
    assert Solver(0.1, 10, epochs=2, gamma=0.1, clip=1.0).clip == 1.0


@pytest.mark.parametrize("setting", [{"clip": 1.0}, {"weight_decay": 0.1}])
@pytest.mark.parametrize("optimizer", [optax.lbfgs, line_search_descent])
def test_a_line_search_is_of_h_itself(setting: dict[str, float], optimizer: Any) -> None:
    (name,) = setting
    with pytest.raises(InputError, match=rf"solver\.{name} .*searches along a line"):
        Solver(1.0, "all", steps=5, optimizer=optimizer, **setting)  # type: ignore[arg-type]
