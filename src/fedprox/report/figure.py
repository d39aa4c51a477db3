"""Figures of lines: the lines, as the report's page draws them, and as Matplotlib does.

A line is a measure against another one: for each label, with a value for each seed. It shows the
mean over the seeds, with a band of one sample standard deviation on either side, as in the table.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import count, zip_longest
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, require_one_of
from fedprox.measures import COSTS, Measure, measure_of
from fedprox.report.compare import Groups, in_words
from fedprox.report.records import by_label, has, number_of
from fedprox.report.table import ReportTable, metrics_on_test_rows
from fedprox.results.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = ("train_loss", "validation_accuracy", "test_accuracy", "gradient_variance")

WRAPPED = 56
"""The most characters of a line of a label."""

WIDTH, HEIGHT = 7.0, 2.4
"""Inches of a figure, which are those of a printed page, and of a row of panels."""

PER_ROW = 3
"""The most panels side by side."""

POINTS, TITLE_POINTS = 8, 9
"""Sizes of text and of titles."""

INCHES = 0.085
"""Width of a character in the legend."""

SHOWN_RANGE = 3
"""The most height of an axis, in multiples of that of the lower half of the lines."""

LOGARITHMIC_FROM = 20
"""Ratio of greatest to least value above which an axis is logarithmic."""

FEW_DECADES = 1000
"""That ratio from which a logarithmic axis has labels only at powers of ten, not at 2 and 5."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b5508f", "#5c3d00", "#3b2a86", "#7a1f2b", "#222222")
"""Colours on white paper: four after Okabe and Ito, and four dark ones.

Beside the dash, which two of them share, colour-blind readers and grey prints tell them apart.
"""

DASHES = {
    "solid": "solid",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 1.5, 1, 1.5)),
}
"""Names of dashes, and Matplotlib's line styles."""

MOST_POINTS = 201
"""Points of a distribution's curve: steps of half a per cent of the clients."""


Style = dict[str, str]
"""The appearance of a label's lines in all figures: their colour and dash."""

SHARE = Measure("", "share of the clients", percent=True)


class Line(NamedTuple):
    """One label's curve: x of shape (points,), and values of shape (seeds, points)."""

    label: str
    x: NDArray[np.float64]
    values: NDArray[np.float64]


def curves(groups: Mapping[str, Sequence[Run]], x: str, y: str) -> list[Line]:
    """A line for each label for which y is known.

    The last record of a run that stopped early, at its target or by divergence, is repeated. x is
    the mean over the longest runs. Against the time, which differs between seeds, values are
    interpolated, up to the end of the first run.
    """
    lines = []
    for label, group in groups.items():
        length = max(len(run.history) for run in group)
        histories = [run.history + [run.final] * (length - len(run.history)) for run in group]
        xs, ys = (
            np.array([[number_of(record, name) for record in one] for one in histories])
            for name in (x, y)
        )
        if x == "time":
            along = np.linspace(0.0, xs[:, -1].min(), length)
            ys = np.array([np.interp(along, *of_run) for of_run in zip(xs, ys, strict=True)])
        else:
            along = xs[[len(run.history) == length for run in group]].mean(axis=0)
        if np.isfinite(ys).any():
            lines.append(Line(label, along, ys))
    return lines


def band(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Mean over seeds, and one sample standard deviation below and above it, as in the table.

    They have shape (points,), and are NaN where a seed's value is not finite.

    >>> [edge.tolist() for edge in band(np.array([[1.0, 2.0], [3.0, 2.0], [2.0, np.inf]]))]
    [[2.0, nan], [1.0, nan], [3.0, nan]]
    """
    known = np.where(np.isfinite(values), values, np.nan)
    mean = known.mean(axis=0)
    deviation = known.std(axis=0, ddof=1) if len(known) > 1 else np.zeros_like(mean)
    return mean, mean - deviation, mean + deviation


def explained(groups: Iterable[Sized]) -> str:
    """A sentence that explains lines of runs, one for each seed; empty if every line has one.

    >>> explained([range(5), range(5)])
    'Lines are means over 5 seeds, bands ± one standard deviation, as in the table.'
    """
    seeds = {len(group) for group in groups}
    if seeds <= {1}:
        return ""
    of = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    return f"Lines are means over {of} seeds, bands ± one standard deviation, as in the table."


def is_logarithmic(low: float, high: float) -> bool:
    """Whether an axis from `low` to `high` is logarithmic.

    >>> is_logarithmic(0.1, 1), is_logarithmic(0.1, 10), is_logarithmic(0, 1)
    (False, True, False)
    """
    return 0 < low * LOGARITHMIC_FROM < high


def limits(lines: Sequence[Line]) -> tuple[float, float]:
    """The least and the greatest finite value of some lines; NaN without any."""
    values = np.concatenate([line.values.ravel() for line in lines])
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if len(known) else (math.nan, math.nan)


class Panel(NamedTuple):
    """One set of axes of a Matplotlib figure.

    Attributes:
        title: Its heading.
        lines: The curves.
        x: The horizontal axis.
        y: The vertical axis.
        by_factors: Whether the horizontal axis is logarithmic.
    """

    title: str
    lines: Sequence[Line]
    x: Measure
    y: Measure
    by_factors: bool = False


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


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """A style for each label in order of first appearance: a colour of its own and another dash.

    >>> looks = styles(["fedavg", "fedprox mu=1", "fedavg"])
    >>> [style["dash"] for style in looks.values()]
    ['solid', 'dash']
    """
    dashes = list(DASHES)
    looks = (
        {"colour": colour, "dash": dashes[(place + turn) % len(dashes)]}
        for turn in count()
        for place, colour in enumerate(COLOURS)
    )
    return dict(zip(dict.fromkeys(labels), looks, strict=False))


def highest_shown(lines: Sequence[Line], lowest: float, highest: float) -> float:
    """The upper end of an axis on which a line that diverges does not flatten the others.

    The axis is at most `SHOWN_RANGE` times as high as the lower half of the lines need, in decades
    if it is logarithmic. No line is wholly above it. If that half does not move, all are shown.

    >>> steady, diverging = (
    ...     Line(name, np.arange(2.0), np.array([values]))
    ...     for name, values in (("a", [2.0, 1.0]), ("b", [2.0, 16.0]))
    ... )
    >>> highest_shown([steady, diverging], 1.0, 16.0)
    4.0
    """
    ends = [ends for line in lines if math.isfinite((ends := limits([line]))[0])]
    if not ends:
        return highest
    middle = sorted(most for _, most in ends)[(len(ends) - 1) // 2]
    if middle == lowest:
        return highest
    if is_logarithmic(lowest, highest):
        needed = lowest * (middle / lowest) ** SHOWN_RANGE
    else:
        needed = lowest + SHOWN_RANGE * (middle - lowest)
    return min(highest, max(needed, *(least for least, _ in ends)))


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
    the least of them: such an axis cannot show 0. A line that diverges may leave the figure above.
    """
    least, most = limits(lines)
    shown = most if y.percent else highest_shown(lines, least, most)
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
            "most": numbers(np.array([shown]))[0] if shown < most else None,
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


def figure(runs: Sequence[Run]) -> "Figure":
    """A figure with a panel for each measure and a line for each method.

    Bands are ± one standard deviation over seeds. Only measures that were taken are drawn: without
    gradients there is no panel of their variance. A model's metrics on test rows have panels of
    their own. Runs of several comparisons share a line as they share a row of `fedprox.table`. The
    horizontal axis is the time by the clients' devices, if they have any, else rounds.

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
    require(runs, "runs: none given; at least one is needed")
    groups = by_label(runs)
    x = axis_of(runs)
    panels = [
        Panel(measure_of(name).title, lines, _along(x), measure_of(name))
        for name in (*PANELS, *metrics_on_test_rows(runs))
        if (lines := curves(groups, x, name))
    ]
    return draw(panels, styles(groups), columns_of(len(panels)), explained(groups.values()))


def study_figure(groups: Groups, measure: str, x: str | None) -> "Figure":
    """A panel for each group, with the mean of each method over seeds and a band.

    Panels of a row have one vertical axis.
    """
    require_one_of("along", x or "round", COSTS)
    seeds = [runs for methods in groups.values() for runs in methods.values()]
    x = x or axis_of([run for runs in seeds for run in runs])
    panels = [
        Panel(in_words(levels), curves(methods, x, measure), _along(x), measure_of(measure))
        for levels, methods in groups.items()
    ]
    looks = styles(name for methods in groups.values() for name in methods)
    # a row of panels for each level of the first factors, if their number fits
    columns = columns_of(len({levels[-1:] for levels in groups}))
    return draw(panels, looks, columns, explained(seeds), share=True)


def columns_of(panels: int) -> int:
    """How many of a number of panels are side by side."""
    return 2 if panels == PER_ROW + 1 else max(1, min(panels, PER_ROW))


def axis_of(runs: Sequence[Run]) -> str:
    """The measure on the horizontal axis: the time if clients have devices, else rounds."""
    return "time" if all(has(run.final, "time") for run in runs) else "round"


def _along(x: str) -> Measure:
    """The horizontal axis of a measure."""
    return Measure(axis="time in seconds") if x == "time" else measure_of(x)


def draw(
    panels: Sequence[Panel | None],
    looks: Mapping[str, Style],
    columns: int,
    caption: str,
    *,
    share: bool = False,
) -> "Figure":
    """Panels of lines with bands over seeds, a caption above them and a legend below them.

    Panels come row by row, and a place whose panel is None is empty. With `share` the panels of a
    row have one vertical axis.
    """
    # here, since matplotlib is slow to import
    from matplotlib.ticker import MaxNLocator

    from fedprox.report.notebook_figure import NotebookFigure

    rows = max(1, math.ceil(len(panels) / columns))
    names = {line.label for panel in panels if panel for line in panel.lines}
    labels = {n: fill(n, WRAPPED, subsequent_indent="  ") for n in looks if n in names}
    longest = max((len(part) for label in labels.values() for part in label.split("\n")), default=1)
    side_by_side = max(1, int(WIDTH / (0.6 + INCHES * longest)))
    legend_rows = -(-sum(label.count("\n") + 1 for label in labels.values()) // side_by_side)
    size = WIDTH, HEIGHT * rows + 0.19 * legend_rows + 0.4
    drawn = NotebookFigure(figsize=size, layout="constrained")
    axes = drawn.subplots(rows, columns, squeeze=False, sharey="row" if share else False)
    title_width = int(WIDTH / columns / INCHES)
    handles: dict[str, Any] = {}
    for place, (axis, panel) in enumerate(zip_longest(axes.flat, panels)):
        if panel is None:
            axis.remove()
            continue
        for line in panel.lines:
            middle, *edges = band(line.values)
            shown = edges if len(line.values) > 1 else []
            handles[line.label] = draw_line(axis, line.x, middle, shown, looks[line.label])
        # a title may hold a user's name
        axis.set_title(fill(panel.title, title_width), fontsize=TITLE_POINTS, parse_math=False)
        dress(axis, panel.x.axis, fill(panel.y.axis, int(HEIGHT / INCHES)))
        if panel.x.kind is int:
            axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        if panel.by_factors:
            axis.set_xscale("log", nonpositive="mask")
        row = place - place % columns
        together = [line for each in panels[row : row + columns] if each for line in each.lines]
        _limit(axis, together if share else panel.lines, panel.y)
        left = panels[place - 1] if place % columns else None
        if left and left.y == panel.y:
            axis.set_ylabel("")
    if caption:
        drawn.suptitle(caption, fontsize=POINTS)
    legend = drawn.legend(
        list(handles.values()),
        [labels[name] for name in handles],
        loc="outside lower center",
        ncols=side_by_side,
        fontsize=POINTS,
        handlelength=3,
        frameon=False,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a user's label may contain dollar signs
    return drawn


def draw_line(
    axis: "Axes",
    x: NDArray[np.float64],
    middle: NDArray[np.float64],
    edges: Sequence[NDArray[np.float64]],
    look: Style,
) -> Any:
    """Draw a line, and a band between its two edges if it has some."""
    colour = look["colour"]
    (line,) = axis.plot(x, middle, color=colour, linestyle=DASHES[look["dash"]], linewidth=1.5)
    if edges:
        low, high = edges
        axis.fill_between(x, low, high, color=colour, alpha=0.17, linewidth=0)
    return line


def dress(axis: "Axes", x: str, y: str) -> None:
    """Name the axes, in a size that can be read in print."""
    axis.set_xlabel(x, fontsize=POINTS)
    axis.set_ylabel(y, fontsize=POINTS)
    axis.tick_params(labelsize=POINTS)
    axis.grid(alpha=0.3)


def in_per_cent(axis: "Axes") -> None:
    """Show the fractions of the vertical axis in per cent."""
    from matplotlib.ticker import PercentFormatter

    axis.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def _limit(axis: "Axes", lines: Sequence[Line], y: Measure) -> None:
    """Scale the vertical axis of some lines, of which one may leave it above."""
    if y.percent:
        in_per_cent(axis)
        return
    lowest, highest = limits(lines)
    if math.isnan(lowest):
        return
    shown = highest_shown(lines, lowest, highest)
    if is_logarithmic(lowest, highest):
        make_logarithmic(axis, lowest, shown)
        margin = (shown / lowest) ** 0.05
        axis.set_ylim(top=shown * margin)
    elif shown < highest:
        margin = 0.05 * (shown - lowest)
        axis.set_ylim(lowest - margin, shown + margin)


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
    axis.set_ylabel(f"{axis.get_ylabel()} (log scale)".strip())
