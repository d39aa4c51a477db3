"""The figure of a study: a panel for each combination of levels, a line for each method."""

import math
from typing import TYPE_CHECKING, Any

from fedprox.errors import require_one_of
from fedprox.measures import COSTS, measure_of
from fedprox.report.compare import Groups
from fedprox.report.figure import axis_of, draw_panel, explain_lines
from fedprox.report.lines import curves, explained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PER_ROW = 4
"""The most panels side by side."""

INCHES = 0.085
"""Width of a character in the legend."""


def study_figure(groups: Groups, measure: str, x: str | None) -> "Figure":
    """A panel for each group, with the mean of each method over seeds and a band."""
    # here, since matplotlib is slow to import
    from fedprox.report.notebook_figure import NotebookFigure

    if x is not None:
        require_one_of("along", x, COSTS)
    seeds = [runs for methods in groups.values() for runs in methods.values()]
    x = x or axis_of([run for runs in seeds for run in runs])
    # a row of panels for each level of the first factors, if their number fits
    last = len({levels[-1:] for levels in groups})
    width = last if last <= PER_ROW else PER_ROW - 1
    height = math.ceil(len(groups) / width)
    inches = max(4.0 * width, 6.0)
    drawn = NotebookFigure(figsize=(inches, 3.2 * height + 0.6), layout="constrained")
    axes = drawn.subplots(height, width, squeeze=False).ravel()
    names = dict.fromkeys(name for methods in groups.values() for name in methods)
    looks = {name: {"color": f"C{i % 10}"} for i, name in enumerate(names)}
    handles: dict[str, Any] = {}
    for axis, (levels, methods) in zip(axes, groups.items(), strict=False):
        title, lines = ", ".join(level for _, level in levels), curves(methods, x, measure)
        handles |= draw_panel(axis, title, lines, looks, x, measure_of(measure))
    for unused in axes[len(groups) :]:
        unused.remove()
    longest = max(map(len, handles), default=1)
    columns = max(1, int(inches / (0.6 + INCHES * longest)))
    explain_lines(drawn, explained(seeds), handles, columns)
    return drawn
