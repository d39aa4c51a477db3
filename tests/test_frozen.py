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
from fedprox.experiment import parse, resolve
from fedprox.model import dotted
from tests.catalogue import SAMPLED

FEDERATION = fp.datasets.synthetic(clients=4)
WIDTH = FEDERATION.train.x.shape[1]
COMMON = [fp.fedprox(mu=[0.0, 1.0])]
# fedrep refuses weight decay
OTHERS = [each.method for name, each in SAMPLED.items() if name not in ("fedprox", "fedrep")]


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
        "solver": fp.Solver(0.1, 10, steps=3),
        "rounds": 2,
        "evaluation": fp.Evaluation(gradients=False),
        **options,
    }
    return fp.simulate(FEDERATION, model, methods, cohort=fp.Cohort(2), **given)


def still(learning_rate: Any) -> optax.GradientTransformation:
    """SGD that leaves the body as it is."""

    def groups(params: Any) -> Any:
        return {name: jax.tree.map(lambda _, n=name: n, part) for name, part in params.items()}

    transforms = {"body": optax.set_to_zero(), "head": optax.sgd(learning_rate)}
    return optax.multi_transform(transforms, groups)


def test_frozen_is_trained_with_gradients_of_zero() -> None:
    part = fp.freeze(MODEL, START, ["body"])
    (run,) = train(part.model, fp.fedavg(), initial=part.trained(START))
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
    for run in train(part.model, methods, solver=solver, evaluation=fp.Evaluation()):
        assert sorted(run.params) == ["body.bias", "head.kernel"], run.label
        assert all(np.isfinite(leaf).all() for leaf in run.params.values())


def test_the_whole_model_is_saved_and_frozen_again(tmp_path: Path) -> None:
    part = fp.freeze(MODEL, START, ["body"])
    (run,) = train(part.model, fp.fedavg())
    fp.save_model(tmp_path / "a.safetensors", part.whole(run.params))
    loaded = fp.load_model(tmp_path / "a.safetensors", model=MODEL)
    jax.tree.map(np.testing.assert_array_equal, loaded["body"], START["body"])
    jax.tree.map(np.testing.assert_array_equal, part.trained(loaded), run.params)


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
    for function, params in ((part.whole, START), (part.trained, part.trained(START))):
        with pytest.raises(fp.InputError, match=r"frozen: parameters have .* where "):
            function(params)
    with pytest.raises(fp.InputError, match="frozen: parameters have 'a' where "):
        fp.freeze(MODEL, {"a": np.zeros(2)}, ["a"])


def test_an_experiment_freezes_parts_of_an_initial_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table: dict[str, Any] = {
        "rounds": 1,
        "cohort": {"clients_per_round": 2},
        "solver": {"learning_rate": 0.1, "batch_size": 10, "steps": 2},
        "data": {"name": "synthetic", "clients": 4},
        "model": {"name": "mlp", "hidden": [5]},
        "method": [{"name": "fedavg"}],
    }
    whole = resolve(parse("x", table)).model
    start = whole.init(jax.random.key(9))
    fp.save_model("start.safetensors", start)
    names = [dotted(path) for path, _ in jax.tree_util.tree_leaves_with_path(start)]
    name = names[0].rpartition(".")[0]
    frozen = table | {
        "model": table["model"] | {"frozen": [name]},
        "initial": "start.safetensors",
    }
    resolved = resolve(parse("x", frozen))
    trained = {each for each in names if not each.startswith(f"{name}.")}
    assert resolved.initial is not None
    assert set(resolved.model.shapes) == set(resolved.initial) == trained
    assert resolved.table["model"]["frozen"] == [name]
    x = jnp.ones((3, WIDTH))
    np.testing.assert_array_equal(resolved.model.apply(resolved.initial, x), whole.apply(start, x))
    with pytest.raises(fp.InputError, match=r"model.frozen: it needs initial"):
        resolve(parse("x", {key: frozen[key] for key in frozen.keys() - {"initial"}}))
    wrong = frozen | {"model": table["model"] | {"frozen": 3}}
    with pytest.raises(fp.InputError, match=r"frozen = 3; it must be a list"):
        resolve(parse("x", wrong))
