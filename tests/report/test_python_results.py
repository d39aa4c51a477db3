"""What a run directory is, made from Python: `fedprox.save`, `run` and `evaluate`."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.report.archive import read_archive
from tests.test_cli import LOSSES, status

FILES = ("experiment.toml", "metrics.jsonl", "clients.json", "figure.svg")


def simulated(**changes: Any) -> tuple[fp.Federation, fp.Model, list[fp.Run]]:
    federation = fp.datasets.synthetic(clients=6)
    model = fp.models.logistic(federation)
    usual: dict[str, Any] = {
        "solver": fp.Solver(0.01, 10, epochs=2),
        "cohort": fp.Cohort(3),
        "systems": fp.Systems(stragglers=0.5),
        "rounds": 4,
        "evaluation": fp.Evaluation(every=2, gradients=False),
        "seed": [0, 1],
    }
    methods = [fp.fedavg(), fp.fedprox(mu=[0.0, 1.0])]
    return federation, model, fp.simulate(federation, model, methods, **usual | changes)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run directory made by `fedprox.save`, and what it was made of."""
    made = federation, model, runs = simulated()
    folder = tmp_path_factory.mktemp("saved") / "run"
    fp.save(runs, folder, federation=federation, model=model)
    return folder, made


@pytest.fixture(scope="module")
def commanded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of LOSSES and of `out`, which the command made of it."""
    folder = tmp_path_factory.mktemp("commanded")
    (folder / "small.toml").write_text(LOSSES)
    assert status("run", folder / "small.toml", "--out", folder / "out") == 0
    return folder


@pytest.mark.slow
def test_save_leaves_what_the_command_leaves(saved: Any, commanded: Path) -> None:
    folder, _ = saved
    out = commanded / "out"
    names = {path.name for path in out.iterdir()} - {"checkpoint"}  # from which a run is extended
    assert {path.name for path in folder.iterdir()} == names
    same = [f for f in FILES if f != "experiment.toml"]
    same += [path.name for path in out.glob("model-*")]
    for name in same:
        assert (folder / name).read_bytes() == (out / name).read_bytes(), name


@pytest.mark.slow
def test_a_saved_folder_is_read_as_a_run_directory(saved: Any, tmp_path: Path) -> None:
    folder, (_, _, runs) = saved
    archive = read_archive(folder)
    assert archive.finished
    assert [(r.label, r.seed) for r in archive.runs] == [(r.label, r.seed) for r in runs]
    assert archive.experiment["data"]["clients"] == 6
    assert archive.experiment["model"] == {"name": "Logistic", "parameters": 610}
    assert archive.experiment["method"][1]["mu"] == [0.0, 1.0]
    found = fp.load_model(folder, "fedprox mu=1", 1)
    assert np.array_equal(found["dense"]["weight"], runs[-1].params["dense"]["weight"])
    assert status("report", folder, "--out", tmp_path / "again.html") == 0


def test_what_was_made_in_python_cannot_be_run_by_the_command(saved: Any, capsys: Any) -> None:
    folder, _ = saved
    for arguments in ((folder / "experiment.toml",), ("--resume", folder)):
        assert status("run", *arguments) == 2
        error = capsys.readouterr().err
        assert "describes a comparison made in Python" in error
        assert error.count("\n") == 1


def half(_: int, clients: Any) -> Any:
    return np.full(len(clients), 0.5)


@pytest.mark.slow
def test_every_setting_of_simulate_is_described(tmp_path: Path) -> None:
    federation = fp.datasets.synthetic(clients=3)
    (run,) = fp.simulate(
        federation,
        fp.Model(lambda _: jnp.zeros((60, 10)), lambda w, x: x @ w),
        fp.feddyn(alpha=0.1).with_solver(epochs=2),
        solver=fp.Solver(0.5, "all", steps=1, gamma=half),
        cohort=fp.Cohort(2),
        systems=fp.Systems(deadline=100.0),
        population=fp.Population(np.ones(3), available=fp.DayNight(6.0)),  # type: ignore[arg-type]
        faults=fp.Faults("drop", norm=np.inf),
        target=fp.Target("train_loss", 0.5),
        rounds=1,
        seed=3,
    )
    fp.save([run], tmp_path / "run")
    table = tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())
    table.pop("versions")
    assert table == run.experiment
    assert table["seed"] == [3]
    assert table["target_loss"] == 0.5
    assert table["population"]["step_seconds"] == [1.0, 1.0, 1.0]
    assert table["population"]["available"]["hours"] == 6.0
    assert table["faults"] == {"policy": "drop", "norm": np.inf}
    assert table["solver"]["gamma"] == "half"
    assert table["method"] == [{"name": "feddyn", "alpha": 0.1, "solver": {"epochs": 2}}]
    assert not (tmp_path / "run" / "clients.json").exists()


def test_runs_of_which_no_run_directory_can_be_made_are_one_line(
    saved: Any, tmp_path: Path
) -> None:
    folder, (federation, model, runs) = saved
    _, _, others = simulated(rounds=2)
    out = tmp_path / "out"
    with pytest.raises(fp.InputError, match=r"^runs = \[\]; it must be a list of fedprox.Run$"):
        fp.save([], out)
    with pytest.raises(fp.InputError, match=r"of several calls of fedprox.simulate; save each"):
        fp.save([*runs, *others], out)
    with pytest.raises(fp.InputError, match=r"of several calls"):
        fp.save([runs[0], runs[0]], out)
    with pytest.raises(fp.InputError, match=r"made by neither fedprox.simulate nor fedprox.run"):
        fp.save(read_archive(folder).runs, out)
    with pytest.raises(fp.InputError, match=r"federation and model: one of them is missing"):
        fp.save(runs, out, federation=federation)
    other = fp.Model(lambda _: jnp.zeros((60, 10)), lambda w, x: x @ w)
    with pytest.raises(fp.InputError, match=r"^model: not that of 'fedavg': parameters have"):
        fp.save(runs, out, federation=federation, model=other)
    assert not out.exists()
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(fp.InputError, match=r"results; name another folder, or remove it\n"):
        fp.save(others, folder)
    assert (folder / "metrics.jsonl").read_bytes() == before
    fp.save(runs, folder, federation=federation, model=model)  # the same again
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_run_is_the_command(commanded: Path, tmp_path: Path) -> None:
    runs = fp.run(commanded / "small.toml", out=tmp_path / "run", progress=False)
    out = commanded / "out"
    assert len(runs) == 6
    for name in (*FILES, *(path.name for path in out.glob("model-*"))):
        assert (tmp_path / "run" / name).read_bytes() == (out / name).read_bytes(), name
    names = {path.name for path in out.iterdir()}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names


def test_runs_of_a_file_are_saved_with_an_experiment_that_runs(
    commanded: Path, tmp_path: Path
) -> None:
    changes = ["seed=0", "rounds=2", 'method=[{name="fedprox", mu=[0.0, 1.0]}]']
    runs = fp.run(commanded / "small.toml", changes, progress=False)
    assert [run.final.round for run in runs] == [2, 2]
    fp.save(runs, tmp_path / "run")
    again = fp.run(tmp_path / "run" / "experiment.toml", progress=False)
    assert str(fp.records(again)) == str(fp.records(runs))
    with pytest.raises(fp.InputError, match=r"nowhere.toml: no such file"):
        fp.run("nowhere.toml")


def test_evaluate_finds_what_records_say(saved: Any) -> None:
    _, (federation, model, runs) = saved
    for run in runs:
        found = fp.evaluate(model, run.params, federation)
        assert found.train_loss == pytest.approx(run.final.train_loss, rel=1e-5)
        assert found.test_accuracy == pytest.approx(run.final.test_accuracy)


def test_evaluate_is_a_plain_loop_over_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedprox.engine.compiled.evaluation.ROWS", 7)  # slices that overlap
    random = np.random.default_rng(0)
    sizes = [3, 11, 1, 20]
    train: list[Any] = [(random.normal(size=(n, 2)), random.integers(0, 3, n)) for n in sizes]
    test = [train[1], ([], []), train[0], train[3]]
    federation = fp.Federation.from_arrays(train, test, classes=3, names=["a", "b", "c", "d"])
    model = fp.Model(lambda key: jax.random.normal(key, (2, 3)), lambda w, x: x @ w)
    w = model.init(jax.random.key(1))
    found = fp.evaluate(model, w, federation)
    losses, right = [], []
    for (x, y), (test_x, test_y) in zip(train, test, strict=True):
        z = x @ np.asarray(w)
        losses.append(np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]))
        guesses = np.argmax(np.reshape(test_x, (-1, 2)) @ np.asarray(w), axis=1)
        right.append((guesses == np.array(test_y)).sum())
    p, tests = np.array(sizes) / sum(sizes), np.array([11, 0, 3, 20])
    np.testing.assert_allclose(found.by_client["train_loss"], losses, rtol=1e-5)
    assert found.train_loss == pytest.approx(p @ losses, rel=1e-5)
    assert found.test_accuracy == pytest.approx(sum(right) / tests.sum())
    assert np.isnan(found.by_client["test_accuracy"][1])
    assert found.by_client["test_accuracy"][0] == pytest.approx(right[0] / 11)
    assert found.clients == ("a", "b", "c", "d")
    assert found.test_rows.tolist() == tests.tolist()


def test_evaluate_refuses_what_does_not_fit() -> None:
    federation = fp.datasets.synthetic(clients=2)
    model = fp.models.logistic(federation)
    with pytest.raises(fp.InputError, match=r"^params: parameters have 'a' where"):
        fp.evaluate(model, {"a": jnp.zeros(1)}, federation)
    plain = fp.Model(lambda _: jnp.zeros((2, 3)), lambda w, x: x @ w)
    narrow = fp.Federation.from_arrays([([[1.0]], [0])])
    with pytest.raises(fp.InputError, match=r"^model\.apply\(params, x\) raised"):
        fp.evaluate(plain, jnp.zeros((2, 3)), narrow)


@pytest.mark.slow
def test_clients_json_of_a_sample_of_clients(tmp_path: Path) -> None:
    federation, model, runs = simulated(
        evaluation=fp.Evaluation(clients=2, gradients=False), rounds=2
    )
    fp.save(runs, tmp_path / "run", federation=federation, model=model)
    first, *_ = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert len(first["clients"]) == len(first["test_accuracy"]) == 2


@pytest.mark.parametrize("show", [fp.table, fp.figure])
def test_no_runs_are_an_error(show: Any) -> None:
    with pytest.raises(fp.InputError, match="runs: none given"):
        show([])


def test_a_measure_that_a_record_lacks_is_answered_with_those_it_has(saved: Any) -> None:
    _, (_, _, runs) = saved
    with pytest.raises(fp.InputError, match=r"'accuracy'; did you mean 'test_accuracy'\? allowed"):
        runs[0].final.value("accuracy")
    with pytest.raises(fp.InputError, match="record: no measure 'epsilon'; did"):
        runs[0].final.value("epsilon")
