"""Searches for a learning rate that grow until the best rate is not at the edge of those tried."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from experiments.engine.item import MORE_RATES, Item, Table
from experiments.engine.races import RATE, first_at, rate_of
from experiments.engine.series import Series
from fedprox.results.target import Target

Train = Callable[[str, Table], list[Series]]


def grown(
    run: str, table: Table, grid: Sequence[float], target: Target, train: Train
) -> list[Series]:
    """A search for the rate that reaches a target first, with the lines of all rates tried.

    The experiment's own rates are one sweep. While the best of all rates is the lowest or the
    highest, the next one of the grid is run, for no more rounds than the best rate took.

    Args:
        run: Name of the experiment.
        table: The experiment, whose solver has one rate or several.
        grid: The rates that can be tried, in order.
        target: The target.
        train: (name, experiment) -> the lines of its runs.
    """
    rates = list(np.atleast_1d(table["solver"]["learning_rate"]))
    lines = _labelled(train(run, table), rates)
    while (rate := beyond(rates, best_rate(lines, target), grid)) is not None:
        changed: Table = {"solver": table["solver"] | {"learning_rate": rate}}
        changed["rounds"] = _rounds(table, lines, target)
        lines += _labelled(train(f"{run}-rate-{rate:g}", table | changed), [rate])
        rates.append(rate)
    return lines


def searched(item: Item) -> dict[str, Target]:
    """The targets of an item's searches that grow, by run."""
    rows = [row for race in item.races for row in race.rows]
    entries = [(entry.run, row.target) for row in rows for entry in row.entries if entry]
    return {run: target for run, target in entries if MORE_RATES in item.runs.get(run, {})}


def beyond(tried: Sequence[float], best: float, grid: Sequence[float]) -> float | None:
    """The next rate to try; None if the best has neighbours on both sides, or the grid ends.

    >>> beyond([0.1, 0.2, 0.4], 0.4, [0.1, 0.2, 0.4, 0.8])
    0.8
    >>> beyond([0.1, 0.2, 0.4], 0.2, [0.1, 0.2, 0.4, 0.8])
    """
    below = [rate for rate in grid if rate < min(tried)]
    above = [rate for rate in grid if rate > max(tried)]
    if best == min(tried) and below:
        return max(below)
    return min(above) if best == max(tried) and above else None


def best_rate(lines: Sequence[Series], target: Target) -> float:
    """The rate that reaches a target first, mean over seeds, or else comes closest to it."""
    return rate_of(first_at(lines, target)[0].label) or math.nan


def _labelled(lines: Sequence[Series], rates: Sequence[float]) -> list[Series]:
    """The lines with the rate in each label, which a run with one rate leaves out."""
    if len(rates) > 1:
        return list(lines)
    return [line._replace(label=f"{line.label} {RATE}{rates[0]:g}") for line in lines]


def _rounds(table: Table, lines: Sequence[Series], target: Target) -> int:
    """Rounds that another rate needs at most to be the best."""
    ends = [line.rounds_to(target) for line in first_at(lines, target)]
    if None in ends:
        return int(table["rounds"])
    every = table["evaluation"].get("every", 1)
    return min(table["rounds"], every * math.ceil(max(end or 0.0 for end in ends) / every))
