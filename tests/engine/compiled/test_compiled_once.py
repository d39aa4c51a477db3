"""Programs are compiled once in a process, and only found again where they are the same."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.devices import programs
from fedprox.devices.programs import ProgramSpec
from fedprox.engine.compiled import compile as compiling
from fedprox.engine.compiled.evaluation import client_sums
from fedprox.protocol.protocol import initial_params
from tests import objectives
from tests.settings import BASE, FEDERATION, runs

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


@pytest.mark.slow
def test_a_comparison_compiles_each_program_once_and_a_second_one_none(
    compiled: Counter[str],
) -> None:
    methods = [fp.fedavg(), fp.fedprox(mu=1.0)]
    first = runs(methods=methods, rounds=2)
    assert (compiled["jit(program)"], compiled["jit(rounds)"]) == (1, 2)
    compiled.clear()
    again = runs(methods=[fp.fedavg(), fp.fedprox(mu=1.0)], rounds=2)
    assert not compiled
    for a, b in zip(first, again, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a.params, b.params)
        assert a.history == b.history
    # what is an argument of the programs may differ
    changed: dict[str, Any] = {"solver": fp.Solver(0.3, 3, epochs=2), "seed": 7, "rounds": 3}
    (other,) = runs(methods=fp.fedprox(mu=3.0), **changed)
    assert not compiled
    start = initial_params(objectives.MODEL, 7)
    loop = objectives.Ifca([start], FEDERATION.train, mu=3.0)
    expected = objectives.run(loop, cohort=BASE["cohort"], **changed)
    for name, array in expected.items():
        np.testing.assert_allclose(other.params[name], array, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_all_programs_of_a_run_are_compiled_once_for_any_number_of_rounds(
    compiled: Counter[str],
) -> None:
    options: dict[str, Any] = {
        "methods": fp.feddane(mu=0.1, adapt=True),
        "solver": fp.Solver(0.1, 3, epochs=2, gamma=0.3),
        "evaluation": fp.Evaluation(every=2),
    }
    runs(**options, rounds=2)
    assert (compiled["jit(program)"], compiled["jit(rounds)"]) == (2, 1)
    compiled.clear()
    runs(**options, rounds=9)
    assert not compiled


def test_clients_own_models_are_measured_by_a_program_compiled_once(compiled: Counter[str]) -> None:
    """Also for a model that is built anew, which no program may keep alive."""
    found = list[Any]()
    for compilations in (1, 0):
        model = fp.models.logistic(FEDERATION, initial="zeros")
        models = jax.tree.map(lambda a: np.asarray(a)[None], model.init(jax.random.key(0)))
        compiled.clear()
        found.append(client_sums(model, models, FEDERATION.train, np.arange(6), own=False))
        assert compiled["jit(sums)"] == compilations
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0][0][:, 0], np.log(3) * FEDERATION.train.sizes, rtol=1e-5)


def test_a_model_that_is_built_anew_is_evaluated_by_the_same_program(
    compiled: Counter[str],
) -> None:
    def evaluated() -> fp.EvaluationResult:
        model = fp.models.logistic(FEDERATION, initial="zeros")
        return fp.evaluate(model, model.init(jax.random.key(0)), FEDERATION)

    first = evaluated()
    assert compiled["jit(totals)"] == 1  # training and test rows have the same shapes
    compiled.clear()
    again = evaluated()
    assert again.train_loss == first.train_loss
    assert not compiled


class Asked(BaseException):
    """The programs of a run are asked for."""


def keys(**options: Any) -> dict[str, Hashable]:
    """The keys of the programs of a run, none of which is compiled."""
    found = dict[str, Hashable]()

    def ask(specs: Mapping[str, ProgramSpec], _: Any) -> None:
        found.update({name: spec.key for name, spec in specs.items()})
        raise Asked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "compiled_once", ask)
        patch.setattr(ProgramSpec, "trace", lambda _: None)
        with pytest.raises(Asked):
            runs(**{"methods": fp.fedprox(mu=1.0)} | options)
    assert None not in found.values()
    return found


ALL_ROWS = fp.Solver(0.1, "all", epochs=2)
MEASURED: dict[str, Any] = {"evaluation": fp.Evaluation()}
OTHERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"solver": fp.Solver(0.1, 3, epochs=2, weight_decay=0.1)}),
    ({}, {"solver": fp.Solver(0.1, 3, epochs=2, clip=1e-3)}),
    ({}, {"solver": fp.Solver(0.1, 3, epochs=2, optimizer=optax.adam)}),
    ({}, {"solver": fp.Solver(0.1, 2, epochs=2)}),
    ({}, {"faults": fp.Faults()}),
    ({}, MEASURED),
    ({}, {"methods": fp.fedprox(mu=[1.0, 2.0])}),
    ({}, {"model": fp.models.logistic(FEDERATION)}),
    (MEASURED | {"solver": ALL_ROWS}, {"solver": ALL_ROWS.changed(gamma=0.9)}),
]


@pytest.mark.parametrize(("options", "changes"), OTHERS)
def test_another_setting_is_another_program(
    options: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert keys(**options)["rounds"] != keys(**options | changes)["rounds"]


def test_numbers_are_arguments_of_programs_and_measures_have_programs_of_their_own() -> None:
    plain = keys()
    rate = fp.Solver(0.2, 3, epochs=2, learning_rate_decay=0.5)
    assert keys(methods=fp.fedprox(mu=3.0), solver=rate, seed=7, rounds=3) == plain
    measured, clients = (
        keys(**MEASURED),
        keys(evaluation=fp.Evaluation(model="clients", gradients=False)),
    )
    assert set(measured) == {"rounds", "evaluation", "inexactness"} > set(plain) == set(clients)
    assert measured["evaluation"] != plain["evaluation"]
    assert clients["rounds"] != plain["rounds"]
