"""Models with frozen parts: the rest is trained as if the frozen gradients were zero."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedprox as fp
from fedprox.devices import programs
from fedprox.experiment import parse, resolve
from fedprox.model import cross_entropy
from tests.catalogue import SAMPLED

FEDERATION = fp.datasets.synthetic(clients=4)
WIDTH = FEDERATION.train.x.shape[1]
COMMON = [fp.fedprox(mu=[0.0, 1.0])]
# fedrep refuses weight decay, and methods with several random models begin from no given one
OTHERS = [
    each.method
    for name, each in SAMPLED.items()
    if name not in ("fedprox", "fedrep") and each.method.server.starts == 1
]


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.body = nnx.Linear(WIDTH, 5, rngs=rngs)
        self.head = nnx.Linear(5, 10, rngs=rngs)

    def representation(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(self.body(x))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.representation(x))


MODEL = fp.Model.from_nnx(Net)
START = MODEL.init(jax.random.key(3))


def train(model: fp.Model, methods: Any, **options: Any) -> list[fp.Run]:
    given = {
        "cohort": fp.Cohort(2),
        "solver": fp.Solver(0.1, 10, steps=3),
        "rounds": 2,
        "evaluation": fp.Evaluation(gradients=False),
        **options,
    }
    return fp.simulate(FEDERATION, model, methods, **given)


def still(learning_rate: Any) -> optax.GradientTransformation:
    """SGD that leaves the body as it is."""

    def groups(params: Any) -> Any:
        return {name: jax.tree.map(lambda _, n=name: n, part) for name, part in params.items()}

    transforms = {"body": optax.set_to_zero(), "head": optax.sgd(learning_rate)}
    return optax.multi_transform(transforms, groups)


def test_frozen_is_trained_with_gradients_of_zero() -> None:
    part = fp.freeze(MODEL, START, ["body"])
    (run,) = train(part, fp.fedavg())
    solver = fp.Solver(0.1, 10, steps=3, optimizer=still)
    (whole,) = train(MODEL, fp.fedavg(), initial=START, solver=solver)
    assert sorted(run.params) == ["head.bias", "head.kernel"]
    found = part.whole(run.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, whole.params)
    jax.tree.map(np.testing.assert_array_equal, found["body"], START["body"])
    ours, theirs = ([r.train_loss for r in each.history] for each in (run, whole))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("methods", [COMMON, pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_every_method_trains_a_model_with_frozen_parts(methods: list[fp.Algorithm]) -> None:
    part = fp.freeze(MODEL, START, ["body.kernel", "head.bias"])
    solver = fp.Solver(0.05, 10, steps=3, weight_decay=0.1, clip=1.0)
    for run in train(part, methods, solver=solver, evaluation=fp.Evaluation()):
        assert sorted(run.params) == ["body.bias", "head.kernel"], run.label
        assert all(np.isfinite(leaf).all() for leaf in run.params.values())


def test_the_whole_model_is_saved_and_frozen_again(tmp_path: Path) -> None:
    part = fp.freeze(MODEL, START, ["body"])
    (run,) = train(part, fp.fedavg())
    fp.save_model(tmp_path / "a.safetensors", part.whole(run.params))
    loaded = fp.load_model(tmp_path / "a.safetensors", model=MODEL)
    jax.tree.map(np.testing.assert_array_equal, loaded["body"], START["body"])
    again = fp.freeze(MODEL, loaded, ["body"]).init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, again, run.params)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["bodi"], "frozen: the model has no part 'bodi'; it has body.bias, body.kernel, head"),
        (["bod"], "no part 'bod'"),
        ([["body"]], r"frozen = \[\['body'\]\]; it must be a list of names"),
        (["body", "head"], "these are all parameters of the model"),
        ([], r"frozen = \[\]; it must be a list of names"),
        ("body", "frozen = 'body'; it must be a list of names"),
    ],
)
def test_wrong_names_are_refused(names: Any, line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        fp.freeze(MODEL, START, names)


def test_other_models_parameters_are_refused() -> None:
    part = fp.freeze(MODEL, START, ["body"])
    with pytest.raises(fp.InputError, match=r"model: parameters have .* where "):
        part.whole(START)
    with pytest.raises(fp.InputError, match="frozen: the model has frozen parts already"):
        fp.freeze(part, part.init(jax.random.key(0)), ["head"])
    with pytest.raises(fp.InputError, match="frozen: parameters have 'a' where "):
        fp.freeze(MODEL, {"a": np.zeros(2)}, ["a"])


TABLE: dict[str, Any] = {
    "rounds": 1,
    "cohort": {"clients_per_round": 2},
    "solver": {"learning_rate": 0.1, "batch_size": 10, "steps": 2},
    "data": {"name": "synthetic", "clients": 4},
    "model": {"name": "mlp", "hidden": [5]},
    "method": [{"name": "fedavg"}],
    "initial": "start.safetensors",
}


@pytest.mark.parametrize(
    ("key", "given", "stored", "trained"),
    [
        ("frozen", ["layers.0"], ["layers.0"], {"layers.1.bias", "layers.1.weight"}),
        (
            "lora",
            {"rank": 2, "trained": ["*.bias"]},
            {"rank": 2, "alpha": 16.0, "targets": ["*"], "trained": ["*.bias"]},
            {f"layers.{i}.{name}" for i in (0, 1) for name in ("bias", "weight.A", "weight.B")},
        ),
    ],
)
def test_an_experiment_trains_over_an_initial_model(
    key: str,
    given: Any,
    stored: Any,
    trained: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = {name: value for name, value in TABLE.items() if name != "initial"}
    whole = resolve(parse("x", plain)).model
    start = whole.init(jax.random.key(9))
    fp.save_model("start.safetensors", start)
    resolved = resolve(parse("x", TABLE | {"model": TABLE["model"] | {key: given}}))
    assert set(resolved.model.shapes) == trained
    assert resolved.table["model"][key] == stored
    assert parse("x", resolved.table).model[key] == stored
    x = jnp.ones((3, WIDTH))
    first = resolved.model.init(jax.random.key(0))
    np.testing.assert_array_equal(resolved.model.apply(first, x), whole.apply(start, x))
    with pytest.raises(fp.InputError, match=rf"model.{key}: it needs initial"):
        resolve(parse("x", plain | {"model": TABLE["model"] | {key: given}}))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"frozen": 3}, r"frozen = 3; it must be a list"),
        ({"lora": 3}, r"model.lora = 3; it must be a table"),
        ({"lora": {"ranks": 3}}, r"model.lora: .*'ranks'"),
        ({"lora": {}, "frozen": ["layers.0"]}, "model: lora freezes all else; leave frozen out"),
    ],
)
def test_wrong_keys_of_a_base_are_refused(
    keys: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = {name: value for name, value in TABLE.items() if name != "initial"}
    fp.save_model("start.safetensors", resolve(parse("x", plain)).model.init(jax.random.key(9)))
    with pytest.raises(fp.InputError, match=line):
        resolve(parse("x", TABLE | {"model": TABLE["model"] | keys}))


ADAPTED = fp.lora(MODEL, START, rank=2, alpha=3.0, targets=["body"], trained=["head.bias"])


def test_adapters_begin_as_the_given_model_and_are_merged_exactly() -> None:
    start = ADAPTED.init(jax.random.key(4))
    assert {name: leaf.shape for name, leaf in start.items()} == {
        "body.kernel.A": (WIDTH, 2),
        "body.kernel.B": (2, 5),
        "head.bias": (10,),
    }
    x = FEDERATION.train.x[:7]
    np.testing.assert_array_equal(ADAPTED.apply(start, x), MODEL.apply(START, x))
    moved = {name: leaf + 0.1 for name, leaf in start.items()}
    merged = ADAPTED.whole(moved)
    product = np.asarray(moved["body.kernel.A"]) @ np.asarray(moved["body.kernel.B"])
    expected = np.asarray(START["body"]["kernel"]) + 1.5 * product
    np.testing.assert_allclose(merged["body"]["kernel"], expected, rtol=1e-5)
    np.testing.assert_array_equal(merged["body"]["bias"], START["body"]["bias"])
    np.testing.assert_array_equal(merged["head"]["bias"], START["head"]["bias"] + 0.1)
    np.testing.assert_array_equal(ADAPTED.apply(moved, x), MODEL.apply(merged, x))
    assert not np.array_equal(
        start["body.kernel.A"], ADAPTED.init(jax.random.key(5))["body.kernel.A"]
    )


def test_the_first_round_of_adapters_evaluates_the_given_model() -> None:
    (run,) = train(ADAPTED, fp.fedavg())
    (whole,) = train(MODEL, fp.fedavg(), initial=START)
    assert run.history[0].train_loss == whole.history[0].train_loss
    assert run.history[0].test_accuracy == whole.history[0].test_accuracy
    assert run.final.train_loss < run.history[0].train_loss
    merged = fp.evaluate(MODEL, ADAPTED.whole(run.params), FEDERATION)
    adapted = fp.evaluate(ADAPTED, run.params, FEDERATION)
    assert merged.train_loss == pytest.approx(adapted.train_loss, rel=1e-6)
    assert adapted.train_loss == pytest.approx(run.final.train_loss, rel=1e-5)


def test_the_curvature_over_a_base_is_that_of_the_part() -> None:
    part = fp.freeze(MODEL, START, ["body", "head.kernel"])
    params = part.init(jax.random.key(0))

    def loss(bias: jax.Array) -> jax.Array:
        outputs = MODEL.apply(part.whole({"head.bias": bias}), FEDERATION.train.x)
        return cross_entropy(outputs, jnp.asarray(FEDERATION.train.y)).mean()

    found = fp.diagnostics.curvature(FEDERATION, part, params)
    largest = np.linalg.eigvalsh(jax.hessian(loss)(params["head.bias"]))[-1]
    assert found.largest_of_f == pytest.approx(float(largest), rel=1e-4)


def test_a_step_of_adapters_is_the_chain_rule() -> None:
    params = {"w": jnp.arange(6.0).reshape(3, 2)}
    model = fp.Model(lambda _: params, lambda p, x: x @ p["w"], lambda out, y: (out * y).sum(1))
    federation = fp.Federation.from_arrays([(np.eye(3), np.ones((3, 2)))])
    adapted = fp.lora(model, params, rank=1, alpha=2.0, targets=["w"])
    start = {"w.A": jnp.array([[1.0], [2.0], [3.0]]), "w.B": jnp.array([[0.5, -1.0]])}
    (run,) = fp.simulate(
        federation,
        adapted,
        fp.fedavg(),
        solver=fp.Solver(0.3, "all", steps=1),
        cohort=fp.Cohort(1),
        rounds=1,
        initial=start,
        progress=False,
    )
    whole = np.full((3, 2), 1 / 3)  # the gradient of w
    expected = {
        "w.A": start["w.A"] - 0.3 * 2.0 * whole @ start["w.B"].T,
        "w.B": start["w.B"] - 0.3 * 2.0 * start["w.A"].T @ whole,
    }
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), run.params, expected)


def test_tensors_are_adapted_as_matrices() -> None:
    shapes = {"conv": (3, 3, 16, 32), "query": (16, 4, 4), "out": (4, 4, 16), "bias": (8,)}
    model = fp.Model(
        lambda _: {name: jnp.zeros(shape) for name, shape in shapes.items()},
        lambda params, x: x + params["bias"],
    )
    adapted = fp.lora(model, model.init(jax.random.key(0)), rank=2, targets=["*"])
    assert {name: leaf.shape for name, leaf in adapted.shapes.items()} == {
        "conv.A": (144, 2),
        "conv.B": (2, 32),
        "query.A": (16, 2),
        "query.B": (2, 16),
        "out.A": (16, 2),
        "out.B": (2, 16),
    }
    merged = adapted.whole({name: jnp.ones(leaf.shape) for name, leaf in adapted.shapes.items()})
    assert {name: leaf.shape for name, leaf in merged.items()} == shapes
    np.testing.assert_array_equal(merged["conv"], np.full(shapes["conv"], 16.0))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"rank": 6}, r"lora.rank = 6; body.kernel is a matrix of 60 by 5"),
        ({"rank": 0}, "lora.rank = 0"),
        ({"alpha": -1.0}, "lora.alpha"),
        ({"targets": ["bodi*"]}, r"lora.targets: the model has no part 'bodi\*'"),
        ({"targets": ["*.bias"]}, r"no matrix to adapt is among them"),
        ({"trained": ["*"]}, r"no matrix to adapt is among them"),
        ({"trained": ["heads"]}, r"lora.trained: the model has no part 'heads'"),
    ],
)
def test_wrong_adapters_are_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        fp.lora(MODEL, START, **{"rank": 2, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"privacy": fp.Privacy(epsilon=8.0, delta=1e-3, clip=1.0)},
        {"compression": fp.Compression("top-k", share=0.5)},
        {"aggregation": fp.Aggregation("median")},
    ],
    ids=lambda options: next(iter(options)),
)
def test_messages_are_those_of_adapters(options: dict[str, Any]) -> None:
    cohort = fp.Cohort(2, sampling="bernoulli") if "privacy" in options else fp.Cohort(2)
    (run,) = train(ADAPTED, fp.fedavg(), cohort=cohort, **options)
    assert run.params.keys() == ADAPTED.shapes.keys()
    assert all(np.isfinite(leaf).all() for leaf in run.params.values())


def test_a_base_is_no_constant_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    side, classes = 512, 10  # 1 MB, of which a program's text would take twice as much
    model = fp.Model(
        lambda key: {
            "base": jax.random.normal(key, (WIDTH, side)),
            "middle": jax.random.normal(key, (side, side)),
            "head": jnp.zeros((side, classes)),
        },
        lambda params, x: jnp.tanh(x @ params["base"]) @ params["middle"] @ params["head"],
    )
    start, lengths = model.init(jax.random.key(0)), {}
    original = programs.ProgramSpec.trace

    def noted(request: programs.ProgramSpec) -> Any:
        traced = original(request)
        if traced is not None:
            lengths[request.known[0]] = len(traced.lower().as_text())
        return traced

    monkeypatch.setattr(programs.ProgramSpec, "trace", noted)
    programs.PROGRAMS.clear()
    frozen = fp.freeze(model, start, ["base", "middle"])
    evaluation = fp.Evaluation(fine_tune=1)
    first = train(frozen, fp.fedprox(mu=0.1), evaluation=evaluation)
    assert lengths.keys() == {"rounds", "evaluation", "inexactness", "part", "own models"}
    assert max(lengths.values()) < side * side
    # another base of the same shapes has the same programs
    lengths.clear()
    other = fp.freeze(model, jax.tree.map(lambda a: a + 0.1, start), ["base", "middle"])
    second = train(other, fp.fedprox(mu=0.1), evaluation=evaluation)
    assert not lengths
    assert first[0].final.train_loss != second[0].final.train_loss


def test_a_run_with_a_base_is_resumed(tmp_path: Path) -> None:
    checkpoints = fp.Checkpoints(tmp_path, every=1, resume=True)
    (whole,) = train(ADAPTED, fp.scaffold(), rounds=3)
    train(ADAPTED, fp.scaffold(), rounds=1, checkpoints=checkpoints)
    (resumed,) = train(ADAPTED, fp.scaffold(), rounds=3, checkpoints=checkpoints)
    jax.tree.map(np.testing.assert_array_equal, whole.params, resumed.params)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*.state"))
    assert np.asarray(resumed.params["body.kernel.A"]).tobytes() in stored
    assert np.asarray(START["body"]["kernel"]).tobytes() not in stored
    moved = jax.tree.map(lambda a: a + 1, START)
    other = fp.lora(MODEL, moved, rank=2, alpha=3.0, targets=["body"], trained=["head.bias"])
    with pytest.raises(fp.InputError, match=r"model\.base"):
        train(other, fp.scaffold(), rounds=3, checkpoints=checkpoints)
