r"""The accounting of a run's releases, by the library dp-accounting.

A release is one noised sum of clients' messages. Each has the same noise and its own cohort:

* Poisson sampling, "bernoulli": a client takes part with probability :math:`q = K / N`. A cohort
  larger than a capacity is cut to a uniform sample. Two federations are neighbours if one has one
  client more.
* "uniform": :math:`K` of the :math:`N` clients. Two federations are neighbours if one client is
  replaced by another, which moves a sum by up to twice the clipping norm.
* :math:`K = N`: all clients take part, which is the Gaussian mechanism without sampling.

A client's local steps on its rows are the same thing with rows in place of clients: the noised sum
of a mini-batch is a release, and the mini-batches are Poisson samples.

dp-accounting is imported inside functions, since the import takes a second.
"""

import copy
import importlib.metadata
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from typing import Any, NamedTuple, get_args

from fedprox.errors import require, require_number, require_one_of, require_whole
from fedprox.parts.privacy.setting import NOISES, Accountant, Hidden, Privacy, require_noise

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

BLOCK = 16
"""Releases of a block; the compositions of whole blocks are kept for the next numbers of rounds."""

SPARE = 1000
"""The cohorts of a run exceed the default capacity with a probability of at most delta / SPARE."""

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


class Mechanism(NamedTuple):
    r"""What the rounds of a run release.

    Attributes:
        clients: Clients of the federation, :math:`N`.
        clients_per_round: Clients of a round, :math:`K`; the mean under Poisson sampling.
        sampling: "bernoulli" for Poisson sampling with probability :math:`K / N`, or "uniform".
        capacity: Largest cohort under Poisson sampling; None for no limit.
        noise_multiplier: Standard deviation of the noise of a release over the clipping norm.
        releases: Releases of a round, each with a cohort of its own.
        delta: :math:`\delta` of the guarantee.
        accountant: How the releases are composed.
    """

    clients: int
    clients_per_round: int
    sampling: str
    capacity: int | None
    noise_multiplier: float
    releases: int
    delta: float
    accountant: Accountant

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
        Hidden(mechanism.clients, f"{mechanism.clients:,} clients").require_delta(
            "delta", mechanism.delta
        )
    require_one_of("accountant", mechanism.accountant, get_args(Accountant))
    require(
        mechanism.capacity is None
        or (mechanism.sampling, mechanism.accountant) == ("bernoulli", "pld"),
        f"capacity = {mechanism.capacity}; only the accountant pld has one, with Poisson sampling",
    )
    _require_accountable(mechanism, noisy=True)
    return mechanism


@lru_cache(maxsize=64)
def mechanism_of(
    privacy: Privacy,
    clients: int,
    clients_per_round: int,
    sampling: str,
    rounds: int,
    releases: int = 1,
) -> Mechanism:
    """The mechanism of a run, with its capacity chosen and its noise calibrated.

    Under Poisson sampling, `clients_per_round` is the mean. The noise is calibrated to `rounds`. A
    method with an exchange has 2 releases in a round.

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
    mechanism = Mechanism(
        clients,
        clients_per_round,
        sampling,
        None,
        privacy.noise_multiplier or 0.0,
        releases,
        privacy.delta,
        privacy.accountant or "pld",
    )
    if privacy.accountant is None and mechanism.replaces:
        mechanism = mechanism._replace(accountant="rdp")
    noisy = privacy.noise_multiplier != 0
    _require_accountable(mechanism, noisy=noisy)
    mechanism = mechanism._replace(capacity=_capacity(privacy, mechanism, rounds))
    if privacy.epsilon is None:
        return mechanism
    return calibrated(mechanism, privacy.epsilon, rounds)


def _require_accountable(mechanism: Mechanism, *, noisy: bool) -> None:
    """Raise `InputError` if no guarantee can be computed for the sampling."""
    require(
        mechanism.sampling in ("bernoulli", "uniform"),
        f'cohort.sampling = "{mechanism.sampling}"; with [privacy] it must be "bernoulli" or '
        '"uniform"',
    )
    require_noise("privacy.noise_multiplier", mechanism.noise_multiplier)
    require(
        not (noisy and mechanism.replaces and mechanism.accountant == "pld"),
        'cohort.sampling = "uniform"; privacy.accountant = "pld" cannot account for it: sampling '
        'must be "bernoulli", or the accountant "rdp"',
    )


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

    rare = privacy.delta / SPARE / (rounds * mechanism.releases)
    seldom = int(stats.binom.isf(rare, clients, mean / clients))
    return min(clients, max(math.ceil(1.5 * mean), seldom))


def calibrated(mechanism: Mechanism, epsilon: float, rounds: int) -> Mechanism:
    """A mechanism with the smallest noise whose rounds cost at most so much epsilon."""
    noise = _calibrated_noise(mechanism._replace(noise_multiplier=0.0), epsilon, rounds)
    return mechanism._replace(noise_multiplier=noise)


@lru_cache(maxsize=64)
def _calibrated_noise(mechanism: Mechanism, epsilon: float, rounds: int) -> float:
    import dp_accounting
    from dp_accounting.mechanism_calibration import NoBracketIntervalFoundError

    low, step = 1.0, 2.0
    if mechanism.accountant == "pld":
        # what the other accountant finds is close, fast, and a little more than is needed
        quick = mechanism._replace(accountant="rdp", capacity=None)
        low, step = 0.85 * _calibrated_noise(quick, epsilon, rounds), 1.25

    def spent(noise: float) -> float:
        return _spent(mechanism._replace(noise_multiplier=noise), rounds)

    while spent(low) <= epsilon:
        low /= step
    count = rounds * mechanism.releases

    def event(noise: float) -> Any:
        return dp_accounting.SelfComposedDpEvent(
            _event(mechanism._replace(noise_multiplier=noise)), count
        )

    try:
        with _quiet():
            noise = dp_accounting.calibrate_dp_mechanism(
                lambda: _accountant(mechanism._replace(noise_multiplier=low), count),
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
    return float(noise)


def epsilons(mechanism: Mechanism, rounds: Sequence[int]) -> list[float]:
    """Upper bounds of epsilon after some numbers of rounds: infinity without noise, 0 after none.

    Each value depends on its number of rounds alone, not on the others.

    Example:
        >>> mechanism = Mechanism(3383, 120, "bernoulli", None, 1.2, 1, 1e-5, "rdp")
        >>> [round(epsilon, 3) for epsilon in epsilons(mechanism, [0, 100])]
        [0.0, 1.986]
    """
    _require_accountable(mechanism, noisy=mechanism.noise_multiplier > 0)
    return [_spent(mechanism, each) for each in rounds]


@lru_cache(maxsize=4096)
def epsilon_of(mechanism: Mechanism, rounds: int) -> float:
    """Epsilon after a number of rounds; kept, since accounting takes tens of milliseconds."""
    (epsilon,) = epsilons(mechanism, [rounds])
    return epsilon


class Steps(NamedTuple):
    """Local steps on the rows of a client.

    Attributes:
        rows: The client's rows.
        batch: The mean size of a mini-batch.
        taken: Number of steps.
    """

    rows: int
    batch: int
    taken: int

    def mechanism(self, privacy: Privacy, noise_multiplier: float) -> Mechanism:
        """What each step releases."""
        accountant = privacy.accountant or "pld"
        sampled = (self.rows, self.batch, "bernoulli", None)
        return Mechanism(*sampled, noise_multiplier, 1, privacy.delta, accountant)


ALIKE = 1.1
"""Factor between the numbers of rows of clients whose epsilons are bounded together."""


def worst_steps(privacy: Privacy, noise_multiplier: float, clients: Iterable[Steps]) -> Steps:
    """The steps of several clients with the largest epsilon.

    A client with fewer rows and more steps than another has a larger epsilon, so a bound of many is
    that of the fewest rows with the most steps among them. Rényi divergences give it quickly.

    All have the same batch, or fewer rows.
    """

    def spent(steps: Steps, accountant: Accountant | None = None) -> float:
        mechanism = steps.mechanism(privacy, noise_multiplier)
        if accountant is not None:
            mechanism = mechanism._replace(accountant=accountant)
        return epsilon_of(mechanism, steps.taken)

    alike: dict[int, list[Steps]] = {}
    most = -1
    for each in sorted(set(clients), key=lambda steps: (steps.rows, -steps.taken)):
        if each.taken > most:  # else another has fewer rows, and as many steps
            most = each.taken
            alike.setdefault(int(math.log(each.rows, ALIKE)), []).append(each)
    bounds = {
        key: spent(group[0]._replace(taken=group[-1].taken), "rdp") for key, group in alike.items()
    }
    worst, largest = None, -1.0
    for key in sorted(bounds, key=lambda key: -bounds[key]):
        if bounds[key] <= largest:
            break
        for each in alike[key]:
            if spent(each, "rdp") > largest and spent(each) > largest:
                worst, largest = each, spent(each)
    assert worst is not None
    return worst


@lru_cache(maxsize=64)
def calibrated_steps(privacy: Privacy, clients: tuple[Steps, ...]) -> float:
    """The smallest noise multiplier for which no client's steps cost more than the epsilon.

    >>> privacy = Privacy(1.0, epsilon=2.0, unit="example")
    >>> round(calibrated_steps(privacy, (Steps(600, 64, 200), Steps(6000, 64, 940))), 2)
    3.19
    """
    assert privacy.epsilon is not None
    noise, worst = 0.0, max(clients, key=lambda steps: (steps.batch / steps.rows, steps.taken))
    while True:
        mechanism = calibrated(worst.mechanism(privacy, 0.0), privacy.epsilon, worst.taken)
        noise = max(noise, mechanism.noise_multiplier)
        worst = worst_steps(privacy, noise, clients)
        if epsilon_of(worst.mechanism(privacy, noise), worst.taken) <= privacy.epsilon:
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


def composed_with(before: Composed | None, spent: Iterable[tuple[Mechanism, int]]) -> Composed:
    """Some releases together with those that are composed already."""
    earlier = [before] if before else []
    return reduce(_both, [*earlier, *(_composition(*each) for each in spent)])


def _composition(mechanism: Mechanism, rounds: int) -> Composed:
    """The releases of some rounds."""
    from scipy import stats

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
    spent: tuple[tuple[Mechanism, int], ...], delta: float, before: Composed | None = None
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
    for mechanism, rounds in spent:
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
        return _composed_epsilon(runs, delta)
    except (ArithmeticError, MemoryError):
        return math.inf


def quick_epsilon(
    spent: Sequence[tuple[Mechanism, int]], delta: float, before: Composed | None = None
) -> float:
    """An upper bound of `epsilon_together` that is found in a millisecond for most clients.

    Rényi divergences are added, as if each client had at most as many rows, up to a power of
    `ALIKE`: so that many clients have the same few divergences.

    The mechanisms have no capacity.

    >>> steps = Steps(600, 64, 0).mechanism(Privacy(1.0, noise_multiplier=4.0), 4.0)
    >>> [round(f(((steps, 200),), 1e-5), 2) for f in (epsilon_together, quick_epsilon)]
    [1.53, 1.69]
    """
    return epsilon_together(tuple((alike(each), n) for each, n in spent), delta, before)


def alike(mechanism: Mechanism) -> Mechanism:
    """A mechanism of local steps whose divergences are at least as large, one of a few."""
    fewer = int(ALIKE ** int(math.log(mechanism.clients, ALIKE)))
    clients = max(fewer, mechanism.clients_per_round)
    return mechanism._replace(clients=clients, accountant="rdp")


def _composed_epsilon(runs: Mapping[Mechanism, int], delta: float) -> float:
    counts = {mechanism: rounds * mechanism.releases for mechanism, rounds in runs.items()}
    if all(mechanism.accountant == "rdp" for mechanism in counts):
        return _rdp_epsilon(counts, delta)
    total = sum(counts.values())
    interval = max(_interval(mechanism, total) for mechanism in counts)
    *earlier, (mechanism, count) = counts.items()
    # mostly only the number of the last one has changed since the last time
    accountant = copy.deepcopy(_composed_first(tuple(earlier), interval))
    with _quiet():
        accountant.compose(_event(mechanism), count)
        return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=BLOCK)
def _composed_first(counts: tuple[tuple[Mechanism, int], ...], interval: float) -> Any:
    """An accountant that has seen some releases."""
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    with _quiet():
        for mechanism, count in counts:
            accountant.compose(_event(mechanism), count)
    return accountant


def _spent(mechanism: Mechanism, rounds: int) -> float:
    if not rounds:
        return 0.0
    if not mechanism.noise_multiplier:
        return math.inf
    count = rounds * mechanism.releases
    if mechanism.accountant == "rdp":
        return _rdp_epsilon({mechanism: count}, mechanism.delta)
    return _pld_epsilon(mechanism, count)


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


def _rdp_epsilon(counts: Mapping[Mechanism, int], delta: float) -> float:
    from dp_accounting import rdp

    each = [(*_rdp(mechanism), count) for mechanism, count in counts.items()]
    orders = each[0][0]  # the same for all
    with _quiet():
        divergences = sum(count * divergence for _, divergence, count in each)
        return float(rdp.compute_epsilon(orders, divergences, delta)[0])


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


@lru_cache(maxsize=2 * BLOCK)
def _composed(mechanism: Mechanism, interval: float, count: int) -> Any:
    """The privacy loss distribution of some releases, without its empty ends."""
    from dp_accounting.pld import privacy_loss_distribution as distributions

    composed = _release(mechanism, interval).self_compose(count)
    return composed.compose(distributions.identity(interval))


def _pld_epsilon(mechanism: Mechanism, count: int) -> float:
    if mechanism.everybody:
        accountant = _accountant(mechanism, count).compose(_event(mechanism), count)
        return float(accountant.get_epsilon(mechanism.delta))
    interval = _interval(mechanism, count)
    single = count % BLOCK
    blocks = count - single
    if not blocks or not single:
        whole = _composed(mechanism, interval, count)
    else:
        whole = _composed(mechanism, interval, blocks).compose(
            _composed(mechanism, interval, single), CLOSENESS * mechanism.delta
        )
    return float(whole.get_epsilon_for_delta(mechanism.delta))


def statement(mechanism: Mechanism, rounds: int) -> list[str]:
    """The whole guarantee in plain sentences, with what it assumes and leaves out.

    Example:
        >>> mechanism = Mechanism(3383, 120, "bernoulli", None, 1.2, 1, 1e-5, "rdp")
        >>> print(statement(mechanism, 100)[0])
        The models of all 100 rounds together are (epsilon, delta)-differentially private with
        epsilon = 1.987 and delta = 1e-05.
    """
    return [
        _guarantee(epsilon_of(mechanism, rounds), mechanism, rounds),
        "Unit: a client with all of its rows.",
        f"Neighbouring federations: {_neighbours(mechanism)}. The number of clients is public.",
        _sampling(mechanism),
        f"Composition: {rounds:,} rounds with {mechanism.releases} noised "
        f"sum{'s' * (mechanism.releases > 1)} each, in units of the clipping norm a standard "
        f"deviation of {mechanism.noise_multiplier:.6g}; later rounds may depend on earlier ones.",
        _accounted(mechanism),
        "Trust: the server, which sees each client's clipped message and adds the noise. In a "
        "simulation all data are in one place.",
        OUTSIDE,
    ]


def statement_of_steps(
    privacy: Privacy, noise_multiplier: float, worst: Steps, rounds: int
) -> list[str]:
    """The whole guarantee of examples in plain sentences, as `statement` for clients.

    Example:
        >>> worst = Steps(600, 64, 200)
        >>> privacy = Privacy(1.0, noise_multiplier=4.0, unit="example")
        >>> print(statement_of_steps(privacy, 4.0, worst, 20)[0])
        The models of all 20 rounds together are (epsilon, delta)-differentially private with
        epsilon = 1.527 and delta = 1e-05.
    """
    mechanism = worst.mechanism(privacy, noise_multiplier)
    count, rows, batch = f"{worst.taken:,}", f"{worst.rows:,}", f"{worst.batch:,}"
    return [
        _guarantee(epsilon_of(mechanism, worst.taken), mechanism, rounds),
        "Unit: an example, one row of one client. Rows of one person count as several.",
        "Neighbouring federations: a row of one client is replaced by one that adds nothing to any "
        "sum, which moves a sum by up to the clipping norm. The numbers of rows and who takes part "
        "are public.",
        f"Worst client: {count} local steps on {rows} rows. Clients have different rows, so the "
        "guarantee is that of the worst of them (parallel composition).",
        "Sampling: none; all rows are in each mini-batch."
        if mechanism.everybody
        else f"Sampling: Poisson, each row with probability {batch} / {rows} in each step; the "
        "size of a mini-batch has no limit.",
        f"Composition: {count} steps with a noised sum each, in units of the clipping norm a "
        f"standard deviation of {noise_multiplier:.6g}; later steps may depend on earlier ones.",
        _accounted(mechanism),
        "Trust: each client, which clips and adds the noise; nobody beyond it. In a simulation all "
        "data are in one place.",
        OUTSIDE,
    ]


OUTSIDE = (
    "Outside the guarantee: losses, accuracies and other measurements on clients' data, which have "
    "no noise, and the choice among several methods, seeds or sweep points, each of which is a run "
    "of its own."
)


def _guarantee(epsilon: float, mechanism: Mechanism, rounds: int) -> str:
    """The guarantee of the models of some rounds."""
    if epsilon == math.inf:
        return "The models have no privacy guarantee: epsilon is infinite."
    return (
        f"The models of all {rounds:,} rounds together are (epsilon, delta)-differentially "
        f"private with epsilon = {rounded_up(epsilon)} and delta = {mechanism.delta:g}."
    )


def _accounted(mechanism: Mechanism) -> str:
    """By what epsilon is computed."""
    return (
        f"Accountant: {ACCOUNTANTS[mechanism.accountant]}, by dp-accounting "
        f"{importlib.metadata.version('dp-accounting')}; epsilon is an upper bound."
    )


def _neighbours(mechanism: Mechanism) -> str:
    """In what two neighbouring federations differ."""
    if mechanism.replaces:
        return (
            "one client is replaced by another, which moves a sum by up to twice the clipping norm"
        )
    return "one has one client more, which moves a sum by up to the clipping norm"


def _sampling(mechanism: Mechanism) -> str:
    """How cohorts are drawn, and what that assumes."""
    clients, count = f"{mechanism.clients:,}", f"{mechanism.clients_per_round:,}"
    if mechanism.everybody:
        return f"Sampling: none; all {clients} clients take part in each round."
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
