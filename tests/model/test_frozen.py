"""Models with frozen parts: the rest is trained as if the frozen gradients were zero."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import fedprox as fp
from fedprox.devices import programs
from fedprox.experiment import parse, resolve
from fedprox.losses import CrossEntropy
from tests import objectives, settings
from tests.catalogue import VARIANTS
from tests.objectives import CLASSES, FEATURES, HIDDEN, MODEL
from tests.settings import FEDERATION, runs

START = MODEL.init(jax.random.key(3))
PART = fp.freeze(MODEL, START, ["body"])

NESTED_START = {
    "body": {"bias": np.zeros(HIDDEN, np.float32), "kernel": np.asarray(START["body"])},
    "head": {"bias": np.zeros(CLASSES, np.float32), "kernel": np.asarray(START["head"])},
}


def layers(params: Any, x: jax.Array) -> jax.Array:
    body, head = params["body"], params["head"]
    outputs: jax.Array = jnp.tanh(x @ body["kernel"] + body["bias"]) @ head["kernel"] + head["bias"]
    return outputs


NESTED = fp.Model(lambda _: jax.tree.map(jnp.asarray, NESTED_START), layers)
"""`MODEL` with biases, whose parts have several parameters."""

ADAPTED = fp.lora(NESTED, NESTED_START, rank=2, alpha=3.0, targets=["body"], trained=["head.bias"])
SHAPES = {"body.kernel.A": (FEATURES, 2), "body.kernel.B": (2, HIDDEN), "head.bias": (CLASSES,)}


def loss_of(params: Any, x: Any = FEDERATION.train.x, y: Any = FEDERATION.train.y) -> float:
    """The mean loss of the rows at parameters of `NESTED`, in NumPy."""
    w = jax.tree.map(lambda a: np.asarray(a, float), params)
    hidden = np.tanh(x @ w["body"]["kernel"] + w["body"]["bias"])
    p = objectives.probabilities(hidden @ w["head"]["kernel"] + w["head"]["bias"])
    return float(-np.log(p[np.arange(len(y)), y]).mean())


@pytest.fixture(scope="module")
def adapted_run() -> fp.Run:
    """A run of adapters, whose messages' bits are counted."""
    (run,) = runs(model=ADAPTED, compression=fp.Compression("full"))
    return run


class Head(objectives.Method):
    """FedProx whose clients train the head alone."""

    mu = 0.0

    def gradient(
        self, w: objectives.Params, x: objectives.Matrix, y: Any, k: int
    ) -> objectives.Params:
        plain = super().gradient(w, x, y, k)
        return {name: plain[name] + self.mu * (w[name] - self.params[name]) for name in w}

    def descend(self, k: int, batches: list[NDArray[np.int32]], rate: float) -> objectives.Params:
        return self.steps(self.params, k, batches, rate, ["head"])


@pytest.fixture(scope="module")
def head_runs() -> list[fp.Run]:
    """Runs of the head alone."""
    return runs(model=PART, methods=fp.fedprox(mu=[0.0, 1.0]))


def test_frozen_is_trained_with_gradients_of_zero(head_runs: list[fp.Run]) -> None:
    given = {name: settings.BASE[name] for name in ("solver", "cohort", "rounds")}
    for run in head_runs:
        assert list(run.params) == ["head"]
        found = PART.whole(run.params)
        np.testing.assert_array_equal(found["body"], START["body"])
        method = Head(START, FEDERATION.train)
        method.mu = run.hparams["mu"]
        expected = objectives.run(method, seed=0, **given)
        np.testing.assert_allclose(found["head"], expected["head"], rtol=1e-4, atol=1e-5)


FUNCTIONS = ["moon", "fedgkd", "qffl", "mime"]
"""Methods that call the model's functions beside those of a step."""


@pytest.mark.slow
def test_methods_train_a_model_with_frozen_parts() -> None:
    for run in runs(model=PART, methods=[VARIANTS[name].method for name in FUNCTIONS], rounds=2):
        assert list(run.params) == ["head"], run.label
        assert np.isfinite(run.params["head"]).all(), run.label
        assert run.final.train_loss < run.history[0].train_loss, run.label


def test_the_whole_model_is_saved_and_frozen_again(head_runs: list[fp.Run], tmp_path: Path) -> None:
    run = head_runs[0]
    fp.save_model(tmp_path / "a.safetensors", PART.whole(run.params))
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
        fp.freeze(NESTED, NESTED_START, names)


def test_other_models_parameters_are_refused() -> None:
    with pytest.raises(
        fp.InputError, match="model: parameters have 'body', which the model does not"
    ):
        PART.whole(START)
    with pytest.raises(fp.InputError, match="frozen: the model has frozen parts already"):
        fp.freeze(PART, {"head": START["head"]}, ["head"])
    with pytest.raises(fp.InputError, match="frozen: parameters have 'a' where "):
        fp.freeze(MODEL, {"a": np.zeros(2)}, ["a"])


TABLE: dict[str, Any] = {
    "rounds": 1,
    "cohort": {"clients_per_round": 2},
    "solver": {"learning_rate": 0.1, "batch_size": 10, "steps": 2},
    "data": {"name": "synthetic", "clients": 4},
    "model": {"name": "mlp", "hidden": [5]},
    "method": [{"name": "fedavg"}],
}


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[fp.Model, Any]:
    """The model of `TABLE` and parameters, which are stored as start.safetensors."""
    monkeypatch.chdir(tmp_path)
    whole = resolve(parse("x", TABLE)).model
    start = whole.init(jax.random.key(9))
    fp.save_model("start.safetensors", start)
    return whole, start


def over_first(keys: dict[str, Any]) -> Any:
    """The experiment over the stored parameters, with more keys of its model."""
    table = {"initial": "start.safetensors", "model": TABLE["model"] | keys}
    return resolve(parse("x", TABLE | table))


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
    key: str, given: Any, stored: Any, trained: set[str], first: tuple[fp.Model, Any]
) -> None:
    (whole, start), resolved = first, over_first({key: given})
    assert set(resolved.model.shapes) == trained
    assert resolved.table["model"][key] == stored
    assert parse("x", resolved.table).model[key] == stored
    x, params = np.ones((3, 60), np.float32), resolved.model.init(jax.random.key(0))
    found, wanted = jax.jit(resolved.model.apply)(params, x), jax.jit(whole.apply)(start, x)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(fp.InputError, match=rf"model.{key}: it needs initial"):
        resolve(parse("x", TABLE | {"model": TABLE["model"] | {key: given}}))


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"frozen": 3}, r"frozen = 3; it must be a list"),
        ({"lora": 3}, r"model.lora = 3; it must be a table"),
        ({"lora": {"ranks": 3}}, r"model.lora: .*'ranks'"),
        ({"lora": {}, "frozen": ["layers.0"]}, "model: lora freezes all else; leave frozen out"),
    ],
)
@pytest.mark.usefixtures("first")
def test_wrong_keys_of_a_base_are_refused(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        over_first(keys)


def test_adapters_begin_as_the_given_model_and_are_merged_exactly() -> None:
    init = jax.jit(ADAPTED.init)
    start, other = (jax.device_get(init(jax.random.key(seed))) for seed in (4, 5))
    assert {name: leaf.shape for name, leaf in start.items()} == SHAPES
    assert not np.array_equal(start["body.kernel.A"], other["body.kernel.A"])
    both = jax.jit(lambda params, x: (ADAPTED.whole(params), ADAPTED.apply(params, x)))
    plain, x = jax.jit(layers), FEDERATION.train.x[:7]
    merged, outputs = both(start, x)
    jax.tree.map(np.testing.assert_array_equal, merged, NESTED_START)
    np.testing.assert_array_equal(outputs, plain(NESTED_START, x))
    moved = {name: leaf + np.float32(0.1) for name, leaf in start.items()}
    merged, outputs = both(moved, x)
    expected = (
        NESTED_START["body"]["kernel"] + 1.5 * moved["body.kernel.A"] @ moved["body.kernel.B"]
    )
    np.testing.assert_allclose(merged["body"]["kernel"], expected, rtol=1e-5)
    np.testing.assert_array_equal(merged["head"]["bias"], moved["head.bias"])
    np.testing.assert_allclose(outputs, plain(merged, x), rtol=1e-6)


def test_adapters_are_evaluated_and_sent_alone(adapted_run: fp.Run) -> None:
    first, last = adapted_run.history[0], adapted_run.final
    assert first.train_loss == pytest.approx(loss_of(NESTED_START), rel=1e-5)
    assert last.train_loss == pytest.approx(loss_of(ADAPTED.whole(adapted_run.params)), rel=1e-5)
    assert last.train_loss < first.train_loss
    again = fp.evaluate(ADAPTED, adapted_run.params, FEDERATION)
    assert again.train_loss == pytest.approx(last.train_loss, rel=1e-6)
    numbers = sum(np.prod(shape) for shape in SHAPES.values())
    assert last.bits_up == 32 * numbers * 4 * last.round


def test_the_curvature_over_a_base_is_that_of_the_part() -> None:
    params = {"head": START["head"]}

    def loss(head: jax.Array) -> jax.Array:
        outputs = MODEL.apply({"body": START["body"], "head": head}, FEDERATION.train.x)
        return CrossEntropy()(outputs, jnp.asarray(FEDERATION.train.y)).mean()

    found = fp.diagnostics.curvature(FEDERATION, PART, params)
    size = HIDDEN * CLASSES
    hessian = np.reshape(jax.jit(jax.hessian(loss))(START["head"]), (size, size))
    assert found.largest_of_f == pytest.approx(np.linalg.eigvalsh(hessian)[-1], rel=1e-4)


def test_tensors_are_adapted_as_matrices() -> None:
    shapes = {"conv": (3, 3, 16, 32), "query": (16, 4, 4), "out": (4, 4, 16), "bias": (8,)}
    model = fp.Model(
        lambda _: {name: jnp.zeros(shape) for name, shape in shapes.items()},
        lambda params, x: x + params["bias"],
    )
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    adapted = fp.lora(model, zeros, rank=2, targets=["*"])
    assert {name: leaf.shape for name, leaf in adapted.shapes.items()} == {
        "conv.A": (144, 2),
        "conv.B": (2, 32),
        "query.A": (16, 2),
        "query.B": (2, 16),
        "out.A": (16, 2),
        "out.B": (2, 16),
    }
    ones = {name: np.ones(leaf.shape, np.float32) for name, leaf in adapted.shapes.items()}
    merged = jax.jit(adapted.whole)(ones)
    assert {name: leaf.shape for name, leaf in merged.items()} == shapes
    np.testing.assert_array_equal(merged["conv"], np.full(shapes["conv"], 16.0))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"rank": 5}, r"lora.rank = 5; body.kernel is a matrix of 5 by 4"),
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
        fp.lora(NESTED, NESTED_START, **{"rank": 2, **options})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("evaluation", "names"),
    [
        (fp.Evaluation(gradients=False), {"rounds", "evaluation"}),
        (
            fp.Evaluation(fine_tune=1),
            {"rounds", "evaluation", "inexactness", "part", "own models"},
        ),
    ],
)
def test_a_base_is_no_constant_of_programs(
    evaluation: fp.Evaluation, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    side = 512  # 1 MB, of which a program's text would take twice as much

    def start(add: float) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        shapes = {"base": (FEATURES, side), "middle": (side, side), "head": (side, CLASSES)}
        return {name: np.float32(rng.normal(size=shape) + add) for name, shape in shapes.items()}

    model = fp.Model(
        lambda _: jax.tree.map(jnp.asarray, start(0.0)),
        lambda params, x: jnp.tanh(x @ params["base"]) @ params["middle"] @ params["head"],
    )
    lengths, original = {}, programs.ProgramSpec.trace

    def noted(request: programs.ProgramSpec) -> Any:
        traced = original(request)
        if traced is not None:
            lengths[request.known[0]] = len(traced.lower().as_text())
        return traced

    monkeypatch.setattr(programs.ProgramSpec, "trace", noted)
    programs.PROGRAMS.clear()
    losses = []
    # another base of the same shapes has the same programs
    for add in (0.0, 0.1):
        frozen = fp.freeze(model, start(add), ["base", "middle"])
        (run,) = runs(model=frozen, evaluation=evaluation, rounds=2)
        losses.append(run.final.train_loss)
        assert lengths.keys() == (set() if add else names)
        assert all(length < side * side for length in lengths.values())
        lengths.clear()
    assert losses[0] != losses[1]


def test_a_run_with_a_base_is_resumed(adapted_run: fp.Run, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "compression": fp.Compression("full"),
        "checkpoints": fp.Checkpoints(tmp_path, every=1, resume=True),
    }
    runs(model=ADAPTED, rounds=2, **given)
    (resumed,) = runs(model=ADAPTED, **given)
    jax.tree.map(np.testing.assert_array_equal, adapted_run.params, resumed.params)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*.state"))
    assert np.asarray(resumed.params["body.kernel.A"]).tobytes() in stored
    assert NESTED_START["body"]["kernel"].tobytes() not in stored
    moved = jax.tree.map(lambda a: a + 1, NESTED_START)
    other = fp.lora(NESTED, moved, rank=2, alpha=3.0, targets=["body"], trained=["head.bias"])
    with pytest.raises(fp.InputError, match=r"model\.base"):
        runs(model=other, **given)
