"""The methods against closed forms on quadratics."""

import itertools
import math
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedprox import (
    Algorithm,
    Cohort,
    Evaluation,
    Federation,
    InputError,
    LogNormal,
    Model,
    Population,
    Solver,
    Systems,
    centralised,
    fedadmm,
    fedavg,
    feddane,
    feddyn,
    fedgkd,
    fednova,
    fedopt,
    fedprox,
    fedsgd,
    fedsplit,
    pfedme,
    scaffold,
    simulate,
)
from fedprox.algorithms import ALGORITHMS
from fedprox.algorithms.fedprox import ADAPTIVE_MU
from fedprox.protocol.method import label, sweep_points
from fedprox.report.table import warnings_on
from tests.catalogue import OF_STATE, VARIANTS
from tests.methods import FedProx, gradient
from tests.methods import run as follow
from tests.quadratics import (
    one_run,
    quadratic_federation,
    quadratic_model,
    ragged_quadratics,
    random_quadratics,
)
from tests.settings import BASE, runs
from tests.variants import mostly_slow

A, B = random_quadratics(1, 5, 3)
START = np.array([2.0, -1.0, 0.5])
FEDERATION, MODEL = quadratic_federation(A, B), quadratic_model(START)
RAGGED = ragged_quadratics(0, [4, 1, 7])
RAGGED_ROWS = [np.asarray(a, float) for a in (RAGGED.train.x, RAGGED.train.y)]
LOSSES = Evaluation(gradients=False)


def test_clients_go_to_the_proximal_point_of_the_rounds_model() -> None:
    """Gradient descent on h_k ends at p + (I - eta (A + mu I))^s (w^t - p), p = argmin h_k.

    That holds only if the anchor stays w^t for all clients, which follow one another in a lane, and
    for all of their steps. The larger mu is, the shorter is the way, down to nothing; mu is not
    clamped.
    """
    mus, eta, steps = [0.0, 0.05, 0.5, 5.0, 50.0, 500.0], 2e-3, 2000
    runs = simulate(
        FEDERATION,
        MODEL,
        fedprox(mu=mus),
        solver=Solver(eta, batch_size="all", steps=steps),
        cohort=Cohort(5),
        rounds=1,
        evaluation=LOSSES,
    )
    moved = []
    for run, mu in zip(runs, mus, strict=True):
        ends, points = [], []
        for a, b in zip(A, B, strict=True):
            h = a + mu * np.eye(3)
            point = np.linalg.solve(h, a @ b + mu * START)
            contraction = np.linalg.matrix_power(np.eye(3) - eta * h, steps)
            ends.append(point + contraction @ (START - point))
            points.append(point)
        np.testing.assert_allclose(run.params, np.mean(ends, axis=0), rtol=1e-4, atol=1e-4)
        if mu >= 5:  # the solution is exact
            np.testing.assert_allclose(run.params, np.mean(points, axis=0), rtol=1e-4, atol=1e-4)
        moved.append(float(np.linalg.norm(run.params - START)))
    assert all(a > b for a, b in itertools.pairwise(moved))
    assert moved[-1] < 1e-2 * moved[0]


def test_numbers_may_be_numpy_scalars() -> None:
    hparams: list[Any] = [np.array(0.5), np.float32(0.5), np.array([0.5])]
    for mu in hparams:
        assert fedprox(mu=mu).hparams == {"mu": (0.5,)}


def test_numbers_beyond_single_precision_are_refused() -> None:
    with pytest.raises(InputError, match=r"mu = 1e\+39; it is beyond single precision"):
        fedprox(mu=1e39)
    with pytest.raises(InputError, match="alpha = 1e-40; it is beyond single precision"):
        feddyn(alpha=1e-40)
    with pytest.raises(InputError, match="mu: a number beyond double precision"):
        fedprox(mu=10**400)
    assert fedprox(mu=[0, 1e-40, 2**127]).hparams == {"mu": (0.0, 1e-40, 2.0**127)}


@pytest.mark.parametrize("methods", [[fedprox], fedprox, ["fedprox"], "fedprox", None])
def test_what_is_no_algorithm_is_refused(methods: Any) -> None:
    with pytest.raises(InputError, match=r"methods.* = .*; it must be an algorithm"):
        simulate(
            FEDERATION,
            MODEL,
            methods,
            solver=Solver(0.1, "all", epochs=1),
            cohort=Cohort(2),
            rounds=1,
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stragglers": "dropped"}, "stragglers = 'dropped'; it must be one of keep, drop"),
        ({"average": "row"}, "average = 'row'; it must be one of rows, clients"),
        (
            {"hparams": {"participation": 1.0}},
            "hparams: 'participation'; every method is given this one",
        ),
        (
            {"hparams": {"learning_rate": [0.1, 0.2]}},
            "hparams: 'learning_rate'; every method is given",
        ),
        ({"adapt": ADAPTIVE_MU}, "adapt.update raised KeyError: 'mu'"),
    ],
)
def test_a_method_of_ones_own_with_a_mistake_is_refused(
    change: dict[str, Any], message: str
) -> None:
    mine = fedavg()._replace(name="mine", **change)
    with pytest.raises(InputError, match=f"mine: {message}"):
        one_run(FEDERATION, MODEL, mine, Solver(0.1, "all", epochs=1))


def test_an_adaptive_mu_follows_the_model_that_is_sent_out() -> None:
    method, solver = fedprox(mu=1.0, adapt=True), Solver(0.1, 2, steps=1)
    for other in ("cohort", "clients"):
        with pytest.raises(InputError, match=r'fedprox: its mu follows .* must be "server"'):
            one_run(FEDERATION, MODEL, method, solver, evaluation=Evaluation(model=other))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("model", 1),
        ("solver", 0.1),
        ("cohort", 2),
        ("systems", None),
        ("faults", "drop"),
        ("target", 0.5),
    ],
)
def test_a_part_of_another_type_is_named(part: str, value: Any) -> None:
    settings: dict[str, Any] = {
        "model": MODEL,
        "methods": fedavg(),
        "solver": Solver(0.1, "all", epochs=1),
        "cohort": Cohort(2),
        "rounds": 1,
    }
    kind = f"it must be a fedprox.{part.capitalize()}"
    with pytest.raises(InputError, match=f"{part} = {value!r}; {kind}"):
        simulate(FEDERATION, **settings | {part: value})


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        *((variant.method, variant.label) for variant in VARIANTS.values()),
        (fedavg(average="clients"), "fedavg plain mean"),
        (fedprox(mu={"body": 0.5}), "fedprox mu.body=0.5"),
        (feddane(mu=0.1, adapt=True), "feddane mu=0.1 adaptive"),
        (scaffold(server_learning_rate=0.5), "scaffold server_learning_rate=0.5"),
        (fedsplit(2.0, average="all"), "fedsplit all step_size=2"),
        (fedopt(optax.adam), "fedopt adam"),
        (pfedme(2.0, eta=0.1), "pfedme lam=2 eta=0.1 beta=1"),
        (fednova(), "fednova"),
        (fedgkd(0.2, models=1), "fedgkd gamma=0.2"),
        (fednova(momentum=0.9), "fednova momentum=0.9"),
        (fedadmm(0.5), "fedadmm rho=0.5"),
        (fedavg().with_solver(epochs=2).with_solver(clip=0.5), "fedavg epochs=2 clip=0.5"),
        (
            fedavg().with_solver(learning_rate=0.3).with_solver(epochs=2).with_solver(steps=5),
            "fedavg learning_rate=0.3 steps=5",
        ),
    ],
)
def test_a_label_is_the_name_the_variant_and_the_numbers(method: Algorithm, expected: str) -> None:
    assert ALGORITHMS[method.name].__name__ == method.name
    solver = method.solver(Solver(0.1, "all", epochs=1))
    (point,) = sweep_points(method, solver)
    assert label(method, solver, point) == expected


def test_every_method_has_a_variant_for_the_tests_of_all_methods() -> None:
    variants = *VARIANTS.values(), *OF_STATE.values()
    assert {variant.keys["name"] for variant in variants} == set(ALGORITHMS)


def test_numbers_with_the_same_label_are_refused() -> None:
    with pytest.raises(InputError, match=r"'fedprox mu=0.123457' is given 2 times; .* six digits"):
        one_run(FEDERATION, MODEL, fedprox(mu=[0.1234567, 0.1234568]), Solver(0.1, "all", epochs=1))


def test_the_anchor_holds_for_embeddings() -> None:
    # F(E) = 1/n sum_i 1/2 (E[x_i] - y_i)^2: a separate quadratic for each row of the table, and
    # none for a row that does not occur
    x, y = np.array([0, 0, 0, 1]), np.array([1.0, 2.0, 3.0, -4.0])
    start, mu = np.array([5.0, 6.0, 7.0]), 0.5
    model = Model(
        init=lambda _: jnp.asarray(start, jnp.float32),
        apply=lambda table, x: table[x],
        loss=lambda outputs, y: 0.5 * (outputs - y) ** 2,
        correct=None,
    )
    solver = Solver(0.1, batch_size="all", steps=200)
    run = one_run(Federation.from_arrays([(x, y)]), model, fedprox(mu=mu), solver)
    curvature, minimum = np.array([3 / 4, 1 / 4, 0]), np.array([2.0, -4.0, 0.0])
    expected = (curvature * minimum + mu * start) / (curvature + mu)
    np.testing.assert_allclose(run.params, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("method", "work"),
    [(fedavg(), {"epochs": 1}), (fedsgd(), {"epochs": 5}), (fedsgd(), {"steps": 7})],
)
def test_one_full_batch_step_of_everyone_is_a_gradient_step_on_f(
    method: Algorithm, work: dict[str, int]
) -> None:
    """FedSGD takes it whatever the experiment's solver."""
    batch: Any = "all" if method.name == "fedavg" else 2
    run = one_run(RAGGED, MODEL, method, Solver(0.3, batch, **work))  # type: ignore[arg-type]
    np.testing.assert_allclose(run.params, START - 0.3 * gradient(START, *RAGGED_ROWS), rtol=1e-5)
    assert run.final.client_steps == 3


@pytest.mark.parametrize("every", mostly_slow([1, 3], 3))
def test_rounds_in_which_everyone_is_dropped_change_nothing_and_are_counted(every: int) -> None:
    (run,) = runs(
        systems=Systems(deadline=4.0),
        population=Population(step_seconds=[1.0, 0.1, *[9.0] * 4]),
        cohort=Cohort(2),
        rounds=7,
        evaluation=Evaluation(every=every, gradients=False),
    )
    offsets = BASE["federation"].train.offsets
    empty = [not {0, 1} & set(Cohort(2).draw(0, t, offsets).clients) for t in range(7)]
    pairs = list(itertools.pairwise(run.history))
    counts = [sum(empty[before.round : after.round]) for before, after in pairs]
    assert [record.empty_rounds for record in run.history] == [0, *counts]
    for before, after in pairs:
        nothing = after.empty_rounds == after.round - before.round
        assert (after.train_loss == before.train_loss) == nothing
        if every == 1:
            assert nothing == (after.dropped == 2) == (not after.client_steps)
    assert 0 < run.empty_rounds == sum(empty) < 7
    assert warnings_on([run]) == [
        f"fedavg: no client took part in {sum(empty)} of 7 rounds, which left the model as it was"
    ]


@pytest.mark.parametrize(
    ("method", "systems", "sampling", "why"),
    [
        (fedprox(mu=0.0), {"deadline": 0.01}, "uniform", "a single step"),
        (centralised(), {"deadline": 0.01}, "uniform", "a single step"),
        (fedavg(), {"deadline": 1.0}, "uniform", "all of its steps, and stragglers are dropped"),
        (fedavg(), {"stragglers": 1.0}, "bernoulli", "all clients of every cohort of 5 are"),
        (fedavg(), {"stragglers": 0.75}, "uniform", "all clients of every cohort of 2 are"),
    ],
)
def test_a_run_in_which_nobody_can_ever_take_part_is_refused(
    method: Algorithm, systems: dict[str, Any], sampling: Any, why: str
) -> None:
    with pytest.raises(InputError, match=rf"{method.name}: systems.*{why}.*no client would ever"):
        simulate(
            FEDERATION,
            MODEL,
            method,
            solver=Solver(0.1, batch_size=1, epochs=2),
            cohort=Cohort(2, sampling=sampling),
            systems=Systems(**systems),
            population=Population(LogNormal(0.9, spread=0.1)),
            rounds=3,
        )


def test_the_refusal_names_what_leaves_a_client() -> None:
    """README's 0.9 with three clients a round, and every other pair that is refused."""
    solver, infinite = Solver(0.1, batch_size=1, epochs=2), math.inf

    def refusal(stragglers: float, size: int, clients: int) -> str:
        try:
            Systems(stragglers).check_participation(
                np.ones(clients, np.int64),
                solver,
                range(size, size + 1),
                whole=True,
                in_time=infinite,
            )
        except InputError as error:
            return str(error)
        return ""

    line = refusal(0.9, 3, 30)
    assert line.endswith("train; with cohorts of 3 give at most 0.83, or cohorts of at least 5")
    assert refusal(0.9, 3, 4).endswith("train; with cohorts of 3 give at most 0.83")
    for stragglers in (0.51, 0.75, 0.9, 0.97, 0.995, 1.0):
        for size in range(1, 40):
            if line := refusal(stragglers, size, 10**4):
                most = float(re.findall(r"at most ([\d.]+)", line)[0])
                assert not refusal(most, size, 10**4)
                assert refusal(most + 0.01, size, 10**4)
                for least in map(int, re.findall(r"at least (\d+)", line)):
                    assert not refusal(stragglers, least, 10**4)
                    assert refusal(stragglers, least - 1, 10**4)
                assert ("at least" in line) == (stragglers < 1)


@pytest.mark.slow
def test_stragglers_are_paired_between_methods() -> None:
    """FedAvg leaves out those whose work FedProx keeps."""
    setting = {"systems": Systems(stragglers=0.5)}
    (avg,), (prox, _) = (runs(methods=m, **setting) for m in (fedavg(), fedprox(mu=[0.0, 0.5])))
    for a, p in zip(avg.history[1:], prox.history[1:], strict=True):
        assert (a.stragglers, a.dropped, p.stragglers, p.dropped) == (2, 2, 2, 0)
        assert a.client_steps < p.client_steps


def test_centralised_takes_the_cohorts_steps_on_the_pooled_rows() -> None:
    solver = Solver(0.05, batch_size=2, epochs=2)
    run = one_run(RAGGED, MODEL, centralised(), solver)
    assert run.client_steps == sum(solver.steps_for(RAGGED.train.sizes)) == 2 * (2 + 1 + 4)


def test_centralised_is_gradient_descent_on_f_with_whole_batches() -> None:
    run, w = one_run(RAGGED, MODEL, centralised(), Solver(0.1, "all", steps=2)), START
    for _ in range(3 * 2):  # as many steps as the three clients would take together
        w = w - 0.1 * gradient(w, *RAGGED_ROWS)
    np.testing.assert_allclose(run.params, w, rtol=1e-5)


def test_a_solver_with_several_learning_rates_and_mus_runs_every_combination() -> None:
    setting: dict[str, Any] = {"cohort": Cohort(3), "rounds": 2}
    rates = Solver([0.1, 0.2], batch_size="all", steps=4)
    swept = simulate(
        RAGGED, MODEL, fedprox(mu=[0.0, 1.0]), solver=rates, evaluation=LOSSES, **setting
    )
    assert [run.label for run in swept] == [
        "fedprox mu=0 learning_rate=0.1",
        "fedprox mu=0 learning_rate=0.2",
        "fedprox mu=1 learning_rate=0.1",
        "fedprox mu=1 learning_rate=0.2",
    ]
    for run in swept:
        oracle = FedProx(START, 3, run.hparams["mu"])
        solver = rates.changed(learning_rate=run.learning_rate)
        path = follow(oracle, RAGGED, solver=solver, **setting)
        np.testing.assert_allclose(run.params, path.server[-1], rtol=1e-5)
