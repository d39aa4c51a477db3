"""A deployment and a simulation of the same clients give the same results."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.federations import apart, deployed, nodes_of, simulated, table_of

METHODS: dict[str, dict[str, Any]] = {
    "fedsgd": {"name": "fedsgd"},
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox", "mu": [0.0, 1.0]},
    "adaptive": {"name": "fedprox", "mu": 0.5, "adapt": True},
    "feddane": {"name": "feddane", "mu": 1.0},
    "scaffold": {"name": "scaffold"},
    "feddyn": {"name": "feddyn", "alpha": 0.1},
    "fedsplit": {"name": "fedsplit", "step_size": 0.5},
    "fedopt": {"name": "fedopt", "optimizer": "adam", "server_learning_rate": 0.1},
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method(name: str, tmp_path: Path) -> None:
    table = table_of(METHODS[name], systems={"stragglers": 0.5}, rounds=6)
    nodes = nodes_of(table, tmp_path)
    ours = deployed(table, [node.answer for node in nodes])
    theirs = simulated(table)
    assert len(ours) == len(theirs)
    for a, b in zip(theirs, ours, strict=True):
        assert apart(a.params, b.params) < 1e-5
        assert [r.round for r in a.history] == [r.round for r in b.history]
        for x, y in zip(a.history, b.history, strict=True):
            for measure in ("train_loss", "test_accuracy", "test_loss", "gradient_variance"):
                assert math.isclose(getattr(x, measure), getattr(y, measure), rel_tol=1e-4)
            assert (x.clients, x.stragglers, x.dropped) == (y.clients, y.stragglers, y.dropped)
            assert (x.total_steps, x.client_steps) == (y.total_steps, y.client_steps)
            assert x.hparams == pytest.approx(y.hparams)
