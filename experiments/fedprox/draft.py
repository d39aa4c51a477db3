"""The early draft of Li et al. 2020, "Federated Optimization for Heterogeneous Networks".

Its figures show FedProx without stragglers, where mu = 0 is FedAvg. Learning rates and the share of
clients in a round are those of its appendix C.2: 10 % of the synthetic sets' 30 clients, 1 % of
MNIST's clients, 5 % of EMNIST's writers and of EMNIST*'s clients. The draft states neither the
rounds nor the best mu. The rounds are those of the final paper if it has the data set; the best mu
is that of {0.001, 0.01, 0.1, 1} with the lowest final training loss.

Shakespeare and Sent140 are defined but left out: without `missing` their panels are filled. They
have the LSTMs of appendix C.1, 10 % of 143 roles and 1 % of 5,726 users.
"""

from functools import partial

from experiments.common import fedprox
from experiments.engine.item import BEST, Claim, Comparison, Item, Line, Statistics
from experiments.engine.summaries import FINAL, MEAN, RISE
from experiments.fedprox.tasks import (
    Task,
    each_above_previous,
    on_each,
    rows,
    synthetic_tasks,
    table_1,
    two_mus,
)
from fedprox.datasets import statistics

DRAFT = "The draft of Li et al. 2020"
TOO_LONG = "with E = 50 a curve takes 8 million LSTM steps, many hours on two cores"

SYNTHETIC = synthetic_tasks(3)
IID, HETEROGENEOUS = SYNTHETIC[0], SYNTHETIC[1:]
IID_AS_WRITTEN = IID._replace(
    key="synthetic-iid-random-mean",
    title="Synthetic IID, v ~ N(0, 1)",
    data=IID.data | {"random_mean": True},
)
"""The IID set of appendix C.1; the final paper and the authors' code have v = 0."""
MNIST = Task("draft-mnist", "MNIST", {"name": "mnist"}, 0.03, 1.0, 100)
EMNIST = Task(
    "draft-emnist",
    "EMNIST",
    {"name": "femnist", "partition": "writers", "clients": 300},
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
    {"name": "femnist", "partition": "letters-26"},
    0.003,
    1.0,
    100,
    note="26 outputs; of `emnist_lowercase.npz` a third of the draft's images",
    evaluation={"every": 2},
)
SHAKESPEARE = Task(
    "draft-shakespeare",
    "Shakespeare",
    {"name": "shakespeare"},
    0.8,
    1.0,
    40,
    clients_per_round=14,
    missing=TOO_LONG,
    model={"name": "char-lstm"},
)
SENT140 = Task(
    "draft-sent140",
    "Sent140",
    # the draft does not say whose tweets count; a mean of 38 fits users with 20 and more
    {"name": "sent140", "vectors": "glove.6B.300d", "clients": 5726, "least": 20},
    0.3,
    1.0,
    800,
    clients_per_round=57,
    missing=TOO_LONG,
    model={"name": "sentiment-lstm"},
)
FIVE = (MNIST, EMNIST, SHAKESPEARE, SENT140, EMNIST_STAR)
FOUR = (MNIST, EMNIST_STAR, SHAKESPEARE, SENT140)
UNSTABLE = (MNIST, EMNIST_STAR, SHAKESPEARE)  # on Sent140 mu does not help, says section 5.3
EPOCHS = (1, 20, 50)
GRID = (0.0, 0.001, 0.01, 0.1, 1.0)

IN_FULL = ("train_loss", "test_accuracy", "gradient_variance")

NO_NUMBERS = (
    "The draft shows curves without numbers, and says neither how many rounds they have nor which "
    "mu is best."
)

printed = partial(table_1, paper=statistics.DRAFT)

TABLE_1 = Item(
    "Table 1: the federated data sets of the draft",
    f"{DRAFT}, Table 1",
    {"short": 3, "paper": 6},
    statistics=(
        Statistics("MNIST", printed("mnist", "power-law"), {"name": "mnist"}),
        Statistics(
            "EMNIST",
            printed("femnist", "writers"),
            {"name": "femnist", "partition": "writers", "clients": 300},
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
            {"name": "femnist", "partition": "letters-26"},
            "`emnist_lowercase.npz` has 27,059 images in all",
        ),
    ),
)


DRAWN = (IID_AS_WRITTEN, *SYNTHETIC)


def _synthetic_item(title: str, source: str, measures: tuple[str, ...], *claims: Claim) -> Item:
    return Item(
        title,
        f"{DRAFT}, {source}",
        {"short": 12, "paper": 55},
        {f"draft-{task.key}": task.experiment(fedprox(0.0, 1.0)) for task in DRAWN},
        rows(DRAWN, measures, lambda task: two_mus(f"draft-{task.key}", 1.0)),
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


MU_HELPS = on_each(HETEROGENEOUS, "draft-{}", "fedprox mu=0", "fedprox mu=1")
FIGURE_1 = _synthetic_item(
    "Figure 1 of the draft: data heterogeneity",
    "Figure 1, section 5.2",
    ("train_loss",),
    Claim(
        "More heterogeneous data converge worse, with mu = 0 ...",
        "train_loss",
        FINAL,
        _more_heterogeneous("fedprox mu=0"),
    ),
    Claim("... and with mu = 1.", "train_loss", FINAL, _more_heterogeneous("fedprox mu=1")),
    Claim("A large mu is particularly useful on heterogeneous data.", "train_loss", RISE, MU_HELPS),
)
FIGURE_5 = _synthetic_item(
    "Figure 5 of the draft: data heterogeneity, in full",
    "Figure 5, appendix C.3",
    IN_FULL,
    Claim(
        "The variance of gradients grows with heterogeneity.",
        "gradient_variance",
        MEAN,
        _more_heterogeneous("fedprox mu=0"),
    ),
    Claim("mu = 1 makes it smaller on heterogeneous data.", "gradient_variance", MEAN, MU_HELPS),
)


def _epochs(task: Task) -> tuple[Line, ...]:
    return tuple(Line(f"{task.key}-e{e}", "fedprox mu=0", f"E = {e}") for e in EPOCHS)


def _epochs_item(title: str, source: str, measures: tuple[str, ...], *claims: Claim) -> Item:
    """E in {1, 20, 50} with mu = 0."""
    return Item(
        title,
        f"{DRAFT}, {source}",
        {"short": 87, "paper": 800},
        {
            f"{task.key}-e{epochs}": task.experiment(fedprox(0.0), epochs=epochs)
            for task in FIVE
            if not task.missing
            for epochs in EPOCHS
        },
        rows(FIVE, measures, _epochs),
        claims,
        notes=(NO_NUMBERS,),
    )


def _above(tasks: tuple[Task, ...], more: int, fewer: int) -> tuple[Comparison, ...]:
    runs, label = (f"{{}}-e{more}", f"{{}}-e{fewer}"), "fedprox mu=0"
    return on_each(tasks, runs, label, label, f", E = {more} above {fewer}")


FIGURE_2 = _epochs_item(
    "Figure 2 of the draft: the number of local epochs",
    "Figure 2, section 5.3",
    ("train_loss",),
    Claim(
        "A large E makes training on heterogeneous data unstable: the loss rises more.",
        "train_loss",
        RISE,
        _above((MNIST, SHAKESPEARE, EMNIST_STAR), 50, 1),
    ),
    Claim(
        "On EMNIST and Sent140, which are nearly homogeneous, a large E is faster.",
        "train_loss",
        MEAN,
        _above((EMNIST, SENT140), 1, 50),
    ),
)
FIGURE_6 = _epochs_item(
    "Figure 6 of the draft: the number of local epochs, in full",
    "Figure 6, appendix C.3",
    IN_FULL,
    Claim(
        "A smaller E makes local functions more similar.",
        "gradient_variance",
        MEAN,
        _above(FIVE, 50, 1),
    ),
)


def _best_item(title: str, source: str, measures: tuple[str, ...], claim: Claim) -> Item:
    """With E = 50: mu = 0 and the best mu."""
    return Item(
        title,
        f"{DRAFT}, {source}",
        {"short": 40, "paper": 430},
        {
            f"{task.key}-grid": task.experiment(fedprox(*GRID), epochs=50)
            for task in FOUR
            if not task.missing
        },
        rows(FOUR, measures, lambda task: two_mus(f"{task.key}-grid", BEST)),
        (claim,),
        notes=(NO_NUMBERS, "The best mu is that of {0.001, 0.01, 0.1, 1} by final training loss."),
    )


FIGURE_3 = _best_item(
    "Figure 3 of the draft: the effect of mu with E = 50",
    "Figure 3, section 5.3",
    ("train_loss",),
    Claim(
        "The best mu is steadier than mu = 0: the loss rises less.",
        "train_loss",
        RISE,
        on_each(UNSTABLE, "{}-grid", "fedprox mu=0", BEST),
    ),
)
FIGURE_7 = _best_item(
    "Figure 7 of the draft: the effect of mu, in full",
    "Figure 3 with accuracy and dissimilarity, appendix C.3",
    IN_FULL,
    Claim(
        "The best mu may increase accuracy.",
        "test_accuracy",
        FINAL,
        on_each(FOUR, "{}-grid", BEST, "fedprox mu=0"),
    ),
)
FIGURE_4 = _best_item(
    "Figure 4 of the draft: dissimilarity",
    "Figure 4, section 5.4",
    ("gradient_variance",),
    Claim(
        "The best mu makes the variance of gradients smaller.",
        "gradient_variance",
        MEAN,
        on_each(FOUR, "{}-grid", "fedprox mu=0", BEST),
    ),
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
