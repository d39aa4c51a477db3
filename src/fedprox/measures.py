"""The measures of records: what is said of them, and how the numbers of clients become one.

With E_k the mean over clients with weights p_k = n_k / n, so that E_k[grad F_k] = grad f:

    gradient variance = E_k ||grad F_k(w) - grad f(w)||^2
    B(w)              = sqrt(E_k ||grad F_k(w)||^2 / ||grad f(w)||^2)
                      = sqrt(1 + gradient variance / ||grad f(w)||^2)

(Li et al. 2020, section 5.3.3 and Definition 3). The variance is accumulated one client at a time
(Welford 1962; pairwise as in Chan et al. 1983). So no client's gradient is stored, identical
clients give 0 up to rounding, and B(w) is at least 1.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike, NDArray

from fedprox.errors import require
from fedprox.metrics import Metric


class Measure(NamedTuple):
    """A number that records have for each evaluated round, in words and as an axis with symbols.

    Attributes:
        doc: The meaning, for readers of `Record`.
        kind: Its type in a record.
        missing: The value in a record without it. None if files have it only where it was measured.
        title: Its name in words, as a title.
        axis: Its axis, with symbols.
        lower_is_better: Whether smaller values are better; None if neither is.
        note: The meaning, in a sentence below a figure.
        percent: Whether it is a fraction, shown in per cent.
        header: Header of its column in the table of results; "" for a measure without one.
    """

    doc: str = ""
    kind: Any = float
    missing: float | None = None
    title: str = ""
    axis: str = ""
    lower_is_better: bool | None = None
    note: str = ""
    percent: bool = False
    header: str = ""

    def shown(
        self,
        title: str,
        axis: str,
        note: str = "",
        *,
        lower_is_better: bool | None = None,
        percent: bool = False,
        header: str = "",
    ) -> "Measure":
        """The measure with what figures and tables say of it."""
        return Measure(*self[:3], title, axis, lower_is_better, note, percent, header)

    def accuracy(
        self, title: str, note: str, axis: str = "test accuracy", header: str = ""
    ) -> "Measure":
        """The measure with what figures and tables say of an accuracy."""
        return self.shown(title, axis, note, lower_is_better=False, percent=True, header=header)

    def loss(self, title: str, note: str, axis: str = "loss", header: str = "") -> "Measure":
        """The measure with what figures and tables say of a loss."""
        return self.shown(title, axis, note, lower_is_better=True, header=header)


def _count(doc: str) -> Measure:
    """A count that all records have."""
    return Measure(doc, int, 0)


MEASURES = {
    "train_loss": Measure(
        "f(w) over the training rows that evaluations read; NaN or infinity once the run has "
        "diverged, and NaN if it was not measured, see `measured`.",
        missing=math.nan,
    ).loss("training loss", "Over the training rows.", "f(w)", "train loss"),
    "test_accuracy": Measure(
        "Accuracy over the test rows that evaluations read, each client weighted by all of its "
        "test rows; NaN without test rows.",
        missing=math.nan,
    ).accuracy("test accuracy", "Over the test rows.", header="test accuracy"),
    "gradient_variance": Measure(
        "E_k ||grad F_k - grad f||^2; NaN if gradients are not measured.", missing=math.nan
    ).shown(
        "gradient variance",
        "E‖∇Fₖ - ∇f‖²",
        "How far the clients' gradients are from their mean.",
    ),
    "dissimilarity": Measure("B(w); NaN if gradients are not measured.", missing=math.nan).shown(
        "dissimilarity B(w)",
        "B(w)",
        "Root of E‖∇Fₖ‖² / ‖∇f‖², the mean being over clients: 1 if their gradients agree, "
        "larger the more they differ (Li et al. 2020, Definition 3).",
    ),
    "gamma_mean": Measure(
        "Mean gamma_k over the clients that trained in the last round and whose updates were not "
        "faulty; NaN without such clients, or if gradients are not measured.",
        missing=math.nan,
    ).shown(
        "inexactness gamma",
        "mean gamma",
        "Mean over the cohort: 0 is an exact local solve, 1 no progress (Definition 2).",
        lower_is_better=True,
    ),
    "gamma_max": Measure("The maximum of these gamma_k, gamma^t of Corollary 9.", missing=math.nan),
    "solves": _count("Number of local problems in the last round."),
    "unsolved": _count(
        "How many of these reached the solver's limit of steps before its gamma, without faulty "
        "updates."
    ),
    "clients": _count("Number of clients in the last round's cohort."),
    "stragglers": _count("How many of these could not finish."),
    "dropped": _count("How many of these the method dropped."),
    "client_steps": _count("Mini-batch steps taken in the last round."),
    "total_steps": _count("Mini-batch steps taken in all rounds so far.").shown(
        "client work", "mini-batch steps", "Mini-batch steps of all clients so far."
    ),
    "communication": Measure(
        "Communication of all rounds so far, in units of one round of FedAvg.", int | float, 0
    ).shown(
        "communication",
        "communication (FedAvg rounds)",
        "Models sent and returned, in units of a FedAvg round.",
    ),
    "time": Measure(
        "Seconds from the begin of the run to the end of the round, by the clients' devices; None "
        "without a `fedprox.Population`."
    ).shown("time", "seconds", "Seconds by the clients' devices so far."),
    "staleness": Measure(
        "Mean staleness of the last round's updates, see `fedprox.Asynchronous`; None in rounds "
        "with a barrier."
    ),
    "empty_rounds": _count(
        "Rounds since the previous record in which no client took part, so that the model did not "
        "change."
    ),
    "faulty": Measure(
        "Number of faulty updates since the previous record; None without screening, see "
        "`fedprox.Faults`.",
        int,
    ),
    "faulty_clients": Measure(
        "Names of the clients that sent them, in the federation's order; None without screening.",
        list[str],
    ),
    "unmeasured": Measure(
        "Number of clients whose loss or gradient was not finite. Training loss, gradient variance "
        "and B(w) leave these clients out. None without screening.",
        int,
    ),
    "train_loss_se": Measure(
        "Standard error of `train_loss` as an estimate from a sample of clients; None if "
        "evaluations read all clients."
    ),
    "test_accuracy_se": Measure(
        "Standard error of `test_accuracy`; None if evaluations read all clients."
    ),
    "test_loss": Measure(
        "Mean loss over the test rows that evaluations read, each client weighted by all of its "
        "test rows; NaN without test rows. With screening, the unmeasured clients are left out.",
        missing=math.nan,
    ).loss("test loss", "Over the test rows."),
    "validation_loss": Measure(
        "Mean loss over the validation rows of the clients, or of the validation set that belongs "
        "to no client; None without validation rows."
    ).loss("validation loss", "Over the validation rows."),
    "validation_accuracy": Measure(
        "Accuracy over the validation rows; NaN for a model without accuracy, None without "
        "validation rows."
    ).accuracy(
        "validation accuracy",
        "Over the validation rows, which targets and the best round are read on.",
        "validation accuracy",
        "validation accuracy",
    ),
    "seconds": Measure(
        "Seconds of the rounds and evaluations since the previous record, in a deployment; None in "
        "a simulation."
    ),
    "bytes_down": Measure("Bytes that nodes received in this time; None in a simulation.", int),
    "bytes_up": Measure("Bytes that nodes sent in this time; None in a simulation.", int),
    "nodes": Measure("Number of nodes that answered in this time; None in a simulation.", int),
    "network": Measure(
        "The clients that took part since the previous record, by name: their node and, summed "
        'over their rounds, "rounds", "steps", "seconds", "bytes_down" and "bytes_up". A node\'s '
        "bytes are divided equally among its clients of a round. None in a simulation.",
        dict[str, dict[str, Any]],
    ),
    "measured": Measure(
        "Whether nodes reported losses of this model; None in a simulation. They may keep their "
        "measures to themselves, or not have answered.",
        bool,
    ),
    "bits_up": Measure(
        "Bits of all messages of clients so far, see `fedprox.Compression`; None without it.", int
    ).shown("upload", "bits sent by clients", "Bits of all messages of clients so far."),
    "epsilon": Measure(
        "Epsilon of the (epsilon, delta)-differential privacy after these rounds, see "
        "`fedprox.Privacy`; None without privacy."
    ).shown(
        "privacy spent",
        "epsilon",
        "Epsilon of the (epsilon, delta)-differential privacy of clients or examples.",
        lower_is_better=True,
    ),
    "delta": Measure("Its delta; None without privacy."),
    "personal_clients": Measure(
        "Clients with a model of their own, among those with test rows; None if clients have none, "
        "as in the next five.",
        int,
    ),
    "personal_loss": Measure("Mean loss of these models, each on its client's test rows."),
    "personal_accuracy": Measure("Their accuracy.").accuracy(
        "accuracy of own models",
        "Over the test rows of the clients that have a model of their own.",
        header="own models",
    ),
    "personal_accuracy_worst": Measure(
        "Mean of their clients' accuracies over the worst tenth of them."
    ).accuracy(
        "own models, worst 10 %",
        "Mean test accuracy over the worst tenth of these clients in each round.",
    ),
    "newcomer_loss": Measure(
        "Mean loss over the test rows of all other clients, which have not taken part yet and have "
        "the server's model, fine-tuned if `Evaluation.fine_tune` is set. NaN if there are none."
    ),
    "newcomer_accuracy": Measure("The accuracy of these.").accuracy(
        "accuracy for newcomers",
        "Over the test rows of the clients that have no model of their own yet.",
    ),
    "client_accuracy_mean": Measure(
        "Mean of the clients' test accuracies, over the clients with test rows, each of which "
        "counts once. None without `Evaluation(by_client=True)`."
    ).accuracy(
        "client accuracy, mean", "Mean test accuracy of the clients, each of which counts once."
    ),
    "client_accuracy_std": Measure("Their standard deviation; None likewise."),
    "client_accuracy_worst": Measure(
        "Mean accuracy of the worst tenth of these clients; None likewise. A tenth of N clients "
        "are N / 10, rounded up, see `fedprox.fairness`."
    ).accuracy(
        "client accuracy, worst 10 %",
        "Mean test accuracy of the worst tenth of the clients in each round.",
        header="worst 10 %",
    ),
    "client_accuracy_best": Measure(
        "Mean accuracy of the best tenth of these clients; None likewise."
    ).accuracy(
        "client accuracy, best 10 %",
        "Mean test accuracy of the best tenth of the clients in each round.",
    ),
}
"""The measures of records by their names, in the order of the columns of files; a model's metrics
are further ones."""

OPTIONAL = tuple(name for name, measure in MEASURES.items() if measure.missing is None)
"""Columns that files have only where a record has a value."""

AXES = {
    "round": Measure(kind=int).shown("round", "round"),
    "mu": Measure().shown("mu in force", "mu", "The mu in force in each round."),
}
"""The other axes of figures."""

DRAWN = (
    *("train_loss", "validation_loss", "test_loss", "validation_accuracy", "test_accuracy"),
    *(f"client_accuracy_{name}" for name in ("mean", "worst", "best")),
    *("personal_accuracy", "personal_accuracy_worst", "newcomer_accuracy"),
    *("gradient_variance", "dissimilarity", "gamma_mean", "mu", "epsilon"),
)
"""The measures that a report draws against rounds, in its order, which is that of tables."""

COSTS = ("round", "time", "communication", "bits_up", "total_steps")
"""The measures that grow with the rounds, against which others are drawn."""

ON_ROWS = ("train", "test", "validation")
"""First words of measures on rows, as in `train_loss`."""

LOSSES = tuple(f"{kind}_loss" for kind in ON_ROWS)
ACCURACIES = tuple(f"{kind}_accuracy" for kind in ON_ROWS if kind != "train")


def measure_of(name: str) -> Measure:
    """The measure of a name, which may be that of a metric.

    >>> measure_of("train_loss").axis, measure_of("test_f1").title
    ('f(w)', 'test f1')
    """
    words = name.replace("_", " ")
    known = AXES.get(name) or MEASURES.get(name, Measure())
    return known if known.title else known.shown(words, words, "A metric of the model.")


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


class Scatter(NamedTuple):
    """The sum of weights, the weighted mean of gradients, and sum_k weight_k ||g_k - mean||^2."""

    weight: jax.Array
    mean: Any
    scatter: jax.Array


def nothing(like: Any) -> Scatter:
    """The scatter of no gradients."""
    return Scatter(jnp.zeros(()), jax.tree.map(jnp.zeros_like, like), jnp.zeros(()))


def include(so_far: Scatter, gradient: Any, weight: jax.Array) -> Scatter:
    """Add one client's gradient.

    >>> s = nothing(jnp.zeros(1))
    >>> for g, p in ((1.0, 0.25), (5.0, 0.75)):
    ...     s = include(s, jnp.array([g]), jnp.array(p))
    >>> s.mean.tolist(), float(s.scatter)
    ([4.0], 3.0)
    """
    weight_after = so_far.weight + weight
    share = weight / jnp.where(weight_after > 0, weight_after, 1.0)
    deviation = jax.tree.map(jnp.subtract, gradient, so_far.mean)
    mean = jax.tree.map(lambda m, d: m + share * d, so_far.mean, deviation)
    distance = optax.tree.norm(deviation) ** 2
    return Scatter(weight_after, mean, so_far.scatter + so_far.weight * share * distance)


@jax.jit
def squared_norms(trees: Any) -> jax.Array:
    """The squared norm of each of some trees, leaves (trees, ...).

    >>> squared_norms({"w": jnp.array([[3.0, 4.0], [0.0, 1.0]])}).tolist()
    [25.0, 1.0]
    """
    return jax.vmap(optax.tree.norm)(trees) ** 2


@jax.jit
def dissimilarity(variance: jax.Array, gradient_norm_squared: jax.Array) -> jax.Array:
    """B(w) = sqrt(1 + variance / ||grad f||^2); 1 where all gradients vanish.

    Li et al. 2020, Definition 3 and its footnote.

    >>> dissimilarity(jnp.array([3.0, 0.0]), jnp.array([1.0, 0.0])).tolist()
    [2.0, 1.0]
    """
    ratio = jnp.where(variance == 0, 0.0, variance / gradient_norm_squared)
    return jnp.sqrt(1 + ratio)


def mean_error(values: ArrayLike, weights: ArrayLike, population: int) -> NDArray[np.float64]:
    """The standard error of a weighted mean over m clients drawn from N.

    The clients were drawn uniformly without replacement, and R = sum_k w_k v_k / sum_k w_k over the
    drawn clients estimates the same ratio over all N. To first order

        se^2 = (1 - m / N) m / (m - 1) sum_k (w_k (v_k - R))^2 / (sum_k w_k)^2

    (Cochran 1977, Sampling Techniques, 6.3). For f(w) = sum_k p_k F_k, v_k = F_k and w_k = n_k; for
    accuracy, w_k counts the client's test labels. Unequal sizes cost little precision unless values
    depend on sizes.

    Values are (m, points), weights (m,) or (m, points). The error is 0 if all clients were drawn,
    and NaN if one of several was, or if all weights are 0.

    >>> mean_error([[1.0], [3.0]], [1, 1], population=4).tolist() == [math.sqrt((1 - 2 / 4) * 1)]
    True
    >>> mean_error([[1.0], [3.0]], [1, 1], population=2).tolist()
    [0.0]
    """
    v, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    w = w.reshape(len(w), -1)
    drawn, total = len(v), w.sum(axis=0)
    if drawn == 1 < population:
        return np.full(v.shape[1], math.nan)
    with np.errstate(all="ignore"):  # a model may have diverged, and weights may be 0
        apart = w * (v - (w * v).sum(axis=0) / total)
        scatter = (apart**2).sum(axis=0) * drawn / max(drawn - 1, 1)
        error: NDArray[np.float64] = np.sqrt((1 - drawn / population) * scatter) / total
    return error


class Fairness(NamedTuple):
    """The distribution of a measure over clients, each of which counts once; see `fairness`.

    Attributes:
        mean: Mean over the clients.
        std: Standard deviation over the clients, the root of the mean squared deviation.
        worst: Mean of the lowest tenth of the clients.
        best: Mean of the highest tenth of the clients.

    Example:
        >>> import fedprox as fp
        >>> fp.Fairness(mean=0.8, std=0.1, worst=0.6, best=0.9).worst
        0.6
    """

    mean: float
    std: float
    worst: float
    best: float


def fairness(accuracies: ArrayLike) -> Fairness:
    """The distribution of the clients' accuracies.

    A tenth of N clients are N / 10 clients, rounded up: 1 of 10, 2 of 11, and at least 1.

    Args:
        accuracies: The accuracy of each client, shape (clients,). NaN stands for a client without
            test rows, which is left out.

    Returns:
        Mean, standard deviation, and means of the worst and of the best tenth; NaN without clients.

    Raises:
        InputError: If the accuracies are not a list of numbers, one for each client.

    Example:
        >>> import fedprox as fp
        >>> found = fp.fairness([0.5, 1.0, float("nan"), 0.75])
        >>> found.mean, found.worst, found.best
        (0.75, 0.5, 1.0)

    References:
        Li et al., `Fair Resource Allocation in Federated Learning
        <https://arxiv.org/abs/1905.10497>`_, ICLR 2020, Table 1.
    """
    values = np.asarray(accuracies)
    require(
        values.ndim == 1 and (not values.size or values.dtype.kind in "iuf"),
        f"accuracies: shape {values.shape}, type {values.dtype}; it must have one number for each "
        "client",
    )
    known = np.sort(values[~np.isnan(values)].astype(np.float64))
    if not len(known):
        return Fairness(*[math.nan] * 4)
    tenth = -(-len(known) // 10)
    return Fairness(
        mean=float(known.mean()),
        std=float(known.std()),
        worst=float(known[:tenth].mean()),
        best=float(known[-tenth:].mean()),
    )
