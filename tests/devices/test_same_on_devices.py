"""Every setting on one device and on three: the same run, but for the last bits of sums."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from tests.settings import BASE, together

PROGRAM = """
import sys
import fedprox as fp
fp.use_cpu_devices(clients_per_round=4, devices=3)
fp.use_compilation_cache(sys.argv[1])
from tests.devices.test_same_on_devices import differences
from tests.settings import TOGETHER
found = [line for names in TOGETHER for line in differences(names, devices=(1, 3))]
print(*found, sep="\\n")
"""


def numbers(run: fp.Run) -> dict[str, Any]:
    """All numbers that a run found, by name."""
    found: dict[str, Any] = {f"params {i}": a for i, a in enumerate(jax.tree.leaves(run.params))}
    for record in run.history:
        for name, value in record.as_dict().items():
            if isinstance(value, int | float):
                found[f"{name} after round {record.round}"] = value
    return found


def differences(names: tuple[str, ...], devices: tuple[int, ...]) -> list[str]:
    """A line for each number of a group of cases that another number of devices changes."""
    lines = []
    options = BASE | together(names)
    one, *others = (fp.simulate(**options, devices=n) for n in devices)
    for count, runs in zip(devices[1:], others, strict=True):
        for a, b in zip(one, runs, strict=True):
            pairs = [(key, value, numbers(b)[key]) for key, value in numbers(a).items()]
            lines += [
                f"{names}: {a.label}, {count} devices: {key}: {x}, {y}"
                for key, x, y in pairs
                if not np.allclose(x, y, rtol=1e-5, atol=1e-6, equal_nan=True)
            ]
    return lines


@pytest.mark.slow
def test_every_setting_is_the_same_on_three_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(Path(os.environ["FEDPROX_CACHE"]) / "xla")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert not done.returncode, done.stderr
    assert done.stdout.strip() == ""
