"""Acar et al. 2021: the convergence curves of Figures 4 to 10, 12 and 13.

A panel is a row of the tables, run for all of the rounds that the paper's axis shows, whatever
accuracy is reached, and with one alpha and mu. Full participation is an item of its own where the
rest of the figure fits two cores.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from experiments.common import GPU
from experiments.engine.item import SHORT, Claim, Comparison, Item, Line, Panel, Row, Table
from experiments.engine.summaries import HIGHEST, at
from experiments.feddyn import cifar_100
from experiments.feddyn.cifar_10 import CIFAR_10, PHOTOS, UNEQUAL, Kind, cifar_run
from experiments.feddyn.perceptrons import (
    EMNIST_2,
    EMNIST_5,
    MNIST_2,
    MNIST_5,
    OWN_SPLIT,
    digits,
    letters,
)
from experiments.feddyn.settings import (
    AS_IN_THE_CODE,
    COLUMNS,
    EVALUATED,
    FEDPROX_EPOCHS,
    PAPER,
    SPLITS,
    Lines,
    Printed,
    Setting,
)
from experiments.feddyn.shakespeare import SHAKESPEARE_2, SHAKESPEARE_5, plays

EVERY = 5
"""Fewest rounds between the points of a curve."""

QUICK: Table = {
    "rounds": 2,
    "client_rows": 10,
    "evaluation": {"every": 1, "rows": 2},
    "data": {"clients": 10},
    "cohort": {"clients_per_round": 2},
    "solver": {"batch_size": 10},
}
ONLY_RUNS = "The short scale, 2 rounds of 10 clients, only shows that every panel runs."
FEW = "short: 10 clients with 10 rows each, at most 2 a round, batches of 10"


class Plot(NamedTuple):
    """A panel: four methods in one setting.

    Attributes:
        title: The panel's title.
        key: Name of the run.
        run: The experiment.
        labels: Labels of the methods, in the order of `COLUMNS`.
    """

    title: str
    key: str
    run: Table
    labels: tuple[str, ...]

    @property
    def panel(self) -> Panel:
        """The panel with a line for each method."""
        lines = zip(self.labels, COLUMNS, strict=True)
        return Panel(
            self.title,
            "test_accuracy",
            tuple(Line(self.key, label, shown) for label, shown in lines),
        )

    def side(self, method: str) -> Line:
        """A method, a name of `COLUMNS`, as a side of a comparison."""
        return Line(self.key, self.labels[COLUMNS.index(method)])


def _plot(title: str, key: str, run: Table) -> Plot:
    """A panel of a run with one alpha and mu."""
    feddyn, scaffold, _, fedprox = run["method"]
    epochs = feddyn.get("solver", {}).get("epochs")
    labels = (
        "feddyn"
        + " balanced" * feddyn.get("balance", False)
        + f" alpha={feddyn['alpha']:g}"
        + (f" epochs={epochs}" if epochs else ""),
        f"scaffold steps={scaffold['solver']['steps']}",
        "fedavg",
        f"fedprox mu={fedprox['mu']:g}",
    )
    return Plot(title, f"{key}-curves", run, labels)


def _of_setting(title: str, setting: Setting, rounds: int | None, short: Table) -> Plot:
    """A panel for a row of a table, whose run goes on for so many rounds."""
    run = setting.run
    evaluation = run["evaluation"] | {"every": max(EVERY, run["evaluation"].get("every", 1))}
    run = run | {"evaluation": evaluation, "rounds": rounds or run["rounds"], SHORT: short}
    return _plot(title, setting.key, run)


def _photos(kind: Kind, percent: int, split: str, title: str) -> Plot:
    """A panel for CIFAR-10 or CIFAR-100, with the last of the values searched."""
    evaluation = kind.evaluation(percent)
    run = cifar_run(
        percent,
        split,
        kind.methods(kind.alphas[-1], kind.mus[-1]),
        QUICK,
        kind=kind,
        evaluation=evaluation | {"every": max(EVERY, evaluation["every"])},
    )
    return _plot(title, kind.key(percent, split), run)


# ------------------------------------------------------------------------------- the paper's claims


def _better(plots: Sequence[Plot]) -> Claim:
    return Claim(
        "FedDyn is better than the others.",
        "test_accuracy",
        HIGHEST,
        tuple(
            Comparison(f"{plot.title}: than {other}", plot.side("FedDyn"), plot.side(other), FEW)
            for plot in plots
            for other in COLUMNS[1:]
        ),
    )


def _harder(pairs: Mapping[str, tuple[Plot, Plot]]) -> Claim:
    """A claim on pairs of plots, IID and Dirichlet, by where they belong."""
    return Claim(
        "Data that are not IID are harder.",
        "test_accuracy",
        HIGHEST,
        tuple(
            Comparison(f"{where}: {method}", easy.side(method), hard.side(method), FEW)
            for where, (easy, hard) in pairs.items()
            for method in COLUMNS
        ),
    )


def _slower(pairs: Mapping[str, tuple[Plot, Plot]]) -> Claim:
    """A claim on pairs of plots, with few and with many clients, by their split."""
    return Claim(
        "With more clients, all methods need more rounds: they are less accurate after the same.",
        "test_accuracy",
        at(1000),
        tuple(
            Comparison(f"{where}: {method}", few.side(method), many.side(method), FEW)
            for where, (few, many) in pairs.items()
            for method in COLUMNS
        ),
    )


def _figure(
    title: str,
    number: int,
    seconds: dict[str, float],
    grid: Sequence[Sequence[Plot]],
    claims: tuple[Claim, ...],
    *notes: str,
) -> Item:
    plots = [plot for row in grid for plot in row]
    return Item(
        f"Figure {number}: {title}",
        f"{PAPER}, Figure {number}, appendix A.2",
        seconds,
        {plot.key: plot.run for plot in plots},
        rows=tuple(Row("", tuple(plot.panel for plot in row)) for row in grid),
        claims=(_better(plots), *claims),
        notes=(*notes, EVALUATED, AS_IN_THE_CODE),
    )


# ------------------------------------------------------------- Figures 4 to 7, 12 and 13: CIFAR

# Seconds are extrapolated on two cores. CIFAR: 22 s for a round of one method with 10 clients of
# 500 images and 5 epochs, as in Figures 1 and 2, times the clients and epochs, four methods and
# 1,000 or 2,000 rounds, and 6 to 10 % for evaluations. MNIST and EMNIST-L: 0.3 and 0.11 ms a step,
# as Table 2's runs took. Shakespeare: 0.4 ms a window that is evaluated, three times that trained.

ONE_ALPHA = (
    "The paper does not say which alpha and mu of its search the curves have: alpha is 0.1, the "
    "best of Figure 1, and mu is 0.0001."
)


class Photos(NamedTuple):
    """The kinds of federations of a data set, with its name in titles and numbers of figures."""

    name: str
    equal: Kind
    large: Kind
    unequal: Kind
    notes: tuple[str, ...]


TEN = Photos("CIFAR-10", CIFAR_10, Kind(clients=1000), UNEQUAL, (ONE_ALPHA, PHOTOS, GPU))
HUNDRED = Photos(
    "CIFAR-100",
    cifar_100.EQUAL,
    cifar_100.LARGE,
    cifar_100.UNEQUAL,
    (
        cifar_100.NOT_RUN,
        f"{ONE_ALPHA} With 500 clients the paper chooses alpha = 0.01.",
        PHOTOS,
        GPU,
    ),
)
TWO_SPLITS = ("iid", "dirichlet-0.3")
THREE_SPLITS = ("iid", "dirichlet-0.6", "dirichlet-0.3")


def _two(kind: Kind, title: str) -> dict[str, Plot]:
    """IID and Dirichlet (.3) data at 10 %, by split."""
    return {
        split: _photos(kind, 10, split, f"{title}, {SPLITS[split].title}") for split in TWO_SPLITS
    }


def _numbers_of_clients(photos: Photos, number: int, seconds: float) -> Item:
    """Figure 4 or 5."""
    few = _two(photos.equal, f"{photos.name}, 100 clients")
    many = _two(photos.large, f"{photos.name}, {photos.large.clients:,} clients")
    return _figure(
        f"{photos.name} with 100 and {photos.large.clients:,} clients, 10 %",
        number,
        {"short": 90, "paper": seconds},
        [list(many.values()), list(few.values())],
        (_slower({SPLITS[split].title: (few[split], many[split]) for split in TWO_SPLITS}),),
        *photos.notes,
    )


def _participation(photos: Photos, number: int, seconds: float) -> Item:
    """Figure 6 or 7."""
    grid = {
        percent: {
            split: _photos(
                photos.equal, percent, split, f"{photos.name}, {SPLITS[split].title}, {percent} %"
            )
            for split in THREE_SPLITS
        }
        for percent in (100, 10, 1)
    }
    return _figure(
        f"{photos.name} at 100, 10 and 1 % participation",
        number,
        {"short": 180, "paper": seconds},
        [list(row.values()) for row in grid.values()],
        (_harder({f"{percent} %": _ends(row) for percent, row in grid.items()}),),
        *photos.notes,
    )


def _ends(row: Mapping[str, Plot]) -> tuple[Plot, Plot]:
    """The first and the last plot of a row: IID and the most heterogeneous data."""
    first, *_, last = row.values()
    return first, last


def _balance(photos: Photos, number: int, seconds: float) -> Item:
    """Figure 12 or 13."""
    unequal = _two(photos.unequal, f"{photos.name}, unbalanced")
    equal = _two(photos.equal, f"{photos.name}, balanced")
    return _figure(
        f"{photos.name} with balanced and unbalanced data, 10 %",
        number,
        {"short": 90, "paper": seconds},
        [list(unequal.values()), list(equal.values())],
        (_harder({"unbalanced": _ends(unequal), "balanced": _ends(equal)}),),
        *photos.notes,
        "On unbalanced data FedDyn's alpha is divided by a client's size over the mean, as in the "
        "authors' code.",
    )


# --------------------------------------- Figures 8 to 10: MNIST, EMNIST-L and Shakespeare


def _grid(
    name: str,
    setting: Callable[[int, str, tuple[Printed, Printed]], Setting],
    lines: Lines,
    *,
    percents: Sequence[int],
    splits: Sequence[str] = THREE_SPLITS,
    rounds: int | None = None,
    short: Table = QUICK,
) -> list[list[Plot]]:
    """Panels of a data set: a row for each participation, a column for each split.

    Args:
        name: The data set's name in titles.
        setting: A function from per cent, split and lines to a row of Table 2 or 5.
        lines: The lines of both tables.
        percents: Per cent of the clients in a round.
        splits: Keys of `SPLITS`.
        rounds: Rounds; None for those of the tables.
        short: What the short scale changes.
    """
    return [
        [
            _of_setting(
                f"{name}, {SPLITS[split].title}, {percent} %",
                setting(percent, split, lines[percent, split]),
                rounds,
                short,
            )
            for split in splits
        ]
        for percent in percents
    ]


MNIST = MNIST_2 | MNIST_5
EMNIST = EMNIST_2 | EMNIST_5


def _by_participation(
    name: str, number: int, seconds: dict[str, float], grid: Sequence[Sequence[Plot]], *notes: str
) -> Item:
    """Figure 8 or 9, or some of its rows."""
    percents = [row[0].title.rpartition(", ")[2] for row in grid]
    ends = {percent: (row[0], row[-1]) for percent, row in zip(percents, grid, strict=True)}
    title = f"{name} at {' and '.join(percents)} participation"
    return _figure(title, number, seconds, grid, (_harder(ends),), *notes)


ITEMS = {
    "figure-4": _numbers_of_clients(TEN, 4, 570_000),
    "figure-5": _numbers_of_clients(HUNDRED, 5, 340_000),
    "figure-6": _participation(TEN, 6, 3_000_000),
    "figure-7": _participation(HUNDRED, 7, 3_000_000),
    "figure-8": _by_participation(
        "MNIST",
        8,
        {"short": 60, "paper": 15_500},
        _grid("MNIST", digits, MNIST, percents=(10, 1)),
        ONLY_RUNS,
        FEDPROX_EPOCHS,
    ),
    "figure-8-full": _by_participation(
        "MNIST",
        8,
        {"short": 30, "paper": 76_000},
        _grid("MNIST", digits, MNIST, percents=(100,)),
        FEDPROX_EPOCHS,
        GPU,
    ),
    "figure-9": _by_participation(
        "EMNIST-L",
        9,
        {"short": 60, "paper": 4_500},
        _grid("EMNIST-L", letters, EMNIST, percents=(10, 1)),
        ONLY_RUNS,
        FEDPROX_EPOCHS,
        OWN_SPLIT,
    ),
    "figure-9-full": _by_participation(
        "EMNIST-L",
        9,
        {"short": 30, "paper": 22_000},
        _grid("EMNIST-L", letters, EMNIST, percents=(100,), rounds=500),
        "The paper's panels end at 500 rounds, its Table 2 at 1,000.",
        FEDPROX_EPOCHS,
        OWN_SPLIT,
        GPU,
    ),
    "figure-10": _figure(
        "Shakespeare at 100, 10 and 1 % participation",
        10,
        {"short": 120, "paper": 1_800_000},
        _grid(
            "Shakespeare",
            plays,
            SHAKESPEARE_2 | SHAKESPEARE_5,
            percents=(100, 10, 1),
            splits=("iid-2000", "roles-2000"),
            short=QUICK | {"rounds": 1, "cohort": {"clients_per_round": 1}},
        ),
        (),
        GPU,
    ),
    "figure-12": _balance(TEN, 12, 380_000),
    "figure-13": _balance(HUNDRED, 13, 265_000),
}
