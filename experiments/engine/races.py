"""Races: rounds, or models sent, to a target, in the paper and in our runs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.engine.growing import RATE, best_rate, rate_of
from experiments.engine.item import Entry, Race
from experiments.engine.summaries import Series
from experiments.engine.sweeps import of_sweep
from experiments.engine.verdicts import Measured
from fedprox.simulation.results.target import Target

FACTOR = 1.5
"""The table marks numbers that differ from the paper's by more than this factor."""


class Count(NamedTuple):
    """Rounds or models until a target.

    Attributes:
        value: The number.
        more: Whether that many were not enough, as in the papers' "1000+".
    """

    value: float
    more: bool = False


Counts = Sequence[Sequence[Count | None]]
"""The numbers of a table, by row; None for empty cells."""


class MeasuredCell(NamedTuple):
    """Our measurements for a cell.

    Attributes:
        counts: Rounds or models until the target, or of the whole run, shape (seeds,).
        reached: Whether the target was reached, shape (seeds,).
        diverged: Whether all lines of the sweep diverged before the target, shape (seeds,).
        settings: The settings in the labels of the lines that reached the target first, or if no
            line of a search did, the rate that came closest.
        rates: The learning rates of a search, in order; empty for other runs.
    """

    counts: NDArray[np.float64]
    reached: NDArray[np.bool_]
    diverged: NDArray[np.bool_]
    settings: tuple[str, ...]
    rates: tuple[float, ...] = ()

    @property
    def edges(self) -> tuple[str, ...]:
        """The settings at an edge of the learning rates tried."""
        ends = self.rates[:1] + self.rates[-1:] if len(self.rates) > 1 else ()
        return tuple(one for one in self.settings if rate_of(one) in ends)

    @property
    def mean(self) -> Count | None:
        """The mean over seeds, a lower bound if a seed has not reached the target.

        None if a seed diverged, because its last round means nothing.
        """
        if self.diverged.any():
            return None
        return Count(float(self.counts.mean()), not self.reached.all())


def printed(paper: float | str) -> Count | None:
    """A paper's number.

    >>> printed(637), printed("1000+"), printed("")
    (Count(value=637.0, more=False), Count(value=1000.0, more=True), None)
    """
    text = str(paper)
    return Count(float(text.removesuffix("+")), text.endswith("+")) if text else None


def measure(race: Race, measured: Measured) -> list[list[MeasuredCell | None]]:
    """Our measurements for each cell of a table, by row; None without a run.

    Raises:
        KeyError: A run has no such method.
    """
    return [
        [
            entry and _measure_cell(entry, row.target, race, measured[entry.run])
            for entry in row.entries
        ]
        for row in race.rows
    ]


def _measure_cell(entry: Entry, target: Target, race: Race, run: Sequence[Series]) -> MeasuredCell:
    """The cell of an entry: for each seed, the line of the sweep that reaches the target first.

    So a run that stops when any line reaches the target counts the same as one that continues.
    """
    lines = of_sweep(run, entry.method)
    counts, reached, diverged, settings = [], [], [], []
    for seed in sorted({line.seed for line in lines}):
        group = [line for line in lines if line.seed == seed]
        hits = [(rounds, s) for s in group if (rounds := s.rounds_to(target)) is not None]
        # if no line reached the target: all rounds of the longest line
        ends = hits or [(float(s.rounds[-1]), s) for s in group]
        rounds, line = (min if hits else max)(ends, key=lambda end: end[0])
        counts.append(rounds * (line.models if race.unit == "models" else 1))
        reached.append(bool(hits))
        diverged.append(not hits and all(np.isnan(s.values["train_loss"][-1]) for s in group))
        if hits:
            settings.append(line.label.removeprefix(entry.method).strip())
    different = tuple(dict.fromkeys(filter(None, settings)))
    rates = {rate for line in lines if (rate := rate_of(line.label)) is not None}
    if not any(reached) and rates and all(_is_searched(line, entry.method) for line in lines):
        different = (f"{RATE}{best_rate(lines, target):g}",)
    return MeasuredCell(
        np.array(counts), np.array(reached), np.array(diverged), different, tuple(sorted(rates))
    )


def _is_searched(line: Series, method: str) -> bool:
    """Whether the label of a line names the method and a learning rate, and nothing else."""
    rate = rate_of(line.label)
    return rate is not None and line.label == f"{method} {RATE}{rate:g}"


def ratio(counts: Counts, row: int, column: int, relative: str) -> str:
    """A cell's saving or speed-up as the papers print it; "" for the reference cell.

    FedDyn's paper divides the cell by the first of its row, FedAvg's paper the first of the column
    by the cell. If one number was not enough to reach the target, the ratio is a bound.

    >>> counts = [[Count(637), Count(1852), Count(1000, more=True)]]
    >>> [ratio(counts, 0, column, "first column") for column in range(3)]
    ['', '2.9x', '>1.6x']
    """
    by_row = relative == "first column"
    if (column if by_row else row) == 0:
        return ""
    own, first = counts[row][column], counts[row][0] if by_row else counts[0][column]
    over, under = (own, first) if by_row else (first, own)
    if over is None or under is None or (over.more and under.more) or not under.value:
        return ""
    bound = ">" if over.more else "<" if under.more else ""
    times = over.value / under.value
    return f"{bound}{times:.1f}x" if times >= 0.1 else f"{bound}{times:.1g}x"


def off(paper: Count | None, ours: Count | None) -> str:
    """The ratio of ours to the paper's number in words, if it exceeds `FACTOR`; else "".

    If a number was not enough to reach the target, only what is certain is reported: 200 that were
    not enough are consistent with the paper's 1,000, but are more than 4 times the paper's 50.

    >>> off(Count(50), Count(200, more=True)), off(Count(50), Count(60))
    ('more than 4 times', '')
    """
    if paper is None or ours is None:
        return ""
    factor = ours.value / paper.value
    if not ours.more and factor < 1 / FACTOR:
        return f"{'less than ' if paper.more else ''}{factor:.2g} times"
    if not paper.more and factor > FACTOR:
        shown = f"{factor:.2g}" if factor < 10 else f"{factor:.0f}"
        return f"{'more than ' if ours.more else ''}{shown} times"
    return ""
