"""Privacy of examples in a deployment: nodes draw rows and noise, and count the steps."""

import itertools
import json
import logging
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedprox.deployment import node_method as module
from fedprox.deployment.coordinator import Ledger
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy, PrivacyPolicy
from fedprox.deployment.wire import unpack_answer, unpack_arrays
from fedprox.errors import InputError
from fedprox.experiment import parse, resolve
from fedprox.parts.privacy.accounting import Mechanism, epsilon_of, epsilon_together, rounded_up
from fedprox.protocol.method import noise_words, sweep_points
from tests.deployment.conftest import Fresh
from tests.deployment.federations import Site, deployed, simulated, table_of
from tests.deployment.test_private import answers, interrupted, models, require_noise
from tests.deployment.test_same_results import METHODS, check
from tests.deployment.test_spending import edited, recorded

CLIP, Z, DELTA = 0.5, 1.0, 1e-3
STEPS: dict[str, Any] = {
    "unit": "example",
    "clip": CLIP,
    "noise_multiplier": Z,
    "delta": DELTA,
    "accountant": "rdp",
}
SIZES = {"0": 42, "1": 50, "2": 51, "3": 41}
"""Training rows of the clients, of which each node has two."""

SAME = ("fedavg", "scaffold", "fedopt")
"""Methods without state, with state of clients, and of the server."""


def steps_table(method: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """An experiment whose local steps hide rows; three of four clients take part."""
    privacy = STEPS | sections.pop("privacy", {})
    given = {"privacy": privacy, "evaluation": {"gradients": False}}
    return table_of(method or METHODS["fedavg"], **(given | sections))


ALL = {"clients_per_round": 4}


@pytest.fixture
def nodes(fresh: Fresh, tmp_path: Path) -> list[Site]:
    """Two nodes, which have spent nothing."""
    return fresh(tmp_path)


def mechanism(rows: int, batch: int = 10) -> Mechanism:
    """What a step of a client releases."""
    return Mechanism(rows, min(batch, rows), "bernoulli", None, Z, 1, DELTA, "rdp")


def taken(node: Site) -> dict[str, int]:
    """The steps that a node has counted for each client."""
    return {name: sum(count for _, count in steps) for name, steps in node.node.spent.steps.items()}


def compared(table: dict[str, Any], nodes: list[Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that nodes with the entropy of the seed are the private simulation."""
    resolved = resolve(parse("test", table))
    (method,) = resolved.methods
    solver = method.solver(resolved.solver)
    words = [noise_words(method, solver, point) for point in sweep_points(method, solver)]
    monkeypatch.setattr(module, "own_entropy", lambda _: (0, np.stack(words)))
    (ours,) = deployed(table, answers(nodes))
    (theirs,) = simulated(table)
    check([theirs], [ours])
    assert [r.epsilon for r in ours.history] == [r.epsilon for r in theirs.history]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_with_the_entropy_of_the_seed_it_is_the_private_simulation(
    name: str, nodes: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = steps_table(METHODS[name], systems={"stragglers": 0.5}, cohort=ALL)
    compared(table, nodes, monkeypatch)


DEVICES = {"step_seconds": [0.1, 0.5, 1.0, 0.3], "latency": 0.1, "dropout": 0.2}


@pytest.mark.slow  # pairs that compile rounds of their own
@pytest.mark.parametrize(
    "sections",
    [
        {"compression": {"codec": "sign"}},
        {"population": DEVICES, "systems": {"deadline": 6.0}},
    ],
)
def test_so_it_is_with_compression_and_devices(
    sections: dict[str, Any], nodes: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(steps_table(cohort=ALL, **sections), nodes, monkeypatch)


def whole(**privacy: Any) -> dict[str, Any]:
    """One step on all rows, of which none is left to chance."""
    solver = {"batch_size": "all", "epochs": 1}
    evaluation = {"every": 1, "gradients": False}
    return steps_table(rounds=1, cohort=ALL, solver=solver, privacy=privacy, evaluation=evaluation)


@pytest.mark.slow
def test_the_noise_is_large_enough_and_is_never_the_same(nodes: list[Site]) -> None:
    first, second = (deployed(whole(), answers(nodes), ledger=Ledger())[0] for _ in range(2))
    # each of four clients has noise of z C / n_k in its gradient, and a weight of n_k / n
    deviation = 0.05 * Z * CLIP * math.sqrt(4) / sum(SIZES.values())
    require_noise(models(first) - models(second), math.sqrt(2) * deviation)


@pytest.mark.slow
def test_the_rows_are_never_the_same(nodes: list[Site]) -> None:
    table = steps_table(rounds=1, cohort=ALL, privacy={"noise_multiplier": 0.0})
    first, second = (deployed(table, answers(nodes), ledger=Ledger())[0] for _ in range(2))
    assert (models(first) != models(second)).any()


@pytest.fixture(scope="module")
def training(fresh: Fresh, tmp_path_factory: pytest.TempPathFactory) -> Parcel:
    """A request to train two clients, with its arrays."""
    folder = tmp_path_factory.mktemp("recorded")
    return recorded(steps_table(cohort=ALL), fresh(folder))["train"]


def test_a_request_that_is_computed_again_is_paid_again(
    training: Parcel, nodes: list[Site]
) -> None:
    node = nodes[0]
    first = node.answer(training)
    assert node.answer(training) is first
    assert taken(node) == {"0": 10, "1": 10}
    assert node.node.spent.rounds == 1
    node.restart()
    again = node.answer(training)
    arrays, others = (unpack_arrays(each.body) for each in (first, again))
    message = next(name for name in arrays if name.startswith("message"))
    assert (arrays[message] != others[message]).any()
    assert taken(node) == {"0": 20, "1": 20}
    assert node.node.spent.rounds == 2


def limited(epsilon: float, delta: float = DELTA) -> Policy:
    """A policy with a limit for rows."""
    return Policy(privacy=PrivacyPolicy(unit="example", epsilon=epsilon, delta=delta))


WORST = epsilon_of(mechanism(41), 30)
"""Epsilon of the smallest client in a run of three rounds, in which it takes ten steps."""


def test_a_node_accepts_what_its_policy_allows_once(nodes: list[Site]) -> None:
    table = steps_table(cohort=ALL)
    most = WORST * (1 + 1e-9)
    for node in nodes:
        node.node.policy = limited(most)
    (run,) = deployed(table, answers(nodes))
    assert run.final.epsilon == pytest.approx(WORST)
    assert [taken(node) for node in nodes] == [{"0": 30, "1": 30}, {"2": 36, "3": 30}]
    twice = rounded_up(epsilon_together(((mechanism(42), 60),), DELTA))
    line = (
        f"fedavg: node 'node-0': it refuses: privacy: epsilon = {twice} with delta = 0.001 for "
        "each row of client '0', of this run and all before it together; at most epsilon = "
        f"{most:g} is allowed"
    )
    with pytest.raises(InputError, match=re.escape(line)):
        deployed(table, answers(nodes), ledger=Ledger())


def test_a_run_is_resumed_within_its_limit(nodes: list[Site]) -> None:
    """What it has spent is a part of what it has planned."""
    table = steps_table(cohort=ALL)
    deployed(table | {"rounds": 2}, answers(nodes))
    for node in nodes:
        node.node.policy = limited(epsilon_of(mechanism(41), 50) * (1 + 1e-9))
    deployed(
        table, answers(nodes), ledger=Ledger(run="run1")
    )  # which begins again: 20 and 30 steps


@pytest.mark.parametrize(
    ("policy", "table", "line"),
    [
        (
            limited(WORST * 0.999),
            steps_table(cohort=ALL),
            r"privacy: epsilon = 7.\d+ with delta = 0.001 for each row of client '3', ",
        ),
        (
            limited(WORST, 1e-4),
            steps_table(cohort=ALL),
            r"privacy: epsilon = 8.\d+ with delta = 0.0001 for each row of client '2', ",
        ),
        (
            limited(4.0),
            table_of(METHODS["fedavg"], cohort=ALL),
            r"a run without \[privacy\]; at most epsilon = 4 with delta = 0.001 is allowed",
        ),
        (
            limited(100.0),
            steps_table(cohort=ALL | {"sampling": "bernoulli"}, privacy={"unit": "client"}),
            'a run whose privacy.unit is not "example"; at most epsilon = 100 .* for each example',
        ),
        (
            Policy(privacy=PrivacyPolicy(epsilon=100.0, delta=DELTA)),
            steps_table(cohort=ALL),
            'a run whose privacy.unit is not "client"; at most epsilon = 100 .* for each client',
        ),
        (
            limited(100.0),
            steps_table(cohort=ALL, privacy={"noise_multiplier": 0.0}),
            r"privacy: epsilon = inf with delta = 0.001 for each row of client '2', ",
        ),
    ],
)
def test_a_node_refuses_a_weaker_run(
    policy: Policy, table: dict[str, Any], line: str, nodes: list[Site]
) -> None:
    nodes[1].node.policy = policy
    with pytest.raises(InputError, match=f"fedavg: node 'node-1': it refuses: {line}"):
        deployed(table, answers(nodes))


def test_whatever_was_planned_no_step_exceeds_the_limit(
    nodes: list[Site], caplog: pytest.LogCaptureFixture
) -> None:
    node = nodes[1]
    node.node.policy = limited(epsilon_of(mechanism(41), 20) * 1.001)

    def silent(parcel: Parcel) -> Parcel:
        """An operator that says nothing of what it has planned."""
        head = json.loads(parcel.head)
        return node.answer(edited(parcel, id=head["id"], planned={}))

    with caplog.at_level(logging.WARNING, "fedprox.deployment.remote"):
        (run,) = deployed(steps_table(cohort=ALL), [nodes[0].answer, silent])
    assert taken(node) == {"2": 24, "3": 20}
    assert run.final.dropped == 2
    (warning,) = [r.getMessage() for r in caplog.records if r.name == "fedprox.deployment.remote"]
    assert "round 3: node 'node-1': it refuses: privacy: epsilon = " in warning


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"setup__solver__gamma": 0.5, "setup__gradients": True},
            'fedavg: solver.gamma = 0.5 does not go with privacy.unit = "example", since it looks',
        ),
        (
            {"setup__method": {"name": "feddane", "mu": 1.0}},
            'feddane: its clients compute a gradient over all .*, so privacy.unit = "example" does',
        ),
        (
            {"setup__method": {"name": "fedprox", "mu": [0.1, 0.2]}},
            "2 sweep points; a private run has one",
        ),
        ({"setup__private_steps__clip": 0.0}, "request: setup.private_steps.clip: "),
        ({"setup__private_steps__noise_multiplier": -1.0}, "request: .*noise_multiplier: "),
        ({"setup__private_steps__accountant": "mine"}, "request: setup.private_steps.accountant: "),
    ],
)
def test_what_hides_no_row_is_refused(
    changes: dict[str, Any], line: str, training: Parcel, nodes: list[Site]
) -> None:
    answer = unpack_answer(nodes[0].answer(edited(training, **changes)))
    assert re.match(line, answer.refused)
    assert taken(nodes[0]) == {}


def test_clients_of_a_plan_are_on_the_node(training: Parcel, nodes: list[Site]) -> None:
    unread: dict[str, Any] = {"work": None, "participation": 0.0, "arrays": []}
    strange = edited(training, kind="prepare", planned={"0": 1, "7": 1}, **unread)
    answer = unpack_answer(nodes[0].answer(strange))
    assert answer.refused == "planned: clients 7 are not on this node"


def test_rounds_that_are_repeated_are_counted_again(nodes: list[Site], tmp_path: Path) -> None:
    table = steps_table(rounds=4, cohort=ALL, evaluation={"every": 1, "gradients": False})
    run, ledger = interrupted(table, nodes, tmp_path)
    assert (ledger.released, ledger.repeated) == (4, [(2, 3)])
    spent = {record.round: record.epsilon for record in run.history}
    expected = {t: epsilon_of(mechanism(41), 10 * n) for t, n in ((2, 2), (3, 4), (4, 5))}
    assert {t: spent[t] for t in expected} == pytest.approx(expected)


def calibrated_table() -> dict[str, Any]:
    """An experiment that gives an epsilon in place of noise."""
    table = whole(epsilon=3.0)
    del table["privacy"]["noise_multiplier"]
    return table


def test_noise_for_an_epsilon_is_enough_for_what_nodes_have_counted(nodes: list[Site]) -> None:
    (run,) = deployed(calibrated_table(), answers(nodes))
    assert 2.9 < (run.final.epsilon or 0.0) <= 3.0
    costs = [
        epsilon_together(tuple(steps), DELTA)
        for node in nodes
        for steps in node.node.spent.steps.values()
    ]
    assert max(costs) == pytest.approx(run.final.epsilon)


@pytest.mark.slow
def test_noise_for_an_epsilon_is_that_of_the_simulation(nodes: list[Site]) -> None:
    table = calibrated_table()
    (ours,), (theirs,) = deployed(table, answers(nodes)), simulated(table)
    assert ours.noise_multiplier == theirs.noise_multiplier
    assert ours.final.epsilon == theirs.final.epsilon


@pytest.mark.slow  # a run by a clock compiles a round of its own
def test_by_a_clock_the_planned_steps_count(nodes: list[Site]) -> None:
    table = steps_table(cohort=ALL, systems={"deadline": 1000.0})
    (run,) = deployed(table, answers(nodes), patience=600.0)
    assert run.final.epsilon == pytest.approx(WORST)
    assert run.final.total_steps == 3 * 42


def test_what_a_node_has_counted_is_kept(training: Parcel, nodes: list[Site]) -> None:
    node = nodes[0]
    node.answer(training)
    spent, again = node.node.spent, Node("again", node.node.federation, node.node.folder, Policy())
    assert again.spent == spent
    assert again.spent.steps["0"] == [(_setting().of_steps(42, 10, Z), 10)]


def _setting() -> Any:
    return resolve(parse("test", steps_table())).privacy


def test_without_a_barrier_it_is_refused(nodes: list[Site]) -> None:
    table = steps_table(asynchronous={"buffer": 1})
    with pytest.raises(
        InputError, match=r"asynchronous does not go with a deployment with privacy.unit"
    ):
        deployed(table, answers(nodes))


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_a_ledger_counts_every_release(sessions: list[tuple[int, int]]) -> None:
    """Each session goes on with a round at which it may, and releases some."""
    ledger, released = Ledger(), Counter[int]()
    for back, more in sessions:
        first = max(0, ledger.released - back)
        ledger.begin(first)
        for t in range(first, first + more):
            ledger.release()
            released[t] += 1
    counted = Counter(range(ledger.released))
    for rounds in itertools.starmap(range, ledger.repeated):
        counted.update(rounds)
    assert counted == released
