"""Gamma-inexact local solves, by any local solver."""

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.engine.compiled import layout
from fedprox.protocol.protocol import initial_params
from tests import oracle
from tests.engine.compiled.test_round import LOGISTIC, RAGGED, as_oracle, ragged_federation
from tests.quadratics import one_run, quadratic_federation, quadratic_model, random_quadratics
from tests.settings import CLIENTS, halves, runs

START = np.ones(3)
MODEL = quadratic_model(START)
A, B = random_quadratics(5, 4, 3)
ROWS = [1, 200, 3, 129]
SHARES = np.array(ROWS) / sum(ROWS)
QUADRATICS = quadratic_federation(A, B, rows=ROWS)
MU = [0.0, 1.0, 3.0]

SOLVERS: dict[str, dict[str, Any]] = {
    "mini-batches": {"learning_rate": 0.05, "batch_size": 3, "epochs": 100},
    "gradient descent": {"learning_rate": 0.2, "batch_size": "all", "steps": 2000},
    "line search": {
        "learning_rate": 4.0,
        "batch_size": "all",
        "steps": 300,
        "optimizer": fp.line_search_descent,
    },
    "L-BFGS": {"learning_rate": 1.0, "batch_size": "all", "steps": 60, "optimizer": optax.lbfgs},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_meets_its_gamma(name: str) -> None:
    found = runs(
        methods=fp.fedprox(mu=[0.5, 2.0]),
        solver=fp.Solver(**SOLVERS[name], gamma=0.2),
        evaluation=fp.Evaluation(),
        rounds=3,
    )
    for run in found:
        for record in run.history[1:]:
            assert 0 < record.gamma_max <= 0.2 * 1.001
            assert record.unsolved == 0
            assert record.client_steps > 0
        taken = np.cumsum([record.client_steps for record in run.history])
        assert [record.total_steps for record in run.history] == taken.tolist()
        assert run.client_steps == taken[-1]
    if "optimizer" not in SOLVERS[name]:  # a stronger proximal term makes the problem easier
        assert found[1].client_steps < found[0].client_steps


@pytest.mark.slow
def test_a_client_that_is_done_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # one after another nobody waits; side by side a client must not go on until the last is done
    solver = fp.Solver(**SOLVERS["line search"], gamma=0.6)
    found = []
    for lanes in (1, 4):
        monkeypatch.setattr(layout, "choose_lanes", lambda *_, lanes=lanes: lanes)
        run = one_run(QUADRATICS, MODEL, fp.fedprox(mu=0.1), solver, devices=1)
        found.append((run.client_steps, np.asarray(run.params)))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5)


MOST = 400


def stopped(
    eta: float, gamma: Any, mu: list[float], federation: fp.Federation = QUADRATICS
) -> list[fp.Run]:
    """Four rounds of gradient descent, two a call, in which all clients take part."""
    return fp.simulate(
        federation,
        MODEL,
        fp.fedprox(mu=mu),
        solver=fp.Solver(eta, "all", steps=MOST, gamma=gamma),
        cohort=fp.Cohort(4),
        rounds=4,
        evaluation=fp.Evaluation(every=2),
    )


class Descent(NamedTuple):
    """A client after gradient descent, its steps, and the gamma that it reached."""

    params: Any
    steps: int
    gamma: float


def descent(k: int, start: Any, mu: float, eta: float, gamma: float, most: int = MOST) -> Descent:
    """Gradient descent on h_k until ||grad h_k(w)|| <= gamma ||grad h_k(start)||."""

    def gradient(w: Any) -> Any:
        return A[k] @ (w - B[k]) + mu * (w - start)

    w, steps, first = start, 0, np.linalg.norm(gradient(start))
    while np.linalg.norm(gradient(w)) > gamma * first and steps < most:
        w, steps = w - eta * gradient(w), steps + 1
    return Descent(w, steps, float(np.linalg.norm(gradient(w)) / first))


@pytest.mark.parametrize(("eta", "reaches"), [(0.1, True), (1e-4, False)])
def test_gradient_descent_stops_at_the_first_step_that_meets_gamma(
    eta: float, reaches: bool
) -> None:
    """Each client's own gamma of each round, or its limit where that comes first."""
    asked = np.array([0.6, 0.2, 0.9, 0.1])

    def gammas(round_: int, clients: np.ndarray) -> np.ndarray:
        return asked[clients] / (1 + round_)

    for run in stopped(eta, gammas, MU):
        w, steps = START, 0
        for t in range(4):
            wanted = gammas(t, np.arange(4))
            found = [descent(k, w, run.hparams["mu"], eta, wanted[k]) for k in range(4)]
            steps += sum(each.steps for each in found)
            w = SHARES @ [each.params for each in found]
            if t % 2 == 0:
                continue
            reached, record = [each.gamma for each in found], run.history[(t + 1) // 2]
            assert record.gamma_mean == pytest.approx(np.mean(reached), rel=1e-4)
            assert record.gamma_max == pytest.approx(max(reached), rel=1e-4)
            assert record.unsolved == (np.array(reached) > wanted).sum()
            assert (record.unsolved == 0) == reaches
            assert record.total_steps == steps
        np.testing.assert_allclose(run.params, w, rtol=1e-4, atol=1e-5)


def test_gamma_one_asks_for_no_work() -> None:
    for run in stopped(0.1, 1.0, MU):
        assert run.client_steps == 0
        assert run.final.gamma_mean == pytest.approx(1)
        assert run.history[0].train_loss == run.final.train_loss


@pytest.mark.slow
def test_mini_batches_stop_after_the_first_epoch_that_meets_gamma() -> None:
    # the same mini-batches as without a rule, cut at an epoch's end
    federation = ragged_federation([73])
    solver = fp.Solver(0.05, 10, epochs=60, gamma=0.25)
    run = one_run(federation, LOGISTIC, fp.fedprox(mu=0.3), solver)
    epochs, left = divmod(run.client_steps, 8)
    assert left == 0
    assert 1 < epochs < 60
    start, rows = as_oracle(initial_params(LOGISTIC, 0)), oracle.client_rows(federation, 0)

    def after(epochs: int) -> tuple[oracle.Params, float]:
        """The model after some epochs, and ||grad h||."""
        options: dict[str, Any] = {"cohort": fp.Cohort(1), "systems": fp.Systems(), "rounds": 1}
        solver = fp.Solver(0.05, 10, epochs=epochs)
        w = oracle.federated(
            federation, start, solver=solver, seed=0, mu=0.3, drop=False, **options
        )
        gradient = oracle.loss_and_gradient(w, *rows)[1]
        parts = zip(gradient, w, start, strict=True)
        return w, np.sqrt(sum(((g + 0.3 * (a - b)) ** 2).sum() for g, a, b in parts))

    first = np.sqrt(sum((g**2).sum() for g in oracle.loss_and_gradient(start, *rows)[1]))
    (exact, norm), (_, before) = after(epochs), after(epochs - 1)
    for x, y in zip(as_oracle(run.params), exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert norm / first <= 0.25 < before / first
    assert run.final.gamma_max == pytest.approx(norm / first, rel=1e-3)


def test_a_gamma_function_may_give_whole_numbers_and_both_bounds() -> None:
    clients = np.arange(3)
    solver = fp.Solver(0.1, "all", steps=5, gamma=lambda _, k: np.array([0, 1, 1])[k])
    assert solver.gammas(0, clients).tolist() == [0.0, 1.0, 1.0]
    assert replace(solver, gamma=0.25).gammas(0, clients).tolist() == [0.25] * 3
    assert replace(solver, gamma=None).gammas(0, clients).tolist() == [0.0] * 3
    for wrong in (
        *([0.1, 0.2], [0.1, 0.2, 1.5], [0.1, 0.2, -0.1], [0.1, 0.2, np.nan]),
        *([True, True, True], ["a", "b", "c"], [[0.1], [0.2], [0.3]], 0.5),
    ):
        with pytest.raises(
            fp.InputError, match=r"in round 0 its function gives .* 3 numbers from 0"
        ):
            replace(solver, gamma=lambda *_, wrong=wrong: wrong).gammas(0, clients)


def value_of_h(k: int, w: Any, mu: float) -> float:
    """h_k(w) from the start."""
    apart, moved = w - B[k], w - START
    return float(apart @ A[k] @ apart + mu * moved @ moved) / 2


def searched(k: int, mu: float, eta: float) -> Any:
    """Client k after two steps whose length halves until h falls enough."""
    w = START
    for _ in range(2):
        gradient, length = A[k] @ (w - B[k]) + mu * (w - START), eta
        while value_of_h(k, w - length * gradient, mu) > (
            value_of_h(k, w, mu) - 1e-4 * length * gradient @ gradient
        ):
            length /= 2
        w = w - length * gradient
    return w


def to_the_value(learning_rate: float) -> optax.GradientTransformationExtraArgs:
    """An optimizer whose next parameters are the value of h."""
    del learning_rate

    def update(gradient: Any, state: Any, params: Any, *, value: Any, **_: Any) -> Any:
        del gradient
        return jnp.full_like(params, value) - params, state

    return optax.GradientTransformationExtraArgs(lambda _: (), update)


def valued(k: int, mu: float, eta: float) -> Any:
    """Client k after two steps of that."""
    del eta
    return value_of_h(k, value_of_h(k, START, mu) * START, mu) * START


def solved(k: int, mu: float, eta: float) -> Any:
    """The minimum of FedDANE's problem of client k."""
    del eta
    gradients = [a @ (START - b) for a, b in zip(A, B, strict=True)]
    right = A[k] @ B[k] - SHARES @ gradients + gradients[k] + mu * START
    return np.linalg.solve(A[k] + mu * np.eye(3), right)


SEARCHES: dict[str, Any] = {
    "a line search": (fp.fedprox(mu=0.3), fp.line_search_descent, 8.0, 2, searched),
    "the value of h": (fp.fedprox(mu=0.3), to_the_value, 1.0, 2, valued),
    "linear terms": (fp.feddane(mu=0.3), optax.lbfgs, 1.0, 30, solved),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_a_line_search_is_that_of_each_clients_own_h(name: str) -> None:
    method, optimizer, eta, steps, expected = SEARCHES[name]
    solver = fp.Solver(eta, "all", steps=steps, optimizer=optimizer)
    run = one_run(QUADRATICS, MODEL, method, solver)
    mean = SHARES @ [expected(k, 0.3, eta) for k in range(4)]
    np.testing.assert_allclose(run.params, mean, rtol=1e-3, atol=1e-4)


def test_a_line_search_needs_whole_clients() -> None:
    with pytest.raises(fp.InputError, match='searches along a line, which needs "all"'):
        fp.Solver(1.0, batch_size=10, steps=5, optimizer=optax.lbfgs)
    momentum = functools.partial(optax.sgd, momentum=0.9)
    for vectors in (momentum, optax.sm3):
        assert not fp.Solver(1.0, batch_size=10, steps=5, optimizer=vectors).searches_line


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_a_gamma_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(fp.InputError, match=r"solver.gamma = .*; it must be from 0 to 1"):
        fp.Solver(1.0, batch_size=10, steps=5, gamma=gamma)


def test_a_solver_asks_for_a_factory_of_optimizers() -> None:
    for batch in (10, "all"):
        for optimizer in (optax.sgd(0.1), lambda learning_rate: learning_rate):
            with pytest.raises(fp.InputError, match="must be a function of learning_rate="):
                fp.Solver(0.1, batch, epochs=2, optimizer=optimizer)


class Taken(BaseException):
    """A comparison is not refused."""


def taken(_: object) -> None:
    raise Taken


STOPS: dict[str, Any] = {
    "solver": fp.Solver(0.1, 3, epochs=2, gamma=0.5),
    "evaluation": fp.Evaluation(),
}
TIMED: dict[str, Any] = STOPS | {
    "systems": fp.Systems(deadline=5.0),
    "population": fp.Population(step_seconds=1.0),
}
SEARCH: dict[str, Any] = {
    "methods": fp.fedsgd(),
    "solver": fp.Solver(4.0, "all", steps=1, optimizer=fp.line_search_descent),
}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (STOPS, None),
        (TIMED | {"methods": fp.fedprox(mu=0.1)}, None),
        (TIMED, "fedavg: it drops stragglers"),
        # refused before the first method runs
        (TIMED | {"methods": [fp.fedprox(mu=0.1), fp.fedavg()]}, "fedavg: it drops stragglers"),
        (SEARCH, None),
        (
            STOPS
            | {"methods": fp.centralised(), "solver": fp.Solver(0.1, 3, epochs=2, gamma=halves)},
            r"centralised: .* solver\.gamma as a function of clients does not fit",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_runs(
    options: dict[str, Any], line: str | None
) -> None:
    with pytest.raises(Taken if line is None else fp.InputError, match=line):
        runs(callbacks=[fp.Callback(on_start=taken)], **options)


POOLED = [("pooled", 200), ("pooled", "all"), ("pooled", 10), ("clients", 200)]


@pytest.mark.slow
@pytest.mark.parametrize(("who", "batch"), POOLED)
def test_the_pooled_baseline_and_wide_batches_meet_their_gamma(who: str, batch: Any) -> None:
    (run,) = fp.simulate(
        RAGGED,
        LOGISTIC,
        fp.centralised() if who == "pooled" else fp.fedprox(mu=0.5),
        solver=fp.Solver(0.1, batch_size=batch, epochs=150, gamma=0.5),
        cohort=fp.Cohort(3),
        rounds=1,
    )
    assert run.final.gamma_max <= 0.5 * 1.001
    assert run.client_steps > 0
    assert run.final.solves == (1 if who == "pooled" else 3)


@pytest.mark.slow
def test_a_pooled_round_without_time_for_a_step_measures_nothing() -> None:
    (run,) = runs(
        methods=fp.centralised(),
        cohort=fp.Cohort(1),
        systems=fp.Systems(deadline=0.5),
        population=fp.Population(step_seconds=[0.1, *[1.0] * (CLIENTS - 1)]),
        evaluation=fp.Evaluation(),
        rounds=12,
    )
    empty = [record for record in run.history[1:] if record.empty_rounds]
    assert 0 < len(empty) < 12
    assert np.isnan([record.gamma_mean for record in empty]).all()
    assert {(record.solves, record.client_steps) for record in empty} == {(0, 0)}
