"""The figure of any item: a grid of panels; a name has the same colour in all figures."""

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.engine.item import AXES, BEST, MEASURES, Item, Panel
from experiments.engine.verdicts import Measured, best, pick
from fedprox.report.lines import is_logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES = {
    "#1f77b4": """
        FedDyn | alpha = 0.1 | FedProx, mu = 0 | mu = 0, uniform | E = 20 | theta w + (1 - theta)
        w' | FedSGD | C = 0, E = 5 | FedSGD, eta = 0.464 | IID | E = 5, B = 50 | E = 10, B = 50 |
        balanced | mu = 0.001 | eta = 0.01
    """,
    "#ff7f0e": """
        SCAFFOLD | alpha = 0.01 | FedDANE, mu = 0 | FedDANE, 10 clients | E = 5 | FedAvg, E = 5 |
        C = 0.1, E = 5 | FedAvg, eta = 0.1 | Dirichlet (.6) | E = 5, B = 10 | E = 10, B = 10 | mu
        = 0.1 | eta = 0.3 | FedDANE
    """,
    "#d62728": """
        FedAvg | alpha = 0.001 | E = 50 | C = 1, E = 5 | FedAvg, eta = 0.215 | E = 20, B = 10 |
        unbalanced | eta = 1
    """,
    "#2ca02c": """
        FedProx | alpha = 0.05 | FedProx, mu > 0 | mu > 0, uniform | E = 1 | FedAvg, E = 1 | C =
        0.1, E = 1 | Dirichlet (.3) | E = 1, B = 10 | mu = 1 | eta = 0.03
    """,
    "#9467bd": """
        FedSplit | FedSplit, active | alpha = 0.5 | FedProx, adaptive mu | E = 10 | C = 1, E = 1 |
        FedSGD, eta = 1 | E = 20, B = 50
    """,
    "#8c564b": """FedSplit, all | FedDANE, mu > 0 | E = 25""",
    "#7f7f7f": """
        alpha = 1 | FedDANE, 30 clients | the better of w and w' | E = 5, B = all | E = 10, B =
        all | mu = 0 | eta = 0.001 | distributed SGD, the same eta
    """,
    "#e377c2": """FedDANE, 20 clients | E = 100 | eta = 3""",
    "#17becf": """
        mu = 0, proportional | C = 0, E = 1 | FedSGD, eta = 0.215 | E = 1, B = 50 | mu = 0.01 |
        eta = 0.003
    """,
    "#bcbd22": """
        mu > 0, proportional | FedAvg, eta = 0.0464 | E = 20, B = all | eta = 0.1 | alpha = 0.03
    """,
    "#000000": """SGD | E = 1, B = all | distributed SGD""",
}
COLOURS = {
    " ".join(name.split()): colour for colour, names in _NAMES.items() for name in names.split("|")
}
"""The colour of each name that a legend may show."""

SHOWN_RANGE = 5
"""Upper limit of a loss axis, in multiples of the lowest line's 95th percentile."""


def figure(item: Item, measured: Measured) -> "Figure":
    """An item's panels in the paper's arrangement.

    Lines are means over seeds, and bands span the least and the greatest value. A line that leaves
    the axes has diverged, or nearly so: see `SHOWN_RANGE`.
    """
    from matplotlib.figure import Figure  # here, since it is slow to import

    columns = max(len(row.panels) for row in item.rows)
    drawn = Figure(
        figsize=(max(2.9 * columns, 6), 2.4 * len(item.rows) + 0.9), layout="constrained"
    )
    grid = drawn.subplots(len(item.rows), columns, squeeze=False)
    drawn.suptitle(_symbols(item.title), fontsize=10)
    legend: dict[str, Any] = {}
    for i, row in enumerate(item.rows):
        for j, axis in enumerate(grid[i]):
            if j >= len(row.panels):
                axis.set_axis_off()
                continue
            panel = row.panels[j]
            legend |= _draw(axis, panel, measured)
            title = _title(panel, measured)
            if i == 0 or title != _title(item.rows[i - 1].panels[j], measured):
                axis.set_title(_symbols(title), fontsize=9)
            axis.tick_params(labelsize=8)
            if j == 0:
                words = [row.label, MEASURES[panel.measure]]
                axis.set_ylabel(_symbols("\n".join(filter(None, words))), fontsize=9)
            if i == len(item.rows) - 1 and not panel.missing:
                axis.set_xlabel(_symbols(AXES[panel.x]), fontsize=9)
    shown = list(legend)
    drawn.legend(
        [legend[name] for name in shown],
        [_symbols(name) for name in shown],
        loc="outside lower center",
        ncols=min(len(shown), 4 if columns > 2 else 2) or 1,
        frameon=False,
        fontsize=9,
    )
    return drawn


def _symbols(text: str) -> str:
    return re.sub(r"\b(alpha|mu|eta|theta)\b", r"$\\\1$", text)


def _title(panel: Panel, measured: Measured) -> str:
    chosen = [best(measured[c.run]) for c in panel.curves if c.label == BEST]
    words = [panel.title, *(label.partition(" ")[2].replace("=", " = ") for label in chosen)]
    return ", ".join(words)


def _draw(axis: "Axes", panel: Panel, measured: Measured) -> dict[str, Any]:
    """Draw a panel, and return its lines by their names."""
    from matplotlib.ticker import MaxNLocator

    if panel.missing:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.text(
            0.5,
            0.5,
            panel.missing.replace(": ", ":\n"),
            transform=axis.transAxes,
            ha="center",
            va="center",
            fontsize=8,
            color="0.4",
        )
        return {}
    lines, levels = {}, []
    for curve in panel.curves:
        group = pick(measured[curve.run], curve.label)
        x = max((series.along(panel.x) for series in group), key=len)
        values = np.full((len(group), len(x)), np.nan)
        for row, series in zip(values, group, strict=True):
            measured_values = series.values[panel.measure]  # shorter if the run diverged
            length = len(measured_values)
            row[:length] = np.where(np.isfinite(measured_values), measured_values, np.nan)
            if panel.best:
                row[:length] = np.fmax.accumulate(row[:length])
        dashed = "--" if "proportional" in curve.shown else "-"
        colour = COLOURS[curve.shown]
        style: Any = {"drawstyle": "steps-mid"} if panel.x == "classes" else {}
        (line,) = axis.plot(x, _mean(values), dashed, color=colour, linewidth=1.3, **style)
        if len(group) > 1:
            low, high = _over_seeds(np.nanmin, values), _over_seeds(np.nanmax, values)
            axis.fill_between(
                x,
                low,
                high,
                color=colour,
                alpha=0.15,
                linewidth=0,
                step="mid" if panel.x == "classes" else None,
            )
        lines[curve.shown] = line
        levels.append(values[np.isfinite(values)])
    if panel.x == "classes":
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    elif panel.x == "theta":
        for end in (0, 1):  # w' and w
            axis.axvline(end, color="0.6", linewidth=0.8)
    else:
        _set_limits(axis, panel, levels)
    axis.grid(alpha=0.3)
    return lines


def _over_seeds(function: Any, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A reduction over seeds; NaN where no seed has a value."""
    known = np.isfinite(values).any(axis=0)
    reduced = np.full(values.shape[1], np.nan)
    reduced[known] = function(values[:, known], axis=0)
    return reduced


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over seeds; NaN where a seed has diverged."""
    return np.asarray(values.mean(axis=0))


def _set_limits(axis: "Axes", panel: Panel, levels: list[NDArray[np.float64]]) -> None:
    """Limit the axes to what the panel shows.

    A diverging line must not flatten the others.
    """
    measure = panel.measure
    levels = [values for values in levels if len(values)]
    if panel.last is not None:
        axis.set_xlim(right=min(panel.last, axis.dataLim.x1))
    if panel.level is not None:
        axis.axhline(panel.level, color="0.6", linewidth=0.8)
        if any(values.max() >= panel.level for values in levels):
            axis.set_ylim(bottom=max(1 - 4 * (1 - panel.level), 0))
    if panel.logarithmic:
        axis.set_yscale("log")
    if not levels or panel.logarithmic or measure in ("test_accuracy", "mu", "clients"):
        return
    lowest = min(float(values.min()) for values in levels)
    highest = max(float(values.max()) for values in levels)
    lowest_line = min(float(np.percentile(values, 95)) for values in levels)
    if measure != "train_loss" and is_logarithmic(lowest, highest):
        axis.set_yscale("log")
        return
    top = min(highest, SHOWN_RANGE * lowest_line)
    margin = 0.05 * (top - lowest)
    axis.set_ylim(lowest - margin, top + margin)
