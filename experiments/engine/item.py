"""Figures and tables of papers as data.

An item holds experiments, written as in an experiment file, at the paper's scale; the grid of
panels of its figure; and the paper's claims as comparisons between two runs. The modules that run,
draw and tabulate items depend on no particular paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from experiments.engine.summaries import Summary
from fedprox.simulation.results.target import Target

Table = dict[str, Any]

BEST = "fedprox best mu"
"""A label that selects the FedProx with mu > 0 whose final training loss is the lowest."""

LOWEST = "lowest of "
"""Before the common beginning of a sweep's labels: its line with the lowest final training loss."""

AT_EACH_ROUND = "at each round the best of "
"""Before the common beginning of a sweep's labels: its best value at each round, over all lines.

That is how McMahan et al. 2017 draw their curves (section 3)."""

RECORDED = {
    "train_loss": "training loss",
    "test_accuracy": "test accuracy",
    "gradient_variance": "variance of gradients",
    "dissimilarity": "B(w)",
    "mu": "mu in force",
}
"""The measures of runs, by their names in `metrics.jsonl`."""

MEASURES = RECORDED | {"clients": "clients"}
"""The measures that a panel can show: those of runs, and the clients that `Item.mixes` counts."""

AXES = {
    "round": "round",
    "total_steps": "mini-batch gradients",
    "theta": "theta",
    "classes": "classes",
}
"""The horizontal axes of a panel.

Steps are those of all rounds so far, theta is of `Between`, and classes are of `Item.mixes`.
"""

SIZES = ("clients", "examples", "mean", "standard deviation")
"""The columns of a paper's table of clients and their examples."""

PARTS = ("training examples", "test examples")
"""The columns of a paper's table of training and test examples."""


class Line(NamedTuple):
    """A line of a panel, or a side of a comparison.

    Attributes:
        run: Key of the item's `runs`.
        label: Label of a method of the run, such as "fedprox mu=1", or `BEST`, or the beginning of
            the labels of a sweep after `LOWEST` or `AT_EACH_ROUND`.
        shown: Name in a panel's legend; a name has the same colour in all figures.
    """

    run: str
    label: str
    shown: str = ""


class Panel(NamedTuple):
    """One set of axes.

    Attributes:
        title: Such as the data set.
        measure: Key of `MEASURES`.
        curves: The lines.
        missing: Why the panel is empty; "" if it is not.
        x: Key of `AXES`.
        best: Whether lines show the best value so far ("monotonic" curves).
        level: A level to mark, such as a target accuracy. Where a line reaches it, the axis begins
            at four times its distance from 1.
        last: The last round that is shown.
        logarithmic: Whether the vertical axis is logarithmic in any case.
    """

    title: str
    measure: str
    curves: tuple[Line, ...]
    missing: str = ""
    x: str = "round"
    best: bool = False
    level: float | None = None
    last: int | None = None
    logarithmic: bool = False


class Row(NamedTuple):
    """A row of panels, with a label for all of them at the left."""

    label: str
    panels: tuple[Panel, ...]


class Comparison(NamedTuple):
    """The paper's statement that `greater` has a larger value than `less`.

    Attributes:
        where: Name of the comparison's row, such as the data set.
        greater: The side that should have the larger value.
        less: The other side.
        note: How our runs differ from the paper's, if they do.
    """

    where: str
    greater: Line
    less: Line
    note: str = ""


class Claim(NamedTuple):
    """A paper's claim about its figure, as comparisons between runs.

    Attributes:
        text: The claim.
        measure: Key of `MEASURES`.
        over: How a run's rounds are summarized by one number.
        comparisons: One for each data set.
        alike: The largest difference that counts as equal, if the claim is that both sides are
            about equal; else None.
        tolerance: How far `less` may be above `greater`, if the claim is that it is not much
            worse.
        paper: The number that the paper prints for the mean difference over its data sets.
    """

    text: str
    measure: str
    over: Summary
    comparisons: tuple[Comparison, ...]
    alike: float | None = None
    tolerance: float = 0.0
    paper: str = ""


class Statistics(NamedTuple):
    """A row of a table of data sets.

    Attributes:
        title: The data set.
        paper: The paper's number for each column.
        data: `[data]` of an experiment.
        note: How our data differ from the paper's.
        columns: What is counted, the same for all rows of an item: `SIZES` or `PARTS`.
    """

    title: str
    paper: tuple[Any, ...]
    data: Table
    note: str = ""
    columns: tuple[str, ...] = SIZES


class Score(NamedTuple):
    """A row of a table of accuracies.

    Attributes:
        title: The model and the data.
        side: The run, and the label of a method in it.
        paper: The paper's statement, in words.
        note: How our run differs, and what was scaled down.
    """

    title: str
    side: Line
    paper: str
    note: str = ""


class Entry(NamedTuple):
    """A cell of a table of rounds: a run of the item, and the method in it.

    Attributes:
        run: Key of the item's `runs`.
        method: A label, or the common beginning of the labels of a sweep. Of a sweep, the
            setting that reaches the target first, on average, counts, and the table names it.
        paper: The paper's number; "1000+" if that many were not enough; "" if it prints none.
    """

    run: str
    method: str
    paper: float | str = ""


class RaceRow(NamedTuple):
    """A row of a table of rounds.

    Attributes:
        title: Such as the data set, or E and B.
        target: The target to reach.
        entries: One for each column; None without a run.
        note: How our runs differ, and what was scaled down.
    """

    title: str
    target: Target
    entries: tuple[Entry | None, ...]
    note: str = ""


class Race(NamedTuple):
    """A table of the rounds, or the models sent, that methods or settings take to a target.

    Attributes:
        columns: Names of the columns, such as methods.
        rows: The rows.
        unit: What is counted.
        relative: The cells to which ratios are taken: the first column for savings within a row,
            or the first row for speed-ups within a column.
    """

    columns: tuple[str, ...]
    rows: tuple[RaceRow, ...]
    unit: Literal["rounds", "models"]
    relative: Literal["first column", "first row"]


class Between(NamedTuple):
    """Models on the line through w and w', which two clients train, each only on its own rows.

    Attributes:
        experiment: An experiment with one client a round; the first client trains w, the second
            w'.
        shared: Whether both start from the same model.
    """

    experiment: Table
    shared: bool


@dataclass(frozen=True)
class Item:
    """A figure or table of a paper.

    Attributes:
        title: The item's number and content.
        source: Where the paper has it.
        seconds: Time on two cores by scale: "short" as measured, "paper" extrapolated from that.
        runs: Experiments by name, without seeds, which the scale gives. If an experiment has a
            `seed`, the run uses that seed, and the scale's seeds are for the data.
        rows: The figure's rows of panels, from the top.
        claims: The paper's claims.
        statistics: The paper's table of data sets.
        scores: A table of accuracies.
        races: Tables of rounds to targets.
        between: Pairs of models by name. Curves and claims refer to them as to runs, with the
            labels of `between.py`.
        mixes: `[data]` of experiments by name, for histograms of the clients' classes. Curves and
            claims refer to them as to runs, with the labels of `mixes.py`.
        notes: Remarks that the reader of the item needs.
    """

    title: str
    source: str
    seconds: Mapping[str, float]
    runs: Mapping[str, Table] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    claims: tuple[Claim, ...] = ()
    statistics: tuple[Statistics, ...] = ()
    scores: tuple[Score, ...] = ()
    races: tuple[Race, ...] = ()
    between: Mapping[str, Between] = field(default_factory=dict)
    mixes: Mapping[str, Table] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> dict[str, str]:
        """The data sets that are left out, and why."""
        panels = (panel for row in self.rows for panel in row.panels if panel.missing)
        return {panel.title.partition(",")[0]: panel.missing for panel in panels}

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets that the item needs."""
        runs = [*self.runs.values(), *(pair.experiment for pair in self.between.values())]
        tables = [
            *(table["data"] for table in runs),
            *(row.data for row in self.statistics),
            *self.mixes.values(),
        ]
        names = (table["name"].rpartition(":")[2] for table in tables)  # of experiments.quirks too
        return tuple(dict.fromkeys(names))


class Scale(NamedTuple):
    """How much of a paper's work is done.

    Attributes:
        name: The scale's name.
        divisor: Divisor of the paper's rounds.
        seeds: The seeds to run.
    """

    name: str
    divisor: int
    seeds: tuple[int, ...]


SCALES = {
    scale.name: scale for scale in (Scale("short", 5, (0, 1)), Scale("paper", 1, (0, 1, 2, 3, 4)))
}

GENERATED = ("synthetic", "synthetic-feddyn")
"""Data sets that are drawn at random: seed s of a run also draws the data."""


MOST_SEEDS = "most_seeds"
"""A key of a run that experiments lack: how many of a scale's seeds are run at most."""

MORE_RATES = "more_rates"
"""A key of a run that experiments lack: the learning rates by which its search may grow, in order.

At the paper's scale rates beyond those of the experiment are run until the best is not at the edge.
"""

SHORT = "short"
"""A key of a run that experiments lack: changes at the short scale, instead of fewer rounds.

The changes, which may include `MOST_SEEDS`, replace keys of the experiment section by section.
Their rounds, or else the paper's, are run undivided.
"""

AT_SHORT = f"{SHORT}: "
"""What follows this in a note of a row, a comparison or a score applies only at the short scale."""


def at_scale(table: Table, scale: Scale) -> Table:
    """A run's experiment at a scale, without seeds.

    >>> short = {"rounds": 8, "solver": {"epochs": 1}}
    >>> table = {"rounds": 200, "solver": {"epochs": 5, "batch_size": 10}, SHORT: short}
    >>> at_scale(table, Scale("short", 5, (0, 1)))
    {'rounds': 8, 'solver': {'epochs': 1, 'batch_size': 10}}
    """
    changes = table.get(SHORT)
    experiment = {key: value for key, value in table.items() if key not in (SHORT, MORE_RATES)}
    if changes is not None and scale.name == SHORT:
        return overlaid(experiment, changes)
    return experiment | {"rounds": max(table["rounds"] // scale.divisor, 1)}


def overlaid(table: Table, changes: Table) -> Table:
    """A table with changes, section by section.

    >>> overlaid({"solver": {"epochs": 5, "batch_size": 10}}, {"solver": {"epochs": 1}})
    {'solver': {'epochs': 1, 'batch_size': 10}}
    """
    return table | {
        key: overlaid(table.get(key, {}), value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }


def expand(table: Table, scale: Scale) -> dict[str, Table]:
    """The experiments of a run at a scale, by the suffix of their names.

    There is one experiment with all seeds, up to `MOST_SEEDS`. If the run's seed is fixed or the
    data are generated, there is one for each seed of the data. Generated data with a fixed seed are
    the same for all seeds.

    >>> table = {"rounds": 200, "data": {"name": "synthetic"}}
    >>> expand(table, Scale("short", 5, (0, 1)))["-seed-1"]
    {'rounds': 40, 'data': {'name': 'synthetic', 'seed': 1}, 'seed': 1}
    """
    experiment = at_scale(table, scale)
    data = experiment["data"]
    seeds = scale.seeds[: experiment.pop(MOST_SEEDS, None)]
    drawn = data["name"] in GENERATED and "seed" not in data
    if "seed" not in table and not drawn:
        return {"": experiment | {"seed": list(seeds)}}
    return {
        f"-seed-{s}": experiment | {"data": data | {"seed": s}, "seed": table.get("seed", s)}
        for s in seeds
    }
