"""L and L_- by Lanczos, against Hessians written out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedprox as fp
from fedprox.diagnostics import curvature
from fedprox.diagnostics.curvature import SLICE_ROWS
from fedprox.protocol.protocol import initial_params
from tests.quadratics import quadratic_federation, quadratic_model


def dense(federation: fp.Federation, model: fp.Model, params: Any) -> list[np.ndarray[Any, Any]]:
    """The spectrum of each F_k's Hessian, and last that of f's."""
    flat, restore = ravel_pytree(params)
    train = federation.train

    @jax.jit
    @jax.hessian
    def hessian(w: jax.Array, weights: Any) -> jax.Array:
        x, y = jnp.asarray(train.x), jnp.asarray(train.y)
        return weights @ model.loss(model.apply(restore(w), x), y)

    owner = np.repeat(np.arange(len(federation)), train.sizes)
    masks = [owner == k for k in range(len(federation))] + [owner >= 0]
    with jax.default_matmul_precision("highest"):
        return [np.linalg.eigvalsh(hessian(flat, m / m.sum())) for m in masks]


def random_federation(sizes: list[int], features: int, classes: int) -> fp.Federation:
    rng = np.random.default_rng(0)
    return fp.Federation.from_arrays(
        [(rng.normal(size=(n, features)), rng.integers(classes, size=n)) for n in sizes],
        classes=classes,
    )


def zeros(size: int) -> Any:
    return np.zeros(size, np.float32)


@pytest.mark.slow
def test_logistic_regression_with_clients_of_all_sizes() -> None:
    sizes = [1, 2, 10, SLICE_ROWS - 1, SLICE_ROWS, SLICE_ROWS + 1, 3 * SLICE_ROWS + 5]
    federation = random_federation(sizes, 10, 4)
    model = fp.models.logistic(federation)
    params = initial_params(model, 0)
    found = curvature(federation, model, params)
    spectra = dense(federation, model, params)
    largest = [values[-1] for values in spectra]
    assert found.largest == pytest.approx(largest[:-1], rel=1e-3)
    assert found.largest_of_f == pytest.approx(largest[-1], rel=1e-3)
    assert found.smoothness == pytest.approx(max(largest[:-1]), rel=1e-3)
    assert found.negative_curvature < 1e-5
    # one class more than the softmax needs: every Hessian is singular
    assert np.abs(found.smallest).max() < 1e-3


@pytest.mark.slow
def test_negative_curvature_of_a_network() -> None:
    federation = random_federation([5, 40, 90], 4, 3)

    def init(key: jax.Array) -> Any:
        a, b = jax.random.split(key)
        return {"in": jax.random.normal(a, (4, 5)), "out": 2 * jax.random.normal(b, (5, 3))}

    model = fp.Model(init, lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"])
    params = initial_params(model, 1)
    found = curvature(federation, model, params, iterations=35)
    spectra = dense(federation, model, params)
    assert found.largest == pytest.approx([s[-1] for s in spectra[:-1]], rel=1e-3)
    assert found.smallest == pytest.approx([s[0] for s in spectra[:-1]], rel=1e-3)
    assert found.smallest_of_f == pytest.approx(spectra[-1][0], rel=1e-3)
    assert found.negative_curvature == pytest.approx(-min(s[0] for s in spectra[:-1]), rel=1e-3)
    assert found.negative_curvature > 0.1


@pytest.mark.parametrize("iterations", [5, 20])
def test_quadratics_end_early(iterations: int) -> None:
    """Fewer distinct eigenvalues, or fewer dimensions, than iterations; a Hessian of zero too."""
    a = [np.diag([5.0, 5, -2, -2]), 3 * np.eye(4), np.zeros((4, 4)), np.diag([1.0, 0, 0, -9])]
    federation = quadratic_federation(a, [np.ones(4)] * 4, rows=[1, 2, 3, 10])
    found = curvature(
        federation, quadratic_model(np.zeros(4)), np.zeros(4, np.float32), iterations=iterations
    )
    assert found.largest == pytest.approx([5, 3, 0, 1], abs=1e-4)
    assert found.smallest == pytest.approx([-2, 3, 0, -9], abs=1e-4)
    assert found.smoothness == pytest.approx(9, abs=1e-4)
    assert found.negative_curvature == pytest.approx(9, abs=1e-4)
    mean = np.tensordot(federation.shares, np.array(a), 1)
    assert found.largest_of_f == pytest.approx(np.linalg.eigvalsh(mean)[-1], abs=1e-4)
    assert found.smallest_of_f == pytest.approx(np.linalg.eigvalsh(mean)[0], abs=1e-4)


def test_one_iteration_gives_a_rayleigh_quotient() -> None:
    federation = quadratic_federation([np.diag([1.0, 3.0])], [np.zeros(2)])
    found = curvature(
        federation, quadratic_model(np.zeros(2)), np.zeros(2, np.float32), iterations=1
    )
    assert 1 < found.smallest[0] == found.largest[0] < 3


def test_a_layer_with_its_own_backward_pass() -> None:
    """`jax.custom_vjp` has no forward derivative; the product must not need one."""

    @jax.custom_vjp
    def square(w: jax.Array) -> jax.Array:
        return w**2

    square.defvjp(lambda w: (w**2, w), lambda w, g: (2 * w * g,))
    model = fp.Model(lambda _: 1 + zeros(3), lambda p, x: x @ square(p), lambda o, _: o, None)
    federation = fp.Federation.from_arrays([(np.diag([1.0, 2.0, 6.0]), np.zeros(3))])
    found = curvature(federation, model, np.ones(3, np.float32))
    # the mean over rows of 2 x_ij on the diagonal
    assert found.largest[0] == pytest.approx(4, rel=1e-4)
    assert found.smallest[0] == pytest.approx(2 / 3, rel=1e-4)


def test_objectives_of_any_scale_are_measured_alike() -> None:
    a = [1e-9 * np.diag(np.arange(1.0, 7.0)), 1e9 * np.diag(np.arange(1.0, 7.0))]
    federation = quadratic_federation(a, [np.zeros(6)] * 2)
    found = curvature(federation, quadratic_model(np.ones(6)), np.ones(6, np.float32))
    np.testing.assert_allclose(found.largest, [6e-9, 6e9], rtol=1e-4)
    np.testing.assert_allclose(found.smallest, [1e-9, 1e9], rtol=1e-3)


def test_a_point_where_nothing_is_finite_is_refused() -> None:
    federation = quadratic_federation([np.eye(2)], [np.zeros(2)])
    model = fp.Model(
        lambda _: np.zeros(2, np.float32),
        lambda p, x: (p**4).sum() * x[:, 0, 0],
        lambda o, _: o,
        None,
    )
    with pytest.raises(fp.InputError, match="not finite"):
        curvature(federation, model, np.full(2, np.inf, np.float32))
    with pytest.raises(fp.InputError, match="iterations"):
        curvature(federation, model, zeros(2), iterations=0)
