"""A user's functions with fast convolutions."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from numpy.testing import assert_allclose

import fedprox as fp
from fedprox.model import model as model_module
from fedprox.model import weighted_loss
from fedprox.model.convolution import fast

Function = Callable[[jax.Array, jax.Array], jax.Array]
SLOW, FAST = "conv_general_dilated", "fast_convolution"


def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)


def in_scan(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.scan(lambda c, _: (jnp.tanh(conv(c, kernel)), None), x, None, length=2)[0]


def in_while(x: jax.Array, kernel: jax.Array) -> jax.Array:
    def body(state: Any) -> Any:
        i, x = state
        return i + 1, conv(x, kernel)

    start = jnp.int32(0), lax.stop_gradient(x)
    return lax.while_loop(lambda state: state[0] < 2, body, start)[1]


def in_condition(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.cond(x[0, 0, 0, 0] > 0, conv, lambda x, k: 2 * conv(x, k), x, kernel)


def in_gradient(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.grad(lambda x: jnp.sum(conv(x, kernel) ** 3))(x)


def in_vmap(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.vmap(conv, (None, 0))(x, jnp.stack([kernel, 2 * kernel]))


def of_other_axes(x: jax.Array, kernel: jax.Array) -> jax.Array:
    x, kernel = x.transpose(3, 0, 1, 2), kernel.transpose(3, 2, 0, 1)
    layout = ("CNHW", "OIHW", "HCNW")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)


def of_batch_groups(x: jax.Array, kernel: jax.Array) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=layout, batch_group_count=2
    )


@jax.custom_jvp
def own_jvp(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return conv(x, kernel) ** 2


@own_jvp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    y, dy = jax.jvp(conv, primals, tangents)
    return y**2, 5 * y * dy


@jax.custom_vjp
def own_vjp(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return conv(x, kernel) ** 2


own_vjp.defvjp(
    lambda x, kernel: (conv(x, kernel) ** 2, (x, kernel)),
    lambda saved, dy: (7 * jax.vjp(conv, *saved)[1](dy)[0], None),
)

FUNCTIONS: dict[str, Function] = {
    "plain": conv,
    "jit": jax.jit(conv),
    "checkpoint": jax.checkpoint(lambda x, kernel: jnp.sin(conv(x, kernel))),
    "scan": in_scan,
    "while": in_while,
    "cond": in_condition,
    "gradient": in_gradient,
    "vmap": in_vmap,
    "axes": of_other_axes,
    "batch groups": of_batch_groups,
    "custom_jvp": own_jvp,
    "custom_vjp": own_vjp,
}


def point() -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = (2, 5, 6, 4), (3, 3, 4, 4)
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    return x, kernel / 4


def gradient(function: Function) -> Callable[..., Any]:
    return jax.grad(lambda *point: jnp.sum(function(*point) ** 2), (0, 1))


def test_functions_and_their_gradients_have_the_same_values() -> None:
    @partial(jax.jit, static_argnums=0)
    def all_of(change: Callable[[Function], Function], *point: jax.Array) -> Any:
        ours = {name: change(function) for name, function in FUNCTIONS.items()}
        return {
            name: (f(*point), [] if name == "while" else gradient(f)(*point))
            for name, f in ours.items()
        }

    found, wanted = all_of(fast, *point()), all_of(lambda function: function, *point())
    for name in FUNCTIONS:
        for a, b in zip(*map(jax.tree.leaves, (found[name], wanted[name])), strict=True):
            assert_allclose(a, b, rtol=1e-4, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_slow_convolution_is_left(name: str) -> None:
    function = FUNCTIONS[name]
    changes: list[Callable[[Function], Function]] = [lambda f: f]
    if name != "while":
        changes += [gradient, lambda f: gradient(lambda *point: gradient(f)(*point)[0])]
    for change in changes:
        slow = str(jax.make_jaxpr(change(function))(*point()))
        program = str(jax.make_jaxpr(change(fast(function)))(*point()))
        assert SLOW in slow
        assert SLOW not in program
        assert FAST in program


def test_what_has_no_fast_formulation_stays() -> None:
    x, kernel = (a.astype(jnp.int32) for a in point())
    assert SLOW in str(jax.make_jaxpr(fast(conv))(x, kernel))

    def of_four_axes(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv(x, kernel, (1,) * 4, "VALID")

    x = jnp.ones((1,) * 6)
    assert SLOW in str(jax.make_jaxpr(fast(of_four_axes))(x, x))


def test_a_function_without_convolutions_is_the_same_program() -> None:
    def f(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.sin(x).sum() + jax.nn.relu(kernel).sum()

    for _ in range(2):  # of which the second knows the answer
        found = jax.jit(fast(f)).lower(*point()).as_text()
        assert found == jax.jit(f).lower(*point()).as_text()


def test_errors_are_those_of_the_function() -> None:
    def f(_: jax.Array) -> jax.Array:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        jax.jit(fast(f))(jnp.ones(3))


class Net(nnx.Module):
    """A network with convolutions of flax alone."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs)
        self.second = nnx.Conv(4, 4, (3, 3), feature_group_count=2, rngs=rngs)
        self.third = nnx.ConvTranspose(4, 2, (2, 2), (2, 2), rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(2 * 16, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """(B, 4, 4, 1) -> (B, 3)."""
        for layer in (self.first, self.second, self.third):
            x = nnx.relu(layer(x))
        return self.head(self.dropout(x.reshape(len(x), -1)))


def lanes_of(model: fp.Model, x: Any) -> tuple[Any, Any]:
    """A program, not compiled, of steps on mini-batches in a loop, for two lanes; what it takes."""
    rng, y, weights = np.random.default_rng(0), np.zeros(len(x), int), np.ones(len(x), np.float32)
    given = (
        jax.tree.map(lambda a: np.float32(rng.normal(size=(2, *a.shape)) / 2), model.shapes),
        jax.random.split(jax.random.key(0)),
    )

    def step(params: Any, key: jax.Array) -> Any:
        slope = jax.grad(weighted_loss, argnums=1)(model, params, x, y, weights, key)
        return jax.tree.map(lambda w, d: w - 0.1 * d, params, slope)

    def lane(params: Any, key: jax.Array) -> Any:
        return lax.fori_loop(0, 2, lambda _, params: step(params, key), params)

    return jax.jit(jax.vmap(lane)).lower(*given), given


def test_a_models_convolutions_have_the_layout_that_is_fast_in_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And it is trained as with plain convolutions."""
    x = np.random.default_rng(0).normal(size=(3, 4, 4, 1)).astype(np.float32)
    lanes, given = lanes_of(fp.Model.from_nnx(Net), x)
    program = lanes.as_text()
    layouts = re.findall(r"dim_numbers = (\[.*?\]x\[.*?\]->\[.*?\])", program)
    assert len(layouts) == program.count("stablehlo.convolution")
    assert set(layouts) == {"[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"}
    monkeypatch.setattr(model_module, "fast", lambda function: function)
    plain, _ = lanes_of(fp.Model.from_nnx(Net), x)
    assert plain.as_text() != program
    found, wanted = (jax.tree.leaves(each.compile()(*given)) for each in (lanes, plain))
    for a, b in zip(found, wanted, strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_functions_of_ones_own_have_them_wherever_they_are() -> None:
    kernel = point()[1]

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return conv(x, params)

    def train(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        return conv(x * jax.random.bernoulli(key, 0.5, x.shape), params)

    def loss(outputs: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(conv(outputs, kernel), (1, 2, 3)) - y

    x, y = jnp.ones((2, 5, 6, 4)), jnp.ones(2)
    for model, key in (
        (fp.Model(lambda _: kernel, apply, loss), None),
        (fp.Model(lambda _: kernel, apply, loss, train=train), jax.random.key(0)),
    ):
        slope = jax.grad(partial(weighted_loss, model))
        program = str(jax.make_jaxpr(slope)(kernel, x, y, y, key))
        assert SLOW not in program
        assert program.count(FAST) >= 4  # in the loss as in the outputs, forwards and backwards


def test_a_model_without_convolutions_is_the_same_program(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fp.Model.from_nnx(lambda rngs: nnx.Linear(4, 3, rngs=rngs))
    x = np.zeros((5, 4), np.float32)
    found = lanes_of(model, x)[0].as_text()
    monkeypatch.setattr(model_module, "fast", lambda function: function)
    assert lanes_of(model, x)[0].as_text() == found
