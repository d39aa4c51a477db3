"""flax's layers of batch normalization over the rows that count, and what a step costs."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import fedprox as fp
from fedprox.engine.compiled.client_step import ClientStep
from fedprox.parts.part import LocalGradient
from tests.model.batch_norm import MODEL, START
from tests.model.test_mixed import products
from tests.objectives import CLASSES, FEATURES, HIDDEN

SHAPE = 5, 3, 2, 3
"""Five rows of which the last axis and the second have three numbers."""

MASK = np.arange(5) < 3


class Own(nnx.BatchNorm):
    """A layer of a user's own."""

    def __call__(self, x: Any, *given: Any, **options: Any) -> Any:
        return 2 * super().__call__(x, *given, **options)


class OwnLinen(linen.BatchNorm):
    """The same of linen."""

    def __call__(self, x: Any, use_running_average: Any = None, *, mask: Any = None) -> Any:
        return 2 * super().__call__(x, use_running_average, mask=mask)


def of_nnx(kind: Any, options: dict[str, Any]) -> tuple[fp.Model, Any]:
    """A model of one layer, and the layer with a mask by itself: outputs and statistics."""
    model = fp.Model.from_nnx(lambda rngs: kind(3, rngs=rngs, **options))

    def alone(whole: Any, x: Any) -> Any:
        layer = kind(3, rngs=nnx.Rngs(0), **options)
        nnx.update(layer, {**whole.params, **whole.state})
        y = layer(x, mask=MASK[:, None, None, None])
        return y, {name: getattr(layer, name)[...] for name in ("mean", "var")}

    return model, alone


def of_linen(kind: Any, options: dict[str, Any]) -> tuple[fp.Model, Any]:
    """The same of linen."""
    layer = kind(**options)
    model = fp.Model.from_linen(layer, np.zeros(SHAPE, np.float32))

    def alone(whole: Any, x: Any) -> Any:
        variables, mask = {"params": whole.params, **whole.state}, MASK[:, None, None, None]
        return layer.apply(
            variables, x, use_running_average=False, mask=mask, mutable=["batch_stats"]
        )

    return model, alone


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_scale": False, "momentum": 0.5},
        {"use_bias": False, "use_fast_variance": False},
        {"axis": 1, "epsilon": 0.1},
        {"dtype": np.float16},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [of_nnx, of_linen])
def test_a_layer_computes_what_flaxs_own_does_with_a_mask(make: Any, options: Any) -> None:
    kinds = (nnx.BatchNorm, Own) if make is of_nnx else (linen.BatchNorm, OwnLinen)
    rng = np.random.default_rng(0)
    x = (rng.normal(size=SHAPE) + np.arange(3)).astype(np.float32)
    for kind in kinds if not options else kinds[:1]:
        model, alone = make(kind, options)
        whole = model.init(jax.random.key(0))
        state = jax.tree.map(lambda a: a + np.float32(0.5), whole.state)
        whole = whole._replace(state=state)
        assert model.train is not None
        found = jax.jit(model.train)(*whole, x, jax.random.key(0), MASK)
        expected = jax.jit(alone)(whole, x)
        near = 5e-3 if "dtype" in options else 1e-5
        assert found[0].dtype == expected[0].dtype
        np.testing.assert_allclose(found[0][:3], expected[0][:3], atol=near)
        close = partial(np.testing.assert_allclose, rtol=near)
        jax.tree.map(close, found[1], dict(expected[1]))


EVERYONE = np.ones((5, 1, 1, 1), bool)


@pytest.mark.parametrize(
    ("told", "rows"),
    [({"use_running_average": True}, None), ({"mask": EVERYONE}, 5), ({}, 3)],
    ids=["the running statistics", "a mask", "nothing"],
)
def test_what_a_module_tells_its_layer_counts(told: dict[str, Any], rows: int | None) -> None:
    class Nnx(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm = nnx.BatchNorm(3, momentum=0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.norm(x, **told)

    class Linen(linen.Module):
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any, train: bool) -> Any:
            return linen.BatchNorm(momentum=0.5)(x, **{"use_running_average": not train} | told)

    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    mean = 0.0 if rows is None else x[:rows].mean(axis=(0, 1, 2)) / 2
    var = 1.0 if rows is None else 0.5 + x[:rows].var(axis=(0, 1, 2)) / 2
    for model in (fp.Model.from_nnx(Nnx), fp.Model.from_linen(Linen(), x)):
        train: Any = model.train
        _, state = jax.jit(train)(*model.init(jax.random.key(0)), x, jax.random.key(0), MASK)
        for found, expected in zip(jax.tree.leaves(state), (mean, var), strict=True):
            np.testing.assert_allclose(found, np.broadcast_to(expected, 3), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("method", "count"), [(fp.fedavg(), 5), (fp.fedsam(rho=0.1), 12)])
def test_a_step_computes_its_gradient_and_the_next_state_in_one_pass(
    method: fp.Algorithm, count: int
) -> None:
    """Two products forwards and three backwards; FedSAM has two gradients, and a pass besides."""
    layout: Any = SimpleNamespace(accumulate=False, reading=SimpleNamespace(width=3))
    solver = fp.Solver(0.1, 3, steps=1)
    client = ClientStep(MODEL, method, solver, layout, clock=False, local_gradient=LocalGradient())
    batch: Any = np.ones((3, FEATURES), np.float32), np.zeros(3, int), np.ones(3) / 3, None
    rho = np.float32(0.1)
    made = jax.make_jaxpr(lambda params, state: client.gradient(params, rho, state, *batch))(*START)
    assert len(list(products(made.jaxpr))) == 2 * count  # the types of both sides


SLOW = 0.999
"""Of a running statistic, what stays in a step: so much that the rest is too small for bfloat16."""


class Nnx(nnx.Module):
    """A layer of batch normalization between two others."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.body = nnx.Linear(FEATURES, HIDDEN, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=SLOW, rngs=rngs)
        self.head = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.norm(self.body(x)))


class Linen(linen.Module):
    """The same of linen."""

    @linen.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any, train: bool) -> Any:
        x = linen.BatchNorm(use_running_average=not train, momentum=SLOW)(linen.Dense(HIDDEN)(x))
        return linen.Dense(CLASSES)(x)


def moving(params: Any, state: Any, x: Any, key: Any, mask: Any) -> Any:
    del key
    mean = jnp.mean(x, axis=0, where=mask[:, None])
    return x @ params, SLOW * state + (1 - SLOW) * mean


KINDS = {
    "nnx": fp.Model.from_nnx(Nnx),
    "linen": fp.Model.from_linen(Linen(), np.zeros((1, FEATURES), np.float32)),
    "functions": fp.Model(
        lambda key: jax.random.normal(key, (FEATURES, CLASSES)),
        lambda params, state, x: (x - state.astype(x.dtype)) @ params,
        train=moving,
        state=lambda _: jnp.ones(FEATURES),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_precision_computes_in_bfloat16_and_moves_the_state_in_float32(kind: str) -> None:
    model, low = KINDS[kind], fp.mixed_precision(KINDS[kind])
    x = np.random.default_rng(0).normal(size=(5, FEATURES)).astype(np.float32)
    x[3:] = 1e3  # rows that do not count
    whole, key = jax.jit(model.init)(jax.random.key(0)), jax.random.key(1)

    def moved(train: Any, params: Any, state: Any) -> Any:
        def step(_: Any, state: Any) -> Any:
            return train(params, state, x, key, MASK)[1]

        return jax.lax.fori_loop(0, 10, step, state)

    exact, found = (jax.jit(partial(moved, each.train))(*whole) for each in (model, low))
    for first, a, b in zip(*map(jax.tree.leaves, (whole.state, exact, found)), strict=True):
        assert b.dtype == np.float32
        assert 0 < np.abs(a - b).max() < 0.01 * np.abs(a - first).max()
    train: Any = low.train
    for made in (
        jax.make_jaxpr(train)(*whole, x, key, MASK),
        jax.make_jaxpr(low.apply)(whole, x),
    ):
        assert set(products(made.jaxpr)) == {jnp.dtype(jnp.bfloat16)}
        assert {each.dtype for each in made.out_avals} == {np.dtype(np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize("moves", [True, False])
def test_products_behind_a_normalization_are_in_bfloat16_too(moves: bool) -> None:
    """Whose statistics are in float32, as a state and as constants."""

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm = nnx.BatchNorm(FEATURES, use_running_average=not moves, rngs=rngs)
            self.head = nnx.Linear(FEATURES, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(self.norm(x))

    model = fp.mixed_precision(fp.Model.from_nnx(Network))
    x = jax.ShapeDtypeStruct((3, FEATURES), np.float32)
    made = jax.make_jaxpr(model.apply)(model.shapes, x)
    assert set(products(made.jaxpr)) == {np.dtype(jax.numpy.bfloat16)}
