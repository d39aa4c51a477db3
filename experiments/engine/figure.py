"""The figure of any item, drawn as the library draws its own, from runs or from results files."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.engine.item import AXES, MEASURES, RECORDED, Item, Panel
from experiments.engine.series import Measured, Series, pick, without_choice
from fedprox.measures import Measure, measure_of
from fedprox.report import figure as figures
from fedprox.report.figure import PER_ROW, Line, columns_of, draw, explained, styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMES = 200
"""The times at which seeds are averaged."""


def lines_of(panel: Panel, measured: Measured) -> list[tuple[str, str, list[Series]]]:
    """The lines of a panel: the run, the name in the legend, and the series of each seed.

    The name has the run's, if several runs have a line of the same label.
    """
    labels = [
        (run, label)
        for run in panel.runs
        for label in panel.labels or dict.fromkeys(series.label for series in measured[run])
    ]
    alike = len({label for _, label in labels}) < len(labels)
    found = []
    for run, label in labels:
        shown = without_choice(label)
        if alike:
            shown = f"{shown}, {run.removesuffix(f', {panel.title}')}"
        found.append((run, shown, pick(measured[run], label)))
    return found


def figure(item: Item, measured: Measured) -> "Figure":
    """An item's panels in the paper's arrangement, or its transpose if the rows are long.

    Bands are ± one standard deviation over seeds. A line that leaves the axes has diverged, or
    nearly so.
    """
    arranged, columns = arrange(item.panels)
    lines = [(panel, lines_of(panel, measured)) if panel else None for panel in arranged]
    drawn = [each and _drawn(*each) for each in lines]
    groups = [line for each in lines if each for line in each[1]]
    kinds = {panel.measure for row in item.panels for panel in row}
    return draw(
        drawn,
        styles(shown for _, shown, _ in groups),
        columns,
        "\n".join(filter(None, (item.title, explained(group for _, _, group in groups)))),
        share=len(kinds) == 1 and _measure(*kinds).percent,
    )


def arrange(rows: Sequence[Sequence[Panel]]) -> tuple[list[Panel | None], int]:
    """Panels row by row, with None at empty places, and how many are side by side.

    A row that is too long for a page is broken; several such rows become columns.
    """
    columns = max(map(len, rows))
    if columns > PER_ROW and len(rows) == 1:
        return list(rows[0]), columns_of(columns)
    if columns > PER_ROW:
        rows, columns = list(zip_longest(*rows)), len(rows)
    return [panel for row in rows for panel in [*row, *[None] * (columns - len(row))]], columns


def from_results(curves: Sequence[Mapping[str, Any]]) -> Measured:
    """The measured series of which a results file has the curves."""
    found: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for curve in curves:
        values = {
            name: np.asarray(each, float) for name, each in curve.items() if isinstance(each, list)
        }
        of_run = found.setdefault(curve["run"], {})
        of_run.setdefault((curve["label"], curve["seed"]), {}).update(values)
    return {
        run: [
            Series(label, seed, values.get("round", np.empty(0)).astype(int), values)
            for (label, seed), values in group.items()
        ]
        for run, group in found.items()
    }


def _measure(name: str) -> Measure:
    """A measure of `MEASURES`."""
    known = measure_of(name) if name in RECORDED else Measure()
    return known._replace(axis=MEASURES[name])


def _drawn(panel: Panel, lines: Sequence[tuple[str, str, list[Series]]]) -> figures.Panel:
    """A panel with its curves."""
    return figures.Panel(
        panel.title,
        [Line(shown, *_aligned(group, panel)) for _, shown, group in lines],
        Measure(axis=AXES[panel.x], kind=int if panel.x == "round" else float),
        _measure(panel.measure),
        by_factors=panel.x == "bits_up",  # codecs differ by factors
    )


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
