"""The methods against closed forms on quadratics."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    datasets,
    fedadmm,
    fedavg,
    feddane,
    feddyn,
    fednova,
    fedopt,
    fedprox,
    fedsgd,
    fedsplit,
    models,
    pfedme,
    scaffold,
    simulate,
)
from fedprox.algorithms import ALGORITHMS
from fedprox.algorithms.fedprox import ADAPTIVE_MU
from fedprox.model import Params
from fedprox.protocol.method import label, sweep_points
from fedprox.protocol.protocol import initial_params
from fedprox.report.table import warnings_on
from tests.catalogue import VARIANTS
from tests.methods import gradient
from tests.quadratics import (
    one_run,
    quadratic_federation,
    quadratic_model,
    ragged_quadratics,
    random_quadratics,
)

EXACT = Solver(learning_rate=0.1, batch_size="all", steps=2000)


def scalar(curvature: float, minimum: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [np.array([[curvature]])], [np.array([minimum])]


def test_fedavg_counts_clients_by_rows_or_each_once() -> None:
    """Exact solutions 0 of one row and 4 of three rows: their means are 3 and 2."""
    clients = [([[1.0]], [0.0]), ([[1.0]] * 3, [4.0] * 3)]
    model = Model(lambda _: jnp.ones(()), lambda w, x: w * x[:, 0], lambda z, y: (z - y) ** 2)
    methods = [fedavg(), fedavg(average="clients")]
    federation, cohort = Federation.from_arrays(clients), Cohort(2)
    losses = Evaluation(gradients=False)
    runs = simulate(
        federation, model, methods, solver=EXACT, cohort=cohort, rounds=1, evaluation=losses
    )
    assert [run.label for run in runs] == ["fedavg", "fedavg plain mean"]
    assert [float(run.params) for run in runs] == pytest.approx([3.0, 2.0])
    with pytest.raises(InputError, match=r"^fedavg: average = 'row'; it must be one of rows, cli"):
        fedavg(average="row")  # type: ignore[arg-type]


def test_fedprox_without_mu_and_stragglers_is_fedavg_bit_for_bit() -> None:
    federation = datasets.synthetic(clients=8)
    runs = simulate(
        federation,
        models.logistic(federation),
        [fedavg(), fedprox(mu=0.0)],
        solver=Solver(learning_rate=0.05, batch_size=10, epochs=3),
        cohort=Cohort(4),
        rounds=4,
        evaluation=Evaluation(gradients=False),
    )
    first, second = (jax.tree.leaves(run.params) for run in runs)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@settings(max_examples=6)
@given(
    curvature=st.floats(0.2, 5),
    minimum=st.floats(-3, 3),
    start=st.floats(-3, 3),
    mu=st.floats(0.05, 5),
)
def test_exact_proximal_step_in_one_dimension(
    curvature: float, minimum: float, start: float, mu: float
) -> None:
    federation = quadratic_federation(*scalar(curvature, minimum))
    run = one_run(federation, quadratic_model(np.array([start])), fedprox(mu=mu), EXACT)
    expected = (curvature * minimum + mu * start) / (curvature + mu)
    np.testing.assert_allclose(run.params, [expected], rtol=1e-4, atol=1e-4)


def test_larger_mu_moves_less_and_to_nothing() -> None:
    federation = quadratic_federation(*random_quadratics(0, 3, 4))
    # mu = 1e5 needs a step below 2 / mu; it is neither clamped nor refused
    mus = [0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1e4, 1e5]
    solver = Solver(learning_rate=1e-5, batch_size="all", steps=4000)
    runs = simulate(
        federation,
        quadratic_model(np.ones(4)),
        fedprox(mu=mus),
        solver=solver,
        cohort=Cohort(3),
        rounds=1,
        evaluation=Evaluation(gradients=False),
    )
    moved = [float(np.linalg.norm(run.params - 1)) for run in runs]
    assert all(a > b for a, b in itertools.pairwise(moved))
    assert moved[-1] < 1e-3 * moved[0]


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
    federation = quadratic_federation(*random_quadratics(0, 3, 2))
    with pytest.raises(InputError, match=r"methods.* = .*; it must be an algorithm"):
        simulate(
            federation,
            quadratic_model(np.zeros(2)),
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
    federation = quadratic_federation(*random_quadratics(0, 3, 2))
    mine = fedavg()._replace(name="mine", **change)
    with pytest.raises(InputError, match=f"mine: {message}"):
        one_run(federation, quadratic_model(np.zeros(2)), mine, Solver(0.1, "all", epochs=1))


def test_an_adaptive_mu_follows_the_model_that_is_sent_out() -> None:
    federation, solver = quadratic_federation(*random_quadratics(0, 3, 2)), Solver(0.1, 2, steps=1)
    method, model = fedprox(mu=1.0, adapt=True), quadratic_model(np.zeros(2))
    for other in ("cohort", "clients"):
        with pytest.raises(InputError, match=r'fedprox: its mu follows .* must be "server"'):
            one_run(federation, model, method, solver, evaluation=Evaluation(model=other))


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
    federation = quadratic_federation(*random_quadratics(0, 3, 2))
    settings: dict[str, Any] = {
        "model": quadratic_model(np.zeros(2)),
        "methods": fedavg(),
        "solver": Solver(0.1, "all", epochs=1),
        "cohort": Cohort(2),
        "rounds": 1,
    }
    kind = f"it must be a fedprox.{part.capitalize()}"
    with pytest.raises(InputError, match=f"{part} = {value!r}; {kind}"):
        simulate(federation, **settings | {part: value})


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        *((variant.method, variant.label) for variant in VARIANTS.values()),
        (feddane(mu=0.1, adapt=True), "feddane mu=0.1 adaptive"),
        (scaffold(server_learning_rate=0.5), "scaffold server_learning_rate=0.5"),
        (fedsplit(2.0, average="all"), "fedsplit all step_size=2"),
        (fedopt(optax.adam), "fedopt adam"),
        (pfedme(2.0, eta=0.1), "pfedme lam=2 eta=0.1 beta=1"),
        (fednova(), "fednova"),
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
    assert {variant.keys["name"] for variant in VARIANTS.values()} == set(ALGORITHMS)


def test_numbers_with_the_same_label_are_refused() -> None:
    with pytest.raises(InputError, match=r"'fedprox mu=0.123457' is given 2 times; .* six digits"):
        one_run(
            quadratic_federation(*random_quadratics(0, 3, 2)),
            quadratic_model(np.zeros(2)),
            fedprox(mu=[0.1234567, 0.1234568]),
            Solver(0.1, "all", epochs=1),
        )


def test_the_anchor_is_the_rounds_model_for_every_client_and_parameter() -> None:
    # several clients behind one another in a lane, several steps: gradient descent on h_k has the
    # closed form a + (I - eta (A + mu I))^s (w - a) only if the anchor never moves
    a, b = random_quadratics(1, 5, 3)
    eta, mu, steps, start = 0.05, 0.7, 9, np.array([2.0, -1.0, 0.5])
    federation = quadratic_federation(a, b)
    solver = Solver(learning_rate=eta, batch_size="all", steps=steps)
    run = one_run(federation, quadratic_model(start), fedprox(mu=mu), solver)
    expected = np.zeros(3)
    for a_k, b_k in zip(a, b, strict=True):
        h = a_k + mu * np.eye(3)
        solution = np.linalg.solve(h, a_k @ b_k + mu * start)
        contraction = np.linalg.matrix_power(np.eye(3) - eta * h, steps)
        expected += (solution + contraction @ (start - solution)) / 5
    np.testing.assert_allclose(run.params, expected, rtol=1e-5, atol=1e-6)


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
    run = one_run(Federation.from_arrays([(x, y)]), model, fedprox(mu=mu), EXACT)
    curvature, minimum = np.array([3 / 4, 1 / 4, 0]), np.array([2.0, -4.0, 0.0])
    expected = (curvature * minimum + mu * start) / (curvature + mu)
    np.testing.assert_allclose(run.params, expected, rtol=1e-4)


def test_a_momentum_buffer_sees_the_proximal_term_once() -> None:
    eta, mu, momentum, start, minimum = 0.1, 0.5, 0.9, 1.0, 3.0
    federation = quadratic_federation(*scalar(2.0, minimum))
    optimizer = functools.partial(optax.sgd, momentum=momentum)
    solver = Solver(eta, batch_size="all", steps=6, optimizer=optimizer)
    run = one_run(federation, quadratic_model(np.array([start])), fedprox(mu=mu), solver)
    w, buffer = start, 0.0
    for _ in range(6):
        buffer = momentum * buffer + 2.0 * (w - minimum) + mu * (w - start)
        w -= eta * buffer
    np.testing.assert_allclose(run.params, [w], rtol=1e-5)


def test_a_clip_before_the_optimizer_acts_on_the_whole_gradient() -> None:
    def clipped(learning_rate: float) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate))

    federation = quadratic_federation(*scalar(1.0, 10.0))
    solver = Solver(0.5, batch_size="all", steps=3, optimizer=clipped)
    run = one_run(federation, quadratic_model(np.zeros(1)), fedprox(mu=100.0), solver)
    w = 0.0
    for _ in range(3):
        w -= 0.5 * float(np.clip(w - 10.0 + 100.0 * w, -1, 1))
    np.testing.assert_allclose(run.params, [w], rtol=1e-5)


@pytest.mark.parametrize("method", [fedavg, fedsgd])
def test_one_full_batch_epoch_with_everyone_is_a_gradient_step_on_f(
    method: Callable[[], Algorithm],
) -> None:
    federation = datasets.synthetic(clients=6)
    model = models.logistic(federation)
    run = one_run(federation, model, method(), Solver(0.3, batch_size="all", epochs=1))
    x, y = (jnp.asarray(a) for a in (federation.train.x, federation.train.y))

    def f(params: Params) -> jax.Array:
        return model.loss(model.apply(params, x), y).mean()

    begin = initial_params(model, 0)
    expected = jax.tree.map(lambda w, g: w - 0.3 * g, begin, jax.grad(f)(begin))
    for a, b in zip(jax.tree.leaves(run.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("work", [{"epochs": 5}, {"steps": 7}])
def test_fedsgd_takes_one_full_batch_step_whatever_the_experiments_solver(
    work: dict[str, int],
) -> None:
    federation, start = ragged_quadratics(0, [4, 1, 7]), np.array([2.0, -1.0, 0.5])
    x, y = (np.asarray(a, float) for a in (federation.train.x, federation.train.y))
    run = one_run(federation, quadratic_model(start), fedsgd(), Solver(0.3, 2, **work))  # type: ignore[arg-type]
    expected = start - 0.3 * gradient(start, x, y)
    np.testing.assert_allclose(run.params, expected, rtol=1e-5)
    assert run.final.client_steps == 3


def test_weights_are_training_examples_and_the_partial_batch_counts() -> None:
    # sizes 7 and 1 with batches of 3: three batches and one; test rows must not matter
    a, b = [np.eye(1), np.eye(1)], [np.array([0.0]), np.array([8.0])]
    federation = quadratic_federation(a, b, rows=[7, 1])
    solver = Solver(learning_rate=0.5, batch_size=3, epochs=1)
    run = one_run(federation, quadratic_model(np.array([4.0])), fedavg(), solver)
    halved = [0 + 4.0 * 0.5**3, 8 - 4.0 * 0.5]
    np.testing.assert_allclose(run.params, [(7 * halved[0] + 1 * halved[1]) / 8], rtol=1e-6)
    assert run.final.client_steps == 4


def test_a_round_in_which_everyone_is_dropped_changes_nothing() -> None:
    federation = datasets.synthetic(clients=5)
    (run,) = simulate(
        federation,
        models.logistic(federation),
        fedavg(),
        solver=Solver(0.1, batch_size=10, epochs=2),
        cohort=Cohort(2),
        systems=Systems(deadline=1e3),
        population=Population(step_seconds=[1.0, *[900.0] * 4]),
        rounds=12,
    )
    rounds = list(zip(run.history, run.history[1:], strict=False))
    empty = [after for _, after in rounds if after.dropped == 2]
    assert 0 < len(empty) < 12
    for before, after in rounds:
        assert (after.train_loss == before.train_loss) == (after.dropped == 2)
        assert after.empty_rounds == (after.dropped == 2)
    assert run.empty_rounds == len(empty)
    assert np.isnan([record.gamma_mean for record in empty]).all()
    assert not any(record.client_steps for record in empty)


@pytest.mark.parametrize("every", [1, 3, 7])
def test_empty_rounds_are_counted_between_evaluations(every: int) -> None:
    federation = datasets.synthetic(clients=5)
    (run,) = simulate(
        federation,
        models.logistic(federation),
        fedprox(mu=1.0),
        solver=Solver(0.1, batch_size=10, epochs=2),
        cohort=Cohort(2),
        systems=Systems(deadline=1.0),
        population=Population(step_seconds=[1.0, *[2.0] * 4]),
        rounds=7,
        evaluation=Evaluation(every=every, gradients=False),
    )
    offsets = federation.train.offsets
    empty = [0 not in Cohort(2).draw(0, t, offsets).clients for t in range(7)]
    counts = [
        sum(empty[before.round : after.round])
        for before, after in zip(run.history, run.history[1:], strict=False)
    ]
    assert [record.empty_rounds for record in run.history] == [0, *counts]
    assert 0 < run.empty_rounds < 7
    assert warnings_on([run]) == [
        f"fedprox mu=1: no client took part in {sum(empty)} of 7 rounds, which left the model as "
        "it was"
    ]


@pytest.mark.parametrize(
    ("method", "systems", "sampling", "why"),
    [
        (fedprox(mu=0.0), {"deadline": 0.01}, "uniform", "a single step"),
        (centralised(), {"deadline": 0.01}, "uniform", "a single step"),
        (
            fedavg(),
            {"deadline": 1.0},
            "uniform",
            "all of its steps, and stragglers are dropped",
        ),
        (fedavg(), {"stragglers": 1.0}, "bernoulli", "all clients of every cohort of 5 are"),
        (fedavg(), {"stragglers": 0.75}, "uniform", "all clients of every cohort of 2 are"),
    ],
)
def test_a_run_in_which_nobody_can_ever_take_part_is_refused(
    method: Algorithm, systems: dict[str, Any], sampling: Any, why: str
) -> None:
    federation = datasets.synthetic(clients=5)
    with pytest.raises(InputError, match=rf"{method.name}: systems.*{why}.*no client would ever"):
        simulate(
            federation,
            models.logistic(federation),
            method,
            solver=Solver(0.1, batch_size=10, epochs=2),
            cohort=Cohort(2, sampling=sampling),
            systems=Systems(**systems),
            population=Population(LogNormal(0.9, spread=0.1)),
            rounds=3,
        )


def test_stragglers_are_paired_between_methods() -> None:
    federation = datasets.synthetic(clients=10)
    avg, prox = simulate(
        federation,
        models.logistic(federation),
        [fedavg(), fedprox(mu=0.0)],
        solver=Solver(0.01, batch_size=10, epochs=4),
        cohort=Cohort(10),
        systems=Systems(stragglers=0.5),
        rounds=3,
        evaluation=Evaluation(gradients=False),
    )
    for a, p in zip(avg.history[1:], prox.history[1:], strict=True):
        assert (a.stragglers, a.dropped, p.stragglers, p.dropped) == (5, 5, 5, 0)
        assert a.client_steps < p.client_steps


def test_centralised_takes_the_cohorts_steps_on_the_pooled_rows() -> None:
    federation = datasets.synthetic(clients=6)
    model = models.logistic(federation)
    central, avg = simulate(
        federation,
        model,
        [centralised(), fedavg()],
        solver=Solver(0.05, batch_size=10, epochs=5),
        cohort=Cohort(6),
        rounds=3,
        evaluation=Evaluation(gradients=False),
    )
    assert central.client_steps == avg.client_steps
    assert central.final.train_loss < avg.final.train_loss


def test_centralised_is_gradient_descent_on_f_with_whole_batches() -> None:
    federation, w = ragged_quadratics(0, [4, 1, 7]), np.array([2.0, -1.0, 0.5])
    x, y = (np.asarray(a, float) for a in (federation.train.x, federation.train.y))
    run = one_run(federation, quadratic_model(w), centralised(), Solver(0.1, "all", steps=2))
    for _ in range(3 * 2):  # as many steps as the three clients would take together
        w = w - 0.1 * gradient(w, x, y)
    np.testing.assert_allclose(run.params, w, rtol=1e-5)


def test_a_solver_with_several_learning_rates_and_mus_runs_every_combination() -> None:
    federation = quadratic_federation(*random_quadratics(2, 3, 2))
    solver = Solver(learning_rate=[0.1, 0.2], batch_size="all", steps=4)
    model = quadratic_model(np.ones(2))
    swept = simulate(
        federation,
        model,
        fedprox(mu=[0.0, 1.0]),
        solver=solver,
        cohort=Cohort(3),
        rounds=2,
        evaluation=Evaluation(gradients=False),
    )
    assert [run.label for run in swept] == [
        "fedprox mu=0 learning_rate=0.1",
        "fedprox mu=0 learning_rate=0.2",
        "fedprox mu=1 learning_rate=0.1",
        "fedprox mu=1 learning_rate=0.2",
    ]
    for run in swept:
        alone = one_run(
            federation,
            model,
            fedprox(mu=run.hparams["mu"]),
            Solver(run.learning_rate, batch_size="all", steps=4),
            rounds=2,
        )
        np.testing.assert_allclose(run.params, alone.params, rtol=1e-6)
