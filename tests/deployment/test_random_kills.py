"""Twenty kills at random moments, of nodes and of the operator: `make test-network`."""

import random
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="an optional extra: pip install '.[flower]'")

from tests.deployment.machines import Machines, machines
from tests.deployment.test_processes_together import SCAFFOLD, model_in, nodes_of, written

KILLS = 20
ROUNDS = 240


@pytest.mark.network
def test_the_model_is_that_of_an_undisturbed_run_bit_for_bit(tmp_path: Path) -> None:
    table = {**SCAFFOLD, "rounds": ROUNDS}
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
