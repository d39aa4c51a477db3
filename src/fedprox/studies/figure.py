"""The figure of a study: a panel for each combination of levels, a line for each method."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedprox.errors import require_one_of
from fedprox.measures import measure_of
from fedprox.report.figure import make_logarithmic
from fedprox.report.lines import Line, band, curves, explained, is_logarithmic, limits
from fedprox.simulation.results.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALONG = ("round", "time", "communication", "bits_up", "total_steps")
"""The measures against which a figure may be drawn."""

PER_ROW = 4
"""The most panels side by side."""

INCHES = 0.085
"""Width of a character in the legend."""


def axis_of(runs: Sequence[Run], along: str | None) -> str:
    """The measure on the horizontal axis: the time if clients have devices, else rounds."""
    if along is not None:
        require_one_of("along", along, ALONG)
        return along
    return "round" if any(run.final.time is None for run in runs) else "time"


def study_figure(
    groups: Mapping[tuple[str, ...], Mapping[str, Sequence[Run]]], measure: str, along: str | None
) -> "Figure":
    """A panel for each group, with the mean of each method over seeds and a band."""
    # here, since matplotlib is slow to import
    from fedprox.report.notebook_figure import NotebookFigure

    runs = [run for methods in groups.values() for group in methods.values() for run in group]
    x = axis_of(runs, along)
    panels: list[tuple[str, list[Line]]] = [
        (", ".join(levels), curves(methods, x, measure)) for levels, methods in groups.items()
    ]
    # a row of panels for each level of the first factors, if their number fits
    last = len({levels[-1:] for levels in groups})
    width = last if last <= PER_ROW else PER_ROW - 1
    height = math.ceil(len(panels) / width)
    inches = max(4.0 * width, 6.0)
    drawn = NotebookFigure(figsize=(inches, 3.2 * height + 0.6), layout="constrained")
    axes = drawn.subplots(height, width, squeeze=False).ravel()
    names = dict.fromkeys(name for methods in groups.values() for name in methods)
    colours = {name: f"C{i % 10}" for i, name in enumerate(names)}
    y, handles = measure_of(measure), {}
    for axis, (title, lines) in zip(axes, panels, strict=False):
        for line in lines:
            mean, low, high = band(line.values)
            colour = colours[line.label]
            (handles[line.label],) = axis.plot(line.x, mean, linewidth=1.5, color=colour)
            if len(line.values) > 1:
                axis.fill_between(line.x, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_title(title, fontsize=10, parse_math=False)
        axis.set_xlabel("time in seconds" if x == "time" else measure_of(x).axis)
        axis.set_ylabel(y.axis)
        axis.grid(alpha=0.3)
        if lines and not y.percent and is_logarithmic(*limits(lines)):
            make_logarithmic(axis, *limits(lines))
    for unused in axes[len(panels) :]:
        unused.remove()
    seeds = [group for methods in groups.values() for group in methods.values()]
    drawn.suptitle(explained(seeds), fontsize=9)
    legend = drawn.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=max(1, int(inches / (0.6 + INCHES * max(map(len, handles), default=1)))),
        fontsize=8,
        frameon=False,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a user's name may contain dollar signs
    return drawn
