"""Mixed precision beside casts by hand, and what stays in float32."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedprox as fp
from fedprox.experiment import parse, resolve
from fedprox.model import weighted_loss
from tests.deployment.federations import table_of

FEDERATION = fp.datasets.synthetic(clients=3)


class Net(nnx.Module):
    """Two layers with dropout between, whose representation is known."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first, self.dropout = nnx.Linear(60, 8, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 10, rngs=rngs)

    def representation(self, x: jax.Array) -> jax.Array:
        return nnx.relu(self.first(x))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.dropout(self.representation(x)))


def trained(model: fp.Model, **options: Any) -> Any:
    (run,) = fp.simulate(
        FEDERATION,
        model,
        fp.fedprox(mu=0.1),
        solver=fp.Solver(0.05, 10, epochs=1),
        cohort=fp.Cohort(2),
        rounds=2,
        progress=False,
        **options,
    )
    return run


def test_a_model_computes_as_with_casts_by_hand() -> None:
    def init(key: jax.Array) -> Any:
        return {"w": jax.random.normal(key, (60, 10)) / 10, "b": jnp.zeros(10)}

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return x @ params["w"] + params["b"]

    def by_hand(params: Any, x: jax.Array) -> jax.Array:
        w, b = (params[name].astype(jnp.bfloat16) for name in ("w", "b"))
        return (x.astype(jnp.bfloat16) @ w + b).astype(jnp.float32)

    run, other = (
        trained(fp.mixed_precision(fp.Model(init, apply))),
        trained(fp.Model(init, by_hand)),
    )
    jax.tree.map(np.testing.assert_array_equal, run.params, other.params)
    assert {leaf.dtype for leaf in jax.tree.leaves(run.params)} == {np.dtype(np.float32)}
    exact = trained(fp.Model(init, apply))
    assert run.final.train_loss != exact.final.train_loss
    assert run.final.train_loss == pytest.approx(exact.final.train_loss, rel=0.02)


def test_all_products_are_of_bfloat16() -> None:
    model = fp.mixed_precision(fp.Model.from_nnx(Net))
    params, x = model.init(jax.random.key(0)), jnp.ones((4, 60))

    def loss(params: Any) -> Any:
        assert model.train is not None
        return model.train(params, x, jax.random.key(1)).sum()

    steps = str(jax.make_jaxpr(jax.grad(loss))(params)).splitlines()
    products = [line for line in steps if "dot_general" in line]
    assert len(products) == 5
    assert all("bf16[" in line.split("=")[0] for line in products)
    assert {leaf.dtype for leaf in jax.tree.leaves(jax.grad(loss)(params))} == {
        np.dtype(np.float32)
    }
    assert model.representation is not None
    assert model.representation(params, x).dtype == jnp.float32


def test_steps_too_small_for_bfloat16_add_up() -> None:
    """1 and 1 + 2^-9 are the same in bfloat16."""
    model = fp.Model(
        lambda _: {"w": jnp.ones(1)},
        lambda params, x: jnp.broadcast_to(params["w"], (len(x), 1)),
        lambda outputs, _: outputs[:, 0],
    )
    (run,) = fp.simulate(
        FEDERATION,
        fp.mixed_precision(model),
        fp.fedavg(),
        solver=fp.Solver(2**-12, 10, steps=8),
        cohort=fp.Cohort(3),
        rounds=1,
        progress=False,
    )
    assert float(run.params["w"][0]) == pytest.approx(1 - 2**-9, abs=1e-4)


def test_frozen_values_are_rounded_too() -> None:
    whole = fp.models.mlp(FEDERATION, hidden=[8])
    params, x = whole.init(jax.random.key(0)), jnp.asarray(FEDERATION.train.x[:5])
    model = fp.lora(fp.mixed_precision(whole), params, rank=2)
    first = model.init(jax.random.key(1))
    np.testing.assert_array_equal(model.apply(first, x), fp.mixed_precision(whole).apply(params, x))
    assert np.abs(model.apply(first, x) - whole.apply(params, x)).max() > 0


def test_a_file_says_it() -> None:
    table = table_of({"name": "fedavg"}, model={"name": "mlp", "hidden": [4]})
    table["model"]["mixed_precision"] = True
    resolved = resolve(parse("test", table))
    assert resolved.table["model"]["mixed_precision"] is True
    params, x = resolved.model.init(jax.random.key(0)), jnp.ones((1, 60)) / 3
    exact = fp.models.mlp(resolved.federation, hidden=[4])
    assert (resolved.model.apply(params, x) != exact.apply(params, x)).any()
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


@pytest.mark.parametrize("name", fp.models.MODELS)
def test_every_model_computes_in_bfloat16(name: str) -> None:
    federation, options = BUILT[name]
    model = fp.mixed_precision(fp.models.MODELS[name](federation, **options))
    x, y = jnp.asarray(np.asarray(federation.train.x)), jnp.asarray(federation.train.y)

    def loss(params: Any) -> jax.Array:
        return weighted_loss(model, params, x, y, jnp.ones(len(y)))

    made = jax.make_jaxpr(jax.value_and_grad(loss))(model.shapes)
    assert set(products(made.jaxpr)) == {jnp.dtype(jnp.bfloat16)}
    assert {a.dtype for a in made.out_avals} == {jnp.dtype(jnp.float32)}
