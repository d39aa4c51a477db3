"""Privacy in a deployment: nodes clip, the coordinator adds noise that nobody can repeat."""

import dataclasses
import logging
import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprox.deployment.coordinator import Ledger, read_ledger
from fedprox.deployment.entropy import NORMALS_AT_ONCE, system_normals
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy, PrivacyPolicy
from fedprox.errors import InputError
from fedprox.loop.checkpoint import Checkpoints
from fedprox.parts.privacy.accounting import Mechanism, epsilon_of
from fedprox.protocol.cohort import Cohort
from fedprox.results.run import Run
from tests.deployment.conftest import Fresh
from tests.deployment.federations import (
    Killed,
    Site,
    changed,
    deployed,
    simulated,
    table_of,
    unreliable,
    vector,
)
from tests.deployment.test_same_results import METHODS, check

EVERYBODY = {"clients_per_round": 4, "sampling": "bernoulli"}
CLIP, Z, DELTA = 0.05, 2.0, 1e-3
"""All clients' updates are longer than the clipping norm."""

SETTING = {"clip": CLIP, "noise_multiplier": Z, "delta": DELTA}


def private_table(method: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """An experiment with privacy in which all clients take part."""
    privacy = SETTING | sections.pop("privacy", {})
    given = {"cohort": EVERYBODY, "privacy": privacy, "evaluation": {"gradients": False}}
    return table_of(method or METHODS["fedavg"], **(given | sections))


REFUSED = ("fednova", "fedexp", "qffl", "mime")
"""Methods that privacy does not fit."""

DIFFERENT = ("feddane", "scaffold", "ditto")
"""Methods with two exchanges, with state of clients, and with own models."""


@pytest.fixture
def nodes(fresh: Fresh, tmp_path: Path) -> list[Site]:
    """Two nodes without client state."""
    return fresh(tmp_path)


def answers(nodes: list[Site]) -> list[Callable[[Parcel], Parcel]]:
    """What the nodes answer."""
    return [node.answer for node in nodes]


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT)
def test_without_noise_it_is_the_private_simulation(
    name: str, nodes: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda _: 0)  # stragglers of the seed
    quiet = {"noise_multiplier": 0.0}
    table = private_table(METHODS[name], privacy=quiet, systems={"stragglers": 0.5})
    ours = deployed(table, answers(nodes))
    check(simulated(table), ours)
    assert ours[0].final.epsilon == math.inf


@pytest.mark.parametrize("name", REFUSED)
def test_methods_that_privacy_does_not_fit_are_refused(name: str, nodes: list[Site]) -> None:
    table = private_table(METHODS[name])
    with pytest.raises(
        InputError, match=f'{name}: .*, so privacy.unit = "client" does not fit; run it without'
    ):
        deployed(table, answers(nodes))


@pytest.mark.slow
def test_the_norm_adapts_as_in_the_private_simulation(nodes: list[Site]) -> None:
    adaptive = {"quantile": 0.8, "rate": 0.5}
    table = private_table(privacy={"noise_multiplier": 0.0, "adaptive_clip": adaptive})
    ours = deployed(table, answers(nodes))
    check(simulated(table), ours)


def test_a_node_whose_bits_cannot_be_is_left_out(
    nodes: list[Site], caplog: pytest.LogCaptureFixture
) -> None:
    table = private_table(rounds=1, privacy={"noise_multiplier": 0.0, "adaptive_clip": {}})
    one, two = nodes

    def driven(head: Any, arrays: Any) -> None:
        del head
        arrays["message.within"] = arrays["message.within"] * 0 + np.float32(1e6)

    with caplog.at_level(logging.WARNING):
        (run,) = deployed(table, [one.answer, changed(two.answer, "train", driven)])
    assert [record.getMessage() for record in caplog.records] == [
        "fedavg, seed 0: round 1: node 'node-1': its answer is refused: its message is none that "
        "its clients can send; without its 2 clients"
    ]
    assert run.final.dropped == 2
    assert run.final.round == 1


def models(run: Run) -> np.ndarray:
    """All numbers of a run's model."""
    return vector(run.params).astype(np.float64)


def require_noise(difference: np.ndarray, deviation: float) -> None:
    """Assert the deviation of independent noise; a false alarm has a probability of 6e-7."""
    spread = math.sqrt(float(np.mean(difference**2)))
    assert abs(spread / deviation - 1) < 5 / math.sqrt(2 * difference.size)


def test_the_noise_is_large_enough_and_is_never_the_same(nodes: list[Site]) -> None:
    table = private_table(rounds=1)
    first, second = (deployed(table, answers(nodes), ledger=Ledger())[0] for _ in range(2))
    require_noise(models(first) - models(second), math.sqrt(2) * Z * CLIP / 4)


@pytest.mark.slow
def test_noise_is_added_in_rounds_without_answers(nodes: list[Site]) -> None:
    def lost(node: int, number: int, head: dict[str, Any]) -> Any:
        del node, number
        return "lost request" if head["kind"] == "train" else ""

    network = unreliable(nodes, lost)
    table = private_table(rounds=2)
    one, two = (deployed(table, network, patience=0.1, ledger=Ledger())[0] for _ in range(2))
    assert one.final.empty_rounds == 2
    # two rounds of each
    require_noise(models(one) - models(two), 2 * Z * CLIP / 4)


@pytest.mark.slow
def test_neither_the_seed_nor_requests_tell_who_takes_part(nodes: list[Site]) -> None:
    """With two nodes, one that is told how many came would learn of the other's clients."""
    told, cohort = set(), {"clients_per_round": 2, "sampling": "bernoulli"}

    def listen(node: int, number: int, head: dict[str, Any]) -> Any:
        del node, number
        if head["kind"] == "train":
            told.add((head["participation"], *head["work"]["weight"]))
        return ""

    table = private_table(rounds=12, cohort=cohort, evaluation={"every": 1, "gradients": False})
    (run,) = deployed(table, unreliable(nodes, listen))
    sizes = [record.clients for record in run.history[1:]]
    drawn = [Cohort(2, "bernoulli").draw(0, t, np.arange(5), poisson=True) for t in range(12)]
    assert sizes != [len(cohort.clients) for cohort in drawn]  # but for 1e-7
    assert all(record.network == {} for record in run.history)  # nor do the records
    assert {shares[0] for shares in told} == {0.5}  # q = 2 / 4
    assert {weight for shares in told for weight in shares[1:]} == {0.5}  # 1 / 2


def interrupted(table: dict[str, Any], nodes: list[Site], folder: Path) -> tuple[Run, Ledger]:
    """A run that is killed in its third round and resumed, and its ledger."""

    def kill(node: int, number: int, head: dict[str, Any]) -> Any:
        del node, number
        if head["kind"] == "train" and head["round"] == 2:
            raise Killed
        return ""

    def checkpoints(*, resume: bool) -> Checkpoints:
        return Checkpoints(folder / "checkpoint", every=1, resume=resume)

    with pytest.raises(Killed):
        deployed(table, unreliable(nodes, kill), checkpoints(resume=False), ledger=Ledger(folder))
    ledger = read_ledger(folder)
    assert (ledger.released, ledger.repeated) == (3, [])
    (run,) = deployed(table, answers(nodes), checkpoints(resume=True), ledger=ledger)
    return run, read_ledger(folder)


def test_rounds_that_are_repeated_are_counted_again(nodes: list[Site], tmp_path: Path) -> None:
    table = private_table(rounds=4, evaluation={"every": 1, "gradients": False})
    run, ledger = interrupted(table, nodes, tmp_path)
    assert (ledger.released, ledger.repeated) == (4, [(2, 3)])
    mechanism = Mechanism(4, 4, "bernoulli", None, Z, 1, DELTA, "pld")
    spent = {record.round: record.epsilon for record in run.history}
    expected = dict(zip((2, 3, 4), [epsilon_of(mechanism, t) for t in (2, 4, 5)], strict=True))
    assert {t: spent[t] for t in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weakest", "table", "released", "line"),
    [
        (
            PrivacyPolicy(epsilon=1.0, delta=1e-3),
            private_table(),
            0,
            r"privacy: epsilon = 2\.63\d with delta = 0.001 for this run and all before it "
            "together; at most epsilon = 1 is allowed",
        ),
        (
            PrivacyPolicy(epsilon=3.0, delta=1e-4),
            private_table(),
            0,
            r"privacy: epsilon = 3\.21\d with delta = 0.0001 for this run",
        ),
        (
            PrivacyPolicy(epsilon=2.64, delta=1e-3),
            private_table(),
            20,
            r"privacy: epsilon = \d+\.\d+ with delta = 0.001 for this run .* epsilon = 2.64 ",
        ),
        (
            PrivacyPolicy(epsilon=4.0, delta=1e-5),
            table_of(METHODS["fedavg"]),
            0,
            r"a run without \[privacy\]; at most epsilon = 4 with delta = 1e-05 is allowed",
        ),
    ],
)
def test_a_node_refuses_a_weaker_run(
    weakest: PrivacyPolicy,
    table: dict[str, Any],
    released: int,
    line: str,
    nodes: list[Site],
) -> None:
    nodes[1].node.policy = Policy(privacy=weakest)
    with pytest.raises(InputError, match=f"fedavg: node 'node-1': it refuses: {line}"):
        deployed(table, answers(nodes), ledger=Ledger(run="run1", released=released))


def test_a_node_accepts_a_run_that_is_as_strong_as_it_asks(nodes: list[Site]) -> None:
    for node in nodes:
        node.node.policy = Policy(privacy=PrivacyPolicy(epsilon=2.64, delta=1e-3))
    (run,) = deployed(private_table(), answers(nodes))
    assert run.final.epsilon is not None
    assert 2.6 < run.final.epsilon < 2.64


@pytest.mark.parametrize("kind", ["train", "gradients"])
def test_a_node_that_does_not_clip_is_left_out(
    kind: str, nodes: list[Site], caplog: pytest.LogCaptureFixture
) -> None:
    def enlarge(head: dict[str, Any], arrays: dict[str, Any]) -> None:
        del head
        for name in [name for name in arrays if name.startswith("message")]:
            arrays[name] = arrays[name] * np.float32(1.5)

    table = private_table(METHODS["feddane" if kind == "gradients" else "fedavg"], rounds=1)
    one, two = nodes
    with caplog.at_level(logging.WARNING):
        deployed(table, [one.answer, changed(two.answer, kind, enlarge)])
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "node 'node-1': its answer is refused: its sum has the norms [" in warning


def test_measures_of_few_clients_are_not_reported(nodes: list[Site]) -> None:
    one, two = nodes

    def first_record(policy: Policy) -> tuple[float, float, float]:
        two.node.policy = policy
        table = private_table(rounds=1)
        (run,) = deployed(table, [one.answer, two.answer], ledger=Ledger())
        record = run.history[0]
        return record.train_loss, record.test_accuracy, record.test_loss

    everything, nothing = first_record(Policy()), first_record(Policy(report=[]))
    assert everything != nothing
    assert first_record(Policy(fewest_clients=2)) == everything  # it has two clients
    assert first_record(Policy(fewest_clients=3)) == nothing


@pytest.mark.slow  # a node with rows of its own compiles programs of its own
def test_held_out_measures_of_few_clients_are_not_reported(
    nodes: list[Site], tmp_path: Path
) -> None:
    whole = nodes[0].node.federation
    test = dataclasses.replace(whole.test, offsets=np.array([0, 0, len(whole.test)]))
    federation = dataclasses.replace(whole, test=test)  # one of two clients has test rows
    policy = Policy(fewest_clients=2)
    table = table_of(METHODS["fedavg"], rounds=1, cohort={"clients_per_round": 2})
    (run,) = deployed(table, [Node("node", federation, tmp_path / "node", policy).answer])
    first = run.history[0]
    assert first.train_loss > 0
    assert math.isnan(first.test_accuracy)
    assert math.isnan(first.test_loss)


def test_system_normals() -> None:
    drawn = system_normals({"a": np.zeros((2, NORMALS_AT_ONCE)), "b": np.zeros(3)})
    assert drawn["a"].shape == (2, NORMALS_AT_ONCE)
    assert drawn["a"].dtype == np.float32
    numbers = drawn["a"].ravel().astype(np.float64)
    require_noise(numbers, 1.0)
    assert abs(numbers.mean()) < 5 / math.sqrt(numbers.size)
    assert abs((np.abs(numbers) < 1).mean() - math.erf(math.sqrt(0.5))) < 5 * math.sqrt(
        0.25 / numbers.size
    )
    assert abs(np.corrcoef(*drawn["a"])[0, 1]) < 5 / math.sqrt(NORMALS_AT_ONCE)
