"""The measures of records: their names, what tables and figures say of them, which is better."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from fedprox.metrics import Metric


class Measure(NamedTuple):
    """A number that records have for each evaluated round.

    Attributes:
        title: Its name in words, as a title.
        axis: Its axis, with symbols.
        lower_is_better: Whether smaller values are better; None if neither is.
        note: What it is, in a sentence.
        percent: Whether it is a fraction, shown in per cent.
        header: Header of its column in the table of results; "" for a measure without one.
        cost: Whether it grows with the rounds, so that other measures are drawn against it.
    """

    title: str
    axis: str
    lower_is_better: bool | None = None
    note: str = ""
    percent: bool = False
    header: str = ""
    cost: bool = False


def _accuracy(title: str, note: str, header: str = "", axis: str = "test accuracy") -> Measure:
    return Measure(title, axis, lower_is_better=False, note=note, percent=True, header=header)


def _loss(title: str, note: str) -> Measure:
    return Measure(title, "loss", lower_is_better=True, note=note)


def _cost(title: str, axis: str, note: str) -> Measure:
    return Measure(title, axis, note=note, cost=True)


MEASURES = {
    "train_loss": Measure(
        "training loss",
        "f(w)",
        lower_is_better=True,
        note="Over the training rows.",
        header="train loss",
    ),
    "validation_loss": _loss("validation loss", "Over the validation rows."),
    "test_loss": _loss("test loss", "Over the test rows."),
    "validation_accuracy": _accuracy(
        "validation accuracy",
        "Over the validation rows, which targets and the best round are read on.",
        "validation accuracy",
        "validation accuracy",
    ),
    "test_accuracy": _accuracy("test accuracy", "Over the test rows.", "test accuracy"),
    "client_accuracy_mean": _accuracy(
        "client accuracy, mean", "Mean test accuracy of the clients, each of which counts once."
    ),
    "client_accuracy_worst": _accuracy(
        "client accuracy, worst 10 %",
        "Mean test accuracy of the worst tenth of the clients in each round.",
        "worst 10 %",
    ),
    "client_accuracy_best": _accuracy(
        "client accuracy, best 10 %",
        "Mean test accuracy of the best tenth of the clients in each round.",
    ),
    "personal_accuracy": _accuracy(
        "accuracy of own models",
        "Over the test rows of the clients that have a model of their own.",
        "own models",
    ),
    "personal_accuracy_worst": _accuracy(
        "own models, worst 10 %",
        "Mean test accuracy over the worst tenth of these clients in each round.",
    ),
    "newcomer_accuracy": _accuracy(
        "accuracy for newcomers",
        "Over the test rows of the clients that have no model of their own yet.",
    ),
    "gradient_variance": Measure(
        "gradient variance",
        "E‖∇Fₖ - ∇f‖²",
        note="How far the clients' gradients are from their mean.",
    ),
    "dissimilarity": Measure(
        "dissimilarity B(w)",
        "B(w)",
        note="Root of E‖∇Fₖ‖² / ‖∇f‖², the mean being over clients: 1 if their gradients agree, "
        "larger the more they differ (Li et al. 2020, Definition 3).",
    ),
    "gamma_mean": Measure(
        "inexactness gamma",
        "mean gamma",
        lower_is_better=True,
        note="Mean over the cohort: 0 is an exact local solve, 1 no progress (Definition 2).",
    ),
    "mu": Measure("mu in force", "mu", note="The mu in force in each round."),
    "epsilon": Measure(
        "privacy spent",
        "epsilon",
        lower_is_better=True,
        note="Epsilon of the (epsilon, delta)-differential privacy of clients or examples.",
    ),
    "round": _cost("round", "round", ""),
    "time": _cost("time", "seconds", "Seconds by the clients' devices so far."),
    "communication": _cost(
        "communication",
        "communication (FedAvg rounds)",
        "Models sent and returned, in units of a FedAvg round.",
    ),
    "bits_up": _cost("upload", "bits sent by clients", "Bits of all messages of clients so far."),
    "total_steps": _cost(
        "client work", "mini-batch steps", "Mini-batch steps of all clients so far."
    ),
}
"""The measures by their names in `metrics.jsonl`; a model's metrics are further ones."""

COSTS = tuple(name for name, measure in MEASURES.items() if measure.cost)
"""The measures against which others are drawn."""

KINDS = ("train", "test", "validation")
"""First words of measures on rows, as in `train_loss`."""

LOSSES = tuple(f"{kind}_loss" for kind in KINDS)
ACCURACIES = tuple(f"{kind}_accuracy" for kind in KINDS if kind != "train")


def measure_of(name: str) -> Measure:
    """The measure of a name, which may be that of a metric.

    >>> measure_of("train_loss").axis, measure_of("test_f1").title
    ('f(w)', 'test f1')
    """
    words = name.replace("_", " ")
    return MEASURES.get(name, Measure(words, words, note="A metric of the model."))


def lower_is_better(measure: str, metrics: Mapping[str, Metric]) -> bool:
    """Whether smaller values of a loss, an accuracy or one of a model's metrics are better.

    >>> lower_is_better("train_loss", {}), lower_is_better("test_accuracy", {})
    (True, False)
    """
    name = measure.partition("_")[2]
    return metrics[name].lower_is_better if name in metrics else measure in LOSSES


def measures(
    metrics: Mapping[str, Metric], *, accuracy: bool, test: bool, validation: bool = False
) -> tuple[str, ...]:
    """The names of the measures of a model on rows, some of which are for tests or validation.

    >>> measures({}, accuracy=True, test=True)
    ('train_loss', 'test_loss', 'test_accuracy')
    """
    held_out = [kind for kind, exists in (("test", test), ("validation", validation)) if exists]
    return (
        "train_loss",
        *(f"train_{name}" for name in metrics),
        *(f"{kind}_loss" for kind in held_out),
        *(f"{kind}_accuracy" for kind in held_out if accuracy),
        *(f"{kind}_{name}" for kind in held_out for name in metrics),
    )


def choosable(known: Collection[str]) -> list[str]:
    """The measures that may choose rounds and models, from the measures of records.

    With validation rows, measures on test rows serve the report only.

    >>> choosable(["train_loss", "test_loss"])
    ['train_loss', 'test_loss']
    >>> choosable(["train_loss", "test_loss", "validation_loss"])
    ['train_loss', 'validation_loss']
    """
    validated = any(name.startswith("validation_") for name in known)
    return [name for name in known if not (validated and name.startswith("test_"))]
