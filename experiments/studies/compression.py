"""Accuracy against the bits that clients send, for each codec, on FEMNIST.

FedJAX (Ro et al. 2021) reports 85.6 % on EMNIST with 256 levels and 59.2 % with 2; the curves are
in that spirit: the same clients, steps and mini-batches, and another codec.
"""

import numpy as np

from experiments.engine.item import Claim, Comparison, Item, Line, Panel, Table, Values
from experiments.engine.series import ACCURACY, Series
from experiments.engine.summaries import FINAL, Summary

WHERE, FULL = "FEMNIST", "full"
CODECS: dict[str, Table] = {
    FULL: {"codec": "full"},
    "quantize, 8 bits": {"codec": "quantize", "bits": 8},
    "quantize, 4 bits": {"codec": "quantize", "bits": 4},
    "quantize, 2 bits": {"codec": "quantize", "bits": 2},
    "quantize, 2 bits, rotated": {"codec": "quantize", "bits": 2, "rotate": True},
    "sign": {"codec": "sign"},
    "sign, error feedback": {"codec": "sign", "error_feedback": True},
    "DRIVE": {"codec": "sign", "rotate": True},
    "random-k, 10 %": {"codec": "random-k", "share": 0.1},
    "top-k, 1 %": {"codec": "top-k", "share": 0.01},
    "top-k, 1 %, error feedback": {"codec": "top-k", "share": 0.01, "error_feedback": True},
}
"""`[compression]` by the name of its run."""

LABEL = "fedavg"


def within(bits: float) -> Summary:
    """The value at the last evaluation before clients have sent so many bits."""

    def value(series: Series, measure: str) -> float:
        sent = series.values["bits_up"]
        return float(series.of(measure)[np.searchsorted(sent, bits, "right") - 1])

    return Summary(f"after {bits / 8e6:g} MB", value)


def experiment(compression: Table) -> Table:
    """The experiment of a codec."""
    return {
        "rounds": 200,
        "data": {"name": "femnist"},
        "evaluation": {"gradients": False, "every": 2},
        "solver": {"learning_rate": 0.01, "batch_size": 10, "epochs": 5},
        "cohort": {"clients_per_round": 20},
        "compression": compression,
        "method": [{"name": LABEL}],
    }


def claim(text: str, greater: str, less: str, alike: float | None = None) -> Claim:
    """That one codec is more accurate than another at the end, or about as accurate."""
    comparison = Comparison(WHERE, Line(greater, LABEL), Line(less, LABEL))
    return Claim(text, ACCURACY, FINAL, (comparison,), alike, by="by the claim")


FEMNIST = Item(
    "Accuracy against the bits that clients send: FEMNIST",
    "A study of this library",
    {"short": 60, "paper": 400},
    {name: experiment(compression) for name, compression in CODECS.items()},
    ((Panel(WHERE, ACCURACY, tuple(CODECS), (LABEL,), "bits_up"),),),
    (
        claim(
            "With 8 bits a number the model is as accurate as in full.",
            "quantize, 8 bits",
            FULL,
            0.01,
        ),
        claim("With DRIVE, one bit a number, it is nearly so.", "DRIVE", FULL, 0.02),
        claim(
            "With 8 bits it is more accurate than with 2.", "quantize, 8 bits", "quantize, 2 bits"
        ),
        claim(
            "With 2 bits it is more accurate if buckets are rotated.",
            "quantize, 2 bits, rotated",
            "quantize, 2 bits",
        ),
        claim("Of one bit a number DRIVE makes more than signs.", "DRIVE", "sign"),
        claim("Error feedback makes signs more accurate.", "sign, error feedback", "sign"),
        claim(
            "Error feedback makes the largest hundredth more accurate.",
            "top-k, 1 %, error feedback",
            "top-k, 1 %",
        ),
    ),
    values=(
        Values(
            "Test accuracy at the end / after 2 MB.",
            ((ACCURACY, FINAL), (ACCURACY, within(16e6))),
            ("accuracy",),
            tuple((name, (Line(name, LABEL),)) for name in CODECS),
        ),
    ),
    notes=(
        "FedAvg with 20 of 200 clients a round, 5 epochs, batches of 10 and learning rate 0.01: "
        "logistic regression of 7,850 numbers. Buckets have 512 numbers. All seeds have one draw "
        "of the data.",
    ),
)
