"""The report's figures as plotly data: dicts of plain lists, which the page draws.

Each label has one line, the mean over its seeds, with a band of one sample standard deviation on
either side, as in the table. A number that is not finite becomes None, a gap in the line.
"""

import html
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprox.report.figure import FEW_DECADES, band, is_logarithmic
from fedprox.report.table import align_histories
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run

Trace = dict[str, Any]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5508f", "#b07d00", "#2f9fd0", "#5b3f9e", "#555555")
"""Colours that colour-blind readers can tell apart on white paper (after Okabe and Ito)."""

DASHES = ("solid", "dash", "dot", "dashdot")

MOST_POINTS = 201
"""Points of a distribution's curve: steps of half a per cent of the clients."""

MOST_BINS = 30

ACCURACY_BINS = 20
"""Bins of the clients' accuracies: steps of five per cent."""


class Style(NamedTuple):
    """The appearance of a label's lines in all figures."""

    colour: str
    dash: str


class Line(NamedTuple):
    """One label's curve.

    Attributes:
        label: The label.
        x: Shape (points,).
        values: Shape (seeds, points).
    """

    label: str
    x: NDArray[np.float64]
    values: NDArray[np.float64]


class Axis(NamedTuple):
    """An axis: its title, and whether it shows fractions as per cent."""

    title: str
    percent: bool = False


class Chart(NamedTuple):
    """A figure of the page.

    Attributes:
        title: The heading.
        note: One sentence that says what the figure shows.
        traces: plotly's data.
        layout: plotly's layout where it differs from the page's.
    """

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


def curves(
    groups: dict[str, list[Run]], x: Callable[[Run], Sequence[float]], y: Callable[[Record], float]
) -> list[Line]:
    """A line for each label, with x averaged over its longest seeds, and y for each seed."""
    lines = []
    for label, group in groups.items():
        longest, histories = align_histories(group)
        length = len(longest.history)
        along = np.mean([x(run) for run in group if len(run.history) == length], axis=0)
        values = np.array([[y(record) for record in history] for history in histories])
        lines.append(Line(label, along, values))
    return lines


def chart(
    title: str,
    note: str,
    lines: Sequence[Line],
    looks: dict[str, Style],
    x: Axis,
    y: Axis,
    *,
    compare_at_x: bool = True,
) -> Chart:
    """A figure of lines.

    Args:
        title: Heading.
        note: What it shows.
        lines: The lines.
        looks: The style of each label.
        x: The horizontal axis.
        y: The vertical axis; logarithmic if its numbers span more than a factor of 20.
        compare_at_x: Whether lines have points at the same x, so that hovering shows them all.
    """
    values = np.concatenate([line.values.ravel() for line in lines])
    axis = _axis(y, values)
    known = values[np.isfinite(values)]
    floor = known.min() if axis.get("type") == "log" else -math.inf
    together = compare_at_x and len(lines) <= len(COLOURS)
    shown = "%{y:.2%}" if y.percent else "%{y:.4g}"
    if not together:
        shown += f"<br>{x.title} %{{x}}"
    traces: list[Trace] = []
    for line in lines:
        traces += _traces(line, looks[line.label], shown, floor)
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": x.title},
            "tickformat": ".0%" if x.percent else "",
            "unifiedhovertitle": {"text": f"{x.title} %{{x}}"},
        },
        "yaxis": axis,
        "hovermode": "x unified" if together else "closest",
    }
    return Chart(title, note, traces, layout)


def _traces(line: Line, style: Style, shown: str, floor: float) -> list[Trace]:
    """The band, if there are several seeds, and the line over it.

    Args:
        line: The line.
        style: The line's style.
        shown: Text for hovering.
        floor: Lower limit of the band: a logarithmic axis cannot show 0.
    """
    mean, low, high = band(line.values)
    low = np.maximum(low, floor)
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
    known = np.isfinite(mean)
    # a band is one closed outline for each stretch without a gap
    outline_x: list[float | None] = []
    outline_y: list[float | None] = []
    for stretch in _stretches(known):
        xs = np.concatenate([line.x[stretch], line.x[stretch][::-1]])
        ys = np.concatenate([low[stretch], high[stretch][::-1]])
        outline_x += [*([None] if outline_x else []), *numbers(xs)]
        outline_y += [*([None] if outline_y else []), *numbers(ys)]
    outline = {
        "legendgroup": line.label,
        "x": outline_x,
        "y": outline_y,
        "mode": "lines",
        "line": {"width": 0, "color": style.colour},
        "fill": "toself",
        "fillcolor": f"{style.colour}2e",
        "hoverinfo": "skip",
    }
    return [outline, trace]


def _stretches(known: NDArray[np.bool_]) -> list[slice]:
    """The stretches of True.

    >>> _stretches(np.array([False, True, True, False, True]))
    [slice(1, 3, None), slice(4, 5, None)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int))).tolist()
    return [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _axis(axis: Axis, values: NDArray[np.float64]) -> dict[str, Any]:
    """Plotly's settings of an axis for some values."""
    settings: dict[str, Any] = {"title": {"text": axis.title}}
    known = values[np.isfinite(values)]
    if axis.percent:
        settings |= {"tickformat": ".0%", "rangemode": "nonnegative"}
    elif len(known) and is_logarithmic(known.min(), known.max()):
        # ticks at 1, 2 and 5, or only at powers of ten if there are many; without a format plotly
        # writes 0.2 and 20 as a small "2"
        few = known.max() < FEW_DECADES * known.min()
        settings |= {"type": "log", "dtick": "D2" if few else 1, "tickformat": "~g"}
        settings["title"]["text"] += " (log scale)"
    return settings


def numbers(values: ArrayLike) -> list[float | None]:
    """Numbers to five digits, None where not finite.

    >>> numbers([0.1234567, 200.0, math.inf])
    [0.12346, 200.0, None]
    """
    return [
        float(f"{v:.5g}") if math.isfinite(v) else None for v in np.asarray(values, float).tolist()
    ]


def ranked(label: str, accuracies: Sequence[NDArray[np.float64]]) -> Line:
    """Accuracy against the share of clients from worst to best, one row for each seed.

    >>> line = ranked("fedavg", [np.array([0.9, 0.1, 0.5])])
    >>> line.x.tolist(), line.values.tolist()
    ([0.0, 0.5, 1.0], [[0.1, 0.5, 0.9]])
    """
    share = np.linspace(0, 1, min(max(map(len, accuracies)), MOST_POINTS))
    return Line(label, share, np.array([np.quantile(a, share) for a in accuracies]))


def binned(label: str, accuracies: Sequence[NDArray[np.float64]]) -> Line:
    """The share of clients in each of some equal bins of accuracy, one row for each seed.

    The ends of the axis repeat the first and the last bin.

    >>> line = binned("fedavg", [np.array([0.0, 0.51, 0.52, 1.0])])
    >>> line.values[0, [0, 1, 11, 20, 21]].tolist()
    [0.25, 0.25, 0.5, 0.25, 0.25]
    """
    edges = np.linspace(0, 1, ACCURACY_BINS + 1)
    middles = np.concatenate([[0.0], (edges[1:] + edges[:-1]) / 2, [1.0]])
    shares = [np.histogram(a, edges)[0] / len(a) for a in accuracies]
    return Line(label, middles, np.array([np.pad(share, 1, "edge") for share in shares]))


def in_steps(drawn: Chart) -> Chart:
    """The same figure, with lines that are steps around their points."""
    traces = [t | {"line": t["line"] | {"shape": "hvh"}} for t in drawn.traces]
    return drawn._replace(traces=traces)


def histogram(title: str, note: str, values: Sequence[float], what: str) -> Chart:
    """A histogram of one number for each client; bins have equal ratios if these span decades.

    If all clients have the same number, there is one bar, and the note says so. Without clients
    nothing is drawn.

    Args:
        title: Heading.
        note: What it shows.
        values: One number for each client.
        what: The unit of the numbers, such as "training rows".
    """
    array = np.asarray(values, float)
    if not len(array):
        return Chart(title, note, [], {})
    if np.allclose(array, array[0], rtol=1e-9, atol=0):
        return _single_bar(title, float(array[0]), len(array), what)
    logarithmic = is_logarithmic(array.min(), array.max())
    scaled = np.log10(array) if logarithmic else array
    bins = min(MOST_BINS, math.ceil(2 * len(array) ** (1 / 3)))
    counts, edges = np.histogram(scaled, bins)
    ends = 10**edges if logarithmic else edges
    trace = {
        "type": "bar",
        "x": numbers((edges[1:] + edges[:-1]) / 2),
        "y": counts.tolist(),
        "width": numbers(np.diff(edges) * 0.94),
        "marker": {"color": COLOURS[0]},
        "customdata": [[f"{a:.4g} to {b:.4g}"] for a, b in itertools.pairwise(ends.tolist())],
        "hovertemplate": f"%{{customdata[0]}} {what}: %{{y}} clients<extra></extra>",
    }
    axis: dict[str, Any] = {"title": {"text": what}}
    if logarithmic:
        # a linear axis over the logarithms, so that bars have the width of their bins
        low, high = math.floor(edges[0]), math.ceil(edges[-1])
        labelled = (1, 2, 5) if ends[-1] < FEW_DECADES * ends[0] else (1,)
        ticks = [m * 10.0**e for e in range(low, high + 1) for m in labelled]
        axis |= {"tickvals": numbers(np.log10(ticks)), "ticktext": [f"{t:g}" for t in ticks]}
        axis["title"]["text"] += " (log scale)"
    layout = {"xaxis": axis, "yaxis": {"title": {"text": "clients"}}, "hovermode": "closest"}
    return Chart(title, note, [trace], layout)


def _single_bar(title: str, value: float, count: int, what: str) -> Chart:
    """The histogram of `count` clients that all have the same value."""
    shown = (
        f"{round(value):,}" if math.isclose(value, round(value), rel_tol=1e-9) else f"{value:.4g}"
    )
    trace = {
        "type": "bar",
        "x": [value],
        "y": [count],
        "width": [0.2],
        "marker": {"color": COLOURS[0]},
        "hovertemplate": f"{shown} {what}: %{{y}} clients<extra></extra>",
    }
    axis = {
        "title": {"text": what},
        "range": [value - 1, value + 1],
        "tickvals": [value],
        "ticktext": [shown],
    }
    layout = {"xaxis": axis, "yaxis": {"title": {"text": "clients"}}, "hovermode": "closest"}
    return Chart(title, f"All {count:,} clients have {shown} {what}.", [trace], layout)
