"""Mime and MimeLite against a loop by the paper, FedDANE and closed forms."""

import functools
from typing import Any

import numpy as np
import optax
import pytest

from fedprox import (
    Cohort,
    Evaluation,
    InputError,
    Privacy,
    Solver,
    Systems,
    feddane,
    mime,
    simulate,
)
from tests import methods
from tests.byhand import START, distance
from tests.methods import Vector
from tests.quadratics import one_run, quadratic_model, ragged_quadratics
from tests.variants import mostly_slow

ROWS = [3, 1, 7, 4, 2, 5]
SOLVER = Solver(0.05, "all", steps=5)
SLOW = Systems(deadline=4.5, step_seconds=[9.0, 1.0, 0.1, 2.0, 0.5, 1.0])
"""One client never takes a step, and three take some."""


def by_the_paper(federation: Any, beta: float, *, lite: bool, rounds: int) -> Vector:
    """y <- y - eta ((1 - beta) (g + correction) + beta m), with m fixed, and eta (1 - beta) = 0.05.

    m <- (1 - beta) mean grad F_k(w^t) + beta m, over the clients that take steps.
    """
    train, eta = federation.train, 0.05 / (1 - beta)
    rows = [methods.rows_of(federation, k) for k in range(len(federation))]
    w, m = START.copy(), np.zeros(3)
    for t in range(rounds):
        chosen = Cohort(4).draw(0, t, train.offsets).clients
        steps = SLOW.work(0, t, chosen, train.sizes[chosen], SOLVER).steps
        work = {int(k): int(n) for k, n in zip(chosen, steps, strict=True) if n}
        own = {k: methods.gradient(w, *rows[k]) for k in work}
        mean = np.mean(list(own.values()), axis=0)
        found = []
        for k, n in work.items():
            y = w
            for _ in range(n):
                g = methods.gradient(y, *rows[k])
                if not lite:
                    g = g - own[k] + mean
                y = y - eta * ((1 - beta) * g + beta * m)
            found.append(y)
        w, m = np.mean(found, axis=0), (1 - beta) * mean + beta * m
    return w


@pytest.mark.parametrize("lite", [False, True])
def test_rounds_are_the_papers(lite: bool) -> None:
    federation = ragged_quadratics(0, ROWS)
    runs = simulate(
        federation,
        quadratic_model(START),
        mime(beta=[0.0, 0.6, 0.9], lite=lite),
        solver=SOLVER,
        cohort=Cohort(4),
        systems=SLOW,
        rounds=6,
        evaluation=Evaluation(every=6, gradients=False),
    )
    for run in runs:
        expected = by_the_paper(federation, run.hparams["beta"], lite=lite, rounds=6)
        np.testing.assert_allclose(run.params, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("evaluated", mostly_slow(["server", "cohort"], "server"))
def test_without_momentum_and_with_everyone_it_is_feddane_without_mu(evaluated: Any) -> None:
    federation, model = ragged_quadratics(0, ROWS), quadratic_model(START)
    setting: dict[str, Any] = {
        "solver": Solver(0.05, 2, epochs=2),
        "rounds": 4,
        "evaluation": Evaluation(model=evaluated, gradients=False),
    }
    ours = one_run(federation, model, mime(beta=0.0), **setting)
    theirs = one_run(federation, model, feddane(mu=0.0)._replace(average="clients"), **setting)
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-5)


def test_the_correction_takes_mime_to_the_minimiser_and_mimelite_elsewhere() -> None:
    federation, star = ragged_quadratics(0, ROWS), methods.minimiser(ragged_quadratics(0, ROWS))
    setting: dict[str, Any] = {"solver": Solver(0.02, "all", steps=8), "rounds": 150}
    ours = one_run(federation, quadratic_model(START), mime(beta=0.5), **setting)
    lite = one_run(federation, quadratic_model(START), mime(beta=0.5, lite=True), **setting)
    assert distance(ours, star) < 1e-4
    assert distance(lite, star) > 0.02


@pytest.mark.parametrize("beta", [1.0, [0.5, 1.5]])
def test_beta_must_be_below_1(beta: Any) -> None:
    with pytest.raises(InputError, match=r"mime: beta = 1\.[05]; it must be below 1"):
        mime(beta)


@pytest.mark.parametrize("optimizer", [functools.partial(optax.sgd, momentum=0.9), optax.adam])
def test_clients_take_steps_of_plain_sgd(optimizer: Any) -> None:
    with pytest.raises(InputError, match=r"mime needs solver.optimizer = sgd without options"):
        mime().solver(Solver(0.1, "all", steps=2, optimizer=optimizer))


def test_two_releases_of_one_cohort_are_refused_with_privacy() -> None:
    federation, privacy = ragged_quadratics(0, [1, 2]), Privacy(1.0, noise_multiplier=1.0)
    with pytest.raises(InputError, match=r"mime: one cohort would release .*, so privacy does not"):
        one_run(federation, quadratic_model(START), mime(), SOLVER, privacy=privacy)


def test_another_cohort_than_these_is_refused() -> None:
    none: Any = "none"
    mine = mime()._replace(name="mine", exchange_cohort=none)
    with pytest.raises(InputError, match=r"mine: exchange_cohort = 'none'; .* another, own"):
        one_run(ragged_quadratics(0, [1, 2]), quadratic_model(START), mine, SOLVER)
