"""Deployments without a barrier: the events of a population, and those of real nodes."""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox.deployment import conversation
from fedprox.deployment.coordinator import Ledger
from fedprox.deployment.network import Network, Parcel, Received
from fedprox.deployment.node import Node
from fedprox.deployment.wire import Answer, parcel_of
from fedprox.errors import InputError
from fedprox.loop.checkpoint import Checkpoints
from fedprox.results.run import Run
from tests.deployment.federations import (
    FEDPROX,
    Fault,
    Site,
    bits,
    deployed,
    nodes_of,
    simulated,
    table_of,
    unreliable,
)
from tests.deployment.test_same_results import check

DEVICES = {"step_seconds": [0.1, 0.5, 1.0, 0.3], "latency": 0.1, "dropout": 0.2}
SCRIPTED = table_of(
    FEDPROX,
    rounds=6,
    population=DEVICES,
    asynchronous={"buffer": 2},
    evaluation={"every": 2, "gradients": False},
    solver={"learning_rate_decay": 0.9},
)
"""Four clients of two nodes, of which three work at a time, by the clock of a population."""

REAL = table_of(
    FEDPROX,
    rounds=9,
    data={"clients": 2},
    client_rows=30,
    cohort={"clients_per_round": 2},
    asynchronous={"buffer": 1},
    evaluation={"every": 4, "gradients": False},
) | {"solver": {"learning_rate": 0.05, "batch_size": 10, "steps": 6}}
"""A client on each of two nodes, by the real clock."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "REPEAT", 0.05)
    monkeypatch.setattr(conversation, "LISTEN", 0.02)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> list[Site]:
    """Nodes whose programs tests share."""
    return [Site(node) for node in nodes_of(SCRIPTED, tmp_path_factory.mktemp("first"))]


@pytest.fixture(scope="module")
def run(sites: list[Site]) -> list[Run]:
    """The run of `SCRIPTED` on nodes that never fail."""
    return deployed(SCRIPTED, [site.answer for site in sites])


@pytest.fixture(scope="module")
def undisturbed(run: list[Run]) -> list[Any]:
    """What no fault of a node or of the network changes."""
    return bits(run)


def require_same(theirs: list[Run], ours: list[Run]) -> None:
    """Simulated and deployed runs agree, also in when updates are added up, and how late."""
    check(theirs, ours)
    for a, b in zip(theirs, ours, strict=True):
        assert [(r.time, r.staleness) for r in a.history] == [
            (r.time, r.staleness) for r in b.history
        ]


def test_by_the_clock_of_a_population_it_is_the_simulation(run: list[Run]) -> None:
    require_same(simulated(SCRIPTED), run)
    assert any(record.staleness for record in run[0].history)


METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedbuff": ({"name": "fedprox", "mu": [0.0, 1.0]}, {"buffer": 2}),
    "fedasync": (
        {"name": "fedavg"},
        {"buffer": 1, "adds": "models", "staleness": "hinge", "b": 0},
    ),
    "fresh": ({"name": "fedavg", "average": "clients"}, {"buffer": 3, "most_staleness": 0}),
    "fednova": ({"name": "fednova"}, {"buffer": 2}),
    "qffl": ({"name": "qffl", "q": 1.0}, {"buffer": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_other_methods_are_the_simulation(name: str, tmp_path: Path) -> None:
    method, asynchronous = METHODS[name]
    each = {"every": 1, "gradients": False}
    table = SCRIPTED | {"method": [method], "asynchronous": asynchronous, "evaluation": each}
    nodes = nodes_of(table, tmp_path)
    theirs, ours = simulated(table), deployed(table, [node.answer for node in nodes])
    require_same(theirs, ours)
    if asynchronous["buffer"] < 3:
        assert any(record.staleness for record in theirs[0].history)


@pytest.mark.slow
@given(plan=st.lists(st.sampled_from(["lost request", "lost answer", "twice", "killed", "late"])))
@settings(max_examples=4)
def test_faults_of_requests_change_nothing(
    plan: list[Fault],
    sites: list[Site],
    undisturbed: list[Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    moved = [site.moved(tmp_path_factory.mktemp("any")) for site in sites]
    left = iter(plan)

    def fault(node: int, number: int, head: dict[str, Any]) -> Fault:
        del node, number
        return next(left, "") if head["kind"] in ("train", "evaluate") else ""

    assert bits(deployed(SCRIPTED, unreliable(moved, fault))) == undisturbed


def test_a_run_that_goes_on_has_the_same_bits(
    sites: list[Site], undisturbed: list[Any], tmp_path: Path
) -> None:
    nodes = [site.answer for site in sites]
    checkpoints = Checkpoints(tmp_path / "run", every=2, resume=True)
    deployed(SCRIPTED | {"rounds": 4}, nodes, checkpoints, ledger=Ledger(run="again"))
    again = deployed(SCRIPTED, nodes, checkpoints, ledger=Ledger(run="again"))
    assert bits(again) == undisturbed


def slow_second(nodes: Sequence[Node], wait: int) -> Network:
    """A network on which the second node trains while the first one trains `wait` times.

    Each node answers one request after the other, as real nodes do.
    """
    ready, held = deque[tuple[Received, str]](), deque[tuple[str, Parcel]]()
    since = number = 0

    def kind_of(parcel: Parcel) -> str:
        return str(json.loads(parcel.head)["kind"])

    def send(requests: Mapping[int, Parcel]) -> dict[int, str]:
        nonlocal number
        sent = {}
        for node, parcel in requests.items():
            number += 1
            sent[node] = str(number)
            if node == 0 or kind_of(parcel) in ("describe", "prepare"):
                answered = Received(str(number), nodes[node].answer(parcel))
                ready.append((answered, kind_of(parcel)))
            else:
                held.append((str(number), parcel))
        return sent

    def receive(seconds: float) -> list[Received]:
        nonlocal since
        del seconds
        if held and (since == wait or not ready or kind_of(held[0][1]) == "evaluate"):
            name, parcel = held.popleft()
            since = 0 if kind_of(parcel) == "train" else since
            return [Received(name, nodes[1].answer(parcel))]
        if not ready:
            return []
        received, kind = ready.popleft()
        since += kind == "train"
        return [received]

    return Network(lambda: range(len(nodes)), send, receive)


@pytest.mark.slow
def test_a_slow_node_is_late_and_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "REPEAT", 60.0)
    (run,) = deployed(REAL, slow_second(nodes_of(REAL, tmp_path), wait=3), patience=100.0)
    (theirs,) = simulated(REAL | {"population": {"step_seconds": [1.0, 3.4]}})
    check([theirs], [run])
    # f f f s f f f s f
    assert [r.staleness for r in theirs.history] == [r.staleness for r in run.history]
    assert [r.staleness for r in run.history] == [0.0, 3.0, 3.0, 1.0]
    assert all(record.time is None for record in run.history)


def refusing(node: Node, refused: list[str]) -> Callable[[Parcel], Parcel]:
    """A node that refuses to train, with an error of its own."""

    def answer(parcel: Parcel) -> Parcel:
        head = json.loads(parcel.head)
        if head["kind"] != "train":
            return node.answer(parcel)
        refused.append(head["id"])
        return parcel_of(Answer(id=head["id"], refused="no"))

    return answer


@pytest.mark.slow
def test_a_node_that_refuses_to_train_rests_until_the_next_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = nodes_of(REAL, tmp_path)
    refused: list[str] = []
    (run,) = deployed(REAL, [first.answer, refusing(second, refused)])
    assert 1 <= len(refused) <= 9
    assert run.final.dropped <= 1
    assert "client 1, from step 1: node 'node-1': it refuses: no" in caplog.text


def test_a_run_that_nobody_trains_says_so(tmp_path: Path) -> None:
    nodes = [refusing(node, []) for node in nodes_of(REAL, tmp_path)]
    with pytest.raises(InputError, match="no node trains; resume the run when nodes are connected"):
        deployed(REAL, nodes, patience=0.2)


def test_a_simulation_needs_a_population() -> None:
    with pytest.raises(InputError, match=r"give a Population"):
        simulated(REAL)
