"""Studies whose numbers are given."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import fedprox as fp
from fedprox.studies.run import Outcome
from tests.report.test_report import make_run, record


def run(accuracy: float, seed: int, label: str = "fedavg", validation: float = 0.5) -> fp.Run:
    """A run that ends with an accuracy; NaN diverges."""
    diverged = accuracy != accuracy
    last = record(
        label=label,
        seed=seed,
        round=1,
        train_loss=accuracy if diverged else 1 - accuracy,
        test_accuracy=accuracy,
        validation_accuracy=validation,
    )
    return replace(make_run(label, seed), history=[last])


def outcome(accuracies: Sequence[float], method: str = "FedAvg", **levels: str) -> Outcome:
    """A cell whose seeds end with some accuracies."""
    runs = [run(accuracy, seed) for seed, accuracy in enumerate(accuracies)]
    return Outcome({**levels, "method": method}, runs, 1, [])


def study(by_method: Mapping[str, Sequence[float]], **changes: Any) -> fp.Study:
    """A study with one factor, the methods."""
    return fp.Study([outcome(values, name) for name, values in by_method.items()], **changes)
