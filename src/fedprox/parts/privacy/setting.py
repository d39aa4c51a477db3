r"""Differential privacy: what is clipped, and how much noise hides it.

The unit is a client or an example. For clients, each client's whole message is scaled to a norm of
at most :math:`C`. The messages of a round are added without weights, and Gaussian noise with
standard deviation :math:`z C` is added once to the sum. The result is divided by the fixed expected
cohort :math:`q N`, never by the number of clients that came (McMahan et al. 2018, "Learning
Differentially Private Recurrent Language Models", Algorithm 1):

.. math:: \bar m = \frac{1}{q N} \Big( \sum_{k \in S_t} m_k \min(1, C / \|m_k\|)
          + \mathcal N(0, z^2 C^2 I) \Big).

For examples, each local step of client :math:`k` samples a mini-batch :math:`b` of its
:math:`n_k` rows, each with probability :math:`q_k = B / n_k`. It replaces its gradient by (Abadi
et al. 2016, "Deep Learning with Differential Privacy", Algorithm 1):

.. math:: \tilde g = \frac{1}{B} \Big( \sum_{i \in b} g_i \min(1, C / \|g_i\|)
          + \mathcal N(0, z^2 C^2 I) \Big), \qquad g_i = \nabla \ell_i(w).

The engine sums the clipped messages with the equal weights 1 / (q N), whoever came, so that a
client changes the sum by at most C / (q N). The noise is added here, to that sum, before the
method's own update reads it. A client's state stays with the client: it is neither clipped nor
released. How many clients came is not public, so the method reads the fixed share q in place of the
share that took part.

Without a trusted server (`trust` "none") each client adds noise to its own clipped message, and the
server adds none (`private_on_clients`).

A method with a first exchange releases two sums a round: gradients, then messages. Both are clipped
to the same norm and get noise of their own.

With correlated noise (`correlated.py`) the normal numbers of a round become a row of
:math:`C^{-1} Z`. The server's state holds what later rounds need of earlier noise, so a checkpoint
has it, and a run that is resumed goes on with it. Clients do not read it, so nodes are not sent it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedprox.algorithms.base import (
    ROUNDING,
    Algorithm,
    ClientContext,
    ClientState,
    HParams,
    Message,
    Solution,
    State,
    add_scaled,
)
from fedprox.algorithms.check import message_shape
from fedprox.algorithms.lift import lift
from fedprox.errors import (
    PositiveInt,
    UnitFloat,
    Within,
    check_fields,
    require,
    require_number,
    require_one_of,
    require_whole,
    shown,
)
from fedprox.federation import Federation
from fedprox.model import Params
from fedprox.parts.faults import Faults
from fedprox.parts.part import (
    Columns,
    LocalGradient,
    Part,
    Reduction,
    Setting,
    StepsTaken,
    scaled,
    sound,
)
from fedprox.parts.privacy.accounting import (
    NOISES,
    Accountant,
    Hidden,
    Mechanism,
    Releases,
    calibrated_beside,
    calibrated_steps,
    require_accountable,
    require_noise,
)
from fedprox.parts.privacy.correlated import (
    Correlation,
    Strategy,
    column_norm,
    strategy_of,
    streaming,
)
from fedprox.parts.privacy.examples import NoisedGradient
from fedprox.parts.privacy.measures import NoisedMeasures
from fedprox.parts.privacy.numerics import GRADIENTS, MESSAGES, norm_bound, standard_normals
from fedprox.precision import real_type

Unit = Literal["client", "example"]
"""The unit that privacy hides: a client with all of its rows, or one row."""

Trust = Literal["server", "none"]
"""Whom clients trust with messages without noise."""

CLIPS = 1e-9, 1e9
"""Smallest and largest clipping norm, with whose squares single precision computes."""


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

    quantile: UnitFloat = 0.5
    rate: Annotated[float, Within(positive=True, most=100)] = 0.2
    count_noise: Annotated[float, Within(positive=True, most=1e6)] = 6.0

    def __post_init__(self) -> None:
        check_fields("privacy.adaptive_clip", self)


@dataclass(frozen=True)
class Privacy(Part):
    r"""A guarantee of :math:`(\epsilon, \delta)`-differential privacy for clients or examples.

    With the unit "client" it hides a client with all of its rows. The server is trusted: it sees
    each client's clipped message and adds the noise. In a deployment with secure sums nodes add it,
    and the server is not trusted.

    With the unit "example" it hides a row. Each local step clips the gradients of the examples of a
    Poisson sample and adds noise. So all that a client sends is private before it leaves the
    client, and :math:`\epsilon` is the largest of all clients'. The numbers of rows are public.

    Losses, accuracies and other measurements on clients' data have no noise and are outside the
    guarantee, unless `measures` gives losses and accuracies noise of their own.

    Attributes:
        clip: Largest norm :math:`C` of a client's message, all of its arrays together, or of the
            gradient of an example; with `adaptive_clip` the first such norm. From 1e-9 to 1e9; it
            may be infinite if `noise_multiplier` is 0.
        epsilon: :math:`\epsilon` of the whole run, to which the noise is calibrated, above 0 and at
            most 1e5. Give either this or `noise_multiplier`.
        noise_multiplier: :math:`z`, the standard deviation of the noise over `clip`: 0, or from
            1e-3 to 1e6. For correlated noise it is that of the noise before correlation, with a
            strategy scaled so that one message of a client has sensitivity `clip`.
        delta: :math:`\delta`, above 0 and below 1 over the number of clients, or over the rows of
            the client with the fewest. A run warns if it is above a tenth of that.
        adaptive_clip: How the norm follows the clients' norms; None for a fixed norm. Not for
            examples.
        accountant: "pld" composes privacy loss distributions, "rdp" Rényi differential privacy,
            whose epsilon is larger. None means "rdp" with uniform sampling, for which "pld" has no
            bound, and "pld" otherwise.
        capacity: Largest cohort under Poisson sampling (`Cohort.sampling` "bernoulli"). A larger
            one is cut to a uniform sample, which "pld" accounts for and "rdp" cannot. None means
            about 1.5 times the mean with "pld", and no limit with "rdp". Not for examples, whose
            mini-batches have no limit.
        unit: "client" or "example".
        mechanism: "independent" noise in each round, or noise that is correlated over rounds, so
            that later rounds cancel a part of the earlier noise. "banded" keeps
            `Cohort.min_separation` - 1 noises of a model's size on the server, "blt" one to four.
            Correlated noise is for clients, with "cyclic" sampling and a fixed number of rounds,
            and needs the extra jax-privacy.
        trust: "server" adds noise once to the sum of a round. With "none" each client adds noise of
            the standard deviation :math:`z C` to its own message, so that nobody sees it without
            noise. The mean of K clients then has :math:`\sqrt K` times as much. A client's messages
            of all rounds in which it takes part are composed, without amplification by sampling. It
            is for the unit "client"; with "example" no server is trusted in any case.
        measures: The noise of losses and accuracies, which the guarantee then includes; None for
            measures without noise, outside the guarantee.

    Raises:
        InputError: If a number is out of range, neither or both of `epsilon` and
            `noise_multiplier` are given, settings contradict each other, or jax-privacy is needed
            and not installed.

    Example:
        >>> import fedprox as fp
        >>> fp.Privacy(clip=1.0, epsilon=2.0).delta
        1e-05

    References:
        Correlated noise: Choquette-Choo et al., `(Amplified) Banded Matrix Factorization: A unified
        approach to private training <https://arxiv.org/abs/2306.08153>`_, NeurIPS 2023; McMahan
        et al., `A Hassle-free Algorithm for Private Learning in Practice: Don't Use Tree
        Aggregation, Use BLTs <https://arxiv.org/abs/2408.08868>`_, 2024, Algorithms 1 and 3.
    """

    clip: float
    epsilon: Annotated[float, Within(positive=True, most=1e5)] | None = None
    noise_multiplier: Annotated[float, Within()] | None = None
    delta: Annotated[float, Within(positive=True, below=1)] = 1e-5
    adaptive_clip: AdaptiveClip | None = None
    accountant: Accountant | None = None
    capacity: PositiveInt | None = None
    unit: Unit = "client"
    mechanism: Correlation = "independent"
    trust: Trust = "server"
    measures: NoisedMeasures | None = None

    def __post_init__(self) -> None:
        check_fields("privacy", self)
        for name in ("adaptive_clip", "capacity"):
            require(
                self.unit == "client" or getattr(self, name) is None,
                f'privacy.{name}: it is for privacy.unit = "client"; leave it out',
            )
        require(
            self.unit == "client" or self.of_server,
            f'privacy.trust = "{self.trust}"; it is for privacy.unit = "client", since clients '
            "trust nobody with their rows in any case: leave it out",
        )
        require(
            self.of_server or self.capacity is None,
            f'privacy.capacity = {self.capacity}; with privacy.trust = "none" no accounting needs '
            "a limit: leave it out",
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
        require_noise("privacy.noise_multiplier", self.noise_multiplier or 0.0)
        require(
            self.adaptive_clip is None or not unbounded,
            "privacy.adaptive_clip: it needs a finite privacy.clip to start from",
        )
        require(
            self.accountant != "rdp" or not self.capacity,
            f"privacy.capacity = {self.capacity}; privacy.accountant = "
            f'"{self.accountant}" cannot account for cohorts that are cut: use "pld"',
        )
        given = self.measures
        require(
            given is None or (given.share is None) == (self.epsilon is None),
            "privacy.measures: share is a part of privacy.epsilon; with privacy.noise_multiplier "
            "give privacy.measures.noise_multiplier",
        )

    @property
    def of_clients(self) -> bool:
        """Whether clients hide, and not their rows."""
        return self.unit == "client"

    @property
    def of_server(self) -> bool:
        """Whether a server adds the noise that hides clients."""
        return self.trust == "server"

    own_noise = True
    """Whether each sweep point of each method has noise of its own."""

    @property
    def of_rounds(self) -> str:
        """Noise that is calibrated to all rounds or correlated for them, and evaluations."""
        if self.epsilon is not None:
            return "the noise of privacy.epsilon"
        if self.measures is not None:
            return "the evaluations of privacy.measures"
        return "the noise of privacy.mechanism" if self.correlates else ""

    @property
    def correlates(self) -> bool:
        """Whether the noise of a round depends on that of earlier rounds."""
        return self.mechanism != "independent" and self.noise_multiplier != 0

    @property
    def kind_of_noise(self) -> Correlation:
        """How the noise of rounds is correlated; without noise it is not."""
        return self.mechanism if self.correlates else "independent"

    def strategy(self, setting: Setting) -> Strategy | None:
        """How noise is correlated; None unless rounds of a client are a number of rounds apart."""
        if setting.min_separation is None:
            return None
        return strategy_of(self.kind_of_noise, setting.min_separation, setting.rounds)

    def check(self, setting: Setting, sizes: NDArray[np.int64]) -> None:
        """Raise `InputError` if delta is too large to mean anything."""
        del setting
        check_delta(self, sizes)

    def recorded(self, columns: Columns) -> Mapping[str, float]:
        """The delta of each epsilon."""
        del columns
        return {"delta": self.delta}

    @property
    def keyed(self) -> bool:
        """Whether a round needs a random key: for its noise; steps have those of mini-batches."""
        return self.of_clients

    @property
    def independent(self) -> bool:
        """Whether a client's numbers must not depend on others, nor on how many came."""
        return self.of_clients

    @property
    def always_updates(self) -> bool:
        """Without messages, the noise of clients is still released."""
        return self.of_clients

    @property
    def samples_rows(self) -> bool:
        """Each row is drawn on its own, as the accounting of a step says."""
        return not self.of_clients

    def of_run(self, method: Algorithm, setting: Setting) -> Mechanism:
        """The mechanism of a run of a method, for its clients."""
        _, clients, per_round, sampling, rounds, *_ = setting
        given, strategy = (clients, per_round, sampling, rounds), self.strategy(setting)
        beside = self.of_measures(setting.evaluations)
        return mechanism_of(self, *given, releases(method), strategy, beside)

    def of_measures(self, evaluations: int) -> Releases | None:
        """The mechanism of a run's evaluations, for a client or row; None without noise."""
        if self.measures is None:
            return None
        return self.measures.releases(
            self.epsilon, self.delta, self.accountant or "pld", evaluations
        )

    def of_steps(self, rows: int, batch: int, noise_multiplier: float = 0.0) -> Mechanism:
        """The mechanism of each local step on so many rows, for an example."""
        sampled, accountant = (rows, batch, "bernoulli", None), self.accountant or "pld"
        return Mechanism(*sampled, noise_multiplier, 1, self.delta, accountant)

    def most_clients(self, method: Algorithm, setting: Setting) -> int | None:
        """Most clients of a round for which privacy accounts."""
        return self.of_run(method, setting).capacity if self.of_clients else None

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        """The method with clipped messages and noise, if clients hide."""
        if not self.of_clients:
            return method
        what = self.of_run(method, setting)
        noise = what.noise_multiplier, setting.per_round, what.clients
        if not self.of_server:
            silent = private(
                method, replace(self, epsilon=None, noise_multiplier=0.0), 0.0, *noise[1:]
            )
            return private_on_clients(silent, self.clip, what.noise_multiplier)
        correlated = None
        if what.strategy is not None and what.strategy.correlates:
            correlated = Correlated.of(what.strategy, method, setting.params)
        return private(method, self, *noise, correlated)

    def columns(self, clients: NDArray[Any], federation: Federation) -> Columns:
        """The clients' numbers, from which noise of their own follows."""
        del federation
        return {} if self.of_server else {NUMBER: np.asarray(clients, np.int32)}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        """The same, as the messages of clients read them."""
        del key
        return {} if self.of_server else {NUMBER: numbers[NUMBER]}

    def reduce(self, reduction: Reduction) -> Reduction:
        """A number that is not finite counts as zero, with or without `Faults`, if clients hide."""
        if not self.of_clients:
            return reduction
        screen = reduction.screen or Faults(norm=math.inf)
        return reduction._replace(screen=screen, fixed=True)

    def hparams(self, hparams: HParams, key: Any) -> HParams:
        """With the random key of the round and sweep point."""
        if key is None or "noise_words" not in hparams or not self.of_clients:
            return hparams  # as on a node, which adds no noise
        words = hparams["noise_words"]
        own = jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])
        return {**hparams, "noise_key": jax.random.key_data(own)}

    def released(self, steps: Iterable[tuple[int, int, int]]) -> tuple[Releases, ...]:
        """The releases of local steps, before a noise is known, for steps as in `StepsTaken`."""
        return tuple((self.of_steps(rows, batch), count) for rows, batch, count in steps)

    def noise_of_steps(self, taken: StepsTaken, evaluations: int) -> float:
        """The noise multiplier of a local step, for the client with the most to hide."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.epsilon is not None
        beside = self.of_measures(evaluations)
        return calibrated_steps(self.epsilon, self.released(taken()), beside)

    def local_gradient(self, taken: StepsTaken, evaluations: int) -> LocalGradient | None:
        """Local steps take clipped gradients of rows, if these hide."""
        if self.of_clients:
            return None
        multiplier = self.noise_of_steps(taken, evaluations)
        # without a bound there is no noise
        return NoisedGradient(self.clip, multiplier * self.clip if multiplier else 0.0)

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


SELDOM_CUT = 1000
"""The cohorts of a run exceed the default capacity with a probability of at most delta / 1000."""


@lru_cache(maxsize=64)
def mechanism_of(
    privacy: Privacy,
    clients: int,
    clients_per_round: int,
    sampling: str,
    rounds: int,
    releases: int = 1,
    strategy: Strategy | None = None,
    beside: Releases | None = None,
) -> Mechanism:
    """The mechanism of a run, with its capacity chosen and its noise calibrated.

    Under Poisson sampling, `clients_per_round` is the mean. Without a trusted server who takes part
    is known, so a client counts as one that takes part in each round. The noise is calibrated to
    `rounds`. A method with an exchange has 2 releases in a round. Evaluations are released `beside`
    rounds.

    Example:
        >>> privacy = Privacy(1.0, noise_multiplier=1.2)
        >>> mechanism = mechanism_of(privacy, 3383, 120, "bernoulli", rounds=100)
        >>> mechanism.capacity
        194
    """
    require_whole("rounds", rounds)
    require(
        clients_per_round <= clients,
        f"cohort.clients_per_round = {clients_per_round:,}; there are {clients:,} clients",
    )
    if not privacy.of_server and strategy is None:
        require_one_of("cohort.sampling", sampling, ("bernoulli", "uniform"))
        clients_per_round, sampling = clients, "bernoulli"  # as if all took part in each round
    mechanism = Mechanism(
        clients,
        clients_per_round,
        sampling,
        None,
        privacy.noise_multiplier or 0.0,
        releases,
        privacy.delta,
        privacy.accountant or "pld",
        strategy,
    )
    if privacy.accountant is None and mechanism.replaces:
        mechanism = mechanism._replace(accountant="rdp")
    noisy = privacy.noise_multiplier != 0
    require_accountable(mechanism, noisy=noisy)
    mechanism = mechanism._replace(capacity=_capacity(privacy, mechanism, rounds))
    if privacy.epsilon is None:
        return mechanism
    silent = mechanism._replace(noise_multiplier=0.0)
    return calibrated_beside(silent, privacy.epsilon, rounds, beside)


def _capacity(privacy: Privacy, mechanism: Mechanism, rounds: int) -> int | None:
    """The largest cohort; None for no limit."""
    clients, mean = mechanism.clients, mechanism.clients_per_round
    if privacy.capacity is not None:
        require(
            mechanism.sampling == "bernoulli",
            f"privacy.capacity = {privacy.capacity:,}; cohorts have one size with "
            f'cohort.sampling = "{mechanism.sampling}": leave it out',
        )
        require(
            privacy.capacity >= mean,
            f"privacy.capacity = {privacy.capacity:,}; it must be at least "
            f"cohort.clients_per_round = {mean:,}",
        )
        return min(privacy.capacity, clients)
    if mechanism.sampling != "bernoulli" or mechanism.accountant != "pld":
        return None
    from scipy import stats

    rare = privacy.delta / SELDOM_CUT / (rounds * mechanism.releases)
    seldom = int(stats.binom.isf(rare, clients, mean / clients))
    return min(clients, max(math.ceil(1.5 * mean), seldom))


def check_delta(privacy: Privacy | None, sizes: NDArray[np.int64]) -> None:
    """Raise `InputError` if delta is too large to mean anything, unless there is no noise."""
    if privacy is not None and privacy.noise_multiplier != 0:
        Hidden.of(privacy.unit, sizes).require_delta("privacy.delta", privacy.delta)


def delta_warnings(privacy: Privacy | None, sizes: NDArray[np.int64]) -> Iterator[str]:
    """As `check_delta`: a line if delta is larger than is usual."""
    if privacy is not None and privacy.noise_multiplier != 0:
        yield from Hidden.of(privacy.unit, sizes).warnings("privacy.delta", privacy.delta)


class Guarded(NamedTuple):
    """A method's state around which clients hide.

    Attributes:
        state: The method's own.
        clip: The current clipping norm, a scalar.
        noise: The earlier noise that later rounds need, of messages and of a first exchange; None
            for independent noise.
    """

    state: State
    clip: jax.Array
    noise: Any = None


class Clipped(NamedTuple):
    """A client's message after clipping.

    Attributes:
        message: The method's message, of a norm of at most the clipping norm.
        within: 1/2 if the message was not clipped, else -1/2; None if the norm does not adapt.
    """

    message: Message
    within: jax.Array | None


def clip_to(norm: jax.Array | float, tree: Any) -> tuple[Any, jax.Array]:
    """A tree scaled to at most a norm, and an upper bound of its norm before.

    A tree with a number that is not finite stays so, and screening leaves it out of the sum.

    >>> clipped, before = clip_to(1.0, {"a": jnp.array([3.0]), "b": jnp.array([4.0])})
    >>> round(float(clipped["a"][0]), 4), round(float(before), 4)
    (0.6, 5.0)
    """
    before = norm_bound(tree)
    scale = jnp.where(before > norm, norm / before, 1.0)
    return jax.tree.map(lambda a: a * scale, tree), before


def sound_or_silent(
    sent: Message, after: ClientState, before: ClientState
) -> tuple[Message, ClientState]:
    """A message and its client's state; zeros and the state before if either is not finite.

    Such a client then is as one that sends zeros, and nobody else can tell.

    >>> sound_or_silent(jnp.array([1.0, jnp.nan]), None, None)[0].tolist()
    [0.0, 0.0]
    """
    good = sound(sent, after)
    state = jax.tree.map(lambda a, b: jnp.where(good > 0, a, b), after, before)
    return scaled(good, sent), state


def possible_bits(hparams: HParams, mean: Clipped, steps: jax.Array) -> jax.Array:
    """The mean of numbers that are 1/2 or -1/2 is between them."""
    del hparams, steps
    return ~(jnp.abs(0.0 if mean.within is None else mean.within) > 0.5 * (1 + ROUNDING))


def normals_of(hparams: HParams, purpose: int, mean: Any) -> Any:
    """The standard normal numbers that are given for a mean, else those of the round's key."""
    given = hparams.get("noise")
    return standard_normals(hparams["noise_key"], purpose, mean) if given is None else given


def releases(algorithm: Algorithm) -> int:
    """How many noised sums a round of a method releases.

    >>> from fedprox.algorithms import fedavg, feddane
    >>> releases(fedavg()), releases(feddane(mu=0.1))
    (1, 2)
    """
    return 1 if algorithm.first.exchange is None else 2


class Correlated(NamedTuple):
    """The noise of a run that is correlated over rounds.

    Attributes:
        matrix: The matrix that multiplies the normal numbers, round by round.
        norm: By what they are multiplied before, the norm of the strategy's first column.
        messages: The messages of a client, in shape.
        gradients: Likewise what it sends in a first exchange; None without.
    """

    matrix: Any
    norm: float
    messages: Any
    gradients: Any

    @classmethod
    def of(cls, strategy: Strategy, algorithm: Algorithm, params: Params) -> "Correlated":
        """Of a method's clients, whose parameters are given in shape."""
        gradients = None if algorithm.first.exchange is None else params
        sent = message_shape(algorithm, params)
        return cls(streaming(strategy), column_norm(strategy), sent, gradients)

    def first(self) -> tuple[Any, Any]:
        """The state of both noises before the first round."""
        init = self.matrix.init_multiply
        return init(self.messages), init(self.gradients)

    def next(self, normals: Any, state: Any) -> tuple[Any, Any]:
        """The noise of a round and the next state, from normal numbers of the round."""
        with jax.default_matmul_precision("highest"):
            noise, after = self.matrix.multiply_next(normals, state)
        return jax.tree.map(lambda a: self.norm * a, noise), after


def private(
    algorithm: Algorithm,
    privacy: Privacy,
    noise_multiplier: float,
    cohort: int,
    clients: int,
    correlated: Correlated | None = None,
) -> Algorithm:
    r"""The same method with clipped messages and noise.

    The server's functions read ``hparams["noise_key"]``, the random key of the round and sweep
    point. Or, if it is there, ``hparams["noise"]``: standard normal numbers with the structure of
    the mean that they are added to.

    References:
        McMahan et al., `Learning Differentially Private Recurrent Language Models
        <https://arxiv.org/abs/1710.06963>`_, ICLR 2018, Algorithm 1; Andrew et al.,
        `Differentially Private Learning with Adaptive Clipping
        <https://arxiv.org/abs/1905.03871>`_, NeurIPS 2021, Algorithm 1.
    """
    adaptive = privacy.adaptive_clip
    z = privacy.update_noise(noise_multiplier)

    def public(hparams: HParams, _: ClientContext | None) -> HParams:
        share = jnp.full_like(hparams["participation"], cohort / clients)
        return {**hparams, "participation": share}

    def guarded(state: State, _: Params) -> Guarded:
        noise = None if correlated is None else correlated.first()
        return Guarded(state, jnp.asarray(privacy.clip, real_type()), noise)

    def noise_of(state: Guarded, purpose: int, normals: Any) -> tuple[Any, Any]:
        """The noise of a sum, and the state of all noise after it."""
        if correlated is None:
            return normals, None
        noise = list(state.noise)
        drawn, noise[purpose] = correlated.next(normals, noise[purpose])
        return drawn, tuple(noise)

    inner = lift(algorithm, server=guarded, hparams=public)

    def message(
        state: Guarded, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Clipped, ClientState]:
        sent, own_state = inner.client.message(state, hparams, context, solution)
        clipped, norm = clip_to(state.clip, sent)
        within = None if adaptive is None else jnp.where(norm <= state.clip, 0.5, -0.5)
        return Clipped(clipped, within), own_state

    def update(state: Guarded, mean: Clipped, hparams: HParams) -> Guarded:
        clip, (sent, within), noise = state.clip, mean, state.noise
        if z:
            normals: Clipped = normals_of(hparams, MESSAGES, mean)
            drawn, noise = noise_of(state, MESSAGES, normals.message)
            sent = add_scaled(sent, z * clip / cohort, drawn)
            if adaptive is not None:
                within = add_scaled(within, adaptive.count_noise / cohort, normals.within)
        if adaptive is not None and within is not None:
            clip = clip * jnp.exp(-adaptive.rate * (within + 0.5 - adaptive.quantile))
            clip = jnp.clip(clip, *CLIPS)
        after: Guarded = inner.server.update(state, sent, hparams)
        return after._replace(clip=clip, noise=noise)

    def exchange(state: Guarded, mean: Params, hparams: HParams) -> Guarded:
        assert inner.first.exchange is not None
        noise = state.noise
        if z:
            drawn, noise = noise_of(state, GRADIENTS, normals_of(hparams, GRADIENTS, mean))
            mean = add_scaled(mean, z * state.clip / cohort, drawn)
        after: Guarded = inner.first.exchange(state, mean, hparams)
        return after._replace(noise=noise)

    return inner._replace(
        average="clients",
        client=inner.client._replace(
            message=message,
            size=lambda sent: algorithm.client.size(sent.message),
            possible=possible_bits,
        ),
        server=inner.server._replace(update=update),
        first=inner.first._replace(
            exchange=None if algorithm.first.exchange is None else exchange,
            sent=lambda gradient: clip_to(privacy.clip, gradient)[0],
        ),
    )


NUMBER = "noise_of"
"""The column of clients' numbers, from which noise of their own follows."""


def private_on_clients(algorithm: Algorithm, clip: float, noise_multiplier: float) -> Algorithm:
    r"""A method whose clients add noise to their own messages.

    Client :math:`k` sends :math:`m_k \min(1, C / \|m_k\|) + \mathcal N(0, z^2 C^2 I)`. A message
    that is not finite counts as zero before its noise, since a message that is missing would tell.

    A client's key follows from the round's, ``hparams["noise_key"]``, and the client's number among
    the columns of its context. Without a key, as where shapes are computed, there is no noise. The
    method is one from `private` without noise.
    """

    def message(
        state: Guarded, hparams: HParams, context: ClientContext, solution: Solution
    ) -> tuple[Clipped, ClientState]:
        sent, own_state = algorithm.client.message(state, hparams, context, solution)
        value, own_state = sound_or_silent(sent.message, own_state, context.state)
        words = hparams.get("noise_key")
        if words is not None and noise_multiplier:
            key = jax.random.wrap_key_data(words, impl="threefry2x32")
            own = jax.random.key_data(jax.random.fold_in(key, context.columns[NUMBER]))
            normals = standard_normals(own, MESSAGES, value)
            value = add_scaled(value, noise_multiplier * clip, normals)
        return sent._replace(message=value), own_state

    return algorithm._replace(client=algorithm.client._replace(message=message))
