"""Races: rounds, models sent or time to a target, in the paper and in our runs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.engine.item import Entry, Race
from experiments.engine.series import (
    VALIDATED,
    WORST,
    Measured,
    Series,
    candidates,
    of_sweep,
    pick,
    without_choice,
)
from fedprox.results.target import Target

FACTOR = 1.5
"""The table marks numbers that differ from the paper's by more than this factor."""

RATE = "learning_rate="
"""How the label of a line of a search gives its rate."""


class Count(NamedTuple):
    """Rounds, models or seconds until a target.

    Attributes:
        value: The number.
        more: Whether that many were not enough, as in the papers' "1000+".
    """

    value: float
    more: bool = False


Counts = Sequence[Sequence[Count | None]]
"""The numbers of a table, by row; None for empty cells."""


class Cell(NamedTuple):
    """Our measurements for a cell, of the setting of its sweep that is the first on average.

    Attributes:
        counts: Rounds, models or seconds until the target, or of the whole run, shape (seeds,).
        reached: Whether the target was reached, shape (seeds,).
        diverged: Whether the line diverged before the target, shape (seeds,).
        setting: The setting in the line's label, "" if there is one alone.
        settings: How many settings were run.
        rates: The learning rates of a search, in order; empty for other runs.
    """

    counts: NDArray[np.float64]
    reached: NDArray[np.bool_]
    diverged: NDArray[np.bool_]
    setting: str
    settings: int
    rates: tuple[float, ...]

    @property
    def mean(self) -> Count | None:
        """The mean over seeds, a lower bound if a seed has not reached the target.

        None if a seed diverged, because its last round means nothing.
        """
        if self.diverged.any():
            return None
        return Count(float(self.counts.mean()), not self.reached.all())


def measure(race: Race, measured: Measured) -> list[list[Cell | None]]:
    """Our measurements for each cell of a table, by row; None without a run.

    Raises:
        KeyError: A run has no such method.
    """
    return [
        [entry and _cell(entry, row.target, race, measured[entry.run]) for entry in row.entries]
        for row in race.rows
    ]


def _cell(entry: Entry, target: Target, race: Race, run: Sequence[Series]) -> Cell:
    if entry.method.startswith(VALIDATED):
        lines, chosen = candidates(run, entry.method), pick(run, entry.method)
    else:
        lines = of_sweep(run, entry.method)
        chosen = first_at(lines, target)
    timed = race.unit == "seconds"
    ends = [line.time_to(target) if timed else line.rounds_to(target) for line in chosen]
    reached = np.array([end is not None for end in ends])
    counts = [
        float(line.along("time" if timed else "round")[-1]) if end is None else end
        for line, end in zip(chosen, ends, strict=True)
    ]
    settings = len({line.label for line in lines})
    rates = {rate for line in lines if (rate := rate_of(line.label)) is not None}
    return Cell(
        np.array(counts) * (chosen[0].models if race.unit == "models" else 1),
        reached,
        np.array([line.diverged for line in chosen]) & ~reached,
        chosen[0].label.removeprefix(without_choice(entry.method)).strip(),
        settings,
        tuple(sorted(rates)) if len(rates) == settings else (),
    )


def first_at(lines: Sequence[Series], target: Target) -> list[Series]:
    """Of the lines of a sweep those of the setting that reaches a target first, by seed.

    It is one setting for all seeds, so that no seed's luck chooses: that which most seeds reach the
    target with, and of these the one with the fewest rounds on average. If none arrives, it is the
    one that comes closest, and those that diverge come after all others. Of equal ones the lowest
    rate is first, so a search that begins where all diverge goes down.
    """
    settings: dict[str, list[Series]] = {}
    for line in sorted(lines, key=lambda line: (rate_of(line.label) or 0.0, line.seed)):
        settings.setdefault(line.label, []).append(line)
    sign = -1.0 if WORST[target.measure] < 0 else 1.0

    def order(group: Sequence[Series]) -> tuple[int, bool, float]:
        ends = [end for line in group if (end := line.rounds_to(target)) is not None]
        closest = [float(np.min(sign * line.of(target.measure))) for line in group]
        lost = not ends and any(line.diverged for line in group)
        return len(group) - len(ends), lost, float(np.mean(ends or closest))

    return min(settings.values(), key=order)


def rate_of(label: str) -> float | None:
    """The rate in the label of a line; None if it gives none.

    >>> rate_of("fedavg learning_rate=0.1"), rate_of("feddyn alpha=0.1")
    (0.1, None)
    """
    _, found, rate = label.partition(RATE)
    return float(rate.split()[0]) if found else None


def printed(paper: float | str) -> Count | None:
    """A paper's number.

    >>> printed(637), printed("1000+"), printed("")
    (Count(value=637.0, more=False), Count(value=1000.0, more=True), None)
    """
    text = str(paper)
    return Count(float(text.removesuffix("+")), text.endswith("+")) if text else None


def race_rows(race: Race, measured: Measured) -> list[list[str]]:
    """The cells of a table as text, and last those that are far from the paper's."""
    cells = measure(race, measured)
    ours = [[cell and cell.mean for cell in row] for row in cells]
    papers = [[entry and printed(entry.paper) for entry in row.entries] for row in race.rows]
    rows = []
    for i, row in enumerate(cells):
        shown = [_shown(cell, papers, ours, (i, j), race.relative) for j, cell in enumerate(row)]
        far = [
            f"**{column}: {times}**"
            for column, paper, own in zip(race.columns, papers[i], ours[i], strict=True)
            if (times := off(paper, own))
        ]
        rows.append([*shown, "; ".join(far)])
    return rows


def _shown(
    cell: Cell | None, papers: Counts, ours: Counts, place: tuple[int, int], relative: str
) -> str:
    """The paper's number and ours, each with its ratio, and the setting of ours."""
    if cell is None:
        return ""

    def with_ratio(number: str, counts: Counts) -> str:
        shown = ratio(counts, *place, relative)
        return f"{number} ({shown})" if shown else number

    paper = papers[place[0]][place[1]]
    parts = []
    if paper:
        parts.append(with_ratio(f"paper {paper.value:g}" + "+" * paper.more, papers))
    if cell.diverged.any():
        bad, seeds = int(cell.diverged.sum()), len(cell.diverged)
        who = "" if bad == seeds else f" ({bad} of {seeds} seeds)"
        return "; ".join([*parts, f"ours diverged{who}"])
    parts.append(with_ratio(f"ours {_count_text(cell)}", ours))
    if cell.setting:
        edges = cell.rates[:1] + cell.rates[-1:] if len(cell.rates) > 1 else ()
        setting = "closest " * (not cell.reached.any()) + cell.setting
        setting += " (at the edge)" * (rate_of(cell.setting) in edges)
        if len(cell.rates) > 1:
            setting += f" of {', '.join(f'{rate:g}' for rate in cell.rates)}"
        elif cell.settings > 1:
            setting += f" of {cell.settings} settings"
        parts.append(setting)
    return "; ".join(parts)


def _count_text(cell: Cell) -> str:
    """Our mean and deviation over seeds; T+ if a seed had not reached the target after T."""
    counts = cell.counts
    if not cell.reached.all():
        most, some = counts[~cell.reached].max(), int(cell.reached.sum())
        return f"{most:g}+" + (f" ({some} of {len(counts)} seeds got there)" if some else "")
    form = ".1f" if counts.mean() < 10 else ".0f"
    text = f"{counts.mean():{form}}"
    return text + (f" ± {counts.std(ddof=1):{form}}" if len(counts) > 1 else "")


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
