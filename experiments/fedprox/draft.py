"""The early draft of Li et al. 2020, "Federated Optimization for Heterogeneous Networks".

Its figures show FedProx without stragglers, where mu = 0 is FedAvg. Learning rates and the share of
clients in a round are those of its appendix C.2: 10 % of the synthetic sets' 30 clients, 1 % of
MNIST's clients, 5 % of EMNIST's writers and of EMNIST*'s clients. The draft states neither the
rounds nor the best mu. The rounds are those of the final paper if it has the data set; the best mu
is that of {0.001, 0.01, 0.1, 1} with the lowest final training loss.
"""

from functools import partial

from experiments.common import fedprox
from experiments.engine.item import Claim, Comparison, Item, Statistics
from experiments.engine.series import ACCURACY, BEST, LOSS, VARIANCE
from experiments.engine.summaries import FINAL, MEAN, RISE
from experiments.fedprox.tasks import (
    Task,
    each_above_previous,
    on_each,
    row,
    synthetic_tasks,
    table_1,
)
from fedprox.datasets import FEDPROX_DRAFT

DRAFT = "The draft of Li et al. 2020"

SYNTHETIC = synthetic_tasks(3)
IID, HETEROGENEOUS = SYNTHETIC[0], SYNTHETIC[1:]
IID_AS_WRITTEN = IID._replace(
    key="synthetic-iid-random-mean",
    title="Synthetic IID, v ~ N(0, 1)",
    data=IID.data | {"random_mean": True},
)
"""The IID set of appendix C.1; the final paper and the authors' code have v = 0."""
WRITERS = {"name": "femnist", "partition": "writers", "clients": 300}
LETTERS = {"name": "femnist", "partition": "letters-26"}
MNIST = Task("draft-mnist", "MNIST", {"name": "mnist"}, 0.03, 1.0, 100)
EMNIST = Task(
    "draft-emnist",
    "EMNIST",
    WRITERS,
    0.003,
    1.0,
    100,
    clients_per_round=15,
    note="300 of 900 writers, the files' own split",
    evaluation={"every": 2},
)
EMNIST_STAR = Task(
    "draft-emnist-star",
    "EMNIST*",
    LETTERS,
    0.003,
    1.0,
    100,
    note="26 outputs; of `emnist_lowercase.npz` a third of the draft's images",
    evaluation={"every": 2},
)
THREE, UNSTABLE = (MNIST, EMNIST, EMNIST_STAR), (MNIST, EMNIST_STAR)

IN_FULL = (LOSS, ACCURACY, VARIANCE)

NO_NUMBERS = (
    "The draft shows curves without numbers, and says neither how many rounds they have nor which "
    "mu is best."
)
LEFT_OUT = (
    "Shakespeare and Sent140 are left out: with E = 50 a curve takes 8 million LSTM steps, many "
    "hours on two cores."
)

printed = partial(table_1, paper=FEDPROX_DRAFT)

TABLE_1 = Item(
    "Table 1: the federated data sets of the draft",
    f"{DRAFT}, Table 1",
    {"short": 3, "paper": 6},
    statistics=(
        Statistics("MNIST", printed("mnist", "power-law"), MNIST.data),
        Statistics(
            "EMNIST",
            printed("femnist", "writers"),
            WRITERS,
            "300 of 900 writers; in `femnist_300writers.npz` 28 are cut short",
        ),
        Statistics("Shakespeare", printed("shakespeare", "roles"), {"name": "shakespeare"}),
        Statistics(
            "Sent140",
            printed("sent140"),
            {"name": "sent140"},
            "772 users, as the final paper has them",
        ),
        Statistics(
            "EMNIST*",
            printed("femnist", "letters-26"),
            LETTERS,
            "`emnist_lowercase.npz` has 27,059 images in all",
        ),
    ),
)

# ------------------------------------------------------------ Figures 1 and 5: data heterogeneity

DRAWN = (IID_AS_WRITTEN, *SYNTHETIC)


def _synthetic_item(title: str, source: str, measures: tuple[str, ...], *claims: Claim) -> Item:
    return Item(
        title,
        f"{DRAFT}, {source}",
        {"short": 12, "paper": 55},
        {f"draft-{task.key}": task.experiment(fedprox(0.0, 1.0)) for task in DRAWN},
        tuple(row(DRAWN, measure, "draft-{}") for measure in measures),
        claims,
        notes=(
            NO_NUMBERS,
            "On the IID set the draft draws one mean feature v ~ N(0, 1) for all clients; the "
            "final paper and the authors' code have 0. Both are here. With v ~ N(0, 1) one class "
            "has 92 to 100 % of the rows in our five draws, so that there is little to learn.",
        ),
    )


def _more_heterogeneous(label: str) -> tuple[Comparison, ...]:
    """Each set above the one before it, and the first heterogeneous one above both IID sets."""
    return (
        *each_above_previous((IID_AS_WRITTEN, HETEROGENEOUS[0]), "draft-{}", label),
        *each_above_previous(SYNTHETIC, "draft-{}", label),
    )


WITHOUT_MU, WITH_MU = _more_heterogeneous("fedprox mu=0"), _more_heterogeneous("fedprox mu=1")
MU_HELPS = on_each(HETEROGENEOUS, "draft-{}", "fedprox mu=0", "fedprox mu=1")
FIGURE_1 = _synthetic_item(
    "Figure 1 of the draft: data heterogeneity",
    "Figure 1, section 5.2",
    (LOSS,),
    Claim("More heterogeneous data converge worse, with mu = 0 ...", LOSS, FINAL, WITHOUT_MU),
    Claim("... and with mu = 1.", LOSS, FINAL, WITH_MU),
    Claim("A large mu is particularly useful on heterogeneous data.", LOSS, RISE, MU_HELPS),
)
FIGURE_5 = _synthetic_item(
    "Figure 5 of the draft: data heterogeneity, in full",
    "Figure 5, appendix C.3",
    IN_FULL,
    Claim("The variance of gradients grows with heterogeneity.", VARIANCE, MEAN, WITHOUT_MU),
    Claim("mu = 1 makes it smaller on heterogeneous data.", VARIANCE, MEAN, MU_HELPS),
)

# -------------------------------------------------- Figures 2 and 6: E in {1, 20, 50} with mu = 0


def _epochs_item(title: str, source: str, measures: tuple[str, ...], *claims: Claim) -> Item:
    ends = (1, 20, 50)
    return Item(
        title,
        f"{DRAFT}, {source}",
        {"short": 87, "paper": 800},
        {
            f"{task.key}-e{e}": task.experiment(fedprox(0.0), epochs=e)
            for task in THREE
            for e in ends
        },
        tuple(row(THREE, measure, *(f"{{}}-e{e}" for e in ends)) for measure in measures),
        claims,
        notes=(NO_NUMBERS, LEFT_OUT),
    )


def _above(tasks: tuple[Task, ...], more: int, fewer: int) -> tuple[Comparison, ...]:
    runs, label = (f"{{}}-e{more}", f"{{}}-e{fewer}"), "fedprox mu=0"
    return on_each(tasks, runs, label, label, f", E = {more} above {fewer}")


FIGURE_2 = _epochs_item(
    "Figure 2 of the draft: the number of local epochs",
    "Figure 2, section 5.3",
    (LOSS,),
    Claim(
        "A large E makes training on heterogeneous data unstable: the loss rises more.",
        LOSS,
        RISE,
        _above(UNSTABLE, 50, 1),
    ),
    Claim(
        "On EMNIST and Sent140, which are nearly homogeneous, a large E is faster.",
        LOSS,
        MEAN,
        _above((EMNIST,), 1, 50),
    ),
)
SIMILAR = Claim(
    "A smaller E makes local functions more similar.", VARIANCE, MEAN, _above(THREE, 50, 1)
)
FIGURE_6 = _epochs_item(
    "Figure 6 of the draft: the number of local epochs, in full",
    "Figure 6, appendix C.3",
    IN_FULL,
    SIMILAR,
)

# ---------------------------------------- Figures 3, 4 and 7: mu = 0 and the best mu, with E = 50


def _best_item(title: str, source: str, measures: tuple[str, ...], claim: Claim) -> Item:
    return Item(
        title,
        f"{DRAFT}, {source}",
        {"short": 40, "paper": 430},
        {
            f"{task.key}-grid": task.experiment(fedprox(0.0, 0.001, 0.01, 0.1, 1.0), epochs=50)
            for task in UNSTABLE
        },
        tuple(
            row(UNSTABLE, measure, "{}-grid", labels=("fedprox mu=0", BEST)) for measure in measures
        ),
        (claim,),
        notes=(
            NO_NUMBERS,
            "The best mu is that of {0.001, 0.01, 0.1, 1} by final training loss.",
            LEFT_OUT,
        ),
    )


BEST_BELOW = on_each(UNSTABLE, "{}-grid", "fedprox mu=0", BEST)
BEST_ABOVE = on_each(UNSTABLE, "{}-grid", BEST, "fedprox mu=0")
FIGURE_3 = _best_item(
    "Figure 3 of the draft: the effect of mu with E = 50",
    "Figure 3, section 5.3",
    (LOSS,),
    Claim("The best mu is steadier than mu = 0: the loss rises less.", LOSS, RISE, BEST_BELOW),
)
FIGURE_7 = _best_item(
    "Figure 7 of the draft: the effect of mu, in full",
    "Figure 3 with accuracy and dissimilarity, appendix C.3",
    IN_FULL,
    Claim("The best mu may increase accuracy.", ACCURACY, FINAL, BEST_ABOVE),
)
FIGURE_4 = _best_item(
    "Figure 4 of the draft: dissimilarity",
    "Figure 4, section 5.4",
    (VARIANCE,),
    Claim("The best mu makes the variance of gradients smaller.", VARIANCE, MEAN, BEST_BELOW),
)

ITEMS = {
    "table-1": TABLE_1,
    "figure-1": FIGURE_1,
    "figure-2": FIGURE_2,
    "figure-3": FIGURE_3,
    "figure-4": FIGURE_4,
    "figure-5": FIGURE_5,
    "figure-6": FIGURE_6,
    "figure-7": FIGURE_7,
}
