"""Exported models, which a process without this library runs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w

import fedprox as fp
from fedprox import exports
from fedprox.columns import Column, Columns
from fedprox.errors import InputError
from tests.test_cli import status
from tests.test_predictions import BY_CLIENT, linear, saved

ALONE = """
import sys
import jax, numpy as np
for folder in sys.argv[1:]:
    exported = jax.export.deserialize(bytearray(open(f"{folder}/model.stablehlo", "rb").read()))
    given = dict(np.load(f"{folder}/given.npz"))
    np.save(f"{folder}/outputs.npy", exported.call(given.get("x", given)))
assert "fedprox" not in sys.modules
"""
"""What runs exported models, each on the rows beside it."""

COLUMNS = Columns(
    (
        Column("age", "number"),
        Column("rare", "number", missing="column"),
        Column("common", "number", missing=3.0),
        Column("smokes", "boolean", missing=0),
        Column("seen", "date"),
        Column("sex", "category", values=("m", "f"), missing="column"),
        Column("stage", "category", values=("I", "II"), missing="II"),
        Column("ward", "index", values=("a", "b", "c"), missing="b"),
    ),
    Column("risk", "number"),
    "federation",
    # single precision has 64 between two numbers near the last mean
    mean=(50.25, 2.0, 1.0, 1e9 + 0.3),
    scale=(20.0, 3.0, 0.5, 1000.0),
)
WIDTH = len(COLUMNS.names)
DAYS = np.array([1_000_000_000, 1_000_001_024, 999_998_976])
"""Three days that single precision holds."""

ROWS: dict[str, Any] = {
    "age": [30.0, 71.5, 90.0],
    "rare": [None, 4.0, 7.0],
    "common": [1.0, None, 2.0],
    "smokes": [True, False, None],
    "seen": DAYS.astype("datetime64[D]"),
    "sex": ["f", None, "m"],
    "stage": ["I", None, "II"],
    "ward": ["c", None, "a"],
}
CODED: dict[str, Any] = {
    "age": [30.0, 71.5, 90.0],
    "rare": [np.nan, 4.0, 7.0],
    "common": [1.0, np.nan, 2.0],
    "smokes": [1.0, 0.0, np.nan],
    "seen": DAYS,
    "sex": [1, -1, 0],
    "stage": [0, -1, 1],
    "ward": [2, -1, 0],
}
"""The same rows as an exported model takes them."""


def typed(rows: dict[str, Any]) -> dict[str, Any]:
    kinds = {c.name: np.int32 if c.values else np.float32 for c in COLUMNS.features}
    return {name: np.array(values, kinds[name]) for name, values in rows.items()}


def embedded(params: Any, x: Any) -> jax.Array:
    """A matrix for the numbers, and a number for each ward."""
    return x["numbers"] @ params["w"] + params["wards"][x["ward"]]


TABLE = fp.Model(lambda _: {"w": jnp.zeros(WIDTH), "wards": jnp.zeros(3)}, embedded)
PARAMS = {
    "w": np.linspace(-1, 1, WIDTH, dtype=np.float32),
    "wards": np.array([5, 7, 11], np.float32),
}


def bytes_to_unit(raw: Any) -> jax.Array:
    return raw / 255


def called(folder: Path, x: Any) -> Any:
    """The outputs of an exported model, in this process."""
    content = (folder / "model.stablehlo").read_bytes()
    return np.asarray(jax.export.deserialize(bytearray(content)).call(x))


@pytest.mark.slow
def test_a_process_with_jax_alone_has_the_same_outputs(tmp_path: Path) -> None:
    file, table, images = tmp_path / "a.safetensors", tmp_path / "table", tmp_path / "images"
    fp.save_model(file, PARAMS, columns=COLUMNS)
    fp.export(file, table, model=TABLE)
    np.savez(table / "given.npz", **typed(CODED))

    raw = np.random.default_rng(0).integers(0, 256, (5, 4, 4)).astype(np.uint8)
    x = fp.Prepared(raw, bytes_to_unit)
    federation = fp.Federation.from_arrays([(x, np.arange(5) % 3)], classes=3)
    model = fp.models.logistic(federation)
    run = fp.Run("fedavg", {}, 0.1, 0, "fedavg", params=model.init(jax.random.key(1)))
    fp.export(run, images, model=model, example=x)
    np.savez(images / "given.npz", x=raw)

    subprocess.run([sys.executable, "-c", ALONE, table, images], check=True, cwd=tmp_path)
    outputs = np.load(table / "outputs.npy")
    np.testing.assert_allclose(outputs, fp.predict(file, ROWS, model=TABLE), rtol=1e-6)
    expected = model.apply(run.params, raw.astype(np.float32) / 255)
    np.testing.assert_allclose(np.load(images / "outputs.npy"), expected, rtol=1e-6, atol=1e-6)
    described = json.loads((images / "model.json").read_text())
    assert described["inputs"] == {"type": "uint8", "shape": ["rows", 4, 4]}
    assert described["outputs"] == {"type": "float32", "shape": ["rows", 3]}
    assert described["platforms"] == ["cpu", "cuda", "tpu"]
    # nothing of this machine is in the file
    assert str(Path(fp.__file__).parent).encode() not in (table / "model.stablehlo").read_bytes()


def test_rows_that_no_prediction_takes_have_no_output(tmp_path: Path) -> None:
    kinds = [replace(column, missing=None) for column in COLUMNS.features]
    columns = replace(COLUMNS, features=(kinds[0], *kinds[3:]), mean=(50.0, 0.0), scale=(20.0, 1.0))
    width = len(columns.names)
    model = fp.Model(lambda _: {"w": jnp.zeros(width), "wards": jnp.zeros(3)}, embedded)
    file = tmp_path / "a.safetensors"
    fp.save_model(file, {"w": PARAMS["w"][:width], "wards": PARAMS["wards"]}, columns=columns)
    fp.export(file, tmp_path / "out", model=model)
    good = {
        name: np.repeat(typed(CODED)[name][:1], 6) for name in (c.name for c in columns.features)
    }
    wrong = {"age": np.nan, "smokes": 2.0, "sex": 2, "stage": -1, "ward": 3}
    for row, (name, value) in enumerate(wrong.items()):
        good[name][row] = value
    outputs = called(tmp_path / "out", good)
    assert np.isnan(outputs).tolist() == [True] * 5 + [False]


def test_the_labels_and_the_vocabularies_stand_beside_the_model(tmp_path: Path) -> None:
    file = saved(tmp_path, Column("ill", "boolean"))
    fp.export(file, tmp_path / "out", model=linear())
    described = json.loads((tmp_path / "out" / "model.json").read_text())
    assert described["label"] == {"name": "ill", "kind": "boolean", "values": [False, True]}
    assert described["columns"][1] == {"name": "sex", "kind": "category", "values": ["m", "f"]}
    assert described["inputs"]["sex"] == {"type": "int32", "shape": ["rows"]}
    rows = {"age": np.array([30, 90], np.float32), "sex": np.array([1, 0], np.int32)}
    outputs = called(tmp_path / "out", rows)
    known = [described["label"]["values"][i] for i in outputs.argmax(axis=1)]
    given = {"age": [30, 90], "sex": ["f", "m"]}
    assert known == fp.predict(file, given, model=linear()).tolist()


def test_several_inputs_keep_their_tree(tmp_path: Path) -> None:
    model = fp.Model(
        lambda _: {"w": jnp.zeros(3)},
        lambda params, x: x["image"].sum(axis=(1, 2)) * params["w"][0] + x["pair"][1],
    )
    run = fp.Run("fedavg", {}, 0.1, 0, "fedavg", params={"w": np.full(3, 2, np.float32)})
    example = {"image": np.zeros((1, 2, 2)), "pair": (np.zeros(1), np.zeros(1, np.int32))}
    fp.export(run, tmp_path, model=model, example=example)
    image = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    pair = np.zeros(3, np.float32), np.array([1, 2, 3], np.int32)
    assert called(tmp_path, {"image": image, "pair": pair}).tolist() == [13, 46, 79]


@pytest.mark.slow
def test_a_run_directory_has_its_data_and_its_model(tmp_path: Path) -> None:
    experiment: dict[str, Any] = {
        "rounds": 1,
        "data": {"name": "synthetic", "clients": 4},
        "cohort": {"clients_per_round": 2},
        "solver": {"learning_rate": 0.1, "batch_size": 10, "steps": 1},
        "method": [{"name": "fedavg"}, {"name": "fedprox", "mu": 1.0}],
        "evaluation": {"gradients": False},
    }
    file, out = tmp_path / "a.toml", tmp_path / "out"
    file.write_text(tomli_w.dumps(experiment))
    runs = fp.run(file, out=out, progress=False)
    assert status("export", out, tmp_path / "exported", "--label", runs[1].label) == 0
    x = np.random.default_rng(0).normal(size=(3, 60)).astype(np.float32)
    model = fp.models.logistic(fp.datasets.synthetic(clients=4))
    np.testing.assert_allclose(
        called(tmp_path / "exported", x), model.apply(runs[1].params, x), rtol=1e-6, atol=1e-6
    )
    assert status("export", out, tmp_path / "other") == 2
    gone = experiment | {"data": {"name": "mapped", "path": str(tmp_path / "gone")}}
    (out / "experiment.toml").write_text(tomli_w.dumps(gone))
    with pytest.raises(InputError, match=r"gone.*; give model and example to fp\.export"):
        fp.export(out, tmp_path / "other", label=runs[1].label)


def row_by_row(params: Any, x: Any) -> Any:
    """Code for a known number of rows."""
    return jnp.stack([row @ params["w"] for row in x])


RUN = fp.Run("fedavg", {}, 0.1, 0, "fedavg", params={"w": np.zeros((3, 2), np.float32)})


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, "export: Run\\('fedavg', seed 0: no records\\) does not have its model; give model"),
        ({"model": linear()}, "shape of the model's features is not known; give example"),
        ({"model": linear(), "seed": 1}, "label and seed choose in a run directory"),
        ({"model": linear((2, 2))}, r"run\.params: w: shape \(3, 2\) where \(2, 2\) is needed"),
        (
            {"model": replace(linear(), apply=row_by_row), "example": np.zeros((1, 3))},
            "the model's code cannot be exported for any number of rows: model.apply",
        ),
    ],
)
def test_what_cannot_be_exported(tmp_path: Path, arguments: Any, line: str) -> None:
    with pytest.raises(InputError, match=line) as refused:
        fp.export(RUN, tmp_path / "out", **arguments)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be_exported(tmp_path: Path) -> None:
    by_client = saved(tmp_path, Column("ill", "boolean"), **BY_CLIENT)
    with pytest.raises(InputError, match="each client's own mean and deviation standardize"):
        fp.export(by_client, tmp_path / "out", model=linear())
    plain = tmp_path / "plain.safetensors"
    fp.save_model(plain, RUN.params)
    with pytest.raises(InputError, match=r"plain\.safetensors: .*; give model and example"):
        fp.export(plain, tmp_path / "out")


def test_without_what_jax_writes_files_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"JAX needs flatbuffers for it: in a clone .*\[export\]"):
        fp.export(RUN, tmp_path / "out", model=linear(), example=np.zeros((1, 3)))
