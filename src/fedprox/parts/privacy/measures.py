r"""Noised measures: losses and accuracies with noise, which the guarantee includes.

An evaluation is one release of the Gaussian mechanism: a vector of m numbers, training loss and
others, to which noise is added once. Losses are clipped to [0, B], those that are not finite to B.

**Clients hide**: client :math:`k` has the numbers :math:`x_k \in [0, 1]^m`, its mean losses over B
and its accuracies. With N clients, the released vector is

.. math:: \frac{1}{N} \Big( \sum_{k=1}^N x_k + \mathcal N(0, z^2 m I) \Big),

a mean over clients with equal weights, since their numbers of rows are private. A client more or
less, or a client that is replaced, moves the sum by at most :math:`\sqrt m`. A client without such
rows counts as the worst, with a loss of B and an accuracy of 0.

**Rows hide**: client :math:`k` sums over its rows the losses over B, and the rows that are
predicted correctly. A row is for training, test or validation, so it moves the :math:`m_p` numbers
of one of these parts, each by at most 1. Each client adds its own noise before anything leaves it:

.. math:: \frac{1}{n_p} \sum_{k=1}^N \Big( \sum_{i \in k} x_i
          + \mathcal N(0, z^2 m_p I) \Big).

The numbers of rows, :math:`n_p`, are public. The noise of all clients adds up.

In both cases a unit moves a sum by at most the root of its numbers, and z is the noise multiplier.
All clients are evaluated, so nothing is amplified by sampling.

Means are recorded as they are released, also beyond [0, 1]. Clipping them would cost no privacy,
but bias them, and so their averages over rounds and seeds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import SINGLE, Within, check_fields, require, shown
from fedprox.parts.privacy.accounting import (
    Mechanism,
    Releases,
    calibrated_mechanism,
    require_noise,
)
from fedprox.streams import Purpose, generator

Noised = Literal[
    "train_loss", "test_loss", "test_accuracy", "validation_loss", "validation_accuracy"
]
"""A measure that has a form with noise."""

NOISED: tuple[Noised, ...] = get_args(Noised)

Array = NDArray[Any]


@dataclass(frozen=True)
class NoisedMeasures:
    r"""Losses and accuracies with noise, whose epsilon is part of the run's.

    Each evaluation releases some numbers with Gaussian noise, once. Losses are clipped to
    :math:`[0, B]`; one that is not finite counts as :math:`B`.

    With the unit "client" a number is the mean over all N clients, with equal weights: their
    numbers of rows are private. With m numbers and the noise multiplier z its standard deviation is
    :math:`z \sqrt m / N`; for a loss it is :math:`B` times that. A client without test rows counts
    with an accuracy of 0 and a loss of :math:`B`.

    With the unit "example" a number is the mean over all n rows of a part of the data. Each client
    adds noise to its own sums, so the standard deviation is :math:`z \sqrt{m N} / n`, where m is
    the number of measures on that part.

    Numbers are recorded as they are released, also beyond [0, 1]. Target, patience, the best model
    and stopping read them, at no further cost.

    Attributes:
        loss_bound: :math:`B`, the largest loss that counts as it is, above 0: of a client's mean,
            or of a row.
        share: Part of `Privacy.epsilon` that all evaluations alone would have, above 0 and below 1.
            The noise of training is calibrated so that both together have `Privacy.epsilon`.
        noise_multiplier: :math:`z`, if `Privacy.noise_multiplier` is given in place of epsilon: 0,
            or from 1e-3 to 1e6.
        only: The measures that are released, "train_loss" among them, since it says whether a run
            has diverged; None for all that there are rows for. Fewer have less noise.

    Raises:
        InputError: If a number is out of range, neither or both of `share` and `noise_multiplier`
            are given, or a measure has no form with noise.

    Example:
        >>> import fedprox as fp
        >>> measures = fp.NoisedMeasures(loss_bound=8.0, share=0.1)
        >>> fp.Privacy(clip=1.0, epsilon=2.0, measures=measures).measures.share
        0.1

    References:
        Dwork and Roth, `The Algorithmic Foundations of Differential Privacy
        <https://www.cis.upenn.edu/~aaroth/Papers/privacybook.pdf>`_, 2014, Theorem A.1 (the
        Gaussian mechanism of a vector).
    """

    loss_bound: Annotated[float, Within(positive=True, most=SINGLE[1])]
    share: Annotated[float, Within(positive=True, below=1)] | None = None
    noise_multiplier: Annotated[float, Within()] | None = None
    only: Sequence[Noised] | None = None

    def __post_init__(self) -> None:
        name = "privacy.measures"
        check_fields(name, self)
        require(
            (self.share is None) != (self.noise_multiplier is None),
            f"{name}.share = {shown(self.share)} and {name}.noise_multiplier = "
            f"{shown(self.noise_multiplier)}; give one of the two",
        )
        require_noise(f"{name}.noise_multiplier", self.noise_multiplier or 0.0)
        if self.only is None:
            return
        given = isinstance(self.only, list | tuple) and all(each in NOISED for each in self.only)
        require(
            given and "train_loss" in self.only,
            f"{name}.only = {shown(self.only)}; it must be a list of train_loss and some of "
            f"{', '.join(NOISED[1:])}",
        )
        object.__setattr__(self, "only", tuple(each for each in NOISED if each in self.only))

    def among(self, known: Sequence[str]) -> tuple[str, ...]:
        """Those of the measures of a run's records that are released.

        >>> NoisedMeasures(8.0, noise_multiplier=1.0).among(["train_loss", "test_loss", "test_f1"])
        ('train_loss', 'test_loss')
        """
        allowed = NOISED if self.only is None else self.only
        return tuple(name for name in allowed if name in known)

    def releases(
        self, epsilon: float | None, delta: float, accountant: Any, evaluations: int
    ) -> Releases:
        """The evaluations of a run: what each releases, and how many there are."""
        one = gaussian(self.noise_multiplier or 0.0, delta, accountant)
        if self.share is not None:
            assert epsilon is not None  # which `Privacy` sees to
            one = calibrated_mechanism(one, self.share * epsilon, evaluations)
        return one, evaluations


def gaussian(noise_multiplier: float, delta: float, accountant: Any = "pld") -> Mechanism:
    """The mechanism of an evaluation, in which all clients take part."""
    return Mechanism(1, 1, "bernoulli", None, noise_multiplier, 1, delta, accountant)


def evaluations_of(rounds: int, every: int, done: int) -> int:
    """Evaluations up to a round of a run, of the first and the last model too.

    >>> [evaluations_of(rounds=7, every=3, done=t) for t in (0, 2, 3, 6, 7)]
    [1, 1, 2, 3, 4]
    """
    return 1 + done // every + (done == rounds and done % every > 0)


class BoundedLoss(NamedTuple):
    """The loss of each example, clipped to [0, most]; `most` if it is not a number."""

    loss: Callable[..., Any]
    most: float

    def __call__(self, outputs: Any, y: Any) -> Any:
        """The losses of a batch's examples."""
        losses = self.loss(outputs, y)
        return jnp.maximum(jnp.where(losses <= self.most, losses, self.most), 0.0)


def bounded(means: Array, most: float) -> Array:
    """Losses over their bound, from 0 to 1; 1 for one that is not a number.

    >>> bounded(np.array([-1.0, 2.0, 9.0, np.nan, np.inf]), 8.0).tolist()
    [0.0, 0.25, 1.0, 1.0, 1.0]
    """
    known = means.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.maximum(np.where(known <= most, known, most), 0.0) / most


class Sums(NamedTuple):
    """The sums of an evaluation before noise, scaled so that a unit moves them by one.

    Attributes:
        values: Scaled sums by measure, arrays (sources, points): of all clients together, or of
            each client, which adds its own noise.
        rows: By what the sum over all sources is divided, by measure.
        scale: The size of 1 of a value in a sum, by measure: the root of the numbers that one unit
            moves.
        bound: The bound of a loss.
    """

    values: Mapping[str, Array]
    rows: Mapping[str, float]
    scale: Mapping[str, float]
    bound: float

    def means(self, noise: Array) -> dict[str, Array]:
        """The released numbers (points,), for noise (sources, measures, points) in these units."""
        return {
            name: (self.bound if name.endswith("_loss") else 1.0)
            * self.scale[name]
            * (values + noise[:, i]).sum(axis=0)
            / self.rows[name]
            for i, (name, values) in enumerate(self.values.items())
        }


def sums_of_clients(
    names: Sequence[str],
    bound: float,
    losses: Mapping[str, Array],
    correct: Mapping[str, Array],
    labels: Mapping[str, Array],
) -> Sums:
    """The sums over all clients, each of which hides.

    `losses` are means of clients (clients, points) by part; `correct` counts labels (clients,
    points) of `labels` (clients,), which are rows for losses.

    >>> loss, met, rows = np.array([[4.0], [9.0]]), np.array([[1], [3]]), np.array([2, 3])
    >>> parts = {"train": rows}, {"test": rows}
    >>> names = ["train_loss", "test_accuracy"]
    >>> sums = sums_of_clients(names, 8.0, {"train": loss}, {"test": met}, {"test": rows})
    >>> {name: float(mean[0]) for name, mean in sums.means(np.zeros((1, 2, 1))).items()}
    {'train_loss': 6.0, 'test_accuracy': 0.75}
    """
    root, values, clients = math.sqrt(len(names)), {}, 1
    for name in names:
        part, _, kind = name.partition("_")
        if kind == "loss":
            each = bounded(losses[part], bound)
            if part in labels:
                each = np.where(labels[part][:, None] > 0, each, 1.0)
        else:
            each = correct[part] / np.maximum(labels[part], 1)[:, None]
        clients = len(each)
        values[name] = each.sum(axis=0, dtype=np.float64)[None] / root
    return Sums(values, dict.fromkeys(names, clients), dict.fromkeys(names, root), bound)


def sums_of_rows(
    names: Sequence[str],
    bound: float,
    losses: Mapping[str, Array],
    correct: Mapping[str, Array],
    rows: Mapping[str, Array],
) -> Sums:
    """The sums of each client, whose rows hide.

    `losses` are means (clients, points) of losses that are clipped row by row, by part; `correct`
    are rows (clients, points) that are predicted correctly; `rows` are those of clients.
    """
    parts = [name.partition("_")[0] for name in names]
    scale = {name: math.sqrt(parts.count(part)) for name, part in zip(names, parts, strict=True)}
    values = {}
    for name, part in zip(names, parts, strict=True):
        own = rows[part][:, None]
        if name.endswith("_loss"):
            each = np.where(own > 0, own * bounded(losses[part], bound), 0.0)
        else:
            each = correct[part].astype(np.float64)
        values[name] = each / scale[name]
    totals = {name: float(rows[part].sum()) for name, part in zip(names, parts, strict=True)}
    return Sums(values, totals, scale, bound)


def noise_by_key(
    sums: Sums, noise_multiplier: float, seed: int, round_: int, words: NDArray[np.uint32]
) -> Array:
    """The noise of an evaluation in a simulation, (sources, measures, points).

    It is a function of the seed, the round, the client and the two words of a sweep point's method.
    """
    values = list(sums.values.values())
    sources, points = values[0].shape
    noise = np.zeros((sources, len(values), points))
    for source in range(sources if noise_multiplier else 0):
        for point in range(points):
            own = int(words[point, 0]) << 32 | int(words[point, 1])
            stream = generator(seed, Purpose.MEASURES, round_, source, own)
            noise[source, :, point] = noise_multiplier * stream.standard_normal(len(values))
    return noise
