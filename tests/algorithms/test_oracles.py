"""Methods beside their oracles, and where the oracles themselves end."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.engine.compiled import layout
from fedprox.engine.planning import batch_plan
from tests import methods
from tests.byhand import (
    CASES,
    CLIENTS,
    DEVICES,
    ROWS,
    SLOW,
    SOME,
    START,
    beside_the_oracle,
    feddc,
)
from tests.quadratics import ragged_quadratics
from tests.variants import mostly_slow


@pytest.mark.parametrize(
    "name",
    mostly_slow(CASES, *(set(CASES) - {"mime of whole gradients", "mimelite", "scaffold 1"})),
)
def test_runs_are_the_oracles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With partial work, rounds without anyone, mini-batches, a clip and weight decay."""
    method, oracle, lanes, widest, options = CASES[name]
    if lanes:
        monkeypatch.setattr(layout, "choose_lanes", lambda *_: lanes)
    if widest:
        monkeypatch.setattr(batch_plan, "WIDEST_TICK", widest)
    beside_the_oracle(method, oracle, **options)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_setting_has_empty_rounds_partial_work_and_whole_work(seed: int) -> None:
    train, solver = ragged_quadratics(0, ROWS).train, fp.Solver(0.1, 3, epochs=2)
    done = []
    for t in range(8):
        chosen = SOME.draw(seed, t, train.offsets).clients
        in_time = SLOW.deadline // np.array(DEVICES.step_seconds)[chosen]
        work = SLOW.work(seed, t, chosen, train.sizes[chosen], solver, in_time=in_time)
        done.append((int(work.steps.sum()), bool((work.steps[work.stragglers] > 0).any())))
    assert any(steps == 0 for steps, _ in done)
    assert any(late for _, late in done)
    assert any(steps > 3 for steps, _ in done)


FEDERATION, FEW = ragged_quadratics(0, ROWS), ragged_quadratics(0, ROWS[:5])
STEPS = fp.Solver(0.05, "all", steps=10)


def ends(
    method: methods.Method,
    solver: fp.Solver | None = STEPS,
    cohort: fp.Cohort = SOME,
    rounds: int = 400,
    federation: fp.Federation = FEDERATION,
) -> methods.Path:
    """The three models of a method; with exact local answers without a solver."""
    return methods.run(method, federation, cohort=cohort, rounds=rounds, solver=solver)


MINIMISING: dict[str, Callable[[], methods.Path]] = {
    "feddyn": lambda: ends(methods.FedDyn(START, CLIENTS, 2.0), None),
    "feddyn of large alpha": lambda: ends(methods.FedDyn(START, CLIENTS, 5.0), None, rounds=800),
    "scaffold 1": lambda: ends(methods.Scaffold(START, CLIENTS, 1)),
    "scaffold 2": lambda: ends(methods.Scaffold(START, CLIENTS, 2)),
    "fedsplit": lambda: ends(methods.FedSplit(START, CLIENTS, 1.0, "all"), None),
    "fedadmm": lambda: ends(methods.FedAdmm(START, CLIENTS, 1.0, 0.1), None, rounds=800),
}


@pytest.mark.parametrize("name", MINIMISING)
def test_all_three_models_go_to_the_minimiser_with_few_clients(name: str) -> None:
    star = methods.minimiser(FEDERATION)
    for models in MINIMISING[name]():
        assert np.linalg.norm(models[-1] - star) < 1e-6
        assert np.linalg.norm(models[20] - star) > 1e-3


EVERYONE: dict[str, tuple[methods.Method, bool]] = {
    "fedavg": (methods.FedProx(START, 5), False),
    "fedprox": (methods.FedProx(START, 5, 1.0), False),
    "feddane": (methods.FedDane(START, FEW, 1.0), True),
    "feddc": (feddc({"alpha": 0.5}, FEW), True),
    "mime": (methods.Mime(START, 5, 0.5), True),
    "mimelite": (methods.Mime(START, 5, 0.5, lite=True), False),
    "fedsplit": (methods.FedSplit(START, 5, 1.0, "active"), True),
}
"""Methods, and whether they end at the minimiser when everyone takes part."""


@pytest.mark.parametrize("name", EVERYONE)
def test_corrections_take_a_method_to_the_minimiser_and_others_end_elsewhere(name: str) -> None:
    method, there = EVERYONE[name]
    solver = None if name == "fedsplit" else STEPS
    away = ends(method, solver, fp.Cohort(5), 120, FEW).server[-1]
    away -= methods.minimiser(FEW, by_rows=method.by_rows)
    assert np.linalg.norm(away) < 1e-5 if there else np.linalg.norm(away) > 0.02


def test_averaging_the_active_alone_goes_to_no_minimiser() -> None:
    # the z_k differ at the minimiser, and their mean over a part of the clients is another point
    path = ends(methods.FedSplit(START, CLIENTS, 1.0, "active"), None, rounds=200)
    away = np.linalg.norm(path.server[-20:] - methods.minimiser(FEDERATION), axis=1)
    assert away.min() > 1e-6


ALIKE = fp.Federation.from_arrays([FEW.train.client(0)] * 5)
SPECIAL: dict[str, tuple[methods.Method, methods.Method, dict[str, Any]]] = {
    "fedadmm of everyone": (
        methods.FedAdmm(START, 5, 0.8, 1.0),
        methods.FedDyn(START, 5, 0.8),
        {"cohort": fp.Cohort(5)},
    ),
    "fednova of equal steps": (
        methods.FedNova(START, 5, 0.7),
        methods.FedProx(START, 5, 0.7),
        {"solver": fp.Solver(0.05, 3, steps=6)},
    ),
    "feddane of equal clients": (
        methods.FedDane(START, ALIKE, 0.2),
        methods.FedProx(START, 5, 0.2),
        {"federation": ALIKE, "solver": STEPS},
    ),
    "mime of whole batches": (
        methods.Mime(START, 5, 0.5),
        methods.Mime(START, 5, 0.5, whole_gradients=True),
        {"solver": STEPS},
    ),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_methods_are_others_in_special_cases(name: str) -> None:
    *both, changes = SPECIAL[name]
    usual: dict[str, Any] = {"cohort": fp.Cohort(3), "rounds": 5, "federation": FEW}
    usual["solver"] = fp.Solver(0.05, 3, epochs=2)
    ours, theirs = (methods.run(m, **usual | changes) for m in both)
    np.testing.assert_allclose(ours.server, theirs.server, rtol=1e-6)
