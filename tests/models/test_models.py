"""Models: parameter counts, and layers that equal their plain formulations."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from numpy.testing import assert_allclose

import fedprox as fp
from fedprox.losses import CrossEntropy
from fedprox.model import trainable
from fedprox.models import layers
from tests.quadratics import one_run


def federation(shape: tuple[int, ...], classes: int = 10, rows: int = 3) -> fp.Federation:
    x = np.random.default_rng(0).normal(size=(rows, *shape)).astype(np.float32)
    return fp.Federation.from_arrays([(x, np.arange(rows) % classes)], classes=classes)


def test_images_of_any_numbers_can_be_convolved() -> None:
    x = np.random.default_rng(0).integers(0, 2, (2, 5, 5, 1))
    layer = layers.Conv(1, 2, 3, kernel_init=nnx.initializers.normal(), rngs=nnx.Rngs(0))
    kinds = (np.float32, np.uint8, np.int32, np.bool_, np.float16)
    first, *others = jax.jit(lambda *images: [layer(each) for each in images])(
        *(x.astype(kind) for kind in kinds)
    )
    assert np.abs(first).max() > 0
    for other in others:
        assert other.dtype == np.float32
        assert_allclose(other, first, rtol=1e-6)


def resnet_count(channels: int, classes: int) -> int:
    """He et al. 2016, table 1: convolutions without bias, two numbers a channel to normalise."""
    count = 7 * 7 * channels * 64 + 2 * 64
    inputs = 64
    for outputs in (64, 128, 256, 512):
        count += 9 * outputs * (inputs + 3 * outputs) + 4 * 2 * outputs
        if inputs != outputs:
            count += inputs * outputs + 2 * outputs
        inputs = outputs
    return count + (512 + 1) * classes


TORCHVISION = 11_689_512
"""Parameters of the usual ResNet-18 for RGB images and a thousand classes."""


@pytest.mark.parametrize(
    ("build", "shape", "classes", "count"),
    [
        (fp.models.logistic, (28, 28), 10, 7_850),
        (partial(fp.models.mlp, hidden=[200, 200]), (28, 28), 10, 199_210),
        (partial(fp.models.mlp, hidden=[200, 100]), (28, 28, 1), 10, 178_110),
        (partial(fp.models.mlp, hidden=[100, 100], initial="torch"), (784,), 10, 89_610),
        (fp.models.mnist_cnn, (28, 28), 10, 1_663_370),
        (fp.models.mnist_cnn, (28, 28, 1), 62, 1_663_370 + 52 * 513),
        (fp.models.cifar_cnn, (24, 24, 3), 10, 1_068_298),
        (fp.models.wide_lenet, (32, 32, 3), 10, 797_962),
        (fp.models.wide_lenet, (32, 32, 3), 100, 797_962 + 90 * 193),
        (fp.models.resnet18, (28, 28), 62, resnet_count(1, 62)),
        (fp.models.resnet18, (32, 32, 3), 1000, TORCHVISION),
        (partial(fp.models.resnet18, norm="batch"), (32, 32, 3), 1000, TORCHVISION),
        (partial(fp.models.mnist_cnn, norm="batch"), (28, 28), 10, 1_663_370 + 2 * 96),
        (partial(fp.models.mnist_cnn, norm="group"), (28, 28), 10, 1_663_370 + 2 * 96),
    ],
)
def test_parameters_and_shapes(
    build: Callable[..., fp.Model], shape: tuple[int, ...], classes: int, count: int
) -> None:
    model = build(federation(shape, classes))
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(a.size for a in jax.tree.leaves(trainable(params))) == count
    x = jax.ShapeDtypeStruct((5, *shape), np.float32)
    assert jax.eval_shape(model.apply, params, x).shape == (5, classes)


@pytest.mark.parametrize(
    ("build", "shape", "named"),
    [
        (fp.models.mnist_cnn, (32, 32, 3), "28 x 28 x 1"),
        (fp.models.mnist_cnn, (784,), "28 x 28 x 1"),
        (fp.models.cifar_cnn, (32, 32, 3), "24 x 24 x 3"),
        (fp.models.wide_lenet, (32, 32), "32 x 32 x 3"),
        (fp.models.resnet18, (784,), "height x width"),
        (partial(fp.models.mlp, hidden=[]), (784,), "hidden"),
        (partial(fp.models.mlp, hidden=[0]), (784,), "hidden"),
        (partial(fp.models.MODELS["mlp"], hidden=[5], initial="zeros"), (784,), "initial"),
        (partial(fp.models.MODELS["mnist-cnn"], norm="layer"), (28, 28), "model.norm = 'layer'"),
        (partial(fp.models.MODELS["resnet18"], norm="none"), (28, 28), "model.norm = 'none'"),
    ],
)
def test_what_does_not_fit_is_refused(
    build: Callable[..., fp.Model], shape: tuple[int, ...], named: str
) -> None:
    with pytest.raises(fp.InputError, match=named):
        build(federation(shape))


def test_labels_must_be_classes() -> None:
    regression = fp.Federation.from_arrays([(np.zeros((2, 28, 28)), [0.5, 1.5])])
    for name, build in fp.models.MODELS.items():
        if name in ("mnist-cnn", "logistic", "resnet18"):
            with pytest.raises(fp.InputError, match=f"model {name}: the labels must be classes"):
                build(regression)


def trained(model: fp.Model) -> fp.Run:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, 4)), rng.integers(0, 2, n)) for n in (3, 5)]
    federation = fp.Federation.from_arrays(clients, clients, classes=2)
    return one_run(federation, model, fp.fedavg(), fp.Solver(0.1, batch_size=2, epochs=1))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (
            fp.Model(lambda _: jnp.zeros((4, 1)), lambda w, x: x @ w, lambda o, y: (o - y) ** 2),
            r"model.loss: an array of shape \(2, 2\) for 2 examples",
        ),
        (
            fp.Model(
                lambda _: jnp.zeros((4, 2)),
                lambda w, x: x @ w,
                lambda o, y: CrossEntropy()(o, y).mean(),
            ),
            r"model.loss: an array of shape \(\) for",
        ),
        (
            fp.Model(
                lambda _: jnp.zeros((4, 2)),
                lambda w, x: x @ w,
                correct=lambda o, y: (jnp.argmax(o, axis=1) == y)[:, None],
            ),
            r"model.correct: an array of shape \(\d+, 1\) for labels of shape",
        ),
    ],
)
def test_a_loss_that_is_not_one_number_for_each_example_is_refused(
    model: fp.Model, named: str
) -> None:
    with pytest.raises(fp.InputError, match=named):
        trained(model)


def test_a_model_of_nan_meets_no_label() -> None:
    model = fp.Model(lambda _: jnp.zeros((4, 2)), lambda w, x: x @ w)
    assert model.correct
    outputs = jnp.array([[0, 0], [jnp.nan, jnp.nan], [jnp.nan, 0]])
    assert np.asarray(model.correct(outputs, jnp.zeros(3, int))).tolist() == [True, False, False]


def test_torch_default_bounds() -> None:
    """Every kernel and bias of FedDyn's CNN fills +-1 / sqrt(inputs of a unit)."""
    params = jax.jit(fp.models.wide_lenet(federation((32, 32, 3))).init)(jax.random.key(0))
    fan_in = {"conv1": 75, "conv2": 1600, "dense1": 1600, "dense2": 384, "dense3": 192}
    for name, inputs in fan_in.items():
        for array in params[name].values():
            largest = np.abs(array).max()
            assert 0.75 * inputs**-0.5 < largest <= inputs**-0.5


def plain(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


@pytest.mark.parametrize(("stride", "padding"), [(1, 2), (2, 0)])
def test_a_convolution_is_the_plain_one(stride: int, padding: int) -> None:
    """Of all its forms and derivatives see tests/model/test_convolution.py."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 7, 7, 2)).astype(np.float32)
    kernel = rng.normal(size=(5, 5, 2, 3)).astype(np.float32) / 5

    @jax.jit
    def both(x: jax.Array, kernel: jax.Array) -> Any:
        return layers.convolve(x, kernel, stride, padding), plain(x, kernel, stride, padding)

    ours, theirs = both(x, kernel)
    assert_allclose(ours, theirs, atol=1e-4)


def cubes(product: Callable[..., jax.Array], x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A scalar with third derivatives in both arguments."""
    return jnp.sum(product(x, kernel) ** 3)


def hessian_products(f: Callable[..., jax.Array], point: Any, along: Any) -> Any:
    """Reverse over reverse."""

    def slope(point: Any) -> jax.Array:
        gradient = jax.grad(lambda p: f(*p))(point)
        return optax.tree.vdot(gradient, along)

    return jax.grad(slope)(point)


POOLS = [(8, 2, (0, 0)), (9, 2, (0, 0)), (8, 3, (0, 1)), (9, 3, (1, 1)), (8, 3, (1, 1))]


def window_maximum(x: jax.Array, size: int, padding: tuple[int, int]) -> jax.Array:
    """XLA's own: the gradient goes to the first of equal maxima here as well."""
    return lax.reduce_window(
        x,
        -jnp.inf,
        lax.max,
        (1, size, size, 1),
        (1, 2, 2, 1),
        [(0, 0), padding, padding, (0, 0)],
    )


@pytest.mark.parametrize(("side", "size", "padding"), POOLS)
def test_max_pooling_and_its_gradient(side: int, size: int, padding: tuple[int, int]) -> None:
    """With many equal maxima: numbers from -3 to 3."""
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, size=(2, side, side, 3)).astype(np.float32)
    dy = rng.normal(size=(2, 5, 5, 3)).astype(np.float32)

    @jax.jit
    def pooled(x: jax.Array, dy: jax.Array) -> Any:
        found = []
        for pool in (layers.max_pool, window_maximum):
            y, pull = jax.vjp(partial(pool, size=size, padding=padding), x)
            found.append((y, pull(dy[:, : y.shape[1], : y.shape[2]])[0]))
        return found

    (ours, dx), (y, wanted) = pooled(x, dy)
    assert_allclose(ours, y)
    assert_allclose(dx, wanted, atol=1e-6)


def test_max_pooling_twice_differentiated() -> None:
    """Of the sum of cubes of the maxima, the Hessian is 6 y where a maximum stands, else 0."""
    x = np.random.default_rng(4).normal(size=(2, 6, 6, 2)).astype(np.float32)

    @jax.jit
    def products(x: jax.Array) -> Any:
        pool = partial(layers.max_pool, size=3, padding=(0, 1))
        times = jax.grad(lambda x: jnp.sum(pool(x)))(x)
        ones = (jnp.ones_like(x),)
        return 6 * x * times, hessian_products(lambda x: jnp.sum(pool(x) ** 3), (x,), ones)[0]

    wanted, found = products(x)
    assert_allclose(found, wanted, rtol=1e-5)


def test_local_response_normalisation() -> None:
    """Krizhevsky et al. 2012, section 3.3, channel by channel."""
    x = np.random.default_rng(5).normal(size=(2, 3, 3, 12)) * 50
    wanted = np.empty_like(x)
    for c in range(12):
        near = x[..., max(0, c - 4) : c + 5]
        wanted[..., c] = x[..., c] / (1 + 0.001 / 9 * (near**2).sum(axis=-1)) ** 0.75
    found = jax.jit(layers.local_response_normalisation)(x.astype(np.float32))
    assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("outputs", [3, 100])
def test_a_dense_layer_of_few_or_many_outputs_is_the_plain_product(outputs: int) -> None:
    """Values, gradients with and without one in the input, Hessian products, forward mode."""
    rng = np.random.default_rng(6)
    kernel = (rng.normal(size=(outputs, 31)) / 30).astype(np.float32)
    x = rng.normal(size=(4, 31)).astype(np.float32)
    assert (x.shape[0] * outputs > layers.FEW_NUMBERS) == (outputs == 100)
    layer = layers.Dense(31, outputs, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    graph, state = nnx.split(layer)

    def dense(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return nnx.merge(graph, {**state, "weight": nnx.Param(kernel)})(x)

    def derivatives(product: Callable[..., jax.Array], *point: jax.Array) -> Any:
        f, along = partial(cubes, product), (point[0][::-1], point[1][::-1])
        gradients = [jax.grad(f, argnums)(*point) for argnums in (0, 1, (0, 1))]
        return gradients, hessian_products(f, point, along), jax.jvp(f, point, along)

    both = jax.jit(lambda *point: [derivatives(f, *point) for f in (dense, lambda x, w: x @ w.T)])
    found, wanted = map(jax.tree.leaves, both(x, kernel))
    for a, b in zip(found, wanted, strict=True):
        assert_allclose(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_model_of_convolutions_learns_at_each_point_of_a_sweep() -> None:
    """Two kinds of images told apart, by two learning rates as one batched axis."""
    rng = np.random.default_rng(7)
    y = np.arange(20) % 2
    x = rng.normal(size=(20, 28, 28)).astype(np.float32) * 0.1
    x[y == 1, 8:20, 8:20] += 0.3
    clients = fp.Federation.from_arrays([(x[:10], y[:10]), (x[10:], y[10:])])
    runs = fp.simulate(
        clients,
        fp.models.mnist_cnn(clients),
        fp.fedavg(),
        solver=fp.Solver([0.1, 0.3], 10, epochs=1),
        cohort=fp.Cohort(2),
        rounds=4,
        evaluation=fp.Evaluation(every=4, gradients=False),
    )
    for run in runs:
        assert run.final.train_loss < 0.95 * run.history[0].train_loss


@pytest.mark.slow
def test_a_round_of_a_large_model_holds_few_copies_of_it() -> None:
    """Data, (lanes + 3) models and one mini-batch: state, mean, each lane's model and gradient."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(20, 784)), rng.integers(10, size=20)) for _ in range(12)]
    federation = fp.Federation.from_arrays(clients, classes=10)
    model = fp.models.mlp(federation, hidden=[1000])
    parameters = 784 * 1000 + 1000 + 1000 * 10 + 10
    (run,) = fp.simulate(
        federation,
        model,
        fp.fedprox(mu=0.1),
        solver=fp.Solver(0.01, 10, epochs=1),
        cohort=fp.Cohort(10),
        rounds=1,
        evaluation=fp.Evaluation(gradients=False),
    )
    data = federation.train.x.nbytes + federation.train.y.nbytes
    activations = 4 * 10 * (784 + 3 * 1000 + 3 * 10)
    plan = 100_000
    lanes = 1  # on each device, at this size
    assert run.memory < data + (lanes + 3) * 4 * parameters + activations + plan


class Normalised(nnx.Module):
    """Batch norm whose statistics move, or not, before a linear layer."""

    def __init__(self, rngs: nnx.Rngs, still: tuple[bool, ...] = (True,)) -> None:
        self.norms = nnx.List(
            [nnx.BatchNorm(60, use_running_average=each, rngs=rngs) for each in still]
        )
        self.head = nnx.Linear(60, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for norm in self.norms:
            x = norm(x)
        return self.head(x)


def test_statistics_that_move_are_a_state_and_the_others_constants() -> None:
    built = Normalised(nnx.Rngs(0), (True, False))
    model = fp.Model.from_nnx(lambda _: built)
    assert list(model.shapes.state["norms"]) == [1]
    assert sorted(model.shapes.state["norms"][1]) == ["mean", "var"]
    assert model.train is not None
    model.train(*model.init(jax.random.key(0)), jnp.ones((2, 60)), jax.random.key(1))
    kinds = {type(norm) for norm in built.norms}
    assert kinds == {nnx.BatchNorm}  # the user's module is as it was
    assert not built.norms[1].use_running_average
    np.testing.assert_array_equal(built.norms[1].mean[...], 0)


def test_other_variables_are_a_state() -> None:
    class Counting(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.head, self.count = nnx.Linear(4, 2, rngs=rngs), nnx.Variable(jnp.zeros(()))

        def __call__(self, x: jax.Array) -> jax.Array:
            self.count[...] += len(x)
            return self.head(x)

    model = fp.Model.from_nnx(Counting)
    whole = model.init(jax.random.key(0))
    assert model.train is not None
    _, moved = model.train(*whole, jnp.ones((3, 4)), jax.random.key(1))
    assert (whole.state, moved) == ({"count": 0.0}, {"count": 3.0})


def test_statistics_of_a_pretrained_module_are_constants() -> None:
    pretrained = Normalised(nnx.Rngs(0))
    mean, deviation = np.linspace(-1, 1, 60), np.linspace(1, 2, 60)
    pretrained.norms[0].mean[...] = jnp.asarray(mean, jnp.float32)
    pretrained.norms[0].var[...] = jnp.asarray(deviation**2 - 1e-5, jnp.float32)
    model = fp.Model.from_nnx(lambda _: pretrained)
    params = model.shapes
    assert not any("mean" in str(path) for path, _ in jax.tree.leaves_with_path(params))
    rng = np.random.default_rng(0)
    p = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), params)
    x = rng.normal(size=(5, 60)).astype(np.float32)
    scaled = (x - mean) / deviation * p["norms"][0]["scale"] + p["norms"][0]["bias"]
    np.testing.assert_allclose(
        jax.jit(model.apply)(p, x),
        scaled @ p["head"]["kernel"] + p["head"]["bias"],
        rtol=1e-4,
        atol=1e-4,
    )
    # the module itself is as it was
    np.testing.assert_allclose(pretrained.norms[0].mean[...], mean, rtol=1e-6)
    np.testing.assert_array_equal(
        jax.tree.leaves(model.init(jax.random.key(0)))[0],
        jax.tree.leaves(model.init(jax.random.key(1)))[0],
    )


def outputs_of(count: int) -> fp.Model:
    return fp.Model(lambda _: jnp.ones((2, count)), lambda w, x: x @ w)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 5], "model: 3 outputs for 6 classes; it needs one for each"),
        ([0.0, 1.0, 2.5], "model: labels of type float32 and shape"),
    ],
)
def test_a_model_whose_outputs_do_not_fit_the_labels_is_refused(
    labels: list[float], message: str
) -> None:
    federation = fp.Federation.from_arrays([(np.ones((3, 2)), np.array(labels))])
    with pytest.raises(fp.InputError, match=message):
        one_run(federation, outputs_of(3), fp.fedavg(), fp.Solver(0.1, 3, epochs=1))


@pytest.mark.parametrize(
    ("layer", "needed"),
    [
        (layers.Dense, ["inputs", "outputs", "kernel_init", "rngs"]),
        (layers.Conv, ["inputs", "outputs", "size", "kernel_init", "rngs"]),
    ],
)
def test_layers_show_which_arguments_they_need(layer: type, needed: list[str]) -> None:
    parameters = inspect.signature(layer).parameters.values()
    assert [each.name for each in parameters if each.default is each.empty] == needed
