"""Epsilon of known mechanisms, calibration, and what cannot be accounted."""

import json
import math
import re
from typing import Any

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedprox as fp
from fedprox.parts.privacy import accounting
from fedprox.parts.privacy.accounting import (
    Mechanism,
    calibrated_mechanism,
    calibrated_steps,
    check_mechanism,
    composed_with,
    epsilon_of,
    epsilon_together,
    quick_epsilon,
    rounded_up,
    statement,
)
from fedprox.parts.privacy.correlated import Strategy
from fedprox.parts.privacy.setting import mechanism_of

EMNIST = Mechanism(3383, 120, "bernoulli", None, 1.2, 1, 1e-5, "rdp")
"""The run of TensorFlow Federated's tutorial on differential privacy, of 100 rounds."""

LARGE = Mechanism(763_430, 5000, "bernoulli", None, 1.0, 1, 1e-9, "rdp")
SMALL = Mechanism(100, 10, "bernoulli", None, 4.0, 1, 1e-5, "pld")
GAUSSIAN = Mechanism(1, 1, "bernoulli", None, 1.0, 1, 1e-5, "pld")


def epsilon(mechanism: Mechanism, rounds: int, **changes: Any) -> float:
    return epsilon_of(mechanism._replace(**changes), rounds)


def test_known_epsilons() -> None:
    assert epsilon(EMNIST, 100) == pytest.approx(1.986, abs=5e-4)
    assert epsilon(EMNIST, 100, accountant="pld") == pytest.approx(1.707, abs=5e-4)
    assert epsilon(LARGE, 5000) == pytest.approx(4.183, abs=5e-4)
    assert epsilon(LARGE, 5000, accountant="pld") == pytest.approx(3.899, abs=5e-4)


def test_one_gaussian() -> None:
    # the exact curve of Balle and Wang 2018, Theorem 8
    exact = epsilon(GAUSSIAN, 1)
    assert exact == pytest.approx(4.37718, abs=1e-5)
    delta = stats.norm.cdf(0.5 - exact) - math.exp(exact) * stats.norm.cdf(-0.5 - exact)
    assert delta == pytest.approx(1e-5, rel=1e-3)
    assert delta <= 1e-5  # an upper bound
    assert epsilon(GAUSSIAN, 1, accountant="rdp") > exact


def test_rounds_of_everybody_are_one_gaussian_with_less_noise() -> None:
    everybody = SMALL._replace(clients_per_round=100, noise_multiplier=8.0)
    for sampling in ("bernoulli", "uniform"):
        same = epsilon(GAUSSIAN, 1, noise_multiplier=8 / math.sqrt(12))
        assert epsilon(everybody, 12, sampling=sampling) == pytest.approx(same, abs=1e-6)


@given(
    runs=st.lists(
        st.tuples(st.integers(1, 3000), st.integers(1, 200), st.floats(0.7, 5.0)),
        min_size=1,
        max_size=2,
    ),
    count=st.integers(1, 400),
)
@settings(max_examples=8)
def test_the_quick_epsilon_is_a_bound(runs: list[tuple[int, int, float]], count: int) -> None:
    spent = tuple(
        (Mechanism(rows, min(batch, rows), "bernoulli", None, z, 1, 1e-3, "pld"), count)
        for rows, batch, z in runs
    )
    assert epsilon_together(spent, 1e-5) <= quick_epsilon(spent, 1e-5) * (1 + 1e-9)


def test_the_quick_epsilon_is_of_few_numbers_of_rows() -> None:
    found = {quick_epsilon(((SMALL._replace(clients=rows), 50),), 1e-5) for rows in range(400, 440)}
    assert len(found) <= 2
    assert quick_epsilon((), 1e-5) == 0
    exact = epsilon(SMALL, 50, clients=400, accountant="rdp")
    assert exact <= max(found) < 1.2 * exact


def test_rdp_of_several_runs_is_that_of_the_library() -> None:
    accountant = rdp.RdpAccountant()
    runs = ((EMNIST, 70), (EMNIST._replace(noise_multiplier=2.0, clients=900), 30))
    for mechanism, count in runs:
        rate = mechanism.clients_per_round / mechanism.clients
        noise = dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, noise), count)
    assert epsilon_together(runs, 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-12)


@pytest.mark.slow
def test_the_epsilon_of_several_runs() -> None:
    everybody = SMALL._replace(clients_per_round=100, noise_multiplier=8.0)
    other = everybody._replace(noise_multiplier=12.0, delta=0.1)
    same = epsilon(GAUSSIAN, 1, noise_multiplier=(12 / 8**2 + 9 / 12**2) ** -0.5)
    runs = ((everybody, 5), (other, 9), (everybody, 7))
    assert epsilon_together(runs, 1e-5) == pytest.approx(same, rel=1e-4)
    assert epsilon_together(runs[:1], 1e-5) == epsilon(everybody, 5)
    assert epsilon_together(runs[:1], 1e-3) == epsilon(everybody, 5, delta=1e-3)
    assert epsilon_together((), 1e-5) == 0
    # with sampling, as the library composes
    expected = pld.PLDAccountant()
    for each, rounds in ((EMNIST, 10), (EMNIST._replace(noise_multiplier=1.0), 5)):
        gaussian = dp_accounting.GaussianDpEvent(each.noise_multiplier)
        expected.compose(dp_accounting.PoissonSampledDpEvent(120 / 3383, gaussian), rounds)
    emnist = EMNIST._replace(accountant="pld")
    ours = epsilon_together(((emnist, 10), (emnist._replace(noise_multiplier=1.0), 5)), 1e-5)
    assert ours == pytest.approx(expected.get_epsilon(1e-5), rel=1e-3)


def noised(noise: float, **changes: Any) -> Mechanism:
    """A mechanism with the capacity that runs have unless they say another."""
    setting = fp.Privacy(1.0, noise_multiplier=noise, delta=1e-5)
    return mechanism_of(setting, 3383, 120, "bernoulli", rounds=100)._replace(**changes)


@pytest.mark.parametrize(
    ("runs", "most"),
    [
        ([(noised(z), 40) for z in (1.2, 1.5)], 1.25),
        ([(SMALL._replace(noise_multiplier=z), 40) for z in (3.0, 4.0, 5.0)], 1.25),
        ([(EMNIST._replace(noise_multiplier=z), 40) for z in (1.0, 1.5)], 1 + 1e-12),
        ([(EMNIST._replace(sampling="uniform"), 5)], 1 + 1e-12),
        ([(noised(1.2, capacity=150), 5)], math.inf),  # which cohorts often exceed
        ([(SMALL._replace(noise_multiplier=1e-300), 5), (SMALL, 1)], math.inf),
        ([(SMALL._replace(noise_multiplier=0.0), 1)], math.inf),
        ([(EMNIST, 10**9)], 1 + 1e-12),
    ],
)
def test_what_is_composed_already_is_bounded(
    runs: list[tuple[Mechanism, int]], most: float
) -> None:
    exact = epsilon_together(tuple(runs), 1e-5)
    for first in range(1, len(runs) + 1):
        before = composed_with(composed_with(None, runs[:1]), runs[1:first])
        assert json.loads(json.dumps(before)) == [
            list(x) if x in before[1:3] else x for x in before
        ]
        bound = epsilon_together(tuple(runs[first:]), 1e-5, before)
        assert exact <= bound <= most * exact
        assert (bound == math.inf) == (most == math.inf)


def test_runs_that_cannot_be_composed() -> None:
    uniform = EMNIST._replace(sampling="uniform")
    with pytest.raises(fp.InputError, match="their neighbouring federations differ"):
        epsilon_together(((EMNIST, 1), (uniform, 1)), 1e-5)
    with pytest.raises(fp.InputError, match="their neighbouring federations differ"):
        epsilon_together(((EMNIST, 1),), 1e-5, composed_with(None, [(uniform, 1)]))
    assert epsilon_together(((EMNIST, 1), (uniform, 0)), 1e-5) > 0
    for noise in (0.0, 1e-5, 1e-300):
        little = SMALL._replace(noise_multiplier=noise)
        assert epsilon_together(((SMALL, 1), (little, 1)), 1e-5) == math.inf


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": 0, "clients_per_round": 0},
        {"clients_per_round": 0},
        {"clients_per_round": 101},
        {"clients_per_round": 2.5},
        {"sampling": "proportional"},
        {"sampling": "uniform"},
        {"capacity": 9},
        {"capacity": 101},
        {"capacity": 20, "accountant": "rdp"},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": 1.1e6},
        {"releases": 0},
        {"releases": 3},
        {"delta": 0.0},
        {"delta": 0.01},
        {"delta": 1.01},
        {"accountant": "none"},
        # without noise too, where no epsilon is computed
        {"noise_multiplier": 0.0, "sampling": "uniform"},
    ],
)
def test_a_declared_mechanism_is_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(fp.InputError):
        check_mechanism(SMALL._replace(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clients": 1, "clients_per_round": 1},
        {"clients_per_round": 100, "sampling": "uniform"},
        {"sampling": "uniform", "accountant": "rdp"},
        {"capacity": 10},
        {"capacity": 100},
        {"accountant": "rdp"},
        {"noise_multiplier": 0.0, "releases": 2},
        {"noise_multiplier": 1e6, "delta": 0.0099},
        {"noise_multiplier": 0.0, "delta": 1.0},
    ],
)
def test_what_may_be_declared(changes: dict[str, Any]) -> None:
    mechanism = SMALL._replace(**changes)
    assert check_mechanism(mechanism) is mechanism


COSTS = {150: 3.07, 160: 1.85, 180: 1.71}


@pytest.mark.slow
@pytest.mark.parametrize("capacity", COSTS)
def test_cutting_a_cohort_costs(capacity: int) -> None:
    found = epsilon(EMNIST, 100, accountant="pld", capacity=capacity)
    assert found == pytest.approx(COSTS[capacity], abs=5e-3)


def test_a_capacity_of_all_clients_costs_nothing() -> None:
    assert epsilon(SMALL, 20, capacity=100) == epsilon(SMALL, 20)


@pytest.mark.parametrize(
    ("rounds", "capacity"), [(16, None), (37, None), pytest.param(37, 160, marks=pytest.mark.slow)]
)
def test_it_is_what_the_library_says(rounds: int, capacity: int | None) -> None:
    # its own accountant, with its own finer grid
    rate, gaussian = 120 / 3383, dp_accounting.GaussianDpEvent(1.2)
    event: Any = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    if capacity is not None:
        event = dp_accounting.TruncatedSubsampledGaussianDpEvent(3383, rate, capacity, 1.2)
    expected = pld.PLDAccountant().compose(event, rounds).get_epsilon(1e-5)
    ours = epsilon(EMNIST, rounds, accountant="pld", capacity=capacity)
    assert expected - 1e-6 <= ours <= expected + 1e-4


def test_renyi_divergences_are_what_the_library_says() -> None:
    gaussian = dp_accounting.GaussianDpEvent
    relations = dp_accounting.NeighboringRelation
    for changes, relation, event in (
        ({}, relations.ADD_OR_REMOVE_ONE, dp_accounting.PoissonSampledDpEvent(0.1, gaussian(4.0))),
        ({"clients_per_round": 100}, relations.ADD_OR_REMOVE_ONE, gaussian(4.0)),
        (
            {"sampling": "uniform"},
            relations.REPLACE_ONE,
            dp_accounting.SampledWithoutReplacementDpEvent(100, 10, gaussian(2.0)),
        ),
    ):
        accountant = rdp.RdpAccountant(neighboring_relation=relation).compose(event, 12)
        expected = accountant.get_epsilon(1e-5)
        assert epsilon(SMALL, 12, accountant="rdp", **changes) == pytest.approx(expected, rel=1e-9)


def test_neighbours_differ_by_a_replaced_client_if_all_cohorts_have_one_size() -> None:
    assert [
        (m.everybody, m.replaces, m.cut)
        for m in (
            SMALL,
            SMALL._replace(clients_per_round=100),
            SMALL._replace(sampling="uniform"),
            SMALL._replace(sampling="uniform", clients_per_round=100),
            SMALL._replace(capacity=99),
            SMALL._replace(capacity=100),
        )
    ] == [
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (True, False, False),
        (False, False, True),
        (False, False, False),
    ]


def test_two_releases_a_round_are_twice_the_rounds() -> None:
    for accountant in ("pld", "rdp"):
        once = SMALL._replace(accountant=accountant)
        assert epsilon(once, 10, releases=2) == epsilon(once, 20)


def test_a_replaced_client_moves_the_sum_by_twice_the_norm() -> None:
    nearly_all = Mechanism(2000, 1999, "uniform", None, 4.0, 1, 1e-5, "rdp")
    twice = epsilon(GAUSSIAN, 1, noise_multiplier=2.0, accountant="rdp")
    assert twice <= epsilon(nearly_all, 1) < 1.2 * twice
    rare = nearly_all._replace(clients_per_round=20)
    assert 0 < epsilon(rare, 1) < twice / 3
    assert epsilon(rare, 1) > epsilon(rare, 1, sampling="bernoulli")


def test_each_number_of_rounds_is_computed_by_itself() -> None:
    several = [epsilon_of(SMALL, rounds) for rounds in (0, 5, 40, 33)]
    assert several[0] == 0
    epsilon_of.cache_clear()
    accounting._composed.cache_clear()
    assert several[::-1] == [epsilon_of(SMALL, rounds) for rounds in (33, 40, 5, 0)]


def test_no_noise_is_no_guarantee() -> None:
    for accountant in ("pld", "rdp"):
        silent = SMALL._replace(noise_multiplier=0.0, accountant=accountant)
        spent = [epsilon_of(silent, rounds) for rounds in (0, 1, 9)]
        assert spent == [0, math.inf, math.inf]
    private = fp.Privacy(clip=math.inf, noise_multiplier=0)
    for sampling in ("bernoulli", "uniform"):
        assert mechanism_of(private, 100, 10, sampling, 5).noise_multiplier == 0


@settings(max_examples=5)
@given(
    noise=st.floats(2, 20),
    count=st.integers(1, 49),
    rounds=st.integers(1, 60),
    accountant=st.sampled_from(["pld", "rdp"]),
)
def test_epsilon_grows_with_rounds_and_rate_and_falls_with_noise(
    noise: float, count: int, rounds: int, accountant: str
) -> None:
    at = Mechanism(100, count, "bernoulli", None, noise, 1, 1e-5, accountant)  # type: ignore[arg-type]
    here = epsilon(at, rounds)
    # the grid is coarser for few rounds
    assert epsilon(at, rounds + 8) > here - 1e-5
    assert epsilon(at, rounds, clients_per_round=count + 50) > here - 1e-5
    assert epsilon(at, rounds, noise_multiplier=1.5 * noise) < here + 1e-5
    assert epsilon(at, rounds, delta=1e-4) < here + 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "sampling", "accountant"),
    [(2.0, "bernoulli", "rdp"), (1.0, "bernoulli", "pld"), (0.5, "uniform", "rdp")],
)
def test_calibration_inverts_epsilons(target: float, sampling: str, accountant: Any) -> None:
    privacy = fp.Privacy(clip=1.0, epsilon=target, accountant=accountant)
    mechanism = mechanism_of(privacy, 400, 40, sampling, 20)
    assert target * (1 - 1e-3) <= epsilon(mechanism, 20) <= target
    given_noise = fp.Privacy(
        clip=1.0, noise_multiplier=mechanism.noise_multiplier, accountant=accountant
    )
    assert mechanism_of(given_noise, 400, 40, sampling, 20) == mechanism


@pytest.mark.slow
def test_calibration_accounts_for_each_noise_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    compose, seen = RdpAccountant.compose, []

    def noted(self: Any, event: Any, count: int = 1) -> Any:
        if isinstance(event, dp_accounting.SelfComposedDpEvent):
            seen.append(event)
        return compose(self, event, count)

    monkeypatch.setattr(RdpAccountant, "compose", noted)
    calibrated_mechanism(EMNIST._replace(accountant="rdp"), 3.25, 77)
    assert len(seen) == len(set(seen)) > 4


def test_two_releases_a_round_need_the_noise_of_twice_the_rounds() -> None:
    privacy = fp.Privacy(clip=1.0, epsilon=2.0)
    two = mechanism_of(privacy, 400, 400, "bernoulli", 5, releases=2)
    assert two == mechanism_of(privacy, 400, 400, "bernoulli", 10)._replace(releases=2)
    assert 1.998 < epsilon(two, 5) <= 2


@pytest.mark.slow
def test_calibration_with_a_tight_capacity() -> None:
    tight, loose = (
        mechanism_of(fp.Privacy(clip=1.0, epsilon=1.0, capacity=most), 400, 40, "bernoulli", 20)
        for most in (41, None)
    )
    assert 0.999 < epsilon(tight, 20) <= 1
    assert tight.noise_multiplier > 1.2 * loose.noise_multiplier


def test_the_cohort_of_the_tutorial_for_an_epsilon_of_two() -> None:
    # the same noise in the mean: the noise multiplier is a hundredth of the cohort
    assert [
        epsilon(EMNIST, 100, clients_per_round=count, noise_multiplier=count / 100) <= 2
        for count in (100, 110, 119, 120, 121)
    ] == [False, False, False, True, True]


def test_the_capacity_is_seldom_reached() -> None:
    privacy = fp.Privacy(clip=1.0, noise_multiplier=1.2)
    for rounds, releases in ((1, 1), (100, 2), (100_000, 1)):
        mechanism = mechanism_of(privacy, 3383, 120, "bernoulli", rounds, releases)
        capacity = mechanism.capacity
        assert capacity is not None
        beyond = rounds * releases * stats.binom.sf([capacity, capacity - 1], 3383, 120 / 3383)
        assert beyond[0] <= 1e-8
        assert capacity == 180 or beyond[1] > 1e-8
    assert mechanism_of(privacy, 763_430, 5000, "bernoulli", 5000).capacity == 7500
    assert mechanism_of(privacy, 8, 6, "bernoulli", 5000).capacity == 8


def test_a_given_capacity_is_taken() -> None:
    privacy = fp.Privacy(clip=1.0, noise_multiplier=1.2, capacity=130)
    assert mechanism_of(privacy, 3383, 120, "bernoulli", 100).capacity == 130
    assert mechanism_of(privacy, 125, 120, "bernoulli", 100).capacity == 125
    other = fp.Privacy(clip=1.0, noise_multiplier=1.2, accountant="rdp")
    assert mechanism_of(other, 3383, 120, "bernoulli", 100).capacity is None


@pytest.mark.parametrize(
    ("given_settings", "sampling", "message"),
    [
        (
            {"epsilon": 2.0},
            "proportional",
            'with [privacy] it must be "bernoulli", "uniform" or "cyclic"',
        ),
        (
            {"epsilon": 2.0, "accountant": "pld"},
            "uniform",
            '"pld" cannot account for it: sampling must be "bernoulli"',
        ),
        ({"epsilon": 2.0, "capacity": 9}, "bernoulli", "at least cohort.clients_per_round = 10"),
        ({"noise_multiplier": 0, "capacity": 20}, "uniform", "leave it out"),
    ],
)
def test_what_cannot_be_accounted_is_refused(
    given_settings: dict[str, Any], sampling: str, message: str
) -> None:
    privacy = fp.Privacy(clip=1.0, **given_settings)
    with pytest.raises(fp.InputError, match=re.escape(message)) as error:
        mechanism_of(privacy, 100, 10, sampling, 5)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("epsilon", "delta", "count"),
    [
        (1e-3, 1e-17, 100),
        pytest.param(1.0, 1e-15, 10, marks=pytest.mark.slow),
        pytest.param(1.0, 5e-324, 10, marks=pytest.mark.slow),
    ],
)
def test_a_delta_that_no_accountant_resolves_is_refused(
    epsilon: float, delta: float, count: int
) -> None:
    """Either the search for the noise fails, or the epsilon of what it found is infinite."""
    privacy = fp.Privacy(clip=1.0, epsilon=epsilon, delta=delta)
    with pytest.raises(fp.InputError, match="no noise multiplier up to 1,000,000 is enough") as got:
        mechanism_of(privacy, 100, count, "bernoulli", 20)
    assert "\n" not in str(got.value)


def test_no_epsilon_is_given_for_what_cannot_be_accounted() -> None:
    with pytest.raises(fp.InputError, match='"pld" cannot account for it'):
        epsilon(SMALL, 5, sampling="uniform", noise_multiplier=0.5)
    assert epsilon(SMALL, 5, sampling="uniform", noise_multiplier=0.0) == math.inf


def test_a_cohort_larger_than_the_federation_is_refused() -> None:
    with pytest.raises(fp.InputError, match="there are 5 clients"):
        mechanism_of(fp.Privacy(clip=1.0, epsilon=1.0), 5, 10, "bernoulli", 5)


def test_the_statement_says_everything() -> None:
    text = "\n".join(statement(EMNIST._replace(accountant="pld", capacity=160), 100))
    for part in (
        "epsilon = 1.846 and delta = 1e-05",
        "a client with all of its rows",
        "one has one client more",
        "Poisson, each of 3,383 clients with probability 120 / 3,383",
        "more than 160",
        "stay secret",
        "100 rounds with 1 noised sum each",
        "privacy loss distributions, by dp-accounting 0.6",
        "Trust: the server",
        "Outside the guarantee: losses, accuracies",
        "sweep points",
    ):
        assert part in text
    uniform = "\n".join(statement(EMNIST._replace(sampling="uniform", releases=2), 100))
    assert "one client is replaced by another" in uniform
    assert "no amplification beyond what the library proves" in uniform
    assert "2 noised sums each" in uniform
    assert "no limit" in "\n".join(statement(EMNIST, 100))
    assert "none; the client takes part" in "\n".join(statement(GAUSSIAN, 1))
    assert "no privacy guarantee" in statement(EMNIST._replace(noise_multiplier=0.0), 100)[0]
    seldom = Strategy("independent", separation=10, rounds=100)
    cyclic = GAUSSIAN._replace(clients=100, clients_per_round=10, sampling="cyclic")
    for strategy, count in ((None, 25), (seldom, 3)):
        own = statement(cyclic._replace(strategy=strategy), 25, trusted=False)
        assert f"a client sends at most {count} messages" in own[4]


def test_a_shown_epsilon_is_never_too_small() -> None:
    for number in (1.9999, 2.0, 0.0001, 1.70749, 1e6):
        assert number <= float(rounded_up(number)) < number + 1.001e-3


@pytest.mark.slow
def test_calibration_leaves_no_warning(capsys: Any) -> None:
    found = calibrated_mechanism(EMNIST, 30.0, 100)
    assert 29.9 < epsilon(found, 100) <= 30
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("noise", [1e-3, 1e6])
def test_the_ends_of_the_noise_have_an_epsilon(noise: float, accountant: Any) -> None:
    privacy = fp.Privacy(clip=1.0, noise_multiplier=noise, accountant=accountant)
    mechanism = mechanism_of(privacy, 100, 100, "bernoulli", 5)
    found = epsilon_of(mechanism, 5)
    assert found > 1e5 if noise < 1 else found < 1e-3


@pytest.mark.slow
def test_another_host_declares_no_noise_or_delta_beyond_the_ends() -> None:
    noise = "privacy.noise_multiplier = 1e-06; it must be 0, or from"
    with pytest.raises(fp.InputError, match=re.escape(noise)):
        check_mechanism(EMNIST._replace(noise_multiplier=1e-6))
    delta = "delta = 0.000295596; with 3,383 clients it must be below 1 / 3,383"
    with pytest.raises(fp.InputError, match=re.escape(delta)):
        check_mechanism(EMNIST._replace(delta=1 / 3383))
    assert check_mechanism(EMNIST._replace(delta=0.9 / 3383)).delta == 0.9 / 3383


@pytest.mark.slow
def test_steps_that_nobody_takes_need_no_noise() -> None:
    assert calibrated_steps(1.0, ()) == 0.0
