"""IFCA against its oracle, the methods inside clusters, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.base import Batch, ClientContext, Solution
from fedprox.experiment.resolved import method_named
from fedprox.protocol.protocol import initial_params
from tests import objectives
from tests.changes import changed
from tests.objectives import MODEL, ROWS
from tests.quadratics import quadratic_model, ragged_quadratics
from tests.settings import BASE, FEDERATION, runs


def starts(seed: int, count: int) -> list[Any]:
    return [jax.device_get(initial_params(MODEL, seed, start)) for start in range(count)]


def same(actual: Any, expected: Any, rtol: float = 2e-4) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=2e-5),
        *map(jax.device_get, (actual, expected)),
    )


def log_probabilities(w: Any, k: int) -> Any:
    """Of client k's labels, and whether they are the likeliest."""
    x, y = map(np.asarray, FEDERATION.train.client(k))
    p = objectives.probabilities(objectives.represented(w, x.astype(float)) @ w["head"])
    return np.log(p[np.arange(len(y)), y]), p.argmax(axis=1) == y


@pytest.fixture(scope="module")
def trained() -> list[tuple[fp.Run, objectives.Ifca]]:
    """The runs of two sweep points, each with its oracle."""
    both = []
    for run in runs(methods=fp.ifca(3, local=fp.fedprox(mu=[0.0, 0.7])), seed=1):
        oracle = objectives.Ifca(starts(1, 3), FEDERATION.train, run.hparams["mu"])
        setting = {name: BASE[name] for name in ("solver", "cohort", "rounds")}
        objectives.run(oracle, seed=1, **setting)
        both.append((run, oracle))
    return both


def test_runs_are_the_oracle(trained: list[tuple[fp.Run, objectives.Ifca]]) -> None:
    for run, oracle in trained:
        same(run.models, {n: np.stack([m.params[n] for m in oracle.models]) for n in run.models})


def test_clients_are_measured_with_the_model_that_fits(
    trained: list[tuple[fp.Run, objectives.Ifca]],
) -> None:
    for run, oracle in trained:
        chosen = [oracle.nearest(k) for k in range(len(ROWS))]
        assert fp.nearest_models(MODEL, run.models, FEDERATION).tolist() == chosen
        assert len(set(chosen)) > 1
        found = [log_probabilities(oracle.models[j].params, k) for k, j in enumerate(chosen)]
        logs, correct = (np.concatenate(each) for each in zip(*found, strict=True))
        assert run.final.personal_loss == pytest.approx(-logs.mean(), rel=1e-3)
        assert run.final.personal_accuracy == pytest.approx(correct.mean())
        assert run.final.personal_clients == len(ROWS)


@pytest.mark.slow
def test_one_cluster_is_the_local_method() -> None:
    """FedLC, whose clients count labels beside the measures of the models."""
    local = fp.fedlc(tau=1.0)
    (one,), (plain,) = runs(methods=fp.ifca(1, local=local)), runs(methods=local)
    same(one.params, plain.params, rtol=1e-4)
    same({name: a[0] for name, a in one.models.items()}, plain.params, rtol=1e-4)
    assert one.final.personal_accuracy == pytest.approx(one.final.test_accuracy)
    assert one.final.train_loss == pytest.approx(plain.final.train_loss, rel=1e-3)


def numbers(seed: int, *shape: int) -> Any:
    """Numbers like a model's parameters, of `shape` models."""
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(size=(*shape, 2)).astype("f"), "b": rng.normal(size=shape).astype("f")}


def of(tree: Any, j: int) -> Any:
    return jax.tree.map(lambda a: a[j], tree)


@pytest.mark.parametrize(
    "local", [fp.fedprox(mu=0.5), fp.feddyn(alpha=0.1), fp.scaffold(), fp.fednova(mu=0.1)]
)
def test_a_client_and_its_cluster_do_what_the_local_method_does(local: fp.Algorithm) -> None:
    """Of three clusters a client chooses the second, two are chosen, and the third stays."""
    method, shares = fp.ifca(3, local=local), [0.25, 0.75, 0.0]
    hparams: Any = {k: np.float32(v[0]) for k, v in local.hparams.items()}  # type: ignore[index]
    hparams |= {"learning_rate": np.float32(0.25), "participation": np.float32(0.5)}
    own = numbers(1) if local.client.state else None
    size: Any = np.float32(1.5)
    context = ClientContext(None, own, size, probed=np.array([2.0, 1.0, 3.0], "f"))

    @jax.jit
    def computed(models: Any, found: Any, means: Any) -> tuple[Any, Any]:
        """What the method computes, and what it should compute."""
        state = method.initial(*[of(models, j) for j in range(3)])
        second = of(state.states, 1)
        problem = method.subproblem(state, hparams, context)
        theirs = local.subproblem(second, hparams, context)
        solution = Solution(problem, found, jnp.int32(4))
        (sent, chosen), kept = method.client.message(state, hparams, context, solution)
        expected, as_kept = local.client.message(second, hparams, context, solution)
        # the mean message of each cluster, by its share of the weight
        mean = [jax.tree.map(lambda m, j=j: means[j] * m, expected) for j in range(3)]
        stacked = jax.tree.map(lambda *m: jnp.stack(m), *mean)
        weighed = jax.tree.map(lambda m: jax.vmap(jnp.multiply)(jnp.array(shares), m), stacked)
        after = method.server.update(state, (weighed, jnp.array(shares)), hparams)
        updated = [local.server.update(of(state.states, j), mean[j], hparams) for j in range(2)]
        assert method.first.probe is not None
        assert method.server.received is not None
        probed = method.first.probe(state)
        ours = [tuple(problem), sent, chosen, kept, method.client.size((sent, chosen))]
        ours += [[of(after.states, j) for j in range(3)], after.share, method.server.params(after)]
        ours += [of(probed, 2), method.server.received(state, context)]
        placed = jax.tree.map(lambda m: jnp.stack([0 * m, m, 0 * m]), expected)
        wanted = [tuple(theirs), placed, [0.0, 1.0, 0.0], as_kept, local.client.size(expected)]
        wanted += [[*updated, of(state.states, 2)], shares, local.server.params(updated[1])]
        wanted += [local.server.params(of(state.states, 2)), local.server.params(second)]
        return ours, wanted

    ours, wanted = computed(numbers(2, 3), numbers(3), np.array([1.0, 2.0, 5.0], "f"))
    same(ours, wanted)


def test_one_cluster_begins_with_the_model() -> None:
    method = fp.ifca(1, local=fp.feddyn(alpha=0.1))
    state = method.initial(numbers(1))
    same(method.server.params(state), numbers(1))
    assert jax.tree.map(np.shape, method.first.probe(state)) == {"a": (1, 2), "b": (1,)}  # type: ignore[misc]


@pytest.mark.slow
def test_planted_clusters_are_recovered_exactly() -> None:
    """Clients whose labels are those of one of three linear rules, k mod 3."""
    rng = np.random.default_rng(0)
    rules, both = rng.normal(size=(3, 10, 4)), []
    for k in range(12):
        x = rng.normal(size=(60, 10))
        both.append((x, (x @ rules[k % 3]).argmax(axis=1)))
    train, test = [(x[:40], y[:40]) for x, y in both], [(x[40:], y[40:]) for x, y in both]
    federation = fp.Federation.from_arrays(train, test=test)
    model = fp.models.logistic(federation)
    (run,) = fp.simulate(
        federation,
        model,
        fp.ifca(3, local=fp.fedprox(mu=0.1)),
        solver=fp.Solver(0.5, 10, epochs=2),
        cohort=fp.Cohort(6),
        rounds=20,
        evaluation=fp.Evaluation(every=20, gradients=False),
    )
    chosen = fp.nearest_models(model, run.models, federation)
    clusters = [set(chosen[j::3].tolist()) for j in range(3)]
    assert all(len(each) == 1 for each in clusters)
    assert len(set.union(*clusters)) == 3
    assert run.final.personal_accuracy_worst is not None
    assert run.final.personal_accuracy_worst > 0.7


def test_equal_losses_choose_the_first_and_those_of_no_number_are_not_chosen() -> None:
    method = fp.ifca(3)
    state = method.server.init(jnp.arange(3.0)[:, None])
    cases = [([2.0, 1.0, 1.0], 1), ([jnp.nan, 5.0, jnp.inf], 1), ([0.0, 0.0, 0.0], 0)]
    for losses, expected in cases:
        context = ClientContext(None, None, jnp.float32(1), probed=jnp.array(losses))
        assert method.server.received is not None
        assert method.server.received(state, context).tolist() == [expected]


@pytest.mark.slow
def test_a_probe_of_ones_own_reaches_problem_and_message() -> None:
    """The losses of w^t and of twice w^t, in the local problem and in what is sent."""

    def objective(model: fp.Model, params: Any, batch: Batch, probed: jax.Array) -> jax.Array:
        return 0 * batch.loss(model, params) - jnp.sum(params["head"][0, :2] * probed)

    def message(params: Any, hparams: Any, context: Any, solution: Any) -> Any:
        del hparams
        step = jax.tree.map(jnp.subtract, solution.params, params)
        body = jnp.zeros_like(step["body"]).at[0, :2].set(context.probed)
        return {**step, "body": body}, None

    mine = fp.Algorithm(
        "mine",
        lambda params, _, context: fp.Subproblem(params, given=context.probed),
        hparams={},
        stragglers="keep",
        average="clients",
        client=fp.OnClient(objective=objective, message=message),
        first=fp.First(probe=lambda w: jax.tree.map(lambda a: jnp.stack([a, 2 * a]), w)),
        server=fp.OnServer(received=lambda w, _: w, moves_alone=True),
    )
    solver, everyone = fp.Solver(1.0, "all", steps=1), fp.Cohort(len(ROWS))
    (run,) = runs(methods=mine, solver=solver, cohort=everyone, rounds=1)
    (w,) = starts(0, 1)
    twice = {name: 2 * a for name, a in w.items()}
    losses = [
        np.mean([-log_probabilities(each, k)[0].mean() for k in range(len(ROWS))])
        for each in (w, twice)
    ]
    for name in ("head", "body"):
        moved = np.asarray(run.params[name]) - w[name]
        np.testing.assert_allclose(moved[0, :2], losses, rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_fine_tuning_starts_from_the_clusters_model() -> None:
    """One step with all rows from the model that each client chose."""
    solver = fp.Solver(0.3, "all", steps=2)
    tuned = fp.Evaluation(every=5, gradients=False, fine_tune=1)
    (run,) = runs(methods=fp.ifca(3), solver=solver, evaluation=tuned)
    oracle = objectives.Method(starts(0, 1)[0], FEDERATION.train)
    correct = []
    for k, j in enumerate(fp.nearest_models(MODEL, run.models, FEDERATION)):
        x, y = map(np.asarray, FEDERATION.train.client(k))
        w = {name: np.asarray(a[j], float) for name, a in run.models.items()}
        g = oracle.gradient(w, x.astype(float), y, k)
        correct.append(log_probabilities({name: w[name] - 0.3 * g[name] for name in w}, k)[1])
    assert run.final.personal_accuracy == pytest.approx(np.concatenate(correct).mean())


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
        *(
            (lambda local=local: fp.ifca(2, local=local), f"{local.name} does not fit: {why}")
            for local, why in (
                (fp.centralised(), "it has all"),
                (fp.feddane(0.1), "its clients compute a gradient"),
                (fp.qffl(1.0), "its clients compute a loss over"),
                (fp.fedprox(0.1, adapt=True), "its mu follows"),
                (fp.ditto(0.1), "its clients have models of their"),
                (fp.ifca(2), "its clients measure several"),
                (fp.scaffnew(0.5), "it needs every client"),
            )
        ),
    ],
)
def test_methods_that_do_not_fit_in_a_cluster_are_refused(make: Any, message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        make()


WITH_GAMMA = {"solver": fp.Solver(0.1, "all", steps=2, gamma=0.5), "evaluation": fp.Evaluation()}
PRIVATE = {"privacy": fp.Privacy(clip=1.0, noise_multiplier=1.0), "faults": None}
BUFFERED = {"population": fp.Population(0.5), "asynchronous": fp.Asynchronous(2)}
EQUAL = {"federation": ragged_quadratics(0, [4] * 5), "model": quadratic_model(np.zeros(3))}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial": starts(0, 1)[0]}, "it begins with several random models, so initial"),
        (EQUAL, "it begins with 2 random models, and the"),
        (PRIVATE, "what it adds up is how many clients chose each model"),
        (BUFFERED, "its clients measure several models, so asynchronous does not fit"),
        ({"compression": fp.Compression("top-k", share=0.5)}, "a method whose clients do not"),
        ({"aggregation": fp.Aggregation("median")}, ".* their updates are of different"),
        ({"attack": fp.Attack("sign-flip", share=0.3)}, ".*, so attack.kind = .sign-flip. does"),
        ({"faults": fp.Faults("clip")}, '.*, so faults.policy = "clip" does not fit'),
        (
            {"evaluation": fp.Evaluation(model="cohort", gradients=False)},
            '.*, so evaluation.model = "cohort"',
        ),
        (WITH_GAMMA, ".*, so solver.gamma = 0.5 does not fit"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError, match=f"ifca: {message}"):
        runs(methods=fp.ifca(2), **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"server.received": None}, "ifca: probe: received must say which model a client has"),
        ({"first.probe": lambda state: state.share}, "ifca: each model of probe.* gives "),
        ({"server.starts": 0}, "ifca: starts = 0; it must be a whole number"),
    ],
)
def test_a_probe_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(fp.InputError, match=message):
        runs(methods=changed(fp.ifca(2), change))


def test_without_a_probe_the_program_is_that_without() -> None:
    """A method of several models is not measured first unless it asks."""
    assert not fp.fedavg().first.reads
    assert fp.ifca(2).first.reads
    assert not fp.ifca(2).first.measures
