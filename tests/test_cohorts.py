"""Properties 8 (uniform sampling), 9 and 10: cohorts, weights and stragglers."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox import Cohort, InputError, Solver, Systems, fedavg
from fedprox.simulation.sampling import weights
from fedprox.streams import Purpose, Shuffler, generator
from tests.quadratics import one_run, quadratic_federation, quadratic_model

THREE = np.array([0, 1, 3, 8])
"""Offsets of three clients with 1, 2 and 5 rows."""

SOLVER = Solver(0.1, batch_size=10, epochs=20)


@given(seed=st.integers(0, 2**63 - 1), round_=st.integers(0, 10**6), k=st.integers(1, 50))
def test_a_cohort_is_distinct_and_repeatable(seed: int, round_: int, k: int) -> None:
    offsets = np.arange(51) * 3
    drawn = Cohort(k).draw(seed, round_, offsets).clients
    assert len(set(drawn.tolist())) == k
    assert set(drawn.tolist()) <= set(range(50))
    np.testing.assert_array_equal(drawn, Cohort(k).draw(seed, round_, offsets).clients)


def test_uniform_sampling_by_exact_enumeration_on_three_clients() -> None:
    # every ordered pair of three clients is equally likely: chi-squared with 5 degrees of freedom,
    # above 25.7 with probability 1e-4
    drawn = Counter(tuple(Cohort(2).draw(0, t, THREE).clients.tolist()) for t in range(6000))
    pairs = list(itertools.permutations(range(3), 2))
    assert set(drawn) == set(pairs)
    assert sum((drawn[pair] - 1000) ** 2 / 1000 for pair in pairs) < 25.7


def test_the_mean_is_weighted_by_the_cohorts_training_rows() -> None:
    sizes = [1, 2, 5]
    a, b = [np.eye(1)] * 3, [np.array([v]) for v in (1.0, 10.0, 100.0)]
    federation = quadratic_federation(a, b, rows=sizes)
    solver = Solver(1.0, batch_size="all", steps=1)  # one step reaches b_k
    for seed in range(3):
        run = one_run(
            federation,
            quadratic_model(np.zeros(1)),
            fedavg(),
            solver,
            cohort=Cohort(2),
            seed=seed,
        )
        i, j = Cohort(2).draw(seed, 0, THREE).clients.tolist()
        expected = (sizes[i] * b[i] + sizes[j] * b[j]) / (sizes[i] + sizes[j])
        np.testing.assert_allclose(run.params, expected, rtol=1e-6)
    np.testing.assert_allclose(weights(np.array(sizes)), [1 / 8, 2 / 8, 5 / 8])
    assert weights(np.zeros(0, int)).shape == (0,)


def test_a_cohort_larger_than_the_federation_is_refused() -> None:
    federation = quadratic_federation([np.eye(1)], [np.zeros(1)])
    with pytest.raises(InputError, match="clients_per_round = 2; the federation has 1 clients"):
        one_run(federation, quadratic_model(np.zeros(1)), fedavg(), SOLVER, cohort=Cohort(2))


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


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="it must be from 0 to 1"):
        Systems(stragglers=fraction)


@given(size=st.integers(1, 300), count=st.integers(1, 4), client=st.integers(0, 2**40))
def test_permutations_are_permutations_and_a_prefix_of_longer_ones(
    size: int, count: int, client: int
) -> None:
    few = Shuffler(1, Purpose.BATCHES).orders(5, client, count=count, size=size)
    many = Shuffler(1, Purpose.BATCHES).orders(5, client, count=count + 2, size=size)
    assert (np.sort(few, axis=1) == np.arange(size)).all()
    np.testing.assert_array_equal(few, many[:count])


def test_every_permutation_is_equally_likely() -> None:
    # chi-squared with 5 degrees of freedom, as above
    drawn = Counter(
        tuple(row) for row in Shuffler(0, Purpose.BATCHES).orders(0, 0, count=6000, size=3).tolist()
    )
    assert len(drawn) == 6
    assert sum((n - 1000) ** 2 / 1000 for n in drawn.values()) < 25.7


def test_streams_differ_in_each_of_their_names() -> None:
    names = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    drawn = {
        (seed, t, k): generator(seed, Purpose.WORK, t, k).integers(2**62) for seed, t, k in names
    }
    drawn[(-1, 0, 0)] = generator(0, Purpose.COHORT, 0, 0).integers(2**62)
    assert len(set(drawn.values())) == 5
