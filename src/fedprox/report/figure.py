"""The figure of a comparison: loss, accuracy and gradient variance against rounds."""

import math
from collections.abc import Iterable, Sequence, Sized
from itertools import count
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedprox.report.table import align_histories, by_label, metrics_on_test_rows
from fedprox.simulation.results.measure import ACCURACIES
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOGARITHMIC_FROM = 20
"""Ratio of greatest to least value above which an axis is logarithmic."""

FEW_DECADES = 1000
"""That ratio from which a logarithmic axis has labels only at powers of ten, not at 2 and 5."""

PANELS = (
    ("train_loss", "training loss f(w)"),
    ("validation_accuracy", "validation accuracy"),
    ("test_accuracy", "test accuracy"),
    ("gradient_variance", r"gradient variance $E_k\|\nabla F_k - \nabla f\|^2$"),
)


DASHES = ("solid", "dashed", "dotted")
FEW = 7
"""The most lines whose legend fits into a panel."""

SHORT, WRAPPED = 32, 56
"""The most characters of a label in a panel, and of a line of a label below the panels."""


def is_logarithmic(low: float, high: float) -> bool:
    """Whether an axis from `low` to `high` is logarithmic.

    >>> is_logarithmic(0.1, 1), is_logarithmic(0.1, 10), is_logarithmic(0, 1)
    (False, True, False)
    """
    return 0 < low * LOGARITHMIC_FROM < high


def _measure(record: Record, name: str) -> float:
    """A field of a record, or one of its metrics; NaN where the record has none of this name."""
    value = record.metrics.get(name, getattr(record, name, None))
    return math.nan if value is None else float(value)


def band(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Mean over seeds, and one sample standard deviation below and above it, as in the table.

    Args:
        values: Shape (seeds, points).

    Returns:
        Three arrays of shape (points,); NaN where a seed's value is not finite.

    >>> [edge.tolist() for edge in band(np.array([[1.0, 2.0], [3.0, 2.0], [2.0, np.inf]]))]
    [[2.0, nan], [1.0, nan], [3.0, nan]]
    """
    known = np.where(np.isfinite(values), values, np.nan)
    mean = known.mean(axis=0)
    deviation = known.std(axis=0, ddof=1) if len(known) > 1 else np.zeros_like(mean)
    return mean, mean - deviation, mean + deviation


def explained(groups: Iterable[Sized]) -> str:
    """A sentence that explains lines and bands; empty if every line has one seed.

    Args:
        groups: The runs of each line, one for each seed.

    >>> explained([range(5), range(5)])
    'Lines are means over 5 seeds, bands ± one standard deviation, as in the table.'
    """
    seeds = {len(group) for group in groups}
    if seeds <= {1}:
        return ""
    of = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    return f"Lines are means over {of} seeds, bands ± one standard deviation, as in the table."


def figure(runs: Sequence[Run]) -> "Figure":
    """A figure with a panel for each measure and a line for each method.

    Bands are ± one standard deviation over seeds. Only what was measured is drawn: without
    gradients there is no panel of their variance. A model's metrics on test rows have panels of
    their own. Runs of several comparisons share a line as they share a row of `fedprox.table`.

    Args:
        runs: The runs of one or more comparisons, as `simulate` returns them.

    Returns:
        A Matplotlib figure that is not registered with pyplot; notebooks show it.

    Raises:
        InputError: If runs cannot be told apart, see `fedprox.table`.

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
        ['training loss f(w)', 'test accuracy']
    """
    # here, since matplotlib is slow to import
    from fedprox.report.notebook_figure import NotebookFigure

    panels = [
        (name, title)
        for name, title in (
            *PANELS,
            *((name, name.replace("_", " ")) for name in metrics_on_test_rows(runs)),
        )
        if any(math.isfinite(_measure(r, name)) for run in runs for r in run.history)
    ] or PANELS[:1]
    drawn = NotebookFigure(figsize=(4 * len(panels), 3.8), layout="constrained")
    axes = drawn.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, title) in zip(axes, panels, strict=True):
        looks = ({"color": f"C{i % 10}", "linestyle": DASHES[i // 10 % 3]} for i in count())
        lowest, highest = math.inf, -math.inf
        for group in by_label(runs).values():
            longest, histories = align_histories(group)
            rounds = [record.round for record in longest.history]
            values = np.array([[_measure(r, name) for r in one] for one in histories], float)
            mean, low, high = band(values)
            (line,) = axis.plot(rounds, mean, linewidth=1.5, **next(looks))
            if len(group) > 1:
                axis.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            known = values[np.isfinite(values)]
            if len(known):
                lowest, highest = min(lowest, known.min()), max(highest, known.max())
        if name not in ACCURACIES and is_logarithmic(lowest, highest):
            _make_logarithmic(axis, lowest, highest)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    if caption := explained(by_label(runs).values()):
        drawn.suptitle(caption, fontsize=9)
    handles, labels = list(axes[0].lines), list(by_label(runs))
    if len(labels) <= FEW and max(map(len, labels)) <= SHORT:
        legend = axes[0].legend(handles, labels, frameon=False)
    else:  # below the panels, in additional height
        labels = [fill(label, WRAPPED, subsequent_indent="  ") for label in labels]
        lines = sum(label.count("\n") + 1 for label in labels)
        drawn.set_figheight(drawn.get_figheight() + 0.19 * -(-lines // len(panels)) + 0.2)
        legend = drawn.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=len(panels),
            fontsize=8,
            frameon=False,
        )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a user's label may contain dollar signs
    return drawn


def _make_logarithmic(axis: "Axes", lowest: float, highest: float) -> None:
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
    axis.set_ylabel("log scale", fontsize=8)
