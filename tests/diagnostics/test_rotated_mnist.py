"""Rotated MNIST: its four clusters, found before training and by IFCA, without an error."""

from pathlib import Path

import numpy as np
import pytest

import fedprox as fp
from fedprox.protocol.protocol import initial_params


def rotated(data_dir: Path, clients: int) -> fp.Federation:
    whole = fp.datasets.mnist("iid", clients=400, data_dir=data_dir)
    return fp.datasets.rotated(whole.of_clients(np.arange(clients)))


def are_the_rotations(labels: np.ndarray) -> bool:
    groups = [set(labels[j::4].tolist()) for j in range(4)]
    return all(len(each) == 1 for each in groups) and len(set.union(*groups)) == 4


@pytest.mark.slow
def test_the_rotations_are_found_before_training(data_dir: Path) -> None:
    federation = rotated(data_dir, 24)
    model = fp.models.mlp(federation, hidden=[32])
    found = fp.diagnostics.grouping(model, initial_params(model, 0), federation)
    assert (found.clusters, found.p) == (4, 0.01)
    assert are_the_rotations(found.labels)


@pytest.mark.slow
def test_ifca_finds_the_rotations(data_dir: Path) -> None:
    """From a seed whose first models each attract a rotation."""
    federation = rotated(data_dir, 80)
    model = fp.models.mlp(federation, hidden=[64])
    (run,) = fp.simulate(
        federation,
        model,
        fp.ifca(4),
        solver=fp.Solver(0.2, 30, epochs=2),
        cohort=fp.Cohort(40),
        rounds=4,
        seed=4,
        evaluation=fp.Evaluation(every=4, gradients=False),
        progress=False,
    )
    assert are_the_rotations(fp.nearest_models(model, run.models, federation))
    assert run.final.personal_accuracy is not None
    assert run.final.personal_accuracy > 0.82
