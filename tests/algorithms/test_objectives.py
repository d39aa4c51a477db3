"""Methods with objectives of their own against their oracles, and what they refuse."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.base import Batch
from fedprox.algorithms.fedsam import perturbed
from fedprox.engine.planning import batch_plan
from fedprox.protocol.protocol import initial_params
from tests import objectives
from tests.changes import changed
from tests.objectives import MODEL, ROWS
from tests.settings import BASE, FEDERATION, runs
from tests.variants import mostly_slow

SETTING: dict[str, Any] = {name: BASE[name] for name in ("solver", "cohort", "rounds")}


def same(run: fp.Run, expected: Any, rtol: float = 2e-4) -> None:
    for name in expected:
        np.testing.assert_allclose(run.params[name], expected[name], rtol=rtol, atol=2e-5)


def posed(params: Any, hparams: Any, context: Any) -> fp.Subproblem:
    """A constant slope, mu by layers around w^t, and lam for the objective."""
    del context
    mu = {"body": hparams["mu"], "head": 2 * hparams["mu"]}
    linear = jax.tree.map(lambda w: 0 * w + 0.1, params)
    return fp.Subproblem(params, mu, params, linear, given=hparams["lam"])


def ridge(model: fp.Model, params: Any, batch: Batch, lam: jax.Array) -> jax.Array:
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return batch.loss(model, params) + lam / 2 * squares


class Ridge(objectives.Method):
    """The oracle of a method with these two."""

    def __init__(self, params: Any, train: fp.Rows, mu: float, lam: float) -> None:
        super().__init__(params, train)
        self.mus, self.lam = {"body": mu, "head": 2 * mu}, lam

    def gradient(self, w: Any, x: Any, y: Any, k: int) -> Any:
        plain = super().gradient(w, x, y, k)
        away = {name: mu * (w[name] - self.params[name]) for name, mu in self.mus.items()}
        return {name: plain[name] + 0.1 + self.lam * w[name] + away[name] for name in w}


class Case(NamedTuple):
    """A method, its oracle, and most rows that are read at once; None for the usual."""

    method: fp.Algorithm
    oracle: Callable[..., objectives.Method]
    widest: int | None = None


CASES = {
    "fedlc": Case(fp.fedlc(tau=[0.5, 2.0]), objectives.FedLC, widest=2),
    "moon": Case(fp.moon(mu=[0.0, 1.0], tau=0.4), objectives.Moon, widest=2),
    "fedgkd": Case(
        fp.fedgkd(gamma=[0.0, 3.0], models=3), functools.partial(objectives.FedGKD, models=3)
    ),
    "one of ones own": Case(
        fp.Algorithm(
            "mine",
            posed,
            hparams={"mu": [0.0, 0.7], "lam": 0.2},
            stragglers="keep",
            client=fp.OnClient(objective=ridge),
        ),
        Ridge,
    ),
}


@pytest.mark.parametrize("name", mostly_slow(CASES, "moon", "one of ones own"))
def test_runs_are_the_oracles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seed and sweep point; some clients take part several times and lack classes."""
    method, oracle, widest = CASES[name]
    if widest:
        monkeypatch.setattr(batch_plan, "WIDEST_TICK", widest)
    for run in runs(methods=method, seed=[0, 1]):
        hparams = {k: v for k, v in run.hparams.items() if k != "learning_rate"}
        theirs = oracle(initial_params(MODEL, run.seed), FEDERATION.train, **hparams)
        same(run, objectives.run(theirs, seed=run.seed, **SETTING))


WEIGHTS = (0.5, 2.0, 1.0)


class WeightedFedLC(objectives.FedLC):
    """Classes have weights."""

    def by_logits(self, z: Any, x: Any, y: Any, k: int) -> Any:
        return np.array(WEIGHTS)[y][:, None] * super().by_logits(z, x, y, k)


class WeightedFedGKD(objectives.FedGKD):
    """Classes have weights, which what is distilled has not."""

    def by_logits(self, z: Any, x: Any, y: Any, k: int) -> Any:
        plain = objectives.Method.by_logits(self, z, x, y, k)
        return super().by_logits(z, x, y, k) + (np.array(WEIGHTS)[y][:, None] - 1) * plain


@pytest.mark.parametrize(
    ("method", "oracle"),
    [
        (fp.fedlc(tau=0.5), WeightedFedLC),
        pytest.param(
            fp.fedgkd(gamma=3.0),
            functools.partial(WeightedFedGKD, models=1),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["fedlc", "fedgkd"],
)
def test_weights_of_classes_are_the_oracles(
    method: fp.Algorithm, oracle: Callable[..., objectives.Method]
) -> None:
    loss = fp.losses.cross_entropy(weights=WEIGHTS)
    (run,) = runs(methods=method, model=fp.Model(MODEL.init, MODEL.apply, loss))
    hparams = {k: v for k, v in run.hparams.items() if k != "learning_rate"}
    theirs = oracle(initial_params(MODEL, run.seed), FEDERATION.train, **hparams)
    same(run, objectives.run(theirs, seed=run.seed, **SETTING))


def test_mu_may_differ_by_parts() -> None:
    """The longest name of a part counts, and other parts are free."""
    method = fp.fedprox(mu={"a": [0.5, 1.0], "a.b": 2.0})
    assert method.hparams == {"mu.a": (0.5, 1.0), "mu.a.b": (2.0,)}
    params: Any = {"a": {"b": 1.0, "c": 2.0}, "d": 3.0}
    hparams: Any = {"mu.a": 0.5, "mu.a.b": 2.0, "learning_rate": 0.1}
    unused: Any = None
    problem = method.subproblem(params, hparams, unused)
    assert problem.start is problem.anchor is params
    assert jax.tree.map(float, problem.mu) == {"a": {"b": 2.0, "c": 0.5}, "d": 0.0}
    with pytest.raises(fp.InputError, match="fedprox: mu: with adapt"):
        fp.fedprox(mu={"a": 0.1}, adapt=True)


@pytest.mark.slow
def test_labels_are_counted_before_the_work_and_gamma_is_of_f_alone() -> None:
    """A method whose model moves by the counts of class 0."""

    def moves(model: fp.Model, params: Any, batch: Batch, labels: jax.Array) -> jax.Array:
        return 0 * batch.loss(model, params) - jnp.sum(params["head"][0] * labels)

    mine = fp.Algorithm(
        "mine",
        lambda params, _, context: fp.Subproblem(params, given=context.labels),
        hparams={},
        stragglers="keep",
        average="clients",
        first=fp.First(labels=True),
        client=fp.OnClient(objective=moves),
    )
    solver, everyone = fp.Solver(1.0, "all", steps=1), fp.Cohort(len(ROWS))
    measured = {"rounds": 1, "evaluation": fp.Evaluation()}
    (run,) = runs(methods=mine, solver=solver, cohort=everyone, **measured)
    counts = np.bincount(FEDERATION.train.y, minlength=objectives.CLASSES)
    moved = run.params["head"][0] - initial_params(MODEL, 0)["head"][0]
    np.testing.assert_allclose(moved, counts / len(ROWS), rtol=1e-5)
    # B(w) = sqrt(E_k ||grad F_k||^2) / ||grad f||
    plain, gradients = objectives.Method(run.params, FEDERATION.train), []
    for k in range(len(ROWS)):
        x, y = map(np.asarray, FEDERATION.train.client(k))
        g = plain.gradient(plain.params, x.astype(float), y, k)
        gradients.append(np.concatenate([g["body"].ravel(), g["head"].ravel()]))
    squares = np.average(np.sum(np.square(gradients), axis=1), weights=ROWS)
    of_f = np.linalg.norm(np.average(gradients, axis=0, weights=ROWS))
    assert run.final.dissimilarity == pytest.approx(np.sqrt(squares) / of_f, rel=1e-3)
    assert np.isnan(run.final.gamma_mean)


def dropping(params: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    kept = jax.random.bernoulli(key, 0.5, x.shape)
    return objectives.apply(params, jnp.where(kept, 2 * x, 0))


DROPPING = fp.Model(MODEL.init, MODEL.apply, train=dropping)


def test_dropout_is_the_same_in_all_calls_of_an_objective() -> None:
    """With rho = 0 FedSAM's loss is that of the mini-batch with the same units dropped."""
    x, y = map(np.asarray, FEDERATION.train.client(1))
    rows: dict[str, Any] = {"x": x, "y": y, "weights": np.full(len(y), 1 / len(y), "f")}

    @jax.jit
    def losses(params: Any, key: jax.Array) -> Any:
        batch = Batch(**rows, key=key)
        own = perturbed(DROPPING, params, batch, jnp.float32(0))
        return own, batch.loss(DROPPING, params), batch.loss(MODEL, params)

    found = losses(initial_params(MODEL, 0), jax.random.key(3))
    own, dropped, whole = map(float, found)
    assert own == pytest.approx(dropped, rel=1e-6)
    assert dropped != pytest.approx(whole, rel=1e-2)


@pytest.mark.slow
def test_rounds_of_whole_mini_batches_drop_the_units_that_others_drop() -> None:
    fedsam, fedavg = (runs(methods=m, model=DROPPING)[0] for m in (fp.fedsam(0.0), fp.fedavg()))
    same(fedsam, fedavg.params, rtol=1e-5)


@pytest.mark.slow
def test_a_buffer_of_all_equal_clients_is_a_round_with_a_barrier() -> None:
    clients = [objectives.federation(seed).train.client(3) for seed in range(4)]
    both = [
        runs(
            federation=fp.Federation.from_arrays(clients),
            methods=fp.fedgkd(1.0, models=2),
            cohort=fp.Cohort(3),
            population=fp.Population(0.5),
            asynchronous=asynchronous,
        )[0]
        for asynchronous in (None, fp.Asynchronous(3))
    ]
    jax.tree.map(np.testing.assert_array_equal, both[0].params, both[1].params)


def of(**changes: Any) -> fp.Algorithm:
    """FedSAM with other parts, by their names with _ in place of the dot."""
    return changed(fp.fedsam(0.1), {name.replace("_", "."): v for name, v in changes.items()})


def with_reference(params: Any, hparams: Any, context: Any) -> fp.Subproblem:
    del hparams, context
    return fp.Subproblem(params, reference=fp.subproblem.Reference(params, params))


SEARCH = fp.Solver(1.0, "all", steps=3, optimizer=fp.line_search_descent)
WITH_GAMMA = {"solver": fp.Solver(0.1, "all", steps=3, gamma=0.1), "evaluation": fp.Evaluation()}
SQUARED = fp.Model(MODEL.init, MODEL.apply, lambda z, y: (z[:, 0] - y) ** 2)
SMOOTHED = fp.Model(MODEL.init, MODEL.apply, fp.losses.cross_entropy(smoothing=0.1))
OF_TAIL = fp.Algorithm(
    "mine",
    lambda params, *_: fp.Subproblem(params, {"tail": jnp.ones(())}, params),
    hparams={},
    stragglers="keep",
)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (of(first_gradient=True), {}, "client.objective: first.gradient must be False beside it"),
        (of(subproblem=with_reference), {}, "fedsam: objective: its local problem must not have a"),
        (of(client_objective=None, first_labels=True), {}, "first.labels needs an objective"),
        (of(client_objective=None), {}, "fedsam: its local problem has something given, which onl"),
        (
            of(client_objective=lambda *_: jnp.zeros(2)),
            {},
            r"objective\(.*\) gives float32\[2\]; it",
        ),
        (of(client_objective=lambda *_: 1 / 0), {}, r"objective\(.*\) raised ZeroDivisionError"),
        (fp.fedlc(0.5), WITH_GAMMA, "an objective in place of F_k, so solver.gamma = 0.1 does"),
        (fp.fedsam(0.1), {"solver": SEARCH}, "have an objective .*, so a line search does not fit"),
        (fp.fedprox(mu={"tail": 0.1}), {}, "fedprox: mu: the model has no part 'tail'"),
        (OF_TAIL, {}, r"mine: mu of its local problem is .*it must be a number"),
        (fp.fedlc(1.0), {"model": SQUARED}, "fedlc: the model's loss is not cross-entropy"),
        (fp.fedgkd(1.0), {"model": SQUARED}, "fedgkd: the model's loss is not cross-entropy"),
        (fp.fedlc(1.0), {"model": SMOOTHED}, "fedlc: the model's loss smooths labels"),
        (
            fp.moon(1.0),
            {"model": fp.Model(MODEL.init, MODEL.apply)},
            "moon: the model has no `representation`",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    method: fp.Algorithm, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(fp.InputError, match=message):
        runs(methods=method, **options)
