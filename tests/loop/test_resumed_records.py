"""A resumed run and one that was never interrupted hold the same values of the same types."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.report.records import metrics_line, read_record
from tests.settings import BASE, CASES, FEDERATION, NOISED
from tests.variants import mostly_slow

HALF: Any = np.float64(0.5)
TWO: Any = np.int64(2)
DECAY: Any = np.float32(0.9)
MUS: Any = np.linspace(0, 1, 2)
RATES: Any = np.array([0.1, 0.2], np.float32)
NAMES: Any = np.array(list("abcdef"))

NUMPY: dict[str, dict[str, Any]] = {
    "NumPy's rates": {
        "methods": fp.fedprox(mu=MUS),
        "solver": fp.Solver(RATES, TWO, epochs=TWO, learning_rate_decay=DECAY),
        "seed": np.array([1, 2]),
        "cohort": fp.Cohort(TWO),
    },
    "NumPy's names": {
        "federation": dataclasses.replace(FEDERATION, names=NAMES),
        "faults": fp.Faults("clip", norm=np.float64(1.0)),
    },
    "NumPy's privacy": NOISED
    | {"privacy": fp.Privacy(HALF, noise_multiplier=HALF, delta=np.float64(0.01))},
    "NumPy's buffer": CASES["no barrier"] | {"asynchronous": fp.Asynchronous(TWO)},
}
"""Settings that are NumPy's numbers."""

CALIBRATED = ("private examples",)
"""Noise for an epsilon is that of all rounds, so these runs cannot be extended."""

EVERY = {name: case for name, case in (CASES | NUMPY).items() if name not in CALIBRATED}


def parts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A value's parts by their paths, with the type of each; arrays are parts."""
    yield f"{path}: type", (type(value), getattr(value, "dtype", None))
    if isinstance(value, dict):
        inner: dict[Any, Any] = value
    elif dataclasses.is_dataclass(value):
        inner = vars(value)
    elif hasattr(value, "_asdict"):
        inner = value._asdict()
    elif isinstance(value, list | tuple):
        inner = dict(enumerate(value))
    else:
        yield path, value
        return
    for key, each in inner.items():
        yield f"{path}.{key}: type of key", type(key)
        yield from parts(each, f"{path}.{key}")


TIMES = ("callback_seconds", "compile_seconds", "run_seconds")


def same(one: Any, other: Any) -> None:
    """Assert that all parts are equal and of equal types."""
    for (path, a), (there, b) in zip(parts(one), parts(other), strict=True):
        assert path == there
        if not path.endswith(TIMES):
            np.testing.assert_equal(a, b, err_msg=path)


@pytest.mark.parametrize(
    "name", mostly_slow(EVERY, "a model of each client", "NumPy's names", "NumPy's privacy")
)
def test_values_and_types_are_those_of_an_uninterrupted_run(name: str, tmp_path: Path) -> None:
    options = BASE | EVERY[name]
    once = fp.simulate(**options)
    fp.simulate(**options | {"rounds": 2}, checkpoints=fp.Checkpoints(tmp_path))
    resumed = fp.simulate(**options, checkpoints=fp.Checkpoints(tmp_path, resume=True))
    same(once, resumed)
    for record in once[0].history:
        line = json.dumps(metrics_line(record)).encode()
        read = dataclasses.replace(read_record(line), by_client_checksum=record.by_client_checksum)
        same(record, read)
