"""Methods with objectives of their own against their oracles, FedAvg, and what they refuse."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedprox as fp
from fedprox.algorithms.base import Batch
from fedprox.engine.planning import batch_plan
from fedprox.protocol.protocol import initial_params
from tests import methods, objectives
from tests.byhand import CLIENTS, START, beside_the_oracle
from tests.changes import changed
from tests.objectives import MODEL, ROWS
from tests.quadratics import one_run, quadratic_model, ragged_quadratics

SOLVER = fp.Solver(0.3, 3, epochs=2)
SOME = fp.Cohort(3)
MOMENTUM = functools.partial(optax.sgd, momentum=0.9)

METHODS: dict[str, tuple[fp.Algorithm, Callable[..., objectives.Method]]] = {
    "fedlc": (fp.fedlc(tau=[0.5, 2.0]), objectives.FedLC),
    "moon": (fp.moon(mu=[0.5, 1.0], tau=0.4), objectives.Moon),
    "fedgkd": (fp.fedgkd(gamma=[0.5, 3.0]), functools.partial(objectives.FedGKD, models=1)),
    "buffer": (
        fp.fedgkd(gamma=[0.5, 3.0], models=3),
        functools.partial(objectives.FedGKD, models=3),
    ),
}


def runs(method: fp.Algorithm, **options: Any) -> list[fp.Run]:
    given: dict[str, Any] = {
        "solver": SOLVER,
        "cohort": SOME,
        "rounds": 6,
        "evaluation": fp.Evaluation(every=6, gradients=False),
    }
    return fp.simulate(objectives.federation(), MODEL, method, progress=False, **(given | options))


def same(run: fp.Run, expected: Any, rtol: float = 2e-4) -> None:
    for name in expected:
        np.testing.assert_allclose(run.params[name], expected[name], rtol=rtol, atol=2e-5)


@pytest.mark.parametrize("name", METHODS)
def test_runs_are_the_oracles(name: str) -> None:
    """Every seed and sweep point; some clients take part several times and lack classes."""
    method, oracle = METHODS[name]
    train = objectives.federation().train
    for run in runs(method, seed=[0, 1]):
        params = initial_params(MODEL, run.seed)
        hparams = {k: v for k, v in run.hparams.items() if k != "learning_rate"}
        settings: dict[str, Any] = {"solver": SOLVER, "cohort": SOME, "rounds": 6}
        same(run, objectives.run(oracle(params, train, **hparams), seed=run.seed, **settings))


def test_fedsam_is_the_oracle() -> None:
    beside_the_oracle(
        fp.fedsam(rho=[0.0, 0.1, 0.5]),
        lambda hparams, _: methods.FedSam(START, CLIENTS, hparams["rho"]),
    )


def test_feddc_is_the_oracle() -> None:
    def oracle(hparams: dict[str, float], federation: fp.Federation) -> methods.Method:
        method = methods.FedDC(START, CLIENTS, hparams["alpha"])
        method.weights = federation.train.sizes / federation.train.sizes.sum()
        return method

    beside_the_oracle(fp.feddc(alpha=[0.1, 1.0]), oracle)


@pytest.mark.parametrize(
    "method",
    [fp.fedsam(rho=0.0), fp.moon(mu=0.0), fp.fedgkd(gamma=0.0, models=2)],
    ids=lambda m: m.name,
)
def test_without_its_weight_it_is_fedavg(method: fp.Algorithm) -> None:
    (run,), (fedavg,) = runs(method), runs(fp.fedavg())
    same(run, fedavg.params, rtol=1e-5)


def test_feddc_ends_at_the_minimizer_as_feddyn_does() -> None:
    """And its first round is FedDyn's, since there is nothing to correct yet."""
    federation = ragged_quadratics(0, [4, 4, 4])
    model, solver = quadratic_model(START), fp.Solver(0.05, "all", steps=20)
    first = [one_run(federation, model, m, solver) for m in (fp.feddc(0.5), fp.feddyn(0.5))]
    np.testing.assert_allclose(first[0].params, first[1].params, rtol=1e-5)
    run = one_run(federation, model, fp.feddc(0.5), solver, rounds=200)
    np.testing.assert_allclose(run.params, methods.minimiser(federation), atol=1e-4)


def test_a_wide_mini_batch_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedSAM's gradient of a mini-batch has no parts, so it is read in one piece."""
    tried = [fp.fedsam(rho=0.5), fp.moon(mu=1.0), fp.fedlc(tau=1.0), fp.fedgkd(gamma=3.0)]
    whole = [runs(m)[0] for m in tried]
    monkeypatch.setattr(batch_plan, "WIDEST_TICK", 2)
    for method, run in zip(tried, whole, strict=True):
        same(runs(method)[0], run.params, rtol=1e-5)


def test_terms_and_an_objective_of_ones_own_compose() -> None:
    """A ridge of weight lam in the objective, and mu by layers around w^t."""

    def problem(params: Any, hparams: Any, context: Any) -> fp.Subproblem:
        del context
        mu = {"body": hparams["mu"], "head": 2 * hparams["mu"]}
        linear = jax.tree.map(lambda w: 0 * w + 0.1, params)
        return fp.Subproblem(params, mu, params, linear, given=hparams["lam"])

    def ridge(model: fp.Model, params: Any, batch: Batch, lam: jax.Array) -> jax.Array:
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return batch.loss(model, params) + lam / 2 * squares

    hparams = {"mu": 0.7, "lam": 0.2}
    mine = fp.Algorithm(
        "mine", problem, hparams=hparams, stragglers="keep", client=fp.OnClient(objective=ridge)
    )

    class Ridge(objectives.Method):
        def gradient(self, w: Any, x: Any, y: Any, k: int) -> Any:
            plain = super().gradient(w, x, y, k)
            mus = {"body": 0.7, "head": 1.4}
            away = {name: mu * (w[name] - self.params[name]) for name, mu in mus.items()}
            return {name: plain[name] + 0.1 + 0.2 * w[name] + away[name] for name in w}

    (run,) = runs(mine)
    oracle = Ridge(initial_params(MODEL, 0), objectives.federation().train)
    same(run, objectives.run(oracle, solver=SOLVER, cohort=SOME, rounds=6, seed=0))


def test_mu_by_parts() -> None:
    """One value for all parts is FedProx; a large one holds its part in place, and no other."""
    (one,), (parts,) = runs(fp.fedprox(mu=0.5)), runs(fp.fedprox(mu={"body": 0.5, "head": 0.5}))
    same(parts, one.params, rtol=1e-6)
    start = initial_params(MODEL, 0)
    free, held = runs(fp.fedprox(mu={"body": [0.0, 50.0]}), solver=fp.Solver(0.02, 3, epochs=2))
    assert [run.label for run in (free, held)] == ["fedprox mu.body=0", "fedprox mu.body=50"]

    def moved(run: fp.Run, name: str) -> float:
        return float(jnp.linalg.norm(run.params[name] - start[name]))

    assert moved(held, "body") < 0.7 * moved(free, "body")
    assert moved(held, "head") > 0.8 * moved(free, "head")


def test_gamma_is_measured_for_f_alone() -> None:
    measured = fp.Evaluation(every=6)
    (fedavg,), (fedsam,) = (runs(m, evaluation=measured) for m in (fp.fedavg(), fp.fedsam(0.0)))
    assert np.isnan(fedsam.final.gamma_mean)
    assert not np.isnan(fedavg.final.gamma_mean)
    assert fedsam.final.dissimilarity == pytest.approx(fedavg.final.dissimilarity, rel=1e-4)


def test_labels_are_counted_before_the_work() -> None:
    """A method whose model moves by the counts of class 0."""

    def counting(params: Any, hparams: Any, context: Any) -> fp.Subproblem:
        del hparams
        return fp.Subproblem(params, given=context.labels)

    def moves(model: fp.Model, params: Any, batch: Batch, labels: jax.Array) -> jax.Array:
        return 0 * batch.loss(model, params) - jnp.sum(params["head"][0] * labels)

    mine = fp.Algorithm(
        "mine",
        counting,
        hparams={},
        stragglers="keep",
        average="clients",
        first=fp.First(labels=True),
        client=fp.OnClient(objective=moves),
    )
    solver, everyone = fp.Solver(1.0, "all", steps=1), fp.Cohort(len(ROWS))
    (run,) = runs(mine, solver=solver, cohort=everyone, rounds=1, evaluation=fp.Evaluation(every=1))
    counts = np.bincount(objectives.federation().train.y, minlength=objectives.CLASSES)
    moved = run.params["head"][0] - initial_params(MODEL, 0)["head"][0]
    np.testing.assert_allclose(moved, counts / len(ROWS), rtol=1e-5)


def of(**changes: Any) -> fp.Algorithm:
    """FedSAM with other parts, by their names with _ in place of the dot."""
    return changed(fp.fedsam(0.1), {name.replace("_", "."): v for name, v in changes.items()})


def with_reference(params: Any, hparams: Any, context: Any) -> fp.Subproblem:
    del hparams, context
    return fp.Subproblem(params, reference=fp.subproblem.Reference(params, params))


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            of(first_gradient=True),
            {},
            "fedsam: client.objective: first.gradient must be False beside it",
        ),
        (of(subproblem=with_reference), {}, "fedsam: objective: its local problem must not have a"),
        (
            of(client_objective=None, first_labels=True),
            {},
            "fedsam: first.labels needs an objective",
        ),
        (
            of(client_objective=None),
            {},
            "fedsam: its local problem has something given, which only",
        ),
        (
            of(client_objective=lambda *_: jnp.zeros(2)),
            {},
            r"fedsam: objective\(.*\) gives float32\[2\]; it",
        ),
        (
            of(client_objective=lambda *_: 1 / 0),
            {},
            r"fedsam: objective\(.*\) raised ZeroDivisionError",
        ),
        (
            fp.fedlc(0.5),
            {"solver": fp.Solver(0.1, "all", steps=3, gamma=0.1), "evaluation": fp.Evaluation()},
            "fedlc: its clients have an objective in place of F_k, so solver.gamma = 0.1 does",
        ),
        (
            fp.fedsam(0.1),
            {"solver": fp.Solver(1.0, "all", steps=3, optimizer=fp.line_search_descent)},
            "fedsam: its clients have an objective .*, so a line search does not fit",
        ),
        (fp.fedprox(mu={"tail": 0.1}), {}, "fedprox: mu: the model has no part 'tail'"),
        (
            fp.feddc(0.1),
            {"solver": fp.Solver(0.1, 3, epochs=1, optimizer=MOMENTUM)},
            "feddc needs solver.optimizer = sgd without options",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    method: fp.Algorithm, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(fp.InputError, match=message):
        runs(method, **options)


def test_models_that_do_not_fit_are_refused() -> None:
    federation = objectives.federation()
    plain = fp.models.logistic(federation)
    squared = fp.Model(MODEL.init, MODEL.apply, lambda z, y: (z[:, 0] - y) ** 2)
    cases = [
        (plain, fp.moon(1.0), "moon: the model has no `representation`"),
        (squared, fp.fedlc(1.0), "fedlc: the model's loss is not cross-entropy"),
        (squared, fp.fedgkd(1.0), "fedgkd: the model's loss is not cross-entropy"),
    ]
    for model, method, message in cases:
        with pytest.raises(fp.InputError, match=message):
            one_run(federation, model, method, SOLVER)


def test_a_prefix_of_mu_that_does_not_fit_is_refused() -> None:
    def problem(params: Any, hparams: Any, context: Any) -> fp.Subproblem:
        del hparams, context
        return fp.Subproblem(params, {"tail": jnp.ones(())}, params)

    with pytest.raises(
        fp.InputError, match=r"mine: mu of its local problem is .*it must be a number"
    ):
        runs(fp.Algorithm("mine", problem, hparams={}, stragglers="keep"))
    with pytest.raises(fp.InputError, match="fedprox: mu: with adapt"):
        fp.fedprox(mu={"body": 0.1}, adapt=True)


@pytest.mark.parametrize(
    "method", [fp.fedsam(0.2), fp.fedlc(1.0), fp.fedgkd(1.0, models=2)], ids=lambda m: m.name
)
def test_a_buffer_of_all_equal_clients_is_a_round_with_a_barrier(method: fp.Algorithm) -> None:
    clients = [objectives.federation(seed).train.client(3) for seed in range(4)]
    both = [
        fp.simulate(
            fp.Federation.from_arrays(clients),
            MODEL,
            method,
            solver=SOLVER,
            cohort=fp.Cohort(3),
            population=fp.Population(0.5),
            rounds=4,
            evaluation=fp.Evaluation(every=4, gradients=False),
            asynchronous=asynchronous,
            progress=False,
        )[0]
        for asynchronous in (None, fp.Asynchronous(3))
    ]
    jax.tree.map(np.testing.assert_array_equal, both[0].params, both[1].params)


@pytest.mark.parametrize("method", [fp.moon(1.0), fp.fedgkd(1.0, models=2)], ids=lambda m: m.name)
def test_a_run_that_is_extended_from_a_checkpoint_is_the_same(
    method: fp.Algorithm, tmp_path: Path
) -> None:
    kept = {
        "checkpoints": fp.Checkpoints(tmp_path),
        "evaluation": fp.Evaluation(every=2, gradients=False),
    }
    (whole,) = runs(method, evaluation=kept["evaluation"])
    runs(method, rounds=4, **kept)
    (extended,) = runs(method, **kept)
    jax.tree.map(np.testing.assert_array_equal, whole.params, extended.params)


def test_dropout_is_the_same_in_all_of_an_objectives_calls() -> None:
    """With rho = 0, FedSAM's two gradients and FedAvg's one drop the same units."""

    def train(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        kept = jax.random.bernoulli(key, 0.5, x.shape)
        return objectives.apply(params, jnp.where(kept, 2 * x, 0))

    dropping = fp.Model(MODEL.init, MODEL.apply, train=train)
    federation = objectives.federation()
    options = {"cohort": SOME, "rounds": 2}
    plain = one_run(federation, MODEL, fp.fedavg(), SOLVER, **options)
    fedsam, fedavg = (
        one_run(federation, dropping, method, SOLVER, **options)
        for method in (fp.fedsam(0.0), fp.fedavg())
    )
    same(fedsam, fedavg.params, rtol=1e-5)
    assert not np.allclose(fedavg.params["body"], plain.params["body"])
