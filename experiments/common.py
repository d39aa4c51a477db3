"""Parts of the items of several papers."""

from collections.abc import Sequence
from typing import Any

from experiments.engine.item import MOST_SEEDS, SHORT, Claim, Comparison, Table
from experiments.engine.summaries import FINAL

FEDAVG_PAPER = "McMahan et al. 2017"
FEDPROX_PAPER = "Li et al. 2020"
FEDDYN_PAPER = "Acar et al. 2021"

FEDAVG: Table = {"name": "fedavg"}
FEDSGD: Table = {"name": "fedsgd"}

GPU = (
    "At the paper's scale this is for a GPU: the time said is for two cores. The short scale only "
    "shows that every row runs."
)

FEWER_TWEETS = "of LEAF's test part a seventh of the paper's tweets"
SMALLER_MODEL = "2 x 100 units as in the code, trained vectors of 50"

ONE_STEP = (
    "Distributed SGD is FedSGD: one step a round with the gradient of all rows of the round's "
    "clients."
)


def experiment(
    data: Table,
    model: Table,
    solver: Table,
    methods: Sequence[Table],
    *,
    rounds: int,
    cohort: Table,
    evaluation: Table,
    seeds: int | None = 1,
    short: Table | None = None,
    **options: Any,
) -> Table:
    """An experiment as TOML would hold it, with the changes of the short scale.

    Args:
        data: `[data]`; the next four are the other sections.
        model: `[model]`.
        solver: `[solver]`.
        methods: `[[method]]`.
        rounds: Rounds at the paper's scale.
        cohort: `[cohort]`.
        evaluation: `[evaluation]`.
        seeds: Most seeds to run; None for all of the scale.
        short: What the short scale changes; None for a fifth of the rounds.
        options: Other keys and sections.
    """
    scales = {MOST_SEEDS: seeds, SHORT: short}
    return {
        "rounds": rounds,
        **{key: value for key, value in scales.items() if value is not None},
        "data": data,
        "model": model,
        "evaluation": evaluation,
        "cohort": cohort,
        "solver": solver,
        "method": list(methods),
        **options,
    }


def without_target(experiment: Table) -> Table:
    """An experiment that does not end at a target."""
    targets = ("target_accuracy", "target_loss", "stop_at_target")
    return {key: value for key, value in experiment.items() if key not in targets}


def fedprox(*mu: float) -> Table:
    """`[[method]]` for FedProx with one mu or a sweep."""
    return {"name": "fedprox", "mu": list(mu)}


def fedsgd(*rates: float, **solver: float) -> Table:
    """`[[method]]` for FedSGD with learning rates of its own."""
    return FEDSGD | {"solver": {"learning_rate": list(rates), **solver}}


NEAR = 0.02
"""The largest difference of final training losses that counts as none."""

HOW = (
    "Each row names the best value in its second column and the paper's in the third. The paper's "
    f"choice holds where its final training loss is within {NEAR} of the best, by our reading."
)


def chosen(text: str, comparisons: tuple[Comparison, ...]) -> Claim:
    """The claim that the value which a paper chose by a search is the best, or near it."""
    return Claim(text, "train_loss", FINAL, comparisons, alike=NEAR)
