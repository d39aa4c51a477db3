"""McMahan et al. 2017: Figures 3 and 8, many local epochs."""

import math

from experiments.common import FEDAVG, GPU
from experiments.engine.item import Claim, Comparison, Item, Line, Panel, Row
from experiments.engine.races import FACTOR
from experiments.engine.summaries import FINAL, MEAN_LOG
from experiments.fedavg.networks import (
    FEW_LINES,
    PAPER,
    READ,
    READ_LINES,
    TWENTY_ROLES,
    plain,
)

MANY_EPOCHS = (1, 5, 10, 25, 50, 100)
_OWN_EPOCHS = [FEDAVG | {"solver": {"epochs": epochs}} for epochs in MANY_EPOCHS]
_NO_AXES = "The paper's text does not say how many rounds its figure shows; here 50."


def _epochs(epochs: int) -> str:
    return f"fedavg epochs={epochs}"


def _epoch_curves(run: str) -> tuple[Line, ...]:
    return tuple(Line(run, _epochs(epochs), f"E = {epochs}") for epochs in MANY_EPOCHS)


FIGURE_3 = Item(
    "Figure 3: many local epochs, Shakespeare LSTM",
    f"{PAPER}, Figure 3, section 3",
    {"short": 190, "paper": 143_000},
    {
        "lstm-large-e": plain(
            {"name": "shakespeare", "partition": "lines"},
            {"name": "peephole-char-lstm"},
            {"learning_rate": 1.47, "batch_size": 10, "epochs": 1},
            *_OWN_EPOCHS,
            clients=115,
            rounds=50,
            short=TWENTY_ROLES | {"rounds": 10},
            evaluation={"rows": 10},
        )
    },
    rows=(
        Row(
            "",
            (
                Panel("Shakespeare, by play and role", "train_loss", _epoch_curves("lstm-large-e")),
                Panel(
                    "Shakespeare, by play and role", "test_accuracy", _epoch_curves("lstm-large-e")
                ),
            ),
        ),
    ),
    claims=(
        Claim(
            "Very many can plateau or diverge: E = 100 ends at a greater loss than E = 10.",
            "train_loss",
            FINAL,
            (
                Comparison(
                    "Shakespeare",
                    Line("lstm-large-e", _epochs(100)),
                    Line("lstm-large-e", _epochs(10)),
                    FEW_LINES,
                ),
            ),
        ),
    ),
    notes=(
        GPU,
        _NO_AXES,
        READ_LINES,
        "B = 10, C = 0.1 and the fixed learning rate 1.47, as in the paper.",
    ),
)

_IMAGES_8 = "short: 20 images of a client"
_RATE_8 = {"iid": 0.1, "shards": 0.0215}
_TITLE = {"iid": "MNIST, IID", "shards": "MNIST, non-IID"}
FIGURE_8 = Item(
    "Figure 8: many local epochs, MNIST CNN",
    f"{PAPER}, Figure 8, appendix A",
    {"short": 400, "paper": 43_000},
    {
        f"cnn-large-e-{partition}": plain(
            {"name": "mnist", "partition": partition},
            {"name": "mnist-cnn"},
            {"learning_rate": rate, "batch_size": 10, "epochs": 1},
            *_OWN_EPOCHS,
            clients=10,
            rounds=50,
            short={"rounds": 10, "client_rows": 20, "evaluation": {"rows": 10}},
            evaluation={"rows": 100},
        )
        for partition, rate in _RATE_8.items()
    },
    rows=(
        Row(
            "",
            tuple(
                Panel(title, "train_loss", _epoch_curves(f"cnn-large-e-{partition}"))
                for partition, title in _TITLE.items()
            ),
        ),
    ),
    claims=(
        Claim(
            "A large E does not degrade convergence: the loss with E = 100 is at most "
            f"{FACTOR} times that with E = 10.",
            "train_loss",
            MEAN_LOG,
            tuple(
                Comparison(
                    title,
                    Line(f"cnn-large-e-{partition}", _epochs(10)),
                    Line(f"cnn-large-e-{partition}", _epochs(100)),
                    _IMAGES_8,
                )
                for partition, title in _TITLE.items()
            ),
            tolerance=math.log10(FACTOR),
        ),
    ),
    notes=(
        GPU,
        _NO_AXES,
        READ,
        "B = 10 and C = 0.1. The learning rates, 0.1 for IID and 0.0215 for non-IID data, are "
        "ours: the paper's caption only says that they differ.",
    ),
)
