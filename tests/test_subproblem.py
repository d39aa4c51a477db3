"""Proximal parts of the local problem: any anchor, any start, and splitting with exact answers."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Solver, Subproblem
from fedprox.subproblem import inexactness
from tests.quadratics import random_quadratics

Prox = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


@functools.cache
def solved(dimension: int) -> Prox:
    """(A, b, start, anchor, mu) -> argmin_w F(w) + (mu/2) ||w - anchor||^2, by the solver."""
    solver = Solver(1.0, batch_size="all", steps=dimension + 10, optimizer=optax.lbfgs)
    rate = jnp.float32(1)

    @jax.jit
    def solve(
        a: jax.Array, b: jax.Array, start: jax.Array, anchor: jax.Array, mu: jax.Array
    ) -> jax.Array:
        problem = Subproblem(start, mu, anchor)

        def h(w: jax.Array) -> jax.Array:
            return problem.value(w, 0.5 * (w - b) @ a @ (w - b))

        def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            w, state = carry
            gradient = problem.gradient(w, a @ (w - b))
            extra = {"value": h(w), "grad": gradient, "value_fn": h}
            return solver.step(w, state, gradient, rate, **extra), None

        carry = (problem.start, solver.init(problem.start, rate))
        return jax.lax.scan(step, carry, None, length=solver.steps)[0][0]

    return solve


@settings(max_examples=12)
@given(seed=st.integers(0, 999), s=st.floats(0.1, 5))
def test_an_exact_answer_is_the_proximal_point_of_any_anchor(seed: int, s: float) -> None:
    (a,), (b,) = random_quadratics(seed, 1, 4)
    start, anchor = np.random.default_rng(seed).normal(size=(2, 4))
    ours = solved(4)(*map(jnp.float32, (a, b, start, anchor, 1 / s)))
    # prox_{sF}(v) = (A + I/s)^-1 (A b + v/s)
    expected = np.linalg.solve(a + np.eye(4) / s, a @ b + anchor / s)
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mu", [0.7, {"a": 0.7, "d": 2.0}], ids=str)
def test_value_and_gradient_of_h_agree(mu: Any) -> None:
    """With a linear term, and with mu by parts."""
    numbers = np.random.default_rng(4).normal(size=(4, 3, 2)).astype("f")
    w, anchor, slope, linear = ({"a": {"b": a, "c": b}, "d": c} for a, b, c in numbers)
    mu = jax.tree.map(np.float32, mu)

    @jax.jit
    def both(w: Any) -> Any:
        problem = Subproblem(w, mu, anchor, linear)
        by_autodiff = jax.grad(lambda w: problem.value(w, optax.tree.vdot(slope, w)))(w)
        return problem.gradient(w, slope), by_autodiff

    found, by_autodiff = jax.device_get(both(w))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), found, by_autodiff)
    expected = (
        slope["d"]
        + linear["d"]
        + (mu["d"] if isinstance(mu, dict) else mu) * (w["d"] - anchor["d"])
    )
    np.testing.assert_allclose(found["d"], expected, rtol=1e-5)


def test_gamma_where_a_gradient_vanishes() -> None:
    # solved where it began, solved, left where it was solved, and nothing done
    nothing, something = np.zeros(2, "f"), np.array([3.0, -4.0], "f")
    pairs = [(nothing, nothing), (nothing, something), (something, nothing), (something, something)]
    assert [float(inexactness(*pair)) for pair in pairs] == [0, 0, np.inf, 1]
