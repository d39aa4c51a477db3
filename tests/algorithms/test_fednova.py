"""FedNova against closed forms, FedAvg, FedProx and the oracle."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Cohort, InputError, Privacy, Solver, fedavg, fednova, fedprox
from fedprox.algorithms.base import ClientContext, Solution
from tests import methods
from tests.byhand import CLIENTS, START, beside_the_oracle
from tests.quadratics import (
    Vector,
    one_run,
    quadratic_federation,
    quadratic_model,
    ragged_quadratics,
    random_quadratics,
)

MOMENTUM = functools.partial(optax.sgd, momentum=0.9)
VARIANTS: dict[str, dict[str, float]] = {
    "plain": {},
    "proximal": {"mu": 0.7},
    "exact": {"mu": 10.0},  # eta mu is 1: only the last step counts
    "far": {"mu": 13.0},  # eta mu is 1.3
    "momentum": {"momentum": 0.9},
}


@pytest.mark.parametrize("name", VARIANTS)
@given(steps=st.integers(0, 40), g=st.floats(-3, 3))
@settings(max_examples=15)
def test_the_normalized_update_of_a_constant_gradient_is_one_step(
    name: str, steps: int, g: float
) -> None:
    """With grad F_k = g everywhere, w^t - w_k is eta g ||a_k||_1, so d_k = eta g."""
    method, eta = fednova(**VARIANTS[name]), 0.1
    solver = method.solver(Solver(eta, "all", steps=1))
    hparams = {key: jnp.float32(value[0]) for key, value in method.hparams.items()}  # type: ignore[index]
    hparams["learning_rate"] = jnp.float32(eta)
    start, context = jnp.ones(1), ClientContext(None, None, jnp.float32(1))
    problem = method.subproblem(start, hparams, context)
    w, memory, sign = start, solver.init(start, hparams["learning_rate"]), 0.0
    for j in range(steps):
        gradient = problem.gradient(w, jnp.float32([g]))
        w, memory = solver.step(w, memory, gradient, hparams["learning_rate"])
        sign += (1 - eta * VARIANTS[name].get("mu", 0.0)) ** j
    sent, _ = method.client.message(start, hparams, context, Solution(problem, w, jnp.int32(steps)))
    if name == "far":  # the weights alternate, and ||a_k||_1 is the sum of their absolute values
        expected = eta * g * sign / sum(0.3**j for j in range(steps)) if steps else 0.0
    else:
        expected = eta * g if steps else 0.0
    np.testing.assert_allclose(sent[0], [expected], rtol=1e-4, atol=1e-5)
    assert (float(sent[1]) == 0) == (steps == 0)


def test_runs_are_the_oracles() -> None:
    # with partial work, and a clip and weight decay that count as part of the gradients
    beside_the_oracle(
        fednova(mu=[0.0, 2.0]), lambda hparams, _: methods.FedNova(START, CLIENTS, hparams["mu"])
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (fednova(), fedavg()),
        (fednova(mu=0.7), fedprox(mu=0.7)),
        (fednova(momentum=0.9), fedavg().with_solver(optimizer=MOMENTUM)),
    ],
    ids=["fedavg", "fedprox", "momentum"],
)
def test_with_equal_steps_it_is_fedavg(ours: Any, theirs: Any) -> None:
    federation, model = ragged_quadratics(0, [3, 1, 7, 4]), quadratic_model(START)
    setting: dict[str, Any] = {"solver": Solver(0.05, 2, steps=6), "cohort": Cohort(3), "rounds": 5}
    run, expected = (one_run(federation, model, method, **setting) for method in (ours, theirs))
    np.testing.assert_allclose(run.params, expected.params, rtol=1e-5)


ROWS = [1, 30, 2, 12]
"""One step of a client for each of its rows."""


def fixed_point(eta: float, *, normalized: bool) -> Vector:
    """Where sum_k p_k (w^t - w_k) / a_k is 0, with a_k = tau_k, or 1 for FedAvg."""
    a, b = random_quadratics(0, 4, 3)
    left, right = np.zeros((3, 3)), np.zeros(3)
    for a_k, b_k, n in zip(a, b, ROWS, strict=True):
        moved = np.eye(3) - np.linalg.matrix_power(np.eye(3) - eta * a_k, n)
        moved *= n / sum(ROWS) / (n if normalized else 1)
        left, right = left + moved, right + moved @ b_k
    return np.asarray(np.linalg.solve(left, right), float)


def test_with_unequal_steps_it_ends_at_the_minimiser_and_fedavg_does_not() -> None:
    federation = quadratic_federation(*random_quadratics(0, 4, 3), rows=ROWS)
    solver, star = Solver(0.01, 1, epochs=1), methods.minimiser(federation, by_rows=True)
    for method, normalized in ((fednova(), True), (fedavg(), False)):
        run = one_run(federation, quadratic_model(START), method, solver, rounds=300)
        expected = fixed_point(0.01, normalized=normalized)
        np.testing.assert_allclose(run.params, expected, atol=1e-4)

    def away(eta: float, *, normalized: bool) -> float:
        return float(np.linalg.norm(fixed_point(eta, normalized=normalized) - star))

    # what is left is the drift of order eta, which FedAvg has beside its wrong weights
    assert away(0.001, normalized=True) < 0.15 * away(0.01, normalized=True)
    assert away(1e-5, normalized=True) < 1e-3
    assert away(1e-5, normalized=False) > 0.1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mu": -1.0}, "fednova: mu = -1.0; it must be at least 0"),
        ({"momentum": 1.0}, "fednova: momentum = 1.0; it must be below 1"),
        ({"momentum": -0.1}, "fednova: momentum = -0.1; it must be at least 0"),
        ({"mu": [0.0, 1.0], "momentum": 0.9}, "fednova: mu and momentum: one of them must be 0"),
    ],
)
def test_numbers_out_of_range_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        fednova(**given)
    assert str(error.value) == message


@pytest.mark.parametrize("optimizer", [MOMENTUM, optax.adam])
def test_it_counts_steps_of_plain_sgd(optimizer: Any) -> None:
    with pytest.raises(InputError, match=r"fednova needs solver.optimizer = sgd without options"):
        fednova().solver(Solver(0.1, "all", steps=2, optimizer=optimizer))


def test_privacy_is_refused() -> None:
    federation, privacy = ragged_quadratics(0, [1, 2]), Privacy(1.0, noise_multiplier=1.0)
    solver = Solver(0.1, "all", steps=2)
    with pytest.raises(InputError, match=r"fednova: a message holds the length .*, so privacy"):
        one_run(federation, quadratic_model(START), fednova(), solver, privacy=privacy)
