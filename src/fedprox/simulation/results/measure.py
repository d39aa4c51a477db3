"""Measures that targets and selection can use: their names, and whether lower is better."""

from collections.abc import Collection, Mapping

from fedprox.metrics import Metric

LOSSES = ("train_loss", "test_loss", "validation_loss")


ACCURACIES = ("test_accuracy", "validation_accuracy")


KINDS = ("train", "test", "validation")
"""First words of measures on rows, as in `train_loss`."""


def lower_is_better(measure: str, metrics: Mapping[str, Metric]) -> bool:
    """Whether smaller values of a measure are better.

    Args:
        measure: The measure's name in records: `train_loss`, `test_accuracy`, `test_NAME`, ...
        metrics: The model's metrics.

    >>> lower_is_better("train_loss", {}), lower_is_better("test_accuracy", {})
    (True, False)
    """
    name = measure.partition("_")[2]
    return metrics[name].lower_is_better if name in metrics else name == "loss"


def measures(
    metrics: Mapping[str, Metric], *, accuracy: bool, test: bool, validation: bool = False
) -> tuple[str, ...]:
    """The names of all measures that records have.

    Args:
        metrics: The model's metrics.
        accuracy: Whether the model has an accuracy.
        test: Whether there are test rows.
        validation: Whether there are validation rows.

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
