"""Mime and MimeLite against the oracle, FedDANE and closed forms."""

import functools
from typing import Any

import numpy as np
import optax
import pytest

from fedprox import Evaluation, InputError, Privacy, Solver, feddane, mime
from fedprox.engine.planning import batch_plan
from tests import methods
from tests.byhand import CLIENTS, START, beside_the_oracle, distance
from tests.methods import Vector
from tests.quadratics import one_run, quadratic_model, ragged_quadratics
from tests.variants import mostly_slow

ROWS = [3, 1, 7, 4, 2, 5]
SOLVER = Solver(0.05, "all", steps=5)
BATCHES = Solver(0.05, 2, epochs=2)


VARIANTS: dict[str, dict[str, bool]] = {
    "Mime": {},
    "MimeLite": {"lite": True},
    "whole gradients": {"whole_gradients": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_runs_are_the_oracles(name: str) -> None:
    # on mini-batches, with partial work, a clip and weight decay
    variant = VARIANTS[name]
    beside_the_oracle(
        mime(beta=[0.0, 0.6, 0.9], **variant),
        lambda hparams, _: methods.Mime(START, CLIENTS, hparams["beta"], **variant),
    )


def one(method: Any, solver: Solver, **options: Any) -> Vector:
    run = one_run(ragged_quadratics(0, ROWS), quadratic_model(START), method, solver, **options)
    return np.asarray(run.params, float)


def test_the_two_corrections_differ_on_mini_batches_alone() -> None:
    paper, whole = (mime(whole_gradients=each) for each in (False, True))
    for solver, same in ((SOLVER, True), (Solver(0.05, 9, steps=5), True), (BATCHES, False)):
        ours, theirs = (one(method, solver, rounds=4) for method in (paper, whole))
        assert np.allclose(ours, theirs, rtol=1e-5) == same


def test_a_mini_batch_of_many_ticks_is_corrected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # gradients are added up over the ticks of a mini-batch
    solver = Solver(0.05, 5, epochs=2)
    expected = one(mime(), solver, rounds=3)
    monkeypatch.setattr(batch_plan, "WIDEST_TICK", 2)
    np.testing.assert_allclose(one(mime(), solver, rounds=3), expected, rtol=1e-5)


def test_gamma_is_reached_with_corrected_mini_batches() -> None:
    federation, model = ragged_quadratics(0, ROWS), quadratic_model(START)
    run = one_run(federation, model, mime(), Solver(0.1, 2, epochs=30, gamma=0.3), rounds=2)
    assert run.final.gamma_max is not None
    assert 0 < run.final.gamma_max <= 0.3


@pytest.mark.parametrize("evaluated", mostly_slow(["server", "cohort"], "server"))
def test_without_momentum_and_with_everyone_it_is_feddane_without_mu(evaluated: Any) -> None:
    federation, model = ragged_quadratics(0, ROWS), quadratic_model(START)
    setting: dict[str, Any] = {
        "solver": Solver(0.05, 2, epochs=2),
        "rounds": 4,
        "evaluation": Evaluation(model=evaluated, gradients=False),
    }
    ours = one_run(federation, model, mime(beta=0.0, whole_gradients=True), **setting)
    theirs = one_run(federation, model, feddane(mu=0.0)._replace(average="clients"), **setting)
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-5)


def test_the_correction_takes_mime_to_the_minimiser_and_mimelite_elsewhere() -> None:
    federation, star = ragged_quadratics(0, ROWS), methods.minimiser(ragged_quadratics(0, ROWS))
    setting: dict[str, Any] = {"solver": Solver(0.02, "all", steps=8), "rounds": 150}
    ours = one_run(federation, quadratic_model(START), mime(beta=0.5), **setting)
    lite = one_run(federation, quadratic_model(START), mime(beta=0.5, lite=True), **setting)
    assert distance(ours, star) < 1e-4
    assert distance(lite, star) > 0.02


@pytest.mark.parametrize("beta", [1.0, [0.5, 1.5]])
def test_beta_must_be_below_1(beta: Any) -> None:
    with pytest.raises(InputError, match=r"mime: beta = 1\.[05]; it must be below 1"):
        mime(beta)


def test_mimelite_corrects_nothing() -> None:
    with pytest.raises(InputError, match="lite and whole_gradients: one of them must be false"):
        mime(lite=True, whole_gradients=True)


@pytest.mark.parametrize("optimizer", [functools.partial(optax.sgd, momentum=0.9), optax.adam])
def test_clients_take_steps_of_plain_sgd(optimizer: Any) -> None:
    with pytest.raises(InputError, match=r"mime needs solver.optimizer = sgd without options"):
        mime().solver(Solver(0.1, "all", steps=2, optimizer=optimizer))


def test_two_releases_of_one_cohort_are_refused_with_privacy() -> None:
    federation, privacy = ragged_quadratics(0, [1, 2]), Privacy(1.0, noise_multiplier=1.0)
    with pytest.raises(InputError, match=r"mime: one cohort would release .*, so privacy.unit"):
        one_run(federation, quadratic_model(START), mime(), SOLVER, privacy=privacy)


def test_another_cohort_than_these_is_refused() -> None:
    none: Any = "none"
    mine = mime()._replace(name="mine", first=mime().first._replace(cohort=none))
    with pytest.raises(InputError, match=r"mine: first.cohort = 'none'; .* another, own"):
        one_run(ragged_quadratics(0, [1, 2]), quadratic_model(START), mine, SOLVER)
