r"""Differential privacy: what is clipped, and how much noise hides it.

The unit is a client or an example. For clients, each client's whole message is scaled to a norm of
at most :math:`C`. The messages of a round are added without weights, Gaussian noise with standard
deviation :math:`z C` is added once to the sum, and the result is divided by the fixed expected
cohort :math:`q N`, never by the number of clients that came (McMahan et al. 2018, "Learning
Differentially Private Recurrent Language Models", Algorithm 1):

.. math:: \bar m = \frac{1}{q N} \Big( \sum_{k \in S_t} m_k \min(1, C / \|m_k\|)
          + \mathcal N(0, z^2 C^2 I) \Big).

For examples, each local step of client :math:`k` samples a mini-batch :math:`b` of its
:math:`n_k` rows, each with probability :math:`q_k = B / n_k`, and replaces its gradient by (Abadi
et al. 2016, "Deep Learning with Differential Privacy", Algorithm 1):

.. math:: \tilde g = \frac{1}{B} \Big( \sum_{i \in b} g_i \min(1, C / \|g_i\|)
          + \mathcal N(0, z^2 C^2 I) \Big), \qquad g_i = \nabla \ell_i(w).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, require_number, require_one_of, require_whole, shown
from fedprox.parts.part import Columns, Part, Setting

Unit = Literal["client", "example"]
"""What privacy hides: a client with all of its rows, or one row."""

Accountant = Literal["pld", "rdp"]
"""How the privacy loss of several releases is composed."""

CLIPS = 1e-9, 1e9
"""Smallest and largest clipping norm, with whose squares single precision computes."""

NOISES = 1e-3, 1e6
"""Smallest noise multiplier above 0, and the largest. With less noise no accountant computes an
epsilon; with more, rounding errors are larger than the privacy losses."""

MOST_EPSILON = 1e5
"""Largest epsilon, which needs more than the smallest noise."""

MOST_RATE = 100.0
"""Largest learning rate of an adaptive norm."""


@dataclass(frozen=True)
class AdaptiveClip:
    r"""A clipping norm that follows a quantile of the clients' norms.

    Each client also sends whether its norm was at most :math:`C`. With noise, the mean
    :math:`\tilde b` of these bits moves the norm:

    .. math:: C \leftarrow C \exp(-\eta_C (\tilde b - \gamma)),

    within 1e-9 and 1e9.

    The noise multiplier :math:`z` of the round is split: the messages get
    :math:`(z^{-2} - (2 \sigma_b)^{-2})^{-1/2}`, and the sum of the bits :math:`\sigma_b`.

    Attributes:
        quantile: Quantile :math:`\gamma` of the clients' norms that the norm follows, from 0 to 1.
        rate: Learning rate :math:`\eta_C`, above 0 and at most 100.
        count_noise: Standard deviation :math:`\sigma_b` of the noise of the bits' sum, above 0 and
            at most 1e6.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> AdaptiveClip(quantile=0.8).rate
        0.2

    References:
        Andrew et al., `Differentially Private Learning with Adaptive Clipping
        <https://arxiv.org/abs/1905.03871>`_, NeurIPS 2021, Algorithm 1 and Theorem 1.
    """

    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 6.0

    def __post_init__(self) -> None:
        name = "privacy.adaptive_clip"
        require_number(f"{name}.quantile", self.quantile, most=1)
        require_number(f"{name}.rate", self.rate, most=MOST_RATE, positive=True)
        require_number(f"{name}.count_noise", self.count_noise, most=NOISES[1], positive=True)


@dataclass(frozen=True)
class Privacy:
    r"""A guarantee of :math:`(\epsilon, \delta)`-differential privacy for clients or examples.

    With the unit "client" it hides a client with all of its rows. The server is trusted: it sees
    each client's clipped message and adds the noise. In a deployment with secure sums nodes add it,
    and the server is not trusted.

    With the unit "example" it hides a row. Each local step clips the gradients of the examples of a
    Poisson sample and adds noise, so all that a client sends is private before it leaves the
    client, and :math:`\epsilon` is that of the client with the largest. The numbers of rows are
    public.

    Losses, accuracies and other measurements on clients' data have no noise and are outside the
    guarantee.

    Attributes:
        clip: Largest norm :math:`C` of what a client sends, all arrays of a message together, or of
            the gradient of an example; with `adaptive_clip` the first one. From 1e-9 to 1e9; it may
            be infinite if `noise_multiplier` is 0.
        epsilon: :math:`\epsilon` of the whole run, to which the noise is calibrated, above 0 and at
            most 1e5. Give either this or `noise_multiplier`.
        noise_multiplier: :math:`z`, the standard deviation of the noise over `clip`: 0, or from
            1e-3 to 1e6.
        delta: :math:`\delta`, above 0 and below one over the number of clients, or of rows of the
            client with fewest. Above a tenth of that a run warns.
        adaptive_clip: How the norm follows the clients' norms; None leaves it as it is, as it must
            be for examples.
        accountant: "pld" composes privacy loss distributions, "rdp" Rényi differential privacy,
            which proves a larger epsilon. None for "pld", except with uniform sampling, which it
            cannot account for.
        capacity: Largest cohort under Poisson sampling (`Cohort.sampling` "bernoulli"). A larger
            one is cut to a uniform sample, which "pld" accounts for and "rdp" cannot. None means
            about 1.5 times the mean with "pld", and no limit with "rdp". Not for examples, whose
            mini-batches have no limit.
        unit: "client" or "example".

    Raises:
        InputError: If a number is out of range, neither or both of `epsilon` and
            `noise_multiplier` are given, or settings contradict each other.

    Example:
        >>> import fedprox as fp
        >>> fp.Privacy(clip=1.0, epsilon=2.0).delta
        1e-05
    """

    clip: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-5
    adaptive_clip: AdaptiveClip | None = None
    accountant: Accountant | None = None
    capacity: int | None = None
    unit: Unit = "client"

    def __post_init__(self) -> None:
        require_one_of("privacy.unit", self.unit, get_args(Unit))
        for name in ("adaptive_clip", "capacity"):
            require(
                self.unit == "client" or getattr(self, name) is None,
                f'privacy.{name}: it is for privacy.unit = "client"; leave it out',
            )
        unbounded = self.noise_multiplier == 0 and self.clip == math.inf
        if not unbounded:
            require_number("privacy.clip", self.clip, positive=True)
            require(
                CLIPS[0] <= self.clip <= CLIPS[1],
                f"privacy.clip = {self.clip!r}; it must be from {CLIPS[0]:g} to {CLIPS[1]:g}",
            )
        require(
            (self.epsilon is None) != (self.noise_multiplier is None),
            f"privacy.epsilon = {shown(self.epsilon)} and privacy.noise_multiplier = "
            f"{shown(self.noise_multiplier)}; give one of the two",
        )
        require_number(
            "privacy.epsilon", self.epsilon, most=MOST_EPSILON, positive=True, optional=True
        )
        require_number("privacy.noise_multiplier", self.noise_multiplier, optional=True)
        require_noise("privacy.noise_multiplier", self.noise_multiplier or 0.0)
        require_number("privacy.delta", self.delta, positive=True)
        require(self.delta < 1, f"privacy.delta = {shown(self.delta)}; it must be below 1")
        accountants = get_args(Accountant)
        require_one_of("privacy.accountant", self.accountant, accountants, optional=True)
        adaptive = self.adaptive_clip
        require(
            adaptive is None or isinstance(adaptive, AdaptiveClip),
            f"privacy.adaptive_clip = {shown(adaptive)}; it must be a fedprox.AdaptiveClip or None",
        )
        require(
            adaptive is None or not unbounded,
            "privacy.adaptive_clip: it needs a finite privacy.clip to start from",
        )
        require_whole("privacy.capacity", self.capacity, optional=True)
        require(
            self.accountant != "rdp" or not self.capacity,
            f"privacy.capacity = {self.capacity}; privacy.accountant = "
            f'"{self.accountant}" cannot account for cohorts that are cut: use "pld"',
        )

    def update_noise(self, noise_multiplier: float) -> float:
        r"""The noise multiplier of the messages, if that of a whole release is :math:`z`.

        Args:
            noise_multiplier: :math:`z`.

        Returns:
            :math:`(z^{-2} - (2 \sigma_b)^{-2})^{-1/2}` with an adaptive norm, else :math:`z`.

        Raises:
            InputError: If :math:`z` is at least :math:`2 \sigma_b`, so that the bits alone reveal
                more.

        Example:
            >>> privacy = Privacy(1.0, noise_multiplier=1.0, adaptive_clip=AdaptiveClip())
            >>> round(privacy.update_noise(1.0), 5)
            1.00349
        """
        if self.adaptive_clip is None or not noise_multiplier:
            return noise_multiplier
        require_noise("noise_multiplier", noise_multiplier)
        bits = 2 * self.adaptive_clip.count_noise
        left = noise_multiplier**-2 - bits**-2 if noise_multiplier < bits else 0.0
        require(
            left >= NOISES[1] ** -2,
            f"privacy.adaptive_clip.count_noise = {self.adaptive_clip.count_noise:g}; with a noise "
            f"multiplier of {noise_multiplier:g} it must be above {noise_multiplier / 2:g}",
        )
        return float(left**-0.5)


def require_noise(name: str, noise_multiplier: float) -> None:
    """Raise `InputError` if a noise multiplier is so small or large that it has no epsilon."""
    least, most = NOISES
    require(
        noise_multiplier == 0 or least <= noise_multiplier <= most,
        f"{name} = {noise_multiplier:g}; it must be 0, or from {least:g} to {most:g}",
    )


class Hidden(NamedTuple):
    """Among how many of its kind a unit hides.

    Attributes:
        number: How many clients, or rows of the client with fewest.
        words: The same in words.
    """

    number: int
    words: str

    @classmethod
    def of(cls, unit: Unit, sizes: NDArray[np.int64]) -> "Hidden":
        """Among clients with so many rows."""
        if unit == "client":
            return cls(len(sizes), f"{len(sizes):,} clients")
        fewest = int(sizes[sizes > 0].min(initial=sizes.max(initial=0)))
        return cls(fewest, f"{fewest:,} rows of the smallest client")

    def require_delta(self, name: str, delta: float) -> None:
        """Raise `InputError` if publishing one of them as it is would have such a delta."""
        require(
            delta < 1 / self.number,
            f"{name} = {delta:g}; with {self.words} it must be below 1 / {self.number:,}, the "
            "delta of publishing one of them as it is",
        )

    def warnings(self, name: str, delta: float) -> Iterator[str]:
        """A line if delta is allowed, but larger than is usual."""
        if delta > 1 / (10 * self.number):
            yield (
                f"{name} = {delta:g} is above a tenth of 1 / {self.number:,}, with {self.words}: "
                "it should be well below that, since publishing one of them as it is has a delta "
                f"of 1 / {self.number:,}"
            )


@dataclass(frozen=True)
class Hiding(Part):
    """What privacy of both units is as a part.

    Attributes:
        privacy: The setting.
    """

    privacy: Privacy

    own_noise = True
    """Whether each sweep point of each method has noise of its own."""

    @property
    def of_rounds(self) -> str:
        """Noise that is calibrated to the epsilon of all rounds."""
        return "" if self.privacy.epsilon is None else "the noise of privacy.epsilon"

    def check(self, setting: Setting, sizes: NDArray[np.int64]) -> None:
        """Raise `InputError` if delta is too large to mean anything."""
        del setting
        check_delta(self.privacy, sizes)

    def measures(self, columns: Columns) -> Mapping[str, float]:
        """The delta of each epsilon."""
        del columns
        return {"delta": self.privacy.delta}


def check_delta(privacy: Privacy | None, sizes: NDArray[np.int64]) -> None:
    """Raise `InputError` if delta is too large to mean anything, unless there is no noise."""
    if privacy is not None and privacy.noise_multiplier != 0:
        Hidden.of(privacy.unit, sizes).require_delta("privacy.delta", privacy.delta)


def delta_warnings(privacy: Privacy | None, sizes: NDArray[np.int64]) -> Iterator[str]:
    """As `check_delta`: a line if delta is larger than is usual."""
    if privacy is not None and privacy.noise_multiplier != 0:
        yield from Hidden.of(privacy.unit, sizes).warnings("privacy.delta", privacy.delta)
