"""Clients' own models: Ditto, pFedMe and fine-tuning, on quadratics with closed forms."""

from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.engine.planning import batch_plan
from fedprox.loop import local
from tests import methods
from tests.quadratics import Vector, one_run, quadratic_model, ragged_quadratics

ROWS = [3, 1, 5, 2, 4]
CLIENTS, D = len(ROWS), 3
START = np.full(D, 2.0)
TRAIN = ragged_quadratics(0, ROWS)
CLIENT_ROWS = [methods.rows_of(TRAIN, k) for k in range(CLIENTS)]
FEDERATION = fp.Federation.from_arrays(CLIENT_ROWS, test=CLIENT_ROWS)
A, B = [x[0] for x, _ in CLIENT_ROWS], [y.mean(axis=0) for _, y in CLIENT_ROWS]
"""F_k is 1/2 (w - b_k)' A_k (w - b_k) and a constant."""

SOME, RATE, STEPS = fp.Cohort(2), 0.05, 7


def loss(models: dict[int, Vector]) -> float:
    """The mean over the rows of some clients, each with its model; NaN without clients."""
    each = [np.empty(0)]
    for k, w in models.items():
        away = w - CLIENT_ROWS[k][1]
        each.append(0.5 * np.einsum("bi,ij,bj->b", away, A[k], away))
    rows = np.concatenate(each)
    return float(rows.mean()) if len(rows) else np.nan


def trained(method: Any, rounds: int, solver: fp.Solver, **options: Any) -> fp.Run:
    return one_run(FEDERATION, quadratic_model(START), method, solver, rounds=rounds, **options)


def after_steps(k: int, w: Vector) -> Vector:
    """The model after steps of gradient descent on F_k."""
    return B[k] + np.linalg.matrix_power(np.eye(D) - RATE * A[k], STEPS) @ (w - B[k])


@pytest.mark.slow
def test_dittos_models_of_clients_and_of_the_server_are_descents_on_their_problems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every sweep point and seed; stragglers take fewer steps on both problems."""
    monkeypatch.setattr(local, "BLOCK", 2)  # which does not divide the clients
    solver, systems = fp.Solver(RATE, "all", epochs=4), fp.Systems(stragglers=0.5)
    runs = fp.simulate(
        FEDERATION,
        quadratic_model(START),
        fp.ditto(lam=[0.0, 3.0]),
        solver=solver,
        cohort=SOME,
        systems=systems,
        rounds=4,
        seed=[0, 1],
        evaluation=fp.Evaluation(gradients=False),
    )
    sizes, again = FEDERATION.train.sizes, 0
    for run in runs:
        lam, w, own = run.hparams["lam"], START, dict[int, Vector]()
        for record in run.history:
            new = {k: w for k in range(CLIENTS) if k not in own}
            assert record.personal_clients == len(own)
            for found, models in ((record.personal_loss, own), (record.newcomer_loss, new)):
                assert found == pytest.approx(loss(models), rel=1e-4, nan_ok=True)
            if record.round == 4:
                break
            chosen = SOME.draw(run.seed, record.round, FEDERATION.train.offsets).clients
            work = systems.work(run.seed, record.round, chosen, sizes[chosen], solver)
            answers = []
            for k, steps in zip(map(int, chosen), work.steps, strict=True):
                again += k in own
                v, u = own.get(k, w), w
                for _ in range(steps):
                    v = v - RATE * (A[k] @ (v - B[k]) + lam * (v - w))
                    u = u - RATE * A[k] @ (u - B[k])
                own[k] = v
                answers.append(u)
            w = np.asarray(np.average(answers, axis=0, weights=sizes[chosen]))
        np.testing.assert_allclose(run.params, w, rtol=1e-4)
    assert again


KNOWING = fp.ditto(lam=0.7)._replace(
    first=fp.ditto(lam=0.7).first._replace(loss=True, gradient=True)
)


@pytest.mark.slow
def test_the_other_problem_may_know_what_the_own_models_problem_does_not() -> None:
    """Losses and gradients at w^t are computed for the global problem alone."""
    solver = fp.Solver(RATE, "all", steps=3)
    runs = [trained(m, 2, solver, cohort=SOME) for m in (fp.ditto(lam=0.7), KNOWING)]
    assert runs[0].final.personal_loss == runs[1].final.personal_loss
    np.testing.assert_array_equal(*[run.params for run in runs])


def test_the_own_models_problem_cannot_read_the_loss() -> None:
    def by_loss(state: Any, hparams: Any, context: Any) -> fp.Subproblem:
        del hparams
        return fp.Subproblem(state, mu=1 * context.loss, anchor=state)

    assert KNOWING.personal is not None
    reads = KNOWING._replace(personal=KNOWING.personal._replace(subproblem=by_loss))
    with pytest.raises(fp.InputError, match=r"ditto: personal\.subproblem\(.*NoneType"):
        trained(reads, 1, fp.Solver(RATE, "all", steps=3))


@pytest.mark.slow
def test_fine_tuning_takes_local_steps_from_the_last_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "BLOCK", 2)
    evaluation = fp.Evaluation(gradients=False, fine_tune=STEPS)
    solver = fp.Solver(RATE, "all", epochs=3)
    run = trained(fp.feddyn(alpha=1.0), 3, solver, cohort=SOME, evaluation=evaluation)
    setting: dict[str, Any] = {"solver": solver, "cohort": SOME, "rounds": 3}
    w = methods.run(methods.FedDyn(START, CLIENTS, 1.0), FEDERATION, **setting).server[-1]
    np.testing.assert_allclose(run.params, w, rtol=1e-4)
    expected = loss({k: after_steps(k, w) for k in range(CLIENTS)})
    assert run.final.personal_loss == pytest.approx(expected, rel=1e-4)
    assert run.final.personal_clients == CLIENTS


@pytest.mark.slow
def test_clients_without_a_model_of_their_own_are_fine_tuned() -> None:
    evaluation = fp.Evaluation(gradients=False, fine_tune=STEPS)
    solver = fp.Solver(RATE, "all", epochs=5)
    run = trained(fp.ditto(lam=0.7), 1, solver, cohort=SOME, evaluation=evaluation)
    w, chosen = np.asarray(run.params, float), SOME.draw(0, 0, FEDERATION.train.offsets).clients
    expected = loss({k: after_steps(k, w) for k in range(CLIENTS) if k not in chosen})
    assert run.final.newcomer_loss == pytest.approx(expected, rel=1e-3)


def pfedme(
    lam: float, eta: float, beta: float, inner: int, solver: fp.Solver, rounds: int
) -> tuple[Vector, dict[int, Vector]]:
    """The server's model and the clients' own, when everyone takes part."""
    assert isinstance(solver.learning_rate, float)
    assert solver.steps is not None
    w, own = START, dict[int, Vector]()
    for _ in range(rounds):
        moved = []
        for k in range(CLIENTS):
            theta, centre = w, w
            for step in range(1, solver.steps + 1):
                gradient = A[k] @ (theta - B[k]) + lam * (theta - centre)
                theta = theta - solver.learning_rate * gradient
                if step % inner == 0 or step == solver.steps:
                    centre = centre - eta * lam * (centre - theta)
            moved.append(centre - w)
            own[k] = theta
        w = w + beta * np.mean(moved, axis=0)
    return w, own


@pytest.mark.parametrize(
    ("inner", "gamma"), [(3, None), pytest.param(3, 1e-9, marks=pytest.mark.slow)]
)
def test_pfedme_moves_the_centre_after_every_k_steps(
    inner: int, gamma: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not after parts of wide mini-batches; with a stop rule too."""
    monkeypatch.setattr(batch_plan, "WIDEST_TICK", 2)
    method = fp.pfedme(lam=2.0, eta=0.3, beta=1.5, inner_steps=inner)
    solver = fp.Solver(RATE, "all", steps=STEPS, gamma=gamma)
    run = trained(method, 3, solver)
    w, own = pfedme(2.0, 0.3, 1.5, inner, solver, 3)
    np.testing.assert_allclose(run.params, w, rtol=1e-5)
    assert run.final.personal_loss == pytest.approx(loss(own), rel=1e-5)


def test_pfedme_ends_at_the_minimiser_of_the_envelopes() -> None:
    lam = 1.5
    w, own = pfedme(lam, 0.5, 1.2, 60, fp.Solver(0.2, "all", steps=60), 40)
    # the gradient of an envelope is lambda (w - near(w)) = M_k (w - b_k)
    m = [lam * np.linalg.solve(a + lam * np.eye(D), a) for a in A]
    star = np.linalg.solve(sum(m), sum(m_k @ b for m_k, b in zip(m, B, strict=True)))
    np.testing.assert_allclose(w, star, atol=1e-3)
    for k, theta in own.items():
        near = np.linalg.solve(A[k] + lam * np.eye(D), A[k] @ B[k] + lam * star)
        np.testing.assert_allclose(theta, near, atol=2e-3)
    assert np.linalg.norm(star - methods.minimiser(FEDERATION)) > 0.05


def test_pfedme_with_the_largest_step_is_fedprox() -> None:
    solver = fp.Solver(RATE, "all", steps=4)
    w, _ = pfedme(2.0, 0.5, 1.0, 4, solver, 4)
    prox = methods.FedProx(START, CLIENTS, 2.0, by_rows=False)
    path = methods.run(prox, FEDERATION, solver=solver, cohort=fp.Cohort(CLIENTS), rounds=4)
    np.testing.assert_allclose(w, path.server[-1])


def test_own_models_need_the_servers_model_to_be_evaluated() -> None:
    evaluation = fp.Evaluation(model="clients")
    with pytest.raises(fp.InputError, match="ditto: its clients have models of their own, so ev"):
        trained(fp.ditto(lam=1.0), 1, fp.Solver(RATE, "all", steps=3), evaluation=evaluation)
