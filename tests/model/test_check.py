"""Models whose rows depend on each other, whose statistics would be trained, or that are impure."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedprox as fp
from fedprox.model.check import check_model, check_run, is_of_library
from tests.model.test_mixed import BUILT
from tests.variants import mostly_slow

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
ROWS = [(X[at : at + 4], (X[at : at + 4, 0] > 0).astype(int)) for at in (0, 4, 8)]
FEDERATION = fp.Federation.from_arrays(ROWS, ROWS)


def init(key: jax.Array) -> Any:
    return {"w": jax.random.normal(key, (4, 4)), "head": jnp.zeros((4, 2))}


def apply(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["w"]) @ params["head"]


def standardized(params: Any, x: jax.Array) -> jax.Array:
    return apply(params, (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-5))


def dropped(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    return apply(params, x * jax.random.bernoulli(key, 0.5, x.shape))


def losses(outputs: jax.Array, y: jax.Array) -> jax.Array:
    return (outputs[:, 1] - y) ** 2


def centred(outputs: jax.Array, y: jax.Array) -> Any:
    del y
    return {"sum": outputs[:, 0] - outputs[:, 0].mean()}


CENTRED = fp.Metric(centred, lambda sums: sums["sum"])

DEPENDENT: dict[str, dict[str, Any]] = {
    "model.apply(params, x)": {"apply": standardized},
    "model.train(params, x, key)": {
        "train": lambda params, x, key: standardized(params, x + jax.random.normal(key, x.shape))
    },
    "model.representation(params, x)": {"representation": lambda _, x: x - x.mean(axis=0)},
    "model.loss(outputs, y)": {"loss": lambda outputs, y: losses(outputs, y) / len(y)},
    "model.correct(outputs, y)": {
        "correct": lambda outputs, y: (outputs[:, 0] >= outputs[:, 0].max()) & (y >= 0)
    },
    "model.metrics['centred'].terms(outputs, y)": {"metrics": {"centred": CENTRED}},
}


def model(**functions: Any) -> fp.Model:
    return fp.Model(**{"init": init, "apply": apply, **functions})


@pytest.mark.parametrize("name", DEPENDENT)
def test_a_row_that_depends_on_its_batch_is_refused(name: str) -> None:
    with pytest.raises(fp.InputError) as refused:
        check_model(model(**DEPENDENT[name]), FEDERATION)
    assert str(refused.value).startswith(f"{name}: a row's values depend on the other rows")
    assert "\n" not in str(refused.value)


def test_where_they_would_be_measured_they_are_refused() -> None:
    wrong = model(apply=standardized)
    params = wrong.init(jax.random.key(0))
    with pytest.raises(fp.InputError, match="depend on the other rows"):
        fp.evaluate(wrong, params, FEDERATION)


def test_a_division_by_the_rows_of_the_batch_is_refused() -> None:
    with pytest.raises(fp.InputError, match=r"model.apply\(params, x\): a row's values depend"):
        check_model(model(apply=lambda params, x: apply(params, x) / len(x)), FEDERATION)


def test_functions_in_wrappers_of_jax_are_checked_too() -> None:
    for wrap in (jax.jit, jax.checkpoint):
        with pytest.raises(fp.InputError, match="depend on the other rows"):
            check_model(model(apply=wrap(standardized)), FEDERATION)


def test_random_masks_of_the_whole_batch_are_allowed() -> None:
    check_model(model(train=dropped), FEDERATION)
    check_model(fp.mixed_precision(model(train=dropped, representation=apply)), FEDERATION)


def test_rows_may_be_alike_or_large() -> None:
    for number in (0.0, 1.0, 1e30):
        rows = [(np.full((3, 4), number, np.float32), np.array([0, 1, 0]))]
        federation = fp.Federation.from_arrays(rows)
        check_model(model(train=dropped), federation)
        if number == 1.0:
            with pytest.raises(fp.InputError, match="depend on the other rows"):
                check_model(model(apply=standardized), federation)


class Normalized(nn.Module):
    """A linen network with batch normalization, or without."""

    batch: bool

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: jax.Array) -> jax.Array:
        norm = nn.BatchNorm(use_running_average=True) if self.batch else nn.LayerNorm()
        outputs: jax.Array = nn.Dense(2)(norm(x))
        return outputs


def of_linen(*, batch: bool, wrapped: bool = False) -> fp.Model:
    net = Normalized(batch)

    def variables(key: jax.Array) -> Any:
        made = net.init(key, jnp.zeros((1, 4)))
        return {"net": made} if wrapped else made

    return fp.Model(variables, lambda p, x: net.apply(p["net"] if wrapped else p, x))


@pytest.mark.parametrize("wrapped", [False, True])
def test_running_statistics_of_linen_are_refused(wrapped: bool) -> None:
    line = "model.init.key. returns 'batch_stats' beside 'params', as a flax.linen module does"
    with pytest.raises(fp.InputError, match=line) as refused:
        check_model(of_linen(batch=True, wrapped=wrapped), FEDERATION)
    assert "fedprox.Model.from_linen" in str(refused.value)
    check_model(of_linen(batch=False, wrapped=wrapped), FEDERATION)


def test_parameters_may_be_called_params() -> None:
    named = fp.Model(lambda key: {"params": init(key)}, lambda p, x: apply(p["params"], x))
    check_model(named, FEDERATION)


class Attention(nnx.Module):
    """Attention over four positions of one number each, with dropout in it and behind it."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(2, 1, 4, dropout_rate=0.5, decode=False, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.dropout(self.attention(x[..., None]).reshape(len(x), 4)))


def built(mode: str) -> fp.Model:
    def build(rngs: nnx.Rngs) -> nnx.Module:
        module = Attention(rngs)
        if mode == "eval":
            module.eval()
        return module

    return fp.Model.from_nnx(build)


@pytest.mark.slow
def test_dropout_does_not_depend_on_the_mode_in_which_a_module_is_built() -> None:
    found = {}
    for mode in ("eval", "as built"):
        made = built(mode)

        @jax.jit
        def outputs(x: jax.Array, made: fp.Model = made) -> Any:
            assert made.train is not None
            params = made.init(jax.random.key(0))
            masked = [made.train(params, x, jax.random.key(k)) for k in (0, 1)]
            return *masked, made.apply(params, x)

        found[mode] = outputs(X)
    assert not np.array_equal(*found["eval"][:2])
    for a, b in zip(found["eval"], found["as built"], strict=True):
        np.testing.assert_array_equal(a, b)


COUNT = iter(range(10**6))


@pytest.mark.parametrize(
    "draw",
    [
        lambda _: jnp.asarray(np.random.default_rng().normal(size=(4, 2)), jnp.float32),
        lambda key: jax.random.normal(key, (4, 2)) * float(np.random.default_rng().normal()),
        lambda key: jax.random.normal(jax.random.fold_in(key, next(COUNT)), (4, 2)),
    ],
    ids=["array", "number", "counter"],
)
def test_parameters_drawn_from_elsewhere_are_refused(draw: Any) -> None:
    impure = fp.Model(lambda key: {"w": draw(key)}, lambda params, x: x @ params["w"])
    line = r"model.init\(key\): w differs between two calls with one key; draw all numbers from"
    with pytest.raises(fp.InputError, match=line):
        check_model(impure, FEDERATION)


def test_given_parameters_are_no_draw() -> None:
    given = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    given[0, 0] = np.nan
    check_model(fp.Model(lambda _: {"w": given}, lambda params, x: x @ params["w"]), FEDERATION)


@pytest.mark.parametrize("name", fp.models.MODELS)
def test_models_of_the_library_are_known(name: str) -> None:
    federation, options = BUILT[name]
    made = fp.models.MODELS[name](federation, **options)
    assert is_of_library(made)
    assert not is_of_library(dataclasses.replace(made, loss=losses))


# one of each kind of layer
@pytest.mark.parametrize(
    "name", mostly_slow(["logistic", "bert", "peephole-char-lstm", "resnet18"], "logistic")
)
def test_models_of_the_library_need_no_check(name: str) -> None:
    federation, options = BUILT[name]
    check_run(fp.models.MODELS[name](federation, **options), federation)
