"""The report's figures as plain data, which the page's `figures.js` draws.

Each label has one line, the mean over its seeds, with a band of one sample standard deviation on
either side, as in the table. A number that is not finite becomes None, a gap in the line.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.measures import Measure
from fedprox.report.exports import ReportTable
from fedprox.report.lines import Line, band, is_logarithmic, limits

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5508f", "#b07d00", "#2f9fd0", "#5b3f9e", "#555555")
"""Colours that colour-blind readers can tell apart on white paper (after Okabe and Ito)."""

DASHES = ("solid", "dash", "dot", "dashdot")

MOST_POINTS = 201
"""Points of a distribution's curve: steps of half a per cent of the clients."""


Style = dict[str, str]
"""The appearance of a label's lines in all figures: their colour and dash."""


class Chart(NamedTuple):
    """A figure of the page: a heading, a sentence, and what `figures.js` reads."""

    title: str
    note: str
    data: dict[str, Any]


class Group(NamedTuple):
    """Figures and tables under one heading, with sentences and a note below it.

    Lines are switched on and off by their labels, `keys`, with their styles.
    """

    title: str
    keys: dict[str, Style]
    charts: list[Chart]
    tables: Sequence[ReportTable] = ()
    note: str = ""
    conclusions: Sequence[str] = ()


SHARE = Measure("", "share of the clients", percent=True)


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """A style for each label in order of first appearance: all colours first, then dashes.

    >>> looks = styles(["fedavg", "fedprox mu=1", "fedavg"])
    >>> [style["dash"] for style in looks.values()]
    ['solid', 'solid']
    """
    looks = itertools.cycle({"colour": c, "dash": d} for d in DASHES for c in COLOURS)
    return dict(zip(dict.fromkeys(labels), looks, strict=False))


def chart(
    title: str,
    note: str,
    lines: Sequence[Line],
    looks: Mapping[str, Style],
    x: Measure,
    y: Measure,
    mark: float | None = None,
) -> Chart:
    """A figure of lines, with a line upright at `mark`.

    The vertical axis is logarithmic if its numbers span more than a factor of 20. Bands then end at
    the least of them: such an axis cannot show 0.
    """
    least, most = limits(lines)
    log = not y.percent and is_logarithmic(least, most)
    drawn = []
    for line in lines:
        mean, low, high = band(line.values)
        edges = {"low": np.maximum(low, least) if log else low, "high": high}
        if len(line.values) == 1:
            edges = dict.fromkeys(edges, mean[:0])
        curve = {"x": line.x, "y": mean, **edges}
        numbers_of = {name: numbers(values) for name, values in curve.items()}
        drawn.append({"label": line.label, **numbers_of, **looks[line.label]})
    data = {
        "x": {"title": x.axis, "percent": x.percent, "log": False},
        "y": {
            "title": f"{y.axis} (log scale)" if log else y.axis,
            "percent": y.percent,
            "log": log,
        },
        "lines": drawn,
        "mark": mark,
    }
    return Chart(title[:1].upper() + title[1:], note, data)


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
