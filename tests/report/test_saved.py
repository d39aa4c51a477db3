"""Saving a model's parameters, and loading them again from files and run directories."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprox as fp
from fedprox.report.directory import RunDirectory
from fedprox.report.saved import decode, encode_params
from tests.report.test_report import make_run


def structure(tree: Any) -> Any:
    return jax.tree.structure(tree)


def test_many_layers_come_back_in_their_order(tmp_path: Path) -> None:
    """Layers 10 and 11 sort before layer 2 where keys are text."""
    model = fp.Model.from_nnx(
        lambda rngs: nnx.Sequential(*[nnx.Linear(3, 3, rngs=rngs) for _ in range(12)])
    )
    params = model.init(jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    path = tmp_path / "model.safetensors"
    fp.save_model(path, params)
    assert "layers.10.kernel" in safetensors.numpy.load_file(path)
    for found in (fp.load_model(path), fp.load_model(str(path), model=model)):
        assert structure(found) == structure(params)
        assert isinstance(jax.tree.leaves(found)[0], np.ndarray)
        assert np.array_equal(model.apply(found, x), model.apply(params, x))
    as_text = {"layers": {str(k): v for k, v in params["layers"].items()}}
    with pytest.raises(fp.InputError) as refused:
        model.apply(as_text, x)
    assert str(refused.value).startswith(
        "model: parameters have ['layers']['0']['bias'], ['layers']['0']['kernel'], "
        "['layers']['1']['bias'], ['layers']['1']['kernel'], 20 more where ['layers'][0]['bias'], "
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[fp.Run]]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    rng = np.random.default_rng(0)
    labels = ("fedavg", "fedprox mu=0", "fedprox mu=1")
    runs = [make_run(label, seed) for label in labels for seed in (0, 7)]
    for run in runs:
        weight, bias = rng.normal(size=(3, 2)), rng.normal(size=2)
        run.params = {"dense": {"weight": weight.astype(np.float32), "bias": bias}}
    with RunDirectory(folder, {"rounds": 1}) as directory:
        for run in runs:
            for record in run.history:
                directory.record(record)
        directory.finish(runs, None)
    return folder, runs


def test_every_run_of_a_directory_is_loaded_bit_for_bit(trained: Any) -> None:
    folder, runs = trained
    for run in runs:
        found = fp.load_model(folder, run.label, run.seed)
        assert structure(found) == structure(run.params)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(run.params), strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("label", "seed", "message"),
    [
        ("fedprox", 0, r"no run 'fedprox'; it has 'fedavg', 'fedprox mu=0', 'fedprox mu=1'$"),
        ("fedavg", 1, r"'fedavg' has no seed 1; it has 0, 7$"),
        ("fedavg", None, r"give seed, one of 0, 7$"),
        (None, 0, r"give label, one of 'fedavg', 'fedprox mu=0', 'fedprox mu=1'$"),
    ],
)
def test_a_run_that_is_not_there_is_named(
    trained: Any, label: str | None, seed: int | None, message: str
) -> None:
    with pytest.raises(fp.InputError, match=message):
        fp.load_model(trained[0], label, seed)


def test_label_and_seed_may_be_left_out_where_one_run_fits(trained: Any, tmp_path: Path) -> None:
    folder, runs = trained
    summary = json.loads((folder / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps(summary[:1]))
    name = "model-fedavg-0.safetensors"
    (tmp_path / name).write_bytes((folder / name).read_bytes())
    found = fp.load_model(tmp_path)
    assert np.array_equal(found["dense"]["weight"], runs[0].params["dense"]["weight"])


arrays = st.builds(
    lambda shape, kind, seed: np.asarray(np.random.default_rng(seed).normal(size=shape)).astype(
        kind
    ),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from([np.float32, np.float64, np.float16, jnp.bfloat16]),
    st.integers(0, 9),
)


def nested(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.text(st.characters(codec="utf-8"), max_size=3) | st.sampled_from(["a", "b", "a.b"])
    return (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(names, parts, max_size=3)
        | st.dictionaries(st.integers(-20, 20), parts, max_size=3)
    )


@settings(max_examples=40)
@given(params=st.recursive(arrays | st.none(), nested, max_leaves=8))
def test_any_structure_comes_back(params: Any) -> None:
    _, found = decode(encode_params(params))
    assert structure(found) == structure(params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


class Layer(NamedTuple):
    kernel: Any
    bias: Any


def test_other_nodes_are_put_back_with_the_model(tmp_path: Path) -> None:
    def init(key: jax.Array) -> dict[str, Layer]:
        return {"dense": Layer(jax.random.normal(key, (2, 3)), jnp.ones(()))}

    model = fp.Model(init, lambda p, x: x @ p["dense"].kernel + p["dense"].bias)
    params, path = init(jax.random.key(1)), tmp_path / "a.safetensors"
    fp.save_model(path, params)
    with pytest.raises(fp.InputError, match=r"does not say the structure of its parameters; give"):
        fp.load_model(path)
    found = fp.load_model(path, model=model)
    assert isinstance(found["dense"], Layer)
    assert np.array_equal(found["dense"].kernel, params["dense"].kernel)
    other = dataclasses.replace(
        model, init=lambda _: {"dense": Layer(jnp.ones((3, 2)), jnp.ones(()))}
    )
    with pytest.raises(
        fp.InputError, match=r"dense.kernel: shape \(2, 3\) where \(3, 2\) is needed"
    ):
        fp.load_model(path, model=other)


def test_an_older_file_is_put_back_with_the_model(tmp_path: Path) -> None:
    model = fp.Model(lambda _: [jnp.zeros(2), jnp.ones(1)], lambda p, x: x @ p[0] + p[1])
    older = {"0": np.zeros(2, np.float32), "1": np.ones(1, np.float32)}
    path = tmp_path / "older.safetensors"
    path.write_bytes(safetensors.numpy.save(older))
    assert structure(fp.load_model(path, model=model)) == structure(model.shapes)
    path.write_bytes(safetensors.numpy.save(older | {"2": np.zeros(1, np.float32)}))
    with pytest.raises(fp.InputError, match=r"parameters have '2', which the model does not"):
        fp.load_model(path, model=model)


def test_what_cannot_be_loaded_or_saved_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(fp.InputError, match=r"a.safetensors: no such run directory or file$"):
        fp.load_model(path)
    with pytest.raises(fp.InputError, match=r"no experiment.toml; not a run directory$"):
        fp.load_model(tmp_path)
    (tmp_path / "experiment.toml").touch()
    with pytest.raises(fp.InputError, match=r"no summary.json; the run has not finished$"):
        fp.load_model(tmp_path)
    with pytest.raises(fp.InputError, match=r"nowhere: no such folder$"):
        fp.save_model(tmp_path / "nowhere" / "a", jnp.zeros(1))
    with pytest.raises(fp.InputError, match=r"'a' is of type int32; it must be floating-point"):
        fp.save_model(path, {"a": jnp.zeros(1, jnp.int32)})
    fp.save_model(path, jnp.zeros(1))
    with pytest.raises(fp.InputError, match=r"only those have runs to choose by label and seed"):
        fp.load_model(path, "fedavg")
    for content in (b"", b"PK", path.read_bytes()[:-1]):
        path.write_bytes(content)
        with pytest.raises(fp.InputError, match=r"not a file of parameters, or damaged: ") as error:
            fp.load_model(path)
        assert "\n" not in str(error.value)
