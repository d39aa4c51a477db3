"""Noised measures in secure sums: each node's own noise is under the mask."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprox.deployment import noised
from tests.deployment.federations import deployed, simulated
from tests.deployment.secure.conftest import NODES, ONE_ROUND, Fresh, answers

NAMES = ("train_loss", "test_loss", "test_accuracy")


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "example"])
def test_the_sum_has_the_noise_of_every_node(
    unit: str, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ones in place of normal numbers, each node, or client, adds its deviation once."""
    monkeypatch.setattr(noised, "normals", np.ones)
    sites = fresh(tmp_path)
    clients = sum(len(site.node.federation) for site in sites)
    measures = {"loss_bound": 2.0, "noise_multiplier": 3.0}
    privacy = {"unit": unit, "clip": 0.05, "noise_multiplier": 2.0, "delta": 1e-3}
    secure = {"threshold": 3} | ({} if unit == "client" else {"bound": 10.0})
    table: dict[str, Any] = ONE_ROUND | {
        "privacy": privacy | {"measures": measures},
        "cohort": {"clients_per_round": clients, "sampling": "bernoulli"},
        "evaluation": {"every": 1, "gradients": False},
        "deployment": {"secure": secure},
    }
    (ours,) = deployed(table, answers(sites))
    quiet = table | {"privacy": privacy | {"measures": measures | {"noise_multiplier": 0.0}}}
    del quiet["deployment"]
    (theirs,) = simulated(quiet)
    first, exact = ours.history[0], theirs.history[0]
    added = np.array([first.value(name) - exact.value(name) for name in NAMES])
    expected = 3.0 * math.sqrt(3) * NODES / clients * np.array([2.0, 2.0, 1.0])
    if unit == "example":
        train, test = (
            sum(len(getattr(site.node.federation, part)) for site in sites)
            for part in ("train", "test")
        )
        scale = np.sqrt([1, 2, 2]) / np.array([train, test, test])
        expected = 3.0 * clients * scale * np.array([2.0, 2.0, 1.0])
    np.testing.assert_allclose(added, expected, rtol=1e-4)
    assert math.isfinite(ours.final.value("epsilon"))
