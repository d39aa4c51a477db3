"""A model's state in files: run directories, initial models, and PyTorch's running statistics."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fedprox as fp
from fedprox.experiment import parse, resolve
from tests.crossings.features import NORMALIZED, TABLE
from tests.deployment.federations import WITH_STATE
from tests.model.test_batch_norm import KINDS
from tests.model.test_state import everyone
from tests.objectives import CLASSES, FEATURES, HIDDEN
from tests.report.test_weights import same


def drawn(model: fp.Model) -> Any:
    """Variables of which no two arrays are the same."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: rng.uniform(1, 9, a.shape).astype(a.dtype), model.shapes)


COUNTED = drawn(NORMALIZED)
"""Among them a counter, a whole number."""


def test_variables_come_back_with_their_structure_and_types(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for whole in (
        COUNTED,
        fp.Variables([np.ones(2)], {3: np.int8(4), 5: None}),
        fp.Variables(np.ones(1), ()),
        fp.Variables((), np.uint64(7)),
    ):
        fp.save_model(path, whole)
        found = fp.load_model(path)
        same(found, whole)
        kinds, wanted = ([np.asarray(a).dtype for a in jax.tree.leaves(t)] for t in (found, whole))
        assert kinds == wanted
    fp.save_model(path, COUNTED)
    same(fp.load_model(path, model=NORMALIZED), COUNTED)
    path.write_bytes(safetensors.numpy.save(safetensors.numpy.load_file(path)))  # no structure
    same(fp.load_model(path, model=NORMALIZED), COUNTED)
    fp.save_model(path, COUNTED.params)
    with pytest.raises(fp.InputError, match=r"parameters have 'body', .* where 'params.body', "):
        fp.load_model(path, model=NORMALIZED)
    with pytest.raises(fp.InputError, match=r"'params' is of type int32; it must be floating"):
        fp.save_model(path, fp.Variables(np.int32(1), np.int32(2)))
    with pytest.raises(fp.InputError, match=r"'state' is of type bool; it must be numbers"):
        fp.save_model(path, fp.Variables(np.ones(1), np.bool_(1)))


@pytest.mark.slow
def test_a_run_directory_holds_the_state(tmp_path: Path) -> None:
    (run,) = everyone(fp.fedavg())
    fp.save([run], tmp_path / "run")
    same(fp.load_model(tmp_path / "run"), jax.device_get(run.params))


@pytest.mark.parametrize("frozen", [None, ["body"]])
def test_an_experiment_begins_with_the_state_of_a_file(
    frozen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fp.save_model("start.safetensors", COUNTED)
    keys = {"name": WITH_STATE} | ({"frozen": frozen} if frozen else {})
    table = {"initial": "start.safetensors", "model": keys, "method": [{"name": "fedavg"}]}
    resolved = resolve(parse("x", TABLE | table))
    begun = resolved.initial
    if frozen:
        begun = resolved.model.whole(resolved.model.init(jax.random.key(0)))
    same(jax.device_get(begun), COUNTED)


TORCH = {
    "body.weight": (HIDDEN, FEATURES),
    "body.bias": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    "norm.bias": (HIDDEN,),
    "norm.running_mean": (HIDDEN,),
    "norm.running_var": (HIDDEN,),
    "head.weight": (CLASSES, HIDDEN),
    "head.bias": (CLASSES,),
}
"""What PyTorch's layers have that are those of the model."""


@pytest.mark.parametrize(
    ("kind", "rename"),
    [("nnx", {}), ("linen", {"body": "Dense_0", "norm": "BatchNorm_0", "head": "Dense_1"})],
)
def test_statistics_are_pytorchs_and_come_back(kind: str, rename: Any, tmp_path: Path) -> None:
    path, model = tmp_path / "a.safetensors", KINDS[kind]
    whole = drawn(model)
    fp.save_weights(path, whole, rename={here: there for there, here in rename.items()})
    saved = safetensors.numpy.load_file(path)
    assert {name: a.shape for name, a in saved.items()} == TORCH
    norm = whole.state["norm"] if kind == "nnx" else whole.state["batch_stats"]["BatchNorm_0"]
    np.testing.assert_array_equal(saved["norm.running_mean"], norm["mean"])
    np.testing.assert_array_equal(saved["norm.running_var"], norm["var"])
    theirs = saved | {"norm.num_batches_tracked": np.int64(7)}
    path.write_bytes(safetensors.numpy.save({k: np.asarray(v) for k, v in theirs.items()}))
    same(fp.load_weights(path, model, rename=rename), whole)
    other = jax.tree.map(lambda a: a + 1, whole)
    kept = fp.load_weights(path, other, rename=rename, keep=[rename.get("norm", "norm")])
    same(kept.state, other.state)
    del saved["norm.running_var"]
    path.write_bytes(safetensors.numpy.save(saved))
    line = r"(norm|BatchNorm_0).var: no floating-point tensor of this name$"
    with pytest.raises(fp.InputError, match=line):
        fp.load_weights(path, model, rename=rename)


def test_counters_are_weights_too(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    fp.save_weights(path, COUNTED)
    same(fp.load_weights(path, NORMALIZED), COUNTED)
    saved = safetensors.numpy.load_file(path)
    del saved["steps"]
    for more in ({}, {"steps": np.ones((), np.float32)}):
        path.write_bytes(safetensors.numpy.save(saved | more))
        with pytest.raises(fp.InputError, match=r"steps: no tensor of whole numbers of this name$"):
            fp.load_weights(path, NORMALIZED)


def test_pytorch_evaluates_with_the_same_statistics(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    files = pytest.importorskip("safetensors.torch")
    from collections import OrderedDict

    layers = {
        "body": torch.nn.Linear(FEATURES, HIDDEN),
        "norm": torch.nn.BatchNorm1d(HIDDEN),
        "head": torch.nn.Linear(HIDDEN, CLASSES),
    }
    theirs, path = torch.nn.Sequential(OrderedDict(layers)).eval(), tmp_path / "a.safetensors"
    x, whole = np.random.default_rng(0).normal(size=(5, FEATURES)), drawn(KINDS["nnx"])
    fp.save_weights(path, whole)
    theirs.load_state_dict(files.load_file(path))

    def agree(whole: Any) -> None:
        with torch.no_grad():
            wanted = theirs(torch.tensor(x, dtype=torch.float32)).numpy()
        found = KINDS["nnx"].apply(whole, jnp.asarray(x, jnp.float32))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)

    agree(whole)
    theirs.train()(torch.randn(9, FEATURES))
    files.save_file(theirs.eval().state_dict(), path)
    agree(fp.load_weights(path, KINDS["nnx"]))


@pytest.mark.slow
def test_a_resnet_of_torchvision_computes_the_same(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    torch, files = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    theirs, path = torchvision.models.resnet18(num_classes=7), tmp_path / "a.safetensors"
    x = np.random.default_rng(0).normal(size=(2, 48, 40, 3)).astype(np.float32)
    images = torch.tensor(x).permute(0, 3, 1, 2)
    theirs.train()(images)  # moves the statistics
    files.save_file(theirs.state_dict(), path)
    model = fp.models.resnet18(fp.Federation.from_arrays([(x, np.array([0, 6]))]), norm="batch")
    whole = fp.load_weights(path, model, rename=resnet18_of_torchvision())
    with torch.no_grad():
        wanted = theirs.eval()(images).numpy()
    np.testing.assert_allclose(model.apply(whole, jnp.asarray(x)), wanted, rtol=1e-3, atol=1e-4)
    back = {there: here for here, there in resnet18_of_torchvision().items()}
    fp.save_weights(path, whole, rename=back)
    theirs.load_state_dict(files.load_file(path))


def resnet18_of_torchvision() -> dict[str, str]:
    """The names of torchvision's ResNet-18, and those of `fp.models.resnet18`."""
    rename = {"conv1": "conv", "bn1": "norm", "fc": "dense"}
    for i in range(8):
        layer, block = f"layer{i // 2 + 1}.{i % 2}", f"blocks.{i}"
        rename |= {layer: block, f"{layer}.bn1": f"{block}.norm1", f"{layer}.bn2": f"{block}.norm2"}
        if i in (2, 4, 6):
            rename[f"{layer}.downsample"] = f"{block}.shortcut"
    return rename
