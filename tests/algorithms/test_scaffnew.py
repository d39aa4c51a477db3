"""Scaffnew against the paper's loop, gradient descent, and its rate."""

import math
from typing import Any

import numpy as np
import pytest

from fedprox import (
    Cohort,
    Evaluation,
    Faults,
    Federation,
    InputError,
    Population,
    Solver,
    Systems,
    fedsgd,
    scaffnew,
    simulate,
)
from tests import methods
from tests.byhand import START
from tests.methods import Vector
from tests.quadratics import one_run, quadratic_federation, quadratic_model, ragged_quadratics

FEDERATION, MODEL = ragged_quadratics(0, [3, 1, 7, 4]), quadratic_model(START)
STEP = Solver(0.1, "all", steps=1)


def by_the_paper(
    federation: Federation, start: Vector, p: float, gamma: float, seed: int, rounds: int
) -> tuple[Vector, int]:
    """Algorithm 2, in which the coin comes up after the steps of each of our rounds.

    Returns:
        The models after 0, 1, ... rounds, and the number of steps.
    """
    rows = [methods.rows_of(federation, k) for k in range(len(federation))]
    x, h = np.tile(start, (len(rows), 1)), np.zeros((len(rows), len(start)))
    coins = [scaffnew(p).client.round_steps(seed, t) for t in range(rounds)]  # type: ignore[misc]
    path = [start]
    for steps in coins:
        for step in range(steps):
            ahead = [
                w - gamma * (methods.gradient(w, *each) - c)
                for w, each, c in zip(x, rows, h, strict=True)
            ]
            after = np.array(ahead)
            if step == steps - 1:
                after[:] = np.mean(ahead, axis=0)
            h = h + p / gamma * (after - ahead)
            x = after
        path.append(x[0])
    return np.array(path), sum(coins)


def test_rounds_are_the_papers() -> None:
    """Every seed; the steps of a round are those of all clients."""
    runs = simulate(
        FEDERATION,
        MODEL,
        scaffnew(p=0.3),
        solver=STEP,
        cohort=Cohort(4),
        rounds=6,
        seed=[0, 3],
        evaluation=Evaluation(gradients=False),
    )
    for run in runs:
        path, steps = by_the_paper(FEDERATION, START, 0.3, 0.1, run.seed, 6)
        np.testing.assert_allclose(run.params, path[-1], rtol=1e-4, atol=1e-5)
        assert run.client_steps == 4 * steps


def test_in_the_end_it_is_at_the_minimiser_and_with_p_1_it_is_gradient_descent() -> None:
    path, _ = by_the_paper(FEDERATION, START, 0.25, 0.1, 0, 120)
    np.testing.assert_allclose(path[-1], methods.minimiser(FEDERATION), atol=1e-4)
    found, _ = by_the_paper(FEDERATION, START, 1.0, 0.1, 0, 5)
    descent = methods.FedProx(START, 4, by_rows=False)
    expected = methods.run(descent, FEDERATION, solver=STEP, cohort=Cohort(4), rounds=5).server
    np.testing.assert_allclose(found, expected)


def test_the_steps_of_a_round_are_geometric() -> None:
    steps = scaffnew(p=0.2).client.round_steps
    assert steps is not None
    drawn = np.array([steps(1, t) for t in range(4000)])
    assert drawn.min() == 1
    # the variance is (1 - p) / p^2 = 20
    assert abs(drawn.mean() - 5) < 5 * math.sqrt(20 / 4000)
    assert abs((drawn > 5).mean() - 0.8**5) < 5 * math.sqrt(0.25 / 4000)
    assert drawn.tolist() != [steps(2, t) for t in range(4000)]


def rounds_until(kappa: int, p: float, rounds: int, seeds: int) -> float:
    """Mean number of rounds after which f - f* stays below a 10,000th of what it is at first.

    F_k(w) = 1/2 sum_i a_i w_i^2 - <c_k, w>, a from 1 to kappa and sum_k c_k = 0, so that w* = 0.
    Every coordinate has the same part of f(w^0).
    """
    a, rng = np.geomspace(1.0, kappa, 6), np.random.default_rng(0)
    c = np.sqrt(a) * rng.normal(size=(5, 6))
    c -= c.mean(axis=0)
    federation = quadratic_federation([np.diag(a)] * 5, list(c / a))
    found = []
    for seed in range(seeds):
        path, _ = by_the_paper(federation, 1 / np.sqrt(a), p, 1 / kappa, seed, rounds)
        above = np.flatnonzero((path**2 * a).mean(axis=1) > 1e-4)
        assert above[-1] < rounds
        found.append(above[-1] + 1)
    return float(np.mean(found))


def test_exchanges_grow_with_the_root_of_the_condition_number() -> None:
    """With kappa 9 times as large, 3 times as many rounds, and 9 times for gradient descent."""
    ours = [rounds_until(kappa, kappa**-0.5, 10 * round(kappa**0.5), 3) for kappa in (16, 144)]
    descent = [rounds_until(kappa, 1.0, 5 * kappa, 1) for kappa in (16, 144)]
    assert 2.2 < ours[1] / ours[0] < 4, ours
    assert 8 < descent[1] / descent[0] < 10, descent
    assert ours[1] < descent[1] / 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cohort": Cohort(3)}, "cohort.clients_per_round = 3 of 4 clients"),
        ({"cohort": Cohort(4, sampling="bernoulli")}, 'cohort.sampling = "bernoulli"'),
        ({"systems": Systems(stragglers=0.5)}, "systems.stragglers = 0.5"),
        (
            {"systems": Systems(deadline=1.0), "population": Population(step_seconds=0.1)},
            "systems.deadline = 1.0",
        ),
        ({"faults": Faults("drop")}, 'faults.policy = "drop"'),
    ],
)
def test_rounds_without_everyone_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(
        InputError, match=r"^scaffnew: it needs every client in every round, so "
    ) as error:
        one_run(FEDERATION, MODEL, scaffnew(p=0.5), STEP, **options)
    assert f"so {message} does not fit; " in str(error.value)


@pytest.mark.parametrize("p", [0.0, -0.1, 1.5, math.nan, [0.1, 0.2], 1e-40])
def test_p_is_a_probability_above_0(p: Any) -> None:
    why = "is beyond single precision" if p == 1e-40 else "must be .*above 0 and at most 1"
    with pytest.raises(InputError, match=rf"scaffnew: p = .*; it {why}"):
        scaffnew(p)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"learning_rate_decay": 0.9}, "the same solver.learning_rate in all rounds"),
        ({"learning_rate": lambda t: 0.1 / (1 + t)}, "the same solver.learning_rate in all rounds"),
        ({"gamma": 0.5}, "leave out solver.gamma"),
    ],
)
def test_other_solvers_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^scaffnew.*{message}"):
        scaffnew(p=0.5).solver(STEP.changed(**changed))


@pytest.mark.parametrize("steps", [0, 1.5, "2"])
def test_steps_of_a_round_of_ones_own_are_whole_numbers_above_0(steps: Any) -> None:
    mine = fedsgd()._replace(
        name="mine", settings={}, client=fedsgd().client._replace(round_steps=lambda *_: steps)
    )
    with pytest.raises(InputError, match=r"solver.steps = .*; it must be a whole number"):
        one_run(FEDERATION, MODEL, mine, STEP)
