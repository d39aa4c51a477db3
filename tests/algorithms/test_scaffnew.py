"""Scaffnew against the paper's loop, gradient descent, and its rate."""

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedprox import (
    Cohort,
    Evaluation,
    Faults,
    Federation,
    InputError,
    Model,
    Population,
    Privacy,
    Solver,
    Systems,
    fedsgd,
    scaffnew,
    simulate,
)
from tests import methods
from tests.byhand import START, distance
from tests.methods import Vector
from tests.quadratics import one_run, quadratic_model, ragged_quadratics
from tests.variants import mostly_slow

ROWS = [3, 1, 7, 4]
STEP = Solver(0.1, "all", steps=1)


def by_the_paper(federation: Federation, p: float, gamma: float, seed: int, rounds: int) -> Vector:
    """Algorithm 2, in which the coin comes up after the steps of each of our rounds."""
    rows = [methods.rows_of(federation, k) for k in range(len(federation))]
    x, h = np.tile(START, (len(rows), 1)), np.zeros((len(rows), 3))
    coins = [scaffnew(p).client.round_steps(seed, t) for t in range(rounds)]  # type: ignore[misc]
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
    return np.asarray(x[0])


@pytest.mark.parametrize("seed", mostly_slow([0, 3], 3))
def test_rounds_are_the_papers(seed: int) -> None:
    federation, model = ragged_quadratics(0, ROWS), quadratic_model(START)
    run = one_run(federation, model, scaffnew(p=0.3), STEP, rounds=6, seed=seed)
    expected = by_the_paper(federation, 0.3, 0.1, seed, 6)
    np.testing.assert_allclose(run.params, expected, rtol=1e-4, atol=1e-5)


def test_with_an_exchange_after_every_step_it_is_gradient_descent() -> None:
    federation, model = ragged_quadratics(0, ROWS), quadratic_model(START)
    ours = one_run(federation, model, scaffnew(p=1.0), Solver(0.1, "all", epochs=7), rounds=5)
    equal = fedsgd()._replace(average="clients")
    theirs = one_run(federation, model, equal, STEP, rounds=5)
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-5)
    assert ours.client_steps == 4 * 5


def test_the_steps_of_a_round_are_geometric_and_those_of_all_clients() -> None:
    steps = scaffnew(p=0.2).client.round_steps
    assert steps is not None
    drawn = np.array([steps(1, t) for t in range(4000)])
    assert drawn.min() == 1
    # the variance is (1 - p) / p^2 = 20
    assert abs(drawn.mean() - 5) < 5 * math.sqrt(20 / 4000)
    assert abs((drawn > 5).mean() - 0.8**5) < 5 * math.sqrt(0.25 / 4000)
    assert drawn.tolist() != [steps(2, t) for t in range(4000)]
    run = one_run(
        ragged_quadratics(0, ROWS), quadratic_model(START), scaffnew(p=0.2), STEP, rounds=9, seed=1
    )
    assert run.client_steps == 4 * drawn[:9].sum()


def shifted(kappa: float) -> tuple[Federation, Model]:
    """F_k(w) = 1/2 sum_i a_i w_i^2 - <c_k, w>, a from 1 to kappa and sum_k c_k = 0, so that w* = 0.

    Every coordinate has the same part of f(w^0) = 3.
    """
    a, rng = np.geomspace(1.0, kappa, 6), np.random.default_rng(0)
    c = np.sqrt(a) * rng.normal(size=(5, 6))
    c -= c.mean(axis=0)
    federation = Federation.from_arrays([(a[None], c_k[None]) for c_k in c])
    model = Model(
        lambda _: jnp.asarray(1 / np.sqrt(a), jnp.float32),
        lambda w, x: jnp.stack([x * w / 2, jnp.broadcast_to(w, x.shape)], axis=-1),
        lambda z, y: ((z[..., 0] - y) * z[..., 1]).sum(axis=-1),
        None,
    )
    return federation, model


def rounds_until(kappa: int, method: Any, *, rounds: int, every: int, seeds: int) -> float:
    """Mean number of rounds after which f stays below 1e-4 f(w^0)."""
    federation, model = shifted(kappa)
    runs = simulate(
        federation,
        model,
        method,
        solver=Solver(1 / kappa, "all", steps=1),
        cohort=Cohort(5),
        rounds=rounds,
        seed=list(range(seeds)),
        evaluation=Evaluation(every=every, gradients=False),
    )
    found = []
    for run in runs:
        assert run.history[0].train_loss == pytest.approx(3, rel=1e-4)
        above = [record.round for record in run.history if record.train_loss > 3e-4]
        assert above[-1] < rounds, run.label
        found.append(above[-1] + every)
    return float(np.mean(found))


@pytest.mark.slow
def test_exchanges_grow_with_the_root_of_the_condition_number() -> None:
    """With kappa 16 times as large, 4 times as many rounds, and 16 times for gradient descent."""
    ours = [
        rounds_until(kappa, scaffnew(p=kappa**-0.5), rounds=rounds, every=1, seeds=5)
        for kappa, rounds in ((16, 50), (256, 160))
    ]
    equal = fedsgd()._replace(average="clients")
    descent = [
        rounds_until(kappa, equal, rounds=5 * kappa, every=kappa // 16, seeds=1)
        for kappa in (16, 256)
    ]
    print("rounds:", ours, descent)
    assert 3 < ours[1] / ours[0] < 5, ours
    assert 14 < descent[1] / descent[0] < 18, descent
    assert ours[1] < descent[1] / 10


def test_it_goes_on_to_the_minimiser() -> None:
    federation = ragged_quadratics(0, ROWS)
    run = one_run(federation, quadratic_model(START), scaffnew(p=0.25), STEP, rounds=120)
    assert distance(run, methods.minimiser(federation)) < 1e-4


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
    federation, model = ragged_quadratics(0, ROWS), quadratic_model(START)
    with pytest.raises(
        InputError, match=r"^scaffnew: it needs every client in every round, so "
    ) as error:
        one_run(federation, model, scaffnew(p=0.5), STEP, **options)
    assert f"so {message} does not fit; " in str(error.value)


def test_privacy_is_refused() -> None:
    privacy = Privacy(1.0, noise_multiplier=1.0)
    with pytest.raises(InputError, match="scaffnew: everyone takes part, so cohorts are not sampl"):
        one_run(
            ragged_quadratics(0, ROWS),
            quadratic_model(START),
            scaffnew(p=0.5),
            STEP,
            privacy=privacy,
        )


@pytest.mark.parametrize("p", [0.0, -0.1, 1.5, math.nan, [0.1, 0.2], 1e-40])
def test_p_is_a_probability_above_0(p: Any) -> None:
    why = "is beyond single precision" if p == 1e-40 else "must be .*above 0 and at most 1"
    with pytest.raises(InputError, match=rf"scaffnew: p = .*; it {why}"):
        scaffnew(p)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optimizer": optax.adam}, "solver.optimizer = sgd without options"),
        (
            {"optimizer": functools.partial(optax.sgd, momentum=0.9)},
            "solver.optimizer = sgd without options",
        ),
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
        one_run(ragged_quadratics(0, ROWS), quadratic_model(START), mine, STEP)
