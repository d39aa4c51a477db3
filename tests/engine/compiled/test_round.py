"""The engine against the oracle, in any arrangement."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox import (
    Algorithm,
    Cohort,
    Evaluation,
    Faults,
    Federation,
    Model,
    Run,
    Solver,
    Systems,
    fedavg,
    feddane,
    fedprox,
    line_search_descent,
    models,
    scaffold,
    simulate,
)
from fedprox.devices import programs
from fedprox.engine.compiled import layout as laying_out
from fedprox.engine.planning import batch_plan
from fedprox.engine.planning.jobs import Jobs, pack
from fedprox.models.dense import Logistic
from fedprox.protocol.protocol import initial_params
from tests import oracle
from tests.quadratics import one_run
from tests.variants import mostly_slow


def ragged_federation(sizes: list[int], seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    clients = [(rng.normal(size=(n, 6)) + rng.normal(), rng.integers(0, 3, n)) for n in sizes]
    return Federation.from_arrays(clients, clients, classes=3)


def as_oracle(params: Any) -> oracle.Params:
    dense = params["dense"]
    return oracle.Params(np.asarray(dense["weight"], float), np.asarray(dense["bias"], float))


def close(params: oracle.Params, expected: oracle.Params) -> None:
    for a, b in zip(params, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


B = 10


@settings(max_examples=8)
@given(
    sizes=st.permutations([1, B - 1, B, B + 1, 73, 300, 2]),
    mu=st.sampled_from([0.0, 0.5]),
    stragglers=st.sampled_from([0.0, 0.5, 0.9]),
    drop=st.booleans(),
    batch=st.sampled_from([1, B, 200, "all"]),
    lanes=st.sampled_from([1, 2, 3]),
    amount=st.sampled_from([{"epochs": 1}, {"epochs": 3}, {"steps": 7}]),
)
def test_engine_equals_the_numpy_loop(
    sizes: list[int],
    mu: float,
    stragglers: float,
    drop: bool,
    batch: int,
    lanes: int,
    amount: dict[str, Any],
) -> None:
    federation = ragged_federation(sizes)
    model = models.logistic(federation)
    setting: dict[str, Any] = {
        "solver": Solver(learning_rate=0.1, batch_size=batch, **amount),
        "cohort": Cohort(5),
        "systems": Systems(stragglers=stragglers),
        "rounds": 3,
        "seed": 4,
    }
    evaluation = Evaluation(every=2, gradients=False)
    method = fedavg() if drop else fedprox(mu=mu)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laying_out, "choose_lanes", lambda *_: lanes)
        (run,) = simulate(federation, model, method, evaluation=evaluation, **setting)
    expected = oracle.federated(
        federation,
        as_oracle(initial_params(model, 4)),
        mu=0.0 if drop else mu,
        drop=drop,
        **setting,
    )
    close(as_oracle(run.params), expected)


def run_bits(federation: Federation, **changes: object) -> list[np.ndarray]:
    setting: dict[str, Any] = {
        "solver": Solver(learning_rate=0.1, batch_size=B, epochs=2),
        "cohort": Cohort(5),
        "systems": Systems(stragglers=0.5),
        "rounds": 5,
        "seed": 1,
        "evaluation": Evaluation(gradients=False),
    } | changes
    (run,) = simulate(federation, models.logistic(federation), fedprox(mu=0.1), **setting)
    return [*jax.tree.leaves(run.params), np.array([r.train_loss for r in run.history])]


@pytest.fixture(scope="module")
def first() -> list[np.ndarray]:
    """What `run_bits` gives for six clients."""
    return run_bits(ragged_federation([1, 9, 10, 11, 73, 300]))


def test_same_seed_same_bits_and_another_seed_others(first: list[np.ndarray]) -> None:
    federation = ragged_federation([1, 9, 10, 11, 73, 300])
    again = run_bits(federation)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    other = run_bits(federation, seed=2)
    assert not np.array_equal(first[-1], other[-1])


def test_evaluating_less_often_changes_no_bit(first: list[np.ndarray]) -> None:
    federation = ragged_federation([1, 9, 10, 11, 73, 300])
    seldom_evaluated = {"evaluation": Evaluation(every=3, gradients=False)}
    seldom = run_bits(federation, **seldom_evaluated)
    assert all(np.array_equal(a, b) for a, b in zip(first[:-1], seldom[:-1], strict=True))
    assert np.array_equal(first[-1][[0, 3, 5]], seldom[-1])


def test_seeds_and_methods_do_not_depend_on_their_company() -> None:
    federation = ragged_federation([1, 9, 10, 11, 73, 300])
    model = models.logistic(federation)
    setting: dict[str, Any] = {
        "solver": Solver(learning_rate=0.1, batch_size=B, epochs=2),
        "cohort": Cohort(3),
        "rounds": 3,
        "evaluation": Evaluation(gradients=False),
    }
    together = simulate(
        federation,
        model,
        [fedavg(), fedprox(mu=1.0)],
        seed=[0, 1, 2],
        **setting,
    )
    (alone,) = simulate(federation, model, fedprox(mu=1.0), seed=1, **setting)
    (same,) = [run for run in together if run.method == "fedprox" and run.seed == 1]
    for a, b in zip(jax.tree.leaves(alone.params), jax.tree.leaves(same.params), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "method",
    [pytest.param(feddane(mu=1.0), marks=pytest.mark.slow), scaffold()],
    ids=lambda method: method.name,
)
def test_points_of_a_sweep_in_one_tick_or_one_after_another(
    method: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gradients read first and a stop rule, and with clients that keep something."""
    federation = ragged_federation([1, 9, 11, 73])
    gamma = 0.5 if method.name == "feddane" else None

    def histories() -> list[list[float]]:
        runs = simulate(
            federation,
            models.logistic(federation),
            method,
            solver=Solver([0.02, 0.1], batch_size=B, epochs=2, gamma=gamma),
            cohort=Cohort(3),
            rounds=4,
            evaluation=Evaluation(every=2),
        )
        return [
            [x for r in run.history[1:] for x in (r.train_loss, r.gamma_max, r.client_steps)]
            for run in runs
        ]

    together = histories()
    monkeypatch.setattr(laying_out, "SMALL_STEP", 0)
    one_by_one = histories()
    np.testing.assert_allclose(one_by_one, together, rtol=1e-4)
    assert not np.allclose(together[0], together[1], rtol=1e-2)


@pytest.mark.parametrize("everything", mostly_slow([False, True], True))
def test_every_program_is_compiled_once(everything: bool) -> None:
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(kwargs.get("fun_name")))

    federation = ragged_federation([1, 9, 10, 11, 73, 300, 40, 2])
    model = models.logistic(federation)
    method = feddane(mu=0.1, adapt=True) if everything else fedprox(mu=0.1)
    setting: dict[str, Any] = {
        "cohort": Cohort(4),
        "systems": Systems(stragglers=0.5),
        "evaluation": Evaluation(every=2),
    }
    gamma = 0.3 if everything else None
    solver = Solver(learning_rate=0.1, batch_size=B, epochs=5, gamma=gamma)
    simulate(federation, model, method, solver=solver, rounds=2, **setting)
    programs.PROGRAMS.clear()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        simulate(federation, model, method, solver=solver, rounds=9, **setting)
    finally:
        jax.monitoring.clear_event_listeners()
    assert sorted(compiled) == ["jit(program)", "jit(program)", "jit(rounds)"]


def test_padding_never_counts() -> None:
    # the same rows with labels that would ruin the loss beside them: only offsets tell
    federation = ragged_federation([3, 40, 5])
    model = models.logistic(federation)
    (run,) = simulate(
        federation,
        model,
        [fedavg()],
        solver=Solver(0.1, batch_size=B, epochs=1),
        cohort=Cohort(3),
        rounds=1,
    )
    x, y = federation.train.x.astype(float), federation.train.y.astype(int)
    params = as_oracle(run.params)
    loss, gradient = oracle.loss_and_gradient(params, x, y)
    predictions = (x @ params.kernel.T + params.bias).argmax(axis=1)
    assert run.final.train_loss == pytest.approx(loss, rel=1e-5)
    assert run.final.test_accuracy == pytest.approx((predictions == y).mean())
    clients = [
        oracle.loss_and_gradient(params, *oracle.client_rows(federation, k))[1] for k in range(3)
    ]
    variance = sum(
        p * sum(((g - m) ** 2).sum() for g, m in zip(own, gradient, strict=True))
        for p, own in zip(federation.shares, clients, strict=True)
    )
    assert run.final.gradient_variance == pytest.approx(variance, rel=1e-4)


def test_a_model_that_diverges_is_named_and_the_others_go_on() -> None:
    federation = ragged_federation([20, 30, 40])

    def explode(outputs: jax.Array, y: jax.Array) -> jax.Array:
        return (outputs[:, 0] - y) ** 4

    model = Model.from_nnx(
        lambda rngs: Logistic(6, 3, kernel_init=jax.nn.initializers.ones, rngs=rngs), explode
    )
    wild, calm = simulate(
        federation,
        model,
        [fedavg()],
        solver=Solver([10.0, 1e-6], batch_size=B, epochs=2),
        cohort=Cohort(3),
        rounds=4,
        evaluation=Evaluation(gradients=False),
    )
    assert wild.diverged_at == 1
    assert calm.diverged_at is None
    assert calm.final.round == 4


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30), lanes=st.integers(1, 8))
def test_packing_is_whole_and_within_grahams_bound(lengths: list[int], lanes: int) -> None:
    packing = pack(np.array(lengths), lanes)
    busy: set[tuple[int, int]] = set()
    for job, length in enumerate(lengths):
        ticks = {(int(packing.lane[job]), int(packing.start[job]) + i) for i in range(length)}
        assert not busy & ticks
        busy |= ticks
    longest, mean = max(lengths), sum(lengths) / lanes
    assert max(longest, mean) <= packing.ticks <= mean + (1 - 1 / lanes) * longest + 1e-9


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    batch=st.one_of(st.just("all"), st.integers(1, 300)),
    epochs=st.integers(1, 3),
    lanes=st.integers(1, 3),
)
def test_a_plan_reads_every_row_once_an_epoch(
    sizes: list[int], batch: int, epochs: int, lanes: int
) -> None:
    solver = Solver(0.1, batch_size=batch, epochs=epochs)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    jobs = Jobs(
        np.arange(len(sizes)),
        first_row=offsets[:-1],
        size=np.array(sizes),
        steps=np.array([solver.steps_for(n) for n in sizes]),
        weight=np.full(len(sizes), 1 / len(sizes)),
        gamma=np.zeros(len(sizes)),
        participation=np.full(len(sizes), 1 / len(sizes)),
        relative_size=np.ones(len(sizes)),
        owner=np.zeros(len(sizes), np.int64),
        device_row=offsets[:-1],
    )
    width = batch_plan.tick_width(solver, max(sizes))
    packing = pack(batch_plan.job_ticks(solver, jobs, width), 2 * lanes)
    shape = batch_plan.Shape(1, 2, lanes, width)
    room = batch_plan.Capacity(packing.ticks, len(sizes))
    plan = batch_plan.plan_rounds(shape, room, solver, 0, [(0, jobs)]).ticks
    counts = np.bincount(plan.rows[plan.rows >= 0], minlength=int(offsets[-1]))
    assert (counts == epochs).all()
    steps = plan.last & (plan.rows >= 0).any(axis=-1)
    assert steps.sum() == jobs.steps.sum()
    used = (plan.rows >= 0).any(axis=-1)
    per_step = (plan.rows >= 0).sum(axis=-1)[used] / plan.size[used]
    assert per_step.sum() == pytest.approx(jobs.steps.sum())


@pytest.mark.parametrize("batch", mostly_slow([4, "all"], 4))
def test_rows_of_clients_that_are_not_chosen_have_no_effect_whatever_they_hold(batch: Any) -> None:
    def last_model(extreme: float) -> oracle.Params:
        rng = np.random.default_rng(0)
        clients = [(rng.normal(size=(n, 6)), rng.integers(0, 3, n)) for n in (5, 7, 150)]
        clients[0] = (np.full((5, 6), extreme), clients[0][1])
        federation = Federation.from_arrays(clients, clients, classes=3)
        (run,) = simulate(
            federation,
            models.logistic(federation),
            [fedprox(mu=0.1)],
            solver=Solver(0.1, batch_size=batch, epochs=2),
            cohort=Cohort(2),
            rounds=1,
            seed=seed,
        )
        assert np.isfinite(run.final.gamma_mean)
        return as_oracle(run.params)

    seed = next(s for s in range(99) if 0 not in Cohort(2).draw(s, 0, np.arange(4)).clients)
    for a, b in zip(last_model(0.0), last_model(3e38), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("method", "solver", "faults"),
    [
        pytest.param(
            *(feddane(mu=0.1), Solver(0.1, batch_size=4, epochs=2), None), marks=pytest.mark.slow
        ),
        pytest.param(
            *(scaffold(option=1), Solver(0.1, batch_size=4, steps=3), None), marks=pytest.mark.slow
        ),
        (fedprox(mu=0.1), Solver(0.1, batch_size=4, epochs=9, gamma=0.8), Faults()),
        pytest.param(
            *(fedavg(), Solver(1.0, "all", steps=3, optimizer=line_search_descent), None),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_model_that_is_not_defined_at_a_row_of_zeros(
    method: Algorithm, solver: Solver, faults: Faults | None
) -> None:
    def unit(x: Any) -> Any:
        return x / jnp.linalg.norm(x, axis=1, keepdims=True)

    def run(ready: bool) -> Run:
        rng = np.random.default_rng(0)
        rows = [rng.normal(size=(n, 4)).astype(np.float32) for n in (1, 3, 10, 70)]
        clients = [(np.asarray(unit(x)) if ready else x, rng.integers(0, 3, len(x))) for x in rows]
        model = Model(lambda _: jnp.zeros((4, 3)), lambda w, x: (x if ready else unit(x)) @ w)
        federation = Federation.from_arrays(clients, clients, classes=3)
        options: dict[str, Any] = {"cohort": Cohort(2), "faults": faults, "rounds": 3}
        options["evaluation"] = Evaluation()
        return one_run(federation, model, method, solver, **options)

    divided, plain = run(ready=False), run(ready=True)
    np.testing.assert_allclose(divided.params, plain.params, rtol=1e-4, atol=1e-6)
    for a, b in zip(divided.history, plain.history, strict=True):
        assert a.unsolved == b.unsolved
        assert a.gradient_variance == pytest.approx(b.gradient_variance, rel=1e-3)
        assert a.dissimilarity == pytest.approx(b.dissimilarity, rel=1e-3)
        assert a.gamma_mean == pytest.approx(b.gamma_mean, rel=1e-3, nan_ok=True)
