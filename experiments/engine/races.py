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
    """Our measurements for a cell, of the setting of its sweep that is the first on average.

    Attributes:
        counts: Rounds or models until the target, or of the whole run, shape (seeds,).
        reached: Whether the target was reached, shape (seeds,).
        diverged: Whether the line diverged before the target, shape (seeds,).
        setting: The setting in the line's label; if no line arrived, the rate that came closest in
            a search, else "".
        settings: How many settings were run.
        rates: The learning rates of a search, in order; empty for other runs.
    """

    counts: NDArray[np.float64]
    reached: NDArray[np.bool_]
    diverged: NDArray[np.bool_]
    setting: str = ""
    settings: int = 1
    rates: tuple[float, ...] = ()

    @property
    def at_edge(self) -> bool:
        """Whether the setting is at an edge of the learning rates tried."""
        ends = self.rates[:1] + self.rates[-1:] if len(self.rates) > 1 else ()
        return rate_of(self.setting) in ends

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
    """The cell of an entry: the setting of its sweep that reaches the target first.

    It is one setting for all seeds, so that no seed's luck chooses: that which most seeds reach the
    target with, and of these the one with the fewest rounds on average.
    """
    lines = of_sweep(run, entry.method)
    groups: dict[str, list[Series]] = {}
    for line in sorted(lines, key=lambda line: line.seed):
        groups.setdefault(line.label, []).append(line)

    def hits(group: Sequence[Series]) -> list[float | None]:
        return [line.rounds_to(target) for line in group]

    def order(group: Sequence[Series]) -> tuple[int, bool, float]:
        rounds = [end for end in hits(group) if end is not None]
        lost = not rounds and all(_diverged(line) for line in group)
        # if no line arrives: all rounds of the longest
        longest = float(np.mean([line.rounds[-1] for line in group]))
        return len(group) - len(rounds), lost, float(np.mean(rounds)) if rounds else -longest

    chosen = min(groups.values(), key=order)
    ends = hits(chosen)
    reached = np.array([end is not None for end in ends])
    counts = np.array(
        [line.rounds[-1] if end is None else end for line, end in zip(chosen, ends, strict=True)],
        np.float64,
    )
    rates = {rate for line in lines if (rate := rate_of(line.label)) is not None}
    setting = chosen[0].label.removeprefix(entry.method).strip() if reached.any() else ""
    if not reached.any() and rates and all(_is_searched(line, entry.method) for line in lines):
        setting = f"{RATE}{best_rate(lines, target):g}"
    return MeasuredCell(
        counts * (chosen[0].models if race.unit == "models" else 1),
        reached,
        np.array([_diverged(line) for line in chosen]) & ~reached,
        setting,
        len(groups),
        tuple(sorted(rates)),
    )


def _diverged(line: Series) -> bool:
    return bool(np.isnan(line.values["train_loss"][-1]))


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
