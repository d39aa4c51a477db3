"""Quadratic federations, F_k(w) = 1/2 (w - b_k)' A_k (w - b_k), where answers are closed forms."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox import Cohort, Evaluation, Federation, Model, Run, Solver, Systems, simulate

Vector = NDArray[np.float64]


def quadratic_model(start: Vector) -> Model:
    """A model whose parameters are w itself; an example is (A, b) and its loss the quadratic.

    The same model for the same start, so that tests share compiled programs.
    """
    return _quadratic_model(tuple(np.asarray(start).tolist()))


@functools.cache
def _quadratic_model(start: tuple[float, ...]) -> Model:
    def apply(params: jax.Array, x: jax.Array) -> Any:
        return x, jnp.broadcast_to(params, (len(x), *params.shape))

    def loss(outputs: Any, y: jax.Array) -> jax.Array:
        a, w = outputs
        return 0.5 * jnp.einsum("bi,bij,bj->b", w - y, a, w - y)

    return Model(lambda _: jnp.asarray(start, jnp.float32), apply, loss, None)


def quadratic_federation(
    a: Sequence[Vector], b: Sequence[Vector], rows: Sequence[int] | None = None
) -> Federation:
    """Client k holds `rows[k]` copies of the example (A_k, b_k)."""
    rows = rows or [1] * len(a)
    return Federation.from_arrays(
        [
            (np.repeat(a_k[None], n, axis=0), np.repeat(b_k[None], n, axis=0))
            for a_k, b_k, n in zip(a, b, rows, strict=True)
        ]
    )


def random_quadratics(seed: int, clients: int, d: int) -> tuple[list[Vector], list[Vector]]:
    """Well-conditioned A_k and minima b_k."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(clients, d, d)) / np.sqrt(d)
    a = [f @ f.T + 0.5 * np.eye(d) for f in factors]
    return a, list(rng.normal(size=(clients, d)))


def ragged_quadratics(seed: int, rows: Sequence[int], d: int = 3) -> Federation:
    """Clients with `rows[k]` different examples (A_k, b_ki)."""
    rng = np.random.default_rng(seed)
    a, b = random_quadratics(seed, len(rows), d)
    return Federation.from_arrays(
        [
            (np.repeat(a_k[None], n, axis=0), b_k + rng.normal(size=(n, d)))
            for a_k, b_k, n in zip(a, b, rows, strict=True)
        ]
    )


def one_run(
    federation: Federation, model: Model, method: Any, solver: Solver, **options: Any
) -> Run:
    """A single run with every client in every round, unless said otherwise.

    Gradient variance, B(w) and gamma are measured only if `evaluation` asks for them or the solver
    has a gamma: programs that measure them take twice as long to compile.
    """
    defaults: dict[str, Any] = {
        "cohort": Cohort(len(federation)),
        "systems": Systems(),
        "rounds": 1,
        "evaluation": Evaluation(gradients=solver.gamma is not None),
    }
    (run,) = simulate(federation, model, method, solver=solver, **(defaults | options))
    return run
