"""Li et al. 2020: Figure 4, FedDANE."""

from experiments.common import fedprox
from experiments.engine.item import Claim, Comparison, Curve, Item, Row, Side, Task
from experiments.engine.summaries import FINAL, MEAN, RISE
from experiments.fedprox.common import feddane, on_each, two_mus
from experiments.fedprox.tasks import HETEROGENEOUS, IID, ONE_DRAW, PAPER, SYNTHETIC


def _dane_key(task: Task, clients: int) -> str:
    return f"{task.key}-dane-{clients}"


FIGURE_4 = Item(
    "Figure 4: FedDANE",
    f"{PAPER}, Figure 4, appendix B",
    {"short": 52, "paper": 600},
    {
        _dane_key(task, 10): task.experiment(fedprox(0.0, 1.0), feddane(0.0, 1.0))
        for task in SYNTHETIC
    }
    | {
        _dane_key(task, clients): task.experiment(feddane(0.0), clients_per_round=clients)
        for task in SYNTHETIC
        for clients in (20, 30)
    },
    (
        Row(
            "10 clients a round",
            tuple(
                task.panel(
                    "train_loss",
                    *two_mus(_dane_key(task, 10), 1.0),
                    Curve(_dane_key(task, 10), "feddane mu=0", "FedDANE, mu = 0"),
                    Curve(_dane_key(task, 10), "feddane mu=1", "FedDANE, mu > 0"),
                )
                for task in SYNTHETIC
            ),
        ),
        Row(
            "FedDANE, mu = 0",
            tuple(
                task.panel(
                    "train_loss",
                    *(
                        Curve(_dane_key(task, k), "feddane mu=0", f"FedDANE, {k} clients")
                        for k in (10, 20, 30)
                    ),
                )
                for task in SYNTHETIC
            ),
        ),
    ),
    (
        Claim(
            "On IID data FedDANE is about as good as FedProx.",
            "test_accuracy",
            FINAL,
            on_each((IID,), "{}-dane-10", "feddane mu=0", "fedprox mu=0"),
            alike=0.02,
        ),
        Claim(
            "On heterogeneous data FedDANE converges worse than FedProx.",
            "train_loss",
            FINAL,
            on_each(HETEROGENEOUS, "{}-dane-10", "feddane mu=0", "fedprox mu=0"),
        ),
        Claim(
            "More clients a round help FedDANE somewhat.",
            "train_loss",
            MEAN,
            tuple(
                Comparison(
                    task.title,
                    Side(_dane_key(task, 10), "feddane mu=0"),
                    Side(_dane_key(task, 30), "feddane mu=0"),
                )
                for task in HETEROGENEOUS
            ),
        ),
        Claim(
            "It stays unstable: with 30 clients its loss rises more than that of FedProx with 10.",
            "train_loss",
            RISE,
            tuple(
                Comparison(
                    task.title,
                    Side(_dane_key(task, 30), "feddane mu=0"),
                    Side(_dane_key(task, 10), "fedprox mu=0"),
                )
                for task in HETEROGENEOUS
            ),
        ),
    ),
    notes=("A round of FedDANE communicates twice; the paper counts it as one round.", ONE_DRAW),
)
