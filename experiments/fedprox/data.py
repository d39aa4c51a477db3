"""Li et al. 2020: Table 1, the federated data sets."""

from experiments.common import FEWER_TWEETS
from experiments.engine.item import Item, Statistics
from experiments.fedprox.common import FEWER_LETTERS, table_1
from experiments.fedprox.tasks import PAPER, SENT140
from experiments.quirks import OVERLAPPING_FEMNIST

TABLE_1 = Item(
    "Table 1: the federated data sets",
    f"{PAPER}, Table 1",
    {"short": 3, "paper": 4},
    statistics=(
        Statistics("MNIST", table_1("mnist", "power-law"), {"name": "mnist"}),
        Statistics("FEMNIST", table_1("femnist", "letters"), {"name": "femnist"}, FEWER_LETTERS),
        Statistics(
            "FEMNIST, as the code",
            table_1("femnist", "letters"),
            {"name": OVERLAPPING_FEMNIST},
            "3 classes to a client, overlapping",
        ),
        Statistics("Shakespeare", table_1("shakespeare", "roles"), {"name": "shakespeare"}),
        Statistics("Sent140", table_1("sent140"), SENT140.data, FEWER_TWEETS),
    ),
    notes=(
        "`emnist_lowercase.npz` has the letters of EMNIST ByClass's test part alone, 11,916 images "
        "of a to j; EMNIST's own files have enough. Where a letter runs out, what there is is "
        "divided in proportion to what was asked.",
    ),
)
