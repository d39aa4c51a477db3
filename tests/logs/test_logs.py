"""Loggers: the numbers of `metrics.jsonl`, read back from each tool."""

import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox import InputError
from fedprox.errors import installing
from fedprox.logs import LOGGERS
from fedprox.logs.tools import numbers_of
from fedprox.report.directory import LOGS
from tests import commands
from tests.logs.readers import LIBRARIES, READERS, Logged
from tests.quadratics import quadratic_model, ragged_quadratics
from tests.test_cli import LOSSES, SMALL, status

NAMES = tuple(LOGGERS)
OWN_VARIABLES = [
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"),
    *("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "WANDB_RUN_GROUP"),
]


@pytest.fixture(autouse=True)
def _no_own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the user's settings of a tool nor a connection."""
    for name in OWN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=NAMES)
def tool(request: pytest.FixtureRequest) -> str:
    """The name of a tool whose library is installed."""
    name = str(request.param)
    pytest.importorskip(LIBRARIES[name], reason=f"needs the extra {name}")
    return name


def lines_of(folder: Path) -> dict[tuple[str, int], dict[int, dict[str, Any]]]:
    """The lines of `metrics.jsonl` by label and seed, and by round."""
    lines: Any = defaultdict(dict)
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        lines[line["label"], line["seed"]][line["round"]] = line
    return dict(lines)


def of(tool: str, logged: dict[str, Logged], label: str, seed: int) -> Logged:
    name = f"{label}, seed {seed}"
    return logged[name.replace(" ", "-").replace(",-seed", "") if tool == "tensorboard" else name]


def require_numbers(tool: str, folder: Path) -> dict[str, Logged]:
    """The tool has the finite numbers of `metrics.jsonl`, all of them and no others."""
    logged, lines = READERS[tool](folder), lines_of(folder)
    assert len(logged) == len(lines)
    for (label, seed), by_round in lines.items():
        found = of(tool, logged, label, seed)
        assert found.status == "finished"
        assert found.numbers.keys() == by_round.keys()
        for step, line in by_round.items():
            numbers = {k: v for k, v in line.items() if isinstance(v, int | float)}
            for constant in ("seed", "round"):
                del numbers[constant]
            if tool == "tensorboard":  # which has single precision
                numbers = {key: float(np.float32(value)) for key, value in numbers.items()}
            assert found.numbers[step] == numbers
    return logged


@pytest.mark.slow
@pytest.mark.parametrize("tool", NAMES, indirect=True)
def test_the_command_logs_the_numbers_of_every_run(tool: str, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(LOSSES)
    folder = tmp_path / "out"
    assert status("run", tmp_path / "small.toml", "--log", tool, "--out", folder) == 0
    logged = require_numbers(tool, folder)
    assert len(logged) == 6
    known = of(tool, logged, "fedprox mu=1", 1).parameters
    settings = {"method": "fedprox", "mu": 1.0, "learning_rate": 0.01, "seed": 1}
    if tool == "tensorboard":
        assert 'name = "synthetic"' in known.pop("text")
        assert known == settings
    else:
        settings |= {"data.name": "synthetic", "solver.epochs": 2, "method.1.mu": [0.0, 1.0]}
        settings["rounds"] = 4
        kind: Any = str if tool == "mlflow" else lambda value: value
        assert {key: known[key] for key in settings} == {k: kind(v) for k, v in settings.items()}
    # an extended run neither repeats nor loses a record
    more = ("--set", "rounds=8", "--log", tool)
    assert status("run", "--resume", folder, *more) == 0
    again = require_numbers(tool, folder)
    assert set(of(tool, again, "fedavg", 0).numbers) == {0, 2, 4, 6, 8}


@pytest.mark.slow
def test_forcing_another_experiment_removes_what_was_logged(tool: str, tmp_path: Path) -> None:
    file, folder = tmp_path / "small.toml", tmp_path / "out"
    file.write_text(LOSSES.replace("seed = [0, 1]", "seed = 0"))
    # in a process of its own, since MLflow keeps a database open
    first = ["run", str(file), "--log", tool, "--out", str(folder)]
    assert commands.status(commands.start(tmp_path / "first", first)) == 0
    one = ("--set", 'method=[{name = "centralised"}]', "--out", folder, "--force")
    assert status("run", file, *one, "--log", tool) == 0
    assert len(require_numbers(tool, folder)) == 1
    assert status("run", file, "--out", folder, "--force") == 0
    assert not (folder / tool).exists()


def simulated(*callbacks: fp.Callback, **changes: Any) -> list[fp.Run]:
    options: dict[str, Any] = {
        "solver": fp.Solver(0.1, 3, epochs=1),
        "cohort": fp.Cohort(2),
        "rounds": 4,
        "evaluation": fp.Evaluation(gradients=False),
        "seed": [0, 1],
        "progress": False,
    }
    federation, model = ragged_quadratics(0, [3, 5, 8]), quadratic_model(np.zeros(3))
    method = fp.fedprox(mu=[0.1, 1.0])
    return fp.simulate(federation, model, method, callbacks=callbacks, **options | changes)


@pytest.mark.slow
@pytest.mark.parametrize("tool", NAMES, indirect=True)
def test_a_run_that_failed_and_is_resumed_is_whole(tool: str, tmp_path: Path) -> None:
    def fail(record: fp.Record) -> None:
        if (record.seed, record.round) == (1, 3):
            raise KeyError("late")

    folder, saved = tmp_path / "out", tmp_path / "checkpoint"
    logger = getattr(fp.logs, tool)(folder)
    with pytest.raises(InputError, match="KeyError: 'late'"):
        simulated(logger, fp.Callback(on_record=fail), checkpoints=fp.Checkpoints(saved, 2))
    before = READERS[tool](folder)
    assert of(tool, before, "fedprox mu=0.1", 0).status == "finished"
    late = of(tool, before, "fedprox mu=0.1", 1)
    assert set(late.numbers) == {0, 1, 2, 3}  # the record reached the logger first
    assert late.status == ("running" if tool == "tensorboard" else "failed")
    logger = getattr(fp.logs, tool)(folder, resume=True)
    runs = simulated(logger, checkpoints=fp.Checkpoints(saved, resume=True))
    fp.save(runs, folder)  # beside what was logged
    require_numbers(tool, folder)


@pytest.mark.slow
def test_only_the_same_experiment_is_resumed(tmp_path: Path) -> None:
    library = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    folder = tmp_path / "out"

    def count() -> int:
        client = library.MlflowClient(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("out").experiment_id
        return len(client.search_runs([experiment]))

    simulated(fp.logs.mlflow(folder), seed=0)
    assert count() == 2
    simulated(fp.logs.mlflow(folder, resume=True), seed=0, rounds=5)
    assert count() == 2
    simulated(fp.logs.mlflow(folder, resume=True), seed=0, solver=fp.Solver(0.05, 3, epochs=1))
    assert count() == 4
    simulated(fp.logs.mlflow(folder), seed=0)  # begun anew
    assert count() == 6


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_library_is_one_line_before_the_data_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    assert status("run", file, "--log", name, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedprox: {name}: import of {LIBRARIES[name]} halted")
    assert error.endswith(f"{installing(name)}\nfedprox: see docs/howto/install.md#extras\n")
    assert error.count("\n") == 2
    assert not (tmp_path / "out").exists()


def test_an_unknown_logger_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    assert status("run", tmp_path / "small.toml", "--log", "comet") == 2
    line = "fedprox: --log = 'comet'; it must be one of tensorboard, mlflow, wandb\n"
    assert capsys.readouterr().err == line


def test_an_error_of_a_tool_is_one_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    library = pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    monkeypatch.setattr(library, "SummaryWriter", lambda **_: 1 / 0)
    (tmp_path / "small.toml").write_text(LOSSES)
    options = ("--log", "tensorboard", "--out", tmp_path / "out")
    assert status("run", tmp_path / "small.toml", *options) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedprox: tensorboard raised ZeroDivisionError")
    assert error.count("\n") == 1


def test_the_run_directory_knows_the_folders_of_all_loggers() -> None:
    assert LOGS == NAMES


def test_a_folder_that_no_logger_wrote_is_kept(tmp_path: Path) -> None:
    file, folder = tmp_path / "small.toml", tmp_path / "out"
    file.write_text(LOSSES.replace("seed = [0, 1]", "seed = 0"))
    (folder / "wandb").mkdir(parents=True)
    assert status("run", file, "--out", folder) == 2
    (folder / "wandb").rmdir()
    assert status("run", file, "--out", folder) == 0
    (folder / "wandb").mkdir()
    assert status("run", file, "--out", folder, "--set", "rounds=5", "--force") == 0
    assert (folder / "wandb").is_dir()


def test_numbers_are_the_finite_ones() -> None:
    known: dict[str, Any] = {
        "label": "a",
        "method": "a",
        "hparams": {"mu": 0.5},
        "learning_rate": 0.1,
        "seed": 3,
    }
    (run,) = simulated(seed=0, rounds=1)[:1]
    measures = {**run.final.measures, "train_loss": np.inf, "faulty_clients": ["b"], "faulty": 1}
    record = replace(run.final, **known, measures=measures)
    numbers = numbers_of(record)
    assert numbers["mu"] == 0.5
    assert numbers["faulty"] == 1
    unlisted = {"train_loss", "faulty_clients", "label", "seed", "round", "unmeasured"}
    assert not unlisted & numbers.keys()
