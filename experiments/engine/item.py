"""Figures and tables of papers as data.

An item holds experiments, written as in an experiment file, at the paper's scale; the panels of its
figure; the paper's claims as comparisons between two runs; and the paper's numbers. The modules
that run, draw and tabulate items depend on no particular paper.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from experiments.engine.series import Series
from experiments.engine.summaries import Summary
from fedprox.results.target import Target

Table = dict[str, Any]

RECORDED = {
    "train_loss": "training loss",
    "test_accuracy": "test accuracy",
    "gradient_variance": "variance of gradients",
    "dissimilarity": "B(w)",
    "mu": "mu in force",
    "validation_accuracy": "validation accuracy",
    "time": "seconds by the clients' devices",
    "bits_up": "bits that clients have sent",
    "personal_accuracy": "test accuracy of the clients' own models",
    "newcomer_accuracy": "test accuracy of the clients without a model of their own",
    "personal_clients": "clients with a model of their own",
}
"""The measures of runs, by their names in `metrics.jsonl`."""

MEASURES = RECORDED | {
    "slow_accuracy": "test accuracy of the slowest fifth of the clients",
    "fast_accuracy": "test accuracy of the fastest fifth of the clients",
    "clients": "clients",
    "distance": "distance from the minimizer of f",
    "gap": "distance from the point that is proved",
    "error": "squared error of the clients' own models",
    "sent": "MB that a client sends in a round",
    "seconds": "seconds of processors for a round",
    "memory": "most memory of a process, GB",
}
"""The measures that a panel can show: those of runs and of `Item.others`."""

AXES = {
    "round": "round",
    "time": RECORDED["time"],
    "bits_up": RECORDED["bits_up"],
    "theta": "theta",
    "classes": "classes",
}
"""The horizontal axes of a panel: rounds, the devices' time, and those of `Item.others`."""


class Panel(NamedTuple):
    """One set of axes.

    Attributes:
        title: Such as the data set.
        measure: Key of `MEASURES`.
        runs: The runs that are drawn, keys of the item's `runs`, `joined` or `others`.
        labels: The lines of each run, labels as for `series.pick`; all of them if empty.
        x: Key of `AXES`.
    """

    title: str
    measure: str
    runs: tuple[str, ...]
    labels: tuple[str, ...] = ()
    x: str = "round"


class Line(NamedTuple):
    """A side of a comparison: a run, and a label of a line as for `series.pick`."""

    run: str
    label: str


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
    """A claim of a paper, or of a study, about its figure, as comparisons between runs.

    Attributes:
        text: The claim.
        measure: Key of `MEASURES`.
        over: How a run's rounds are summarized by one number.
        comparisons: One for each data set.
        alike: The largest difference that counts as equal, if the claim is that both sides are
            about equal; else None.
        paper: The number that the paper prints for the mean difference over its data sets.
        by: Who says which side is larger.
    """

    text: str
    measure: str
    over: Summary
    comparisons: tuple[Comparison, ...]
    alike: float | None = None
    paper: str = ""
    by: str = "says the paper"


class Statistics(NamedTuple):
    """A row of a table of data sets.

    Attributes:
        title: The data set.
        paper: The paper's clients, examples, and their mean and standard deviation; or its training
            and test examples. The same for all rows of an item.
        data: `[data]` of an experiment.
        note: How our data differ from the paper's.
    """

    title: str
    paper: tuple[Any, ...]
    data: Table
    note: str = ""


class Score(NamedTuple):
    """A row of a table of accuracies: the run of one method, and the paper's statement in words."""

    title: str
    run: str
    paper: str
    note: str = ""


class Entry(NamedTuple):
    """A cell of a table of rounds: a run of the item, and the method in it.

    Attributes:
        run: Key of the item's `runs`.
        method: A label, or the common beginning of the labels of a sweep. Of a sweep, the
            setting that reaches the target first, on average, counts, and the table names it;
            after `series.VALIDATED`, the one that validation rows choose.
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
        note: How our runs differ.
    """

    title: str
    target: Target
    entries: tuple[Entry | None, ...]
    note: str = ""


class Race(NamedTuple):
    """A table of the rounds, the models sent or the time that methods or settings take to a target.

    Attributes:
        columns: Names of the columns, such as methods.
        rows: The rows.
        unit: What is counted.
        relative: The cells to which ratios are taken: the first column for savings within a row,
            or the first row for speed-ups within a column.
    """

    columns: tuple[str, ...]
    rows: tuple[RaceRow, ...]
    unit: Literal["rounds", "models", "seconds"]
    relative: Literal["first column", "first row"]


class Values(NamedTuple):
    """A table of measures, each summarized by one number.

    Attributes:
        words: What the table shows.
        measures: What each cell has: keys of `MEASURES`, and how a run's rounds are summarized.
        columns: Names of the columns, such as methods.
        rows: A title, and for each column a line, or None for what is not run.
    """

    words: str
    measures: tuple[tuple[str, Summary], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Line | None, ...]], ...]


class Other(NamedTuple):
    """Something to measure that is no run: `series(experiment, seed, data_dir)` measures it."""

    experiment: Table
    series: Callable[[Table, int, Path | None], list[Series]]


@dataclass(frozen=True)
class Item:
    """A figure or table of a paper.

    Attributes:
        title: The item's number and content.
        source: Where the paper has it.
        seconds: Time on two cores by scale: "short" as measured, "paper" extrapolated from that.
        runs: Experiments by name, without seeds, which the scale gives. If an experiment has a
            `seed`, the run uses that seed, and the scale's seeds are for the data.
        panels: The figure's rows of panels, from the top.
        claims: The paper's claims.
        statistics: The paper's table of data sets.
        scores: A table of accuracies.
        races: Tables of rounds to targets.
        values: Tables of measures.
        joined: Runs whose lines are compared as those of one. By its name, for each of its runs,
            the words that come before the labels of each method. Nothing else refers to these runs.
        others: What is measured beside runs, by name. Panels and claims refer to it as to runs.
        notes: Remarks that the reader of the item needs.
    """

    title: str
    source: str
    seconds: Mapping[str, float]
    runs: Mapping[str, Table] = field(default_factory=dict)
    panels: tuple[tuple[Panel, ...], ...] = ()
    claims: tuple[Claim, ...] = ()
    statistics: tuple[Statistics, ...] = ()
    scores: tuple[Score, ...] = ()
    races: tuple[Race, ...] = ()
    values: tuple[Values, ...] = ()
    joined: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    others: Mapping[str, Other] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets that the item needs."""
        tables = [*self.runs.values(), *(other.experiment for other in self.others.values())]
        data = [*(table["data"] for table in tables), *(row.data for row in self.statistics)]
        names = (table["name"].rpartition(":")[2] for table in data)  # of experiments.quirks too
        return tuple(dict.fromkeys(names))


class Scale(NamedTuple):
    """How much of a paper's work is done: a divisor of its rounds, and the seeds."""

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

SECONDS = "seconds"
"""A key of a run that experiments lack: the devices' time that counts.

Training ends at the first evaluation after it. Until then the server has the model of the last
evaluation, by which the run is read.
"""

DEVICES = "devices"
"""A key of a run that experiments lack: federation -> `[population]`, if devices depend on it."""

SHORT = "short"
"""A key of a run that experiments lack: changes at the short scale, instead of fewer rounds.

The changes, which may include `MOST_SEEDS`, replace keys of the experiment section by section.
Their rounds, or else the paper's, are run undivided.
"""


NO_SETTINGS = (SHORT, MORE_RATES, SECONDS, DEVICES)
"""The keys of a run that its experiment at a scale lacks."""


def at_scale(table: Table, scale: Scale) -> Table:
    """A run's experiment at a scale, without seeds.

    >>> short = {"rounds": 8, "solver": {"epochs": 1}}
    >>> table = {"rounds": 200, "solver": {"epochs": 5, "batch_size": 10}, SHORT: short}
    >>> at_scale(table, Scale("short", 5, (0, 1)))
    {'rounds': 8, 'solver': {'epochs': 1, 'batch_size': 10}}
    """
    changes = table.get(SHORT)
    experiment = {key: value for key, value in table.items() if key not in NO_SETTINGS}
    if changes is not None and scale.name == SHORT:
        settings = overlaid(experiment, changes)
        return {key: value for key, value in settings.items() if key not in NO_SETTINGS}
    return experiment | {"rounds": max(table["rounds"] // scale.divisor, 1)}


def seconds_of(table: Table, scale: Scale) -> float | None:
    """The devices' time of a run that counts at a scale; None for all of it."""
    changes = table.get(SHORT, {}) if scale.name == SHORT else {}
    seconds: float | None = (table | changes).get(SECONDS)
    return seconds


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
