"""Series and items that are made up."""

from typing import Any

import numpy as np

from experiments.engine.item import Claim, Comparison, Item, Line, Panel, Scale, Table
from experiments.engine.series import BEST, LOSS, Series
from experiments.engine.summaries import RULE

SCALE = Scale("tiny", 2, (0, 1))

TINY: Table = {
    "rounds": 4,
    "data": {"name": "synthetic", "clients": 4},
    "cohort": {"clients_per_round": 2, "sampling": "uniform"},
    "systems": {"stragglers": 0.5},
    "solver": {"learning_rate": 0.01, "batch_size": 10, "epochs": 1},
    "method": [{"name": "fedprox", "mu": [0.0, 1.0]}],
}


def series(
    label: str,
    losses: Any,
    seed: int = 0,
    accuracy: Any = None,
    *,
    mu: float = 0,
    rounds: Any = None,
    models: float = 1,
) -> Series:
    """A run with these losses, and accuracies that are the same if not given."""
    found = np.array(losses, float)
    values = {
        "train_loss": found,
        "test_accuracy": np.array(found if accuracy is None else accuracy, float),
        "gradient_variance": found,
        "mu": np.full(len(found), mu),
    }
    at = np.arange(len(found)) if rounds is None else np.array(rounds)
    return Series(label, seed, at, values, models)


def climb(name: str, rounds: float, seed: int = 0, *, end: int = 100, models: float = 1) -> Series:
    """A run that is at 80 % after so many rounds, and ends there or at a last round."""
    last = min(rounds, end)
    accuracy = [0.0, 0.8 * (last / rounds)]
    return series(name, [1.0, 0.5], seed, accuracy, rounds=[0, last], models=models)


def tiny(**changes: Any) -> Item:
    """An item that runs in a second."""
    labels = ("fedprox mu=0", BEST)
    compared = Comparison("A", Line("a", BEST), Line("a", "fedprox mu=0"), "made up")
    return Item(
        "Figure 0: made up",
        "nowhere",
        {"tiny": 1.0},
        {"a": TINY | changes},
        (
            (Panel("A", LOSS, ("a",), labels), Panel("B", "mu", ("a",))),
            (Panel("A", "test_accuracy", ("a",), labels),),
        ),
        (Claim("mu = 0 is worse.", "test_accuracy", RULE, (compared,), paper="+22 %"),),
        notes=("A note.",),
    )
