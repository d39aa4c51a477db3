"""When two functions are the same, and what is made of equal ones once."""

import functools
import gc
import weakref
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import fedprox as fp
from fedprox import same
from fedprox.devices.programs import jit_once
from fedprox.experiment.resolved import method_named
from fedprox.same import by_value, made_once
from tests.catalogue import VARIANTS
from tests.settings import FEDERATION


def test_methods_and_models_that_are_built_anew_are_equal() -> None:
    for variant in VARIANTS.values():
        built = [method_named(variant.keys, "method.0")[0] for _ in range(2)]
        assert by_value(built[0]) == by_value(built[1])
    keys = [by_value(each.method._replace(hparams={}, settings={})) for each in VARIANTS.values()]
    assert len(set(keys)) == len(keys)
    few, more = (fp.datasets.synthetic(clients=clients) for clients in (2, 3))
    one, same = (by_value(fp.models.logistic(each)) for each in (few, more))
    assert one == same != by_value(fp.models.logistic(few, initial="zeros"))
    alike = functools.partial(fp.models.mlp, FEDERATION)
    assert by_value(alike(hidden=[3])) == by_value(alike(hidden=[3])) != by_value(alike(hidden=[4]))


def test_a_users_function_is_equal_to_itself_alone() -> None:
    """It may read a name that has another value in the next cell of a notebook."""

    def made(factor: float) -> Callable[[float], float]:
        return lambda x: factor * x

    double = made(2)
    assert by_value(double) == by_value(double) != by_value(made(2))
    unfinished = optax.exponential_decay(0.1, 1, 0.5)  # a closure with an empty cell
    assert by_value(unfinished) == by_value(unfinished)
    momenta = [fp.fedopt(functools.partial(optax.sgd, momentum=m)) for m in (0.5, 0.5, 0.9)]
    one, same, another = map(by_value, momenta)
    assert one == same != another


def test_a_model_of_the_library_is_built_by_flax_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (fp.models.logistic(FEDERATION) for _ in range(2))
    assert first == again
    assert first.init is again.init
    assert fp.models.logistic(FEDERATION, initial="zeros") != first
    with jax.enable_x64(True):
        assert fp.models.logistic(FEDERATION) != first
    one, other = (fp.Model.from_nnx(lambda rngs: nnx.Linear(2, 3, rngs=rngs)) for _ in range(2))
    assert one != other  # a user's function may read what has changed
    monkeypatch.setattr(same, "MOST_MADE", 1)
    fp.models.mlp(FEDERATION, hidden=[3])
    assert len(same.MADE) == 1
    assert fp.models.logistic(FEDERATION) != first


def test_what_fails_is_not_kept() -> None:
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            made_once(divmod, 1, 0)


def test_a_users_function_is_not_kept_by_what_is_made_of_it() -> None:
    def of_user(x: jax.Array) -> jax.Array:
        return x

    gc.freeze()  # what others left is not looked at
    gone = weakref.ref(of_user)
    jit_once(of_user)(jnp.ones(2))
    del of_user
    gc.collect()
    assert gone() is None
    assert jit_once(jnp.sin) is jit_once(jnp.sin)
