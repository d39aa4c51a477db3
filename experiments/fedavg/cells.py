"""McMahan et al. 2017: the cells of Tables 1, 2 and 4, and the searches for their learning rates.

The paper does not state the learning rates of most rows, so the rates at which the searches begin
are ours.
"""

from typing import NamedTuple

from experiments.fedavg.common import ALL, Batch


class Cell(NamedTuple):
    """The settings of a cell of a table.

    Attributes:
        partition: Partition of the data.
        clients: Clients of a round.
        batch: Batch size B.
        epochs: Local epochs E.
    """

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
    # Table 2's other rows
    Cell("iid", 10, ALL, 5): RateSearch((0.1, 0.464), 500),
    Cell("iid", 10, ALL, 20): RateSearch((0.1, 0.464), 350),
    Cell("iid", 10, 50, 20): RateSearch((0.0464, 0.215), 50),
    Cell("iid", 10, 10, 20): RateSearch((0.0464, 0.215), 30),
    Cell("shards", 10, ALL, 1): RateSearch((0.1, 0.464), 1000, 5),
    Cell("shards", 10, ALL, 5): RateSearch((0.1, 0.464), 1500, 5),
    Cell("shards", 10, 50, 1): RateSearch((0.0464, 0.215), 900, 5),
    Cell("shards", 10, ALL, 20): RateSearch((0.0464, 0.215), 1000),
    Cell("shards", 10, 50, 5): RateSearch((0.0215, 0.1), 500),
    Cell("shards", 10, 50, 20): RateSearch((0.0215, 0.1), 650),
    Cell("shards", 10, 10, 5): RateSearch((0.0215, 0.1), 350),
    Cell("shards", 10, 10, 20): RateSearch((0.0215, 0.1), 260),
    # Table 1: clients a round, E = 5
    Cell("iid", 1, ALL, 5): RateSearch((0.1, 0.464), 600, 5),
    Cell("iid", 20, ALL, 5): RateSearch((0.1, 0.464), 500),
    Cell("iid", 50, ALL, 5): RateSearch((0.1, 0.464), 500),
    Cell("iid", 100, ALL, 5): RateSearch((0.1, 0.464), 500),
    Cell("iid", 1, 10, 5): RateSearch((0.0464, 0.215), 80),
    Cell("iid", 20, 10, 5): RateSearch((0.1, 0.1), 30),
    Cell("iid", 50, 10, 5): RateSearch((0.1, 0.1), 30),
    Cell("iid", 100, 10, 5): RateSearch((0.1, 0.1), 30),
    Cell("shards", 1, ALL, 5): RateSearch((0.0215, 0.1), 1800, 5),
    Cell("shards", 20, ALL, 5): RateSearch((0.1, 0.464), 1500, 5),
    Cell("shards", 50, ALL, 5): RateSearch((0.1, 0.464), 1600, 5),
    Cell("shards", 100, ALL, 5): RateSearch((0.1, 0.464), 1600, 5),
    Cell("shards", 1, 10, 5): RateSearch((0.00215, 0.01), 1500, 5),
    Cell("shards", 20, 10, 5): RateSearch((0.0215, 0.1), 300),
    Cell("shards", 50, 10, 5): RateSearch((0.0215, 0.1), 400),
    Cell("shards", 100, 10, 5): RateSearch((0.0215, 0.1), 150),
}
"""MNIST's CNN."""

LSTM: dict[Cell, RateSearch] = {
    Cell("lines-iid", 115, ALL, 1): RateSearch((1.47, 3.16), 4000, 20),
    Cell("lines-iid", 115, 50, 1): RateSearch((1.0, 2.15), 2500, 10),
    Cell("lines-iid", 115, ALL, 5): RateSearch((1.0, 2.15), 1000, 5),
    Cell("lines-iid", 115, 10, 1): RateSearch((1.0, 2.15), 700, 5),
    Cell("lines-iid", 115, 50, 5): RateSearch((1.0, 2.15), 600, 5),
    Cell("lines-iid", 115, 10, 5): RateSearch((1.0, 2.15), 300, 5),
    Cell("lines", 115, ALL, 1): RateSearch((1.47, 3.16), 6000, 20),
    Cell("lines", 115, 50, 1): RateSearch((1.0, 2.15), 900, 5),
    Cell("lines", 115, ALL, 5): RateSearch((1.0, 2.15), 900, 5),
    Cell("lines", 115, 10, 1): RateSearch((1.0, 2.15), 250, 2),
    Cell("lines", 115, 50, 5): RateSearch((1.0, 2.15), 250, 2),
    Cell("lines", 115, 10, 5): RateSearch((1.0, 2.15), 80),
}
"""Shakespeare's LSTM by play and role ("lines") and IID, a tenth of 1,145 roles a round."""
