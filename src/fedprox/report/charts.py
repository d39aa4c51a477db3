"""The report's figures as plain data, which the page's `figures.js` draws.

Each label has one line, the mean over its seeds, with a band of one sample standard deviation on
either side, as in the table. A number that is not finite becomes None, a gap in the line.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.measures import Measure
from fedprox.report.lines import Line, band, is_logarithmic, limits

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5508f", "#b07d00", "#2f9fd0", "#5b3f9e", "#555555")
"""Colours that colour-blind readers can tell apart on white paper (after Okabe and Ito)."""

DASHES = ("solid", "dash", "dot", "dashdot")

MOST_POINTS = 201
"""Points of a distribution's curve: steps of half a per cent of the clients."""


class Style(NamedTuple):
    """The appearance of a label's lines in all figures."""

    colour: str
    dash: str


class Axis(NamedTuple):
    """An axis: its title, whether it shows per cent, and whether it is logarithmic."""

    title: str
    percent: bool = False
    log: bool = False


class Curve(NamedTuple):
    """A line of a figure, and the edges of its band, which a single seed does not have."""

    label: str
    x: list[float | None]
    y: list[float | None]
    low: list[float | None]
    high: list[float | None]


class Chart(NamedTuple):
    """A figure of the page: a heading, a sentence, axes, lines, and a line upright at `mark`."""

    title: str
    note: str
    x: Axis
    y: Axis
    curves: list[Curve]
    looks: dict[str, Style]
    mark: float | None = None

    @property
    def data(self) -> dict[str, Any]:
        """The figure as `figures.js` reads it."""
        lines = [curve._asdict() | self.looks[curve.label]._asdict() for curve in self.curves]
        return {
            "x": self.x._asdict(),
            "y": self.y._asdict(),
            "lines": lines,
            "mark": self.mark,
        }


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """A style for each label in order of first appearance: all colours first, then dashes.

    >>> looks = styles(["fedavg", "fedprox mu=1", "fedavg"])
    >>> [style.dash for style in looks.values()]
    ['solid', 'solid']
    """
    looks = itertools.cycle(Style(c, d) for d in DASHES for c in COLOURS)
    return dict(zip(dict.fromkeys(labels), looks, strict=False))


def chart(
    title: str,
    note: str,
    lines: Sequence[Line],
    looks: dict[str, Style],
    x: Measure,
    y: Measure,
) -> Chart:
    """A figure of lines.

    The vertical axis is logarithmic if its numbers span more than a factor of 20.
    """
    low, high = limits(lines)
    log = not y.percent and is_logarithmic(low, high)
    axis = Axis(f"{y.axis} (log scale)" if log else y.axis, y.percent, log)
    drawn = [_curve(line, low if log else -math.inf) for line in lines]
    heading = title[:1].upper() + title[1:]
    return Chart(heading, note, Axis(x.axis, x.percent), axis, drawn, looks)


def _curve(line: Line, floor: float) -> Curve:
    """The line, and its band if there are several seeds.

    The band ends at the floor: a logarithmic axis cannot show 0.
    """
    mean, low, high = band(line.values)
    edges = (np.maximum(low, floor), high) if len(line.values) > 1 else (mean[:0], mean[:0])
    return Curve(line.label, *map(numbers, (line.x, mean, *edges)))


def numbers(values: NDArray[np.float64]) -> list[float | None]:
    """Numbers to five digits, None where not finite.

    >>> numbers(np.array([0.1234567, 200.0, math.inf]))
    [0.12346, 200.0, None]
    """
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in values.tolist()]


def ranked(label: str, measured: Sequence[Sequence[float] | NDArray[np.float64]]) -> Line:
    """A number of each client against the share of clients from least to greatest, for each seed.

    >>> line = ranked("fedavg", [np.array([0.9, 0.1, 0.5])])
    >>> line.x.tolist(), line.values.tolist()
    ([0.0, 0.5, 1.0], [[0.1, 0.5, 0.9]])
    """
    share = np.linspace(0, 1, min(max(np.size(each) for each in measured), MOST_POINTS))
    return Line(label, share, np.array([np.quantile(each, share) for each in measured]))
