"""McMahan et al. 2017: the accuracies that the text of section 3 prints."""

from experiments.common import GPU, without_target
from experiments.engine.item import (
    AT_EACH_ROUND,
    SHORT,
    Claim,
    Comparison,
    Item,
    Line,
    Score,
    Table,
    overlaid,
)
from experiments.engine.summaries import HIGHEST
from experiments.fedavg.cifar_10 import CIFAR_SGD
from experiments.fedavg.networks import (
    ALL,
    BEST_FEDAVG,
    DIGITS_CNN,
    ONE_SEED,
    PAPER,
    Cell,
)

_FEDSGD_CELL, _FEDAVG_CELL = Cell("iid", 10, ALL, 1), Cell("iid", 10, 10, 20)


def _of_rounds(cell: Cell, rounds: int) -> tuple[str, Table]:
    key, run = DIGITS_CNN.curve(cell, rounds, 10)
    return f"{key}-{rounds}-rounds", run


_SGD_1200, _SGD_6000 = _of_rounds(_FEDSGD_CELL, 1_200), _of_rounds(_FEDSGD_CELL, 6_000)
_AVG_300 = _of_rounds(_FEDAVG_CELL, 300)
_CIFAR_KEY = "cifar-sgd-197500"
_CIFAR_WHOLE: Table = without_target(CIFAR_SGD) | {
    "rounds": 197_500,
    SHORT: overlaid(CIFAR_SGD[SHORT], {"rounds": 100, "evaluation": {"every": 20}}),
}
_BEST_SGD = f"{AT_EACH_ROUND}centralised"
_CIFAR_NOTE = "short: 100 updates, 50 images of a client, of which 10 are measured"

ACCURACIES = Item(
    "The accuracies that section 3 prints: MNIST CNN and CIFAR-10",
    f"{PAPER}, section 3, increasing computation per client, and CIFAR experiments",
    # short as measured; paper: for each rate 2.3 s an epoch and round of the CNN, and 0.07 s
    # an update of CIFAR's, by Figure 9
    {"short": 100, "paper": 120_000},
    {**dict((_SGD_1200, _SGD_6000, _AVG_300)), _CIFAR_KEY: _CIFAR_WHOLE},
    scores=(
        Score(
            "MNIST CNN, IID: FedSGD, 1,200 rounds",
            Line(_SGD_1200[0], BEST_FEDAVG),
            "99.22 %",
            DIGITS_CNN.note,
        ),
        Score(
            "MNIST CNN, IID: FedSGD, 6,000 rounds",
            Line(_SGD_6000[0], BEST_FEDAVG),
            "not improved further",
            DIGITS_CNN.note,
        ),
        Score(
            "MNIST CNN, IID: FedAvg, E = 20, B = 10, 300 rounds",
            Line(_AVG_300[0], BEST_FEDAVG),
            "99.44 %",
            DIGITS_CNN.note,
        ),
        Score(
            "CIFAR-10: SGD, 197,500 updates with batches of 100",
            Line(_CIFAR_KEY, _BEST_SGD),
            "86 %",
            _CIFAR_NOTE,
        ),
    ),
    claims=(
        Claim(
            "In 300 rounds FedAvg reaches a higher accuracy than FedSGD in 1,200 or 6,000.",
            "test_accuracy",
            HIGHEST,
            tuple(
                Comparison(
                    f"FedSGD, {rounds} rounds",
                    Line(_AVG_300[0], BEST_FEDAVG),
                    Line(run[0], BEST_FEDAVG),
                    DIGITS_CNN.note,
                )
                for rounds, run in (("1,200", _SGD_1200), ("6,000", _SGD_6000))
            ),
        ),
        Claim(
            "After 1,200 rounds FedSGD does not improve further.",
            "test_accuracy",
            HIGHEST,
            (
                Comparison(
                    "FedSGD",
                    Line(_SGD_6000[0], BEST_FEDAVG),
                    Line(_SGD_1200[0], BEST_FEDAVG),
                    DIGITS_CNN.note,
                ),
            ),
            alike=0.0005,
        ),
    ),
    notes=(
        GPU,
        ONE_SEED,
        "The paper does not say to which partition its MNIST numbers belong; here IID. C = 0.1. "
        "Accuracies are the best over learning rates at each round. SGD's learning rates and its "
        "decay, 0.99998, are ours.",
    ),
)
