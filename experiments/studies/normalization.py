"""Batch normalization where clients' features or labels differ, against group normalization.

Clients see images with noise, a rotation or a contrast of their own, hold two digits each, or are
writers. FedAvg and FedProx average the running statistics of batch normalization, SiloBN's clients
keep them, and FedBN's keep the whole layers. With group normalization there are no statistics.
"""

import math
from typing import Literal, NamedTuple

import jax
from flax import nnx

from experiments.engine.item import (
    SHORT,
    Claim,
    Comparison,
    Item,
    Line,
    Panel,
    Table,
    Values,
)
from experiments.engine.series import ACCURACY, LOWEST, Series
from experiments.engine.summaries import FINAL, Summary
from fedprox.federation import Federation
from fedprox.model import Model
from fedprox.models.inputs import class_count, image_shape
from fedprox.models.layers import Conv, Dense, max_pool

SHARES = (0.0, 0.5, 0.9)
"""Shares of stragglers."""

MU = 0.01
"""That of the FedProx to which Li et al. 2021 compare FedBN."""

Norm = Literal["batch", "group"]
NORMS: tuple[Norm, Norm] = ("batch", "group")
BATCH, GROUP = NORMS
AVG, PROX, BN, SILO, AVG_GROUP, PROX_GROUP = METHODS = (
    "FedAvg, batch",
    "FedProx, batch",
    "FedBN",
    "SiloBN",
    "FedAvg, group",
    "FedProx, group",
)
FEDAVG: Table = {"name": "fedavg"}
FEDPROX: Table = {"name": "fedprox", "mu": MU}
OF_NORM: dict[Norm, dict[str, Table]] = {
    BATCH: {AVG: FEDAVG, PROX: FEDPROX, BN: {"name": "fedbn"}, SILO: {"name": "silobn"}},
    GROUP: {AVG_GROUP: FEDAVG, PROX_GROUP: FEDPROX},
}
"""`[[method]]` by normalization and name."""

ALIKE = 0.02
"""The largest difference of accuracies that counts as none."""

IID, LABELS, WRITERS = "no skew", "two digits", "writers"


class SmallCNN(nnx.Module):
    """Two 5x5 convolutions of 8 and 16 channels, each normalized and pooled 2x2; 64 units."""

    def __init__(self, classes: int, norm: Norm, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.glorot_uniform()
        self.conv1 = Conv(1, 8, 5, padding=2, kernel_init=init, rngs=rngs)
        self.conv2 = Conv(8, 16, 5, padding=2, kernel_init=init, rngs=rngs)
        self.dense1 = Dense(7 * 7 * 16, 64, kernel_init=init, rngs=rngs)
        self.dense2 = Dense(64, classes, kernel_init=init, rngs=rngs)
        self.norm1, self.norm2 = (normalization(norm, channels, rngs) for channels in (8, 16))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Images (B, 28, 28) -> (B, classes)."""
        x = x.reshape(-1, 28, 28, 1)
        x = max_pool(nnx.relu(self.norm1(self.conv1(x))))
        x = max_pool(nnx.relu(self.norm2(self.conv2(x))))
        return self.dense2(nnx.relu(self.dense1(x.reshape(len(x), -1))))


def normalization(norm: Norm, channels: int, rngs: nnx.Rngs) -> nnx.BatchNorm | nnx.GroupNorm:
    """Batch normalization with PyTorch's momentum, or group normalization of two groups."""
    if norm == BATCH:
        return nnx.BatchNorm(channels, momentum=0.9, rngs=rngs)
    return nnx.GroupNorm(channels, num_groups=2, rngs=rngs)


def small_cnn(federation: Federation, *, norm: Norm) -> Model:
    """`SmallCNN` for the images of a federation: the design of `mnist_cnn`, with 1/30 of its size.

    Both normalizations have the same initial parameters.
    """
    classes = class_count("small_cnn", federation)
    image_shape("small_cnn", federation, needed=(28, 28, 1))
    return Model.from_nnx(lambda rngs: SmallCNN(classes, norm, rngs))


class Task(NamedTuple):
    """A data set with kinds of skew.

    Attributes:
        key: The end of the item's name.
        title: The data set's name.
        clients: Clients, all of which take part in each round.
        skews: `[data]` by the name of the skew.
        features: The skews, of these, in which each client sees images in its own way.
        labels: The skews in which labels differ, too.
        rounds: Rounds at the paper's scale.
        every: Rounds from one evaluation to the next, and all at the short scale.
        seconds: Time by scale on two cores, beside other work.
        note: What is particular to the data.
    """

    key: str
    title: str
    clients: int
    skews: dict[str, Table]
    features: tuple[str, ...]
    labels: tuple[str, ...]
    rounds: int
    every: int
    seconds: dict[str, float]
    note: str


FEATURES = {"noise": 0.5, "rotation": 90.0, "contrast": 0.9}
"""Strengths of the skews of features: a variance of noise, degrees and a change of contrast."""

DIGITS: Table = {"name": "mnist", "partition": "iid", "clients": 10}
LETTERS: Table = {"name": "femnist", "partition": "writers", "clients": 20}


def skewed(data: Table, kind: str) -> Table:
    """`[data]` whose images each client sees in its own way."""
    return data | {"skew": {"kind": kind, "strength": FEATURES[kind]}}


TASKS = (
    Task(
        "mnist",
        "MNIST",
        10,
        {
            IID: DIGITS,
            **{kind: skewed(DIGITS, kind) for kind in FEATURES},
            LABELS: DIGITS | {"partition": "shards"},
        },
        tuple(FEATURES),
        (LABELS,),
        12,
        4,
        {"short": 400.0, "paper": 5400.0},
        "Ten clients have 100 training and 100 test images each, of all digits or, with two "
        "digits, of two shards, each mostly one digit.",
    ),
    Task(
        "femnist",
        "FEMNIST",
        20,
        {WRITERS: LETTERS, "writers, rotation": skewed(LETTERS, "rotation")},
        ("writers, rotation",),
        (WRITERS, "writers, rotation"),
        25,
        5,
        {"short": 480.0, "paper": 7800.0},
        "Twenty clients are writers with at most 100 training images of 62 classes each, and about "
        "16 test images.",
    ),
)


def experiment(task: Task, skew: str, share: float, norm: Norm) -> Table:
    """The experiment of the methods with a normalization."""
    return {
        "rounds": task.rounds,
        SHORT: {"rounds": task.every},
        "client_rows": 100,
        "data": task.skews[skew],
        "model": {"name": f"{__name__}:small_cnn", "norm": norm},
        "evaluation": {"gradients": False, "every": task.every},
        "solver": {"learning_rate": [0.01, 0.05, 0.25], "batch_size": 20, "epochs": 2},
        "cohort": {"clients_per_round": task.clients},
        "systems": {"stragglers": share},
        "method": list(OF_NORM[norm].values()),
    }


def place(task: Task, skew: str, share: float) -> str:
    """The name of the lines of a skew and a share of stragglers."""
    return f"{task.title}, {skew}, {share:.0%} stragglers"


def own(clients: int) -> Summary:
    """The accuracy of what each client would use: its own model, or the server's if it has none.

    Those with and those without one count by their numbers, as if all had as many test rows.
    """

    def value(series: Series, measure: str) -> float:
        last = {name: float(values[-1]) for name, values in series.values.items()}
        count = last["personal_clients"]
        if series.diverged or math.isnan(count):
            return float(series.of(measure)[-1])
        weights = {"personal_accuracy": count, "newcomer_accuracy": clients - count}
        return sum(w * last[name] for name, w in weights.items() if w) / clients

    return Summary("at the last round, of the clients' own models where they have some", value)


def study(task: Task) -> Item:
    """The study on a data set."""
    runs: dict[str, Table] = {}
    joined: dict[str, dict[str, dict[str, str]]] = {}
    cells = [(skew, share) for skew in task.skews for share in SHARES]
    for norm in NORMS:
        for skew, share in cells:
            run = f"normalization-{task.key}-{skew}-{share:.0%}-{norm}"
            runs[run] = experiment(task, skew, share, norm)
            words = {table["name"]: method for method, table in OF_NORM[norm].items()}
            joined.setdefault(place(task, skew, share), {})[run] = words
    of_clients = own(task.clients)

    def line(skew: str, share: float, method: str) -> Line:
        return Line(place(task, skew, share), f"{LOWEST}{method}")

    def claim(
        text: str,
        over: Summary,
        better: str,
        worse: str,
        skews: tuple[str, ...],
        shares: tuple[float, ...] = SHARES,
        alike: float | None = None,
    ) -> Claim:
        """That a method is more accurate than another, or about as accurate."""
        comparisons = tuple(
            Comparison(
                f"{skew}, {share:.0%} stragglers",
                line(skew, share, better),
                line(skew, share, worse),
            )
            for skew in skews
            for share in shares
        )
        return Claim(text, ACCURACY, over, comparisons, alike, by="by the claim")

    controls = (
        claim(
            "Without skew, batch normalization with mean statistics is as accurate as group "
            "normalization.",
            FINAL,
            AVG,
            AVG_GROUP,
            (IID,),
            alike=ALIKE,
        ),
        claim(
            "Without skew, FedBN's clients are as accurate as FedAvg's model.",
            of_clients,
            BN,
            AVG,
            (IID,),
            (0.0,),
            alike=ALIKE,
        ),
    )

    def table(words: str, over: Summary, methods: tuple[str, ...]) -> Values:
        rows = tuple(
            (
                f"{skew}, {share:.0%} stragglers",
                tuple(line(skew, share, method) for method in methods),
            )
            for skew, share in cells
        )
        return Values(words, ((ACCURACY, over),), methods, rows)

    global_methods = (AVG, PROX, AVG_GROUP, PROX_GROUP)
    return Item(
        f"Batch normalization under skew: {task.title}",
        "A study of this library",
        task.seconds,
        runs,
        tuple(
            tuple(
                Panel(
                    f"{skew}, {share:.0%} stragglers",
                    ACCURACY,
                    (place(task, skew, share),),
                    tuple(f"{LOWEST}{method}" for method in global_methods),
                )
                for share in SHARES
            )
            for skew in task.skews
        ),
        (
            claim(
                "Where features differ, FedBN's clients are more accurate than FedAvg's model.",
                of_clients, BN, AVG, task.features,
            ),
            claim("So are SiloBN's.", of_clients, SILO, AVG, task.features),
            claim(
                "Where labels differ, group normalization is more accurate than batch "
                "normalization with mean statistics.",
                FINAL, AVG_GROUP, AVG, task.labels,
            ),
            claim("So it is in FedProx.", FINAL, PROX_GROUP, PROX, task.labels),
            claim(
                "With stragglers, FedProx, which keeps partial work, is more accurate than FedAvg, "
                "both with batch normalization.",
                FINAL, PROX, AVG, tuple(task.skews), SHARES[1:],
            ),
            *(controls if IID in task.skews else ()),
        ),
        values=(
            table("Test accuracy of the server's model at the end.", FINAL, METHODS),
            table(
                "Test accuracy of what clients would use at the end: their own models with FedBN "
                "and SiloBN, else the server's.",
                of_clients, (AVG, BN, SILO, AVG_GROUP),
            ),
        ),
        joined=joined,
        notes=(
            f"{task.note} All take part in each round, with two epochs of SGD in batches of 20. "
            f"FedProx has mu = {MU} and keeps partial work; the others drop stragglers. A client "
            "that has not finished a round yet has no model of its own. All seeds have one draw of "
            "the data.",
            "Each method tries three learning rates. The lowest final training loss, mean over "
            "seeds, chooses one for all seeds. It is the loss of the server's model, in FedBN of "
            "one whose normalization layers have the initial parameters and mean statistics, so it "
            "may choose a rate that is not the best for the clients' own models.",
        ),
    )  # fmt: skip


ITEMS = {f"normalization-{task.key}": study(task) for task in TASKS}
