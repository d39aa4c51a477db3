"""No row of finite numbers exceeds its clipping bound: the sum is searched for the worst row."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.parts.privacy.examples import clipped_sum
from fedprox.parts.privacy.numerics import norm_bound
from fedprox.parts.privacy.setting import clip_to
from tests.variants import mostly_slow

Vector = np.ndarray[Any, Any]
Loss = Callable[..., jax.Array]
CLIPS = [1e-4, 1e-2, 1.0, 10.0]
ROWS, GENERATIONS = 16, 6


class Case(NamedTuple):
    """A loss of one row, (parameters, features, label) -> a scalar, and the rows' shape."""

    loss: Loss
    params: Any
    shape: tuple[int, ...]


def drawn(*shape: int, seed: int = 0) -> jax.Array:
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(rng.normal(size=shape) / shape[0] ** 0.5, jnp.float32)


def entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Of soft logits, so that no row has a gradient of zero."""
    return optax.softmax_cross_entropy_with_integer_labels(logits / (1 + jnp.abs(logits).max()), y)


def linear(positions: int, width: int, hidden: int) -> Case:
    params = {"a": drawn(width, hidden), "b": drawn(hidden, 2)}

    def loss(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return entropy((x @ w["a"]).mean(-2) @ w["b"], y)

    return Case(loss, params, (positions, width))


def halves(positions: int, width: int, hidden: int) -> Case:
    """As `linear`, with factors of 16 bits."""
    case = linear(positions, width, hidden)

    def loss(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        x, a = (each.astype(jnp.bfloat16) for each in (x, w["a"]))
        first = jnp.matmul(x, a, preferred_element_type=jnp.float32)
        return entropy(first.mean(-2) @ w["b"], y)

    return case._replace(loss=loss)


def of_model(model: fp.Model, shape: tuple[int, ...]) -> Case:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return entropy(model.apply(params, x[None])[0], y)

    return Case(loss, model.init(jax.random.key(1)), shape)


def mixed() -> Case:
    base = linear(8, 32, 32).params
    model = fp.Model(lambda _: base, lambda w, x: (x @ w["a"]).mean(-2) @ w["b"])
    return of_model(fp.mixed_precision(model), (8, 32))


def adapters() -> Case:
    base = {"a": drawn(64, 64), "b": drawn(64, 2)}
    whole = fp.Model(lambda _: base, lambda w, x: jnp.tanh(x @ w["a"] / 100).mean(-2) @ w["b"])
    case = of_model(fp.lora(whole, base, rank=2, targets=["a"], trained=["b"]), (6, 64))
    return case._replace(params={name: a + 0.01 for name, a in case.params.items()})


def convolution() -> Case:
    params = {"kernel": drawn(3, 3, 2, 24) / 3, "big": drawn(6, 6, 24, 48), "b": drawn(48, 2)}

    def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)

    def loss(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        hidden = conv(conv(x[None], w["kernel"]), w["big"])
        return entropy(hidden.mean((0, 1, 2)) @ w["b"], y)

    return Case(loss, params, (10, 10, 2))


def embedding() -> Case:
    """Words by their number, and by a vector of ones and zeros, which makes the table a factor."""
    params = {"table": drawn(32, 16), "again": drawn(32, 32), "b": drawn(48, 2)}

    def loss(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        words = jnp.mod(jnp.abs(x[:, 0]), 32).astype(jnp.int32)
        looked_up = x[:, 1:2] * w["table"][words]
        multiplied = x[:, 2:3] * jax.nn.one_hot(words, 32) @ w["again"]
        return entropy(jnp.concatenate([looked_up, multiplied], 1).mean(0) @ w["b"], y)

    return Case(loss, params, (8, 3))


def sequence() -> Case:
    """A matrix used at every position and twice, with a normalization that subtracts a mean."""
    params = {
        "first": drawn(12, 48),
        "again": drawn(48, 48),
        "scale": jnp.ones(48),
        "b": drawn(48, 2),
    }

    def loss(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        hidden = x @ w["first"]
        hidden = hidden - hidden.mean(-1, keepdims=True)
        hidden = hidden / (1e-3 + jnp.abs(hidden).mean()) * w["scale"]
        return entropy(((hidden @ w["again"]) @ w["again"]).mean(0) @ w["b"], y)

    return Case(loss, params, (8, 12))


CASES: dict[str, Callable[[], Case]] = {
    "linear": lambda: linear(8, 128, 128),
    "one position": lambda: linear(1, 64, 64),
    "wide": lambda: linear(4, 1000, 300),
    "narrow": lambda: linear(16, 4, 3),
    "halves": lambda: halves(8, 64, 64),
    "mixed": mixed,
    "adapters": adapters,
    "convolution": convolution,
    "embedding": embedding,
    "sequence": sequence,
}
MANY = ("narrow", "wide", "halves", "convolution", "embedding")
"""Kinds of factors, of which some make up for others."""


def rows_that_cancel(rng: np.random.Generator, shape: tuple[int, ...]) -> Vector:
    """Rows of features of 1e-3 to 1e6, most of which cancel over their first axis."""
    x = np.zeros((ROWS, *shape))
    for row in x:
        size = 10 ** rng.uniform(-3, 6)
        rest = 10 ** rng.uniform(-8, 0)
        signs = np.resize([1.0, -1.0], len(row)).reshape(-1, *[1] * (row.ndim - 1))
        if rng.random() < 0.3:
            signs = rng.permutation(signs)
        if rng.random() < 0.3:  # cancels among positions of different sizes
            scales = 10 ** rng.uniform(-3, 0, size=len(row) // 2 + 1).repeat(2)[: len(row)]
            signs = signs * scales.reshape(signs.shape)
        row[:] = size * (signs * rng.normal(size=shape[1:]) + rest * rng.normal(size=shape))
        if rng.random() < 0.2:
            row[:] = np.round(row)
    return x.astype(np.float32)


def moved(sums: Any) -> Vector:
    """The norm of each row's sum, in double precision."""
    squares = [
        np.sum(np.asarray(a, float).reshape(ROWS, -1) ** 2, 1) for a in jax.tree.leaves(sums)
    ]
    return np.sqrt(np.sum(squares, axis=0))


Sums = Callable[..., Any]


@functools.cache
def of_each_row(name: str) -> tuple[Case, Sums]:
    """A case, and (clip, rows, labels) -> what each row adds to the sum, alone."""
    case = CASES[name]()

    def sums(clip: Any, x: Vector, y: Vector) -> Any:
        total = clipped_sum(case.loss, clip, case.params, x, y)
        return jax.lax.map(total, jnp.eye(ROWS, dtype=bool))

    return case, jax.jit(sums)


@pytest.mark.parametrize("name", mostly_slow(CASES, "narrow", "sequence"))
def test_no_row_adds_more_than_its_bound(name: str) -> None:
    rng, worst = np.random.default_rng(7), 0.0
    case, sums = of_each_row(name)
    for clip in CLIPS:
        x, found = rows_that_cancel(rng, case.shape), np.zeros(ROWS)
        y = rng.integers(2, size=ROWS)
        for _ in range(GENERATIONS):
            # the worst rows so far, changed a little, beside new ones
            best = x[np.argsort(-found)[: ROWS // 2]]
            change = 10 ** rng.uniform(-8, -1, size=(len(best), *[1] * len(case.shape)))
            near = best * (1 + change * rng.normal(size=best.shape))
            x = np.concatenate([near, rows_that_cancel(rng, case.shape)])[:ROWS].astype(np.float32)
            each = sums(clip, x, y)
            assert all(np.isfinite(a).all() for a in jax.tree.leaves(each))
            found = moved(each) / clip
            worst = max(worst, found.max())
    assert 0.9 < worst <= 1 + 1e-6


@pytest.mark.parametrize("name", mostly_slow(MANY, "narrow"))
def test_no_row_moves_a_sum_of_many_by_more(name: str) -> None:
    case, rng = CASES[name](), np.random.default_rng(1)
    without = jnp.concatenate([jnp.ones((1, ROWS), bool), ~jnp.eye(ROWS, dtype=bool)])

    @jax.jit
    def sums(clip: Any, x: Vector, y: Vector) -> Any:
        return jax.lax.map(clipped_sum(case.loss, clip, case.params, x, y), without)

    for clip in CLIPS:
        x, y = rows_that_cancel(rng, case.shape), rng.integers(2, size=ROWS)
        found = [np.asarray(a, float) for a in jax.tree.leaves(sums(clip, x, y))]
        assert moved([a[:1] - a[1:] for a in found]).max() <= clip * (1 + 1e-6)


@pytest.mark.parametrize("name", mostly_slow(CASES, "sequence"))
def test_usual_rows_lose_a_thousandth_at_most(name: str) -> None:
    rng, (case, sums) = np.random.default_rng(3), of_each_row(name)
    x = rng.normal(size=(ROWS, *case.shape)).astype(np.float32)
    clip = 1e-4
    each = moved(sums(clip, x, rng.integers(2, size=ROWS)))
    assert each.min() > clip * (1 - 1e-3)


@jax.jit
def products(size: jax.Array, second: jax.Array, x: jax.Array, g: jax.Array) -> Any:
    """What each row adds to the sum of clipped gradients that are products of two factors."""

    def loss(w: Any, x: jax.Array, g: jax.Array) -> jax.Array:
        return jnp.sum(g * (x @ w["a"]))

    total = clipped_sum(loss, 1.0, {"a": jnp.zeros((16, 16))}, size * x, second * g)
    return jax.lax.map(total, jnp.eye(ROWS, dtype=bool))


@pytest.mark.parametrize("size", [1e-25, 1e-19, 1e15, 1e19, 1e30])
def test_squares_beyond_single_precision_exceed_no_bound(size: float) -> None:
    """Also beside a second factor that makes up for it."""
    rng = np.random.default_rng(0)
    x, g = (rng.normal(size=(ROWS, 4, 16)).astype(np.float32) for _ in range(2))
    for second in (1.0, 1 / size):
        found = moved(products(np.float32(size), np.float32(second), x, g))
        assert np.isfinite(found).all()
        assert found.max() <= 1 + 1e-6


# --- messages


CLIPPED, BOUND = jax.jit(clip_to), jax.jit(norm_bound)


@pytest.mark.parametrize("value", [1.1, 0.3, 1e-3, 1e6])
def test_a_message_of_millions_of_equal_numbers_is_within_its_bound(value: float) -> None:
    """One sum of so many equal squares loses per cents."""
    message = {"a": np.full((3_000, 1_000), value, np.float32), "b": np.full(7, value, np.float32)}
    for clip in (1e-4, 1.0):
        clipped, before = CLIPPED(clip, message)
        exact = np.sqrt(sum(np.sum(np.asarray(a, float) ** 2) for a in message.values()))
        after = np.sqrt(sum(np.sum(np.asarray(a, float) ** 2) for a in clipped.values()))
        assert exact <= before <= exact * (1 + 1e-4)
        assert clip * (1 - 1e-4) < after <= clip * (1 + 1e-6)


def test_the_bound_of_a_norm_is_above_it() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        tree = [
            (10 ** rng.uniform(-6, 6) * rng.normal(size=size)).astype(np.float32)
            for size in (1, 7, 300)
        ]
        exact = np.sqrt(sum(np.sum(a.astype(float) ** 2) for a in tree))
        assert exact <= float(BOUND(tree)) <= exact * (1 + 1e-4)
