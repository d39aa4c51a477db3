"""Models with normalization layers, in Python and in files."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from numpy.testing import assert_allclose

import fedprox as fp
from fedprox.algorithms.model_state import layers_with_state, with_own_layers
from fedprox.experiment import parse, resolve


def images() -> fp.Federation:
    """Grey images of ten classes."""
    x = np.random.default_rng(0).normal(size=(3, 28, 28)).astype(np.float32)
    return fp.Federation.from_arrays([(x, np.arange(3))], classes=10)


def test_each_convolution_is_normalized_before_relu_and_pooling() -> None:
    model = fp.models.mnist_cnn(images(), norm="batch")
    whole = jax.tree.map(lambda a: a + 0.1, jax.jit(model.init)(jax.random.key(0)))

    def by_hand(whole: Any, x: jax.Array) -> jax.Array:
        params, state = whole
        for i in (1, 2):
            conv, norm, running = params[f"conv{i}"], params[f"norm{i}"], state[f"norm{i}"]
            layout = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(
                x, conv["kernel"], (1, 1), "SAME", dimension_numbers=layout
            )
            x = (x + conv["bias"] - running["mean"]) / jnp.sqrt(running["var"] + 1e-5)
            x = nnx.max_pool(nnx.relu(norm["scale"] * x + norm["bias"]), (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        x = nnx.relu(x @ params["dense1"]["weight"].T + params["dense1"]["bias"])
        return x @ params["dense2"]["weight"].T + params["dense2"]["bias"]

    x = np.random.default_rng(0).normal(size=(2, 28, 28, 1)).astype(np.float32)
    assert_allclose(
        jax.jit(model.apply)(whole, x), jax.jit(by_hand)(whole, x), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("method", ["silobn", "fedbn"])
def test_methods_by_name_find_the_layers_of_a_model_by_name(method: str) -> None:
    table: dict[str, Any] = {
        "rounds": 1,
        "cohort": {"clients_per_round": 1},
        "solver": {"learning_rate": 0.1, "batch_size": 3, "epochs": 1},
        "data": {"name": f"{__name__}:images"},
        "model": {"name": "mnist-cnn", "norm": "batch"},
        "method": [{"name": method}],
    }
    resolved = resolve(parse("test", table))
    assert resolved.table["model"] == table["model"]
    shapes, (found,) = resolved.model.shapes, resolved.methods
    assert sorted(shapes.state) == ["norm1", "norm2"]
    assert layers_with_state(shapes) == ("norm1", "norm2")
    kept = with_own_layers(found, shapes).personal
    assert (kept is not None) == (method == "fedbn")
