"""Clients' own models: Ditto, pFedMe and fine-tuning, on quadratics with closed forms."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.loop import local
from tests.quadratics import Vector, one_run, quadratic_model, random_quadratics

CLIENTS, D = 5, 3
START = np.full(D, 2.0)
A, B = random_quadratics(0, CLIENTS, D)
EXACT = fp.Solver(0.05, "all", steps=1500)
SHORT = fp.Solver(0.05, "all", steps=3)
SOME = fp.Cohort(2)


def federation() -> fp.Federation:
    """One training example of each client, which is its test example too."""
    examples = [(a[None], b[None]) for a, b in zip(A, B, strict=True)]
    return fp.Federation.from_arrays(examples, test=examples)


def loss(k: int, w: Vector) -> float:
    """F_k(w)."""
    return float(0.5 * (w - B[k]) @ A[k] @ (w - B[k]))


def near(k: int, lam: float, w: Vector) -> Vector:
    """argmin F_k(v) + lambda / 2 ||v - w||^2."""
    return np.asarray(np.linalg.solve(A[k] + lam * np.eye(D), A[k] @ B[k] + lam * w), float)


def trained(method: Any, rounds: int, solver: fp.Solver = EXACT, **options: Any) -> fp.Run:
    return one_run(federation(), quadratic_model(START), method, solver, rounds=rounds, **options)


def test_ditto_solves_the_personal_problem_at_the_global_model() -> None:
    before = trained(fp.fedprox(mu=0.0), 1, EXACT)
    lams = (0.0, 0.7, 10.0)
    runs = fp.simulate(
        federation(),
        quadratic_model(START),
        fp.ditto(lam=lams),
        solver=EXACT,
        cohort=fp.Cohort(CLIENTS),
        rounds=2,
        evaluation=fp.Evaluation(gradients=False),
        progress=False,
    )
    w = np.asarray(before.params, float)
    for lam, run in zip(lams, runs, strict=True):
        expected = np.mean([loss(k, near(k, lam, w)) for k in range(CLIENTS)])
        assert run.final.personal_loss == pytest.approx(expected, rel=1e-3, abs=1e-5)
        assert run.final.personal_clients == CLIENTS
        if lam == 0.0:  # local models
            assert expected == pytest.approx(0.0)


def test_the_other_problem_may_know_what_the_own_models_problem_does_not() -> None:
    """Losses and gradients at w^t are computed for the global problem alone."""
    knowing = fp.ditto(lam=0.7)._replace(
        first=fp.ditto(lam=0.7).first._replace(loss=True, gradient=True)
    )
    runs = [trained(m, 2, SHORT, cohort=SOME) for m in (fp.ditto(lam=0.7), knowing)]
    assert runs[0].final.personal_loss == runs[1].final.personal_loss
    np.testing.assert_array_equal(*[run.params for run in runs])

    def by_loss(state: Any, hparams: Any, context: Any) -> fp.Subproblem:
        del hparams
        return fp.Subproblem(state, mu=1 * context.loss, anchor=state)

    assert knowing.personal is not None
    reads = knowing._replace(personal=knowing.personal._replace(subproblem=by_loss))
    with pytest.raises(fp.InputError, match=r"ditto: personal\.subproblem\(.*NoneType"):
        trained(reads, 1, SHORT)


def test_for_a_large_lambda_the_personal_models_are_the_global_one() -> None:
    solver = fp.Solver(1e-4, "all", steps=2000)
    before, run = (trained(m, t, solver) for m, t in ((fp.fedavg(), 1), (fp.ditto(lam=5e3), 2)))
    w = np.asarray(before.params, float)
    expected = np.mean([loss(k, w) for k in range(CLIENTS)])
    assert run.final.personal_loss == pytest.approx(expected, rel=5e-3)


def test_the_global_model_is_that_of_fedprox_without_a_proximal_term() -> None:
    settings: dict[str, Any] = {
        "cohort": SOME,
        "systems": fp.Systems(stragglers=0.5),
        "solver": fp.Solver(0.05, "all", epochs=4),
    }
    alone = trained(fp.fedprox(mu=0.0), 5, **settings)
    run = trained(fp.ditto(lam=1.0), 5, **settings)
    np.testing.assert_allclose(run.params, alone.params, rtol=1e-6)
    assert [r.train_loss for r in run.history] == pytest.approx(
        [r.train_loss for r in alone.history], rel=1e-6
    )


def cohorts(rounds: int, seed: int = 0) -> list[set[int]]:
    offsets = federation().train.offsets
    return [set(SOME.draw(seed, t, offsets).clients.tolist()) for t in range(rounds)]


def test_clients_that_have_not_taken_part_are_counted_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lam = 0.7
    first = trained(fp.ditto(lam=lam), 1, cohort=SOME)
    for block in (2, 64):  # which does not divide the clients, or exceeds them
        monkeypatch.setattr(local, "BLOCK", block)
        run = trained(fp.ditto(lam=lam), 2, cohort=SOME)
        record, last = run.final, np.asarray(run.params, float)
        own: dict[int, Vector] = {}
        for w, cohort in zip((START, np.asarray(first.params, float)), cohorts(2), strict=True):
            own |= {k: near(k, lam, w) for k in cohort}
        others = set(range(CLIENTS)) - own.keys()
        assert others
        assert record.personal_clients == len(own)
        expected = np.mean([loss(k, v) for k, v in own.items()])
        assert record.personal_loss == pytest.approx(expected, rel=1e-3)
        new = np.mean([loss(k, last) for k in others])
        assert record.newcomer_loss == pytest.approx(new, rel=1e-3)


def test_ditto_goes_on_from_the_own_models() -> None:
    """With few steps, so that it shows where they start."""
    lam, rate, steps, rounds = 0.7, 0.05, 3, 4
    w, own = START, dict[int, Vector]()
    for cohort in cohorts(rounds):
        answers = []
        for k in cohort:
            v, u = own.get(k, w), w
            for _ in range(steps):
                v = v - rate * (A[k] @ (v - B[k]) + lam * (v - w))
                u = u - rate * A[k] @ (u - B[k])
            own[k] = v
            answers.append(u)
        w = np.mean(answers, axis=0)
    assert sum(map(len, cohorts(rounds))) > len(own)  # some clients took part twice
    run = trained(fp.ditto(lam=lam), rounds, fp.Solver(rate, "all", steps=steps), cohort=SOME)
    np.testing.assert_allclose(run.params, w, rtol=1e-5)
    expected = np.mean([loss(k, v) for k, v in own.items()])
    assert run.final.personal_loss == pytest.approx(expected, rel=1e-5)


def test_before_the_first_round_everybody_is_new() -> None:
    record = trained(fp.ditto(lam=1.0), 1).history[0]
    assert record.personal_clients == 0
    assert record.personal_loss is not None
    assert np.isnan(record.personal_loss)
    assert record.newcomer_loss == pytest.approx(record.test_loss)


STEPS, RATE = 7, 0.05


def after_steps(k: int, w: Vector) -> Vector:
    """The model after steps of gradient descent on F_k."""
    return B[k] + np.linalg.matrix_power(np.eye(D) - RATE * A[k], STEPS) @ (w - B[k])


def test_fine_tuning_takes_local_steps_from_the_last_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluation = fp.Evaluation(gradients=False, fine_tune=STEPS)
    solver = fp.Solver(RATE, "all", epochs=3)
    plain = trained(fp.feddyn(alpha=1.0), 3, solver, cohort=SOME)
    assert plain.final.personal_loss is None
    w = np.asarray(plain.params, float)
    expected = np.mean([loss(k, after_steps(k, w)) for k in range(CLIENTS)])
    for block in (2, 64):
        monkeypatch.setattr(local, "BLOCK", block)
        run = trained(fp.feddyn(alpha=1.0), 3, solver, cohort=SOME, evaluation=evaluation)
        np.testing.assert_array_equal(run.params, plain.params)
        assert run.final.personal_loss == pytest.approx(expected, rel=1e-4)
        assert run.final.personal_clients == CLIENTS


def test_clients_without_a_model_of_their_own_are_fine_tuned() -> None:
    evaluation = fp.Evaluation(gradients=False, fine_tune=STEPS)
    solver = fp.Solver(RATE, "all", epochs=200)
    run = trained(fp.ditto(lam=0.7), 1, solver, cohort=SOME, evaluation=evaluation)
    new = set(range(CLIENTS)) - cohorts(1)[0]
    w = np.asarray(run.params, float)
    expected = np.mean([loss(k, after_steps(k, w)) for k in new])
    assert run.final.newcomer_loss == pytest.approx(expected, rel=1e-3)


def test_pfedme_ends_at_the_minimiser_of_the_envelopes() -> None:
    lam = 1.5
    run = trained(fp.pfedme(lam=lam, eta=0.5, beta=1.2), 60)
    # the gradient of an envelope is lambda (w - near(w)) = M_k (w - b_k)
    m = [lam * np.linalg.solve(a + lam * np.eye(D), a) for a in A]
    star = np.linalg.solve(sum(m), sum(m_k @ b for m_k, b in zip(m, B, strict=True)))
    np.testing.assert_allclose(run.params, star, atol=1e-3)
    expected = np.mean([loss(k, near(k, lam, star)) for k in range(CLIENTS)])
    assert run.final.personal_loss == pytest.approx(expected, rel=1e-2)
    assert np.linalg.norm(star - np.linalg.solve(sum(A), sum(map(np.matmul, A, B)))) > 0.05


def test_pfedme_with_the_largest_step_is_fedprox() -> None:
    solver = fp.Solver(0.05, "all", epochs=4)
    one = trained(fp.pfedme(lam=2.0, eta=0.5), 4, solver)
    other = trained(fp.fedprox(mu=2.0), 4, solver)  # clients have equally many rows
    np.testing.assert_allclose(one.params, other.params, rtol=1e-5)


# after each of 7 steps, after some and the last, with a stop rule too, and after the last alone
@pytest.mark.parametrize(
    ("inner_steps", "gamma"), [(1, None), (3, None), (3, 1e-9), (20, None)], ids=str
)
def test_pfedme_moves_the_centre_after_every_k_steps(inner_steps: int, gamma: float | None) -> None:
    lam, eta, beta, rate, steps, rounds = 2.0, 0.3, 1.5, 0.05, 7, 3
    w = START
    for _ in range(rounds):
        moved, own = [], []
        for a, b in zip(A, B, strict=True):
            theta, centre = w, w
            for step in range(1, steps + 1):
                theta = theta - rate * (a @ (theta - b) + lam * (theta - centre))
                if step % inner_steps == 0 or step == steps:
                    centre = centre - eta * lam * (centre - theta)
            moved.append(centre - w)
            own.append(theta)
        w = w + beta * np.mean(moved, axis=0)
    method = fp.pfedme(lam=lam, eta=eta, beta=beta, inner_steps=inner_steps)
    run = trained(method, rounds, fp.Solver(rate, "all", steps=steps, gamma=gamma))
    np.testing.assert_allclose(run.params, w, rtol=1e-5)
    expected = np.mean([loss(k, theta) for k, theta in enumerate(own)])
    assert run.final.personal_loss == pytest.approx(expected, rel=1e-5)


def test_pfedme_counts_steps_and_not_parts_of_a_wide_batch() -> None:
    wide = fp.Federation.from_arrays(
        [
            (np.repeat(a[None], 300, axis=0), np.repeat(b[None], 300, axis=0))
            for a, b in zip(A, B, strict=True)
        ]
    )
    solver, method = fp.Solver(0.05, "all", steps=7), fp.pfedme(2.0, eta=0.3, inner_steps=3)
    narrow = trained(method, 3, solver)
    whole = one_run(wide, quadratic_model(START), method, solver, rounds=3)
    np.testing.assert_allclose(whole.params, narrow.params, rtol=1e-5)


def test_sweep_points_and_seeds_have_their_own_models() -> None:
    solver = fp.Solver(0.05, "all", epochs=20)

    def runs(lam: Any, seed: Any) -> list[fp.Run]:
        return fp.simulate(
            federation(),
            quadratic_model(START),
            fp.ditto(lam=lam),
            solver=solver,
            cohort=SOME,
            rounds=3,
            seed=seed,
            evaluation=fp.Evaluation(every=3, gradients=False, fine_tune=5),
            progress=False,
        )

    together = runs([0.5, 3.0], [0, 1])
    for a, (lam, seed) in zip((together[0], together[3]), ((0.5, 0), (3.0, 1)), strict=True):
        (b,) = runs(lam, seed)
        for name in ("personal_clients", "personal_loss", "newcomer_loss"):
            assert getattr(a.final, name) == pytest.approx(getattr(b.final, name), rel=1e-5)
    assert len({run.final.personal_loss for run in together}) == 4


def test_a_resumed_run_has_the_same_own_models(tmp_path: Path) -> None:
    def stop(record: fp.Record) -> None:
        if record.round == 3:
            raise ValueError("stopped")

    def run(*, resume: bool, **options: Any) -> fp.Run:
        checkpoints = fp.Checkpoints(tmp_path / "now", every=1, resume=resume)
        return trained(fp.ditto(lam=0.7), 4, cohort=SOME, checkpoints=checkpoints, **options)

    whole = trained(fp.ditto(lam=0.7), 4, cohort=SOME)
    with pytest.raises(fp.InputError, match="stopped"):
        run(resume=False, callbacks=[fp.Callback(on_record=stop)])
    resumed = run(resume=True)
    assert resumed.final.personal_loss == whole.final.personal_loss
    assert resumed.final.newcomer_loss == whole.final.newcomer_loss


def test_own_models_need_the_servers_model_to_be_evaluated() -> None:
    evaluation = fp.Evaluation(model="clients")
    with pytest.raises(fp.InputError, match="ditto: its clients have models of their own, so ev"):
        trained(fp.ditto(lam=1.0), 1, evaluation=evaluation)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"own": lambda state, _: state.model},
            "ditto: personal.own.* gives .*; it must be like a",
        ),
        ({"keep": None}, "ditto: personal has one of subproblem and keep; give both or neither"),
        ({"keep": lambda *given: given[1]}, "ditto: personal.keep.* gives .* the state before"),
        ({"subproblem": lambda *_: None}, r"personal.subproblem\(.*\) returns None; it must"),
    ],
)
def test_functions_that_do_not_fit_are_named(change: dict[str, Any], line: str) -> None:
    method = fp.ditto(lam=1.0)
    assert method.personal is not None
    with pytest.raises(fp.InputError, match=line):
        trained(method._replace(personal=method.personal._replace(**change)), 1)
