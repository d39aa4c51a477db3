"""FedNova against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Cohort, Solver, fednova
from fedprox.algorithms.base import ClientContext, Solution
from tests import methods
from tests.byhand import START
from tests.quadratics import Vector, quadratic_federation, random_quadratics

VARIANTS: dict[str, dict[str, float]] = {
    "proximal": {"mu": 0.7},
    "far": {"mu": 13.0},  # eta mu is 1.3
    "momentum": {"momentum": 0.9},
}


@pytest.mark.parametrize("name", VARIANTS)
@given(steps=st.integers(0, 40), g=st.floats(-3, 3))
@settings(max_examples=8)
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
    setting = {"solver": Solver(0.03, 1, epochs=1), "cohort": Cohort(4), "rounds": 100}
    for method, normalized in ((methods.FedNova, True), (methods.FedProx, False)):
        path = methods.run(method(START, 4), federation, **setting)  # type: ignore[arg-type]
        expected = fixed_point(0.03, normalized=normalized)
        np.testing.assert_allclose(path.server[-1], expected, atol=1e-4)

    def away(eta: float, *, normalized: bool) -> float:
        star = methods.minimiser(federation, by_rows=True)
        return float(np.linalg.norm(fixed_point(eta, normalized=normalized) - star))

    # what is left is the drift of order eta, which FedAvg has beside its wrong weights
    assert away(0.001, normalized=True) < 0.15 * away(0.01, normalized=True)
    assert away(1e-5, normalized=True) < 1e-3
    assert away(1e-5, normalized=False) > 0.1
