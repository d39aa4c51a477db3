"""Targets: how many rounds a run takes to reach an accuracy, or to come down to a loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fedprox.errors import require, require_number, require_one_of

Measure = Literal["test_accuracy", "train_loss"]

StopAtTarget = Literal["never", "all", "any"]
"""When the rounds of a method end early: once all, or any, of its sweep points are there."""

KEYS: dict[Measure, str] = {"test_accuracy": "target_accuracy", "train_loss": "target_loss"}
"""The key of each measure's target in experiment files."""


@dataclass(frozen=True)
class Target:
    """A test accuracy to reach, or a training loss to come down to.

    >>> print(Target("test_accuracy", 0.97), "and", Target("train_loss", 0.0603))
    97 % and loss 0.0603

    Attributes:
        measure: What must be good enough, by its name in `metrics.jsonl`.
        value: The accuracy, above 0 and at most 1; or f(w), above 0.

    Raises:
        InputError: Another measure, or a number out of range.
    """

    measure: Measure
    value: float

    def __post_init__(self) -> None:
        require_one_of("target.measure", self.measure, get_args(Measure))
        most = 1 if self.measure == "test_accuracy" else math.inf
        require_number(self.key, self.value, most=most, positive=True)

    def __str__(self) -> str:
        if self.measure == "test_accuracy":
            return f"{100 * self.value:g} %"
        return f"loss {self.value:g}"

    @property
    def key(self) -> str:
        """Its key in experiment files and in `summary.json`."""
        return KEYS[self.measure]

    def good(self, value: float) -> float:
        """The measure turned so that more is better."""
        return value if self.measure == "test_accuracy" else -value

    def met(self, value: float) -> bool:
        """Whether a value of the measure is good enough; NaN is not."""
        return self.good(value) >= self.good(self.value)

    def rounds(self, evaluated: Sequence[int], values: Sequence[float]) -> float | None:
        """Rounds until a curve meets the target; None if it never does.

        McMahan et al. 2017, section 3: on the curve of the best value so far, with linear
        interpolation between evaluated rounds. Of losses the least is the best.

        Args:
            evaluated: Evaluated rounds, rising, shape (n,).
            values: The measure after each of them, shape (n,); NaN where it is not known.

        >>> Target("test_accuracy", 0.7).rounds([0, 10, 20, 30], [0.1, 0.5, 0.2, 0.9])
        25.0
        """
        before, best = 0.0, -math.inf
        for round_, value in zip(evaluated, values, strict=True):
            if self.met(value):
                if best == -math.inf:
                    return float(round_)
                share = (self.good(self.value) - best) / (self.good(value) - best)
                return float(before + share * (round_ - before))
            before = float(round_)
            if self.good(value) > best:
                best = self.good(value)
        return None


def target_of(accuracy: float | None, loss: float | None) -> Target | None:
    """The target that an experiment's `target_accuracy` and `target_loss` give, if either does.

    Raises:
        InputError: Both are given, or one is out of range.
    """
    require(
        accuracy is None or loss is None,
        f"target_accuracy = {accuracy} and target_loss = {loss}; give one of them, and not both",
    )
    if accuracy is not None:
        return Target("test_accuracy", accuracy)
    return None if loss is None else Target("train_loss", loss)
