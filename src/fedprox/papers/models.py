"""Every model of the papers trained centrally: does each learn what the papers say it can?

Central SGD on all rows, with a row of the table for each model and data set. A round is an epoch.
The papers train for more epochs than two cores allow.
"""

from typing import Any

from fedprox.papers.common import FEWER_TWEETS, SMALLER_MODEL
from fedprox.reproduce.item import MOST_SEEDS, Item, Score, Side, Table

FEDAVG = "McMahan et al. 2017"
FEDPROX = "Li et al. 2020"
FEDDYN = "Acar et al. 2021"


NOTE = f"{FEWER_TWEETS}, {SMALLER_MODEL}"
OWN_SPLIT = "without EMNIST's own files an own split"


def _run(
    data: Table,
    model: Table,
    learning_rate: float,
    batch_size: int,
    *,
    epochs: int,
    rows: int = 1000,
    **options: Any,
) -> Table:
    """Central SGD; the clients only divide the rows."""
    return {
        "rounds": epochs,
        MOST_SEEDS: 1,
        "evaluation": {"rows": rows, "gradients": False},
        "data": data,
        "model": model,
        "cohort": {"clients_per_round": data["clients"]},  # all: a round is about an epoch
        "solver": {"learning_rate": learning_rate, "batch_size": batch_size, "epochs": 1},
        "method": [{"name": "centralised"}],
        **options,
    }


def _iid(name: str, **options: Any) -> Table:
    return {"name": name, "partition": "iid", "clients": 10, **options}


def _perceptron(*hidden: int) -> Table:
    return {"name": "mlp", "hidden": list(hidden)}


def _score(title: str, run: str, paper: str, note: str = "") -> Score:
    return Score(title, Side(run, "centralised"), paper, note)


ROLES: Table = {"name": "shakespeare", "partition": "roles-2000", "clients": 100}
LINES: Table = {"name": "shakespeare", "partition": "lines", "clients": 200}
TWEETS: Table = {"name": "sent140", "clients": 772, "vocabulary": 2000}

CENTRALISED = Item(
    "Every model trained centrally",
    f"{FEDAVG}, section 3; {FEDPROX}, appendix C.1; {FEDDYN}, appendix A.2",
    {"short": 320, "paper": 1500},
    {
        "central-logistic": _run(_iid("mnist"), {"name": "logistic"}, 0.03, 10, epochs=20),
        "central-2nn": _run(_iid("mnist"), _perceptron(200, 200), 0.1, 10, epochs=20),
        "central-mnist-cnn": _run(_iid("mnist"), {"name": "mnist-cnn"}, 0.1, 50, epochs=5),
        "central-emnist-l": _run(_iid("emnist-l"), _perceptron(100, 100), 0.1, 10, epochs=20),
        "central-cifar-cnn": _run(
            _iid("cifar-10", augmentation="fedavg"), {"name": "cifar-cnn"}, 0.05, 50, epochs=5
        ),
        "central-feddyn-cnn": _run(
            _iid("cifar-10", augmentation="feddyn"), {"name": "feddyn-cnn"}, 0.05, 50, epochs=5
        ),
        "central-char-lstm": _run(
            ROLES, {"name": "char-lstm"}, 0.8, 50, epochs=5, client_rows=500, rows=50
        ),
        "central-char-lstm-fedavg": _run(
            LINES, {"name": "char-lstm-fedavg"}, 1.0, 10, epochs=5, rows=10
        ),
        "central-sentiment-lstm": _run(
            TWEETS,
            {"name": "sentiment-lstm", "hidden": 100, "embedding": 50},
            0.3,
            10,
            epochs=10,
        ),
    },
    scores=(
        _score("logistic regression, MNIST", "central-logistic", ""),
        _score("2NN, MNIST", "central-2nn", "98.4 % (FedDyn)"),
        _score("MNIST CNN", "central-mnist-cnn", "99 % and more (FedAvg)"),
        _score("784-100-100-10, EMNIST-L", "central-emnist-l", "95.0 % (FedDyn)", OWN_SPLIT),
        _score(
            "TensorFlow's CIFAR CNN, 24x24 crops",
            "central-cifar-cnn",
            "86 % (FedAvg, 197,500 steps of 100)",
        ),
        _score("FedDyn's CIFAR CNN", "central-feddyn-cnn", "85.2 % (FedDyn)"),
        _score(
            "character LSTM, 100 roles",
            "central-char-lstm",
            "51.2 % (FedDyn)",
            "500 of 2,000 windows of a role",
        ),
        _score(
            "character LSTM of FedAvg, lines",
            "central-char-lstm-fedavg",
            "54 % (FedAvg's target)",
            "200 of 1,145 roles",
        ),
        _score("sentiment LSTM, Sent140", "central-sentiment-lstm", "", NOTE),
    ),
    notes=(
        "A round is an epoch; 1.05 for the lines of Shakespeare, and about two for Sent140, since "
        "it takes as many steps as clients have mini-batches, and each one's last is not full. "
        "Learning rates are fixed and not tuned. Of a client's test rows "
        "1,000, 50 or 10 are read at most; of images that is all of them. ResNet-18 is left out, "
        "since no paper gives its central accuracy, and the word LSTM, whose posts are the user's "
        "to bring: with them `fedprox run` trains it.",
    ),
)

ITEMS = {"centralised": CENTRALISED}
