"""Every model of the papers trained centrally: does each learn what the papers say it can?

Central SGD on all rows, with a row of the table for each model and data set. A round is an epoch.
The rows with a central accuracy of Acar et al. 2021 are trained as its appendix A.2 says.
"""

from typing import Any

from experiments.common import (
    FEDAVG_PAPER,
    FEDDYN_PAPER,
    FEDPROX_PAPER,
    FEWER_TWEETS,
    SMALLER_MODEL,
    experiment,
)
from experiments.engine.item import Item, Line, Score, Table, overlaid

NOTE = f"{FEWER_TWEETS}, {SMALLER_MODEL}"
OWN_SPLIT = "without EMNIST's own files an own split"


def _run(
    data: Table,
    model: Table,
    solver: Table,
    *,
    epochs: int,
    rows: int = 1000,
    every: int = 1,
    short: Table,
    **options: Any,
) -> Table:
    """Central SGD; the clients only divide the rows."""
    return experiment(
        data,
        model,
        {"epochs": 1, **solver},
        [{"name": "centralised"}],
        rounds=epochs,
        cohort={"clients_per_round": data["clients"]},  # all: a round is about an epoch
        evaluation={"every": every, "rows": rows, "gradients": False},
        short=overlaid({"evaluation": {"every": 1}}, short),
        **options,
    )


def _sgd(learning_rate: float, batch_size: int) -> Table:
    return {"learning_rate": learning_rate, "batch_size": batch_size}


def _halved(learning_rate: float, batch_size: int) -> Table:
    """A learning rate that is halved every 50 epochs, and weight decay (Acar et al. 2021, A.2)."""
    schedule = {
        "schedule": "exponential_decay",
        "init_value": learning_rate,
        "transition_steps": 50,
        "decay_rate": 0.5,
        "staircase": True,
    }
    return {
        "learning_rate": schedule,
        "batch_size": batch_size,
        "weight_decay": 1e-4,
        "clip": 10.0,
    }


def _iid(name: str, **options: Any) -> Table:
    return {"name": name, "partition": "iid", "clients": 10, **options}


def _perceptron(*hidden: int) -> Table:
    return {"name": "mlp", "hidden": list(hidden), "initial": "torch"}


def _score(title: str, run: str, paper: str, note: str = "") -> Score:
    return Score(title, Line(run, "centralised"), paper, note)


LINES: Table = {"name": "shakespeare", "partition": "lines", "clients": 200}
TWEETS: Table = {"name": "sent140", "clients": 772, "vocabulary": 2000}

AS_A_2 = (
    "FedDyn's weight decay is that of its federated runs on the same data. What that paper does "
    "not say is as in its code: gradients are clipped at norm 10, and models begin as torch's do."
)

CENTRALISED = Item(
    "Every model trained centrally",
    f"{FEDAVG_PAPER}, section 3; {FEDPROX_PAPER}, appendix C.1; {FEDDYN_PAPER}, appendix A.2",
    {"short": 120, "paper": 1500},
    {
        "central-logistic": _run(
            _iid("mnist"), {"name": "logistic"}, _sgd(0.03, 10), epochs=20, short={"rounds": 4}
        ),
        "central-2nn": _run(
            _iid("mnist"), _perceptron(200, 200), _halved(0.1, 50), epochs=150, short={"rounds": 4}
        ),
        "central-mnist-cnn": _run(
            _iid("mnist"), {"name": "mnist-cnn"}, _sgd(0.1, 50), epochs=5, short={"rounds": 1}
        ),
        "central-emnist-l": _run(
            _iid("emnist-l"),
            _perceptron(100, 100),
            _halved(0.1, 50),
            epochs=150,
            short={"rounds": 4},
        ),
        "central-char-lstm-fedavg": _run(
            LINES,
            {"name": "peephole-char-lstm"},
            _sgd(1.0, 10),
            epochs=5,
            rows=10,
            short={"rounds": 1},
        ),
        "central-sentiment-lstm": _run(
            TWEETS,
            {"name": "sentiment-lstm", "hidden": 100, "embedding": 50},
            _sgd(0.3, 10),
            epochs=10,
            short={"rounds": 2},
        ),
    },
    scores=(
        _score("logistic regression, MNIST", "central-logistic", ""),
        _score("2NN, MNIST", "central-2nn", "98.4 % (FedDyn)"),
        _score("MNIST CNN", "central-mnist-cnn", "99 % and more (FedAvg)"),
        _score("784-100-100-10, EMNIST-L", "central-emnist-l", "95.0 % (FedDyn)", OWN_SPLIT),
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
        "The 2NN and EMNIST-L's perceptron have FedDyn's 150 epochs with the rate 0.1, halved "
        "every 50; the other rates are fixed and not tuned. Of a client's test rows 1,000 or 10 "
        "are read at most; of images that is all of them. ResNet-18 is left out, since no paper "
        "gives its central accuracy, and the word LSTM, whose posts are the user's to bring: with "
        "them `fedprox run` trains it.",
        AS_A_2,
    ),
)

ITEMS = {
    "centralised": CENTRALISED,
}
