"""Figures of lines: of a comparison, and of a study."""

import math
from collections.abc import Mapping, Sequence
from itertools import count
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fedprox.errors import require, require_one_of
from fedprox.measures import COSTS, Measure, measure_of
from fedprox.report.compare import Groups
from fedprox.report.lines import FEW_DECADES, Line, band, curves, explained, is_logarithmic, limits
from fedprox.report.records import has
from fedprox.report.rows import by_label
from fedprox.report.table import metrics_on_test_rows
from fedprox.results.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = ("train_loss", "validation_accuracy", "test_accuracy", "gradient_variance")

DASHES = ("solid", "dashed", "dotted")

WRAPPED = 56
"""The most characters of a line of a label."""

PER_ROW = 4
"""The most panels side by side."""

INCHES = 0.085
"""Width of a character in the legend."""


def figure(runs: Sequence[Run]) -> "Figure":
    """A figure with a panel for each measure and a line for each method.

    Bands are ± one standard deviation over seeds. Only what was measured is drawn: without
    gradients there is no panel of their variance. A model's metrics on test rows have panels of
    their own. Runs of several comparisons share a line as they share a row of `fedprox.table`. If
    clients have devices, the axis is the time by them, else it is rounds.

    Args:
        runs: The runs of one or more comparisons, as `simulate` returns them.

    Returns:
        A Matplotlib figure that is not registered with pyplot; notebooks show it.

    Raises:
        InputError: If there are no runs, or they cannot be told apart, see `fedprox.table`.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> runs = fp.simulate(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.01, batch_size=10, epochs=1),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=2,
        ... )
        >>> [panel.get_title() for panel in figure(runs).axes][:2]
        ['training loss', 'test accuracy']
    """
    # here, since matplotlib is slow to import
    from fedprox.report.notebook_figure import NotebookFigure

    require(runs, "runs: none given; at least one is needed")
    groups = by_label(runs)
    styles = ({"color": f"C{i % 10}", "linestyle": DASHES[i // 10 % 3]} for i in count())
    looks = dict(zip(groups, styles, strict=False))
    names = (*PANELS, *metrics_on_test_rows(runs))
    x = axis_of(runs)
    panels = {name: lines for name in names if (lines := curves(groups, x, name))}
    drawn = NotebookFigure(figsize=(4 * max(len(panels), 1), 3.8), layout="constrained")
    axes = drawn.subplots(1, max(len(panels), 1), squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axis, (name, lines) in zip(axes, panels.items(), strict=False):
        handles |= _draw_panel(axis, measure_of(name).title, lines, looks, x, measure_of(name))
        axis.yaxis.label.set_fontsize(8)
    labels = [fill(label, WRAPPED, subsequent_indent="  ") for label in handles]
    rows = sum(label.count("\n") + 1 for label in labels)
    drawn.set_figheight(drawn.get_figheight() + 0.19 * -(-rows // len(axes)) + 0.2)
    _explain_lines(drawn, explained(groups.values()), handles, labels, len(axes))
    return drawn


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
        handles |= _draw_panel(axis, title, lines, looks, x, measure_of(measure))
    for unused in axes[len(groups) :]:
        unused.remove()
    longest = max(map(len, handles), default=1)
    columns = max(1, int(inches / (0.6 + INCHES * longest)))
    _explain_lines(drawn, explained(seeds), handles, list(handles), columns)
    return drawn


def axis_of(runs: Sequence[Run]) -> str:
    """The measure on the horizontal axis: the time if clients have devices, else rounds."""
    return "time" if all(has(run.final, "time") for run in runs) else "round"


def _draw_panel(
    axis: "Axes",
    title: str,
    lines: Sequence[Line],
    looks: Mapping[str, Mapping[str, Any]],
    x: str,
    y: Measure,
) -> dict[str, Any]:
    """Draw a line for each label, with a band over seeds, and return the lines by label."""
    handles = {}
    for line in lines:
        mean, low, high = band(line.values)
        (handles[line.label],) = axis.plot(line.x, mean, linewidth=1.5, **looks[line.label])
        if len(line.values) > 1:
            colour = looks[line.label]["color"]
            axis.fill_between(line.x, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.set_title(title, fontsize=10, parse_math=False)  # it may hold a user's name
    axis.set_xlabel("time in seconds" if x == "time" else measure_of(x).axis)
    axis.set_ylabel(y.axis)
    axis.grid(alpha=0.3)
    if lines and not y.percent and is_logarithmic(*limits(lines)):
        make_logarithmic(axis, *limits(lines))
    return handles


def _explain_lines(
    drawn: "Figure", caption: str, lines: Mapping[str, Any], labels: Sequence[str], columns: int
) -> None:
    """Add the legend of some lines below a figure's panels, and a caption above them."""
    if caption:
        drawn.suptitle(caption, fontsize=9)
    legend = drawn.legend(
        list(lines.values()),
        labels,
        loc="outside lower center",
        ncols=columns,
        fontsize=8,
        frameon=False,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a user's label may contain dollar signs


def make_logarithmic(axis: "Axes", lowest: float, highest: float) -> None:
    """Make an axis logarithmic, with a label that says so and plain numbers at its ticks.

    The axis ends just below the lowest value, which cuts off bands that reach 0.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_yscale("log")
    axis.set_ylim(bottom=lowest / 1.2)
    few = highest < FEW_DECADES * lowest
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel(f"{axis.get_ylabel()} (log scale)".strip(), fontsize=8)
