"""Rows that stay with the host: the same bits as rows on the devices, in memory for a cohort."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import fedprox as fp
from fedprox import Federation, InputError, Prepared, Rows, Run, Vectors, Windows
from fedprox.devices.mesh import lane_mesh
from fedprox.devices.processes import find_ownership
from fedprox.engine.storage import training_data
from fedprox.federation import offsets_of
from fedprox.files.mapping import copy_stretches

SIZES = [40, 3, 150, 1, 9, 70, 26, 2, 5, 12]
"""Several slices, and last clients that lie within a slice of the end."""

SEARCH = fp.Solver(1.0, "all", epochs=3, optimizer=fp.line_search_descent)

Map = Callable[[NDArray[Any]], NDArray[Any]]


@pytest.fixture
def map_(tmp_path: Path) -> Map:
    """An array as one that is mapped from a file."""

    def mapped(array: NDArray[Any]) -> NDArray[Any]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npy"
        np.save(path, array)
        return np.lib.format.open_memmap(path, mode="r")

    return mapped


def halved(raw: jax.Array) -> jax.Array:
    return raw.astype(jnp.float32) / 255


def federation(kind: str = "array", *, put: Map = np.asarray) -> Federation:
    """The same rows, kept as arrays that `put` returns."""
    stream = np.random.default_rng(5)
    n = sum(SIZES)
    x: Any = {
        "array": lambda: put(stream.normal(size=(n, 7)).astype(np.float32)),
        "half": lambda: put(stream.normal(size=(n, 7)).astype(np.float16)),
        "windows": lambda: Windows(
            stream.integers(4, size=500, dtype=np.uint8),
            put(stream.integers(490, size=n, dtype=np.int32)),
            width=7,
        ),
        "vectors": lambda: Vectors(
            put(stream.integers(30, size=(n, 2), dtype=np.int32)),
            stream.normal(size=(30, 4)).astype(np.float32),
        ),
        "prepared": lambda: Prepared(
            put(stream.integers(256, size=(n, 3, 3), dtype=np.uint8)), halved
        ),
    }[kind]()
    y = put(stream.integers(3, size=n, dtype=np.int32))
    train = Rows(x, y, offsets_of(SIZES))
    tests = np.r_[0:40, 300:310]
    test = Rows(x[tests], y[tests], offsets_of([40, *[0] * 8, 10]))
    return Federation(train, test, 3, tuple(map(str, range(len(SIZES)))))


def runs(given: Federation, method: fp.Algorithm, **options: Any) -> list[Run]:
    setting: dict[str, Any] = {
        "solver": fp.Solver(0.1, 4, epochs=2),
        "cohort": fp.Cohort(3),
        "systems": fp.Systems(stragglers=0.5),
        "rounds": 7,
        "evaluation": fp.Evaluation(every=3),
    }
    model = fp.models.logistic(given)
    return fp.simulate(given, model, method, **setting | options)


def same_bits(some: list[Run], others: list[Run]) -> None:
    for a, b in zip(some, others, strict=True):
        for left, right in zip(a.history, b.history, strict=True):
            assert repr(left) == repr(right)  # with repr NaN is NaN
        for one, other in zip(*map(jax.tree.leaves, (a.params, b.params)), strict=True):
            np.testing.assert_array_equal(one, other)
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(some[0].params))


READ: dict[str, tuple[str, fp.Algorithm, dict[str, Any]]] = {
    "windows": (
        "windows",
        fp.scaffold(),
        {
            "cohort": fp.Cohort(3, "bernoulli"),
            "evaluation": fp.Evaluation(every=3, model="clients", gradients=False),
        },
    ),
    "a first exchange": ("array", fp.feddane(mu=0.1), {"cohort": fp.Cohort(3, "proportional")}),
    "some rows": (
        "half",
        fp.centralised(),
        {"evaluation": fp.Evaluation(every=3, rows=2, gradients=False)},
    ),
    "a stop rule": (
        "vectors",
        fp.fedavg(),
        {"seed": [0, 1], "solver": fp.Solver([0.1, 0.2], 4, epochs=3, gamma=0.3)},
    ),
    "a line search": (
        "prepared",
        fp.fedprox(mu=1.0),
        {"solver": SEARCH, "evaluation": fp.Evaluation(every=3, gradients=False)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", READ)
def test_rows_in_mapped_files_change_no_bit(map_: Map, case: str) -> None:
    kind, method, options = READ[case]
    here, there = federation(kind), federation(kind, put=map_)
    alone = find_ownership(there.train.offsets, 1)
    assert training_data.copy_to_devices(lane_mesh(), there, there, alone, alone).train is None
    same_bits(runs(here, method, **options), runs(there, method, **options))


@pytest.mark.slow
def test_augmentation_sees_the_rows_of_a_few_rounds(
    map_: Map, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noisy(key: jax.Array, x: jax.Array) -> jax.Array:
        return x + jax.random.normal(key, x.shape)

    here, there = (replace(federation(put=put), augment=noisy) for put in (np.asarray, map_))
    options: dict[str, Any] = {"rounds": 6, "evaluation": fp.Evaluation(every=6, gradients=False)}
    expected = runs(here, fp.fedavg(), **options)
    asked: list[int] = []

    def count(source: Any, first: Any, *rest: Any) -> Any:
        asked.append(len(first))
        return copy_stretches(source, first, *rest)

    monkeypatch.setattr(training_data, "copy_stretches", count)
    same_bits(expected, runs(there, fp.fedavg(), **options))
    assert len(asked) == 2  # features and labels of all rounds at once
    assert 3 < asked[0] == asked[1] <= len(SIZES)  # each client once
    monkeypatch.setattr(training_data, "GATHERED_BYTES", 1)
    asked.clear()
    same_bits(expected, runs(there, fp.fedavg(), **options))
    assert len(asked) == 12  # as many rounds as fit, and one at the least


def test_rows_too_many_for_the_memory_stay_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    given, mesh = federation(), lane_mesh()
    size = given.train.x.nbytes + given.train.y.nbytes
    # two devices and at most half of what is free
    for free, stays in ((4 * size, False), (4 * size - 1, True), (0, False)):
        monkeypatch.setattr(training_data, "free_on_host", lambda free=free: free)
        assert training_data.stays_with_host(mesh, given.train) == stays
    monkeypatch.setattr(training_data, "free_on_host", lambda: size)
    with pytest.raises(InputError, match=r"a round reads \d+ of them, .*fewer clients a round"):
        runs(given, fp.fedavg())
