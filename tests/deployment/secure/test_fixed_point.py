"""Whole numbers: sums never wrap, rounding is right on average, and what is clipped is counted."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.deployment.secure.fixed_point import PIECE, FixedPoint
from fedprox.errors import InputError

ONE = np.ones(1, np.float32)

fixed_points = st.builds(
    FixedPoint,
    st.floats(1e-6, 1e6),
    st.sampled_from([32, 64]),
    st.integers(3, 100),
)


@given(fixed_points)
def test_no_sum_wraps(fixed: FixedPoint) -> None:
    largest = np.array([[1e38, -1e38]], np.float32)
    vector = fixed.quantized([largest], ONE)
    total = np.zeros_like(vector)
    for _ in range(fixed.nodes):
        total += vector
    (values,), clipped = fixed.values(total, [jax.ShapeDtypeStruct((1, 2), np.float32)])
    expected = fixed.nodes * fixed.bound * np.array([[1, -1]])
    assert np.allclose(values, expected, rtol=1e-6)
    assert clipped == 2 * fixed.nodes


@given(fixed_points, st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_a_number_is_off_by_less_than_a_step(fixed: FixedPoint, shares: list[float]) -> None:
    numbers = (np.array([shares]) * fixed.bound).astype(np.float32)
    vector = fixed.quantized([numbers], ONE)
    whole = vector.view(fixed.signed)[:-1].astype(float)
    limited = np.clip(numbers.astype(float), -fixed.bound, fixed.bound)
    # 64 bits are more than those of a double
    rounding = 2.0**-52 * np.abs(limited) / fixed.step
    assert (np.abs(whole - limited / fixed.step) <= 1 + rounding).all()


def test_rounding_is_right_on_average() -> None:
    fixed, count = FixedPoint(1.0, 32, 10), 3 * PIECE
    for share in (0.25, -0.25, 0.9):
        numbers = np.full((1, count), share * fixed.step, np.float64)
        whole = fixed.quantized([numbers], ONE).view(np.int32)[:-1]
        assert set(np.unique(whole)) <= {np.floor(share), np.ceil(share)}
        assert abs(whole.mean() - share) < 5 * 0.5 / np.sqrt(count)


def test_a_node_is_bounded_by_its_weight() -> None:
    fixed = FixedPoint(2.0, 32, 5)
    message = np.array([[0.5, 0.6], [0.5, 0.6]], np.float32)
    vector = fixed.quantized([message], np.array([0.25, 1.0], np.float32))
    (values,), clipped = fixed.values(vector, [message])
    assert np.allclose(values, [[0.5, 0.5], [0.5, 0.6]])
    assert clipped == 1


def test_leaves_keep_their_shapes_and_order() -> None:
    fixed = FixedPoint(100.0, 64, 3)
    tree = {"a": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "b": np.full(1, 7, np.float32)}
    values, clipped = fixed.values(fixed.quantized(tree, ONE), tree)
    assert clipped == 0
    assert jax.tree.map(lambda a: a.shape, values) == {"a": (1, 2, 3), "b": (1,)}
    assert np.allclose(values["a"], tree["a"])
    assert values["b"] == 7


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_are_finite(number: float) -> None:
    with pytest.raises(InputError, match="its sum is not finite"):
        FixedPoint(1.0, 32, 3).quantized([np.array([[number]], np.float32)], ONE)
