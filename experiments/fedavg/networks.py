"""McMahan et al. 2017: models with the searches for their learning rates, and their runs.

The paper does not state the learning rates of most rows, so the rates at which the searches begin
are ours.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from experiments.common import FEDAVG, FEDAVG_PAPER, experiment
from experiments.engine.item import AT_EACH_ROUND, MORE_RATES, Table

PAPER = FEDAVG_PAPER

Printed = tuple[int | str, ...]
"""A row of a table: rounds to the target, "" where the paper has a dash."""

Batch = int | str
ALL = "all"
"""B = infinity: a client's rows are one batch."""

GRID = (0.001, 0.00215, 0.00464, 0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0, 2.15, 4.64)
"""Learning rates, each 10^(1/3) times the one before (section 3)."""

TWO_LAYERS: Table = {"name": "mlp", "hidden": [200, 200]}
BEST_FEDAVG = f"{AT_EACH_ROUND}fedavg"
ONE_SEED = "One seed, which says nothing of noise."
READ = "Training loss is that of 100 images of each client; all test images are read."


def grid(lowest: float, highest: float, rates: tuple[float, ...] = GRID) -> list[float]:
    """The rates from the lowest to the highest given.

    >>> grid(0.0464, 0.215)
    [0.0464, 0.1, 0.215]
    """
    return list(rates[rates.index(lowest) : rates.index(highest) + 1])


def plain(
    data: Table,
    model: Table,
    solver: Table,
    *methods: Table,
    clients: int,
    rounds: int,
    short: Table,
    evaluation: Table,
    **options: Any,
) -> Table:
    """An experiment without gradient measurements; FedAvg is its only method if none is given."""
    return experiment(
        data,
        model,
        solver,
        methods or [FEDAVG],
        rounds=rounds,
        cohort={"clients_per_round": clients},
        evaluation={"gradients": False, **evaluation},
        short=short,
        **options,
    )


class Cell(NamedTuple):
    """The settings of a cell of a table: partition, clients of a round, batch size B, epochs E."""

    partition: str
    clients: int
    batch: Batch
    epochs: int

    @property
    def key(self) -> str:
        """Part of the names of runs."""
        return f"{self.partition}-k{self.clients}-b{self.batch}-e{self.epochs}"


class RateSearch(NamedTuple):
    """The search for a cell's best learning rate.

    Attributes:
        rates: Lowest and highest learning rate at which the search begins.
        rounds: Most rounds, more than the paper took: by half or less in all but a few cells.
        every: Rounds between evaluations.
    """

    rates: tuple[float, float]
    rounds: int
    every: int = 1


PERCEPTRON: dict[Cell, RateSearch] = {
    # Table 1: clients a round, E = 1
    Cell("iid", 1, ALL, 1): RateSearch((0.215, 2.15), 2200, 20),
    Cell("iid", 10, ALL, 1): RateSearch((0.464, 2.15), 2200, 10),
    Cell("iid", 20, ALL, 1): RateSearch((0.464, 1.0), 2400, 10),
    Cell("iid", 50, ALL, 1): RateSearch((0.464, 1.0), 2000, 10),
    Cell("iid", 100, ALL, 1): RateSearch((0.464, 1.0), 2000, 10),
    Cell("iid", 1, 10, 1): RateSearch((0.0215, 0.215), 500, 5),
    Cell("iid", 10, 10, 1): RateSearch((0.1, 0.464), 150),
    Cell("iid", 20, 10, 1): RateSearch((0.1, 0.464), 120),
    Cell("iid", 50, 10, 1): RateSearch((0.1, 0.464), 120),
    Cell("iid", 100, 10, 1): RateSearch((0.1, 0.464), 110),
    Cell("shards", 1, ALL, 1): RateSearch((0.0464, 0.464), 6000, 20),
    Cell("shards", 10, ALL, 1): RateSearch((0.215, 1.0), 2700, 10),
    Cell("shards", 20, ALL, 1): RateSearch((0.464, 1.0), 2300, 10),
    Cell("shards", 50, ALL, 1): RateSearch((0.464, 1.0), 2000, 10),
    Cell("shards", 1, 10, 1): RateSearch((0.01, 0.1), 5000, 20),
    Cell("shards", 10, 10, 1): RateSearch((0.1, 0.464), 1250, 5),
    Cell("shards", 20, 10, 1): RateSearch((0.1, 0.215), 900, 2),
    Cell("shards", 50, 10, 1): RateSearch((0.1, 0.215), 650),
    Cell("shards", 100, 10, 1): RateSearch((0.1, 0.215), 550),
    # Table 4: B and E, ten clients a round
    Cell("iid", 10, ALL, 10): RateSearch((0.215, 1.0), 230, 2),
    Cell("iid", 10, 50, 1): RateSearch((0.215, 1.0), 220, 2),
    Cell("iid", 10, ALL, 20): RateSearch((0.215, 1.0), 140),
    Cell("iid", 10, 50, 10): RateSearch((0.1, 0.464), 70),
    Cell("iid", 10, 50, 20): RateSearch((0.1, 0.464), 60),
    Cell("iid", 10, 10, 10): RateSearch((0.1, 0.464), 50),
    Cell("iid", 10, 10, 20): RateSearch((0.1, 0.464), 50),
    Cell("shards", 10, ALL, 10): RateSearch((0.1, 0.464), 1300, 5),
    Cell("shards", 10, 50, 1): RateSearch((0.1, 0.464), 1800, 10),
    Cell("shards", 10, ALL, 20): RateSearch((0.1, 0.215), 1100, 2),
    Cell("shards", 10, 50, 10): RateSearch((0.1, 0.215), 1000, 2),
    Cell("shards", 10, 50, 20): RateSearch((0.1, 0.215), 950, 2),
    Cell("shards", 10, 10, 10): RateSearch((0.1, 0.215), 600, 2),
    Cell("shards", 10, 10, 20): RateSearch((0.1, 0.215), 850, 2),
}
"""The 2NN. Cheap rows begin with many rates, expensive ones with two near their neighbours'."""

CNN: dict[Cell, RateSearch] = {
    # Table 2's rows that fit two cores
    Cell("iid", 10, ALL, 1): RateSearch((0.215, 0.215), 900, 10),
    Cell("iid", 10, 50, 1): RateSearch((0.215, 0.215), 100),
    Cell("iid", 10, 10, 1): RateSearch((0.1, 0.1), 60),
    Cell("iid", 10, 50, 5): RateSearch((0.215, 0.215), 80),
    Cell("iid", 10, 10, 5): RateSearch((0.1, 0.1), 30),
    Cell("shards", 10, 10, 1): RateSearch((0.0464, 0.0464), 500, 2),
    # Table 1: clients a round, E = 5
    Cell("iid", 1, ALL, 5): RateSearch((0.1, 0.464), 600, 5),
    Cell("iid", 1, 10, 5): RateSearch((0.0464, 0.215), 80),
    Cell("iid", 20, 10, 5): RateSearch((0.1, 0.1), 30),
    Cell("iid", 50, 10, 5): RateSearch((0.1, 0.1), 30),
    Cell("iid", 100, 10, 5): RateSearch((0.1, 0.1), 30),
    Cell("shards", 1, ALL, 5): RateSearch((0.0215, 0.1), 1800, 5),
    Cell("shards", 1, 10, 5): RateSearch((0.00215, 0.01), 1500, 5),
}
"""MNIST's CNN."""


class Network(NamedTuple):
    """A model with its data and the learning rates of each cell.

    Attributes:
        key: Beginning of the names of its runs.
        model: `[model]` of an experiment.
        data: Name of its data set.
        target: The test accuracy of its table, a grey line in the paper's figures.
        searches: The learning rates of each cell.
        rows: Rows of a client that evaluations read at most.
        short: Changes of curves at the short scale.
        note: What these changes are.
        rates: The grid that `searches` take their rates from.
    """

    key: str
    model: Table
    data: str
    target: float
    searches: dict[Cell, RateSearch]
    rows: int
    short: Table
    note: str
    rates: tuple[float, ...] = GRID

    def run(self, cell: Cell, rounds: int, every: int, short: Table, **options: Any) -> Table:
        """A cell's run with the rates of its table."""
        rates = grid(*self.searches[cell].rates, self.rates)
        return plain(
            {"name": self.data, "partition": cell.partition},
            self.model,
            {"learning_rate": rates, "batch_size": cell.batch, "epochs": cell.epochs},
            clients=cell.clients,
            rounds=rounds,
            short=short,
            evaluation={"every": every, "rows": self.rows},
            **options,
        )

    def middle(self, cell: Cell) -> Table:
        """The short scale's only rate."""
        rates = grid(*self.searches[cell].rates, self.rates)
        return {"solver": {"learning_rate": [rates[len(rates) // 2]]}}

    def search(self, cell: Cell, short: Table) -> Table:
        """A cell's search, which stops when one of its rates reaches the target."""
        _, rounds, every = self.searches[cell]
        options = {"target_accuracy": self.target, "stop_at_target": "any"}
        return self.run(cell, rounds, every, short, **options, **{MORE_RATES: list(self.rates)})

    def searches_of(self, cells: Iterable[Cell]) -> dict[Cell, tuple[str, Table]]:
        """The searches of cells, with the runs' names and what the short scale changes of each."""

        def short(cell: Cell) -> Table:
            rounds = self.searches[cell].rounds
            if self is DIGITS_2NN:
                fewer = rounds if rounds <= WHOLE else rounds // 5
                return {"rounds": fewer} | self.middle(cell)
            return {
                "rounds": 2,
                "client_rows": 60,
                "evaluation": {"every": 1, "rows": 10},
                "cohort": {"clients_per_round": min(cell.clients, 10)},
            }

        return {cell: (f"{self.key}-{cell.key}", self.search(cell, short(cell))) for cell in cells}


WHOLE = 250
"""The 2NN's cells with more rounds than this run a fifth of them at the short scale."""

_SHORT_IMAGES: Table = {"client_rows": 20, "evaluation": {"every": 1, "rows": 10}}
DIGITS_CNN = Network(
    "cnn",
    {"name": "mnist-cnn"},
    "mnist",
    0.99,
    CNN,
    100,
    {"rounds": 3, "cohort": {"clients_per_round": 2}, **_SHORT_IMAGES},
    "short: one learning rate, 20 images of a client, 2 clients a round",
)
DIGITS_2NN = Network(
    "2nn",
    TWO_LAYERS,
    "mnist",
    0.97,
    PERCEPTRON,
    100,
    {"rounds": 20, **_SHORT_IMAGES},
    "short: one learning rate, 20 images of a client",
)
