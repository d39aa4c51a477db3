"""Tables and figures of data and devices: the catalogue, a federation's statistics, its devices."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import Algorithm
from fedprox.columns import Column, Columns
from fedprox.datasets import CATALOGUE, PAPERS, DataSet
from fedprox.datasets.sources import at_hand, cache_folder
from fedprox.errors import printable
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.parts.clock import Hours
from fedprox.parts.part import Part
from fedprox.parts.population import Population
from fedprox.protocol.protocol import pace_of
from fedprox.report.figure import make_logarithmic
from fedprox.report.table import TextTable, grid
from fedprox.solver import Solver

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLIENTS_SHOWN, CLASSES_SHOWN = 60, 100
"""The most rows and columns of the picture of label mixes."""

TIMES = 97
"""Times of a period at which the clients that are on are counted."""

SHARES = (0.4, 0.6, 0.8)
"""Shares of a client's labels whose classes are counted (Acar et al. 2021, Figure 3)."""


def catalogue_table(data_dir: str | Path | None = None) -> TextTable:
    """All data sets, a row each, with where their files are."""
    shown = grid(("name", "what", "papers", "partitions", "where"), left=5)
    shown.padding, shown.columns[0].no_wrap = (0, 2, 1, 0), True
    for name, entry in CATALOGUE.items():
        columns = (entry.what, ", ".join(entry.papers), ", ".join(entry.partitions))
        shown.add_row(name, *columns, where(entry, data_dir))
    return shown


def where(entry: DataSet, data_dir: str | Path | None = None) -> str:
    """Where a data set's files are, or come from.

    >>> where(CATALOGUE["synthetic"]), where(CATALOGUE["leaf"])
    ('generated', 'yours: data.path')
    """
    if entry.brought:
        return f"yours: data.{entry.brought}"
    places: dict[str, set[str]] = defaultdict(set)
    sizes: dict[str, list[int]] = defaultdict(list)
    for source in entry.files:
        path = at_hand(source, data_dir)
        if not path:
            place = f"to be downloaded from {urlsplit(source.folders[0]).netloc}"
            sizes[place].append(source.size)
        else:
            place = "in the cache" if cache_folder() in path.parents else "in the data folder"
        places[place].add(source.use or (path or Path(source.name)).name)
    lines = []
    for place, uses in places.items():
        size = f" ({sum(sizes[place]) / 1e6:.3g} MB)" if all(sizes[place] or [0]) else ""
        lines.append(place + size + (f": {', '.join(sorted(uses))}" if len(places) > 1 else ""))
    return "; ".join(lines) or "generated"


class Statistics(NamedTuple):
    """A federation's statistics as the papers report them; see `statistics`."""

    clients: int
    samples: int
    mean: float
    deviation: float
    classes: NDArray[np.int64]
    most: NDArray[np.int64]


Which = Literal["all", "train", "labels"]
"""Rows to count: training and test rows, training rows, or labels of training rows."""


def counted_rows(federation: Federation, which: Which) -> NDArray[np.int64]:
    """Rows, or labels, of each client, shape (clients,)."""
    if which == "labels":
        return federation.train.labels
    train = federation.train.sizes
    return train + federation.test.sizes if which == "all" else train


def labels(federation: Federation, which: Which) -> tuple[NDArray[np.int64], ...]:
    """The number of labels of each pair of a client and a class, sorted: clients, classes, counts.

    They are empty if labels are not classes.
    """
    keys = []
    parts = (federation.train, federation.test) if which == "all" else (federation.train,)
    for rows in parts if federation.classes else ():
        y = np.asarray(rows.y, np.int64).reshape(len(rows), math.prod(rows.y.shape[1:]))
        client = np.repeat(np.arange(len(federation)), rows.sizes)
        keys.append((client[:, None] * federation.classes + y)[y >= 0])
    pairs, counts = np.unique(np.concatenate(keys) if keys else [], return_counts=True)
    clients, classes = np.divmod(pairs.astype(np.int64), max(federation.classes, 1))
    return clients, classes, counts


def statistics(federation: Federation, which: Which) -> Statistics:
    """A federation's statistics as the papers report them.

    >>> rows = np.zeros((4, 1))
    >>> federation = Federation.from_arrays([(rows, [0, 0, 0, 1]), (rows[:2], [0, 1])])
    >>> train = statistics(federation, "train")
    >>> train.samples, train.mean, train.deviation, train.classes.tolist(), train.most.tolist()
    (6, 3.0, 1.0, [2, 2], [2, 2])
    """
    n = counted_rows(federation, which)
    classes = np.bincount(labels(federation, which)[0], minlength=len(federation))
    most = classes_for(federation, 0.8, which)
    return Statistics(len(n), int(n.sum()), float(n.mean()), float(n.std()), classes, most)


def classes_for(federation: Federation, share: float, which: Which) -> NDArray[np.int64]:
    """The least number of classes that make up a share of each client's labels, (clients,).

    It is 0 for a client without labels or if labels are not classes.

    >>> rows = np.zeros((10, 1))
    >>> federation = Federation.from_arrays([(rows, [0] * 5 + [1] * 3 + [2] * 2)])
    >>> [classes_for(federation, share, "train").item() for share in (0.4, 0.6, 0.8, 0.9)]
    [1, 2, 2, 3]
    """
    clients, _, numbers = labels(federation, which)
    held = np.bincount(clients, minlength=len(federation))
    needed = np.zeros(len(federation), np.int64)
    for k, counts in enumerate(np.split(numbers, np.cumsum(held)[:-1])):
        growing = np.cumsum(-np.sort(-counts))
        # a little less, so that rounding does not ask for another row
        needed[k] = np.searchsorted(growing, share * growing[-1] - 1e-6) + 1 if len(counts) else 0
    return needed


def statistics_table(federation: Federation, name: str, partition: str = "") -> TextTable:
    """A federation's statistics, with the papers' for the same data set and partition below.

    Rows are counted; if a row has several labels, the labels are counted too.
    """
    counts = ("clients", "samples", "mean", "stdev", "classes/client", "for 80 %")
    shown = grid(("", "counted", *counts), left=2, no_wrap=True)
    shown.columns[0].no_wrap = False
    names: dict[Which, str] = {"all": "train and test", "train": "train"}
    if federation.train.y.ndim > 1:
        names["labels"] = "train, labels"
    for which, counted in names.items():
        ours = statistics(federation, which)
        shown.add_row(
            "here",
            counted,
            f"{ours.clients:,}",
            f"{ours.samples:,}",
            f"{ours.mean:,.1f}",
            f"{ours.deviation:,.1f}",
            _median(ours.classes),
            _median(ours.most),
        )
    for paper in PAPERS.get((name, partition), ()):
        figures = (paper.clients, paper.samples, paper.mean, paper.deviation)
        cells = ["-" if x is None else f"{x:,}" for x in (*figures, paper.classes_per_client)]
        note = f" ({paper.note})" if paper.note else ""
        shown.add_row(paper.source + note, names[paper.rows], *cells, "-")
    return shown


MOST_COLUMNS = 40
"""Most columns of features that are shown."""


def columns_table(columns: Columns) -> TextTable:
    """The columns of a table: kinds, sizes of vocabularies, what stands for a missing value."""
    units = any(column.unit for column in (*columns.features, columns.label))
    titles = ("column", "kind", "values", "for a missing value", *(["unit"] * units))
    shown = grid(titles, left=len(titles))

    def add(column: Column, name: str) -> None:
        """Add a row."""
        missing = "-" if column.missing is None else str(column.missing)
        size = 2 if column.kind == "boolean" else len(column.values)
        cells = [name, column.kind, f"{size:,}" if size else "-", missing, column.unit]
        shown.add_row(*map(printable, cells[: len(titles)]))

    for column in columns.features[:MOST_COLUMNS]:
        add(column, column.name)
    if (more := len(columns.features) - MOST_COLUMNS) > 0:
        shown.add_row(f"{more:,} more")
    add(columns.label, f"{columns.label.name}, the label")
    return shown


def _median(values: NDArray[np.int64]) -> str:
    if not values.any():
        return "-"
    low, middle, high = (f"{q:g}" for q in np.quantile(values, [0, 0.5, 1]))
    return middle if low == high else f"{middle} ({low} to {high})"


def data_figure(federation: Federation, title: str) -> "Figure":
    """A figure of the clients' sizes, their label mixes, and histograms of their classes.

    Sizes, largest first, count training and test rows. The second panel shows all labels, and
    clients that are evenly spaced in the order of the first. The third counts the clients by the
    number of classes that make up each of `SHARES` of their labels.
    """
    from matplotlib.figure import Figure  # here, since it is slow to import

    drawn = Figure(figsize=(16, 4.4), layout="constrained")
    drawn.suptitle(title, fontsize=11, parse_math=False)  # it holds a user's path
    left, middle, right = drawn.subplots(1, 3)
    n = counted_rows(federation, "all")
    order = np.argsort(-n, kind="stable")
    _draw_ranked(left, n, float(n.mean()))
    left.set_title(f"rows of a client, {n.mean():,.1f} in the mean", fontsize=10)
    left.set_xlabel("client, largest first")
    if federation.classes:
        some = order[np.unique(np.linspace(0, len(n) - 1, CLIENTS_SHOWN).astype(int))]
        _draw_labels(middle, federation, some)
        _draw_histograms(right, federation)
    else:
        _write_in_place(middle, "labels are not classes")
        right.axis("off")
    return drawn


def _draw_ranked(axis: "Axes", values: NDArray[Any], middle: float) -> None:
    """Draw a number of each client, largest first, and a line at their middle."""
    ranked, least, most = np.sort(values)[::-1], float(values.min()), float(values.max())
    axis.stairs(ranked, np.arange(len(values) + 1) + 0.5, baseline=None, linewidth=1.5)
    axis.axhline(middle, color="0.4", linestyle="--", linewidth=1)
    axis.grid(alpha=0.3)
    if 0 < 5 * least < most:
        make_logarithmic(axis, least, most)
    else:
        axis.set_ylim(0, 1.15 * max(most, 1e-9))


def _write_in_place(axis: "Axes", words: str) -> None:
    """Write words where nothing can be drawn."""
    axis.text(0.5, 0.5, words, ha="center", va="center")
    axis.axis("off")


def _draw_histograms(axis: "Axes", federation: Federation) -> None:
    """Draw how many clients need each number of classes for each of `SHARES` of their labels."""
    from matplotlib.ticker import MaxNLocator

    needed = [classes_for(federation, share, "all") for share in SHARES]
    most = max(int(counts.max()) for counts in needed)
    for share, counts in zip(SHARES, needed, strict=True):
        clients = np.bincount(counts, minlength=most + 1)
        label = f"{100 * share:.0f} % of the labels"
        axis.stairs(clients, np.arange(most + 2) - 0.5, linewidth=1.5, label=label)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title("clients whose labels are mostly of k classes", fontsize=10)
    axis.set_xlabel("k, the classes that make up the share")
    axis.legend(fontsize=8, frameon=False)
    axis.grid(alpha=0.3)


def _draw_labels(axis: "Axes", federation: Federation, clients: NDArray[np.int64]) -> None:
    """Draw the label mix of the whole federation and, below it, a row for each of some clients."""
    from matplotlib.colors import PowerNorm

    (owners, held, numbers), classes = labels(federation, "all"), federation.classes
    total = np.bincount(held, numbers, minlength=classes)
    columns = np.sort(np.argsort(-total, kind="stable")[:CLASSES_SHOWN])
    counts = np.zeros((1 + len(clients), classes))
    counts[0] = total
    for row, k in zip(counts[1:], clients, strict=True):
        own = slice(*np.searchsorted(owners, [k, k + 1]))
        row[held[own]] = numbers[own]
    mixes = (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))[:, columns]
    # the square root keeps small shares visible next to clients with a single label
    norm = PowerNorm(0.5, 0, mixes.max())
    picture = axis.imshow(mixes, "Blues", norm=norm, aspect="auto", interpolation="nearest")
    axis.figure.colorbar(picture, ax=axis, label="share of the client's labels")
    ends = {0: "all", len(clients): "smallest", 1: "largest"}  # one client is both
    axis.set_yticks(list(ends), list(ends.values()))
    ticks = np.unique(np.linspace(0, len(columns) - 1, min(len(columns), 11)).astype(int))
    axis.set_xticks(ticks, [str(c) for c in columns[ticks]])
    few = f", the {len(columns)} most frequent of {classes:,}" if len(columns) < classes else ""
    axis.set_xlabel(f"class{few}")
    which = f"{len(clients)} of " if len(clients) < len(federation) else ""
    axis.set_title(f"labels of all and of {which}the {len(federation):,} clients", fontsize=10)


def work_seconds(
    population: Population,
    federation: Federation,
    model: Model,
    method: Algorithm,
    solver: Solver,
    seed: int,
    parts: Sequence[Part],
) -> tuple[NDArray[np.float64], Hours | None]:
    """Seconds of each client for a round of a method with all of its work, and when it is on."""
    sizes, own = federation.train.sizes, method.solver(solver)
    pace = pace_of(population, federation, model, method, own, seed, parts)
    hours = None if pace.hours.always else pace.hours
    return pace.seconds(np.arange(len(sizes)), own.steps_for(sizes)), hours


def share_on(hours: Hours) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times of a period, and the share of the clients that are on at each.

    >>> day = Hours(np.array([0, 1, 1]), np.array([0.0]), np.array([30.0]), 120.0)
    >>> share_on(day)[1].mean().round(3)
    np.float64(0.129)
    """
    times = np.linspace(0, hours.period, TIMES)
    clients = np.arange(len(hours.first) - 1)
    return times, np.array([(hours.left(t, clients) > 0).mean() for t in times])


def population_words(seconds: NDArray[np.float64], hours: Hours | None, dropout: float) -> str:
    """A line about the clients' devices.

    >>> population_words(np.array([1.0, 2.0, 40.0]), None, 0.1)
    "a client's round: 2 s in the median, from 1 s to 40 s; always on; 10 % of them are lost"
    """
    middle, least, most = np.median(seconds), seconds.min(), seconds.max()
    on = "always on"
    if hours:
        on = f"on for {100 * share_on(hours)[1].mean():.0f} % of the time"
    lost = f"; {100 * dropout:g} % of them are lost" if dropout else ""
    return (
        f"a client's round: {middle:.3g} s in the median, from {least:.3g} s to {most:.3g} s; "
        f"{on}{lost}"
    )


def population_figure(seconds: NDArray[np.float64], hours: Hours | None, title: str) -> "Figure":
    """A figure of how long clients take for a round, slowest first, and of how many are on."""
    from matplotlib.figure import Figure  # here, since it is slow to import

    drawn = Figure(figsize=(11, 4.4), layout="constrained")
    drawn.suptitle(title, fontsize=11, parse_math=False)  # it holds a user's path
    left, right = drawn.subplots(1, 2)
    _draw_ranked(left, seconds, float(np.median(seconds)))
    left.set_title(f"seconds of a client's round, {np.median(seconds):.3g} in the median")
    left.set_xlabel("client, slowest first")
    if not hours:
        _write_in_place(right, "all clients are always on")
        return drawn
    times, share = share_on(hours)
    right.plot(times / 3600, 100 * share)
    right.set_ylim(0, 105)
    right.set_title("clients that are on, in percent")
    right.set_xlabel("hours from the begin of the run, then repeated")
    right.grid(alpha=0.3)
    return drawn
