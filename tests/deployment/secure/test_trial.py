"""A trial on this machine whose nodes sum in secret, over Flower."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from fedprox.deployment.kept import Revealed
from tests.deployment.federations import STATEFUL, table_of

pytestmark = pytest.mark.network


def test_a_trial_sums_in_secret(tmp_path: Path) -> None:
    secure = {"threshold": 3, "bound": 10.0}
    table = table_of(*STATEFUL, rounds=2, deployment={"patience": 240.0, "secure": secure})
    table["cohort"] = {"clients_per_round": 4}
    file, out = tmp_path / "file.toml", tmp_path / "run"
    file.write_text(tomli_w.dumps(table))
    command = [sys.executable, "-m", "fedprox", "deploy", str(file), "--local", "4"]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "without" not in done.stderr
    for i in range(1, 5):
        ledger = json.loads((out / "nodes" / f"node-{i}" / "state" / Revealed.FILE).read_text())
        rounds = {name.partition("/")[2]: last for name, last in ledger["rounds"].items()}
        revealed = {"0-0/train": 1, "1-0/gradients": 1, "1-0/train": 1}
        assert rounds == revealed | {"0-0/evaluate": 2, "1-0/evaluate": 2}
