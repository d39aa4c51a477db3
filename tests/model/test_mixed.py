"""Mixed precision beside casts by hand, and what stays in float32."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.experiment import parse, resolve
from fedprox.model import weighted_loss
from tests.deployment.federations import table_of
from tests.objectives import FEATURES, MODEL
from tests.settings import FEDERATION, runs
from tests.variants import mostly_slow

START = MODEL.init(jax.random.key(0))
ROWS: Any = FEDERATION.train.x, FEDERATION.train.y


def slopes(model: fp.Model, params: Any) -> Any:
    """The loss and its gradient over all rows, computed in one program."""
    x, y = ROWS
    function = jax.value_and_grad(lambda w: weighted_loss(model, w, x, y, jnp.ones(len(y))))
    return jax.device_get(jax.jit(function)(params))


def test_a_model_computes_as_with_casts_by_hand() -> None:
    def by_hand(params: Any, x: jax.Array) -> jax.Array:
        w = {name: leaf.astype(jnp.bfloat16) for name, leaf in params.items()}
        return MODEL.apply(w, x.astype(jnp.bfloat16)).astype(jnp.float32)

    found, wanted, exact = (
        slopes(model, START)
        for model in (fp.mixed_precision(MODEL), fp.Model(MODEL.init, by_hand), MODEL)
    )
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(np.float32)}
    assert found[0] != exact[0]
    assert found[0] == pytest.approx(exact[0], rel=0.02)


def test_all_products_are_of_bfloat16() -> None:
    def noisy(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        return MODEL.apply(params, x * jax.random.bernoulli(key, 0.5, x.shape))

    model = fp.mixed_precision(replace(MODEL, train=noisy))
    x, key = jnp.ones((4, FEATURES)), jax.random.key(1)
    assert model.train is not None
    assert model.representation is not None
    train = model.train
    made = jax.make_jaxpr(jax.grad(lambda params: train(params, x, key).sum()))(START)
    found = list(products(made.jaxpr))
    assert len(found) == 2 * 5
    assert set(found) == {jnp.dtype(jnp.bfloat16)}
    assert {each.dtype for each in made.out_avals} == {jnp.dtype(jnp.float32)}
    made = jax.make_jaxpr(model.representation)(START, x)
    assert set(products(made.jaxpr)) == {jnp.dtype(jnp.bfloat16)}
    assert made.out_avals[0].dtype == jnp.float32


@pytest.mark.slow
def test_steps_too_small_for_bfloat16_add_up() -> None:
    """1 and 1 + 2^-9 are the same in bfloat16."""
    model = fp.Model(
        lambda _: {"w": jnp.ones(1)},
        lambda params, x: jnp.broadcast_to(params["w"], (len(x), 1)),
        lambda outputs, _: outputs[:, 0],
    )
    (run,) = runs(model=fp.mixed_precision(model), solver=fp.Solver(2**-12, 3, steps=8), rounds=1)
    assert float(run.params["w"][0]) == pytest.approx(1 - 2**-9, abs=1e-4)


def test_frozen_values_are_rounded_too() -> None:
    model = fp.lora(fp.mixed_precision(MODEL), START, rank=2)
    found, wanted, exact = (
        np.asarray(jax.jit(each.apply)(params, ROWS[0]))
        for each, params in (
            (model, model.init(jax.random.key(1))),
            (fp.mixed_precision(MODEL), START),
            (MODEL, START),
        )
    )
    np.testing.assert_array_equal(found, wanted)
    assert np.abs(found - exact).max() > 0


def test_a_file_says_it() -> None:
    table = table_of({"name": "fedavg"}, model={"name": "mlp", "hidden": [4]})
    table["model"]["mixed_precision"] = True
    resolved = resolve(parse("test", table))
    assert resolved.table["model"]["mixed_precision"] is True
    x = resolved.federation.train.x[:2]
    made = jax.make_jaxpr(resolved.model.apply)(resolved.model.shapes, x)
    assert set(products(made.jaxpr)) == {jnp.dtype(jnp.bfloat16)}
    table["model"]["mixed_precision"] = 3
    with pytest.raises(fp.InputError, match=r"model\.mixed_precision = 3; it must be true or"):
        resolve(parse("test", table))


def images(*shape: int) -> fp.Federation:
    return fp.Federation.from_arrays([(np.ones((2, *shape), np.float32), np.array([0, 1]))])


def texts(labels: str = "last") -> fp.Federation:
    x = np.arange(12).reshape(2, 6) % 5
    return fp.Federation.from_arrays([(x, x[:, -1] if labels == "last" else x)], classes=5)


BUILT: dict[str, tuple[fp.Federation, dict[str, Any]]] = {
    "bert": (texts(), {"layers": 1, "width": 8, "heads": 2, "vocabulary": 5, "positions": 6}),
    "char-lstm": (texts(), {"hidden": 3}),
    "cifar-cnn": (images(24, 24, 3), {}),
    "logistic": (images(4), {}),
    "mlp": (images(4), {"hidden": [3]}),
    "mnist-cnn": (images(28, 28), {}),
    "peephole-char-lstm": (texts("all"), {}),
    "peephole-word-lstm": (texts("all"), {}),
    "resnet18": (images(8, 8, 3), {}),
    "sentiment-lstm": (texts(), {"hidden": 3, "embedding": 2}),
    "wide-lenet": (images(32, 32, 3), {}),
}


def products(jaxpr: Any) -> Iterator[Any]:
    """The types of what a program multiplies in matrices and convolutions, at any depth."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            yield from (each.aval.dtype for each in equation.invars)
        for value in jax.tree.leaves(equation.params, is_leaf=lambda a: hasattr(a, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products(inner)


@pytest.mark.parametrize("name", mostly_slow(fp.models.MODELS, "logistic", "char-lstm"))
def test_every_model_computes_in_bfloat16(name: str) -> None:
    federation, options = BUILT[name]
    model = fp.mixed_precision(fp.models.MODELS[name](federation, **options))
    x, y = jnp.asarray(np.asarray(federation.train.x)), jnp.asarray(federation.train.y)

    def loss(params: Any) -> jax.Array:
        return weighted_loss(model, params, x, y, jnp.ones(len(y)))

    made = jax.make_jaxpr(jax.value_and_grad(loss))(model.shapes)
    assert set(products(made.jaxpr)) == {jnp.dtype(jnp.bfloat16)}
    assert {a.dtype for a in made.out_avals} == {jnp.dtype(jnp.float32)}
