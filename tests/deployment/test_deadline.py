"""`systems.deadline` by a real clock: what slow nodes' clients send, and what records say of it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprox.deployment.coordinator import Ledger
from fedprox.deployment.kept import States
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.node_method import NodeMethod
from fedprox.deployment.wire import unpack_arrays
from fedprox.devices.mesh import lane_mesh
from fedprox.engine.compiled import lanes as clocks
from fedprox.errors import InputError
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
    data={"seed": 3},  # nodes with different numbers of rows, by which the slow one is known
    cohort={"clients_per_round": 4},
    evaluation={"every": 1},
    solver={"epochs": 3},
    systems={"deadline": DEADLINE},
)


class Slow:
    """A clock that advances with each look of the slow nodes' programs.

    Args:
        seconds: Seconds from one look to the next on each node, by its number of rows.
        cold: Seconds that the first look of each program takes.
    """

    def __init__(self, seconds: dict[int, float], cold: float = 0.0) -> None:
        self.seconds, self.cold = seconds, cold
        self.began, self.looks, self.extra = 0.0, 0, 0.0
        self.programs = dict[NodeMethod, int]()

    def read(self, parts: NodeMethod) -> float:
        """Seconds since some parts' program began."""
        if self.began != parts.began:
            self.began, self.looks, self.extra = parts.began, 0, 0.0
        programs = len(parts._programs)
        if programs > self.programs.get(parts, 0):
            self.programs[parts], self.extra = programs, self.cold
        self.looks += 1
        each = self.seconds.get(len(parts.federation.train), 0.0)
        return (self.looks - 1) * each + self.extra


def slowed(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, seconds: float = 1.0, cold: float = 0.0
) -> Callable[[Any], list[Any]]:
    """Let the second node take so many seconds for a tick."""
    clock = Slow({len(nodes[1].federation.train): seconds}, cold)
    monkeypatch.setattr(NodeMethod, "_seconds", lambda parts: clock.read(parts))
    monkeypatch.setattr(clocks, "LOOK_SECONDS", 0.0)  # each tick looks at the clock
    for node in nodes:
        node.mesh = lane_mesh(1)  # so that ticks are counted once
    return lambda table: deployed(table, [node.answer for node in nodes])


def planned_steps(*nodes: Node) -> list[int]:
    """The steps of the nodes' clients without a deadline."""
    return [int(3 * -(-n // 10)) for node in nodes for n in node.federation.train.sizes]


def as_simulated(
    table: dict[str, Any], steps: list[int], reading: Sequence[int] | None = None
) -> list[Any]:
    """A simulation whose clients have time for exactly these steps, after those of `reading`."""
    whole = np.add(steps, reading or 0) + 0.5
    seconds = (DEADLINE / np.where(steps, whole, 0.5)).tolist()
    return simulated(
        table | {"systems": {"deadline": DEADLINE}, "population": {"step_seconds": seconds}}
    )


def test_slow_clients_send_partial_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = nodes_of(TABLE, tmp_path)
    run = slowed(nodes, monkeypatch)
    fedprox, fedavg = run(TABLE)
    names = [name for node in nodes for name in node.federation.names]
    planned = planned_steps(*nodes)
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


def test_a_personal_pass_and_the_method_share_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLE | {"method": [{"name": "ditto", "lam": 0.5}]}
    nodes = nodes_of(table, tmp_path)
    (ditto,) = slowed(nodes, monkeypatch)(table)
    for record in ditto.history[1:]:
        assert (record.clients, record.stragglers, record.dropped) == (4, 2, 0)
    names = nodes[1].federation.names
    # of ten seconds each pass has five; the clients are in lanes of their own
    assert [(ditto.history[1].network or {})[name]["steps"] for name in names] == [4, 4]
    # the model is that of a simulation whose clients take these steps
    fedprox = table | {"method": [{"name": "fedprox", "mu": 0.0}]}
    (theirs,) = as_simulated(fedprox, [*planned_steps(nodes[0]), 4, 4])
    assert apart(theirs.params, ditto.params) < 1e-5
    # and the clients have taken steps from w^0 to models of their own
    states = States(nodes[1].runs / "run1" / "0-0")
    like = next(iter(nodes[1]._methods.values())).client_state
    one, other = (states.read(name, 0, like) for name in names)
    assert one.trained.all()
    assert other.trained.all()
    assert apart(one.model, other.model) > 0.1


def test_a_first_cohort_has_its_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a fourth, since it reads a fifth of the rows: 2.5 s, for one of the slow clients."""
    table = ONE | {"method": [{"name": "feddane", "mu": 1.0}]}
    first, second = nodes_of(table, tmp_path)
    answered: list[dict[str, Any]] = []

    def answer(parcel: Parcel) -> Parcel:
        result, head = second.answer(parcel), json.loads(parcel.head)
        if head["kind"] == "gradients":
            answered.append(unpack_arrays(result.body))
            work = {name: values[:1] for name, values in head["work"].items()}
            alone = json.dumps(head | {"id": "alone", "work": work}).encode()
            answered.append(unpack_arrays(second.answer(parcel._replace(head=alone)).body))
        return result

    slowed([first, second], monkeypatch, seconds=3.0)
    (run,) = deployed(table, [first.answer, answer])
    both, alone = answered
    assert both["counts"].tolist() == [[True], [False]]
    assert not both["faulty"].any()
    assert both["counted"] == alone["counted"]
    assert (
        apart(
            [both[name] for name in both if name.startswith("message")],
            [alone[name] for name in both if name.startswith("message")],
        )
        < 1e-6
    )
    assert run.final.empty_rounds == 0


def test_own_gradients_have_their_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fourth of the rows are read for them: 2.5 s, in which the slow node reads one client."""
    table = ONE | {"method": [{"name": "scaffold", "option": 1}]}
    nodes = nodes_of(table, tmp_path)
    (run,) = slowed(nodes, monkeypatch, seconds=3.0)(table)
    taken = run.final.network or {}
    (name,) = {*taken} - {*nodes[0].federation.names}
    steps = [
        *planned_steps(nodes[0]),
        *(taken.get(n, {"steps": 0})["steps"] for n in nodes[1].federation.names),
    ]
    assert 0 < steps[nodes[1].federation.names.index(name) + 2] < 18
    assert (run.final.stragglers, run.final.dropped) == (2, 1)
    (theirs,) = as_simulated(table, steps, [count // 3 for count in planned_steps(*nodes)])
    assert apart(theirs.params, run.params) < 1e-5


def test_what_happens_once_in_a_program_costs_no_client_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLE | {"method": [{"name": "fedavg"}]}
    (run,) = slowed(nodes_of(table, tmp_path), monkeypatch, seconds=0.0, cold=2 * DEADLINE)(table)
    assert [record.stragglers for record in run.history] == [0, 0, 0]


def test_a_node_that_stood_still_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the clock as seldom as before."""
    table = TABLE | {"method": [FEDPROX]}
    (node,) = nodes_of(table, tmp_path, nodes=1)
    node.mesh, looks = lane_mesh(1), list[float]()

    def seconds(parts: NodeMethod) -> float:
        looks.append(parts.began)
        return 2 * DEADLINE if first_round else 0.0

    first_round = True
    monkeypatch.setattr(NodeMethod, "_seconds", seconds)

    def answer(parcel: Parcel) -> Parcel:
        nonlocal first_round
        first_round = json.loads(parcel.head)["round"] == 0
        return node.answer(parcel)

    (run,) = deployed(table, [answer])
    assert [record.dropped for record in run.history] == [0, 4, 0]
    assert looks.count(looks[-1]) < run.final.client_steps / 4


@pytest.mark.slow
def test_clients_that_finish_no_step_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two devices, whose looks at the clock nobody counts."""
    late: set[int] = set()
    monkeypatch.setattr(
        NodeMethod, "_seconds", lambda parts: 2 * DEADLINE * (len(parts.federation.train) in late)
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
    planned = planned_steps(*nodes)
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
