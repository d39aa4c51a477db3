"""Weights in PyTorch's layout: loaded, saved, refused; those of real models equal the originals."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import fedprox as fp
from fedprox.report.saved import MOST_LINES


class Net(nnx.Module):
    """A layer of each kind that PyTorch and flax name or store differently."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(7, 6, rngs=rngs)
        self.conv1 = nnx.Conv(6, 6, (3,), padding="VALID", rngs=rngs)
        self.norm = nnx.LayerNorm(6, epsilon=1e-5, rngs=rngs)
        self.conv2 = nnx.Conv(6, 4, (2, 3), padding="VALID", rngs=rngs)
        self.groups = nnx.GroupNorm(4, num_groups=2, epsilon=1e-5, rngs=rngs)
        self.square = nnx.Linear(4, 4, rngs=rngs)
        self.fc = fp.models.layers.Dense(4, 3, kernel_init=nnx.initializers.ones, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.norm(self.conv1(self.embedding(ids)))  # (B, 9) -> (B, 7, 6)
        x = jnp.stack([x, x * x, -x], axis=1)  # (B, 3, 7, 6)
        x = self.groups(self.conv2(x)).mean(axis=(1, 2))  # (B, 2, 5, 4) -> (B, 4)
        return self.fc(jnp.tanh(self.square(x)))


MODEL = fp.Model.from_nnx(Net)
PARAMS = jax.tree.map(
    lambda a: np.random.default_rng(a.size).normal(size=a.shape).astype(np.float32), MODEL.shapes
)
TORCH = {
    "embedding.weight": (7, 6),
    "conv1.weight": (6, 6, 3),
    "conv1.bias": (6,),
    "norm.weight": (6,),
    "norm.bias": (6,),
    "conv2.weight": (4, 6, 2, 3),
    "conv2.bias": (4,),
    "groups.weight": (4,),
    "groups.bias": (4,),
    "square.weight": (4, 4),
    "square.bias": (4,),
    "fc.weight": (3, 4),
    "fc.bias": (3,),
}
"""What PyTorch's layers of these names have."""


def same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert str(jax.tree.structure(a)) == str(jax.tree.structure(b))


def test_saved_weights_are_pytorchs_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    fp.save_weights(path, PARAMS)
    saved = safetensors.numpy.load_file(path)
    assert {name: a.shape for name, a in saved.items()} == TORCH
    np.testing.assert_array_equal(saved["square.weight"], PARAMS["square"]["kernel"].T)
    np.testing.assert_array_equal(
        saved["conv2.weight"][1, 2], PARAMS["conv2"]["kernel"][:, :, 2, 1]
    )
    found = fp.load_weights(path, MODEL)
    same(found, PARAMS)
    base = found["square"]["kernel"]
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_pytorch_computes_the_same(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    load_file = pytest.importorskip("safetensors.torch").load_file

    class Theirs(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(7, 6)
            self.conv1 = torch.nn.Conv1d(6, 6, 3)
            self.norm = torch.nn.LayerNorm(6)
            self.conv2 = torch.nn.Conv2d(6, 4, (2, 3))
            self.groups = torch.nn.GroupNorm(2, 4)
            self.square = torch.nn.Linear(4, 4)
            self.fc = torch.nn.Linear(4, 3)

        def forward(self, ids: Any) -> Any:
            x = self.conv1(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
            x = self.norm(x)
            x = torch.stack([x, x * x, -x], dim=1).permute(0, 3, 1, 2)
            x = self.groups(self.conv2(x)).mean(dim=(2, 3))
            return self.fc(torch.tanh(self.square(x)))

    theirs, path = Theirs(), tmp_path / "a.safetensors"
    ids = np.random.default_rng(0).integers(0, 7, (5, 9))

    def agree(params: Any) -> None:
        with torch.no_grad():
            wanted = theirs(torch.tensor(ids)).numpy()
        np.testing.assert_allclose(MODEL.apply(params, jnp.asarray(ids)), wanted, atol=1e-5)

    fp.save_weights(path, PARAMS)
    theirs.load_state_dict(load_file(path))
    agree(PARAMS)
    torch.manual_seed(1)
    other = {name: torch.randn_like(tensor) for name, tensor in theirs.state_dict().items()}
    theirs.load_state_dict(other)
    pytest.importorskip("safetensors.torch").save_file(theirs.state_dict(), path)
    agree(fp.load_weights(path, MODEL))


kinds = st.sampled_from([np.float32, np.float64, np.float16, jnp.bfloat16])
names = st.sampled_from(["kernel", "scale", "embedding", "bias", "w_in"])


@given(
    layers=st.dictionaries(
        st.sampled_from(["a", "b", "c.d"]),
        st.dictionaries(
            names, st.tuples(st.lists(st.integers(0, 3), max_size=4), kinds), max_size=2
        ),
        max_size=3,
    ),
    seed=st.integers(0, 9),
)
def test_any_weights_come_back(
    layers: Any, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    params = {
        layer: {
            name: np.asarray(rng.normal(size=shape)).astype(kind)
            for name, (shape, kind) in each.items()
        }
        for layer, each in layers.items()
        if len(each.keys() & {"kernel", "scale", "embedding"}) < 2
    }
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    fp.save_weights(path, params)
    found = fp.load_weights(path, params)
    same(found, params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(params), strict=True):
        assert a.dtype == b.dtype


def test_a_repository_of_several_files_and_types(tmp_path: Path) -> None:
    model = fp.Model(
        lambda _: {
            "net": [{"kernel": jnp.zeros((2, 3))}],
            "scale": jnp.zeros(2),
            "new": jnp.ones(1),
        },
        lambda p, x: x * p["scale"],
    )
    half = np.arange(6).reshape(3, 2).astype(jnp.bfloat16)
    files: dict[str, dict[str, Any]] = {
        "a.safetensors": {"model.0.weight": half, "model.position_ids": np.arange(3)},
        "b.safetensors": {
            "norm.weight": np.ones(2, np.float16),
            "pooler.weight": np.ones((2, 2), np.float32),
        },
    }
    for name, tensors in files.items():
        (tmp_path / name).write_bytes(safetensors.numpy.save(tensors))
    where = {tensor: name for name, tensors in files.items() for tensor in tensors}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    params = model.init(jax.random.key(0))
    rename = {"model": "net", "norm": "", "pooler": None}
    for path in (tmp_path, index):
        found = fp.load_weights(path, params, rename=rename, keep=["new"])
        assert {a.dtype for a in jax.tree.leaves(found)} == {np.dtype(np.float32)}
        same(
            found,
            {
                "net": [{"kernel": np.asarray(half.T, np.float32)}],
                "scale": np.ones(2),
                "new": np.ones(1),
            },
        )
    with pytest.raises(fp.InputError, match=r"keep: new has no values in `like`; give parameters"):
        fp.load_weights(tmp_path, model, rename=rename, keep=["new"])
    with pytest.raises(fp.InputError, match=r"keep: no parameter 'nev'"):
        fp.load_weights(tmp_path, params, rename=rename, keep=["nev"])
    with pytest.raises(fp.InputError, match=r"rename: 'modell' begins no name of model.0.weight, "):
        fp.load_weights(tmp_path, params, rename={"modell": ""})
    with pytest.raises(fp.InputError, match=r"rename: two arrays would be named 'weight'"):
        fp.load_weights(tmp_path, params, rename={"norm": "", "pooler": ""})
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(
        fp.InputError, match=r"index.json: it names b.safetensors, which is missing"
    ):
        fp.load_weights(tmp_path, model)


def test_the_longest_begin_counts_and_a_new_name_may_be_longer(tmp_path: Path) -> None:
    path, tree = tmp_path / "a.safetensors", {"0": {"weight": np.ones(1)}, "0.1": np.zeros(2)}
    fp.save_weights(path, tree, rename={"": "net", "0.1": "last.weight"})
    assert sorted(safetensors.numpy.load_file(path)) == ["last.weight", "net.0.weight"]
    same(fp.load_weights(path, tree, rename={"net": "", "last.weight": "0.1"}), tree)


def test_each_mismatch_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    fp.save_weights(path, {"square": {"kernel": np.zeros((4, 5))}, "other": np.zeros(3)})
    like = {"square": {"kernel": np.zeros((3, 3)), "bias": np.zeros(3)}}
    with pytest.raises(fp.InputError) as refused:
        fp.load_weights(path, like)
    assert str(refused.value).splitlines() == [
        f"{path}: not the weights of this model; `rename` and `keep` may help:",
        "  square.bias: no floating-point tensor of this name",
        "  square.kernel: shape (4, 5) in the file when transposed where (3, 3) is needed",
        "  other: the model lacks it; shape (3,)",
    ]
    with pytest.raises(fp.InputError) as refused:
        fp.load_weights(path, {f"a{i}": np.zeros(1) for i in range(99)})
    assert len(str(refused.value).splitlines()) == MOST_LINES + 2
    assert str(refused.value).endswith("\n  81 more")


def test_what_cannot_be_loaded_or_saved_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for wrong, line in (
        (path, r"a.safetensors: no such file$"),
        (tmp_path, r": neither model.safetensors nor model.safetensors.index.json$"),
    ):
        with pytest.raises(fp.InputError, match=line):
            fp.load_weights(wrong, MODEL)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    for pickle in (tmp_path, tmp_path / "pytorch_model.bin"):
        with pytest.raises(fp.InputError, match=r"pytorch_model.bin: a pickle, .* converts it$"):
            fp.load_weights(pickle, MODEL)
    fp.save_weights(path, PARAMS)
    with pytest.raises(fp.InputError, match=r"^like: neither a model nor the parameters of one$"):
        fp.load_weights(path, MODEL.init)
    for content in (b"", b"PK", path.read_bytes()[:-1]):
        path.write_bytes(content)
        with pytest.raises(fp.InputError, match=r"not a safetensors file, or damaged: "):
            fp.load_weights(path, MODEL)
    index = tmp_path / "model.safetensors.index.json"
    for text in ("", "[]", '{"weight_map": 1}', '{"weight_map": {"a": 1}}', "[" * 10**5):
        index.write_text(text)
        with pytest.raises(fp.InputError, match=r"json: not a list of files with weights: "):
            fp.load_weights(index, MODEL)
    with pytest.raises(fp.InputError, match=r"nowhere: no such folder$"):
        fp.save_weights(tmp_path / "nowhere" / "a", PARAMS)
    with pytest.raises(fp.InputError, match=r"'a' is of type int32; it must be floating-point"):
        fp.save_weights(path, {"a": jnp.zeros(1, jnp.int32)})
    both = {"kernel": np.zeros((1, 1)), "weight": np.zeros((1, 1))}
    with pytest.raises(fp.InputError, match=r"two parameters would be named 'weight'$"):
        fp.save_weights(path, both)


def test_load_model_points_to_load_weights(tmp_path: Path) -> None:
    path, model = tmp_path / "a.safetensors", MODEL
    others = r"fp.load_weights loads what PyTorch or Hugging Face's libraries wrote"
    fp.save_weights(path, PARAMS)
    with pytest.raises(fp.InputError, match=f"does not say the structure .*; {others}"):
        fp.load_model(path)
    with pytest.raises(fp.InputError, match=f"parameters have .* where .*; {others}"):
        fp.load_model(path, model=model)
    path.write_bytes(safetensors.numpy.save({"position_ids": np.arange(3)}))
    with pytest.raises(fp.InputError, match=f"'position_ids' is of type I64; .*; {others}"):
        fp.load_model(path)
