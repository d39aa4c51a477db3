"""Programs are compiled once in a process, and only found again where they are the same."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.devices import programs
from fedprox.devices.programs import by_value
from fedprox.experiment.resolved import method_named
from tests.catalogue import VARIANTS

FEDERATION = fp.datasets.synthetic(clients=6)
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled() -> Iterator[Counter[str]]:
    """The programs that JAX compiles, or finds on disk, by the names of their functions."""
    names: Counter[str] = Counter()

    def heard(event: str, duration_secs: float, **what: str | int) -> None:
        del duration_secs
        if event == COMPILED:
            names[str(what.get("fun_name"))] += 1

    programs.PROGRAMS.clear()
    jax.monitoring.register_event_duration_secs_listener(heard)
    yield names
    jax.monitoring.unregister_event_duration_listener(heard)


def runs(*methods: fp.Algorithm, **options: Any) -> list[fp.Run]:
    setting: dict[str, Any] = {
        "solver": fp.Solver(0.01, 10, epochs=1),
        "cohort": fp.Cohort(3),
        "rounds": 2,
        "evaluation": fp.Evaluation(gradients=False),
    }
    model = fp.models.logistic(FEDERATION)
    return fp.simulate(FEDERATION, model, list(methods), **setting | options)


def same(some: list[fp.Run], others: list[fp.Run]) -> None:
    for a, b in zip(some, others, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a.params, b.params)
        assert [each.train_loss for each in a.history] == [each.train_loss for each in b.history]


def test_methods_of_a_comparison_share_their_evaluation(compiled: Counter[str]) -> None:
    runs(fp.fedavg(), fp.fedprox(mu=1.0), fp.scaffold())
    assert (compiled["jit(program)"], compiled["jit(rounds)"]) == (1, 3)


def test_a_second_comparison_compiles_nothing_and_has_the_same_bits(
    compiled: Counter[str],
) -> None:
    first = runs(fp.fedavg(), fp.fedprox(mu=1.0), fp.scaffold())
    compiled.clear()
    again = runs(fp.fedavg(), fp.fedprox(mu=1.0), fp.scaffold())
    assert not compiled
    same(first, again)
    # what is an argument of the programs may differ
    rate = fp.Solver(0.1, 10, epochs=1, learning_rate_decay=0.5)
    other = runs(fp.fedprox(mu=3.0), seed=7, rounds=3, solver=rate)
    assert not compiled
    programs.PROGRAMS.clear()
    same(other, runs(fp.fedprox(mu=3.0), seed=7, rounds=3, solver=rate))


def test_clients_own_models_are_measured_by_a_program_compiled_once(
    compiled: Counter[str],
) -> None:
    """Also for a model that is built anew, which no program may keep alive."""
    runs(fp.ditto(lam=0.5))
    assert compiled["jit(sums)"] > 0
    compiled.clear()
    runs(fp.ditto(lam=0.5))
    assert compiled["jit(sums)"] == 0


def test_a_model_that_is_built_anew_is_evaluated_by_the_same_program(
    compiled: Counter[str],
) -> None:
    def evaluated() -> fp.EvaluationResult:
        model = fp.models.logistic(FEDERATION, initial="zeros")
        return fp.evaluate(model, model.init(jax.random.key(0)), FEDERATION)

    first = evaluated()
    assert compiled["jit(totals)"] == 2  # of training and of test rows
    compiled.clear()
    again = evaluated()
    assert again.train_loss == first.train_loss
    assert not compiled


def test_methods_and_models_that_are_built_anew_are_equal() -> None:
    for variant in VARIANTS.values():
        built = [method_named(variant.keys, "method.0")[0] for _ in range(2)]
        assert by_value(built[0]) == by_value(built[1])
    keys = [by_value(each.method._replace(hparams={}, settings={})) for each in VARIANTS.values()]
    assert len(set(keys)) == len(keys)
    few, more = (fp.datasets.synthetic(clients=clients) for clients in (2, 3))
    one, same = (by_value(fp.models.logistic(each)) for each in (few, more))
    assert one == same != by_value(fp.models.logistic(few, initial="zeros"))
    alike = functools.partial(fp.models.mlp, FEDERATION)
    assert by_value(alike(hidden=[3])) == by_value(alike(hidden=[3])) != by_value(alike(hidden=[4]))


def test_a_users_function_is_equal_to_itself_alone() -> None:
    """It may read a name that has another value in the next cell of a notebook."""

    def made(factor: float) -> Callable[[float], float]:
        return lambda x: factor * x

    double = made(2)
    assert by_value(double) == by_value(double) != by_value(made(2))
    unfinished = optax.exponential_decay(0.1, 1, 0.5)  # a closure with an empty cell
    assert by_value(unfinished) == by_value(unfinished)
    momenta = [fp.fedopt(functools.partial(optax.sgd, momentum=m)) for m in (0.5, 0.5, 0.9)]
    one, same, another = map(by_value, momenta)
    assert one == same != another


@pytest.mark.parametrize(
    "options",
    [
        {"solver": fp.Solver(0.01, 10, epochs=1, weight_decay=0.1)},
        {"solver": fp.Solver(0.01, 10, epochs=1, clip=1e-3)},
        {"solver": fp.Solver(0.01, 10, epochs=1, optimizer=optax.adam)},
        {"faults": fp.Faults()},
        {"evaluation": fp.Evaluation(gradients=False, model="clients")},
    ],
    ids=lambda options: next(iter(options)),
)
def test_another_setting_is_another_program(
    options: dict[str, Any], compiled: Counter[str]
) -> None:
    runs(fp.fedprox(mu=1.0))
    compiled.clear()
    changed = runs(fp.fedprox(mu=1.0), **options)
    assert compiled["jit(rounds)"] == 1
    programs.PROGRAMS.clear()
    same(changed, runs(fp.fedprox(mu=1.0), **options))


def test_a_stop_rule_is_another_program(compiled: Counter[str]) -> None:
    whole = fp.Solver(0.01, "all", epochs=1)
    for solver in (whole, whole.changed(gamma=0.9)):
        compiled.clear()
        runs(fp.fedprox(mu=1.0), solver=solver, evaluation=fp.Evaluation())
        assert compiled["jit(rounds)"] == 1


def test_the_programs_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MOST_PROGRAMS", 3)
    runs(fp.fedavg(), fp.fedprox(mu=1.0), fp.scaffold())
    assert len(programs.PROGRAMS) == 3
