"""Two of five nodes are killed in one round of a real federation with secure sums."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from tests.deployment.machines import finish, machines
from tests.deployment.test_processes_together import written

NODES, ROUNDS = 5, 6
DEMO = Path(__file__).parents[3] / "examples" / "demo.toml"


@pytest.mark.network
def test_a_run_of_the_demo_survives_two_kills_in_one_round(tmp_path: Path) -> None:
    table = tomllib.loads(DEMO.read_text())
    data, method = table.pop("data"), {"name": "fedprox", "mu": 1.0}
    table |= {"rounds": ROUNDS, "method": [method]}
    table["cohort"] = {"clients_per_round": 30}  # of every node in every round
    table["deployment"] = {
        "nodes": NODES,
        "patience": 120.0,
        "secure": {"threshold": 3, "bound": 10.0},
    }
    with machines(tmp_path, [tables(data, i) for i in range(NODES)]) as federation:
        operator = federation.operate(written(tmp_path, table), "--out", str(tmp_path / "run"))
        federation.wait_for("round 2:")
        federation.kill(1)
        federation.kill(3)
        assert finish(operator, 1200) == 0, federation.said
    records = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [record["round"] for record in records] == list(range(ROUNDS + 1))
    assert records[2]["nodes"] == NODES
    # the clients of two nodes are lost, and no others
    assert [record["dropped"] for record in records[-2:]] == [12, 12]
    assert records[-1]["nodes"] == NODES - 2
    # measures are of all nodes or none
    assert [record["measured"] for record in records[:3]] == [True] * 3
    assert [record["measured"] for record in records[-2:]] == [False] * 2
    assert "without this round's updates" not in federation.said


def tables(data: dict[str, Any], i: int) -> dict[str, Any]:
    """The file of a node that knows the keys of all others."""
    others = [f"node-{j}" for j in range(NODES) if j != i]
    peers = {name: f"../{name}/node.key.pub" for name in others}
    return {
        "data": data,
        "deal": {"part": i, "parts": NODES},
        "policy": {"secure": {"threshold": 3, "peers": peers}},
    }
