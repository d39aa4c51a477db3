"""Local steps of private runs, counted from round to round and for rounds that are repeated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox.engine.planning.round_work import LocalSteps, drawn_works
from fedprox.epsilon import Spent
from fedprox.protocol.method import Method, checked_methods
from fedprox.protocol.protocol import Protocol

ROUNDS = 8


def method() -> Method:
    """Partial work on two of five clients of different sizes."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(n, 3)), np.arange(n) % 2) for n in (6, 11, 20, 31, 32)]
    federation = fp.Federation.from_arrays(parts)
    protocol = Protocol(
        federation=federation,
        model=fp.models.logistic(federation),
        solver=fp.Solver(0.1, batch_size=4, epochs=3),
        cohort=fp.Cohort(2),
        systems=fp.Systems(stragglers=0.5),
        faults=None,
        rounds=ROUNDS,
        evaluation=fp.Evaluation(gradients=False),
        client_store="auto",
        seeds=(1,),
        target=None,
        stop_at_target="never",
        privacy=fp.Privacy(clip=1.0, noise_multiplier=1.0, unit="example"),
    )
    return checked_methods(protocol, [fp.fedprox(mu=0.1)])[0]


METHOD = method()
GIVEN = METHOD.protocol, METHOD.algorithm, METHOD.solver

BY_ROUND = np.zeros((ROUNDS, 5), np.int64)
for t, work in zip(range(ROUNDS), drawn_works(*GIVEN, 1), strict=False):
    BY_ROUND[t, work.jobs.client] = work.jobs.steps


@given(
    repeated=st.lists(st.tuples(st.integers(0, ROUNDS), st.integers(0, ROUNDS)), max_size=3),
    asked=st.lists(st.integers(0, ROUNDS), min_size=1, max_size=4),
    given_up=st.sets(st.integers(0, ROUNDS - 1), max_size=2),
)
@settings(max_examples=40)
def test_steps_are_those_of_the_rounds(
    repeated: list[tuple[int, int]], asked: list[int], given_up: set[int]
) -> None:
    again = [range(*sorted(pair)) for pair in repeated]
    steps = LocalSteps(METHOD, 1, again)
    for rounds in asked:
        expected = BY_ROUND[:rounds].sum(axis=0)
        expected += sum((BY_ROUND[list(each)].sum(axis=0) for each in again), np.zeros(5, np.int64))
        np.testing.assert_array_equal(steps.counted(rounds), expected)
        assert [count for *_, count in steps.after(rounds)] == expected[expected > 0].tolist()
        without = sorted(given_up & set(range(rounds)))
        np.testing.assert_array_equal(
            steps.counted(rounds, without), expected - BY_ROUND[without].sum(axis=0)
        )


@pytest.mark.slow
def test_repeated_rounds_cost_once_more() -> None:
    plain, repeated = Spent(METHOD, 1), Spent(METHOD, 1, [range(2, 5)])
    costs = [plain.epsilon(t) or 0.0 for t in (ROUNDS, 0)]
    assert (repeated.epsilon(ROUNDS) or 0.0) > costs[0] > costs[1] == 0
    twice = Spent(METHOD, 1, [range(ROUNDS)])
    assert twice.epsilon(0) == costs[0]
