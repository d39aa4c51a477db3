"""LSTM layers against the equations written out, and the papers' recurrent models."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedprox as fp
from fedprox.features import Vectors, Windows
from fedprox.federation import Rows
from fedprox.models.recurrent import LSTM, lstm
from fedprox.streams import Purpose, generator

Arrays = tuple[Any, ...]


def sigmoid(z: Any) -> Any:
    return 1 / (1 + jnp.exp(-z))


def plain(x: Any, input_kernel: Any, hidden_kernel: Any, bias: Any, peepholes: Any) -> jax.Array:
    """The equations, one step after another, left to JAX to differentiate."""
    units = len(hidden_kernel)
    h = c = jnp.zeros((x.shape[1], units), x.dtype)
    p = peepholes if len(peepholes) else jnp.zeros((3, units))
    outputs = []
    for step in x:
        z = step @ input_kernel + h @ hidden_kernel + bias
        i = sigmoid(z[:, :units] + p[0] * c)
        f = sigmoid(z[:, units : 2 * units] + p[1] * c)
        c = f * c + i * jnp.tanh(z[:, 2 * units : 3 * units])
        h = sigmoid(z[:, 3 * units :] + p[2] * c) * jnp.tanh(c)
        outputs.append(h)
    return jnp.stack(outputs)


def arguments(peepholes: bool, length: int = 4, size: int = 3, d: int = 4, h: int = 5) -> Arrays:
    rng = np.random.default_rng(1)
    shapes = [(length, size, d), (d, 4 * h), (h, 4 * h), (4 * h,), (3, h)]
    *others, p = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return (*others, p if peepholes else p[:0])


def close(found: Any, right: Any) -> None:
    found, right = jax.tree.leaves(found), jax.tree.leaves(right)
    assert len(found) == len(right) > 0
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def scalar(layer: Callable[..., jax.Array]) -> Callable[[Arrays], jax.Array]:
    """A number that depends on every output, and not linearly."""

    def value(arguments: Arrays) -> jax.Array:
        outputs = layer(*arguments)
        return jnp.sum(jnp.sin(3 * outputs) * jnp.arange(outputs.size).reshape(outputs.shape) / 10)

    return value


def both(derived: Callable[..., Any], given: Arrays) -> None:
    """Compare what is derived of our layer and of the plain one, by one program."""
    close(*jax.jit(lambda given: [derived(layer, given) for layer in (lstm, plain)])(given))


def first(layer: Callable[..., jax.Array], given: Arrays) -> Any:
    """Outputs, and the gradient of `scalar` in every argument."""
    return layer(*given), jax.grad(scalar(layer))(given)


@pytest.mark.parametrize(("peepholes", "length"), [(False, 4), (True, 4), (True, 1)])
def test_values_and_gradients_are_those_of_the_equations(peepholes: bool, length: int) -> None:
    both(first, arguments(peepholes, length))


def test_the_same_for_many_clients_at_once() -> None:
    given = arguments(peepholes=True)
    # every argument of its own for each of three clients, as in the engine
    many = jax.tree.map(lambda a: np.stack([a, -a, a / 2]), given)
    both(lambda layer, many: jax.vmap(partial(first, layer))(many), many)


@pytest.mark.slow
@pytest.mark.parametrize("peepholes", [False, True])
def test_products_with_the_hessian_in_reverse_over_reverse(peepholes: bool) -> None:
    given = arguments(peepholes, length=2)
    rng = np.random.default_rng(2)
    v = jax.tree.map(lambda a: rng.normal(size=a.shape).astype(np.float32), given)

    def product(layer: Callable[..., jax.Array], given: Arrays) -> Any:
        def slope(at: Arrays) -> jax.Array:
            gradient = jax.grad(scalar(layer))(at)
            return jax.tree.reduce(jnp.add, jax.tree.map(lambda g, v: jnp.vdot(g, v), gradient, v))

        return jax.grad(slope)(given)

    both(product, given)


def test_a_unit_that_only_remembers() -> None:
    # kernels of zero and 1 added to the forget gate's bias: c_t = sigmoid(1) c_{t-1} + tanh(b) / 2
    layer = LSTM(2, 1, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    layer.bias[...] = jnp.array([0.0, 0.0, 0.7, 0.0])
    c, expected = 0.0, []
    for _ in range(4):
        c = c / (1 + math.exp(-1)) + math.tanh(0.7) / 2
        expected.append(math.tanh(c) / 2)
    found = jax.jit(layer)(np.ones((4, 1, 2), np.float32))
    assert found.ravel().tolist() == pytest.approx(expected, rel=1e-5)


def sequences(classes: int, *, length: int = 10, labels: str = "last") -> fp.Federation:
    """Two clients whose symbols count upwards, modulo the number of classes."""
    text = (np.arange(length + 1) + np.arange(7)[:, None]) % classes
    x, y = text[:, :-1], (text[:, -1] if labels == "last" else text[:, 1:])
    return fp.Federation.from_arrays([(x[:4], y[:4]), (x[4:], y[4:])], classes=classes)


def tweets(width: int) -> fp.Federation:
    x = np.random.default_rng(0).normal(size=(6, 25, width)).astype(np.float32)
    return fp.Federation.from_arrays([(x, np.arange(6) % 2)])


@pytest.mark.parametrize(
    ("name", "options", "federation", "parameters"),
    [
        # 80 x 8 + 400 (8 + 100 + 1) + 400 (100 + 100 + 1) + 101 x 80
        ("char-lstm", {}, sequences(80), 132_720),
        ("char-lstm", {"hidden": 256, "initial": "torch"}, sequences(80), 817_872),
        ("peephole-char-lstm", {}, sequences(258, labels="all"), 866_578),
        ("peephole-word-lstm", {}, sequences(10_000, labels="all"), 4_950_544),
        # 1024 (300 + 256 + 1) + 1024 (256 + 256 + 1) + 257 x 30 + 31
        ("sentiment-lstm", {}, tweets(300), 1_103_421),
        ("sentiment-lstm", {"hidden": 100}, tweets(300), 243_861),
        # 12 words of 300; three classes have three outputs
        ("sentiment-lstm", {"hidden": 100}, sequences(12), 243_830 + 12 * 300 + 31 * 12),
        ("sentiment-lstm", {"hidden": 7, "embedding": 5}, sequences(2), 10 + 1055),
    ],
)
def test_parameters(name: str, options: Any, federation: fp.Federation, parameters: int) -> None:
    model = fp.models.MODELS[name](federation, **options)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(a.size for a in jax.tree.leaves(shapes)) == parameters


def params_of(model: fp.Model) -> Any:
    return jax.device_get(jax.jit(model.init)(jax.random.key(3)))


def test_where_the_authors_begin() -> None:
    federation = sequences(80)
    glorot = params_of(fp.models.char_lstm(federation))
    layer = glorot["layers"][0]
    # both parts of a kernel are one matrix, of 8 + 100 rows and 400 columns
    bound = math.sqrt(6 / 508)
    for part in (layer["input_kernel"], layer["hidden_kernel"]):
        assert 0.95 * bound < np.abs(part).max() <= bound
    assert not layer["bias"].any()
    torch = params_of(fp.models.char_lstm(federation, initial="torch"))
    for layer in (torch["layers"][0], torch["layers"][1]):
        for part in (layer["input_kernel"], layer["hidden_kernel"]):
            assert 0.95 / 10 < np.abs(part).max() <= 1 / 10
        # a sum of two, each uniform on +-1/10
        assert float(layer["bias"].std()) == pytest.approx(math.sqrt(2 / 3) / 10, rel=0.1)
    assert float(torch["embedding"]["table"].std()) == pytest.approx(1, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["peephole-char-lstm", "peephole-word-lstm"])
def test_a_prediction_at_every_position_sees_the_past_only(name: str) -> None:
    federation = sequences(20, labels="all")
    x = np.asarray(federation.train.x)
    changed = x.copy()
    changed[:, 6] = (x[:, 6] + 1) % 20
    model = fp.models.MODELS[name](federation)
    found = jax.jit(model.apply)(params_of(model), np.concatenate([x, changed]))
    before, after = np.split(np.asarray(found), 2)
    assert before.shape == (7, 10, 20)
    np.testing.assert_allclose(before[:, :6], after[:, :6], rtol=1e-6)
    assert (np.abs(before - after).max(axis=-1)[:, 6:] > 0).all()


def test_one_output_for_two_classes_is_the_sigmoid() -> None:
    federation = tweets(5)
    model = fp.models.sentiment_lstm(federation, hidden=4)
    params, (x, y) = params_of(model), federation.train.client(0)

    @jax.jit
    def measured(params: Any, x: jax.Array, y: jax.Array) -> Any:
        outputs = model.apply(params, x)
        return outputs, model.loss(outputs, y)

    outputs, losses = map(np.asarray, measured(params, x, y))
    z = np.where(y == 1, outputs[:, 1], -outputs[:, 1])
    assert not outputs[:, 0].any()
    np.testing.assert_allclose(losses, np.log(1 + np.exp(-z)), rtol=1e-5)


def test_trained_vectors_do_what_vectors_among_the_features_do() -> None:
    federation = sequences(2)
    model = fp.models.sentiment_lstm(federation, hidden=4, embedding=5)
    params = params_of(model)
    ids = np.asarray(federation.train.x, np.int32)
    found = jax.jit(model.apply)(params, ids)
    table = np.asarray(params.pop("embedding")["table"])
    rows = Rows(Vectors(ids, table), federation.train.y, federation.train.offsets)
    frozen = fp.Federation(rows, rows, 2, federation.names)
    vectors = fp.models.sentiment_lstm(frozen, hidden=4)
    np.testing.assert_allclose(
        jax.jit(vectors.apply)(params, rows.x.look_up(ids)), found, rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_a_round_of_one_step_on_all_rows_is_a_gradient_step() -> None:
    federation = sequences(5, labels="all")
    model = fp.models.MODELS["peephole-word-lstm"](federation)
    [run] = fp.simulate(
        federation,
        model,
        fp.fedavg(),
        solver=fp.Solver(0.5, epochs=1, batch_size=4),
        cohort=fp.Cohort(2),
        rounds=1,
        evaluation=fp.Evaluation(gradients=False),
    )
    key = jax.random.key(int(generator(0, Purpose.MODEL).integers(2**31)))
    start = jax.jit(model.init)(key)
    x, y = jnp.asarray(np.asarray(federation.train.x)), jnp.asarray(federation.train.y)
    slope = jax.jit(jax.grad(lambda params: model.loss(model.apply(params, x), y).mean()))
    close(run.params, jax.tree.map(lambda w, g: w - 0.5 * g, start, slope(start)))
    assert run.history[-1].train_loss < run.history[0].train_loss


def test_characters_may_be_windows_of_a_text() -> None:
    text = (np.arange(30) % 7).astype(np.uint8)
    starts = np.arange(20, dtype=np.int32)
    offsets = np.array([0, 20])
    rows = Rows(Windows(text, starts, 8), text[starts + 8].astype(np.int32), offsets)
    model = fp.models.char_lstm(fp.Federation(rows, rows, 7, ("one",)), hidden=3)
    outputs = jax.eval_shape(model.apply, model.shapes, rows.x.look_up(starts))
    assert outputs.shape == (20, 7)
    with pytest.raises(fp.InputError, match="symbol 6 among the features; with 6 classes"):
        fp.models.char_lstm(fp.Federation(rows, rows, 6, ("one",)))


@pytest.mark.parametrize(
    ("name", "options", "federation", "message"),
    [
        ("char-lstm", {}, tweets(3), r"features of type float32 and shape \(25, 3\); it takes"),
        ("char-lstm", {}, sequences(5, labels="all"), "one label for each example"),
        ("char-lstm", {"hidden": 0}, sequences(5), "model.hidden = 0"),
        ("char-lstm", {"initial": "zeros"}, sequences(5), "model.initial = 'zeros'"),
        ("peephole-char-lstm", {}, sequences(5), "one label for each of 10 positions"),
        ("peephole-word-lstm", {}, sequences(5), "one label for each of 10 positions"),
        ("sentiment-lstm", {}, sequences(5, labels="all"), "one label for each example"),
        ("sentiment-lstm", {"hidden": True}, tweets(3), "model.hidden = True"),
        ("sentiment-lstm", {"embedding": 0}, sequences(2), "model.embedding = 0"),
        (
            "char-lstm",
            {},
            fp.Federation.from_arrays([([[0, -1]], [1])]),
            "symbol -1 among the features",
        ),
        ("char-lstm", {}, fp.Federation.from_arrays([([[0, 1]], [0.5])]), "must be classes"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    name: str, options: Any, federation: fp.Federation, message: str
) -> None:
    with pytest.raises(fp.InputError, match=message) as caught:
        fp.models.MODELS[name](federation, **options)
    assert "\n" not in str(caught.value)
