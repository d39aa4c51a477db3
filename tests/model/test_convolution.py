"""Convolutions in the formulation that is fast in loops, against XLA's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from numpy.testing import assert_allclose

from fedprox.model.convolution import EXAMPLES_AT_A_TIME, Convolution, fast, fast_convolution
from tests.variants import mostly_slow

Product = Callable[[jax.Array, jax.Array], jax.Array]
LAYOUTS = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}

FORMS: dict[str, dict[str, Any]] = {
    "one axis": {"lengths": (21,)},
    "one axis, few windows": {"lengths": (9,), "dilation": (2,), "padding": [(1, 2)]},
    "one axis, all at once": {
        "lengths": (30,),
        "strides": (2,),
        "dilation": (3,),
        "groups": 2,
        "padding": [(4, 1)],
    },
    "two axes": {"lengths": (7, 8), "strides": (2, 1)},
    "few windows": {"lengths": (3, 2), "padding": [(1, 0), (1, 1)]},
    "few windows for one product": {"lengths": (5, 3), "padding": [(1, 0), (2, 0)]},
    "valid": {"lengths": (9, 8), "padding": [(0, 0), (0, 0)]},
    "values left out": {"lengths": (9, 10), "strides": (3, 2), "padding": [(-1, 0), (-2, 0)]},
    "dilation": {"lengths": (9, 8), "dilation": (2, 1), "padding": [(2, 3), (1, 0)]},
    "transposed": {"lengths": (4, 3), "spread": (2, 3), "padding": [(2, 1), (2, 2)]},
    "transposed, few windows": {"lengths": (3, 2), "spread": (2, 2), "padding": [(1, 0), (1, 0)]},
    "groups": {"lengths": (6, 5), "groups": 3, "padding": [(1, 1), (1, 1)]},
    "each channel": {"lengths": (6, 5), "groups": 6, "padding": [(1, 1), (1, 1)]},
    "each channel, transposed": {
        "lengths": (4, 5),
        "groups": 6,
        "spread": (2, 1),
        "strides": (1, 2),
        "padding": [(1, 1), (1, 0)],
    },
    "many examples": {
        "lengths": (6, 5),
        "rows": 2 * EXAMPLES_AT_A_TIME + 3,
        "padding": [(1, 1), (1, 1)],
    },
    "three axes": {"lengths": (4, 3, 5), "padding": [(1, 1)] * 3},
}


def form(
    *,
    lengths: tuple[int, ...],
    rows: int = 3,
    groups: int = 1,
    padding: Any = None,
    strides: Any = None,
    spread: Any = None,
    dilation: Any = None,
) -> tuple[Product, Product, Any, Any]:
    """XLA's convolution and ours, x and a kernel."""
    axes = len(lengths)
    rng = np.random.default_rng(0)
    x, kernel = (
        rng.normal(size=size).astype(np.float32)
        for size in ((rows, *lengths, 6), (*(3, 2, 2)[:axes], 6 // groups, 12))
    )
    strides, padding = strides or (1,) * axes, padding or [(1, 1)] * axes

    def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            kernel,
            strides,
            padding,
            spread,
            dilation,
            LAYOUTS[axes],
            feature_group_count=groups,
        )

    def ours(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return fast_convolution(
            x, kernel, strides, padding, spread=spread, dilation=dilation, groups=groups
        )

    return plain, ours, x, kernel


def first(product: Product, x: jax.Array, kernel: jax.Array) -> Any:
    """y, and the gradient of the sum of its cubes: all three products."""
    gradient = jax.grad(lambda *point: jnp.sum(product(*point) ** 3), (0, 1))(x, kernel)
    return product(x, kernel), gradient


def second(product: Product, x: jax.Array, kernel: jax.Array) -> Any:
    """Products with the Hessian of the sum of cubes, by two ways."""
    along = x[::-1], kernel[::-1]

    def gradient(*point: jax.Array) -> Any:
        return first(product, *point)[1]

    def slope(*point: jax.Array) -> jax.Array:
        return jnp.asarray(optax.tree.vdot(gradient(*point), along))

    return jax.jvp(gradient, (x, kernel), along)[1], jax.grad(slope, (0, 1))(x, kernel)


def assert_equal(found: Any, wanted: Any) -> None:
    """Equal up to rounding."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(np.abs(b).max()))


def compare(derived: Callable[..., Any], plain: Product, ours: Product, *point: Any) -> None:
    """Compare what is derived of XLA's convolution and of ours, by one program."""
    assert_equal(*jax.jit(lambda *point: [derived(f, *point) for f in (ours, plain)])(*point))


@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients(name: str) -> None:
    compare(first, *form(**FORMS[name]))


@pytest.mark.parametrize("name", mostly_slow(["two axes", "groups"], "two axes"))
def test_derivatives_of_second_order(name: str) -> None:
    compare(second, *form(**FORMS[name]))


@pytest.mark.parametrize("name", mostly_slow(["two axes", "groups", "each channel"], "groups"))
def test_several_pairs_at_once(name: str) -> None:
    plain, ours, x, kernel = form(**FORMS[name])
    xs, kernels = np.stack([x, 1 - x]), np.stack([kernel, 2 * kernel])

    def all_of(product: Product, xs: jax.Array, kernels: jax.Array) -> Any:
        def gradient(x: jax.Array, kernel: jax.Array) -> Any:
            return first(product, x, kernel)[1]

        def of_sum(x: jax.Array) -> jax.Array:
            """A kernel's gradient from one dy for all x."""
            return jax.grad(lambda kernel: jnp.sum(product(x, kernel)))(kernels[0])

        return jax.vmap(of_sum)(xs), [
            jax.vmap(gradient, axes)(*arguments)
            for axes, arguments in (
                ((0, 0), (xs, kernels)),
                ((0, None), (xs, kernels[0])),
                ((None, 0), (xs[0], kernels)),
                ((0, 0), (xs[:1], kernels[:1])),
                ((1, 3), (jnp.moveaxis(xs, 0, 1), jnp.moveaxis(kernels, 0, 3))),
            )
        ]

    compare(all_of, plain, ours, xs, kernels)


numbers = st.integers(1, 3)
axes = st.tuples(st.integers(1, 9), numbers, numbers, st.tuples(numbers, numbers), numbers, numbers)


@settings(max_examples=40)
@given(st.lists(axes, min_size=1, max_size=3), numbers, numbers, st.sampled_from([1, 2]))
def test_shapes_of_products_are_those_of_the_plain_ones(
    chosen: list[Any], rows: int, channels: int, groups: int
) -> None:
    lengths, sizes, strides, padding, spread, dilation = zip(*chosen, strict=True)
    x = jax.ShapeDtypeStruct((rows, *lengths, groups * channels), jnp.float32)
    kernel = jax.ShapeDtypeStruct((*sizes, channels, 2 * groups), jnp.float32)

    def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
        layout = LAYOUTS[len(chosen)]
        return lax.conv_general_dilated(
            x, kernel, strides, padding, spread, dilation, layout, feature_group_count=groups
        )

    def ours(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return fast_convolution(
            x, kernel, strides, padding, spread=spread, dilation=dilation, groups=groups
        )

    def products(product: Product, x: jax.Array, kernel: jax.Array) -> Any:
        y, pull = jax.vjp(product, x, kernel)
        return y, pull(y)

    wanted = jax.eval_shape(lambda *point: plain(*point), x, kernel)
    if 0 not in wanted.shape:
        shape = Convolution(lengths, sizes, strides, padding, spread, dilation, groups)
        assert shape.windows == wanted.shape[1:-1]
        found = jax.eval_shape(lambda *point: products(ours, *point), x, kernel)
        assert found == jax.eval_shape(lambda *point: products(plain, *point), x, kernel)


@pytest.mark.parametrize("name", ["few windows", "each channel"])
def test_half_precision_is_no_less_exact(name: str) -> None:
    plain, ours, *point = form(**FORMS[name])
    halves = [a.astype(jnp.bfloat16) for a in point]

    wanted = jax.jit(plain)(*(a.astype(jnp.float32) for a in halves))
    errors = [
        np.abs(np.asarray(jax.jit(f)(*halves), np.float32) - wanted).max() for f in (ours, plain)
    ]
    assert errors[0] <= 1.5 * errors[1]


def test_outside_of_compiled_programs() -> None:
    plain, ours, x, kernel = form(lengths=(4, 3))
    assert_equal(ours(x, kernel), plain(x, kernel))
    assert_equal(
        jax.grad(lambda x: jnp.sum(ours(x, kernel) ** 2))(x),
        jax.grad(lambda x: jnp.sum(plain(x, kernel) ** 2))(x),
    )


def test_other_backends_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours, *point = form(lengths=(5, 5))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    wanted = jax.jit(plain).lower(*point).as_text()
    assert jax.jit(ours).lower(*point).as_text().replace("ours", "plain") == wanted
    assert jax.jit(fast(plain)).lower(*point).as_text() == wanted
