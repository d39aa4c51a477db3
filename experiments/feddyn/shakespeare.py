"""Acar et al. 2021: Tables 2 and 5 for Shakespeare."""

from experiments.common import GPU
from experiments.engine.item import Table
from experiments.feddyn.settings import (
    EMPTY_ROUNDS,
    SPLITS,
    Lines,
    Printed,
    Setting,
    all_methods,
    experiment,
    interval,
    noted,
    of_percent,
    race_table,
)

SHAKESPEARE_2: Lines = {
    (100, "iid-2000"): ((46.4, 33, 74, 96, 113), (45.4, 28, 64, 59, 56)),
    (100, "roles-2000"): ((47.3, 33, 70, 134, "150+"), (46.3, 28, 62, 53, 64)),
    (10, "iid-2000"): ((46.9, 63, 94, 138, 190), (45.9, 56, 76, 96, 75)),
    (10, "roles-2000"): ((47.6, 63, 102, 169, 133), (46.6, 56, 82, 80, 66)),
}
SHAKESPEARE_5: Lines = {
    (1, "iid-2000"): ((43.0, 170, 460, 188, 151), (42.0, 148, 342, 149, 142)),
    (1, "roles-2000"): ((43.8, 158, 388, 159, 153), (42.8, 143, 318, 146, 145)),
}


def plays(percent: int, split: str, lines: tuple[Printed, Printed]) -> Setting:
    """A row for Shakespeare, where central training reaches 50.8 % (IID) and 51.2 %."""

    def methods(steps: int) -> list[Table]:
        alpha = {100: 0.009, 10: 0.015, 1: 0.001}[percent]
        return all_methods({"alpha": alpha}, {"solver": {"steps": steps}}, {"mu": 0.0001})

    together = min(3, percent)
    rows = 400  # all test windows of a client, and as many of its training windows
    every = interval(100 * 2 * rows, percent, 100, 2000)
    run = experiment(
        {"name": "shakespeare", "clients": 100, **SPLITS[split].options},
        {"name": "char-lstm", "initial": "torch"},
        percent,
        methods(100),
        {
            "learning_rate": 1.0,
            "batch_size": 100,
            "epochs": 5,
            "learning_rate_decay": 0.998 if percent == 1 else 1.0,
            "weight_decay": 1e-4,
        },
        rounds=150 if percent == 100 else 250,
        evaluation={"every": every, "rows": rows},
        short={
            "rounds": 3,
            "client_rows": 100,
            "evaluation": {"every": 1, "rows": 5},
            "cohort": {"clients_per_round": together},
            "method": methods(5),
        },
    )
    short = f"100 of the 2,000 windows of each client, {together} a round, SCAFFOLD with 5 steps"
    return of_percent("shakespeare", percent, split, lines, run, noted(every, "windows", short))


TABLE_2 = race_table(
    "Table 2, Shakespeare: models sent at full and 10 % participation",
    "Table 2",
    {"short": 300, "paper": 980_000},
    [plays(*key, lines) for key, lines in SHAKESPEARE_2.items()],
    GPU,
)
TABLE_5 = race_table(
    "Table 5, Shakespeare: models sent at 1 % participation",
    "Table 5",
    {"short": 120, "paper": 45_000},
    [plays(*key, lines) for key, lines in SHAKESPEARE_5.items()],
    EMPTY_ROUNDS,
    GPU,
)
