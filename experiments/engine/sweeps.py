"""The lines of a sweep: the best of them, and the best of all at each round."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.engine.summaries import Numbers, Series


def of_sweep(series: Sequence[Series], beginning: str) -> list[Series]:
    """The lines whose labels begin with some whole words.

    Raises:
        KeyError: There is none.
    """
    lines = [one for one in series if f"{one.label} ".startswith(f"{beginning} ")]
    if not lines:
        raise KeyError(f"no {beginning!r} among {sorted({one.label for one in series})}")
    return lines


def lowest(lines: Sequence[Series]) -> str:
    """The label with the lowest final training loss, mean over seeds."""
    losses: dict[str, list[float]] = {}
    for one in lines:
        losses.setdefault(one.label, []).append(float(one.of("train_loss")[-1]))
    return min(losses, key=lambda label: float(np.mean(losses[label])))


def envelope(lines: Sequence[Series], beginning: str) -> list[Series]:
    """For each seed the lowest training loss and the highest test accuracy at each round.

    A line that has diverged, or has ended, does not count; the loss is NaN where none is left.

    Args:
        lines: The lines of a sweep.
        beginning: The beginning of their labels, which the new label repeats.
    """
    labels = {one.label for one in lines}
    count = len(labels)
    label = f"{beginning}, best of {count} at each round" if count > 1 else labels.pop()
    found = []
    for seed in sorted({one.seed for one in lines}):
        group = [one for one in lines if one.seed == seed]
        rounds = np.unique(np.concatenate([one.rounds for one in group]))
        loss = np.fmin.reduce([_spread_out(one, "train_loss", rounds) for one in group])
        values = {"train_loss": np.where(np.isfinite(loss), loss, np.nan)} | {
            measure: np.fmax.reduce([_spread_out(one, measure, rounds) for one in group])
            for measure in ("test_accuracy", "total_steps")
        }
        found.append(Series(label, seed, rounds, values, group[0].models))
    return found


def _spread_out(line: Series, measure: str, rounds: NDArray[np.int64]) -> Numbers:
    """A line's values at some rounds, NaN where it has none."""
    values = np.full(len(rounds), np.nan)
    values[np.searchsorted(rounds, line.rounds)] = line.of(measure)
    return values
