"""The figure of any item: a grid of panels, in which a line has one colour and dash."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.engine.item import AXES, MEASURES, RECORDED, Item, Panel
from experiments.engine.series import LOSS, VALIDATED, VARIANCE, Measured, Series, pick
from fedprox.measures import measure_of
from fedprox.report.figure import draw_line, dress, in_per_cent, is_logarithmic, styles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN_RANGE = 5
"""Upper limit of a loss axis, in multiples of the lowest line's 95th percentile."""

CHARACTERS = 14
"""Characters of the legend that an inch has room for."""

EXTREMES = np.nanmin, np.nanmax

TIMES = 200
"""The times at which seeds are averaged."""


def lines_of(panel: Panel, measured: Measured) -> list[tuple[str, str, list[Series]]]:
    """The lines of a panel: the run, the name in the legend, and the series of each seed."""
    found = []
    for run in panel.runs:
        labels = panel.labels or dict.fromkeys(series.label for series in measured[run])
        for label in labels:
            group = pick(measured[run], label)
            shown = label.removeprefix(VALIDATED)
            if len(panel.runs) > 1:
                shown = f"{shown}, {run.removesuffix(f', {panel.title}')}"
            found.append((run, shown, group))
    return found


def figure(item: Item, measured: Measured) -> "Figure":
    """An item's panels in the paper's arrangement.

    Lines are means over seeds, and bands span the least and the greatest value. A line that leaves
    the axes has diverged, or nearly so: see `SHOWN_RANGE`.
    """
    from matplotlib.figure import Figure  # here, since it is slow to import

    panels = [panel for row in item.panels for panel in row]
    looks = styles(shown for panel in panels for _, shown, _ in lines_of(panel, measured))
    columns = max(map(len, item.panels))
    size = max(2.9 * columns, 6), 2.4 * len(item.panels) + 0.9
    drawn = Figure(figsize=size, layout="constrained")
    grid = drawn.subplots(len(item.panels), columns, squeeze=False)
    drawn.suptitle(item.title, fontsize=10)
    legend: dict[str, Any] = {}
    for row, axes in zip(item.panels, grid, strict=True):
        for axis in axes[len(row) :]:
            axis.set_axis_off()
        for axis, panel in zip(axes, row, strict=False):
            groups = []
            for _, shown, group in lines_of(panel, measured):
                x, values = _aligned(group, panel)
                edges = [_over_seeds(f, values) for f in EXTREMES] if len(group) > 1 else []
                legend[shown] = draw_line(axis, x, values.mean(axis=0), edges, looks[shown])
                groups.append(values[np.isfinite(values)])
            _set_limits(axis, panel.measure, [values for values in groups if len(values)])
            axis.set_title(panel.title, fontsize=9)
            dress(axis, AXES[panel.x], MEASURES[panel.measure])
            if panel.x == "bits_up":  # codecs differ by factors
                axis.set_xscale("log", nonpositive="mask")
            if panel.measure in RECORDED and measure_of(panel.measure).percent:
                in_per_cent(axis)
    fit = int(CHARACTERS * size[0] / (max(map(len, legend)) + 6))
    ncols = max(1, min(len(legend), 4 if columns > 2 else 2, fit))
    drawn.legend(
        list(legend.values()),
        list(legend),
        loc="outside lower center",
        ncols=ncols,
        frameon=False,
        fontsize=9,
    )
    return drawn


def _aligned(group: Sequence[Series], panel: Panel) -> tuple[Any, NDArray[np.float64]]:
    """The longest seed's x, and each seed's values, NaN where one diverged or has ended.

    Seeds have times of their own: at each of some common times a seed has its last value.
    """
    if panel.x == "time":
        times = np.linspace(0, max(series.values["time"][-1] for series in group), TIMES)
        return times, np.array([_at_times(series, panel.measure, times) for series in group])
    x = max((series.along(panel.x) for series in group), key=len)
    values = np.full((len(group), len(x)), np.nan)
    for row, series in zip(values, group, strict=True):
        found = series.values[panel.measure]
        row[: len(found)] = np.where(np.isfinite(found), found, np.nan)
    return x, values


def _at_times(series: Series, measure: str, times: NDArray[np.float64]) -> NDArray[np.float64]:
    """A seed's last values at some times, NaN where it diverged."""
    found = series.values[measure][np.searchsorted(series.values["time"], times, "right") - 1]
    return np.where(np.isfinite(found), found, np.nan)


def _over_seeds(function: Any, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A reduction over seeds; NaN where no seed has a value."""
    known = np.isfinite(values).any(axis=0)
    reduced = np.full(values.shape[1], np.nan)
    reduced[known] = function(values[:, known], axis=0)
    return reduced


def _set_limits(axis: "Axes", measure: str, lines: list[NDArray[np.float64]]) -> None:
    """Limit the axis so that a diverging line does not flatten the others."""
    if not lines or measure not in (LOSS, VARIANCE):
        return
    lowest = min(float(values.min()) for values in lines)
    highest = max(float(values.max()) for values in lines)
    if measure == VARIANCE and is_logarithmic(lowest, highest):
        axis.set_yscale("log")
        return
    top = min(highest, SHOWN_RANGE * min(float(np.percentile(values, 95)) for values in lines))
    margin = 0.05 * (top - lowest)
    axis.set_ylim(lowest - margin, top + margin)
