"""Lost answers, killed nodes and a killed coordinator do not change the bits of a run."""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox.deployment import conversation
from fedprox.deployment.coordinator import Ledger
from fedprox.deployment.kept import States
from fedprox.deployment.network import Network, Received
from fedprox.errors import InputError
from fedprox.loop.checkpoint import Checkpoints
from tests.deployment.conftest import Fresh
from tests.deployment.federations import (
    STATEFUL,
    Fault,
    Site,
    bits,
    deployed,
    in_memory,
    nodes_of,
    table_of,
    unreliable,
    vector,
)
from tests.variants import mostly_slow

TABLE = table_of(*STATEFUL, evaluation={"every": 1}, cohort={"clients_per_round": 4})
SHORT = table_of(STATEFUL[0], rounds=4, evaluation={"every": 1})
"""Scaffold alone, where many runs are needed. Not all clients take part in a round."""

KEEPS = {"last": {"keep": "last"}, "best": {"keep": "best", "measure": "train_loss"}}
"""Settings of `[selection]`."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without an answer are repeated soon."""
    monkeypatch.setattr(conversation, "REPEAT", 0.05)
    monkeypatch.setattr(conversation, "LISTEN", 0.02)


@pytest.fixture(scope="module")
def undisturbed(first_sites: list[Site]) -> list[Any]:
    """The runs of `TABLE` without faults."""
    return bits(deployed(TABLE, [site.answer for site in first_sites]))


@pytest.fixture(scope="module")
def undisturbed_short(first_sites: list[Site]) -> list[Any]:
    """The run of `SHORT` without faults."""
    return bits(deployed(SHORT, [site.answer for site in first_sites], ledger=Ledger(run="short")))


@pytest.mark.parametrize(
    "first", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_faults_of_requests_change_nothing(
    first: int, fresh: Fresh, undisturbed: list[Any], tmp_path: Path
) -> None:
    """Every third request meets another fault."""
    kinds = itertools.cycle(each for each in get_args(Fault) if each)
    calls, met = itertools.count(first), set[Fault]()

    def fault(node: int, number: int, head: dict[str, Any]) -> Fault:
        del node, number
        work = head["kind"] in ("train", "gradients", "evaluate")
        what: Fault = next(kinds) if work and next(calls) % 3 == 0 else ""
        met.add(what)
        return what

    assert bits(deployed(TABLE, unreliable(fresh(tmp_path), fault))) == undisturbed
    assert met == set(get_args(Fault))


@pytest.mark.slow
def test_a_node_with_new_programs_has_the_same_bits(
    undisturbed_short: list[Any], tmp_path: Path
) -> None:
    sites = [Site(node) for node in nodes_of(SHORT, tmp_path)]

    def forget(node: int, number: int, head: dict[str, Any]) -> Fault:
        if node == 0 and head["kind"] == "train" and head["round"] == 2 and number % 2:
            sites[0].node._methods = {}
        return "restart" if head["kind"] == "train" else ""

    assert bits(deployed(SHORT, unreliable(sites, forget))) == undisturbed_short


@given(plan=st.lists(st.sampled_from(get_args(Fault)), max_size=24))
@settings(max_examples=3)
def test_any_faults_change_nothing(
    plan: list[Fault],
    first_sites: list[Site],
    undisturbed_short: list[Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    sites = [site.moved(tmp_path_factory.mktemp("any")) for site in first_sites]
    left = iter(plan)

    def fault(node: int, number: int, head: dict[str, Any]) -> Fault:
        del node, number
        # beyond a fault, a request that is asked again is answered some time
        return next(left, "") if head["kind"] != "describe" else ""

    assert bits(deployed(SHORT, unreliable(sites, fault))) == undisturbed_short


class Died(Exception):
    """The coordinator was killed."""


def dying(network: Network, calls: int) -> Network:
    """A network at whose call of that number the coordinator dies."""
    left = itertools.count(calls, -1)

    def counted(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(argument: Any) -> Any:
            if next(left) == 0:
                raise Died
            return function(argument)

        return call

    return Network(network.nodes, counted(network.send), counted(network.receive))


def lives(network: Network, deaths: Sequence[int]) -> Iterator[Network]:
    """The network of each life of a coordinator, which dies after these numbers of calls."""
    for calls in deaths:
        yield dying(network, calls)
    while True:
        yield network


@pytest.mark.parametrize(
    ("every", "deaths", "keep"),
    [
        (1, (7, 5, 9), "last"),
        pytest.param(2, (16, 3), "best", marks=pytest.mark.slow),
        pytest.param(2, (14, 6, 1, 8), "last", marks=pytest.mark.slow),
    ],
)
def test_a_coordinator_that_dies_goes_on_with_the_same_bits(
    every: int,
    deaths: tuple[int, ...],
    keep: str,
    fresh: Fresh,
    first_sites: list[Site],
    tmp_path: Path,
) -> None:
    table = SHORT | {"rounds": 3, "seed": [0, 1], "selection": KEEPS[keep]}
    expected = bits(
        deployed(table, [site.answer for site in first_sites], ledger=Ledger(run=f"whole{every}"))
    )
    network, died = in_memory([site.answer for site in fresh(tmp_path)]), 0
    folder = tmp_path / "checkpoints"
    for life in lives(network, deaths):
        # only the first process names the rounds between checkpoints
        checkpoints = Checkpoints(folder, None if died else every, resume=died > 0)
        try:
            runs = deployed(table, life, checkpoints, joining=network)
        except Died:
            died += 1
            network.receive(0.0)  # answers to the dead are lost
            continue
        break
    assert died == len(deaths)
    assert bits(runs) == expected


@pytest.mark.parametrize("every", mostly_slow([None, 2], 2))
def test_a_finished_run_is_extended(
    every: int | None, fresh: Fresh, undisturbed_short: list[Any], tmp_path: Path
) -> None:
    network = in_memory([site.answer for site in fresh(tmp_path)])

    def checkpoints(*, resume: bool) -> Checkpoints:
        return Checkpoints(tmp_path / "checkpoints", every, resume=resume)

    deployed(SHORT | {"rounds": 2}, network, checkpoints(resume=False))
    with pytest.raises(Died):
        deployed(SHORT, dying(network, 7), checkpoints(resume=True), joining=network)
    network.receive(0.0)
    assert bits(deployed(SHORT, network, checkpoints(resume=True))) == undisturbed_short


def test_nodes_store_few_states(fresh: Fresh, tmp_path: Path) -> None:
    sites, table = fresh(tmp_path), SHORT | {"rounds": 6}
    checkpoints = Checkpoints(tmp_path / "checkpoints", every=2)
    deployed(table, [site.answer for site in sites], checkpoints)
    for site in sites:
        states = States(site.node.runs / "run1" / "0-0")
        for client in site.node.federation.names:
            # those of two checkpoints, the last one, and the new one
            assert 1 <= len(states.rounds(client)) <= 4


def test_the_round_goes_on_without_a_node_that_does_not_answer(
    fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = SHORT | {"cohort": {"clients_per_round": 4}}
    models, heads = [], []
    for what in ("lost request", "lost answer"):

        def fault(node: int, number: int, head: dict[str, Any], what: Any = what) -> Fault:
            del number
            heads.append((node, head))
            return what if node == 1 and head["kind"] == "train" and head["round"] == 1 else ""

        caplog.clear()
        with caplog.at_level(logging.WARNING):
            (run,) = deployed(table, unreliable(fresh(tmp_path / what), fault), patience=0.2)
        lines = [record.getMessage() for record in caplog.records]
        assert lines == [
            "scaffold, seed 0: round 2: node 'node-1': no answer; without its 2 clients"
        ]
        assert [r.dropped for r in run.history] == [0, 0, 2, 0, 0]
        assert [r.stragglers for r in run.history] == [0, 0, 2, 0, 0]
        models.append(vector(run.params).tobytes())
    # whether the node wrote client state that nobody used makes no difference
    assert models[0] == models[1]
    states = {
        (head["round"], node): [rounds for (rounds,) in head["work"]["state"]]
        for node, head in heads
        if head["kind"] == "train"
    }
    assert [states[t, 1] for t in range(4)] == [[-1, -1], [0, 0], [0, 0], [2, 2]]
    assert [states[t, 0] for t in range(4)] == [[-1, -1], [0, 0], [1, 1], [2, 2]]


@pytest.mark.slow
def test_nobody_waits_twice_for_a_node_that_is_not_connected(
    fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away, trained, table = False, -1, SHORT | {"cohort": {"clients_per_round": 4}}

    def fault(node: int, number: int, head: dict[str, Any]) -> Fault:
        nonlocal away, trained
        del number
        if node == 0 and head["kind"] == "train":
            trained, away = head["round"], away or head["round"] == 1
        if node == 1:
            return "lost request" if away else ""
        if head["kind"] == "evaluate" and trained == 2:
            away = False  # it comes back when nobody expects it
        return ""

    network = unreliable(fresh(tmp_path), fault, online=lambda: [0] if away else [0, 1])
    with caplog.at_level(logging.WARNING):
        (run,) = deployed(table, network, patience=2.0)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == (
        "scaffold, seed 0: round 2: node 'node-1': not connected; without its 2 clients"
    )
    assert lines[1] == "scaffold, seed 0: node 'node-1': not connected; evaluated without it"
    assert len(lines) == 4  # of two rounds and two evaluations
    assert [r.dropped for r in run.history] == [0, 0, 2, 2, 0]
    assert sum(r.seconds or 0 for r in run.history[3:4]) < 2.0


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("prepare", r"^scaffold: node 'node-0': no answer$"),
        ("evaluate", "no node answered an evaluation; resume the run"),
    ],
)
def test_a_run_ends_if_nobody_answers(kind: str, line: str, fresh: Fresh, tmp_path: Path) -> None:
    def silent(node: int, number: int, head: dict[str, Any]) -> Fault:
        del node, number
        return "lost request" if head["kind"] == kind else ""

    with pytest.raises(InputError, match=line):
        deployed(SHORT, unreliable(fresh(tmp_path), silent), patience=0.1)


def test_a_later_method_begins_without_a_node(
    fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(node: int, number: int, head: dict[str, Any]) -> Fault:
        del number
        second = head["setup"] is not None and head["setup"]["number"] == 1
        return "lost request" if node == 1 and second and head["kind"] == "prepare" else ""

    table = TABLE | {"rounds": 2}
    with caplog.at_level(logging.WARNING):
        runs = deployed(table, unreliable(fresh(tmp_path), fault), patience=0.2)
    assert [record.getMessage() for record in caplog.records] == [
        "feddane mu=1: node 'node-1': no answer; it may take part later"
    ]
    assert [run.final.dropped for run in runs] == [0, 0]


def test_an_answer_to_another_request_is_not_used(
    fresh: Fresh, undisturbed_short: list[Any], tmp_path: Path
) -> None:
    """Old answers arrive once more, and a node answers the wrong request."""
    network, calls = in_memory([site.answer for site in fresh(tmp_path)]), itertools.count()
    last: list[Received] = []

    def receive(seconds: float) -> list[Received]:
        received = list(network.receive(seconds))
        before = list(last)
        if before and received and next(calls) % 2:
            received[0] = received[0]._replace(parcel=before[0].parcel)
        elif received:
            last[:] = received
        return before + received

    runs = deployed(SHORT, network._replace(receive=receive), joining=network)
    assert bits(runs) == undisturbed_short
