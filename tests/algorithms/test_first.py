"""What clients compute at w^t before their work: the first cohort's gradients, and losses."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.base import add_scaled
from fedprox.streams import Purpose
from tests import methods
from tests.byhand import START
from tests.quadratics import one_run, quadratic_model, ragged_quadratics

ROWS = [3, 1, 7, 4, 2]
FEDERATION, MODEL = ragged_quadratics(0, ROWS), quadratic_model(START)
CLIENT_ROWS = [methods.rows_of(FEDERATION, k) for k in range(len(ROWS))]
A = [x[0] for x, _ in CLIENT_ROWS]
STEP = fp.Solver(0.1, "all", steps=1)


def gradients(w: Any) -> Any:
    """grad F_k(w) of every client."""
    return np.array([methods.gradient(w, *rows) for rows in CLIENT_ROWS])


def test_the_mean_gradient_of_feddane_is_of_a_cohort_of_its_own() -> None:
    """Also with replacement; the oracle's cohorts are uniform."""
    cohort, offsets = fp.Cohort(2, sampling="proportional"), FEDERATION.train.offsets
    differ = 0
    runs = fp.simulate(
        FEDERATION,
        MODEL,
        fp.feddane(mu=0.5),
        solver=STEP,
        cohort=cohort,
        rounds=1,
        seed=[0, 1, 2, 3],
        evaluation=fp.Evaluation(gradients=False),
    )
    for run in runs:
        first = cohort.draw(run.seed, 0, offsets, Purpose.GRADIENT_COHORT)
        differ += set(first.clients) != set(cohort.draw(run.seed, 0, offsets).clients)
        mean = np.average(gradients(START)[first.clients], axis=0, weights=first.mass)
        # one step from w^t: grad h_k(w^t) = g^t, whoever takes it
        np.testing.assert_allclose(run.params, START - 0.1 * mean, rtol=1e-5)
        assert [record.communication for record in run.history] == [0, 2]
    assert differ > 0


@pytest.mark.slow
def test_gamma_is_of_the_corrected_problem() -> None:
    """Of FedDANE, where h_k begins with the gradient of f."""
    solver = fp.Solver(0.1, "all", steps=4)
    run = one_run(FEDERATION, MODEL, fp.feddane(mu=0.7), solver, evaluation=fp.Evaluation())
    of_f = np.average(gradients(START), axis=0, weights=ROWS)
    eye = np.eye(len(START))
    left = [np.linalg.matrix_power(eye - 0.1 * (a + 0.7 * eye), 4) @ of_f for a in A]
    gammas = np.linalg.norm(left, axis=1) / np.linalg.norm(of_f)
    assert run.final.gamma_mean == pytest.approx(gammas.mean(), rel=1e-4)


@pytest.mark.slow
def test_gamma_is_reached_with_corrected_mini_batches() -> None:
    run = one_run(FEDERATION, MODEL, fp.mime(), fp.Solver(0.1, 2, epochs=30, gamma=0.3), rounds=2)
    assert run.final.gamma_max is not None
    assert 0 < run.final.gamma_max <= 0.3


def losses_of(w: Any) -> Any:
    """F_k(w) of every client."""
    of = [np.einsum("bi,bij,bj->b", w - y, x, w - y).mean() / 2 for x, y in CLIENT_ROWS]
    return np.array(of)


@pytest.mark.slow
@pytest.mark.parametrize("own_gradient", [False, True])
def test_clients_know_their_loss_at_the_rounds_model(own_gradient: bool) -> None:
    """A method whose model moves along a fixed direction by the mean of F_k(w^t)^2."""

    def update(params: Any, mean: Any, hparams: Any) -> Any:
        del hparams
        return add_scaled(params, mean, jnp.ones(3) / 100)

    def message(state: Any, hparams: Any, context: Any, solution: Any) -> tuple[Any, Any]:
        del state, solution
        return hparams["scale"] * context.loss**2, context.state

    mine = fp.Algorithm(
        "mine",
        lambda params, _, context: fp.Subproblem(params, context.loss, params),
        hparams={"scale": 2.0},
        stragglers="keep",
        average="clients",
        # gamma is measured with the loss, too
        first=fp.First(gradient=own_gradient, loss=True),
        client=fp.OnClient(message=message, size=jnp.abs),
        server=fp.OnServer(update=update),
    )
    run = one_run(FEDERATION, MODEL, mine, STEP, rounds=3, evaluation=fp.Evaluation())
    w = START
    for _ in range(3):
        before, w = w, w + 2 * (losses_of(w) ** 2).mean() / 100
    np.testing.assert_allclose(run.params, w, rtol=1e-4)
    gamma = []  # after a step of 0.1 from the anchor, grad h_k is (1 - 0.1 (A + F_k)) g
    for a, g, loss in zip(A, gradients(before), losses_of(before), strict=True):
        left = g - 0.1 * (a + loss * np.eye(3)) @ g
        gamma.append(np.linalg.norm(left) / np.linalg.norm(g))
    assert run.final.gamma_mean == pytest.approx(np.mean(gamma), rel=1e-3)


def test_losses_are_fairer_with_q() -> None:
    """The largest loss and the spread of the losses, of the oracle that runs of q-FedAvg equal."""
    spread, largest = [], []
    for q in (0.0, 1.0, 5.0):
        oracle = methods.QFfl(START, FEDERATION, q)
        path = methods.run(oracle, FEDERATION, solver=STEP, cohort=fp.Cohort(5), rounds=400)
        losses = losses_of(path.server[-1])
        spread.append(np.std(losses))
        largest.append(np.max(losses))
    assert spread[0] > 1.1 * spread[1], spread
    assert spread[1] > 1.03 * spread[2], spread
    assert largest[0] > largest[1] > largest[2], largest
