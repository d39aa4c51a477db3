"""IFCA against its oracle, planted clusters, the methods inside clusters, and what is refused."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.base import Batch
from fedprox.experiment.resolved import method_named
from fedprox.protocol.protocol import initial_params
from tests import objectives
from tests.changes import changed
from tests.objectives import MODEL, ROWS
from tests.quadratics import quadratic_model, ragged_quadratics

SOLVER, SOME = fp.Solver(0.3, 3, epochs=2), fp.Cohort(3)
ROUNDS = 6


def runs(method: fp.Algorithm, **options: Any) -> list[fp.Run]:
    given: dict[str, Any] = {
        "solver": SOLVER,
        "cohort": SOME,
        "rounds": ROUNDS,
        "evaluation": fp.Evaluation(every=ROUNDS, gradients=False),
    }
    federation = given.pop("federation", objectives.federation())
    return fp.simulate(federation, MODEL, method, progress=False, **(given | options))


def starts(seed: int, count: int) -> list[Any]:
    return [initial_params(MODEL, seed, start) for start in range(count)]


def same(actual: Any, expected: Any, rtol: float = 2e-4) -> None:
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=rtol, atol=2e-5)


def test_runs_are_the_oracle() -> None:
    """Every seed and sweep point, and the clients' measures after the last round."""
    train = objectives.federation().train
    for run in runs(fp.ifca(3, local=fp.fedprox(mu=[0.0, 0.7])), seed=[0, 1]):
        oracle = objectives.Ifca(starts(run.seed, 3), train, run.hparams["mu"])
        objectives.run(oracle, solver=SOLVER, cohort=SOME, rounds=ROUNDS, seed=run.seed)
        for j, each in enumerate(oracle.models):
            same({name: a[j] for name, a in run.models.items()}, each.params)
        chosen = [oracle.nearest(k) for k in range(len(ROWS))]
        assert len(set(chosen)) > 1
        loss, correct = 0.0, 0
        for k, j in enumerate(chosen):
            w, (x, y) = oracle.models[j].params, map(np.asarray, train.client(k))
            p = objectives.probabilities(objectives.represented(w, x.astype(float)) @ w["head"])
            loss -= np.log(p[np.arange(len(y)), y]).sum()
            correct += int((p.argmax(axis=1) == y).sum())
        assert run.final.personal_loss == pytest.approx(loss / sum(ROWS), rel=1e-3)
        assert run.final.personal_accuracy == pytest.approx(correct / sum(ROWS))
        assert run.final.personal_clients == len(ROWS)


@pytest.mark.parametrize(
    "local",
    [
        fp.fedavg(),
        fp.fedprox(mu=0.5),
        fp.feddyn(alpha=0.1),
        fp.scaffold(),
        fp.fednova(mu=0.1),
        fp.fedsam(rho=0.1),
        fp.fedlc(tau=1.0),
        fp.moon(mu=1.0),
    ],
    ids=lambda m: m.name,
)
def test_one_cluster_is_the_local_method(local: fp.Algorithm) -> None:
    (one,), (plain,) = runs(fp.ifca(1, local=local)), runs(local)
    same(one.params, plain.params, rtol=1e-4)
    same({name: a[0] for name, a in one.models.items()}, plain.params, rtol=1e-4)
    assert one.final.personal_accuracy == pytest.approx(one.final.test_accuracy)
    assert one.final.train_loss == pytest.approx(plain.final.train_loss, rel=1e-3)


def planted(clients: int = 12, clusters: int = 3, seed: int = 0) -> fp.Federation:
    """Clients whose labels are those of one of some linear rules, k mod clusters."""
    rng = np.random.default_rng(seed)
    rules = rng.normal(size=(clusters, 10, 4))
    both = []
    for k in range(clients):
        x = rng.normal(size=(60, 10))
        both.append((x, (x @ rules[k % clusters]).argmax(axis=1)))
    train = [(x[:40], y[:40]) for x, y in both]
    return fp.Federation.from_arrays(train, test=[(x[40:], y[40:]) for x, y in both])


@pytest.mark.parametrize("local", [fp.fedavg(), fp.fedprox(mu=0.1)], ids=lambda m: m.name)
def test_planted_clusters_are_recovered_exactly(local: fp.Algorithm) -> None:
    federation = planted()
    model = fp.models.logistic(federation)
    setting: dict[str, Any] = {
        "solver": fp.Solver(0.5, 10, epochs=2),
        "cohort": fp.Cohort(6),
        "rounds": 20,
        "evaluation": fp.Evaluation(every=20, gradients=False),
        "progress": False,
    }
    (alone,) = fp.simulate(federation, model, local, **setting)
    (run,) = fp.simulate(federation, model, fp.ifca(3, local=local), **setting)
    chosen = fp.nearest_models(model, run.models, federation)
    clusters = [set(chosen[j::3].tolist()) for j in range(3)]
    assert all(len(each) == 1 for each in clusters)
    assert len(set.union(*clusters)) == 3
    assert run.final.personal_accuracy is not None
    assert run.final.personal_accuracy_worst is not None
    assert run.final.personal_accuracy > alone.final.test_accuracy + 0.3
    assert run.final.personal_accuracy_worst > 0.7


def test_equal_losses_choose_the_first_and_those_of_no_number_are_not_chosen() -> None:
    method = fp.ifca(3)
    state = method.server.init(jnp.arange(3.0)[:, None])
    cases = [([2.0, 1.0, 1.0], 1), ([jnp.nan, 5.0, jnp.inf], 1), ([0.0, 0.0, 0.0], 0)]
    for losses, expected in cases:
        context = fp.algorithms.base.ClientContext(
            None, None, jnp.float32(1), probed=jnp.array(losses)
        )
        assert method.server.received is not None
        assert method.server.received(state, context).tolist() == [expected]


def test_a_model_that_nobody_chose_stays_as_it_is() -> None:
    """In a round of one client one model moves, and the others keep their bits."""
    once = fp.Evaluation(gradients=False)
    method = fp.ifca(3, local=fp.feddyn(0.1))
    (run,) = runs(method, rounds=1, cohort=fp.Cohort(1), evaluation=once)
    before = starts(0, 3)
    moved = [
        j
        for j in range(3)
        if any((run.models[name][j] != before[j][name]).any() for name in before[j])
    ]
    assert len(moved) == 1
    same(run.params, {name: a[moved[0]] for name, a in run.models.items()}, rtol=0)


def test_a_probe_of_ones_own_reaches_problem_and_message() -> None:
    """The losses of w^t and of twice w^t, in the local problem and in what is sent."""

    def problem(params: Any, hparams: Any, context: Any) -> fp.Subproblem:
        del hparams
        return fp.Subproblem(params, given=context.probed)

    def objective(model: fp.Model, params: Any, batch: Batch, probed: jax.Array) -> jax.Array:
        return 0 * batch.loss(model, params) - jnp.sum(params["head"][0, :2] * probed)

    def message(params: Any, hparams: Any, context: Any, solution: Any) -> Any:
        del hparams
        step = jax.tree.map(jnp.subtract, solution.params, params)
        body = jnp.zeros_like(step["body"]).at[0, :2].set(context.probed)
        return {**step, "body": body}, None

    mine = fp.Algorithm(
        "mine",
        problem,
        hparams={},
        stragglers="keep",
        average="clients",
        client=fp.OnClient(objective=objective, message=message),
        first=fp.First(probe=lambda w: jax.tree.map(lambda a: jnp.stack([a, 2 * a]), w)),
        server=fp.OnServer(received=lambda w, _: w, moves_alone=True),
    )
    solver, everyone = fp.Solver(1.0, "all", steps=1), fp.Cohort(len(ROWS))
    once = fp.Evaluation(gradients=False)
    (run,) = runs(mine, solver=solver, cohort=everyone, rounds=1, evaluation=once)
    w, train = starts(0, 1)[0], objectives.federation().train
    losses = np.zeros(2)
    for k in range(len(ROWS)):
        x, y = map(np.asarray, train.client(k))
        for i, factor in enumerate((1, 2)):
            double = {name: factor * np.asarray(a, float) for name, a in w.items()}
            p = objectives.represented(double, x.astype(float)) @ double["head"]
            losses[i] -= np.log(objectives.probabilities(p)[np.arange(len(y)), y]).mean()
    for name in ("head", "body"):
        np.testing.assert_allclose(
            (run.params[name] - w[name])[0, :2], losses / len(ROWS), rtol=1e-4, err_msg=name
        )


def test_a_run_that_is_extended_from_a_checkpoint_is_the_same(tmp_path: Path) -> None:
    method, evaluation = fp.ifca(2, local=fp.feddyn(0.1)), fp.Evaluation(every=2, gradients=False)
    (whole,) = runs(method, evaluation=evaluation)
    kept = {"checkpoints": fp.Checkpoints(tmp_path), "evaluation": evaluation}
    runs(method, rounds=4, **kept)
    (extended,) = runs(method, **kept)
    (again,) = runs(method, **kept)
    for run in (extended, again):
        jax.tree.map(np.testing.assert_array_equal, whole.models, run.models)
        assert run.final.personal_loss == whole.final.personal_loss


def test_fine_tuning_starts_from_the_clusters_model() -> None:
    """One step with all rows from the model that each client chose."""
    solver = fp.Solver(0.3, "all", steps=2)
    tuned = fp.Evaluation(every=ROUNDS, gradients=False, fine_tune=1)
    (run,) = runs(fp.ifca(3), solver=solver, evaluation=tuned)
    federation = objectives.federation()
    chosen = fp.nearest_models(MODEL, run.models, federation)
    oracle = objectives.Method(starts(0, 1)[0], federation.train)
    correct = 0
    for k, j in enumerate(chosen):
        x, y = map(np.asarray, federation.train.client(k))
        w = {name: np.asarray(a[j], float) for name, a in run.models.items()}
        g = oracle.gradient(w, x.astype(float), y, k)
        w = {name: w[name] - 0.3 * g[name] for name in w}
        outputs = objectives.represented(w, x.astype(float)) @ w["head"]
        correct += int((outputs.argmax(axis=1) == y).sum())
    assert run.final.personal_accuracy == pytest.approx(correct / sum(ROWS))


def test_in_a_file_the_local_method_is_a_table() -> None:
    keys = {"name": "ifca", "k": 4, "local": {"name": "fedprox", "mu": 0.1}}
    method, shown = method_named(keys, "method.0")
    assert method.variant == "k=4 fedprox"
    assert shown["local"] == {"name": "fedprox", "mu": 0.1, "adapt": False}
    assert method_named(shown, "method.0")[1] == shown
    cases: list[tuple[dict[str, Any], str]] = [
        ({**keys, "local": "fedprox"}, r"method.0.local = 'fedprox'; it must be a table"),
        ({**keys, "local": {"name": "fedprx"}}, r"method.0.local.name = 'fedprx'; did you mean"),
        ({**keys, "local": {"name": "fedprox", "nu": 1}}, r"method.0.local: unknown key 'nu'"),
        ({"name": "fedavg", "local": {"name": "fedprox"}}, r"method.0: unknown key 'local'"),
    ]
    for given, message in cases:
        with pytest.raises(fp.InputError, match=message):
            method_named(given, "method.0")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fp.ifca(0), "ifca: k = 0; it must be a whole number"),
        (lambda: fp.ifca(2, local=3), "ifca: local = 3; it must be a method"),  # type: ignore[arg-type]
        (
            lambda: fp.ifca(2, local=fp.centralised()),
            "ifca: local: centralised does not fit: it has all",
        ),
        (
            lambda: fp.ifca(2, local=fp.feddane(0.1)),
            "feddane does not fit: its clients compute a gradient",
        ),
        (
            lambda: fp.ifca(2, local=fp.qffl(1.0)),
            "qffl does not fit: its clients compute a loss over",
        ),
        (
            lambda: fp.ifca(2, local=fp.fedprox(0.1, adapt=True)),
            "fedprox does not fit: its mu follows",
        ),
        (
            lambda: fp.ifca(2, local=fp.ditto(0.1)),
            "ditto does not fit: its clients have models of their",
        ),
        (lambda: fp.ifca(2, local=fp.ifca(2)), "ifca does not fit: its clients measure several"),
        (
            lambda: fp.ifca(2, local=fp.scaffnew(0.5)),
            "scaffnew does not fit: it needs every client",
        ),
    ],
)
def test_methods_that_do_not_fit_in_a_cluster_are_refused(make: Any, message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial": starts(0, 1)[0]}, "ifca: it begins with several random models, so initial"),
        (
            {"privacy": fp.Privacy(clip=1.0, noise_multiplier=1.0), "faults": None},
            "ifca: what it adds up is how many clients chose each model",
        ),
        (
            {"population": fp.Population(0.5), "asynchronous": fp.Asynchronous(2)},
            "ifca: its clients measure several models, so asynchronous does not fit",
        ),
        (
            {"compression": fp.Compression("top-k", share=0.5)},
            "ifca: a method whose clients do not",
        ),
        ({"aggregation": fp.Aggregation("median")}, "ifca: .* their updates are of different"),
        (
            {"attack": fp.Attack("sign-flip", share=0.3)},
            "ifca: .*, so attack.kind = .sign-flip. does",
        ),
        ({"faults": fp.Faults("clip")}, 'ifca: .*, so faults.policy = "clip" does not fit'),
        (
            {"evaluation": fp.Evaluation(model="cohort", gradients=False)},
            'ifca: .*, so evaluation.model = "cohort"',
        ),
        (
            {"solver": fp.Solver(0.1, "all", steps=2, gamma=0.5), "evaluation": fp.Evaluation()},
            "ifca: .*, so solver.gamma = 0.5 does not fit",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        runs(fp.ifca(2), **options)


def test_first_models_that_are_equal_are_refused() -> None:
    federation = ragged_quadratics(0, [4, 4, 4])
    with pytest.raises(fp.InputError, match="ifca: it begins with 2 random models, and the"):
        fp.simulate(
            federation,
            quadratic_model(np.zeros(3)),
            fp.ifca(2),
            solver=SOLVER,
            cohort=SOME,
            rounds=1,
            progress=False,
        )


def test_a_model_that_begins_from_given_values_is_refused() -> None:
    frozen = fp.freeze(MODEL, starts(0, 1)[0], ["body"])
    with pytest.raises(fp.InputError, match="ifca: it begins with 2 random models, and the"):
        fp.simulate(
            objectives.federation(),
            frozen,
            fp.ifca(2),
            solver=SOLVER,
            cohort=SOME,
            rounds=1,
            progress=False,
        )


def of(name: str, value: Any) -> fp.Algorithm:
    return changed(fp.ifca(2), {name: value})


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (of("server.received", None), "ifca: probe: received must say which model a client has"),
        (
            of("first.probe", lambda state: state.share),
            "ifca: each model of probe.* gives ",
        ),
        (of("server.starts", 0), "ifca: starts = 0; it must be a whole number"),
    ],
)
def test_a_probe_that_does_not_fit_is_refused(method: fp.Algorithm, message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        runs(method)


def test_without_a_probe_the_program_is_that_without() -> None:
    """A method of several models is not measured first unless it asks."""
    assert not fp.fedavg().first.reads
    assert fp.ifca(2).first.reads
    assert not fp.ifca(2).first.measures
