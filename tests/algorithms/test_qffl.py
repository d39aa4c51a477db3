"""q-FedAvg against its formula, FedAvg and the oracle; and clients' own losses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprox import (
    Algorithm,
    Cohort,
    Evaluation,
    Federation,
    InputError,
    Model,
    Privacy,
    Solver,
    Subproblem,
    datasets,
    evaluate,
    fedavg,
    models,
    qffl,
    simulate,
)
from fedprox.algorithms.base import First, OnClient, OnServer, add_scaled
from tests import methods
from tests.byhand import START, beside_the_oracle
from tests.quadratics import (
    one_run,
    quadratic_federation,
    quadratic_model,
    ragged_quadratics,
    random_quadratics,
)
from tests.variants import mostly_slow

ROWS = [3, 70, 1, 7]


def losses_of(federation: Any, w: Any) -> np.ndarray[Any, Any]:
    """F_k(w) of every client."""
    found = []
    for k in range(len(federation)):
        x, y = methods.rows_of(federation, k)
        found.append(np.einsum("bi,bij,bj->b", w - y, x, w - y).mean() / 2)
    return np.array(found)


@pytest.mark.parametrize("gradients", mostly_slow([False, True], True))
@pytest.mark.parametrize("own_gradient", mostly_slow([False, True], False))
def test_clients_know_their_loss_at_the_rounds_model(own_gradient: bool, gradients: bool) -> None:
    """A method whose model moves along a fixed direction by the mean of F_k(w^t)^2."""

    def update(params: Any, mean: Any, hparams: Any) -> Any:
        del hparams
        return add_scaled(params, mean, jnp.ones(3) / 100)

    def local_problem(params: Any, hparams: Any, context: Any) -> Subproblem:
        del hparams
        return Subproblem(params, context.loss, params)

    def message(state: Any, hparams: Any, context: Any, solution: Any) -> tuple[Any, Any]:
        del state, solution
        return hparams["scale"] * context.loss**2, context.state

    mine = Algorithm(
        "mine",
        local_problem,
        hparams={"scale": [1.0, 2.0]},
        stragglers="keep",
        average="clients",
        # gamma is measured with the loss, too
        first=First(gradient=own_gradient, loss=True),
        client=OnClient(message=message, size=jnp.abs),
        server=OnServer(update=update),
    )
    federation = ragged_quadratics(1, ROWS)
    runs = simulate(
        federation,
        quadratic_model(START),
        mine,
        solver=Solver(0.1, "all", steps=1),
        cohort=Cohort(4),
        rounds=3,
        evaluation=Evaluation(gradients=gradients),
    )
    for run in runs:
        w = START.copy()
        for _ in range(3):
            before, w = w, w + run.hparams["scale"] * (losses_of(federation, w) ** 2).mean() / 100
        np.testing.assert_allclose(run.params, w, rtol=1e-4)
        if gradients:  # after a step of 0.1 from the anchor, grad h_k is (1 - 0.1 (A + F_k)) g
            gamma = []
            for k, loss in enumerate(losses_of(federation, before)):
                x, y = methods.rows_of(federation, k)
                g = methods.gradient(before, x, y)
                left = g - 0.1 * (x.mean(axis=0) + loss * np.eye(3)) @ g
                gamma.append(np.linalg.norm(left) / np.linalg.norm(g))
            assert run.final.gamma_mean == pytest.approx(np.mean(gamma), rel=1e-3)


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_one_round_is_the_papers(scale: float) -> None:
    """Two clients by hand: losses 2 and 1/2, gradients 2 and -1, L = 10, and q = 2."""
    minima = [np.array([-2.0 * scale]), np.array([scale])]
    federation = quadratic_federation([np.eye(1)] * 2, minima, [1, 4])
    run = one_run(federation, quadratic_model(np.zeros(1)), qffl(q=2), Solver(0.1, "all", steps=1))
    delta = 2.0**2 * 2.0 + 0.5**2 * -1.0
    bound = (2 * 2.0 * 4.0 + 10 * 2.0**2) + (2 * 0.5 * 1.0 + 10 * 0.5**2)
    np.testing.assert_allclose(run.params, [-scale * delta / bound], rtol=1e-5)


def test_runs_are_the_oracles() -> None:
    beside_the_oracle(
        qffl(q=[0.0, 0.3, 2.0]),
        lambda hparams, federation: methods.QFfl(START, federation, hparams["q"]),
    )


def test_without_q_it_is_fedavg_with_equal_weights() -> None:
    federation, model = ragged_quadratics(0, ROWS), quadratic_model(START)
    setting: dict[str, Any] = {
        "solver": Solver(0.1, 2, epochs=2),
        "cohort": Cohort(3),
        "rounds": 4,
    }
    ours = one_run(federation, model, qffl(q=0.0), **setting)
    theirs = one_run(federation, model, fedavg(average="clients"), **setting)
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-5)


def test_a_client_without_loss_moves_nothing() -> None:
    """0^0 and 0^(q-1) stay finite."""
    federation = quadratic_federation([np.eye(1)] * 2, [np.zeros(1), np.ones(1)])
    for run in simulate(
        federation,
        quadratic_model(np.zeros(1)),
        qffl(q=[0.0, 0.5, 1.0, 5.0]),
        solver=Solver(0.1, "all", steps=1),
        cohort=Cohort(2),
        rounds=1,
        evaluation=Evaluation(gradients=False),
    ):
        assert 0 < float(run.params[0]) <= 0.1, run.label


def test_a_negative_loss_gives_no_model() -> None:
    model = Model(lambda _: jnp.ones(1), lambda w, x: w * x[:, 0], lambda z, y: z - y - 9.0, None)
    federation = Federation.from_arrays([(np.ones((2, 1)), np.zeros(2))])
    run = one_run(federation, model, qffl(q=2.0), Solver(0.1, "all", steps=1))
    assert np.isnan(jax.tree.leaves(run.params)[0]).all()


@pytest.mark.slow
def test_losses_are_fairer_with_q() -> None:
    """On Synthetic(1,1) the largest loss and the spread of the losses fall with q."""
    federation = datasets.synthetic(alpha=1.0, beta=1.0, clients=12)
    model = models.logistic(federation)
    runs = simulate(
        federation,
        model,
        qffl(q=[0.0, 1.0, 5.0]),
        solver=Solver(0.05, "all", steps=1),
        cohort=Cohort(12),
        rounds=800,
        evaluation=Evaluation(every=800, gradients=False),
    )
    losses = [evaluate(model, run.params, federation).by_client["train_loss"] for run in runs]
    spread, largest = [np.std(each) for each in losses], [np.max(each) for each in losses]
    assert spread[0] > 1.1 * spread[1] > 1.1**2 * spread[2], spread
    assert largest[0] > largest[1] > largest[2], largest


def test_privacy_is_refused() -> None:
    a, b = random_quadratics(0, 2, 3)
    privacy, solver = Privacy(1.0, noise_multiplier=1.0), Solver(0.1, "all", steps=1)
    with pytest.raises(InputError, match=r"qffl: a message holds a bound .*, so privacy.unit"):
        one_run(
            quadratic_federation(a, b), quadratic_model(START), qffl(1.0), solver, privacy=privacy
        )
