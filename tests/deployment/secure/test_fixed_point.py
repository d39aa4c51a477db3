"""Whole numbers: sums never wrap, rounding is right on average, and what is clipped is counted."""

import math
import re
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from fedprox.algorithms.base import ROUNDING
from fedprox.deployment.fixed_point import (
    MEASURES_BOUND,
    ROUNDED_PIECE,
    FixedPoint,
    fixed_point_of,
)
from fedprox.errors import InputError

ONE = np.ones(1, np.float32)

fixed_points = st.builds(
    FixedPoint,
    st.floats(1e-6, 1e6),
    st.sampled_from([32, 64]),
    st.integers(3, 100),
    st.just(0.0),
    st.just(0.0),
    st.just(math.inf),
)


@given(fixed_points)
def test_no_sum_wraps(fixed: FixedPoint) -> None:
    largest = np.array([[1e38, -1e38]], np.float32)
    vector = fixed.quantized([largest], ONE)
    total = np.zeros_like(vector)
    for _ in range(fixed.nodes):
        total += vector
    like = [jax.ShapeDtypeStruct((1, 2), np.float32)]
    fixed.check(total, like, fixed.nodes * ONE, fixed.nodes)
    (values,), clipped = fixed.values(total, like)
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


def test_measures_of_a_hundred_nodes_have_the_steps_of_floats() -> None:
    assert FixedPoint(MEASURES_BOUND, 64, nodes=127).step == 2.0**-24


def test_rounding_is_right_on_average() -> None:
    fixed, count = FixedPoint(1.0, 32, 10), 3 * ROUNDED_PIECE
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


@given(fixed_points, st.integers(0, 1), st.sampled_from([1, -1]), st.floats(0, 1))
def test_a_sum_is_bounded_by_its_weights(
    fixed: FixedPoint, point: int, sign: int, share: float
) -> None:
    like = [jax.ShapeDtypeStruct((2, 3), np.float32)]
    counted = np.array([0.5, 1.0], np.float32)
    most = counted[point] * 2**fixed.places
    for factor, fits in ((share, True), (1 + 2 * ROUNDING, False)):
        total = np.zeros(7, fixed.word)
        total[3 * point + 1] = np.array(sign * int(factor * most), fixed.signed).view(fixed.word)
        if fits:
            fixed.check(total, like, counted, 3)
            continue
        with pytest.raises(InputError, match=r"it has numbers of .*, and they are at most"):
            fixed.check(total, like, counted, 3)


@given(st.integers(3, 20), st.sampled_from([1, -1]), st.integers(0, 10**6))
def test_a_node_that_lies_has_the_room_of_all(nodes: int, sign: int, seed: int) -> None:
    fixed, share = FixedPoint(2.0, 32, nodes), np.float32(1 / nodes) * ONE
    like = [jax.ShapeDtypeStruct((1, 4), np.float32)]
    honest = np.random.default_rng(seed).normal(0, 0.5, (nodes - 1, 1, 4)) * share
    others = sum((fixed.quantized([each], share) for each in honest), np.zeros(5, np.uint32))
    most = sign * math.floor(2.0 * (1 + ROUNDING) / fixed.step + nodes)
    lie = np.array([most] * 4 + [4 * nodes], np.int32).view(np.uint32) - others
    fixed.check(others + lie, like, ONE, nodes)
    (mean,), _ = fixed.values(others + lie, like)
    assert np.allclose(mean, sign * 2.0 * (1 + ROUNDING), rtol=1e-6)
    lie[2:3] += np.array([sign], np.int32).view(np.uint32)
    with pytest.raises(InputError, match="it has numbers of 2"):
        fixed.check(others + lie, like, ONE, nodes)


def within(norm: float, nodes: int = 5) -> FixedPoint:
    """Whole numbers of messages with a norm."""
    return FixedPoint(norm, 32, nodes, norm=norm)


@given(st.floats(0.01, 100), st.floats(0, 3), st.floats(0.1, 1), st.integers(0, 10**6))
def test_a_message_is_scaled_to_the_norm(
    norm: float, length: float, weight: float, seed: int
) -> None:
    fixed, counted = within(norm), np.array([weight, 1.0], np.float32)
    numbers = np.random.default_rng(seed).normal(size=(2, 30))
    long = length * norm * counted.astype(float)
    numbers *= (long / np.linalg.norm(numbers, axis=1))[:, None]
    message = [numbers[:, :10], numbers[:, 10:].reshape(2, 4, 5)]
    vector = fixed.quantized(message, counted)
    (first, second), scaled = fixed.values(vector, message)
    values = np.concatenate([first, second.reshape(2, 20)], axis=1)
    expected = numbers * min(1.0, 1 / length if length else 1.0)
    assert (np.abs(values - expected) <= 1.01 * fixed.step).all()
    if abs(length - 1) > 1e-6:
        assert scaled == 2 * (length > 1)
    fixed.check(vector, message, counted, 1)


@given(st.integers(3, 20), st.integers(0, 10**6), st.booleans())
def test_a_sum_is_as_long_as_its_messages_can_make_it(nodes: int, seed: int, lies: bool) -> None:
    fixed, share = within(3.0, nodes), np.float32(1 / nodes) * ONE
    message = np.random.default_rng(seed).normal(size=(1, 50))  # of all nodes, so the longest sum
    vectors = [fixed.quantized([message], share) for _ in range(nodes)]
    total = sum(vectors[1:], vectors[0])
    like = [jax.ShapeDtypeStruct((1, 50), np.float32)]
    if not lies:
        fixed.check(total, like, ONE, nodes)
        assert fixed.values(total, like)[1] == nodes
        return
    longer = total.view(np.int32)[:-1] * (1 + 2 * ROUNDING + 2 * nodes * fixed.step)
    total[:-1] = longer.astype(np.int32).view(np.uint32)
    with pytest.raises(InputError, match=r"its norm is 3\.\d+, and at most 3\.\d+"):
        fixed.check(total, like, ONE, nodes)


def test_no_sweep_point_has_the_room_of_another() -> None:
    fixed, counted = within(1.0), np.array([1.0, 0.5], np.float32)
    like = [jax.ShapeDtypeStruct((2, 1), np.float32), jax.ShapeDtypeStruct((2, 1), np.float32)]
    for place, fits in ((0, True), (1, False), (2, True), (3, False)):
        total = np.zeros(5, np.uint32)
        total[[place, place ^ 2]] = [round(0.6 / fixed.step), round(0.3 / fixed.step)]
        if fits:
            fixed.check(total, like, counted, 5)
            continue
        with pytest.raises(InputError, match=r"it has numbers of 0.6|its norm is"):
            fixed.check(total, like, counted, 5)


@pytest.mark.parametrize(("scaled", "fits"), [(0, True), (6, True), (7, False), (-1, False)])
def test_scaled_messages_are_messages_of_the_nodes(scaled: int, fits: bool) -> None:
    total = np.zeros(5, np.uint32)
    total[-1] = np.array(scaled, np.int32).view(np.uint32)
    like, counted = [jax.ShapeDtypeStruct((2, 2), np.float32)], np.ones(2, np.float32)
    if fits:
        within(1.0).check(total, like, counted, 3)
        return
    with pytest.raises(InputError, match=f"it has {scaled} scaled messages, and at most 6 may be"):
        within(1.0).check(total, like, counted, 3)


@pytest.mark.parametrize("z", [0.1, 1.5])
def test_a_sum_with_noise_is_as_long_as_clipped_messages_and_noise(z: float) -> None:
    """The nodes' messages are as long as may be; a lie is within the bound of each number."""
    size, nodes = 10_000, 5
    fixed = fixed_point_of(setup_of(64, nodes, 10, z, 4), "train")
    message = np.full((1, size), 2.0 / np.sqrt(size) / nodes, np.float32)
    vectors = [fixed.quantized([message], np.float32(1 / nodes) * ONE) for _ in range(nodes)]
    total = sum(vectors[1:], vectors[0])
    fixed.check(total, [message], ONE, nodes)
    total[:-1] += np.uint64(round(1.0 / fixed.step))
    norm = float(np.linalg.norm(total[:-1].view(np.int64).astype(float)) * fixed.step)
    assert 100 <= norm < 110
    with pytest.raises(InputError, match=f"its norm is {re.escape(f'{norm:g}')}, and at most"):
        fixed.check(total, [message], ONE, nodes)


@pytest.mark.parametrize(("clipped", "fits"), [(0, True), (18, True), (19, False), (-1, False)])
def test_clipped_numbers_are_numbers_of_the_nodes(clipped: int, fits: bool) -> None:
    fixed, total = FixedPoint(1.0, 32, 3), np.zeros(7, np.uint32)
    total[-1] = np.array(clipped, np.int32).view(np.uint32)
    like = [jax.ShapeDtypeStruct((1, 6), np.float32)]
    if fits:
        fixed.check(total, like, ONE, 3)
        return
    with pytest.raises(InputError, match=f"it has {clipped} clipped numbers, and at most 18 may"):
        fixed.check(total, like, ONE, 3)


def test_no_number_is_clipped_beside_noise() -> None:
    fixed = fixed_point_of(setup_of(32, 5, 500, 1.0, 1), "train")
    total = np.zeros(7, np.uint32)
    total[-1] = 1
    with pytest.raises(InputError, match="it has 1 clipped numbers, and at most 0 may be"):
        fixed.check(total, [jax.ShapeDtypeStruct((1, 6), np.float32)], ONE, 3)


def test_leaves_keep_their_shapes_and_order() -> None:
    fixed = FixedPoint(100.0, 64, 3)
    tree = {"a": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "b": np.full(1, 7, np.float32)}
    values, clipped = fixed.values(fixed.quantized(tree, ONE), tree)
    assert clipped == 0
    assert jax.tree.map(lambda a: a.shape, values) == {"a": (1, 2, 3), "b": (1,)}
    assert np.allclose(values["a"], tree["a"])
    assert values["b"] == 7


def setup_of(bits: int, nodes: int, clients: int, z: float, honest: int) -> Any:
    """What a private run with secure sums declares, clipped to 2."""
    securing = SimpleNamespace(
        bound=None, norm=None, bits=bits, honest=honest, nodes=["node"] * nodes
    )
    hiding = SimpleNamespace(clip=2.0, mechanism=SimpleNamespace(noise_multiplier=z))
    return SimpleNamespace(secure=securing, privacy=hiding, clients_per_round=clients)


@pytest.mark.parametrize("bits", [32, 64])
def test_nodes_add_their_part_of_the_noise(bits: int) -> None:
    z, clients, honest, size = 1.5, 10, 4, 20_000
    fixed = fixed_point_of(setup_of(bits, 5, clients, z, honest), "train")
    message = np.random.default_rng(1).normal(0, 1e-3, (1, size)).astype(np.float32)
    added = []
    for _ in range(honest):
        vector = fixed.quantized([message], ONE)
        fixed.check(vector, [message], ONE, 1)
        (values,), clipped = fixed.values(vector, [message])
        assert clipped == 0
        added.append((values - message).astype(np.float64).ravel())
    expected = 1.01 * z * 2.0 / clients
    for one in added:
        assert abs(one.std() / (expected / np.sqrt(honest)) - 1) < 5 / np.sqrt(2 * size)
    together = sum(added[1:], added[0])
    assert abs(together.std() / expected - 1) < 5 / np.sqrt(2 * size)
    assert abs(np.corrcoef(added)[np.triu_indices(honest, 1)]).max() < 5 / np.sqrt(size)


@given(st.integers(2, 5), st.floats(10, 40))
def test_a_sum_of_rounded_noise_is_rounded_noise_but_for_the_gap(
    nodes: int, deviation: float
) -> None:
    together = deviation * np.sqrt(nodes)
    reach = int(11 * together)
    whole = np.arange(-reach, reach + 1)

    def rounded(spread: float) -> NDArray[np.float64]:
        """The probabilities of a rounded normal number, from the tail on for precision."""
        near = np.abs(whole) - 0.5
        return np.asarray(ndtr(-near / spread) - ndtr(-(near + 1) / spread))

    one, summed = rounded(deviation), rounded(deviation)
    for _ in range(nodes - 1):
        summed = np.convolve(summed, one, "same")
    known = np.abs(whole) <= 10 * together
    ratio = np.abs(np.log(summed[known] / rounded(together)[known]))
    assert 0 < ratio.max() <= 5 / deviation**2


def test_rounding_that_would_be_seen_is_refused() -> None:
    fixed = fixed_point_of(setup_of(32, 5, 500, 1.0, 1), "train")
    fixed.require_hidden(100)
    line = r"bits = 32: with \[privacy\] and 1,000,000 numbers rounding would be seen .* use 64"
    with pytest.raises(InputError, match=line):
        fixed.require_hidden(1_000_000)
    fixed_point_of(setup_of(64, 5, 500, 1.0, 1), "train").require_hidden(10**8)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_are_finite(number: float) -> None:
    with pytest.raises(InputError, match="its sum is not finite"):
        FixedPoint(1.0, 32, 3).quantized([np.array([[number]], np.float32)], ONE)
