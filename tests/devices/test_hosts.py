"""Several processes on this machine that share a run, as several hosts would."""

import json
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from jax._src.clusters import SlurmCluster

from fedprox import InputError
from fedprox.devices.processes import find_ownership, join_processes, slurm_coordinator
from tests.commands import start, status
from tests.loop.test_killed import die

EXPERIMENT = """
rounds = 40
evaluation.every = 4
data = {name = "synthetic", clients = 12}
cohort = {clients_per_round = 5}
solver = {learning_rate = 0.01, batch_size = 10, epochs = 1}
method = [{name = "scaffold"}]
"""


def together(
    folder: Path, count: int, arguments: list[str], before: dict[int, tuple[Any, ...]] | None = None
) -> list[Any]:
    """The command in some processes that meet; some have something called in them first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(count), "--devices", "1"]
    return [
        start(
            folder / f"output-{i}",
            [*arguments, *meet, "--process", str(i)],
            *(before or {}).get(i, ()),
        )
        for i in range(count)
    ]


def interrupt(line: int) -> None:
    """Have this process asked to end after so many records."""
    from fedprox.report.directory import RunDirectory

    record, left = RunDirectory.record, iter(range(line, -(10**6), -1))

    def recorded(self: RunDirectory, argument: Any) -> None:
        record(self, argument)
        if next(left) == 0:
            signal.raise_signal(signal.SIGTERM)

    RunDirectory.record = recorded  # type: ignore[assignment, method-assign]


def note_listeners(file: Path) -> None:
    """Have this process write down at which addresses the coordinator's port is open in a run."""
    from fedprox.report.directory import RunDirectory

    record = RunDirectory.record
    port = int(sys.argv[sys.argv.index("--coordinator") + 1].rpartition(":")[2])

    def recorded(self: RunDirectory, argument: Any) -> None:
        record(self, argument)
        tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
        pattern = rf"\d: (\w+):{port:04X} 0+:0000 0A"
        file.write_text("\n".join(re.findall(pattern, "".join(tables))))

    RunDirectory.record = recorded  # type: ignore[assignment, method-assign]


def found(directory: Path) -> tuple[list[float], Any]:
    """The numbers of metrics.jsonl, and the model."""
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    keys = ("train_loss", "test_accuracy", "gradient_variance", "gamma_mean", "total_steps")
    (model,) = directory.glob("*.safetensors")
    return [line[key] or 0.0 for line in lines for key in keys], safetensors.numpy.load_file(model)


@pytest.mark.slow
def test_two_and_three_processes_find_what_one_finds_and_outlive_a_death(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    command = ["run", str(tmp_path / "experiment.toml"), "--out"]
    one, two, three, killed = (tmp_path / name for name in ("one", "two", "three", "killed"))
    assert status(start(tmp_path / "output", [*command, str(one), "--devices", "1"])) == 0
    often = ["--checkpoint-every", "8"]
    for count, directory in ((2, two), (3, three)):
        processes = together(tmp_path, count, [*command, str(directory), *often])
        assert [status(process) for process in processes] == [0] * count
        numbers, model = found(directory)
        alone, alone_model = found(one)
        assert numbers == pytest.approx(alone, rel=1e-4, abs=1e-5)
        for name, array in alone_model.items():
            np.testing.assert_allclose(model[name], array, rtol=1e-4, atol=1e-5)

    # the second dies while the second checkpoint is being made
    death = {1: (die, "checkpoint", 1, 0.0)}
    first, second = together(tmp_path, 2, [*command, str(killed), *often], death)
    assert status(first) == 1
    assert status(second) == -signal.SIGKILL
    lines = (tmp_path / "output-0").read_text().splitlines()
    said = [line for line in lines if line.startswith("fedprox: ")]
    assert len(said) == 1
    assert "another process has ended" in said[0]
    assert "--resume" in said[0]
    assert not any("Traceback" in line for line in lines)

    # a signal to one of them ends the round on both
    again = ["run", "--resume", str(killed)]
    processes = together(tmp_path, 2, again, {0: (interrupt, 6)})
    assert [status(process) for process in processes] == [128 + signal.SIGTERM] * 2
    assert "--processes 2" in (tmp_path / "output-0").read_text().splitlines()[-1]
    assert status(start(tmp_path / "output", again)) == 2
    assert "processes = 2, here 1" in (tmp_path / "output").read_text()

    # what the second one's clients kept last is damaged, so both go on from the step before
    kept = sorted(killed.glob("checkpoint/*.clients-1"), key=lambda path: int(path.stem[2:]))
    assert len(kept) == 2
    kept[-1].write_bytes(kept[-1].read_bytes()[:-3])
    processes = together(tmp_path, 2, again)
    assert [status(process) for process in processes] == [0, 0]
    for output in ("output-0", "output-1"):
        assert "the one before is used" in (tmp_path / output).read_text()
    for path in two.iterdir():
        if path.suffix in (".jsonl", ".safetensors"):
            assert path.read_bytes() == (killed / path.name).read_bytes(), path.name


MEASURED = """
evaluation.clients = 5
evaluation.rows = 2
evaluation.client_records = true
evaluation.by_client = true
"""


@pytest.mark.slow
def test_two_processes_share_the_clients_that_evaluations_sample(tmp_path: Path) -> None:
    """Each has fewer rows of them than a slice of all would have."""
    (tmp_path / "experiment.toml").write_text(MEASURED + EXPERIMENT)
    command = ["run", str(tmp_path / "experiment.toml"), "--set", "rounds=8", "--out"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert status(start(tmp_path / "output", [*command, str(one), "--devices", "1"])) == 0
    note = {0: (note_listeners, tmp_path / "listeners")}
    processes = together(tmp_path, 2, [*command, str(two)], note)
    assert [status(process) for process in processes] == [0, 0]
    (address,) = (tmp_path / "listeners").read_text().splitlines()
    assert address in ("0100007F", "0000000000000000FFFF00000100007F")  # 127.0.0.1 alone
    alone, shared = (
        [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        for directory in (one, two)
    )
    for expected, line in zip(alone, shared, strict=True):
        for key in ("train_loss_se", "test_accuracy_se"):
            assert line[key] == pytest.approx(expected[key], rel=1e-4)
    assert alone[-1]["train_loss_se"] > 0
    assert found(two)[0] == pytest.approx(found(one)[0], rel=1e-4, abs=1e-5)
    alone, shared = (
        [json.loads(line) for line in (directory / "clients.jsonl").read_text().splitlines()]
        for directory in (one, two)
    )
    assert len(alone) == len(shared) == 3
    for expected, line in zip(alone, shared, strict=True):
        assert line.keys() == expected.keys()
        for key, value in expected.items():
            assert line[key] == (pytest.approx(value, rel=1e-4) if key == "train_loss" else value)


def test_homes_are_blocks_with_a_fair_share_of_the_rows() -> None:
    sizes = np.random.default_rng(0).integers(1, 50, size=200)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    ownership = find_ownership(offsets, processes=7)
    rows = np.diff(ownership.first_rows(offsets))
    assert rows.sum() == sizes.sum()
    assert np.abs(rows - sizes.sum() / 7).max() < 2 * 50
    clients = np.arange(200)
    assert (np.diff(ownership.of(clients)) >= 0).all()
    assert (np.bincount(ownership.of(clients), minlength=7) == np.diff(ownership.bounds)).all()


@pytest.mark.parametrize(
    ("given", "variables", "message"),
    [
        (("here",), {}, "--processes: not given"),
        (
            ("here", 2),
            {},
            "--process: not given, and neither SLURM_PROCID nor JOB_COMPLETION_INDEX",
        ),
        (
            ("here", 2),
            {"JOB_COMPLETION_INDEX": "2"},
            "--process 2: it must be below --processes, 2",
        ),
        (("here",), {"SLURM_NTASKS": "two"}, "SLURM_NTASKS = 'two'"),
        (("here", 2, 0), {}, "--coordinator here: it must be HOST:PORT or slurm"),
        (("here:99999", 2, 0), {}, "HOST:PORT"),
        (("slurm", 2, 0), {}, "SLURM_JOB_ID is not set"),
        (("slurm", 2, 0), {"SLURM_JOB_ID": "1"}, "SLURM_STEP_NODELIST is not set"),
        (("here:1234", 0, 0), {}, "--processes = 0"),
        (
            ("here:1234", 2, 0),
            {"JAX_COORDINATOR_BIND_ADDRESS": "here"},
            "JAX_COORDINATOR_BIND_ADDRESS = 'here'; it must be HOST:PORT",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    given: Any, variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        *("SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST"),
        *("JOB_COMPLETION_INDEX", "JAX_COORDINATOR_BIND_ADDRESS"),
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        join_processes(*given)


@pytest.mark.parametrize("nodes", ["node7", "node7,other", "node[007-015],x", "gpu[1,3]-b"])
def test_under_slurm_the_address_is_the_one_that_jax_would_choose(
    nodes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "123456")
    monkeypatch.setenv("SLURM_STEP_NODELIST", nodes)
    suffix = "-b" if nodes.endswith("-b") else ""  # which JAX leaves out
    host, port = SlurmCluster.get_coordinator_address(None, None).split(":")
    assert slurm_coordinator() == f"{host}{suffix}:{port}"
