"""`systems.deadline` by a real clock: what slow nodes' clients send, and what records say of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedprox.deployment import parts
from fedprox.deployment.node import Node
from fedprox.deployment.parts import Parts
from fedprox.deployment.run_file import Ledger
from fedprox.deployment.states import States
from fedprox.errors import InputError
from fedprox.simulation.devices.mesh import lane_mesh
from tests.deployment.federations import (
    FEDPROX,
    apart,
    deployed,
    nodes_of,
    simulated,
    table_of,
)

DEADLINE = 10.0
METHODS: list[dict[str, Any]] = [FEDPROX, {"name": "fedavg"}]
TABLE = table_of(
    *METHODS,
    rounds=2,
    cohort={"clients_per_round": 4},
    evaluation={"every": 1},
    solver={"epochs": 3},
    systems={"deadline": DEADLINE},
)


class Slow:
    """A clock that advances with each tick of the slow nodes' programs.

    Args:
        seconds: Seconds of a tick of each node, by its number of rows.
    """

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds
        self.began, self.ticks = 0.0, 0

    def read(self, parts: Parts) -> float:
        """Seconds since the beginning of the round of some parts."""
        if self.began != parts.began:
            self.began, self.ticks = parts.began, 0
        self.ticks += 1
        return (self.ticks - 1) * self.seconds.get(len(parts.federation.train), 0.0)


def slowed(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0
) -> Callable[[Any], list[Any]]:
    """Let the second node take so many seconds for a tick."""
    clock = Slow({len(nodes[1].federation.train): seconds})
    monkeypatch.setattr(Parts, "_seconds", lambda parts: clock.read(parts))
    monkeypatch.setattr(parts, "LOOK_SECONDS", 0.0)  # each tick looks at the clock
    for node in nodes:
        node.mesh = lane_mesh(1)  # so that ticks are counted once
    return lambda table: deployed(table, [node.answer for node in nodes])


def as_simulated(table: dict[str, Any], steps: list[int]) -> list[Any]:
    """A simulation whose clients have time for exactly these steps."""
    seconds = [DEADLINE / (count + 0.5) for count in steps]
    return simulated(table | {"systems": {"deadline": DEADLINE, "step_seconds": seconds}})


def test_slow_clients_send_partial_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = nodes_of(TABLE, tmp_path)
    run = slowed(nodes, monkeypatch)
    fedprox, fedavg = run(TABLE)
    names = [name for node in nodes for name in node.federation.names]
    planned = [int(3 * -(-n // 10)) for node in nodes for n in node.federation.train.sizes]
    taken = fedprox.history[1].network or {}
    assert set(taken) == set(names)
    steps = [taken[name]["steps"] for name in names]
    assert steps[:2] == planned[:2]
    for count, most in zip(steps[2:], planned[2:], strict=True):
        assert 1 <= count < most
    # a node that is too slow shortens the work of its clients alike
    first, second = (count / most for count, most in zip(steps[2:], planned[2:], strict=True))
    assert abs(first - second) < 0.15
    assert [taken[name]["node"] for name in names] == ["node-0"] * 2 + ["node-1"] * 2
    for record in fedprox.history[1:]:
        assert (record.clients, record.stragglers, record.dropped) == (4, 2, 0)
        assert record.client_steps == sum(steps)
    # FedAvg drops clients that do not finish
    for record in fedavg.history[1:]:
        assert set(record.network or {}) == set(names[:2])
        assert (record.clients, record.stragglers, record.dropped) == (4, 2, 2)
    assert apart(fedprox.params, fedavg.params) > 1e-3
    for ours, method in zip((fedprox, fedavg), METHODS, strict=True):
        (theirs,) = as_simulated(TABLE | {"method": [method]}, steps)
        assert apart(theirs.params, ours.params) < 1e-5
        for x, y in zip(theirs.history[1:], ours.history[1:], strict=True):
            assert (x.clients, x.stragglers, x.dropped) == (y.clients, y.stragglers, y.dropped)
            assert (x.client_steps, x.total_steps) == (y.client_steps, y.total_steps)


ONE = TABLE | {"method": [{"name": "scaffold"}], "rounds": 1}


@pytest.mark.slow
def test_clients_that_finish_no_step_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two devices, whose looks at the clock nobody counts."""
    late: set[int] = set()
    monkeypatch.setattr(
        Parts, "_seconds", lambda parts: 2 * DEADLINE * (len(parts.federation.train) in late)
    )
    nodes = nodes_of(ONE, tmp_path)
    assert nodes[0].mesh.devices.size == 2
    # nobody is late
    (run,) = deployed(ONE, [node.answer for node in nodes], ledger=Ledger(run="whole"))
    (whole,) = simulated(ONE | {"systems": {}})
    assert apart(whole.params, run.params) < 1e-5
    assert (run.final.stragglers, run.final.dropped) == (0, 0)
    # a node is late
    late.add(len(nodes[1].federation.train))
    (run,) = deployed(ONE, [node.answer for node in nodes])
    assert (run.final.stragglers, run.final.dropped) == (2, 2)
    assert set(run.final.network or {}) == set(nodes[0].federation.names)
    planned = [int(3 * -(-n // 10)) for node in nodes for n in node.federation.train.sizes]
    (theirs,) = as_simulated(ONE, [*planned[:2], 0, 0])
    assert apart(theirs.params, run.params) < 1e-5
    # the clients of the late node have no state
    for node, rounds in zip(nodes, ([0], []), strict=True):
        states = States(node.runs / "run1" / "0-0")
        assert [states.rounds(name) for name in node.federation.names] == [rounds, rounds]
    # all are late
    late.add(len(nodes[0].federation.train))
    (run,) = deployed(ONE, [node.answer for node in nodes])
    assert (run.final.dropped, run.final.empty_rounds) == (4, 1)
    assert run.final.train_loss == run.history[0].train_loss
    assert run.final.network == {}


def test_several_sweep_points_share_no_clock(tmp_path: Path) -> None:
    table = ONE | {"method": [{"name": "fedprox", "mu": [0.0, 1.0]}]}
    (node,) = nodes_of(table, tmp_path, nodes=1)
    with pytest.raises(InputError) as raised:
        deployed(table, [node.answer])
    assert str(raised.value) == (
        "fedprox (2 points together): node 'node-0': it refuses: systems.deadline: the method has "
        "2 sweep points, and by a real clock they would share the time; give one value for each "
        "hyperparameter"
    )


def test_a_simulation_has_no_real_clock() -> None:
    with pytest.raises(InputError, match=r"systems\.deadline"):
        simulated(TABLE)


def test_the_real_clock_of_a_node_runs(tmp_path: Path) -> None:
    table = ONE | {"systems": {"deadline": 1e-9}}
    (node,) = nodes_of(table, tmp_path, nodes=1)
    (run,) = deployed(table, [node.answer])
    assert run.final.dropped == 4
