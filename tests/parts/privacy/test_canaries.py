"""Where canaries are, and what they add, against NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.model import weighted_loss
from fedprox.parts.privacy.canaries import (
    CANCELLING,
    EMPTY,
    LOUD,
    OVERFLOWING,
    WIDTH,
    _replaced,
    joined,
    numbers_of_rows,
    standardized,
    with_places,
)
from fedprox.parts.privacy.numerics import norm_bound

CANARIES = 9


def of_dict(k: jax.Array) -> Any:
    return {"w": jax.random.normal(k, (3, 2)), "b": jnp.ones(2)}


DICT = fp.Model(of_dict, lambda w, x: x @ w["w"] + w["b"])
MODELS = {
    "a dict": DICT,
    "a tuple": fp.Model(lambda k: (of_dict(k)["w"],), lambda w, x: x @ w[0]),
    "a base": fp.freeze(DICT, DICT.init(jax.random.key(1)), ["b"]),
    "training of its own": fp.Model(
        lambda k: of_dict(k)["w"], lambda w, x: x @ w, train=lambda w, x, _: 2 * x @ w
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_move_their_place_and_else_the_model_as_it_is(name: str) -> None:
    own, key = MODELS[name], jax.random.key(0)
    whole = with_places(own, CANARIES)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(CANARIES, 3)).astype(np.float32), np.arange(CANARIES) % 2
    numbers = rng.integers(-9, 9, (CANARIES, 2)).astype(np.float32)
    places = np.arange(CANARIES, dtype=np.int32)
    rows = {"x": x, "numbers": numbers, "place": places, "present": places > 3}
    weights = jnp.full(CANARIES, 0.5)
    params = own.init(key)
    matrix = jnp.zeros((-(-(CANARIES + EMPTY) // WIDTH), WIDTH))

    def gradients(model: fp.Model, params: Any, x: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            return weighted_loss(model, params, x, jnp.asarray(y), weights, key)

        return jax.value_and_grad(loss)(params)

    expected = np.zeros(matrix.size)
    expected[:CANARIES] = numbers.sum(axis=1)
    value, found = jax.jit(lambda: gradients(whole, joined(params, matrix), rows))()
    own_value, own_found = jax.jit(lambda: gradients(own, params, x))()
    np.testing.assert_array_equal(found["canaries"].ravel(), expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        found,
        joined(own_found, found["canaries"]),
    )
    np.testing.assert_allclose(value, own_value, rtol=1e-6)
    assert whole.shapes["canaries"].shape == matrix.shape


def test_canaries_have_places_of_their_own_in_a_message() -> None:
    message = {"a": np.arange(1.0, 8.0, dtype=np.float32), "b": np.full((2, 3), 9, np.float32)}
    sent = jax.jit(lambda place: _replaced(message, place, jnp.float32(5), 4))
    whole = np.concatenate([message["a"], message["b"].ravel()])
    at = np.arange(4) * (13 // 4)
    others = np.concatenate([np.ravel(leaf) for leaf in sent(0).values()])
    whole[at] = 0
    np.testing.assert_array_equal(others, whole)
    for place in (1, 2, 3, 4):
        found = np.concatenate([np.ravel(leaf) for leaf in sent(place).values()])
        np.testing.assert_array_equal(found, 5.0 * (np.arange(13) == at[place - 1]))


def test_a_message_without_room_is_named() -> None:
    with pytest.raises(fp.InputError, match="they need 84 places in a message, which has 3"):
        _replaced({"a": np.zeros(3)}, jnp.int32(0), jnp.float32(1), 84)


@pytest.mark.parametrize("clip", [1e-3, 1.0, 0.7])
def test_numbers_are_above_the_norm(clip: float) -> None:
    numbers = numbers_of_rows(16, clip)
    np.testing.assert_array_equal(numbers[[0, 8]], [[OVERFLOWING, 0.0]] * 2)
    total = numbers.astype(np.float64).sum(axis=1) / clip
    np.testing.assert_allclose(total[[1, 9]], LOUD, rtol=1e-2)
    np.testing.assert_allclose(total[[2, 7, 15]], LOUD, rtol=1e-6)
    assert (np.abs(numbers[1]) > clip * (CANCELLING - 2 * LOUD)).all()
    assert np.isinf(norm_bound(jnp.asarray(numbers[0])))


def test_a_score_is_a_number_over_the_noise() -> None:
    def score(*released: float) -> list[float]:
        return np.asarray(standardized(jnp.array(released), 3)).tolist()

    assert score(1.0, -2.0, 0.0, 2.0, -2.0) == [0.5, -1.0, 0.0]
    assert score(1.0, -2.0, 0.0, 0.0, 0.0) == [1e6, -1e6, 0.0]  # without noise
    assert score(np.inf, np.nan, 1.0, 1.0, 1.0) == [1e6, 1e6, 1.0]
    assert score(1.0, 2.0, 3.0, np.nan, 1.0) == [0.0, 0.0, 0.0]
