"""The figure of a comparison: loss, accuracy and gradient variance against rounds."""

import math
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from fedprox.report.table import by_label, held, metrics_on_test_rows
from fedprox.simulation.history import Record, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGARITHMIC_FROM = 20
"""Ratio of greatest to least from which an axis is logarithmic."""

PANELS = (
    ("train_loss", "training loss f(w)"),
    ("test_accuracy", "test accuracy"),
    ("gradient_variance", r"gradient variance $E_k\|\nabla F_k - \nabla f\|^2$"),
)


DASHES = ("solid", "dashed", "dotted")
FEW = 7
"""Lines whose legend has room in a panel."""


def is_logarithmic(low: float, high: float) -> bool:
    """Whether an axis from the least to the greatest value is.

    >>> is_logarithmic(0.1, 1), is_logarithmic(0.1, 10), is_logarithmic(0, 1)
    (False, True, False)
    """
    return 0 < low * LOGARITHMIC_FROM < high


def _measure(record: Record, name: str) -> float:
    """A field of a record, or one of its metrics; NaN where the record has none of this name."""
    return float(record.metrics.get(name, getattr(record, name, math.nan)))


def figure(runs: Sequence[Run]) -> "Figure":
    """A panel for each measure, a line for each method; bands span the extremes of its seeds.

    Only what was measured is drawn: without gradients there is no panel of their variance. A
    model's metrics on test rows have panels of their own.
    """
    from matplotlib.figure import Figure  # here, since it is slow to import

    panels = [
        (name, title)
        for name, title in (
            *PANELS,
            *((name, name.replace("_", " ")) for name in metrics_on_test_rows(runs)),
        )
        if any(math.isfinite(_measure(r, name)) for run in runs for r in run.history)
    ] or PANELS[:1]
    drawn = Figure(figsize=(4 * len(panels), 3.8), layout="constrained")
    axes = drawn.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, title) in zip(axes, panels, strict=True):
        looks = ({"color": f"C{i % 10}", "linestyle": DASHES[i // 10 % 3]} for i in count())
        lowest, highest = math.inf, -math.inf
        for group in by_label(runs).values():
            longest, histories = held(group)
            rounds = [record.round for record in longest.history]
            values = np.array([[_measure(r, name) for r in one] for one in histories], float)
            values[~np.isfinite(values)] = np.nan
            mean = values.mean(axis=0)
            (line,) = axis.plot(rounds, mean, linewidth=1.5, **next(looks))
            if len(group) > 1:
                low, high = values.min(axis=0), values.max(axis=0)
                axis.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            known = values[np.isfinite(values)]
            if len(known):
                lowest, highest = min(lowest, known.min()), max(highest, known.max())
        if name != "test_accuracy" and is_logarithmic(lowest, highest):
            axis.set_yscale("log")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    handles, labels = list(axes[0].lines), list(by_label(runs))
    if len(labels) <= FEW:
        legend = axes[0].legend(handles, labels, frameon=False)
    else:  # below the panels, which keep their size
        rows = -(-len(labels) // len(panels))
        drawn.set_figheight(drawn.get_figheight() + 0.19 * rows)
        legend = drawn.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=len(panels),
            fontsize=8,
            frameon=False,
        )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a label of one's own may hold dollars
    return drawn
