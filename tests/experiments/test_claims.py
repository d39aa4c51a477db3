"""The main claim on real runs, in a short form; docs/papers has the full ones."""

import numpy as np
import pytest

from fedprox import Cohort, Evaluation, Solver, Systems, datasets, fedavg, fedprox, models, simulate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("optimized")]

SYNTHETIC = Solver(learning_rate=0.01, batch_size=10, epochs=20)


def test_fedprox_is_lower_and_steadier_than_fedavg_under_stragglers() -> None:
    """Li et al. 2020, Figure 1, Synthetic with 90 % stragglers."""
    last: dict[str, list[float]] = {}
    rises: dict[str, list[float]] = {}
    for seed in range(3):
        federation = datasets.synthetic(1.0, 1.0, seed=seed)
        for run in simulate(
            federation,
            models.logistic(federation),
            [fedavg(), fedprox(mu=1.0)],
            solver=SYNTHETIC,
            cohort=Cohort(10),
            systems=Systems(stragglers=0.9),
            rounds=80,
            evaluation=Evaluation(gradients=False),
        ):
            losses = np.array([record.train_loss for record in run.history[20:]])
            last.setdefault(run.method, []).append(float(losses[-10:].mean()))
            rises.setdefault(run.method, []).append(float(np.maximum(np.diff(losses), 0).mean()))
    assert np.mean(last["fedprox"]) < np.mean(last["fedavg"])
    assert max(rises["fedprox"]) < min(rises["fedavg"])
