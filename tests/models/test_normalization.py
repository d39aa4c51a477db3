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
from tests.model.test_mixed import products


def images() -> fp.Federation:
    """Grey images of ten classes."""
    x = np.random.default_rng(0).normal(size=(3, 28, 28)).astype(np.float32)
    return fp.Federation.from_arrays([(x, np.arange(3))], classes=10)


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "build",
    [fp.models.mnist_cnn, pytest.param(fp.models.resnet18, marks=pytest.mark.slow)],
)
def test_batch_normalization_computes_in_bfloat16(build: Any) -> None:
    model = fp.mixed_precision(build(images(), norm="batch"))
    x, train, shapes = np.zeros((2, 28, 28), np.float32), model.train, model.shapes
    assert train is not None

    def loss(params: Any, state: Any) -> Any:
        outputs, after = train(params, state, x, None, np.ones(2, bool))
        return outputs.sum(), after

    made = jax.make_jaxpr(jax.grad(loss, has_aux=True))(*shapes)
    assert set(products(made.jaxpr)) == {jnp.dtype(jnp.bfloat16)}
    assert {each.dtype for each in made.out_avals} == {np.dtype(np.float32)}


@pytest.mark.slow
def test_a_cnn_with_batch_normalization_learns_where_clients_images_differ() -> None:
    """In brightness and contrast, which statistics of the clients' own undo."""
    rng = np.random.default_rng(7)
    y = np.arange(20) % 2
    x = 0.1 * rng.normal(size=(20, 28, 28)).astype(np.float32)
    x[y == 1, 8:20, 8:20] += 0.3
    clients = [(x[:10], y[:10]), (5 - 4 * x[10:], y[10:])]
    federation = fp.Federation.from_arrays(clients, test=clients)
    mean, *own = fp.simulate(
        federation,
        fp.models.mnist_cnn(federation, norm="batch"),
        [fp.fedavg(), fp.silobn(), fp.fedbn()],
        solver=fp.Solver(0.05, 5, epochs=2),
        cohort=fp.Cohort(2),
        rounds=8,
        evaluation=fp.Evaluation(every=8, gradients=False),
        progress=False,
    )
    for run in own:
        assert run.final.personal_accuracy == 1.0
        assert run.final.personal_loss < mean.final.train_loss
