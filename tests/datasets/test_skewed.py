"""Feature skew by client: closed forms, and what it depends on."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedprox as fp
from fedprox.datasets.skewed import Skew, contrasted, noisy, turned
from fedprox.experiment import load_data
from fedprox.streams import Purpose, generator

Array = NDArray[Any]
KINDS: tuple[Skew, ...] = ("noise", "rotation", "contrast")
SIZES = (3, 1, 6, 2)


def images(rows: int, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(size=(rows, *shape)).astype(np.float32)


def federation(*shape: int, sizes: tuple[int, ...] = SIZES) -> fp.Federation:
    """Clients with random images; the second has no test images."""
    clients = [(images(n, *shape, seed=k), np.arange(n) % 2) for k, n in enumerate(sizes)]
    tests: list[Any] = [
        (images(2, *shape, seed=9 + k), [0, 1]) if k != 1 else ([], []) for k in range(len(sizes))
    ]
    return fp.Federation.from_arrays(clients, tests, classes=2)


def drawn(seed: int, k: int) -> float:
    return float(generator(seed, Purpose.SKEW, 0, k).random())


@given(st.integers(2, 9), st.sampled_from([0, 1, 2, 3]), st.sampled_from([1, 3]))
def test_quarters_of_a_turn_are_exact(n: int, quarters: int, channels: int) -> None:
    x = images(2, n, n, channels, seed=n)
    found = turned(x, 180, (quarters / 2 + 1) / 2 if quarters < 3 else 0.25)
    np.testing.assert_array_equal(found, np.rot90(x, quarters, axes=(1, 2)))


@given(st.floats(-180, 180))
def test_a_turn_keeps_the_centre_the_range_and_what_is_round(degrees: float) -> None:
    x = images(2, 7, 7, 1)
    found = turned(x, 180, degrees / 360 + 0.5)
    np.testing.assert_allclose(found[:, 3, 3], x[:, 3, 3], rtol=1e-6)
    assert found.min() >= x.min() - 1e-6
    assert found.max() <= x.max() + 1e-6
    plane = (np.indices((41, 41)) - 20.0).astype(np.float32)[None].transpose(0, 2, 3, 1)
    across = np.hypot(*(np.indices((41, 41)) - 20)) < 19
    angle = math.radians(degrees)
    # linear interpolation is exact for a plane
    there = turned(plane, 180, degrees / 360 + 0.5)[0][across]
    rows, columns = plane[0][across].T.astype(float)
    expected = np.stack(
        [
            math.cos(angle) * rows + math.sin(angle) * columns,
            math.cos(angle) * columns - math.sin(angle) * rows,
        ],
        axis=-1,
    )
    np.testing.assert_allclose(there, expected, atol=1e-4)


@given(st.floats(0, 1), st.floats(0, 1))
def test_contrast_keeps_the_mean_and_multiplies_the_deviation(strength: float, u: float) -> None:
    x = images(3, 5, 5, 2)
    found = contrasted(x, strength, u)
    np.testing.assert_allclose(found.mean(axis=(1, 2)), x.mean(axis=(1, 2)), rtol=1e-5)
    factor = 1 + strength * (2 * u - 1)
    np.testing.assert_allclose(
        found.std(axis=(1, 2)), factor * x.std(axis=(1, 2)), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(("strength", "u"), [(0.1, 0.5), (4.0, 0.9), (1.0, 0.0)])
def test_noise_has_its_variance_and_no_mean(strength: float, u: float) -> None:
    x = images(100, 28, 28, 1)
    noise = noisy(x, strength, u, np.random.default_rng(0)).astype(float) - x
    count, deviation = noise.size, math.sqrt(strength * u)
    assert abs(noise.mean()) <= 5 * deviation / math.sqrt(count)
    assert noise.var() == pytest.approx(strength * u, rel=5 * math.sqrt(2 / count), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (16,)], ids=str)
def test_each_clients_rows_change_by_its_own_draw(kind: Skew, shape: tuple[int, ...]) -> None:
    before = federation(*shape)
    after = fp.datasets.skewed_features(before, kind, 0.8, seed=5)
    form = (4, 4, 3 if len(shape) == 3 else 1)
    change: Any = {"noise": noisy, "rotation": turned, "contrast": contrasted}[kind]
    for part, rows, changed in (
        (0, before.train, after.train),
        (1, before.test, after.test),
    ):
        assert changed.x.shape == rows.x.shape
        assert changed.x.dtype == np.float32
        np.testing.assert_array_equal(changed.y, rows.y)
        for k, n in enumerate(rows.sizes):
            stream = generator(5, Purpose.SKEW, 1 + part, k)
            alone = change(rows.client(k)[0].reshape(n, *form), 0.8, drawn(5, k), stream)
            np.testing.assert_array_equal(changed.client(k)[0], alone.reshape(n, *shape))


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_depends_on_the_seed_and_itself_alone(kind: Skew) -> None:
    skewed = fp.datasets.skewed_features
    whole, fewer = federation(4, 4), federation(4, 4, sizes=SIZES[:2])
    first = skewed(whole, kind)
    np.testing.assert_array_equal(first.train.x, skewed(whole, kind).train.x)
    same = skewed(fewer, kind)
    np.testing.assert_array_equal(same.train.x, first.train.x[: len(same.train)])
    other = skewed(whole, kind, seed=1)
    for k in range(len(SIZES)):
        assert not np.array_equal(other.train.client(k)[0], first.train.client(k)[0])
        assert not np.array_equal(whole.train.client(k)[0], first.train.client(k)[0])
    np.testing.assert_array_equal(whole.train.x, federation(4, 4).train.x)  # it is a copy
    held = whole.hold_out(0.4)
    assert held.validation is not None
    assert not np.array_equal(skewed(held, kind).validation.x, held.validation.x)  # type: ignore[union-attr]
    unchanged = skewed(whole, kind, 0)
    np.testing.assert_allclose(unchanged.train.x, whole.train.x, rtol=1e-6)


def test_bytes_change_as_the_model_sees_them() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (4, 3, 3)).astype(np.uint8)
    stored = fp.Prepared(raw, lambda raw: raw / np.float32(255))
    rows = fp.Rows(stored, np.array([0, 1, 0, 1]), np.array([0, 4]))
    one = fp.Federation(rows, rows, 2, ("a",))
    plain = fp.Federation.from_arrays([(raw / np.float32(255), [0, 1, 0, 1])])
    for kind in KINDS:
        found, expected = (fp.datasets.skewed_features(each, kind) for each in (one, plain))
        np.testing.assert_allclose(found.train.x, expected.train.x, rtol=1e-6, atol=1e-6)
    bytes_ = fp.Federation.from_arrays([(raw, [0, 1, 0, 1])])
    assert fp.datasets.skewed_features(bytes_, "noise").train.x.dtype == np.float32


NO_IMAGES = r"must be square images, \(n, n\), \(n, n, channels\) or \(n \* n\), as bytes or float"


@pytest.mark.parametrize(
    ("change", "arguments", "line"),
    [
        ({"shape": (15,)}, ["noise"], rf"type float32 and shape \(15,\); they {NO_IMAGES}"),
        ({"shape": (4, 5)}, ["rotation"], NO_IMAGES),
        ({"shape": (1, 1)}, ["rotation"], NO_IMAGES),
        ({"shape": (2, 2, 2, 2)}, ["contrast"], NO_IMAGES),
        ({"whole": True}, ["noise"], "features of type int32"),
        ({}, ["blur"], r"skewed_features: kind = 'blur'; it must be one of"),
        ({}, ["noise", -1], "skewed_features: strength = -1; it must be"),
        ({}, ["rotation", 181], "skewed_features: strength = 181; it must be"),
        ({}, ["contrast", 1.5], "skewed_features: strength = 1.5; it must be"),
        ({"central": True}, ["noise"], "validation rows belong to no client"),
        ({"augmented": True}, ["noise"], "augmentation reads stored rows"),
    ],
)
def test_what_cannot_be_skewed_is_one_line(
    change: dict[str, Any], arguments: list[Any], line: str
) -> None:
    given_ = federation(*change.get("shape", (4, 4)))
    if "whole" in change:
        given_ = fp.Federation.from_arrays([(np.ones((2, 16), np.int32), [0, 1])])
    if "central" in change:
        given_ = given_.with_validation(images(2, 4, 4), [0, 1])
    if "augmented" in change:
        stored = fp.Prepared(given_.train.x, lambda raw: 2 * raw)
        train = replace(given_.train, x=stored)
        given_ = replace(given_, train=train, test=replace(given_.test, x=stored[:6]))
        given_ = replace(given_, augment=lambda _, raw: 2 * raw)
    with pytest.raises(fp.InputError, match=line):
        fp.datasets.skewed_features(given_, *arguments)


MODULE = """
import numpy as np
import fedprox as fp

def squares(clients: int = 2, seed: int = 0) -> fp.Federation:
    rng = np.random.default_rng(seed)
    return fp.Federation.from_arrays(
        [(rng.uniform(size=(3, 4, 4)), [0, 1, 0]) for _ in range(clients)]
    )
"""


def test_a_file_names_the_skew_of_its_data(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_squares.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = {"name": "own_squares:squares", "seed": 3}
    plain, table = load_data(data)
    assert "skew" not in table
    skewed, table = load_data(data | {"skew": {"kind": "rotation"}})
    assert table["skew"] == {"kind": "rotation", "strength": 45.0}
    expected = fp.datasets.skewed_features(plain, "rotation", seed=3)
    np.testing.assert_array_equal(skewed.train.x, expected.train.x)
    again, _ = load_data(table)
    np.testing.assert_array_equal(again.train.x, expected.train.x)
    for skew, line in (
        ("noise", "data.skew = 'noise'; it must be a table"),
        ({"kind": "blur"}, "data.skew.kind = 'blur'; it must be one of"),
        ({"strength": 1.0}, "data.skew: the key 'kind' is missing"),
        ({"kind": "noise", "seed": 1}, "data.skew: unknown key 'seed'"),
        ({"kind": "noise", "strength": -1}, "data.skew: skewed_features: strength = -1"),
    ):
        with pytest.raises(fp.InputError) as refused:
            load_data(data | {"skew": skew})
        assert str(refused.value).startswith(line)
