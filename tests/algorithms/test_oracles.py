"""Methods beside their oracles, and where the oracles themselves end."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedprox as fp
from fedprox.engine.compiled import layout
from fedprox.engine.planning import batch_plan
from tests import methods
from tests.byhand import CLIENTS, DEVICES, ROWS, SLOW, SOME, START, beside_the_oracle
from tests.quadratics import ragged_quadratics

Numbers = dict[str, float]


class Case(NamedTuple):
    """A method and its oracle.

    Attributes:
        method: The method, with two points of its sweep.
        oracle: A point's numbers, federation -> the oracle's method.
        lanes: Lanes of clients; None for the library's choice.
        widest: Most rows that are read at once; None for the library's choice.
        options: More of `beside_the_oracle`'s.
    """

    method: fp.Algorithm
    oracle: Callable[[Numbers, fp.Federation], methods.Method]
    lanes: int | None = None
    widest: int | None = None
    options: Mapping[str, Any] = {}


def feddc(numbers: Numbers, federation: fp.Federation) -> methods.Method:
    method = methods.FedDC(START, len(federation), numbers["alpha"])
    method.weights = federation.train.sizes / federation.train.sizes.sum()
    return method


CASES = {
    "fedavg": Case(
        fp.fedavg(stragglers="keep", average="clients").with_solver(learning_rate=[0.1, 0.2]),
        lambda *_: methods.FedProx(START, CLIENTS, by_rows=False),
    ),
    "fedprox drop": Case(
        fp.fedprox(mu=[0.0, 0.5]).with_stragglers("drop"),
        lambda n, _: methods.FedProx(START, CLIENTS, n["mu"], drop=True),
    ),
    "feddane": Case(
        fp.feddane(mu=[0.0, 0.5]),
        lambda n, federation: methods.FedDane(START, federation, n["mu"]),
        options={"cohort": fp.Cohort(6), "evaluated": "clients"},
    ),
    "scaffold 1": Case(
        fp.scaffold(option=1, server_learning_rate=[0.8, 1.0]),
        lambda n, _: methods.Scaffold(START, CLIENTS, 1, n["server_learning_rate"]),
        lanes=1,
        options={"devices": 2},
    ),
    "scaffold 2": Case(
        fp.scaffold(option=2, server_learning_rate=[0.8, 1.0]),
        lambda n, _: methods.Scaffold(START, CLIENTS, 2, n["server_learning_rate"]),
        lanes=2,
        options={"devices": 1},
    ),
    "feddyn": Case(
        fp.feddyn(alpha=[0.3, 2.0]), lambda n, _: methods.FedDyn(START, CLIENTS, n["alpha"])
    ),
    "fedsplit": Case(
        fp.fedsplit(step_size=[0.5, 2.0], average="all"),
        lambda n, _: methods.FedSplit(START, CLIENTS, n["step_size"], "all"),
    ),
    "fedadmm": Case(
        fp.fedadmm(rho=[0.5, 2.0], server_learning_rate=0.3),
        lambda n, _: methods.FedAdmm(START, CLIENTS, n["rho"], 0.3),
    ),
    "fedexp": Case(
        fp.fedexp(epsilon=[1e-4, 0.1]),
        lambda n, _: methods.Ruled(
            methods.FedProx(START, CLIENTS, drop=True, by_rows=False),
            methods.Extrapolation(n["epsilon"]),
        ),
    ),
    # the clip and the weight decay count as part of the gradients
    "fednova": Case(
        fp.fednova(mu=[0.0, 2.0]), lambda n, _: methods.FedNova(START, CLIENTS, n["mu"])
    ),
    "qffl": Case(fp.qffl(q=[0.3, 2.0]), lambda n, f: methods.QFfl(START, f, n["q"])),
    "fedcm": Case(
        fp.fedcm(alpha=[0.4, 1.0]), lambda n, _: methods.FedCM(START, CLIENTS, n["alpha"])
    ),
    # gradients are added up over the parts of a mini-batch, and each mini-batch is corrected once
    "mime": Case(
        fp.mime(beta=[0.0, 0.6]), lambda n, _: methods.Mime(START, CLIENTS, n["beta"]), widest=2
    ),
    "mimelite": Case(
        fp.mime(beta=[0.0, 0.9], lite=True),
        lambda n, _: methods.Mime(START, CLIENTS, n["beta"], lite=True),
    ),
    "mime of whole gradients": Case(
        fp.mime(beta=[0.0, 0.6], whole_gradients=True),
        lambda n, _: methods.Mime(START, CLIENTS, n["beta"], whole_gradients=True),
    ),
    # its gradient of a mini-batch has no parts, so the mini-batch is read in one piece
    "fedsam": Case(
        fp.fedsam(rho=[0.0, 0.5]), lambda n, _: methods.FedSam(START, CLIENTS, n["rho"]), widest=2
    ),
    "feddc": Case(fp.feddc(alpha=[0.1, 1.0]), feddc),
}


@pytest.mark.parametrize("name", CASES)
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
    usual = {"solver": fp.Solver(0.05, 3, epochs=2), "cohort": fp.Cohort(3), "federation": FEW}
    ours, theirs = (methods.run(m, **usual | {"rounds": 5} | changes) for m in both)
    np.testing.assert_allclose(ours.server, theirs.server, rtol=1e-6)
