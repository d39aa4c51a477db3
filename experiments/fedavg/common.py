"""Parts of several items of McMahan et al. 2017."""

from typing import Any

from experiments.common import FEDAVG, FEDAVG_PAPER
from experiments.engine.item import AT_EACH_ROUND, MOST_SEEDS, SHORT, Table

PAPER = FEDAVG_PAPER

Printed = tuple[int | str, ...]
"""A row of a table: rounds to the target, "" where the paper has a dash."""

Batch = int | str
ALL = "all"
"""B = infinity: a client's rows are one batch."""

GRID = (0.001, 0.00215, 0.00464, 0.01, 0.0215, 0.0464, 0.1, 0.215, 0.464, 1.0, 2.15, 4.64)
"""Learning rates, each 10^(1/3) times the one before (section 3)."""

FINE = tuple(float(f"{10 ** (k / 6):.3g}") for k in range(-12, 7))
"""Learning rates, each 10^(1/6) times the one before (section 3); the LSTM's."""


def grid(lowest: float, highest: float, rates: tuple[float, ...] = GRID) -> list[float]:
    """The rates from the lowest to the highest given.

    >>> grid(0.0464, 0.215)
    [0.0464, 0.1, 0.215]
    """
    return list(rates[rates.index(lowest) : rates.index(highest) + 1])


TWO_LAYERS: Table = {"name": "mlp", "hidden": [200, 200]}


def experiment(
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
    """An experiment as TOML would hold it, with one seed and without gradient measurements."""
    return {
        "rounds": rounds,
        MOST_SEEDS: 1,
        SHORT: short,
        "evaluation": {"gradients": False, **evaluation},
        "data": data,
        "model": model,
        "cohort": {"clients_per_round": clients},
        "solver": solver,
        "method": list(methods or (FEDAVG,)),
        **options,
    }


FEW_LINES = "short: 20 roles, 2 a round, 20 lines of each"
TWENTY_ROLES: Table = {
    "client_rows": 20,
    "evaluation": {"every": 1, "rows": 10},
    "data": {"clients": 20},
    "cohort": {"clients_per_round": 2},
}
ONE_SEED = "One seed, which says nothing of noise."
READ = "Training loss is that of 100 images of each client; all test images are read."
READ_LINES = "10 training lines and 10 test lines of each of Shakespeare's roles are read."

BEST_FEDAVG = f"{AT_EACH_ROUND}fedavg"
