"""Every setting beside an empty round and a checkpoint: neither changes what a run ends with."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.report.records import metrics_line, read_record
from tests.crossings.checks import require_empty_round, require_resumed, same, with_empty_round
from tests.settings import BASE, CASES, FEDERATION, GROUPS, NOISED, TOGETHER, uncovered
from tests.variants import mostly_slow

EMPTY, CUT = 2, 3
"""The round without clients, and how many rounds are done at the checkpoint from which a run goes
on. Some runs are not evaluated before it, so that it holds what these rounds have counted."""

HALF: Any = np.float64(0.5)
TWO: Any = np.int64(2)
DECAY: Any = np.float32(0.9)
MUS: Any = np.linspace(0, 1, 2)
RATES: Any = np.array([0.1, 0.2], np.float32)
NAMES: Any = np.array(list("abcdef"))

NUMPY: dict[str, dict[str, Any]] = {
    "NumPy's numbers": {
        "federation": dataclasses.replace(FEDERATION, names=NAMES),
        "methods": fp.fedprox(mu=MUS),
        "solver": fp.Solver(RATES, TWO, epochs=TWO, learning_rate_decay=DECAY),
        "seed": np.array([1, 2]),
        "cohort": fp.Cohort(TWO),
        "faults": fp.Faults("clip", norm=np.float64(1.0)),
    },
    "NumPy's privacy": NOISED
    | {"privacy": fp.Privacy(HALF, noise_multiplier=HALF, delta=np.float64(0.01))},
    "NumPy's buffer": CASES["no barrier"] | {"asynchronous": fp.Asynchronous(TWO)},
}
"""Settings that are NumPy's numbers."""

NEVER_EMPTY = ("no barrier", "NumPy's buffer", "correlated noise", "private measures")
"""A step of a server without a barrier has a full buffer; nobody of those who hide is lost, and
cohorts of one size are never empty."""

FAST = "a model of each client, krum, the best model"
"""The group of which the fast suite has a run."""


def test_every_setting_is_tried() -> None:
    assert uncovered() == []
    assert sorted(itertools.chain(*TOGETHER)) == sorted(CASES)


@pytest.mark.parametrize("name", mostly_slow(GROUPS | NUMPY, FAST))
def test_neither_an_empty_round_nor_a_checkpoint_changes_a_run(name: str, tmp_path: Path) -> None:
    options = BASE | (GROUPS | NUMPY)[name]
    if name in NEVER_EMPTY:
        once = fp.simulate(**options)
    else:
        options = with_empty_round(EMPTY, **options)
        once = require_empty_round(EMPTY, options)
    require_resumed(once, CUT, options, tmp_path)
    for record in once[0].history:
        line = json.dumps(metrics_line(record)).encode()
        read = dataclasses.replace(read_record(line), by_client_checksum=record.by_client_checksum)
        same(record, read)
