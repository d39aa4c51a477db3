"""McMahan et al. 2017: unbalanced MNIST (footnote 5)."""

from experiments.common import FEDAVG, FEDAVG_PAPER
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
    Table,
)
from experiments.engine.series import ACCURACY, AT_EACH_ROUND
from experiments.engine.summaries import MEAN
from experiments.fedavg.tables import TWO_LAYERS, grid
from fedprox.results.target import Target

SIZES: dict[str, Table] = {"balanced": {}, "unbalanced": {"size_spread": 1.0}}
CASES = {
    ("iid", 50): ("IID", 100, 144),
    ("shards", 50): ("non-IID", 500, 1183),
    ("iid", 10): ("IID", 100, 92),
    ("shards", 10): ("non-IID", 500, 831),
}
"""By partition and B: a title, our rounds, and the paper's rounds in Table 4."""
BEST = f"{AT_EACH_ROUND}fedavg"


def _run(sizes: str, partition: str, batch: int) -> Table:
    """One run of a pair; seeds are for the partition."""
    _, rounds, _ = CASES[partition, batch]
    return {
        "rounds": rounds,
        "seed": 0,
        MOST_SEEDS: 3,
        "evaluation": {"gradients": False, "every": rounds // 50},
        "data": {"name": "mnist", "partition": partition, **SIZES[sizes]},
        "model": TWO_LAYERS,
        "cohort": {"clients_per_round": 10},
        "solver": {"learning_rate": grid(0.1, 0.464), "batch_size": batch, "epochs": 1},
        "method": [FEDAVG],
        SHORT: {
            "rounds": rounds // 20,
            MOST_SEEDS: 1,
            "evaluation": {"every": rounds // 100},
            "solver": {"learning_rate": [0.215]},
        },
    }


PAIRS = {
    (partition, batch): tuple(f"2nn-{sizes}-{partition}-b{batch}" for sizes in SIZES)
    for partition, batch in CASES
}
"""The names of the balanced and the unbalanced run."""

UNBALANCED = Item(
    "Unbalanced MNIST: is it easier for FedAvg?",
    f"{FEDAVG_PAPER}, section 3, footnote 5",
    # short as measured; paper extrapolated from it by rounds, rates and seeds
    {"short": 50, "paper": 4_000},
    {
        run: _run(sizes, *case)
        for case, pair in PAIRS.items()
        for sizes, run in zip(SIZES, pair, strict=True)
    },
    panels=tuple(
        tuple(
            Panel(f"{CASES[case][0]}, B = {batch}", ACCURACY, pair, (BEST,))
            for case, pair in PAIRS.items()
            if case[1] == batch
        )
        for batch in (50, 10)
    ),
    claims=(
        Claim(
            "Unbalanced versions are slightly easier: FedAvg is more accurate over the rounds.",
            ACCURACY,
            MEAN,
            tuple(
                Comparison(
                    f"{CASES[case][0]}, B = {case[1]}", Line(unbalanced, BEST), Line(balanced, BEST)
                )
                for case, (balanced, unbalanced) in PAIRS.items()
            ),
        ),
    ),
    races=(
        Race(
            tuple(SIZES),
            tuple(
                RaceRow(
                    f"{CASES[case][0]}, E = 1, B = {case[1]}",
                    Target("test_accuracy", 0.97),
                    (Entry(balanced, "fedavg", CASES[case][2]), Entry(unbalanced, "fedavg")),
                )
                for case, (balanced, unbalanced) in PAIRS.items()
            ),
            "rounds",
            "first column",
        ),
    ),
    notes=(
        "The footnote describes neither the unbalanced sets nor how much easier they are. Ours "
        "have log-normal sizes with a standard deviation of 1 of the logarithm: of clients (IID), "
        "or of the 200 shards (non-IID). The largest client has about 100 times the images of the "
        "smallest. The paper's numbers are those of Table 4.",
        "C = 0.1 and E = 1. Each seed is a partition of its own, with the same initial model. The "
        "learning rate is the best of three at each round. Evaluations read all rows.",
    ),
)
