"""McMahan et al. 2017: Figure 1, averages of two models."""

from experiments.common import FEDAVG
from experiments.engine.between import LINE, PARENT
from experiments.engine.item import Between, Claim, Comparison, Item, Line, Panel, Row, Table
from experiments.engine.summaries import HALFWAY
from experiments.fedavg.networks import PAPER, TWO_LAYERS

PARENTS: Table = {
    "rounds": 1,
    "data": {"name": "mnist", "partition": "iid"},
    "model": TWO_LAYERS,
    "cohort": {"clients_per_round": 1},
    "solver": {"learning_rate": 0.1, "batch_size": 50, "epochs": 20},
    "method": [FEDAVG],
}
BEGIN = {"separate": "separate initialisation", "shared": "shared initialisation"}
LINES = ((LINE, LINE), (PARENT, PARENT))

FIGURE_1 = Item(
    "Figure 1: the loss of averages of two models",
    f"{PAPER}, Figure 1, section 2",
    {"short": 50, "paper": 120},
    between={key: Between(PARENTS, shared=key == "shared") for key in BEGIN},
    rows=(
        Row(
            "",
            tuple(
                Panel(
                    title,
                    "train_loss",
                    tuple(Line(key, label, shown) for label, shown in LINES),
                    x="theta",
                )
                for key, title in BEGIN.items()
            ),
        ),
    ),
    claims=(
        Claim(
            "From a shared initialisation the average is better than the better of its parents.",
            "train_loss",
            HALFWAY,
            (Comparison("shared", Line("shared", PARENT), Line("shared", LINE)),),
        ),
        Claim(
            "From separate initialisations it is worse.",
            "train_loss",
            HALFWAY,
            (Comparison("separate", Line("separate", LINE), Line("separate", PARENT)),),
        ),
        Claim(
            "With a shared initialisation the average is better than with separate ones.",
            "train_loss",
            HALFWAY,
            (Comparison("both", Line("separate", LINE), Line("shared", LINE)),),
        ),
    ),
    notes=(
        "w and w' are 2NNs that two of 100 IID clients train on their own 600 images: 240 steps of "
        "SGD with rate 0.1 and batches of 50. The loss is that of all 60,000 training images, for "
        "50 theta from -0.2 to 1.2; the level line is the better of w and w'.",
    ),
)
