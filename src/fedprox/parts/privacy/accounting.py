r"""The accounting of a run's releases, by the library dp-accounting.

A release is one noised sum of clients' messages. Each has the same noise and its own cohort:

* Poisson sampling, "bernoulli": a client takes part with probability :math:`q = K / N`. A cohort
  larger than a capacity is cut to a uniform sample. Two federations are neighbours if one has one
  client more.
* "uniform": :math:`K` of the :math:`N` clients. Two federations are neighbours if one client is
  replaced by another, which moves a sum by up to twice the clipping norm.
* :math:`K = N`: all clients take part, which is the Gaussian mechanism without sampling.
* "cyclic": rounds of a client are a number of rounds apart. All rounds together are one Gaussian
  mechanism, whose sensitivity follows from the number of a client's rounds and from how the noise
  of rounds is correlated (`correlated.py`). No amplification by sampling is counted. Two
  federations are neighbours if one client's messages are replaced by ones that add nothing.

A client's local steps on its rows are the same thing with rows in place of clients. The noised sum
of a mini-batch is a release, and the mini-batches are Poisson samples.

dp-accounting is imported inside functions, since the import takes a second.
"""

import importlib.metadata
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import plural, require, require_number, require_one_of, require_whole
from fedprox.parts.privacy.correlated import CORRELATIONS, Strategy, check_strategy, reach

Accountant = Literal["pld", "rdp"]
"""How the privacy loss of several releases is composed."""

NOISES = 1e-3, 1e6
"""Smallest noise multiplier above 0, and the largest. With less noise no accountant computes an
epsilon; with more, rounding errors are larger than the privacy losses."""

ACCOUNTANTS: dict[Accountant, str] = {
    "pld": "privacy loss distributions",
    "rdp": "Rényi differential privacy",
}
"""The accountants in words."""

GRIDS = (64, 1e-3), (1024, 5e-4), (math.inf, 2.5e-4)
"""Intervals of the grid of privacy losses, up to a number of releases. A wider one is faster and
proves an epsilon that is larger, by about 0.7 times its square and the number of releases."""

FINEST = 40_000
"""Most intervals of the grid of one release, about, so that little noise does not take minutes."""

GROUPED = 16
"""Releases of a block; the compositions of whole blocks are kept for the next numbers of rounds."""

TIGHTNESS = 1e-4
"""Relative tolerance of a calibrated noise multiplier."""

DIFFERENT_NEIGHBOURS = (
    'private runs with cohort.sampling = "uniform" and others on the same clients: their '
    "neighbouring federations differ, so their epsilons cannot be added; use one sampling"
)

LITTLE, LARGEST_DIVERGENCE, MOST_EPSILON = 1e-3, 1e100, 700.0
"""Bounds beyond which a composition proves nothing: of noise, divergences and epsilon."""

CLOSENESS = 1e-6
"""Relative margin below a target epsilon, above the rounding errors of a composition."""


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
    def of(cls, unit: str, sizes: NDArray[np.int64]) -> "Hidden":
        """Among clients with so many rows."""
        if unit == "client":
            return cls(len(sizes), plural(len(sizes), "client"))
        fewest = int(sizes[sizes > 0].min(initial=sizes.max(initial=0)))
        return cls(fewest, f"{plural(fewest, 'row')} of the smallest client")

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


class Mechanism(NamedTuple):
    r"""The mechanism by which the rounds of a run release their sums.

    Attributes:
        clients: Clients of the federation, :math:`N`.
        clients_per_round: Clients of a round, :math:`K`; the mean under Poisson sampling.
        sampling: "bernoulli" for Poisson sampling with probability :math:`K / N`, "uniform", or
            "cyclic".
        capacity: Largest cohort under Poisson sampling; None for no limit.
        noise_multiplier: Standard deviation of the noise of a release over the clipping norm.
        releases: Releases of a round, each with a cohort of its own.
        delta: :math:`\delta` of the guarantee.
        accountant: How the releases are composed.
        strategy: How noise is correlated, and how far a client's rounds are apart, with "cyclic"
            sampling; else None.
    """

    clients: int
    clients_per_round: int
    sampling: str
    capacity: int | None
    noise_multiplier: float
    releases: int
    delta: float
    accountant: Accountant
    strategy: Strategy | None = None

    @property
    def everybody(self) -> bool:
        """Whether all clients take part in each round."""
        return self.clients_per_round == self.clients

    @property
    def replaces(self) -> bool:
        """Whether neighbours differ in a replaced client, in place of an additional one."""
        return self.sampling == "uniform" and not self.everybody

    @property
    def cut(self) -> bool:
        """Whether a cohort can be larger than the capacity."""
        return self.capacity is not None and self.capacity < self.clients


def check_mechanism(mechanism: Mechanism) -> Mechanism:
    """The mechanism that another host declares, if one can be so."""
    require_whole("clients", mechanism.clients)
    require_whole("clients_per_round", mechanism.clients_per_round, most=mechanism.clients)
    least, most = mechanism.clients_per_round, mechanism.clients
    require_whole("capacity", mechanism.capacity, least=least, most=most, optional=True)
    require_number("noise_multiplier", mechanism.noise_multiplier)
    require_whole("releases", mechanism.releases, most=2)
    require_number("delta", mechanism.delta, most=1, positive=True)
    if mechanism.noise_multiplier:
        Hidden(mechanism.clients, plural(mechanism.clients, "client")).require_delta(
            "delta", mechanism.delta
        )
    require_one_of("accountant", mechanism.accountant, get_args(Accountant))
    require(
        mechanism.capacity is None
        or (mechanism.sampling, mechanism.accountant) == ("bernoulli", "pld"),
        f"capacity = {mechanism.capacity}; only the accountant pld has one, with Poisson sampling",
    )
    require_accountable(mechanism, noisy=True)
    require(
        (mechanism.sampling == "cyclic") == (mechanism.strategy is not None),
        'privacy.mechanism: with cohort.sampling = "cyclic" alone there is a strategy',
    )
    check_strategy(mechanism.strategy)
    return mechanism


def require_accountable(mechanism: Mechanism, *, noisy: bool) -> None:
    """Raise `InputError` if no guarantee can be computed for the sampling."""
    require(
        mechanism.sampling in ("bernoulli", "uniform", "cyclic"),
        f'cohort.sampling = "{mechanism.sampling}"; with [privacy] it must be "bernoulli", '
        '"uniform" or "cyclic"',
    )
    require_noise("privacy.noise_multiplier", mechanism.noise_multiplier)
    require(
        not (noisy and mechanism.replaces and mechanism.accountant == "pld"),
        'cohort.sampling = "uniform"; privacy.accountant = "pld" cannot account for it: sampling '
        'must be "bernoulli", or the accountant "rdp"',
    )


Releases = tuple[Mechanism, int]
"""A mechanism, and how many rounds, or local steps, use it."""


def as_one(mechanism: Mechanism, rounds: int) -> Releases:
    r"""Rounds of cyclic cohorts as one release; others as they are.

    The first :math:`T` rounds move what is released by the norm that `reach` returns. Rounds beyond
    those of the run are some of them once more, in each of which a client moves it by `most`.

    >>> from fedprox.parts.privacy.correlated import Strategy
    >>> each = Mechanism(100, 10, "cyclic", None, 2.0, 1, 1e-5, "pld", Strategy("banded", 10, 40))
    >>> one, count = as_one(each, 40)
    >>> one.noise_multiplier, count, one.everybody
    (1.0, 1, True)
    """
    strategy = mechanism.strategy
    if strategy is None or not rounds:
        return mechanism, rounds
    first = min(rounds, strategy.rounds)
    moved = reach(strategy, first).all ** 2
    if rounds > first:
        moved += (rounds - first) * reach(strategy, strategy.rounds).most ** 2
    noise = mechanism.noise_multiplier / math.sqrt(mechanism.releases * moved)
    one = mechanism._replace(
        clients_per_round=mechanism.clients,
        sampling="bernoulli",
        noise_multiplier=noise,
        releases=1,
        strategy=None,
    )
    return one, 1


class _Remembering:
    """An accountant of one event, whose epsilon is computed once.

    The search for a noise asks for both ends of an interval, and for its result, twice.

    Args:
        mechanism: The mechanism that is composed.
        count: How often it is composed.
        known: The epsilon of each event so far, to which others are added.
    """

    def __init__(self, mechanism: Mechanism, count: int, known: dict[Any, float]) -> None:
        self.inner, self.known = _accountant(mechanism, count), known
        self.ledger, self.event = self.inner.ledger, None

    def compose(self, event: Any) -> Self:
        self.event = event
        return self

    def get_epsilon(self, delta: float) -> float:
        if self.event not in self.known:
            self.known[self.event] = self.inner.compose(self.event).get_epsilon(delta)
        return self.known[self.event]


@lru_cache(maxsize=64)
def calibrated_mechanism(mechanism: Mechanism, epsilon: float, rounds: int) -> Mechanism:
    """A mechanism with the smallest noise whose rounds cost at most so much epsilon."""
    import dp_accounting
    from dp_accounting.mechanism_calibration import NoBracketIntervalFoundError

    if mechanism.strategy is not None:
        one, _ = as_one(mechanism._replace(noise_multiplier=1.0), rounds)
        silent = one._replace(noise_multiplier=0.0)
        noise = calibrated_mechanism(silent, epsilon, 1).noise_multiplier
        return mechanism._replace(noise_multiplier=noise / one.noise_multiplier)
    low, step = 1.0, 2.0
    if mechanism.accountant == "pld":
        # what the other accountant finds is close, fast, and a little more than is needed
        quick = mechanism._replace(accountant="rdp", capacity=None)
        low, step = 0.85 * calibrated_mechanism(quick, epsilon, rounds).noise_multiplier, 1.25

    def spent(noise: float) -> float:
        return _epsilon({mechanism._replace(noise_multiplier=noise): rounds}, mechanism.delta)

    while spent(low) <= epsilon:
        low /= step
    count = rounds * mechanism.releases

    def event(noise: float) -> Any:
        return dp_accounting.SelfComposedDpEvent(
            _event(mechanism._replace(noise_multiplier=noise)), count
        )

    known = dict[Any, float]()
    try:
        with _quiet():
            noise = dp_accounting.calibrate_dp_mechanism(
                lambda: _Remembering(mechanism._replace(noise_multiplier=low), count, known),
                event,
                epsilon * (1 - CLOSENESS),
                mechanism.delta,
                dp_accounting.LowerEndpointAndGuess(low, step * low),
                tol=TIGHTNESS * low,
            )
    except NoBracketIntervalFoundError:
        noise = math.inf
    most = NOISES[1]
    require(
        noise <= most and spent(noise) < math.inf,
        f"privacy.epsilon = {epsilon:g}; no noise multiplier up to {most:,.0f} is enough for it "
        f"with privacy.delta = {mechanism.delta:g}: give a larger delta or epsilon",
    )
    return mechanism._replace(noise_multiplier=float(noise))


@lru_cache(maxsize=4096)
def epsilon_of(mechanism: Mechanism, rounds: int) -> float:
    """An upper bound of epsilon after some rounds: infinity without noise, 0 after none.

    It is kept, since accounting takes tens of milliseconds.

    Example:
        >>> mechanism = Mechanism(3383, 120, "bernoulli", None, 1.2, 1, 1e-5, "rdp")
        >>> [round(epsilon_of(mechanism, rounds), 3) for rounds in (0, 100)]
        [0.0, 1.986]
    """
    require_accountable(mechanism, noisy=mechanism.noise_multiplier > 0)
    if not rounds:
        return 0.0
    return (
        _epsilon(dict([as_one(mechanism, rounds)]), mechanism.delta)
        if mechanism.noise_multiplier
        else math.inf
    )


@lru_cache(maxsize=4096)
def epsilon_beside(mechanism: Mechanism, rounds: int, beside: Releases | None) -> float:
    """As `epsilon_of`, of some rounds and of other releases on the same clients together.

    Example:
        >>> mechanism = Mechanism(3383, 120, "bernoulli", None, 1.2, 1, 1e-5, "rdp")
        >>> measures = Mechanism(1, 1, "bernoulli", None, 20.0, 1, 1e-5, "rdp"), 11
        >>> [round(epsilon_beside(mechanism, 100, each), 3) for each in (None, measures)]
        [1.986, 2.093]
    """
    if beside is None or not beside[1]:
        return epsilon_of(mechanism, rounds)
    require_accountable(mechanism, noisy=mechanism.noise_multiplier > 0)
    runs: Counter[Mechanism] = Counter()
    others = beside[0]._replace(accountant=mechanism.accountant), beside[1]
    for each, count in (as_one(mechanism, rounds), others):
        runs[each] += count
    runs = +runs  # without those of no rounds
    if any(each.noise_multiplier == 0 for each in runs):
        return math.inf
    return _epsilon(runs, mechanism.delta)


@lru_cache(maxsize=64)
def calibrated_beside(
    mechanism: Mechanism, epsilon: float, rounds: int, beside: Releases | None
) -> Mechanism:
    """As `calibrated_mechanism`, beside other releases on the same clients.

    >>> measures = Mechanism(1, 1, "bernoulli", None, 20.0, 1, 1e-5, "rdp"), 11
    >>> silent = Mechanism(3383, 120, "bernoulli", None, 0.0, 1, 1e-5, "rdp")
    >>> both = calibrated_beside(silent, 2.0, 100, measures)
    >>> 1.9998 < epsilon_beside(both, 100, measures) <= 2.0
    True
    """
    if beside is None or not beside[1]:
        return calibrated_mechanism(mechanism, epsilon, rounds)
    from scipy import optimize

    target = epsilon * (1 - CLOSENESS)

    def above(noise: float) -> float:
        spent = epsilon_beside(mechanism._replace(noise_multiplier=noise), rounds, beside)
        return min(spent, MOST_EPSILON + epsilon) - target

    if mechanism.accountant == "pld":
        # what the other accountant finds is close, fast, and a little more than is needed
        quick = mechanism._replace(accountant="rdp", capacity=None)
        high = calibrated_beside(quick, epsilon, rounds, beside).noise_multiplier
        low = 0.85 * high
        while above(low) <= 0:
            low /= 1.25
    else:
        low = high = calibrated_mechanism(mechanism, epsilon, rounds).noise_multiplier
    while above(high) > 0:
        require(
            high < NOISES[1],
            f"privacy.epsilon = {epsilon:g}; the measures leave nothing of it for training: give "
            "a smaller share, or fewer evaluations",
        )
        low, high = high, min(2 * high, NOISES[1])
    step = TIGHTNESS * low
    found = high if low == high else float(optimize.brentq(above, low, high, xtol=step / 4))
    noise = next(each for k in range(10**6) if above(each := found + k * step / 2) <= 0)
    return mechanism._replace(noise_multiplier=noise)


ALIKE = 1.1
"""Factor between the numbers of rows of clients whose epsilons are bounded together."""


def worst_steps(
    noise_multiplier: float, clients: Iterable[Releases], beside: Releases | None = None
) -> Releases:
    """The steps of several clients with the largest epsilon, which have this noise.

    A client with fewer rows and more steps than another has a larger epsilon. So a bound of many is
    that of the fewest rows with the most steps among them. Rényi divergences give it quickly.

    All have the same batch, or fewer rows, and what is released beside the steps.
    """

    def quick(steps: Releases) -> float:
        return epsilon_beside(steps[0]._replace(accountant="rdp"), steps[1], beside)

    given = {(what._replace(noise_multiplier=noise_multiplier), n) for what, n in clients}
    alike: dict[int, list[Releases]] = {}
    most = -1
    for each in sorted(given, key=lambda steps: (steps[0].clients, -steps[1])):
        if each[1] > most:  # else another has fewer rows, and as many steps
            most = each[1]
            alike.setdefault(int(math.log(each[0].clients, ALIKE)), []).append(each)
    bounds = {key: quick((group[0][0], group[-1][1])) for key, group in alike.items()}
    worst, largest = each, -1.0
    for key in sorted(bounds, key=lambda key: -bounds[key]):
        if bounds[key] <= largest:
            break
        for each in alike[key]:
            if quick(each) > largest and (spent := epsilon_beside(*each, beside)) > largest:
                worst, largest = each, spent
    return worst


@lru_cache(maxsize=4)
def calibrated_steps(
    epsilon: float, clients: tuple[Releases, ...], beside: Releases | None = None
) -> float:
    """The smallest noise multiplier for which no client's steps cost more than an epsilon.

    >>> few = Mechanism(600, 64, "bernoulli", None, 0.0, 1, 1e-5, "pld")
    >>> round(calibrated_steps(2.0, ((few, 200), (few._replace(clients=6000), 940))), 2)
    3.19
    """

    def share(steps: Releases) -> tuple[float, int]:
        return steps[0].clients_per_round / steps[0].clients, steps[1]

    if not clients:
        return 0.0
    noise, worst = 0.0, max(clients, key=share)
    while True:
        silent = worst[0]._replace(noise_multiplier=0.0)
        calibrated = calibrated_beside(silent, epsilon, worst[1], beside)
        noise = max(noise, calibrated.noise_multiplier)
        worst = worst_steps(noise, clients, beside)
        if epsilon_beside(*worst, beside) <= epsilon:
            return noise


class Composed(NamedTuple):
    """Any number of releases on the same clients, of which only a bound is kept.

    Attributes:
        replaces: Whether neighbours differ in a replaced client.
        orders: Orders of the Rényi divergences.
        divergences: The divergence at each of these, of all releases without capacities.
        exceeds: Probability that one of the cohorts exceeds its capacity.
    """

    replaces: bool
    orders: tuple[float, ...]
    divergences: tuple[float, ...]
    exceeds: float


def composed_with(before: Composed | None, spent: Iterable[Releases]) -> Composed:
    """Some releases together with those that are composed already."""
    earlier = [before] if before else []
    return reduce(_both, [*earlier, *(_composition(*each) for each in spent)])


def _composition(mechanism: Mechanism, rounds: int) -> Composed:
    """The releases of some rounds."""
    from scipy import stats

    mechanism, rounds = as_one(mechanism, rounds)
    count = rounds * mechanism.releases
    noise = max(mechanism.noise_multiplier, LITTLE)
    orders, each = _rdp(
        mechanism._replace(capacity=None, accountant="rdp", delta=0.5, noise_multiplier=noise)
    )
    some = [count * float(one) if noise == mechanism.noise_multiplier else math.inf for one in each]
    divergences = (min(one, LARGEST_DIVERGENCE) for one in some)  # numbers that JSON has
    exceeds = 0.0
    if mechanism.cut:
        rate = mechanism.clients_per_round / mechanism.clients
        # of the neighbour with one client more
        beyond = float(stats.binom.sf(mechanism.capacity, mechanism.clients + 1, rate))
        exceeds = min(1.0, count * beyond)
    return Composed(mechanism.replaces, tuple(map(float, orders)), tuple(divergences), exceeds)


def _both(a: Composed, b: Composed) -> Composed:
    """Two compositions together, at the orders that both have."""
    require(a.replaces == b.replaces, DIFFERENT_NEIGHBOURS)
    known = dict(zip(a.orders, a.divergences, strict=True))
    both = {
        order: min(known[order] + more, LARGEST_DIVERGENCE)
        for order, more in zip(b.orders, b.divergences, strict=True)
        if order in known
    }
    exceeds = min(1.0, a.exceeds + b.exceeds)
    return Composed(a.replaces, tuple(both), tuple(both.values()), exceeds)


def _bound_of(composed: Composed, delta: float) -> float:
    r"""An upper bound of epsilon.

    Cohorts that are cut differ from those that are not with the probability :math:`p` that one
    exceeds its capacity. So :math:`\delta \leq \delta' + (1 + e^\epsilon) p`, where
    :math:`\delta'` is that of the divergences at :math:`\epsilon`.
    """
    from dp_accounting import rdp

    if min(composed.divergences, default=math.inf) >= LARGEST_DIVERGENCE:
        return math.inf
    epsilon = 0.0
    while epsilon < MOST_EPSILON:
        left = delta - (1 + math.exp(epsilon)) * composed.exceeds
        if left <= 0:
            break
        with _quiet():
            found = float(rdp.compute_epsilon(composed.orders, composed.divergences, left)[0])
        if found <= epsilon or not composed.exceeds:
            return found
        epsilon = found * (1 + CLOSENESS)  # at which less is left, so more is needed
    return math.inf


@lru_cache(maxsize=64)
def epsilon_together(
    spent: tuple[Releases, ...], delta: float, before: Composed | None = None
) -> float:
    """An upper bound of epsilon of several runs on the same clients together, for one delta.

    Rényi divergences are composed if all runs are accounted so, or with earlier ones, else privacy
    loss distributions. The bound is infinite if a run has no noise, or so little that no bound can
    be computed.

    Example:
        >>> mechanism = Mechanism(3383, 120, "bernoulli", None, 1.2, 1, 1e-5, "rdp")
        >>> other = mechanism._replace(noise_multiplier=1.5)
        >>> round(epsilon_together(((mechanism, 100), (other, 50)), 1e-5), 2)
        2.14
    """
    runs: Counter[Mechanism] = Counter()
    for mechanism, rounds in (as_one(*each) for each in spent):
        runs[mechanism._replace(delta=delta)] += rounds
    runs = +runs  # without those of no rounds
    require(len({mechanism.replaces for mechanism in runs}) <= 1, DIFFERENT_NEIGHBOURS)
    if before is not None:
        return _bound_of(composed_with(before, runs.items()), delta)
    if any(mechanism.noise_multiplier == 0 for mechanism in runs):
        return math.inf
    try:
        if len(runs) <= 1:
            return sum(epsilon_of(mechanism, rounds) for mechanism, rounds in runs.items())
        return _epsilon(runs, delta)
    except (ArithmeticError, MemoryError):
        return math.inf


def quick_epsilon(spent: Sequence[Releases], delta: float, before: Composed | None = None) -> float:
    """An upper bound of `epsilon_together` that is found in a millisecond for most clients.

    Rényi divergences are added, as if each client had at most as many rows, up to a power of
    `ALIKE`: so that many clients have the same few divergences.

    The mechanisms have no capacity.

    >>> steps = Mechanism(600, 64, "bernoulli", None, 4.0, 1, 1e-5, "pld")
    >>> [round(f(((steps, 200),), 1e-5), 2) for f in (epsilon_together, quick_epsilon)]
    [1.53, 1.69]
    """
    return epsilon_together(tuple((alike(each), n) for each, n in spent), delta, before)


def alike(mechanism: Mechanism) -> Mechanism:
    """A mechanism of local steps whose divergences are at least as large, one of a few."""
    fewer = int(ALIKE ** int(math.log(mechanism.clients, ALIKE)))
    clients = max(fewer, mechanism.clients_per_round)
    return mechanism._replace(clients=clients, accountant="rdp")


def _epsilon(runs: Mapping[Mechanism, int], delta: float) -> float:
    """An upper bound of epsilon of some rounds of each mechanism, all with noise."""
    counts = {mechanism: rounds * mechanism.releases for mechanism, rounds in runs.items()}
    if any(mechanism.accountant == "pld" for mechanism in counts):
        return _pld_epsilon(counts, delta)
    from dp_accounting import rdp

    each = [(*_rdp(mechanism), count) for mechanism, count in counts.items()]
    orders = each[0][0]  # the same for all
    with _quiet():
        divergences = sum(count * divergence for _, divergence, count in each)
        return float(rdp.compute_epsilon(orders, divergences, delta)[0])


def _event(mechanism: Mechanism) -> Any:
    """One release, as dp-accounting describes it."""
    import dp_accounting

    noise = mechanism.noise_multiplier
    rate = mechanism.clients_per_round / mechanism.clients
    if mechanism.everybody:
        return dp_accounting.GaussianDpEvent(noise)
    if mechanism.replaces:
        # the library's noise is in units of the sensitivity, which is twice the norm here
        return dp_accounting.SampledWithoutReplacementDpEvent(
            mechanism.clients,
            mechanism.clients_per_round,
            dp_accounting.GaussianDpEvent(noise / 2),
        )
    if not mechanism.cut:
        return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    return dp_accounting.TruncatedSubsampledGaussianDpEvent(
        mechanism.clients, rate, mechanism.capacity, noise
    )


def _accountant(mechanism: Mechanism, count: int) -> Any:
    """An accountant that has seen nothing yet."""
    import dp_accounting
    from dp_accounting import pld, rdp

    relations = dp_accounting.NeighboringRelation
    relation = relations.REPLACE_ONE if mechanism.replaces else relations.ADD_OR_REMOVE_ONE
    if mechanism.accountant == "rdp":
        return rdp.RdpAccountant(neighboring_relation=relation)
    return pld.PLDAccountant(relation, _interval(mechanism, count))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's warnings of orders that it leaves out, which only raises epsilon."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@lru_cache(maxsize=256)
def _rdp(mechanism: Mechanism) -> tuple[Any, Any]:
    """The orders, and the Rényi divergence of one release at each."""
    accountant = _accountant(mechanism, 1)
    with _quiet():
        accountant.compose(_event(mechanism))
    return accountant.orders, accountant.rdp


def _interval(mechanism: Mechanism, count: int) -> float:
    """The interval of the grid of privacy losses for a number of releases."""
    noise = mechanism.noise_multiplier
    if mechanism.everybody:  # the releases are one, with less noise
        noise, count = noise / math.sqrt(count), 1
    losses = 0.5 / noise**2 + 10 / noise  # of a release, but for a mass of e^-50
    return max(losses / FINEST, next(interval for most, interval in GRIDS if count <= most))


@lru_cache(maxsize=8)
def _release(mechanism: Mechanism, interval: float) -> Any:
    """The privacy loss distribution of one release."""
    from dp_accounting.pld import privacy_loss_distribution as distributions

    rate = mechanism.clients_per_round / mechanism.clients
    if mechanism.cut:
        return distributions.from_truncated_subsampled_gaussian_mechanism(
            mechanism.clients,
            rate,
            mechanism.capacity,
            mechanism.noise_multiplier,
            value_discretization_interval=interval,
        )
    return distributions.from_gaussian_mechanism(
        mechanism.noise_multiplier, sampling_prob=rate, value_discretization_interval=interval
    )


@lru_cache(maxsize=2 * GROUPED)
def _composed(releases: tuple[Releases, ...], interval: float, mass: float) -> Any:
    """The privacy loss distribution of some releases, without its empty ends.

    Compositions leave out a probability `mass`, which they count as lost.
    """
    from dp_accounting.pld import privacy_loss_distribution as distributions

    *first, (mechanism, count) = releases
    if first:
        last = _composed(((mechanism, count),), interval, mass)
        return _composed(tuple(first), interval, mass).compose(last, mass)
    if mechanism.everybody:  # the releases are one, with less noise
        composed = distributions.from_gaussian_mechanism(
            mechanism.noise_multiplier / math.sqrt(count), value_discretization_interval=interval
        )
    else:
        composed = _release(mechanism, interval).self_compose(count)
    return composed.compose(distributions.identity(interval))


def _pld_epsilon(counts: Mapping[Mechanism, int], delta: float) -> float:
    """Epsilon of some releases of each mechanism; mostly only the last number is a new one."""
    total, releases = sum(counts.values()), list[Releases]()
    interval, mass = max(_interval(each, total) for each in counts), CLOSENESS * delta
    for mechanism, count in counts.items():
        single = 0 if mechanism.everybody else count % GROUPED
        releases += [(mechanism, some) for some in (count - single, single) if some]
    *first, last = releases
    whole = _composed((last,), interval, mass)
    if first:
        whole = _composed(tuple(first), interval, mass).compose(whole, mass)
    return float(whole.get_epsilon_for_delta(delta))


def statement(
    mechanism: Mechanism,
    rounds: int,
    taken: int = 0,
    beside: Releases | None = None,
    *,
    trusted: bool = True,
) -> list[str]:
    """The whole guarantee in plain sentences, with what it assumes and leaves out.

    Clients hide, or examples in the local steps that the worst client has taken. Clients that do
    not trust the server have noise of their own. Noised measures are released `beside` the rounds.

    Example:
        >>> mechanism = Mechanism(3383, 120, "bernoulli", None, 1.2, 1, 1e-5, "rdp")
        >>> print(statement(mechanism, 100)[0])
        The models of all 100 rounds together are (epsilon, delta)-differentially private with
        epsilon = 1.987 and delta = 1e-05.
    """
    epsilon = epsilon_beside(mechanism, taken or rounds, beside)
    *own, trust = (
        _of_steps(mechanism, taken) if taken else _of_rounds(mechanism, rounds, trusted=trusted)
    )
    what = "models" if beside is None else "models and measures"
    of_all = f"The {what} of all"
    if not (taken or trusted):
        of_all = "The messages of a client in all"
    return [
        f"The {what} have no privacy guarantee: epsilon is infinite."
        if epsilon == math.inf
        else f"{of_all} {rounds:,} rounds together are (epsilon, delta)-differentially private "
        f"with epsilon = {rounded_up(epsilon)} and delta = {mechanism.delta:g}.",
        *own,
        *_of_measures(beside),
        f"Accountant: {ACCOUNTANTS[mechanism.accountant]}, by dp-accounting "
        f"{importlib.metadata.version('dp-accounting')}; epsilon is an upper bound.",
        f"Trust: {trust} In a simulation all data are in one place.",
        f"Outside the guarantee: {MEASURED_EXACTLY if beside is None else COUNTED}, and the choice "
        "among several methods, seeds or sweep points, each of which is a run of its own.",
    ]


MEASURED_EXACTLY = "losses, accuracies and other measurements on clients' data, which have no noise"
COUNTED = "counts of clients and of their steps, which have no noise"


def _of_measures(beside: Releases | None) -> list[str]:
    """Lines about the releases of evaluations; empty without noise."""
    if beside is None:
        return []
    one, count = beside
    return [
        f"Measures: {plural(count, 'evaluation')}, each of which releases losses and accuracies "
        "with noise "
        f"once, of a standard deviation of {one.noise_multiplier:.6g} in units of the most that a "
        "client, or a row, moves them. A choice by them, such as of the best model or the last "
        "round, costs nothing more."
    ]


def _of_rounds(mechanism: Mechanism, rounds: int, *, trusted: bool) -> list[str]:
    """Lines about what hides clients, and whom they trust."""
    if not trusted:
        return _of_messages(mechanism, rounds)
    other = (
        "one client is replaced by another, which moves a sum by up to twice the clipping norm"
        if mechanism.replaces
        else "one client's messages are replaced by ones that add nothing, which moves a sum by up "
        "to the clipping norm. Who takes part is public"
        if mechanism.strategy
        else "one has one client more, which moves a sum by up to the clipping norm"
    )
    strategy, before = mechanism.strategy, ""
    if strategy is not None and strategy.correlates:
        before = " before it is correlated"
    return [
        "Unit: a client with all of its rows.",
        f"Neighbouring federations: {other}. The number of clients is public.",
        _sampling(mechanism),
        f"Composition: {plural(rounds, 'round')} with "
        f"{plural(mechanism.releases, 'noised sum')} each, in units of the clipping norm a "
        "standard "
        f"deviation of {mechanism.noise_multiplier:.6g}{before}; later rounds may depend on "
        "earlier ones.",
        *_mechanism(mechanism, rounds),
        "the server, which sees each client's clipped message and adds the noise.",
    ]


def _of_messages(mechanism: Mechanism, rounds: int) -> list[str]:
    """Lines about clients that add noise to their own messages, and whom they trust."""
    strategy = mechanism.strategy
    times = rounds if strategy is None else strategy.participations(rounds)
    return [
        "Unit: a client with all of its rows.",
        "Neighbouring federations: one client's messages are replaced by ones of zeros, which "
        "moves what it sends by up to the clipping norm before its noise. The number of clients, "
        "and who takes part, are public.",
        "Sampling: no amplification is counted, and it need not stay secret who takes part.",
        f"Composition: a client sends at most {plural(times, 'message')}, each with "
        "noise of its own, in units of the clipping norm a standard deviation of "
        f"{mechanism.noise_multiplier:.6g}; later rounds may depend on earlier ones.",
        "each client, which clips its own messages and adds the noise; nobody beyond it.",
    ]


def _of_steps(mechanism: Mechanism, taken: int) -> list[str]:
    """Lines about what hides examples, and whom clients trust."""
    rows, batch = f"{mechanism.clients:,}", f"{mechanism.clients_per_round:,}"
    return [
        "Unit: an example, one row of one client. Rows of one person count as several.",
        "Neighbouring federations: a row of one client is replaced by one that adds nothing to any "
        "sum, which moves a sum by up to the clipping norm. The numbers of rows and who takes part "
        "are public.",
        f"Worst client: {plural(taken, 'local step')} on {plural(mechanism.clients, 'row')}. "
        "Clients have different rows, so the "
        "guarantee is that of the worst of them (parallel composition).",
        "Sampling: none; all rows are in each mini-batch."
        if mechanism.everybody
        else f"Sampling: Poisson, each row with probability {batch} / {rows} in each step; the "
        "size of a mini-batch has no limit.",
        f"Composition: {plural(taken, 'step')} with a noised sum each, in units of the clipping "
        "norm a "
        f"standard deviation of {mechanism.noise_multiplier:.6g}; later steps may depend on "
        "earlier ones.",
        "each client, which clips and adds the noise; nobody beyond it.",
    ]


def _mechanism(mechanism: Mechanism, rounds: int) -> list[str]:
    """How noise is correlated, and what of it one client can move; empty without cyclic cohorts."""
    strategy = mechanism.strategy
    if strategy is None:
        return []
    times = strategy.participations(rounds)
    return [
        f"Mechanism: {CORRELATIONS[strategy.kind]}. A client takes part in at most "
        f"{plural(times, 'round')}, at least {strategy.separation:,} apart, so all rounds "
        "together are one Gaussian mechanism of a standard deviation of "
        f"{as_one(mechanism, rounds)[0].noise_multiplier:.6g} in units of the most that a client "
        "moves it."
    ]


def _sampling(mechanism: Mechanism) -> str:
    """How cohorts are drawn, and what that assumes."""
    clients, count = f"{mechanism.clients:,}", f"{mechanism.clients_per_round:,}"
    if mechanism.strategy is not None:
        return (
            f"Sampling: cyclic, {count} of one of {mechanism.strategy.separation:,} groups of "
            f"{clients} clients in each round; no amplification is counted, and it need not stay "
            "secret who takes part."
        )
    if mechanism.everybody:
        who = "the client takes" if mechanism.clients == 1 else f"all {clients} clients take"
        return f"Sampling: none; {who} part in each round."
    secret = "It must stay secret who takes part."
    if mechanism.replaces:
        return (
            f"Sampling: {count} of {clients} clients, uniformly without replacement; no "
            f"amplification beyond what the library proves for replaced clients. {secret}"
        )
    limit = (
        f"a cohort of more than {mechanism.capacity:,} is cut to a uniform sample of them, which "
        "is accounted for"
        if mechanism.cut
        else "the size of a cohort has no limit"
    )
    return (
        f"Sampling: Poisson, each of {clients} clients with probability {count} / {clients}; "
        f"{limit}. {secret}"
    )


def rounded_up(epsilon: float) -> str:
    """Epsilon with three digits after the point, never below its value.

    >>> rounded_up(1.98611), rounded_up(2.0), rounded_up(math.inf)
    ('1.987', '2.000', 'inf')
    """
    return f"{math.ceil(epsilon * 1000 - CLOSENESS) / 1000:.3f}" if epsilon < math.inf else "inf"
