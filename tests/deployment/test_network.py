"""Deployments over Flower, whole: `make test-network`."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from fedprox.deployment.policy import REPORTS
from fedprox.report.saved import model_file
from tests.deployment.federations import apart, simulated, table_of
from tests.deployment.machines import Machines, machines
from tests.deployment.test_processes_together import SCAFFOLD, model_in, nodes_of, written
from tests.deployment.test_same_results import METHODS, OF_LAYERS

pytestmark = pytest.mark.network

BOUNDS = {"feddyn": 1e-4, "fedsplit": 1e-3, "fednova": 1e-3, "mime": 1e-4}
"""Distances of methods that amplify rounding: simulations on one and on two devices differ by up to
5e-5, 2e-4, 2e-5 and 4e-6."""

PATIENT = {"nodes": 3, "patience": 240.0}


def records(directory: Path) -> list[dict[str, Any]]:
    """The records of a run directory."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_all_methods_give_the_results_of_a_simulation(tmp_path: Path) -> None:
    table = table_of(
        *(keys for name, keys in METHODS.items() if name not in OF_LAYERS),
        rounds=20,
        systems={"stragglers": 0.5},
        evaluation={"every": 20, "gradients": False},
        deployment=PATIENT,
    )
    policy = {"policy": {"report": list(REPORTS)}}  # some clients send gradients
    with machines(tmp_path, [node | policy for node in nodes_of(table)]) as federation:
        operator = federation.operate(written(tmp_path, table), "--out", str(tmp_path / "run"))
        assert operator.wait(1200) == 0, federation.said
    for run in simulated(table):
        stored = (tmp_path / "run" / model_file(run.label, run.seed)).read_bytes()
        dense = run.params["dense"]
        named = {"dense.bias": dense["bias"], "dense.weight": dense["weight"]}
        distance = apart(named, dict(sorted(safetensors.numpy.load(stored).items())))
        print(f"{run.label}: {distance:.1e}")
        assert distance < BOUNDS.get(run.method, 1e-5), run.label


@contextmanager
def slowed(process: int, share: float) -> Iterator[None]:
    """Let a process run for only a share of the time."""
    done = threading.Event()

    def alternate() -> None:
        while not done.is_set():
            os.kill(process, signal.SIGSTOP)
            time.sleep(0.1 * (1 - share))
            os.kill(process, signal.SIGCONT)
            time.sleep(0.1 * share)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        os.kill(process, signal.SIGCONT)


def test_partial_work_counts_by_a_real_deadline(tmp_path: Path) -> None:
    table = table_of(
        {"name": "fedprox", "mu": 0.1},
        {"name": "fedavg"},
        rounds=4,
        data={"clients": 3},
        cohort={"clients_per_round": 3},
        model={"name": "mlp", "hidden": [2000, 500]},
        solver={"learning_rate": 0.01, "batch_size": 10, "epochs": 3000},
        systems={"deadline": 2.0},
        evaluation={"every": 1, "gradients": False},
        deployment=PATIENT,
    )
    with (
        machines(tmp_path, nodes_of(table)) as federation,
        slowed(federation.processes[1].pid, 0.1),
    ):
        operator = federation.operate(written(tmp_path, table), "--out", str(tmp_path / "run"))
        assert operator.wait(1200) == 1, federation.said
        assert "fedavg, seed 0: no update was used in any of its 4 rounds" in federation.said
    lines = records(tmp_path / "run")
    kept = [line for line in lines if line["method"] == "fedprox" and line["round"]]
    for line in kept:
        steps = {client["node"]: client["steps"] for client in line["network"].values()}
        assert len(steps) == 3
        assert line["stragglers"] == 3
        assert line["dropped"] == 0
        assert 0 < steps["node-1"] < min(steps["node-0"], steps["node-2"]) / 2
        assert all(client["seconds"] < 20 for client in line["network"].values())
    losses = [line["train_loss"] for line in lines if line["method"] == "fedprox"]
    assert losses[-1] < losses[0]
    dropped = [line for line in lines if line["method"] == "fedavg" and line["round"]]
    assert all(line["dropped"] == 3 and line["network"] == {} for line in dropped)


def test_a_node_that_stays_away_is_gone_without(tmp_path: Path) -> None:
    table = table_of(
        {"name": "fedavg"},
        rounds=8,
        deployment={"nodes": 3, "patience": 5.0},
        cohort={"clients_per_round": 4},
        evaluation={"every": 1, "gradients": False},
    )
    with machines(tmp_path, nodes_of(table)) as federation:
        operator = federation.operate(written(tmp_path, table), "--out", str(tmp_path / "run"))
        federation.wait_for("round 2:")
        federation.kill(2)
        federation.wait_for("without its 1 client")
        assert operator.wait(600) == 0, federation.said
    last = records(tmp_path / "run")[-1]
    assert last["round"] == 8
    assert last["dropped"] == 1
    assert last["nodes"] == 2


def test_a_node_that_sends_nan_is_left_out(tmp_path: Path) -> None:
    table = table_of(
        {"name": "fedavg"},
        rounds=3,
        deployment={"nodes": 3, "patience": 60.0},
        cohort={"clients_per_round": 6},
        faults={},
        evaluation={"every": 1, "gradients": False},
    )
    nodes: list[dict[str, Any]] = nodes_of(table, 2)
    nodes.append({"data": {"name": "tests.deployment.network_data:hostile"}})
    with in_root(), machines(tmp_path, nodes) as federation:
        operator = federation.operate(written(tmp_path, table), "--out", str(tmp_path / "run"))
        assert operator.wait(600) == 0, federation.said
    first, *_, last = records(tmp_path / "run")
    assert last["train_loss"] < first["train_loss"]
    assert last["faulty"] == 2
    assert last["faulty_clients"] == ["bad-0", "bad-1"]


@contextmanager
def in_root() -> Iterator[None]:
    """Run in the folder from which nodes can import the tests."""
    before = Path.cwd()
    os.chdir(Path(__file__).parents[2])
    try:
        yield
    finally:
        os.chdir(before)


def refusal(federation: Machines, file: str, out: Path) -> str:
    """The line with which an operator ends that a node refuses."""
    assert federation.operate(file, "--out", str(out)).wait(300) == 2, federation.said
    return federation.said.splitlines()[-1]


def test_a_policy_that_refuses_ends_the_run_in_one_line(tmp_path: Path) -> None:
    table = table_of({"name": "fedavg"}, deployment={"nodes": 2, "patience": 60.0})
    nodes = nodes_of(table, 2)
    nodes[1]["policy"] = {"methods": ["fedprox"]}
    with machines(tmp_path, nodes) as federation:
        line = refusal(federation, written(tmp_path, table), tmp_path / "run")
    assert line == ("fedprox: fedavg: node 'node-1': it refuses: method 'fedavg'; allowed: fedprox")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


KILLS = 20


def test_random_kills_of_nodes_and_of_the_operator_change_no_bit(tmp_path: Path) -> None:
    table = {**SCAFFOLD, "rounds": 240}
    chance = random.Random(0)
    with machines(tmp_path / "quiet", nodes_of(table)) as quiet:
        file = written(tmp_path, table)
        assert quiet.operate(file, "--out", str(tmp_path / "a")).wait(1200) == 0, quiet.said
    with machines(tmp_path / "loud", nodes_of(table)) as loud:
        operator = loud.operate(file, "--out", str(tmp_path / "b"))
        loud.wait_for("round 2:")
        done = {"operator": 0, "node": 0}
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.0, 4.0))
            if operator.poll() is not None:
                break
            if chance.random() < 0.5:
                operator.kill()
                operator.wait()
                operator = loud.operate("--resume", str(tmp_path / "b"))
                done["operator"] += 1
            else:
                victim = chance.randrange(3)
                loud.kill(victim)
                loud.start(victim)
                done["node"] += 1
            wait_for_progress(loud, operator)
        assert operator.wait(1200) == 0, loud.said
    print(done)
    assert sum(done.values()) == KILLS, f"the run ended after {done}; give it more rounds"
    first, second = model_in(tmp_path / "a"), model_in(tmp_path / "b")
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    assert (tmp_path / "a" / "metrics.jsonl").read_text().count("\n") == (
        (tmp_path / "b" / "metrics.jsonl").read_text().count("\n")
    )


def wait_for_progress(federation: Machines, operator: object, seconds: float = 240) -> None:
    """Wait until the operator has printed another round, or has ended."""
    before, deadline = federation.said.count(", round "), time.monotonic() + seconds
    while federation.said.count(", round ") == before and operator.poll() is None:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline, federation.said
        time.sleep(0.1)
