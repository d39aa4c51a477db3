"""The papers' claims on real runs, in their short form; docs/papers has the full ones."""

from pathlib import Path

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


def test_more_heterogeneous_sets_have_larger_gradient_variance() -> None:
    """Li et al. 2020, Figure 2, bottom row: IID, (0, 0), (0.5, 0.5), (1, 1)."""
    settings = [{"iid": True}, *({"alpha": a, "beta": a} for a in (0.0, 0.5, 1.0))]
    variance = []
    for setting in settings:
        found = []
        for seed in range(3):
            federation = datasets.synthetic(seed=seed, **setting)  # type: ignore[arg-type]
            (run,) = simulate(
                federation,
                models.logistic(federation),
                fedprox(mu=0.0),
                solver=SYNTHETIC,
                cohort=Cohort(10),
                rounds=20,
                evaluation=Evaluation(every=5),
            )
            found += [record.gradient_variance for record in run.history[1:]]
        variance.append(np.mean(found))
    assert variance == sorted(variance)
    assert variance[0] < 0.1 < 1 < variance[1]


def test_fedprox_beats_fedavg_on_mnist_under_stragglers(data_dir: Path) -> None:
    """Li et al. 2020, Figure 7, MNIST with 90 % stragglers."""
    federation = datasets.mnist(data_dir=data_dir)
    runs = simulate(
        federation,
        models.logistic(federation),
        [fedavg(), fedprox(mu=1.0)],
        solver=Solver(learning_rate=0.03, batch_size=10, epochs=20),
        cohort=Cohort(10),
        systems=Systems(stragglers=0.9),
        rounds=30,
        evaluation=Evaluation(every=10, gradients=False),
        seed=[0, 1],
    )
    final = {(run.method, run.seed): run.final.test_accuracy for run in runs}
    for seed in (0, 1):
        assert final["fedprox", seed] > final["fedavg", seed] + 0.05
