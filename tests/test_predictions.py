"""Predictions for the rows of a table."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w

import fedprox as fp
from fedprox import predictions
from fedprox.columns import Column, Columns
from fedprox.errors import InputError
from fedprox.report.saved import load_columns, model_path
from tests.test_cli import status

AGE, SEX = Column("age", "number"), Column("sex", "category", values=("m", "f"))
BY_MEAN = {"mean": (50.0,), "scale": (20.0,)}
ROWS = {"sex": ["f", "m", "f"], "shoe": [1, 2, 3], "age": [30, 90, 70]}
FEATURES = np.array([[-1.0, 0, 1], [2, 1, 0], [1, 0, 1]])
"""What the model reads of these rows: standardized age, m, f."""

WEIGHT = np.array([[1.0, -1], [0, 3], [2, 0]], np.float32)


def linear(shape: tuple[int, ...] = WEIGHT.shape) -> fp.Model:
    """A matrix and nothing else."""
    return fp.Model(lambda _: {"w": jnp.zeros(shape)}, lambda params, x: x @ params["w"])


def saved(folder: Path, label: Column, weight: Any = WEIGHT, **numbers: Any) -> Path:
    """A file with a model and its columns."""
    given = {"standardize": "given", **BY_MEAN} | numbers
    path, columns = folder / "model.safetensors", Columns((AGE, SEX), label, **given)
    fp.save_model(path, {"w": np.asarray(weight, np.float32)}, columns=columns)
    return path


@pytest.mark.parametrize(
    ("label", "known"),
    [
        (Column("ill", "category", values=("yes", "no")), np.array(["yes", "no"])),
        (Column("ill", "category", values=(0, 1)), np.array([0, 1])),
        (Column("ill", "boolean"), np.array([False, True])),
    ],
)
def test_classes_are_the_values_of_the_label(tmp_path: Path, label: Column, known: Any) -> None:
    expected = known[np.argmax(FEATURES @ WEIGHT, axis=1)]
    got = fp.predict(saved(tmp_path, label), ROWS, model=linear())
    assert got.tolist() == expected.tolist()
    one = saved(tmp_path, label, WEIGHT[:, :1])
    expected = known[(FEATURES @ WEIGHT[:, 0] > 0).astype(int)]
    assert fp.predict(one, ROWS, model=linear((3, 1))).tolist() == expected.tolist()


def test_numbers_are_the_outputs(tmp_path: Path) -> None:
    path = saved(tmp_path, Column("dose", "number"), WEIGHT[:, 0])
    np.testing.assert_allclose(fp.predict(path, ROWS, model=linear((3,))), FEATURES @ WEIGHT[:, 0])


def test_a_table_of_several_blocks_and_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, Column("dose", "number"), WEIGHT[:, 0])
    whole = fp.predict(path, ROWS, model=linear((3,)))
    monkeypatch.setattr(predictions, "ROWS_AT_A_TIME", 2)
    assert fp.predict(path, ROWS, model=linear((3,))).tolist() == whole.tolist()
    empty: dict[str, list[Any]] = {name: [] for name in ROWS}
    assert fp.predict(path, empty, model=linear((3,))).shape == (0,)
    by_client = saved(tmp_path, Column("dose", "number"), WEIGHT[:, 0], **BY_CLIENT)
    none = empty | {"ward": []}
    assert fp.predict(by_client, none, model=linear((3,)), client="ward").shape == (0,)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ({"sex": ["f"], "years": [3]}, "table: no column 'age'"),
        ({"sex": ["f", "x"], "age": [3, 4]}, "column 'sex', row 2: 'x': not in its vocabulary"),
        ({"sex": ["f"], "age": [None]}, "column 'age', row 1: a missing value"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path: Path, rows: Any, line: str) -> None:
    path = saved(tmp_path, Column("ill", "boolean"))
    with pytest.raises(InputError, match=line):
        fp.predict(path, rows, model=linear())


BY_CLIENT: dict[str, Any] = {"standardize": "client", "mean": None, "scale": None}
WARDS: dict[str, list[Any]] = {
    "ward": ["b", "a", "b", "c", "a", "b", "c"],
    "sex": ["f", "m", "f", "f", "m", "m", "m"],
    "age": [30.0, 90.0, 1e7 + 1, 5.0, 40.0, 1e7, 5.0],
}


def test_each_clients_rows_standardize_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, Column("risk", "number"), [1.0, 0, 0], **BY_CLIENT)
    monkeypatch.setattr(predictions, "ROWS_AT_A_TIME", 3)
    wards, age = np.array(WARDS["ward"]), np.array(WARDS["age"])
    expected = np.zeros(len(age))  # of c, whose ages are equal
    for ward in "ab":
        own = age[wards == ward]
        expected[wards == ward] = (own - own.mean()) / own.std()
    got = fp.predict(path, WARDS, model=linear((3,)), client="ward")
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    # the rows of others do not matter, nor which number a client has
    of_b = {
        name: [v for v, w in zip(WARDS[name], wards, strict=True) if w == "b"] for name in WARDS
    }
    alone = fp.predict(path, of_b | {"ward": [7] * 3}, model=linear((3,)), client="ward")
    np.testing.assert_array_equal(alone, got[wards == "b"])


def test_the_rows_of_the_training_are_read_as_the_training_read_them(tmp_path: Path) -> None:
    rows = WARDS | {"risk": [0.5, 1, 2, 3, 4, 5, 6]}
    federation = fp.Federation.from_table(
        *(rows,), client="ward", label="risk", standardize="client", kinds={"sex": SEX}
    )
    path, in_order = tmp_path / "model.safetensors", np.argsort(WARDS["ward"], kind="stable")
    fp.save_model(path, {"w": np.array([0, 0, 1], np.float32)}, columns=federation.columns)
    got = fp.predict(path, WARDS, model=linear((3,)), client="ward")
    np.testing.assert_array_equal(got[in_order], federation.train.x[:, 2])


def test_missing_values_do_not_count_for_a_clients_numbers(tmp_path: Path) -> None:
    columns = Columns(
        (replace(AGE, missing="column"),), Column("risk", "number"), standardize="client"
    )
    path = tmp_path / "model.safetensors"
    fp.save_model(path, {"w": np.array([1, 10], np.float32)}, columns=columns)
    age: list[float | None] = [20.0, None, 40.0, None]
    rows = {"ward": ["a", "a", "a", "b"], "age": age}
    got = fp.predict(path, rows, model=linear((2,)), client="ward")
    np.testing.assert_array_equal(got, [-1, 10, 1, 10])
    with pytest.raises(InputError, match="client 'a': one value of column 'age'; the client's own"):
        fp.predict(
            path, rows | {"age": [20.0, None, None, None]}, model=linear((2,)), client="ward"
        )


@pytest.mark.parametrize(
    ("rows", "client", "line"),
    [
        (WARDS, None, r"model\.safetensors: trained on .* each client's own .*; give client"),
        (WARDS, "hospital", "table: no column 'hospital'"),
        (WARDS | {"ward": [*"aabbaac"]}, "ward", "client 'c': one value of column 'age'"),
        (WARDS | {"ward": [*"aabbaa", None]}, "ward", "column 'ward', row 7: a missing value"),
        (WARDS | {"age": [1, 2, 3, None, 5, 6, 7]}, "ward", "column 'age', row 4: a missing value"),
    ],
)
def test_clients_that_cannot_be_told_apart_or_standardized(
    tmp_path: Path, rows: Any, client: Any, line: str
) -> None:
    path = saved(tmp_path, Column("ill", "boolean"), **BY_CLIENT)
    with pytest.raises(InputError, match=line):
        fp.predict(path, rows, model=linear(), client=client)


def softmax(outputs: Any) -> Any:
    """Each row's probabilities, in NumPy."""
    return np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("loss", [None, fp.losses.cross_entropy(smoothing=0.1)])
def test_probabilities_are_those_of_cross_entropy(tmp_path: Path, loss: Any) -> None:
    path = saved(tmp_path, Column("ill", "category", values=("yes", "no")))
    model = linear() if loss is None else replace(linear(), loss=loss)
    found = fp.predict(path, ROWS, model=model, probabilities=True)
    assert found.classes.tolist() == ["yes", "no"]
    np.testing.assert_allclose(found.values, softmax(FEATURES @ WEIGHT), rtol=1e-6)
    labels = fp.predict(path, ROWS, model=model)
    assert found.classes[found.values.argmax(axis=1)].tolist() == labels.tolist()
    none = fp.predict(path, {"sex": [], "age": []}, model=model, probabilities=True)
    assert none.values.shape == (0, 2)


def test_one_output_has_the_probability_of_the_second_class(tmp_path: Path) -> None:
    path = saved(tmp_path, Column("ill", "boolean"), [[2000.0], [0], [0]])
    model = replace(linear((3, 1)), loss=fp.losses.sigmoid_cross_entropy())
    found = fp.predict(path, ROWS | {"age": [50.01, 50, 0]}, model=model, probabilities=True)
    assert found.classes.tolist() == [False, True]
    second = 1 / (1 + np.exp(-1.0)), 0.5, 0.0  # the last of an output of -5,000
    np.testing.assert_allclose(found.values[:, 1], second, rtol=1e-4)
    np.testing.assert_allclose(found.values.sum(axis=1), 1)


def test_what_has_no_probabilities(tmp_path: Path) -> None:
    number = saved(tmp_path, Column("dose", "number"), WEIGHT[:, 0])
    line = "probabilities: column 'dose' is a number to predict; only classes have probabilities"
    with pytest.raises(InputError, match=line):
        fp.predict(number, ROWS, model=linear((3,)), probabilities=True)
    path = saved(tmp_path, Column("ill", "boolean"))

    def hinge(outputs: Any, y: Any) -> Any:
        return jnp.maximum(0, 1 - outputs[:, 0] * (2 * y - 1))

    for loss in (hinge, fp.losses.squared()):
        with pytest.raises(InputError, match="probabilities: the model's loss is neither"):
            fp.predict(path, ROWS, model=replace(linear(), loss=loss), probabilities=True)


def test_missing_values_are_read_as_those_of_the_training(tmp_path: Path) -> None:
    columns = Columns(
        (replace(AGE, missing=40), replace(SEX, missing="m"), Column("fit", "boolean")),
        Column("risk", "number"),
        standardize="given",
        **BY_MEAN,
    )
    path = tmp_path / "model.safetensors"
    fp.save_model(path, {"w": np.array([1, 10, 100, 0], np.float32)}, columns=columns)
    rows: dict[str, list[Any]] = {"age": [None, 90], "sex": ["f", None], "fit": [True, False]}
    got = fp.predict(path, rows, model=linear((4,)))
    np.testing.assert_array_equal(got, [-0.5 + 100, 2 + 10])
    whole = {"age": [None, None], "sex": [None, None], "fit": [True, True]}
    np.testing.assert_array_equal(fp.predict(path, whole, model=linear((4,))), [9.5, 9.5])
    line = "column 'fit', row 2: a missing value; .*that is trained on"
    with pytest.raises(InputError, match=line):
        fp.predict(path, rows | {"fit": [True, None]}, model=linear((4,)))


def test_models_that_cannot_predict(tmp_path: Path) -> None:
    path = tmp_path / "plain.safetensors"
    fp.save_model(path, {"w": WEIGHT})
    with pytest.raises(InputError, match=r"plain\.safetensors: this model was not trained on a"):
        fp.predict(path, ROWS, model=linear())
    three = saved(tmp_path, Column("ill", "category", values=("a", "b", "c")))
    with pytest.raises(InputError, match="outputs of shape \\(2,\\) for 3 values of column 'ill'"):
        fp.predict(three, ROWS, model=linear())
    with pytest.raises(InputError, match="not a run directory; give model"):
        fp.predict(saved(tmp_path, Column("ill", "boolean")), ROWS)


def test_a_file_with_columns_is_read_as_one_without(tmp_path: Path) -> None:
    path = saved(tmp_path, Column("ill", "boolean"))
    assert fp.load_model(path)["w"].tolist() == WEIGHT.tolist()
    other = replace(Column("ill", "boolean"), unit="x")
    fp.save_model(path, {"w": WEIGHT}, columns=Columns((AGE,), other))
    leaf = jax.tree.leaves(fp.load_model(path, model=linear()))
    assert leaf[0].shape == WEIGHT.shape


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its rows' labels and a finished run directory of it."""
    folder = tmp_path_factory.mktemp("predictions")
    rows = {"ward": ["a", "b"] * 20, "dose": [*range(40)], "sex": ["m"] * 20 + ["f"] * 20}
    ill = ["yes" if dose > 19 else "no" for dose in rows["dose"]]
    lines = zip(*rows.values(), ill, strict=True)
    csv = folder / "patients.csv"
    csv.write_text("\n".join(",".join(map(str, line)) for line in [[*rows, "ill"], *lines]))
    table = {"table": str(csv), "client": "ward", "label": "ill"}
    cohort, solver = {"clients_per_round": 2}, {"learning_rate": 0.5, "batch_size": 10, "epochs": 2}
    experiment: dict[str, Any] = {"rounds": 3, "data": table, "cohort": cohort, "solver": solver}
    file = folder / "a.toml"
    file.write_text(tomli_w.dumps(experiment | {"method": [{"name": "fedavg"}]}))
    fp.run(file, out=folder / "out", progress=False)
    return folder


ILL = ["no"] * 20 + ["yes"] * 20
"""The labels of the trained table, which the model predicts."""


@pytest.mark.slow
def test_a_run_directory_predicts_by_its_experiment(trained: Path, tmp_path: Path) -> None:
    csv, out = trained / "patients.csv", tmp_path / "out"
    shutil.copytree(trained / "out", out)
    assert fp.predict(out, csv).tolist() == ILL
    assert fp.predict(out, {"sex": ["f", "m"], "dose": [39, 0]}).tolist() == ["yes", "no"]
    # what a checkpoint has, and a run that goes on from it
    columns = load_columns(model_path(out, None, None))
    assert status("run", "--resume", str(out), "--set", "rounds=4") == 0
    assert load_columns(model_path(out, None, None)) == columns


def test_the_command_writes_a_line_for_each_row(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, csv, out = trained / "out", trained / "patients.csv", tmp_path / "new.csv"
    assert status("predict", run, csv) == 0
    printed, said = capsys.readouterr()
    assert (printed.splitlines(), said) == (["ill", *ILL], "")
    assert status("predict", run, csv, "--label", "fedavg", "--seed", 0, "--out", out) == 0
    assert out.read_text() == printed
    assert capsys.readouterr().out == f"{out}: 40 rows\n"
    assert status("predict", run, csv, "--probabilities") == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "ill,ill=no,ill=yes"
    found = fp.predict(run, csv, probabilities=True)
    expected = zip(ILL, found.values.astype(np.float32).astype(str), strict=True)
    assert lines == [",".join([label, *row]) for label, row in expected]


def test_what_the_command_refuses(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, csv = trained / "out", trained / "patients.csv"
    cases: dict[str, list[Any]] = {
        f"{tmp_path / 'no'}: no such run directory": [tmp_path / "no", csv],
        f"{csv}: no such run directory": [csv, csv],
        f"{trained}: no experiment.toml; not a run directory": [trained, csv],
        f"table: no file {tmp_path / 'no.csv'}": [run, tmp_path / "no.csv"],
        f"{run}: no run 'fedprox'; it has 'fedavg'": [run, csv, "--label", "fedprox"],
        f"{run}: 'fedavg' has no seed 3; it has 0": [run, csv, "--seed", 3],
        f"--out: {csv} exists already; name a new file": [run, csv, "--out", csv],
    }
    for line, arguments in cases.items():
        assert status("predict", *arguments) == 2
        printed, said = capsys.readouterr()
        assert printed == ""
        assert said.startswith(f"fedprox: {line}"), said
        assert said.count("\n") == 1


def test_truth_values_and_numbers_are_written_as_tables_have_them() -> None:
    from fedprox.commands.predict import as_csv

    classes = Column("ill", "boolean")
    of_classes = predictions.Outputs(classes, np.array([[0.0, 2.0], [1, 0]], np.float32), linear())
    assert as_csv(of_classes, probabilities=False) == "ill\ntrue\nfalse\n"
    assert as_csv(of_classes, probabilities=True).startswith("ill,ill=false,ill=true\ntrue,0.119")
    dose = Column("dose, in mg", "number")
    numbers = predictions.Outputs(dose, np.array([0.1, 2.0], np.float32), linear())
    assert as_csv(numbers, probabilities=False) == '"dose, in mg"\n0.1\n2.0\n'
