"""The engine against the oracle, in any arrangement."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.engine.compiled import layout as laying_out
from fedprox.protocol.protocol import initial_params
from tests import objectives, oracle
from tests.objectives import first
from tests.settings import BASE, FEDERATION, SELDOM, runs
from tests.variants import mostly_slow


def ragged_federation(sizes: list[int], seed: int = 0) -> fp.Federation:
    rng = np.random.default_rng(seed)
    clients = [(rng.normal(size=(n, 6)) + rng.normal(), rng.integers(0, 3, n)) for n in sizes]
    return fp.Federation.from_arrays(clients, clients, classes=3)


def as_oracle(params: Any) -> oracle.Params:
    dense = params["dense"]
    return oracle.Params(np.asarray(dense["weight"], float), np.asarray(dense["bias"], float))


def close(params: oracle.Params, expected: oracle.Params) -> None:
    for a, b in zip(params, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


RAGGED = ragged_federation([1, 9, 10, 11, 73, 300])
LOGISTIC = fp.models.logistic(RAGGED)

ARRANGEMENTS: dict[str, tuple[fp.Solver, int, float]] = {
    "mini-batches": (fp.Solver(0.1, 10, epochs=2), 2, 0.5),
    "single rows": (fp.Solver(0.1, 1, epochs=1), 2, 0.0),
    "wider than a tick": (fp.Solver(0.1, 200, epochs=3), 3, 0.9),
    "all rows": (fp.Solver(0.1, "all", steps=7), 1, 0.0),
    "a stop rule that never binds": (fp.Solver(0.1, 200, epochs=2, gamma=0.0), 2, 0.5),
}
"""The solver, the lanes and the share of stragglers."""


@pytest.mark.parametrize("name", mostly_slow(ARRANGEMENTS, "a stop rule that never binds"))
def test_fedprox_equals_the_numpy_loop(name: str) -> None:
    engine_and_oracle(fp.fedprox(mu=[0.0, 0.5]), name)


def test_fedavg_equals_the_numpy_loop_without_stragglers() -> None:
    engine_and_oracle(fp.fedavg(), "mini-batches")


def engine_and_oracle(method: fp.Algorithm, name: str) -> None:
    """Compare models and measures; padding counts in none of them."""
    solver, lanes, stragglers = ARRANGEMENTS[name]
    setting: dict[str, Any] = {
        "solver": solver,
        "cohort": fp.Cohort(5),
        "systems": fp.Systems(stragglers=stragglers),
        "rounds": 3,
    }
    evaluation = fp.Evaluation(every=2, gradients=solver.gamma is not None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laying_out, "choose_lanes", lambda *_: lanes)
        found = fp.simulate(RAGGED, LOGISTIC, method, evaluation=evaluation, seed=[4, 5], **setting)
    for run in found:
        expected = oracle.federated(
            RAGGED,
            as_oracle(initial_params(LOGISTIC, run.seed)),
            mu=run.hparams.get("mu", 0.0),
            drop=method.stragglers == "drop",
            seed=run.seed,
            **setting,
        )
        close(as_oracle(run.params), expected)
        measured(run, as_oracle(run.params), gradients=evaluation.gradients)


def measured(run: fp.Run, params: oracle.Params, *, gradients: bool) -> None:
    """Compare the last measures with those of the parameters."""
    x, y = RAGGED.train.x.astype(float), RAGGED.train.y.astype(int)
    loss, gradient = oracle.loss_and_gradient(params, x, y)
    predictions = (x @ params.kernel.T + params.bias).argmax(axis=1)
    assert run.final.train_loss == pytest.approx(loss, rel=1e-5)
    assert run.final.test_accuracy == pytest.approx((predictions == y).mean())
    if gradients:
        clients = [
            oracle.loss_and_gradient(params, *oracle.client_rows(RAGGED, k))[1]
            for k in range(len(RAGGED))
        ]
        variance = sum(
            p * sum(((g - m) ** 2).sum() for g, m in zip(own, gradient, strict=True))
            for p, own in zip(RAGGED.shares, clients, strict=True)
        )
        assert run.final.gradient_variance == pytest.approx(variance, rel=1e-4)


def losses(run: fp.Run) -> list[float]:
    return [record.train_loss for record in run.history]


def same(one: fp.Run, other: fp.Run) -> None:
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)


def test_seeds_methods_and_how_often_they_are_evaluated_change_no_bit() -> None:
    method = fp.fedprox(mu=1.0)
    together = runs(methods=[fp.fedavg(), method], seed=[0, 1, 2])
    (alone,) = runs(methods=method, seed=1)
    (there,) = [run for run in together if run.method == "fedprox" and run.seed == 1]
    same(alone, there)
    assert losses(alone) == losses(there)
    assert losses(together[-1]) != losses(alone)
    (seldom,) = runs(methods=method, seed=1, **SELDOM)
    same(alone, seldom)
    assert losses(seldom) == [losses(alone)[t] for t in (0, 2, 4, 5)]


STEPPED: dict[str, dict[str, Any]] = {
    "clients that keep something": {"methods": fp.scaffold()},
    "gradients read first and a stop rule": {
        "methods": fp.feddane(mu=1.0),
        "solver": fp.Solver(0.1, 3, epochs=2, gamma=0.5),
        "evaluation": fp.Evaluation(),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STEPPED)
def test_points_of_a_sweep_one_after_another(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"solver": BASE["solver"]} | STEPPED[case]
    rates = [0.02, 0.1]

    def histories(rate: Any) -> list[list[float]]:
        changed = options | {"solver": options["solver"].changed(learning_rate=rate)}
        return [
            [x for r in run.history[1:] for x in (r.train_loss, r.client_steps, r.gamma_max)]
            for run in runs(**changed)
        ]

    alone = [histories(rate)[0] for rate in rates]
    monkeypatch.setattr(laying_out, "SMALL_STEP", 0)
    np.testing.assert_allclose(histories(rates), alone, rtol=1e-4)
    assert not np.allclose(alone[0], alone[1], rtol=1e-2)


def test_a_model_that_diverges_is_named_and_the_others_go_on() -> None:
    wild, calm = runs(solver=fp.Solver([1e38, 1e-6], 3, epochs=2))
    assert wild.diverged_at == 1
    assert calm.diverged_at is None
    assert calm.final.round == 5


@pytest.mark.slow
def test_rows_of_clients_that_are_not_chosen_have_no_effect_whatever_they_hold() -> None:
    draws = (fp.Cohort(4).draw(s, 0, FEDERATION.train.offsets).clients for s in range(99))
    seed = next(s for s, clients in enumerate(draws) if 0 not in clients)
    x = FEDERATION.train.x.copy()
    x[: FEDERATION.train.sizes[0]] = 3e38
    extreme = replace(FEDERATION, train=replace(FEDERATION.train, x=x))
    evaluation = fp.Evaluation()
    (one,), (other,) = (
        runs(
            federation=each, methods=fp.fedprox(mu=0.1), rounds=1, seed=seed, evaluation=evaluation
        )
        for each in (FEDERATION, extreme)
    )
    same(one, other)
    assert np.isfinite(other.final.gamma_mean)
    assert other.final.gamma_mean == one.final.gamma_mean


UNIT = fp.Model(
    first, lambda w, x: objectives.apply(w, x / jnp.linalg.norm(x, axis=1, keepdims=True))
)
"""A model with NaN for a row of zeros, such as padding."""

STEPS: dict[str, dict[str, Any]] = {
    "a first exchange": {"methods": fp.feddane(mu=0.1)},
    "gradients of clients": {
        "methods": fp.scaffold(option=1),
        "solver": fp.Solver(0.1, 3, steps=3),
    },
    "a stop rule": {
        "methods": fp.fedprox(mu=0.1),
        "solver": fp.Solver(0.1, 3, epochs=9, gamma=0.8),
        "faults": fp.Faults(),
    },
    "a line search": {"solver": fp.Solver(1.0, "all", steps=3, optimizer=fp.line_search_descent)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_model_that_is_not_defined_at_a_row_of_zeros(name: str) -> None:
    (run,) = runs(model=UNIT, evaluation=fp.Evaluation(), rounds=2, **STEPS[name])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params))
    assert run.diverged_at is None
    assert not run.faulty
    for record in run.history[1:]:
        assert not record.unmeasured
        for measure in ("train_loss", "gradient_variance", "dissimilarity", "gamma_mean"):
            assert np.isfinite(record.value(measure)), measure
