"""The report's figures as plotly data: dicts of plain lists, which the page draws.

Each label has one line, the mean over its seeds, with a band of one sample standard deviation on
either side, as in the table. A number that is not finite becomes None, a gap in the line.
"""

import html
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.measures import Measure
from fedprox.report.lines import FEW_DECADES, Line, band, is_logarithmic, limits

Trace = dict[str, Any]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5508f", "#b07d00", "#2f9fd0", "#5b3f9e", "#555555")
"""Colours that colour-blind readers can tell apart on white paper (after Okabe and Ito)."""

DASHES = ("solid", "dash", "dot", "dashdot")

MOST_POINTS = 201
"""Points of a distribution's curve: steps of half a per cent of the clients."""


class Style(NamedTuple):
    """The appearance of a label's lines in all figures."""

    colour: str
    dash: str


class Chart(NamedTuple):
    """A figure of the page: a heading, a sentence, plotly's data, and layout beside the page's."""

    title: str
    note: str
    traces: list[Trace]
    layout: dict[str, Any]


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
    axis: dict[str, Any] = {"title": {"text": y.axis}}
    if y.percent:
        axis |= {"tickformat": ".0%", "rangemode": "nonnegative"}
    elif is_logarithmic(low, high):
        # ticks at 1, 2 and 5, or only at powers of ten if there are many; without a format plotly
        # writes 0.2 and 20 as a small "2"
        axis |= {"type": "log", "dtick": "D2" if high < FEW_DECADES * low else 1}
        axis |= {"tickformat": "~g", "title": {"text": f"{y.axis} (log scale)"}}
    floor = low if "type" in axis else -math.inf
    # hovering shows all lines if they have points at the same x
    points = {tuple(line.x[: min(len(each.x) for each in lines)]) for line in lines}
    together = len(points) == 1 and len(lines) <= len(COLOURS)
    shown = "%{y:.2%}" if y.percent else "%{y:.4g}"
    if not together:
        shown += f"<br>{x.axis} %{{x}}"
    layout = {
        "xaxis": {
            "title": {"text": x.axis},
            "tickformat": ".0%" if x.percent else "",
            "unifiedhovertitle": {"text": f"{x.axis} %{{x}}"},
        },
        "yaxis": axis,
        "hovermode": "x unified" if together else "closest",
    }
    traces = [t for line in lines for t in _traces(line, looks[line.label], shown, floor)]
    return Chart(title[:1].upper() + title[1:], note, traces, layout)


def _traces(line: Line, style: Style, shown: str, floor: float) -> list[Trace]:
    """The band, if there are several seeds, and the line over it, with a text for hovering.

    The band ends at the floor: a logarithmic axis cannot show 0.
    """
    mean, low, high = band(line.values)
    trace: Trace = {
        "name": html.escape(line.label, quote=False),  # plotly reads tags in names
        "legendgroup": line.label,
        "x": numbers(line.x),
        "y": numbers(mean),
        "mode": "lines" if len(line.x) > 1 else "markers",
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "hovertemplate": shown,
    }
    if len(line.values) == 1:
        return [trace]
    # a band is one closed outline for each stretch without a gap
    outline: list[NDArray[np.float64]] = []
    for stretch in np.ma.clump_unmasked(np.ma.masked_invalid(mean)):
        edges = np.array([[line.x, np.maximum(low, floor)], [line.x, high]])[:, :, stretch]
        outline += [edges[0], edges[1, :, ::-1], np.full((2, 1), np.nan)]
    xs, ys = np.hstack(outline)[:, :-1] if outline else ([], [])
    filled = {
        "legendgroup": line.label,
        "x": numbers(xs),
        "y": numbers(ys),
        "mode": "lines",
        "line": {"width": 0, "color": style.colour},
        "fill": "toself",
        "fillcolor": f"{style.colour}2e",
        "hoverinfo": "skip",
    }
    return [filled, trace]


def numbers(values: ArrayLike) -> list[float | None]:
    """Numbers to five digits, None where not finite.

    >>> numbers([0.1234567, 200.0, math.inf])
    [0.12346, 200.0, None]
    """
    return [
        float(f"{v:.5g}") if math.isfinite(v) else None for v in np.asarray(values, float).tolist()
    ]


def ranked(label: str, measured: Sequence[Sequence[float] | NDArray[np.float64]]) -> Line:
    """A number of each client against the share of clients from least to greatest, for each seed.

    >>> line = ranked("fedavg", [np.array([0.9, 0.1, 0.5])])
    >>> line.x.tolist(), line.values.tolist()
    ([0.0, 0.5, 1.0], [[0.1, 0.5, 0.9]])
    """
    share = np.linspace(0, 1, min(max(np.size(each) for each in measured), MOST_POINTS))
    return Line(label, share, np.array([np.quantile(each, share) for each in measured]))
