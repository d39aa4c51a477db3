"""`systems.deadline` by a real clock: what slow nodes' clients send, and what records say of it."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

import fedprox as fp
from fedprox.deployment.kept import States
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.node_method import NodeMethod, due, planned_rows, shares_of_first
from fedprox.deployment.wire import unpack_arrays
from fedprox.devices.mesh import lane_mesh
from fedprox.engine.compiled import lanes as clocks
from fedprox.errors import InputError
from tests.deployment.federations import (
    FEDPROX,
    Fault,
    Site,
    apart,
    deployed,
    nodes_of,
    simulated,
    table_of,
    unreliable,
)
from tests.deployment.test_answers import jobs_of

DEADLINE = 10.0
METHODS: list[dict[str, Any]] = [FEDPROX, {"name": "fedavg"}]
TABLE = table_of(
    *METHODS,
    rounds=2,
    data={"seed": 3},  # nodes with different numbers of rows, by which the slow one is known
    cohort={"clients_per_round": 4},
    evaluation={"every": 1, "gradients": False},
    solver={"epochs": 3},
    systems={"deadline": DEADLINE},
)
ONE = TABLE | {"method": [{"name": "scaffold"}], "rounds": 1}


class Slow:
    """A clock that advances with each look of the slow nodes' programs.

    The first look of each program takes twice the deadline: what happens once in a program must
    cost no client its time.
    """

    def __init__(self) -> None:
        self.seconds = dict[int, float]()
        """Seconds from one look to the next on each node, by its number of rows."""
        self.began, self.looks, self.extra = 0.0, 0, 0.0
        self.programs = WeakKeyDictionary[NodeMethod, int]()

    def read(self, parts: NodeMethod) -> float:
        """Seconds since some parts' program began."""
        if self.began != parts.began:
            self.began, self.looks, self.extra = parts.began, 0, 0.0
        programs = len(parts._programs)
        if programs > self.programs.get(parts, 0):
            self.programs[parts], self.extra = programs, 2 * DEADLINE
        self.looks += 1
        each = self.seconds.get(len(parts.federation.train), 0.0)
        return (self.looks - 1) * each + self.extra


CLOCK = Slow()
"""The clock that the compiled programs of all tests read."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tick looks at `CLOCK`, on which no node is slow."""
    monkeypatch.setattr(NodeMethod, "_seconds", lambda parts: CLOCK.read(parts))
    monkeypatch.setattr(clocks, "LOOK_SECONDS", 0.0)
    CLOCK.seconds = {}


def slowed(nodes: Sequence[Node], seconds: float = 1.0) -> list[Node]:
    """Let the last node take so many seconds for a tick."""
    CLOCK.seconds = {len(nodes[-1].federation.train): seconds}
    for node in nodes:
        node.mesh = lane_mesh(1)  # so that ticks are counted once
    return list(nodes)


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


@pytest.mark.usefixtures("counted")
def test_slow_clients_send_partial_work(tmp_path: Path) -> None:
    table = TABLE | {"method": METHODS[:1]}
    (node,) = slowed(nodes_of(table, tmp_path, nodes=1))
    (run,) = deployed(table, [node.answer])
    taken, planned = run.history[1].network or {}, planned_steps(node)
    steps = [taken[name]["steps"] for name in node.federation.names]
    assert len(taken) == 4
    for each in taken.values():
        assert list(each) == ["node", "rounds", "steps", "seconds", "bytes_down", "bytes_up"]
        assert (each["node"], each["rounds"]) == ("node-0", 1)
        assert 0 < each["seconds"] < DEADLINE
        assert each["bytes_up"] > 0 < each["bytes_down"]
    # a node that is too slow shortens the work of its clients alike
    shares = np.divide(steps, planned)
    assert all(shares > 0.2)
    assert np.ptp(shares) < 0.15
    assert all(shares < 1)
    (theirs,) = as_simulated(table, steps)
    assert apart(theirs.params, run.params) < 1e-5
    for x, y in zip(theirs.history[1:], run.history[1:], strict=True):
        assert (x.clients, x.stragglers, x.dropped) == (4, 4, 0)
        assert (y.clients, y.stragglers, y.dropped) == (4, 4, 0)
        assert (x.client_steps, x.total_steps) == (y.client_steps, y.total_steps)
        assert y.client_steps == sum(steps)


@pytest.mark.usefixtures("counted")
@pytest.mark.slow
def test_fedavg_drops_clients_that_do_not_finish(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round is as if their node had not answered."""
    table = TABLE | {"method": METHODS[1:]}
    nodes = slowed(nodes_of(table, tmp_path))
    (run,) = deployed(table, [node.answer for node in nodes])
    names = list(nodes[0].federation.names)
    for record in run.history[1:]:
        taken = record.network or {}
        assert {name: (taken[name]["node"], taken[name]["steps"]) for name in taken} == {
            name: ("node-0", steps)
            for name, steps in zip(names, planned_steps(nodes[0]), strict=True)
        }
        assert (record.clients, record.stragglers, record.dropped) == (4, 2, 2)
    assert "refused" not in caplog.text  # what the late node answered is no fault

    def silent(node: int, number: int, head: dict[str, Any]) -> Fault:
        del number
        return "lost request" if node == 1 and head["kind"] == "train" else ""

    # nobody waits for the deadline in earnest
    fast = SimpleNamespace(monotonic=lambda: 100 * time.monotonic())
    monkeypatch.setattr("fedprox.deployment.conversation.time", fast)
    network = unreliable([Site(node) for node in nodes], silent)
    (without,) = deployed(table, network, patience=0.1)
    assert apart(without.params, run.params) < 1e-6


@pytest.mark.slow
@pytest.mark.usefixtures("counted")
def test_a_personal_pass_and_the_method_share_the_time(tmp_path: Path) -> None:
    table = ONE | {"method": [{"name": "ditto", "lam": 0.5}]}
    (node,) = slowed(nodes_of(table, tmp_path, nodes=1))
    (ditto,) = deployed(table, [node.answer])
    assert (ditto.final.clients, ditto.final.stragglers, ditto.final.dropped) == (4, 4, 0)
    names = node.federation.names
    # of ten seconds each pass has five; the clients are in lanes of their own
    assert [(ditto.final.network or {})[name]["steps"] for name in names] == [4] * 4
    # and the clients have taken steps from w^0 to models of their own
    states = States(node.runs / "run1" / "0-0")
    like = next(iter(node._methods.values())).client_state
    one, *_, other = (states.read(name, 0, like) for name in names)
    assert one.trained.all()
    assert other.trained.all()
    assert apart(one.model, other.model) > 0.1


def test_passes_share_the_time_by_the_rows_that_they_read() -> None:
    jobs = jobs_of([4, 10], [0.5, 0.5])._replace(size=np.array([20, 45]), client=np.array([0, 2]))
    batches = fp.Solver(0.1, 10, epochs=2)
    searching = fp.Solver(0.1, "all", steps=2, optimizer=fp.line_search_descent)
    for method, reading, personal in (
        (fp.fedprox(mu=0.1), 0, 0),
        (fp.ditto(lam=0.5), 0, 1),
        (fp.scaffold(option=1), 1, 0),
    ):
        for solver, local in ((batches, np.array([40, 90])), (searching, np.array([80, 450]))):
            rows = planned_rows(method, solver, jobs)
            assert rows.tolist() == [
                (reading * jobs.size).tolist(),
                (personal * local).tolist(),
                local.tolist(),
            ]
    # the first cohort is clients 1 and 2, of which only 2 trains on node 1
    owner, first = np.array([0, 0, 1, 2]), jobs._replace(client=np.array([1, 2]))
    rows = np.array([[0, 0], [0, 0], [20, 15]])
    assert shares_of_first(first, rows, jobs, owner).tolist() == [0.5, 0.75, 0.0]
    # at least a fourth, and nothing where nothing is read
    assert shares_of_first(first, 100 * rows, jobs, owner).tolist() == [0.25, 0.25, 0.0]
    # of ten and five ticks of a node's two jobs, the last ones end together
    end = np.array([[[[0, -1], [1, -1]]]])
    ends: Any = SimpleNamespace(end=end, stop=np.array([[[10, 5]]]))
    assert due(ends, 3).tolist() == [1.0, 0.5, 1.0]


@pytest.mark.slow
@pytest.mark.usefixtures("counted")
def test_a_first_cohort_has_its_share_of_the_time(tmp_path: Path) -> None:
    """It has a fourth, since it reads a fifth of the rows: 2.5 s, for one of the slow clients."""
    table = ONE | {"method": [{"name": "feddane", "mu": 1.0}]}
    first, second = slowed(nodes_of(table, tmp_path), seconds=3.0)
    answered: list[dict[str, Any]] = []

    def answer(parcel: Parcel) -> Parcel:
        result, head = second.answer(parcel), json.loads(parcel.head)
        if head["kind"] == "gradients":
            answered.append(unpack_arrays(result.body))
            work = {name: values[:1] for name, values in head["work"].items()}
            alone = json.dumps(head | {"id": "alone", "work": work}).encode()
            answered.append(unpack_arrays(second.answer(parcel._replace(head=alone)).body))
        return result

    (run,) = deployed(table, [first.answer, answer])
    both, alone = answered
    assert both["counts"].tolist() == [[True], [False]]
    assert not both["faulty"].any()
    assert both["counted"] == alone["counted"]
    messages = [name for name in both if name.startswith("message")]
    assert apart([both[name] for name in messages], [alone[name] for name in messages]) < 1e-6
    assert run.final.empty_rounds == 0


@pytest.mark.slow
@pytest.mark.usefixtures("counted")
def test_own_gradients_have_their_share_of_the_time(tmp_path: Path) -> None:
    """A fourth of the rows are read for them: 2.5 s, in which the slow node reads one client."""
    table = ONE | {"method": [{"name": "scaffold", "option": 1}]}
    nodes = slowed(nodes_of(table, tmp_path), seconds=3.0)
    (run,) = deployed(table, [node.answer for node in nodes])
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


def test_a_node_that_stood_still_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the clock as seldom as before."""
    table = TABLE | {"method": [FEDPROX]}
    (node,) = nodes_of(table, tmp_path, nodes=1)
    node.mesh, looks, began = lane_mesh(1), list[float](), time.perf_counter()
    real = NodeMethod._seconds

    def seconds(parts: NodeMethod) -> float:
        looks.append(parts.began)
        assert 0 <= real(parts) < time.perf_counter() - began
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
    late.add(len(nodes[1].federation.train))
    (run,) = deployed(ONE, [node.answer for node in nodes])
    assert (run.final.stragglers, run.final.dropped) == (2, 2)
    assert set(run.final.network or {}) == set(nodes[0].federation.names)
    (theirs,) = as_simulated(ONE, [*planned_steps(nodes[0]), 0, 0])
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
