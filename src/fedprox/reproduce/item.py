"""What a figure or table of a paper is, as data.

An item holds experiments, each written as in an experiment file, at the paper's scale; the grid of
panels that is drawn from them; and the paper's claims as comparisons between two of their runs. The
runner, the figure and the table know nothing of any one paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fedprox.reproduce.summaries import Summary
from fedprox.simulation.results.target import Target

Table = dict[str, Any]

BEST = "fedprox best mu"
"""As a label: the mu above 0 of a run's FedProx that ends at the lowest training loss."""

MEASURES = {
    "train_loss": "training loss",
    "test_accuracy": "test accuracy",
    "gradient_variance": "variance of gradients",
    "dissimilarity": "B(w)",
    "mu": "mu in force",
}
"""What a panel can show, by the names of `metrics.jsonl`."""

AXES = {
    "round": "round",
    "total_steps": "mini-batch gradients",
    "theta": "theta",
}
"""What it can show that over: steps are those of all rounds so far, theta that of `Between`."""


class Curve(NamedTuple):
    """A line of a panel.

    Attributes:
        run: Key of the item's `runs`.
        label: Which of its methods, such as "fedprox mu=1", or `BEST`.
        shown: What the legend calls it; lines of one name have one colour in all figures.
    """

    run: str
    label: str
    shown: str


class Panel(NamedTuple):
    """One set of axes.

    Attributes:
        title: Such as the data set.
        measure: Key of `MEASURES`.
        curves: Its lines.
        missing: Why it is empty, where it is.
        x: Key of `AXES`.
        best: Whether lines show the best value so far, as "monotonic" curves do.
    """

    title: str
    measure: str
    curves: tuple[Curve, ...]
    missing: str = ""
    x: str = "round"
    best: bool = False


class Row(NamedTuple):
    """A row of panels, with what is said of all of them at its left."""

    label: str
    panels: tuple[Panel, ...]


class Side(NamedTuple):
    """One side of a comparison: a run of the item and the label of a method in it."""

    run: str
    label: str


class Comparison(NamedTuple):
    """`greater` has a larger value than `less`, by the paper.

    Attributes:
        where: What it is looked at on, such as the data set.
        greater: The one that should be larger.
        less: The other.
        note: How ours differs from the paper's, if it does.
    """

    where: str
    greater: Side
    less: Side
    note: str = ""


class Claim(NamedTuple):
    """What a paper says of its figure, as comparisons between runs.

    Attributes:
        text: The claim.
        measure: Key of `MEASURES`.
        over: How a run's rounds become one number.
        comparisons: One for each data set.
        alike: Where the claim is that both sides are about equal: the largest difference that
            counts as equal.
        paper: The number that the paper prints for the mean difference over its data sets.
    """

    text: str
    measure: str
    over: Summary
    comparisons: tuple[Comparison, ...]
    alike: float | None = None
    paper: str = ""


class Statistics(NamedTuple):
    """A row of a table of data sets.

    Attributes:
        title: The data set.
        paper: The paper's clients, examples, and mean and standard deviation of a client's.
        data: `[data]` of an experiment.
        note: How ours differs.
    """

    title: str
    paper: tuple[Any, ...]
    data: Table
    note: str = ""


class Score(NamedTuple):
    """A row of a table of accuracies.

    Attributes:
        title: The model and the data.
        side: The run, and the label of a method in it.
        paper: What the paper says, in words.
        note: How ours differs, and what was scaled down.
    """

    title: str
    side: Side
    paper: str
    note: str = ""


class Entry(NamedTuple):
    """A cell of a table of rounds: a run of the item, and the method in it.

    Attributes:
        run: Key of the item's `runs`.
        method: Label, or words that several labels begin with (a sweep): the one that reaches the
            target first counts, and the table says which.
        paper: What the paper prints: a number; "1000+" where that many did not do; "" for nothing.
    """

    run: str
    method: str
    paper: float | str = ""


class RaceRow(NamedTuple):
    """A row of a table of rounds.

    Attributes:
        title: Such as the data set, or E and B.
        target: What is to be reached.
        entries: One for each column, None where there is no run.
        note: How ours differs, and what was scaled down.
    """

    title: str
    target: Target
    entries: tuple[Entry | None, ...]
    note: str = ""


class Race(NamedTuple):
    """A table of the rounds, or the models sent, that methods or settings take to a target.

    Attributes:
        columns: What its columns are called, such as methods.
        rows: Its rows.
        unit: What is counted.
        relative: What the ratios are to: the savings of the first column in its row, or the
            speed-ups over the first row in each column.
    """

    columns: tuple[str, ...]
    rows: tuple[RaceRow, ...]
    unit: Literal["rounds", "models"]
    relative: Literal["first column", "first row"]


class Between(NamedTuple):
    """Models on the line through two, w and w', each trained by one client on its own rows alone.

    Attributes:
        experiment: The data, the model, the solver and the rounds, as an experiment of one client a
            round has them; w is trained by the first client, w' by the second.
        shared: Whether both begin as the same model.
    """

    experiment: Table
    shared: bool


@dataclass(frozen=True)
class Item:
    """A figure or table of a paper.

    Attributes:
        title: Its number and what it shows.
        source: Where it stands.
        seconds: Time it takes alone on two cores, by scale: "short" as measured, "paper" reckoned
            from that (Figure 1 then took what was reckoned).
        runs: Experiments by name, without a seed: the scale gives seeds. A fixed `seed` in one
            means: this seed for the run, and the scale's for the data.
        rows: The figure, from the top.
        claims: The paper's claims.
        statistics: The paper's table of data sets.
        scores: A table of accuracies.
        races: Tables of rounds to targets.
        between: Pairs of models by name: runs to curves and claims, with the labels of
            `between.py`.
        notes: What must be known to read it.
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
    notes: tuple[str, ...] = ()

    @property
    def missing(self) -> dict[str, str]:
        """Data sets that it lacks, and why."""
        panels = (panel for row in self.rows for panel in row.panels if panel.missing)
        return {panel.title.partition(",")[0]: panel.missing for panel in panels}

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets it needs."""
        runs = [*self.runs.values(), *(pair.experiment for pair in self.between.values())]
        tables = [*(table["data"] for table in runs), *(row.data for row in self.statistics)]
        names = (table["name"].rpartition(":")[2] for table in tables)  # of papers.quirks too
        return tuple(dict.fromkeys(names))


class Scale(NamedTuple):
    """How much of a paper's work is done.

    Attributes:
        name: Its name.
        divisor: The paper's rounds are divided by it.
        seeds: Seeds.
    """

    name: str
    divisor: int
    seeds: tuple[int, ...]


SCALES = {
    scale.name: scale for scale in (Scale("short", 5, (0, 1)), Scale("paper", 1, (0, 1, 2, 3, 4)))
}

GENERATED = ("synthetic", "synthetic-feddyn")
"""Data sets that are drawn: seed s of a run goes with seed s of the data."""


MOST_SEEDS = "most_seeds"
"""A key of a run beside those of an experiment: how many of a scale's seeds it can afford."""

SHORT = "short"
"""Likewise: what the short scale changes, where a fifth of the rounds is still too much.

The table is laid over the experiment, section by section, `MOST_SEEDS` included; its rounds, or the
paper's, are those that are run.
"""

AT_SHORT = f"{SHORT}: "
"""What a note of a row, a comparison or a score begins with that is said at that scale alone."""


def at_scale(table: Table, scale: Scale) -> Table:
    """A run at a scale, but for its seeds.

    >>> short = {"rounds": 8, "solver": {"epochs": 1}}
    >>> table = {"rounds": 200, "solver": {"epochs": 5, "batch_size": 10}, SHORT: short}
    >>> at_scale(table, Scale("short", 5, (0, 1)))
    {'rounds': 8, 'solver': {'epochs': 1, 'batch_size': 10}}
    """
    changes = table.get(SHORT)
    less = {key: value for key, value in table.items() if key != SHORT}
    if changes is not None and scale.name == SHORT:
        return overlaid(less, changes)
    return less | {"rounds": max(table["rounds"] // scale.divisor, 1)}


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
    """The experiments that stand behind a run at a scale, by what is added to its name.

    There is one with all seeds, but for `MOST_SEEDS`; or, where the run's seed is fixed or the data
    are generated, one for each seed of the data. Generated data with a fixed seed are one draw for
    all seeds.

    >>> table = {"rounds": 200, "data": {"name": "synthetic"}}
    >>> expand(table, Scale("short", 5, (0, 1)))["-seed-1"]
    {'rounds': 40, 'data': {'name': 'synthetic', 'seed': 1}, 'seed': 1}
    """
    less = at_scale(table, scale)
    seeds = scale.seeds[: less.pop(MOST_SEEDS, None)]
    drawn = less["data"]["name"] in GENERATED and "seed" not in less["data"]
    if "seed" not in table and not drawn:
        return {"": less | {"seed": list(seeds)}}
    return {
        f"-seed-{s}": less | {"data": less["data"] | {"seed": s}, "seed": table.get("seed", s)}
        for s in seeds
    }


class Task(NamedTuple):
    """A data set with its model and the numbers that a paper tuned for it.

    Attributes:
        key: Short name, for runs.
        title: Name in figures.
        data: `[data]` of an experiment.
        learning_rate: The paper's.
        mu: The paper's best mu.
        rounds: Rounds of its figures.
        clients_per_round: K.
        note: How ours differs from the paper's, and what was scaled down.
        missing: Why it cannot be run, where it cannot.
        model: `[model]` of an experiment.
        client_rows: Rows of each client that are used at most.
        evaluation: `[evaluation]` of an experiment.
        seeds: Most seeds, where the machine is too slow for all.
    """

    key: str
    title: str
    data: Table
    learning_rate: float
    mu: float
    rounds: int
    clients_per_round: int = 10
    note: str = ""
    missing: str = ""
    model: Table = {"name": "logistic"}  # noqa: RUF012 (never changed)
    client_rows: int | None = None
    evaluation: Table = {}  # noqa: RUF012 (never changed)
    seeds: int | None = None

    def experiment(
        self,
        *methods: Table,
        stragglers: float = 0.0,
        epochs: int = 20,
        clients_per_round: int | None = None,
        sampling: str = "uniform",
        rounds: int | None = None,
    ) -> Table:
        """An experiment on it as TOML would hold it; batch 10, as in all the papers' figures."""
        limits = {
            "client_rows": self.client_rows,
            MOST_SEEDS: self.seeds,
        }
        return {
            "rounds": rounds or self.rounds,
            **{key: value for key, value in limits.items() if value is not None},
            "data": dict(self.data),
            "model": dict(self.model),
            "evaluation": dict(self.evaluation),
            "cohort": {
                "clients_per_round": clients_per_round or self.clients_per_round,
                "sampling": sampling,
            },
            "systems": {"stragglers": stragglers},
            "solver": {
                "learning_rate": self.learning_rate,
                "batch_size": 10,
                "epochs": epochs,
            },
            "method": list(methods),
        }

    def panel(self, measure: str, *curves: Curve, title: str = "") -> Panel:
        """A panel of it, empty where it cannot be run."""
        shown = () if self.missing else curves
        return Panel(title or self.title, measure, shown, self.missing)
