"""Parts of the items of several papers."""

from experiments.engine.item import Claim, Comparison, Table
from experiments.engine.series import LOSS
from experiments.engine.summaries import FINAL

FEDAVG_PAPER = "McMahan et al. 2017"
FEDPROX_PAPER = "Li et al. 2020"
FEDDYN_PAPER = "Acar et al. 2021"

FEDAVG: Table = {"name": "fedavg"}

FEWER_TWEETS = "of LEAF's test part a seventh of the paper's tweets"
SMALLER_MODEL = "2 x 100 units as in the code, trained vectors of 50"

ONE_STEP = (
    "Distributed SGD is FedSGD: one step a round with the gradient of all rows of the round's "
    "clients."
)


def fedprox(*mu: float) -> Table:
    """`[[method]]` for FedProx with one mu or a sweep."""
    return {"name": "fedprox", "mu": list(mu)}


def fedsgd(*rates: float, **solver: float) -> Table:
    """`[[method]]` for FedSGD with learning rates of its own."""
    return {"name": "fedsgd", "solver": {"learning_rate": list(rates), **solver}}


def without_target(experiment: Table) -> Table:
    """An experiment that does not end at a target."""
    targets = ("target_accuracy", "target_loss", "stop_at_target")
    return {key: value for key, value in experiment.items() if key not in targets}


NEAR = 0.02
"""The largest difference of final training losses that counts as none."""

HOW = (
    "Each row names the best value in its second column and the paper's in the third. The paper's "
    f"choice holds where its final training loss is within {NEAR} of the best, by our reading."
)


def chosen(text: str, comparisons: tuple[Comparison, ...]) -> Claim:
    """The claim that the value which a paper chose by a search is the best, or near it."""
    return Claim(text, LOSS, FINAL, comparisons, alike=NEAR)
