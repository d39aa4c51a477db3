"""McMahan et al. 2017: unbalanced MNIST, footnote 5."""

from experiments.common import FEDAVG
from experiments.engine.item import (
    MOST_SEEDS,
    SHORT,
    Claim,
    Comparison,
    Entry,
    Item,
    Line,
    Panel,
    Race,
    RaceRow,
    Row,
    Table,
)
from experiments.engine.summaries import MEAN
from experiments.fedavg.common import BEST_FEDAVG, PAPER, TWO_LAYERS, grid
from experiments.fedavg.tables import TABLE_4
from fedprox.simulation.results.target import Target

SPREAD = 1.0
"""Standard deviation of the logarithm of sizes in the unbalanced sets."""

_SIZES = {"balanced": {}, "unbalanced": {"size_spread": SPREAD}}
_PARTITIONS = {"iid": "IID", "shards": "non-IID"}
_BATCHES = (50, 10)
_BALANCE_ROUNDS = {"iid": 100, "shards": 500}


def _balance(sizes: str, partition: str, batch: int) -> str:
    return f"2nn-{sizes}-{partition}-b{batch}"


def _balance_run(sizes: str, partition: str, batch: int) -> Table:
    """One run of a pair; seeds are for the partition."""
    rounds = _BALANCE_ROUNDS[partition]
    return {
        "rounds": rounds,
        "seed": 0,
        MOST_SEEDS: 3,
        SHORT: {
            "rounds": rounds // 20,
            MOST_SEEDS: 1,
            "evaluation": {"every": rounds // 100},
            "solver": {"learning_rate": [0.215]},
        },
        "evaluation": {"gradients": False, "every": rounds // 50},
        "data": {"name": "mnist", "partition": partition, **_SIZES[sizes]},
        "model": TWO_LAYERS,
        "cohort": {"clients_per_round": 10},
        "solver": {
            "learning_rate": grid(0.1, 0.464),
            "batch_size": batch,
            "epochs": 1,
        },
        "method": [FEDAVG],
    }


_BALANCE_NOTE = "short: one learning rate, a twentieth of the rounds"
UNBALANCED = Item(
    "Unbalanced MNIST: is it easier for FedAvg?",
    f"{PAPER}, section 3, footnote 5",
    # short as measured; paper extrapolated from it by rounds, rates and seeds
    {"short": 50, "paper": 4_000},
    {
        _balance(sizes, partition, batch): _balance_run(sizes, partition, batch)
        for sizes in _SIZES
        for partition in _PARTITIONS
        for batch in _BATCHES
    },
    rows=tuple(
        Row(
            f"E = 1, B = {batch}",
            tuple(
                Panel(
                    f"MNIST 2NN, {title}",
                    "test_accuracy",
                    tuple(
                        Line(_balance(sizes, partition, batch), BEST_FEDAVG, sizes)
                        for sizes in _SIZES
                    ),
                    best=True,
                    level=0.97,
                )
                for partition, title in _PARTITIONS.items()
            ),
        )
        for batch in _BATCHES
    ),
    claims=(
        Claim(
            "Unbalanced versions are slightly easier: FedAvg is more accurate over the rounds.",
            "test_accuracy",
            MEAN,
            tuple(
                Comparison(
                    f"{title}, B = {batch}",
                    Line(_balance("unbalanced", partition, batch), BEST_FEDAVG),
                    Line(_balance("balanced", partition, batch), BEST_FEDAVG),
                    _BALANCE_NOTE,
                )
                for batch in _BATCHES
                for partition, title in _PARTITIONS.items()
            ),
        ),
    ),
    races=(
        Race(
            ("balanced", "unbalanced"),
            tuple(
                RaceRow(
                    f"{title}, E = 1, B = {batch}",
                    Target("test_accuracy", 0.97),
                    tuple(
                        Entry(
                            _balance(sizes, partition, batch),
                            "fedavg",
                            TABLE_4[1, batch][column] if sizes == "balanced" else "",
                        )
                        for sizes in _SIZES
                    ),
                    _BALANCE_NOTE,
                )
                for batch in _BATCHES
                for column, (partition, title) in enumerate(_PARTITIONS.items())
            ),
            "rounds",
            "first column",
        ),
    ),
    notes=(
        "The footnote describes neither the unbalanced sets nor how much easier they are. Ours "
        f"have log-normal sizes with a standard deviation of {SPREAD:g} of the logarithm: of "
        "clients (IID), or of the 200 shards (non-IID). The largest client has about 100 times the "
        "images of the smallest. The paper's numbers are those of Table 4.",
        "C = 0.1 and E = 1. Each seed is a partition of its own, with the same initial model. The "
        "learning rate is the best of three at each round. Evaluations read all rows.",
    ),
)
