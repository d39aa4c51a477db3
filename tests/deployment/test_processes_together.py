"""Deployments of real processes over Flower: a trial, and nodes that are killed."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest
import safetensors.numpy
import tomli_w

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from fedprox.model import dotted
from tests.deployment.federations import apart, simulated, table_of
from tests.deployment.machines import finish, interrupt, left_over, machines
from tests.deployment.test_base import LORA, SLOW, table_with

SCAFFOLD: dict[str, Any] = table_of(
    {"name": "scaffold"},
    deployment={"nodes": 3, "patience": 240.0},
    evaluation={"gradients": False},
)


def nodes_of(table: dict[str, Any], parts: int = 3) -> list[dict[str, Any]]:
    """The files of nodes that hold the clients of an experiment."""
    keys = ("data", "client_rows", "validation_share")
    of_data = {key: table[key] for key in keys if key in table}
    return [{**of_data, "deal": {"part": i, "parts": parts}} for i in range(parts)]


def written(folder: Path, table: dict[str, Any]) -> str:
    """The file of an experiment."""
    file = folder / "experiment.toml"
    file.write_text(tomli_w.dumps(table))
    return str(file)


def model_in(directory: Path) -> dict[str, Any]:
    """The arrays of the only model of a run directory."""
    (file,) = directory.glob("model-*.safetensors")
    return dict(sorted(safetensors.numpy.load(file.read_bytes()).items()))


@pytest.mark.slow
def test_a_node_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    """It reads its clients' states and the base of its adapters from its disk again."""
    base = tmp_path / "base.safetensors"
    table = {**SCAFFOLD, "rounds": 5, "initial": str(base)}
    table |= {"model": table_with(base, **LORA)["model"], "solver": {**table["solver"], **SLOW}}
    policy = {"policy": {"base": str(base)}}
    with machines(tmp_path, [node | policy for node in nodes_of(table)]) as federation:
        operator = federation.operate(written(tmp_path, table), "--out", str(tmp_path / "run"))
        federation.wait_for("round 2:")
        federation.kill(1)
        federation.start(1)
        assert finish(operator) == 0, federation.said
    (theirs,) = simulated(table)
    leaves = jax.tree_util.tree_leaves_with_path(theirs.params)
    named = dict(sorted((dotted(path), leaf) for path, leaf in leaves))
    assert apart(named, model_in(tmp_path / "run")) < 1e-5
    (summary,) = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 5
    assert (tmp_path / "run" / "report.html").is_file()
    assert left_over(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("ends_by", ["itself", "interrupt", "kill"])
def test_a_trial_leaves_no_process(ends_by: str, tmp_path: Path) -> None:
    table = {**SCAFFOLD, "rounds": 2 if ends_by == "itself" else 1000}
    command = [sys.executable, "-m", "fedprox", "deploy", written(tmp_path, table)]
    nodes = "2" if ends_by == "interrupt" else "1"
    command += ["--local", nodes, "--out", str(tmp_path / "run")]
    with (tmp_path / "log").open("wb") as log:
        operator = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            if ends_by != "itself":
                deadline = time.monotonic() + 120
                while b"round 2:" not in (tmp_path / "log").read_bytes():
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                interrupt(operator) if ends_by == "interrupt" else operator.kill()
            status = operator.wait(180)
        finally:
            operator.kill()
    said = (tmp_path / "log").read_text()
    assert status == {"itself": 0, "interrupt": 130, "kill": -9}[ends_by], said
    if ends_by == "interrupt":
        assert f"continue with: fedprox deploy --resume {tmp_path / 'run'} --local {nodes}" in said
    deadline = time.monotonic() + 30
    while left_over(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left_over(tmp_path) == []
