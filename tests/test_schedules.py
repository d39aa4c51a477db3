"""Learning rates as functions of the round: closed forms, and the same as numbers where equal."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
import tomli_w

import fedprox as fp
from fedprox.experiment import parse, read_experiment, resolve
from fedprox.report.records import metrics_line
from fedprox.solver import ROUNDS_AT_ONCE
from tests.quadratics import one_run, quadratic_federation, quadratic_model, ragged_quadratics

ROUNDS = 6


FEDERATION = ragged_quadratics(0, [3, 5, 2])
MODEL = quadratic_model(np.array([1.0, -1.0, 2.0]))


def quadratic_run(solver: fp.Solver, method: Any = None, **options: Any) -> fp.Run:
    options = {"rounds": ROUNDS, **options}
    return one_run(FEDERATION, MODEL, method or fp.fedavg(), solver, **options)


def lines(run: fp.Run) -> list[Any]:
    """The records, in which NaN equals itself."""
    return [metrics_line(record) for record in run.history]


@pytest.mark.parametrize(
    "schedule", [optax.linear_schedule(0.5, 0.1, 4), lambda t: 0.5 - 0.1 * min(t, 4)]
)
def test_each_round_takes_its_own_rate(schedule: Any) -> None:
    """On w^2 / 2 a step with rate eta multiplies w by 1 - eta."""
    federation = quadratic_federation([np.eye(1)] * 2, [np.zeros(1)] * 2)
    run = one_run(
        federation,
        quadratic_model(np.ones(1)),
        fp.fedavg(),
        fp.Solver(schedule, "all", steps=1),
        rounds=ROUNDS,
    )
    rates = [float(f"{float(schedule(t)):.6g}") for t in range(ROUNDS)]
    w = np.cumprod([1.0, *(1 - np.array(rates))])
    np.testing.assert_allclose([r.train_loss for r in run.history], w**2 / 2, rtol=1e-5)
    assert run.learning_rate == rates[0]
    np.testing.assert_allclose(
        [r.learning_rate for r in run.history], [rates[0], *rates], rtol=1e-6
    )


@pytest.mark.slow
def test_a_constant_schedule_is_the_number_bit_for_bit() -> None:
    """Also where a method divides by the rate, as SCAFFOLD does."""
    runs = [
        quadratic_run(fp.Solver(rate, 2, epochs=1), fp.scaffold())
        for rate in (0.1, optax.constant_schedule(0.1), lambda _: 0.1)
    ]
    for run in runs[1:]:
        assert lines(run) == lines(runs[0])
        np.testing.assert_array_equal(run.params, runs[0].params)


@pytest.mark.slow
def test_exponential_decay_is_the_solvers_own() -> None:
    own = quadratic_run(fp.Solver(0.1, 2, epochs=1, learning_rate_decay=0.9))
    scheduled = quadratic_run(fp.Solver(optax.exponential_decay(0.1, 1, 0.9), 2, epochs=1))
    np.testing.assert_allclose(scheduled.params, own.params, rtol=1e-5)


def test_a_rate_does_not_depend_on_the_rounds_planned_with_it() -> None:
    schedule = optax.warmup_cosine_decay_schedule(0.01, 0.1, 100, 3 * ROUNDS_AT_ONCE)
    rounds = [0, 1, ROUNDS_AT_ONCE - 1, ROUNDS_AT_ONCE, 2 * ROUNDS_AT_ONCE + 7]
    solver = fp.Solver(schedule, 2, epochs=1)
    rates = {t: solver.factor(t) for t in rounds}
    again = fp.Solver(
        optax.warmup_cosine_decay_schedule(0.01, 0.1, 100, 3 * ROUNDS_AT_ONCE), 2, epochs=1
    )
    assert rates == {t: again.factor(t) for t in reversed(rounds)}
    single = jax.jit(schedule)
    np.testing.assert_allclose(list(rates.values()), [float(single(t)) for t in rounds], 1e-5)


def test_rates_computed_together_are_those_of_single_rounds() -> None:
    """piecewise_interpolate_schedule gives other values for an array of rounds."""
    own = optax.piecewise_interpolate_schedule("linear", 0.4, {4: 0.5})
    for schedule in (own, optax.constant_schedule(0.1)):
        solver, single = fp.Solver(schedule, 2, epochs=1), jax.jit(schedule)
        rates = [solver.factor(t) for t in range(8)]
        np.testing.assert_allclose(rates, [float(single(t)) for t in range(8)], rtol=1e-6)


def test_optax_schedules_joined_with_own_functions_are_asked_round_by_round() -> None:
    joined = optax.join_schedules([lambda t: 0.1 if t < 2 else 0.2, lambda _: 0.3], [4])
    assert fp.Solver(joined, 2, epochs=1).factor(3) == 0.2


def test_schedules_are_compared_as_methods() -> None:
    schedules = [optax.cosine_decay_schedule(0.1, 20), optax.cosine_decay_schedule(0.2, 20)]
    runs = fp.simulate(
        FEDERATION,
        MODEL,
        [fp.fedavg(), *(fp.fedavg().with_solver(learning_rate=s) for s in schedules)],
        solver=fp.Solver(0.1, 2, epochs=1),
        cohort=fp.Cohort(3),
        rounds=2,
        evaluation=fp.Evaluation(gradients=False),
    )
    assert [run.label for run in runs] == [
        "fedavg",
        "fedavg learning_rate=cosine_decay_schedule from 0.1",
        "fedavg learning_rate=cosine_decay_schedule from 0.2",
    ]
    assert runs[0].experiment["method"][2]["solver"] == {"learning_rate": "cosine_decay_schedule"}


def test_a_resumed_run_is_the_same_and_other_schedules_are_refused(tmp_path: Path) -> None:
    def solver(steps: int) -> fp.Solver:
        return fp.Solver(optax.cosine_decay_schedule(0.1, steps), 2, epochs=1)

    def part(steps: int, rounds: int) -> fp.Run:
        checkpoints = fp.Checkpoints(tmp_path, resume=True)
        return quadratic_run(solver(steps), rounds=rounds, checkpoints=checkpoints)

    part(20, 4)
    whole = quadratic_run(solver(20), rounds=9)
    longer = part(20, 9)
    assert lines(longer) == lines(whole)
    np.testing.assert_array_equal(longer.params, whole.params)
    with pytest.raises(fp.InputError, match="checkpoints of another comparison: fedavg: learning"):
        part(21, 10)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"learning_rate": [optax.constant_schedule(0.1), 0.1]},
            r"a list with functions.*with_solver\(learning_rate=schedule\)",
        ),
        (
            {"learning_rate": optax.linear_schedule(-0.1, 0.1, 5)},
            "in round 0 its function gives -0.1.*; it must give one finite number of at least 0",
        ),
        ({"learning_rate": lambda _: [0.1]}, "in round 0 its function gives .0.1.; it must"),
        ({"learning_rate": lambda _: "a"}, "in round 0 its function gives 'a'; it must"),
        ({"learning_rate": lambda t: {}[t]}, r"solver.learning_rate\(0\) raised KeyError"),
        (
            {"learning_rate": optax.constant_schedule(0.1), "learning_rate_decay": 0.9},
            "learning_rate_decay = 0.9; with a function of the round .* must be 1",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(settings: Any, line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        fp.Solver(**{"batch_size": 2, "epochs": 1, **settings})


@pytest.mark.parametrize("bad", [5, 3])
def test_a_negative_rate_in_a_later_round_is_refused(bad: int) -> None:
    """Of the last round before anything is compiled, and of others when they are planned."""
    solver = fp.Solver(lambda t: -0.1 if t == bad else 0.1, 2, epochs=1)
    with pytest.raises(fp.InputError, match=f"in round {bad} its function gives -0.1"):
        quadratic_run(solver)


def test_a_warm_up_may_begin_at_0() -> None:
    run = quadratic_run(fp.Solver(optax.linear_schedule(0, 0.1, 5), 2, epochs=1), rounds=2)
    losses = [record.train_loss for record in run.history]
    assert losses[0] == losses[1] > losses[2]


def test_a_rate_of_0_is_refused_where_it_is_divided_by() -> None:
    solver = fp.Solver(lambda t: 0.1 * (t != 1), 2, epochs=1)
    line = "qffl: it divides by the learning rate, which solver.learning_rate gives as 0 in round 1"
    with pytest.raises(fp.InputError, match=line):
        quadratic_run(solver, fp.qffl(q=1.0), rounds=3)


@pytest.mark.slow
def test_asynchronous_rounds_take_a_rate_of_0_only_at_first() -> None:
    settings: dict[str, Any] = {
        "population": fp.Population(step_seconds=(0.1, 0.2, 0.9)),
        "asynchronous": fp.Asynchronous(1),
        "cohort": fp.Cohort(2),
        "rounds": 5,
    }
    begins = fp.Solver(optax.linear_schedule(0, 0.1, 2), 2, epochs=1)
    assert np.isfinite(quadratic_run(begins, **settings).final.train_loss)
    ends = fp.Solver(lambda t: 0.1 * (t < 2), 2, epochs=1)
    with pytest.raises(fp.InputError, match="in round 2 its function gives 0 after it was above"):
        quadratic_run(ends, **settings)


TABLE: dict[str, Any] = {
    "rounds": 2,
    "cohort": {"clients_per_round": 2},
    "solver": {
        "learning_rate": {
            "schedule": "cosine_decay_schedule",
            "init_value": 0.1,
            "decay_steps": 20,
        },
        "batch_size": 10,
        "epochs": 1,
    },
    "data": {"name": "synthetic", "clients": 3},
    "method": [{"name": "fedavg"}],
}


def test_an_experiment_file_names_a_schedule() -> None:
    own = {"schedule": "linear_schedule", "init_value": 1, "end_value": 0.5, "transition_steps": 2}
    methods = [{"name": "fedavg"}, {"name": "fedavg", "solver": {"learning_rate": own}}]
    resolved = resolve(parse("x", TABLE | {"method": methods}))
    assert resolved.solver.factor(10) == pytest.approx(0.05)
    assert resolved.methods[1].solver(resolved.solver).factor(1) == 0.75
    assert resolved.table["solver"]["learning_rate"]["alpha"] == 0.0
    assert resolve(parse("x", resolved.table)).solver.factor(7) == resolved.solver.factor(7)


HALVED: list[dict[str, Any]] = [
    {
        "schedule": "exponential_decay",
        "init_value": 0.1,
        "transition_steps": 50,
        "decay_rate": 0.5,
        "staircase": True,
    },
    {
        "schedule": "piecewise_constant_schedule",
        "init_value": 0.1,
        "boundaries_and_scales": {"50": 0.5, "100": 0.5},
    },
]


INTERPOLATED = {
    "schedule": "piecewise_interpolate_schedule",
    "interpolate_type": "linear",
    "init_value": 0.4,
    "boundaries_and_scales": {"4": 0.5},
}
STEPPED = {0: 0.1, 49: 0.1, 50: 0.05, 99: 0.05, 100: 0.025, 149: 0.025}


@pytest.mark.parametrize(
    ("own", "rates"),
    [*((own, STEPPED) for own in HALVED), (INTERPOLATED, {0: 0.4, 2: 0.3, 4: 0.2, 9: 0.2})],
    ids=lambda value: value.get("schedule"),
)
def test_a_piecewise_schedule_changes_the_rate_in_the_rounds_it_names(
    own: dict[str, Any], rates: dict[int, float]
) -> None:
    resolved = resolve(parse("x", TABLE | {"solver": TABLE["solver"] | {"learning_rate": own}}))
    again = resolve(parse("x", tomllib.loads(tomli_w.dumps(resolved.table))))
    for solver in (resolved.solver, again.solver):
        assert {t: solver.factor(t) for t in rates} == rates


@pytest.mark.slow
def test_the_run_directory_of_a_schedule_can_be_read_and_run_again(tmp_path: Path) -> None:
    file, out = tmp_path / "a.toml", tmp_path / "run"
    own = '{schedule = "linear_schedule", init_value = 0.2, end_value = 0.1, transition_steps = 2}'
    file.write_text(
        "rounds = 2\n[cohort]\nclients_per_round = 2\n"
        '[data]\nname = "synthetic"\nclients = 3\n'
        f"[solver]\nlearning_rate = {own}\nbatch_size = 10\nepochs = 1\n"
        f'[[method]]\nname = "fedavg"\n[[method]]\nname = "fedavg"\n'
        f"solver = {{learning_rate = {own.replace('0.2', '0.3')}}}\n"
    )
    runs = fp.run(file, out=out)
    assert runs[1].label == (
        "fedavg learning_rate=linear_schedule init_value=0.3 end_value=0.1 transition_steps=2"
    )
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in lines] == [0.2, 0.2, 0.15, 0.3, 0.3, 0.2]
    again = resolve(read_experiment(out / "experiment.toml"))
    assert again.solver.factor(1) == 0.15


def test_an_experiment_file_names_a_schedule_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "rates.py").write_text(
        "def steps(first: float, every: int = 2):\n"
        "    return lambda t: first / 2 ** (t // every)\n"
        "def number():\n    return 3\n"
    )
    table = {"schedule": "rates:steps", "first": 0.4}
    solver = TABLE["solver"] | {"learning_rate": table}
    resolved = resolve(parse("x", TABLE | {"solver": solver}))
    assert [resolved.solver.factor(t) for t in range(4)] == [0.4, 0.4, 0.2, 0.2]
    assert resolved.table["solver"]["learning_rate"] == {**table, "every": 2}
    wrong = TABLE | {"solver": solver | {"learning_rate": {"schedule": "rates:number"}}}
    with pytest.raises(fp.InputError, match="of type int; it must return a function"):
        resolve(parse("x", wrong))


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"schedule": "cosine"}, "solver.learning_rate.schedule = 'cosine'; "),
        ({"init_value": 1}, "the key 'schedule' is missing"),
        (
            {
                "schedule": "linear_schedule",
                "init_value": -1,
                "end_value": 1,
                "transition_steps": 2,
            },
            "in round 0 its function gives -1.0",
        ),
        (
            {"schedule": "cosine_decay_schedule", "init_value": 1, "decay_step": 2},
            "unknown key 'decay_step'; did you mean 'decay_steps'",
        ),
        (
            {"schedule": "cosine_decay_schedule", "init_value": 1, "decay_steps": 0},
            "cosine_decay_schedule raised ValueError: .*positive",
        ),
        (
            HALVED[1] | {"boundaries_and_scales": {"5.5": 0.5}},
            "boundaries_and_scales has the key '5.5'; each key must be a round",
        ),
        (
            HALVED[1] | {"boundaries_and_scales": [50, 100]},
            r"boundaries_and_scales = \[50, 100\]; it must be a table",
        ),
        (
            HALVED[1] | {"boundaries_and_scales": {"1": -0.5}},
            "piecewise_constant_schedule raised ValueError: ",
        ),
    ],
)
def test_mistakes_in_a_schedules_table(table: Any, line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        resolve(parse("x", TABLE | {"solver": TABLE["solver"] | {"learning_rate": table}}))
