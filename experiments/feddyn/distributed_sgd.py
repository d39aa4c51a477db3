"""Distributed SGD (FedSGD) beside the methods of Acar et al. 2021.

Section 3 calls distributed SGD "not competitive" and leaves it out of the tables, without a number
and without its learning rate. Here it has the best rate of a grid of its own.
"""

from typing import NamedTuple

from experiments.common import FEDAVG, ONE_STEP, fedprox, fedsgd, without_target
from experiments.engine.item import (
    AT_EACH_ROUND,
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
from experiments.feddyn.digits import TABLES
from experiments.feddyn.settings import EVALUATED, SPLITS, share
from experiments.feddyn.synthetic import SYNTHETIC, TABLE_6
from fedprox.simulation.results.target import Target

BEST_FEDSGD = f"{AT_EACH_ROUND}fedsgd"


class Rival(NamedTuple):
    """A method beside distributed SGD: its label, its legend, and `[[method]]`."""

    label: str
    shown: str
    table: Table


_E10: Table = {"solver": {"epochs": 10}}


def _rivals(kind: str) -> tuple[Rival, ...]:
    """The methods of Table 6 with E = 10 and every alpha and mu of appendix A.1."""
    balance = kind == "type3"
    alphas = {"name": "feddyn", "alpha": [0.1, 0.01, 0.001], "balance": balance}
    return (
        Rival(f"{AT_EACH_ROUND}feddyn{' balanced' * balance}", "FedDyn", alphas | _E10),
        Rival(
            f"{AT_EACH_ROUND}scaffold", "SCAFFOLD", {"name": "scaffold", "solver": {"steps": 200}}
        ),
        Rival(f"{AT_EACH_ROUND}fedavg", "FedAvg", FEDAVG | _E10),
        Rival(f"{AT_EACH_ROUND}fedprox", "FedProx", fedprox(0.01, 0.0001) | _E10),
    )


def _synthetic_key(kind: str) -> str:
    return f"feddyn-synthetic-{kind}-distributed-sgd"


def _synthetic_run(kind: str) -> Table:
    """The run of Table 6 without its target, for 100 rounds."""
    whole = without_target(TABLE_6.runs[f"feddyn-synthetic-{kind}"])
    methods = [
        fedsgd(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        *(rival.table for rival in _rivals(kind)),
    ]
    return whole | {"rounds": 100, "method": methods, SHORT: {"rounds": 20, MOST_SEEDS: 1}}


def _below(place: int, text: str) -> Claim:
    """A rival's loss below that of distributed SGD, over the rounds."""
    return Claim(
        text,
        "train_loss",
        MEAN,
        tuple(
            Comparison(
                title,
                Line(_synthetic_key(kind), BEST_FEDSGD),
                Line(_synthetic_key(kind), _rivals(kind)[place].label),
            )
            for kind, (title, *_) in SYNTHETIC.items()
        ),
    )


_MNIST_SPLITS = {"iid": (97.2, 31, 49), "dirichlet-0.3": (97.2, 37, 76)}
"""The lower accuracy of Table 2, and the models that FedDyn and FedAvg sent, at 10 %."""


def _digits_key(split: str) -> str:
    return f"feddyn-mnist-10-percent-{split}-distributed-sgd"


def _digits_run(split: str) -> Table:
    """FedDyn and FedAvg as in Table 2, and FedSGD, to the lower accuracy."""
    whole = TABLES["table-2-mnist"].runs[f"feddyn-mnist-10-percent-{split}"]
    by_name = {method["name"]: method for method in whole["method"]}
    return whole | {
        "rounds": 1_000,
        MOST_SEEDS: 1,
        "target_accuracy": share(_MNIST_SPLITS[split][0]),
        "method": [
            by_name["feddyn"],
            by_name["fedavg"],
            fedsgd(0.1, 0.215, 0.464, 1.0, learning_rate_decay=1.0),
        ],
        SHORT: {"rounds": 20, "client_rows": 100, "evaluation": {"every": 2, "rows": 20}},
    }


DISTRIBUTED_SGD = Item(
    "Distributed SGD beside FedDyn and its rivals",
    f"{TABLE_6.source.partition(',')[0]}, section 3, comparison of methods",
    # short as measured, nearly all of it compilation; paper: 25 s a kind and seed, and on MNIST
    # 0.8 s a round of FedSGD with four rates
    {"short": 110, "paper": 2_600},
    {_synthetic_key(kind): _synthetic_run(kind) for kind in SYNTHETIC}
    | {_digits_key(split): _digits_run(split) for split in _MNIST_SPLITS},
    rows=(
        Row(
            "",
            tuple(
                Panel(
                    title,
                    "train_loss",
                    (
                        Line(_synthetic_key(kind), BEST_FEDSGD, "distributed SGD"),
                        *(
                            Line(_synthetic_key(kind), rival.label, rival.shown)
                            for rival in _rivals(kind)
                        ),
                    ),
                )
                for kind, (title, *_) in SYNTHETIC.items()
            ),
        ),
    ),
    claims=(
        _below(0, "Distributed SGD is not competitive with FedDyn: its loss lies above."),
        _below(1, "Nor with SCAFFOLD."),
        _below(2, "Nor with FedAvg."),
        _below(3, "Nor with FedProx."),
    ),
    races=(
        Race(
            ("FedDyn", "FedAvg", "distributed SGD"),
            tuple(
                RaceRow(
                    f"MNIST, 10 %, {SPLITS[split][0]}",
                    Target("test_accuracy", share(percent)),
                    (
                        Entry(_digits_key(split), "feddyn", feddyn),
                        Entry(_digits_key(split), "fedavg", fedavg),
                        Entry(_digits_key(split), "fedsgd"),
                    ),
                    "short: 100 images of a client",
                )
                for split, (percent, feddyn, fedavg) in _MNIST_SPLITS.items()
            ),
            "models",
            "first column",
        ),
    ),
    notes=(
        f"{ONE_STEP} Here its line is the best of its learning rates at each round.",
        "The paper gives no number for distributed SGD. The synthetic data are those of Table 6, "
        "for 100 rounds; its methods have E = 10, or 200 steps, and are the best of both learning "
        "rates and of every alpha or mu of appendix A.1 at each round. On MNIST the paper's "
        "numbers are those of Table 2, to the lower accuracy; FedSGD's learning rate does not "
        "decay there.",
        EVALUATED,
    ),
)
