"""Cohorts, weights, stragglers and deadlines."""

import itertools
import math
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any, get_args

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import Cohort, Evaluation, InputError, Solver, Systems, fedavg, simulate
from fedprox.protocol.cohort import Sampling, group_of_round, weights
from fedprox.protocol.protocol import initial_params
from fedprox.streams import Purpose, Streams, generator
from tests.quadratics import one_run, quadratic_federation, quadratic_model

THREE = np.array([0, 1, 3, 8])
"""Offsets of three clients with 1, 2 and 5 rows."""

SIZES = np.array([1, 2, 5])

MANY = np.arange(10**6 + 1) * 3
"""Offsets of a million clients."""

SOLVER = Solver(0.1, batch_size=10, epochs=20)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**63 - 1), round_=st.integers(0, 10**6), k=st.integers(1, 50))
def test_a_cohort_is_distinct_and_repeatable(seed: int, round_: int, k: int) -> None:
    offsets = np.arange(51) * 3
    drawn = Cohort(k).draw(seed, round_, offsets).clients
    assert len(set(drawn.tolist())) == k
    assert set(drawn.tolist()) <= set(range(50))
    np.testing.assert_array_equal(drawn, Cohort(k).draw(seed, round_, offsets).clients)


@pytest.mark.parametrize("sampling", get_args(Sampling)[:-1])  # but those dealt into groups
def test_a_cohort_of_a_million_clients_takes_no_memory_for_the_others(sampling: Sampling) -> None:
    tracemalloc.start()
    drawn = [Cohort(100, sampling).draw(0, t, MANY) for t in range(3)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(50 < len(set(clients.tolist())) == len(clients) < 200 for clients, _ in drawn)
    assert peak < 100_000  # a byte for each client would be ten times that


@pytest.mark.parametrize(
    "cohort", [Cohort(2), Cohort(2, sampling="bernoulli"), Cohort(8, sampling="proportional")]
)
def test_a_rounds_mean_is_that_of_its_scheme(cohort: Cohort) -> None:
    """A proportional cohort may be larger than the federation."""
    # one step reaches b_k: the model is the scheme's mean of the cohort's b_k
    b = np.array([1.0, 10.0, 100.0])
    federation = quadratic_federation([np.eye(1)] * 3, [*b[:, None]], rows=SIZES.tolist())
    model, solver = quadratic_model(np.zeros(1)), Solver(1.0, batch_size="all", steps=1)
    shared: Any = {"evaluation": Evaluation(gradients=False), "rounds": 1, "seed": list(range(6))}
    runs = simulate(federation, model, fedavg(), solver=solver, cohort=cohort, **shared)
    sizes = set()
    for run in runs:
        clients, mass = cohort.draw(run.seed, 0, THREE)
        weight = SIZES[clients] if cohort.sampling == "uniform" else mass
        np.testing.assert_allclose(run.params, [weight @ b[clients] / weight.sum()], rtol=1e-6)
        assert run.final.clients == len(clients)
        sizes.add(len(clients))
    assert (len(sizes) > 1) == (cohort.sampling != "uniform")


def test_weights_are_shares_of_rows() -> None:
    np.testing.assert_allclose(weights(SIZES), [1 / 8, 2 / 8, 5 / 8])
    assert weights(np.zeros(0, int)).shape == (0,)


def uniform() -> dict[Any, float]:
    """Every ordered pair is equally likely; the mass is a client's rows."""
    return {((i, SIZES[i]), (j, SIZES[j])): 1 / 6 for i, j in itertools.permutations(range(3), 2)}


def proportional() -> dict[Any, float]:
    """Two draws with replacement by rows; the mass is how often a client was drawn."""
    p = SIZES / 8
    expected: dict[Any, float] = {((k, 2),): p[k] ** 2 for k in range(3)}
    pairs = itertools.combinations(range(3), 2)
    return expected | {((i, 1), (j, 1)): 2 * p[i] * p[j] for i, j in pairs}


def bernoulli() -> dict[Any, float]:
    """Each client by itself with probability 2/3, given that somebody takes part."""
    q, expected = 2 / 3, dict[Any, float]()
    for count in (1, 2, 3):
        chance = q**count * (1 - q) ** (3 - count) / (1 - (1 - q) ** 3)
        for who in itertools.combinations(range(3), count):
            expected[tuple((k, SIZES[k]) for k in who)] = chance
    return expected


@pytest.mark.parametrize("expected", [uniform, proportional, bernoulli])
def test_sampling_by_exact_enumeration_on_three_clients(expected: Any) -> None:
    cohort, chances = Cohort(2, sampling=expected.__name__), expected()
    found = Counter[Any]()
    for t in range(6000):
        pairs = list(zip(*(each.tolist() for each in cohort.draw(0, t, THREE)), strict=True))
        found[tuple(pairs if expected is uniform else sorted(pairs))] += 1
    assert set(found) == set(chances)
    assert sum(chances.values()) == pytest.approx(1)
    # chi-squared with 5 or 6 degrees of freedom: above 25.7 with probability 1e-4
    assert sum((found[key] - 6000 * p) ** 2 / (6000 * p) for key, p in chances.items()) < 25.7


def test_cohorts_of_different_purposes_are_independent() -> None:
    offsets = np.arange(101)
    pairs = Counter(
        len(
            set(Cohort(10).draw(0, t, offsets).clients)
            & set(Cohort(10).draw(0, t, offsets, Purpose.GRADIENT_COHORT).clients)
        )
        for t in range(1000)
    )
    # the overlap is hypergeometric with mean 1
    assert sum(n * count for n, count in pairs.items()) / 1000 == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Cohort(2, sampling="round-robin"), "uniform, proportional, bernoulli, cyclic"),  # type: ignore[arg-type]
        (lambda: Cohort(2, sampling="cyclic"), "min_separation = None; sampling = .cyclic. needs"),
        (lambda: Cohort(2, min_separation=3), "min_separation = 3; sampling = .cyclic. needs it"),
        (lambda: Cohort(2, "cyclic", min_separation=0), "min_separation = 0; it must be a whole"),
        *(
            (lambda clients=clients: Cohort(clients), f"_round = {clients}; it must be a whole")
            for clients in (0, 2.5, True)
        ),
        (lambda: Systems(stragglers=-0.1), "it must be from 0 to 1"),
        (lambda: Systems(stragglers=1.1), "it must be from 0 to 1"),
    ],
)
def test_settings_out_of_range_are_refused(make: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        make()


def test_a_cohort_larger_than_the_federation_is_refused() -> None:
    federation = quadratic_federation([np.eye(1)], [np.zeros(1)])
    with pytest.raises(InputError, match="clients_per_round = 2; the federation has 1 client"):
        one_run(federation, quadratic_model(np.zeros(1)), fedavg(), SOLVER, cohort=Cohort(2))


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**63 - 1),
    groups=st.integers(1, 9),
    count=st.integers(1, 5),
    more=st.integers(0, 20),
    rounds=st.integers(1, 40),
)
def test_a_client_takes_part_in_few_cyclic_rounds_far_apart(
    seed: int, groups: int, count: int, more: int, rounds: int
) -> None:
    clients = groups * count + more
    cohort, offsets = Cohort(count, "cyclic", min_separation=groups), np.arange(clients + 1) * 2
    cohort.check(clients)
    with pytest.raises(InputError, match=r"cohort\.clients_per_round = "):
        replace(cohort, clients_per_round=clients // groups + 1).check(clients)
    of_client: dict[int, list[int]] = {}
    for t in range(rounds):
        drawn, mass = cohort.draw(seed, t, offsets)
        again = cohort.draw(seed, t, offsets, poisson=True, candidates=np.arange(clients))
        np.testing.assert_array_equal(drawn, again.clients)
        assert len(set(drawn.tolist())) == count in cohort.sizes(clients)
        assert (mass == 2).all()
        for client in drawn.tolist():
            of_client.setdefault(client, []).append(t)
    for taken in of_client.values():
        assert len(taken) <= -(-rounds // groups)
        assert all((b - a) % groups == 0 for a, b in itertools.pairwise(taken))
    dealt = [group_of_round(seed, t, clients, groups) for t in range(groups)]
    assert sorted(np.concatenate(dealt).tolist()) == list(range(clients))
    assert {len(group) - clients // groups for group in dealt} <= {0, 1}


def test_whoever_of_a_group_takes_part_is_uniform() -> None:
    # 600 rounds of each of two groups of three, of which two are drawn
    cohort, offsets = Cohort(2, "cyclic", min_separation=2), np.arange(7)
    found = Counter(
        (t % 2, *sorted(cohort.draw(1, t, offsets).clients.tolist())) for t in range(1200)
    )
    assert len(found) == 6
    # chi-squared with 4 degrees of freedom: above 23.5 with probability 1e-4
    assert sum((n - 200) ** 2 / 200 for n in found.values()) < 23.5


def test_other_seeds_deal_other_groups() -> None:
    first = {tuple(sorted(group_of_round(seed, 0, 6, 2).tolist())) for seed in range(200)}
    assert len(first) == math.comb(6, 3)


@settings(max_examples=25)
@given(
    k=st.integers(1, 30),
    fraction=st.floats(0, 1),
    round_=st.integers(0, 1000),
    e=st.integers(2, 30),
)
def test_stragglers_are_as_many_as_asked_and_do_whole_epochs(
    k: int, fraction: float, round_: int, e: int
) -> None:
    solver = Solver(0.1, batch_size=10, epochs=e)
    sizes = np.arange(5, 5 + 7 * k, 7)
    work = Systems(stragglers=fraction).work(3, round_, np.arange(k), sizes, solver)
    assert work.stragglers.sum() == round(fraction * k)
    full = np.array([solver.steps_for(int(n)) for n in sizes])
    per_epoch = full // e
    assert (work.steps[~work.stragglers] == full[~work.stragglers]).all()
    assert (work.steps % per_epoch == 0).all()
    assert (work.steps >= per_epoch).all()
    assert (work.steps <= full).all()


def test_epochs_of_stragglers_are_uniform_with_both_ends() -> None:
    solver = Solver(0.1, batch_size=10, epochs=4)
    sizes = np.array([10, 1000])
    drawn: Counter[int] = Counter()
    for t in range(2000):
        work = Systems(stragglers=1.0).work(0, t, np.array([5, 6]), sizes, solver)
        drawn[int(work.steps[0])] += 1
    assert set(drawn) == {1, 2, 3, 4}
    # chi-squared with 3 degrees of freedom: above 21.1 with probability 1e-4
    assert sum((n - 500) ** 2 / 500 for n in drawn.values()) < 21.1


def test_a_stragglers_epochs_do_not_depend_on_other_clients() -> None:
    systems = Systems(stragglers=1.0)
    first = systems.work(0, 9, np.array([4, 7, 1]), np.array([50, 60, 70]), SOLVER)
    other = systems.work(0, 9, np.array([1, 4]), np.array([70, 50]), SOLVER)
    assert first.steps[0] == other.steps[1]
    assert first.steps[2] == other.steps[0]


def test_with_one_epoch_partial_work_is_a_number_of_steps() -> None:
    solver = Solver(0.1, batch_size=10, epochs=1)
    drawn = {
        int(Systems(1.0).work(0, t, np.array([0]), np.array([45]), solver).steps[0])
        for t in range(200)
    }
    assert drawn == {1, 2, 3, 4, 5}


@settings(max_examples=25)
@given(size=st.integers(1, 300), count=st.integers(1, 4), client=st.integers(0, 2**40))
def test_permutations_are_permutations_and_a_prefix_of_longer_ones(
    size: int, count: int, client: int
) -> None:
    few, many = (
        Streams(1, Purpose.BATCHES)
        .orders([5], [client], counts=[each], sizes=[size])
        .reshape(-1, size)
        for each in (count, count + 2)
    )
    assert (np.sort(few, axis=1) == np.arange(size)).all()
    np.testing.assert_array_equal(few, many[:count])


def test_every_permutation_is_equally_likely() -> None:
    # chi-squared with 5 degrees of freedom, as above
    drawn = Counter(
        tuple(row)
        for row in Streams(0, Purpose.BATCHES)
        .orders([0], [0], counts=[6000], sizes=[3])
        .reshape(-1, 3)
        .tolist()
    )
    assert len(drawn) == 6
    assert sum((n - 1000) ** 2 / 1000 for n in drawn.values()) < 25.7


def test_the_numbers_of_purposes_never_change() -> None:
    # they are part of every result; a new purpose takes a number that none has had
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "MODEL": 0,
        "COHORT": 1,
        "STRAGGLERS": 2,
        "WORK": 3,
        "BATCHES": 4,
        "DATA": 5,
        "PARTITION": 6,
        "SPLIT": 7,
        "GRADIENT_COHORT": 8,
        "CURVATURE": 10,
        "AUGMENTATION": 11,
        "SAMPLE": 12,
        "EVALUATED": 14,
        "VALIDATION": 15,
        "PARTS": 16,
        "STEPS": 17,
        "POPULATION": 18,
        "DROPOUT": 19,
        "DEVICE": 20,
        "ZONE": 21,
        "ARRIVALS": 22,
        "ATTACK": 23,
        "ROWS": 24,
        "REFERENCES": 25,
        "NEWCOMERS": 26,
        "SKEW": 27,
        "GROUPS": 28,
        "CANARIES": 29,
        "MEASURES": 30,
    }


def test_every_seed_begins_with_a_model_of_its_own() -> None:
    model = replace(quadratic_model(np.zeros(1)), init=lambda key: jax.random.uniform(key, (3,)))
    assert len({tuple(initial_params(model, seed).tolist()) for seed in range(100)}) == 100
    # part of every result: the key is the first number of the seed's stream
    key = jax.random.key(int(np.random.Generator(np.random.Philox(key=7)).integers(2**31)))
    assert initial_params(model, 7).tolist() == jax.random.uniform(key, (3,)).tolist()


@settings(max_examples=25)
@given(seed=st.integers(0, 2**63 - 1), round_=st.integers(0, 2**40), client=st.integers(0, 2**40))
def test_a_stream_is_philoxs_of_its_names(seed: int, round_: int, client: int) -> None:
    # 256 bits of counter, of which a stream counts in the lower half
    counter, key = (round_ << 192) + (client << 128), seed + (Purpose.SPLIT << 64)
    expected = np.random.Philox(counter=counter, key=key).random_raw(5)
    found = generator(seed, Purpose.SPLIT, round_, client).bit_generator.random_raw(5)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("seed", "allowed"),
    [
        (-1, "a whole number of at least 0"),
        (0.5, "a whole number of at least 0"),
        (True, "a whole number of at least 0"),
        (2**63, r"below 2\^63"),
    ],
)
def test_a_seed_out_of_range_is_refused(seed: Any, allowed: str) -> None:
    for make in (lambda: generator(seed, Purpose.WORK), lambda: Streams(seed, Purpose.WORK)):
        with pytest.raises(InputError, match=f"seed = {seed}; it must be {allowed}"):
            make()
    assert generator(2**63 - 1, Purpose.WORK).random() != generator(0, Purpose.WORK).random()


def test_streams_differ_in_each_of_their_names() -> None:
    names = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    drawn = {
        (seed, t, k): generator(seed, Purpose.WORK, t, k).integers(2**62) for seed, t, k in names
    }
    drawn[(-1, 0, 0)] = generator(0, Purpose.COHORT, 0, 0).integers(2**62)
    assert len(set(drawn.values())) == 5
