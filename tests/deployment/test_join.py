"""Which nodes form a federation, and in which order."""

import dataclasses
import importlib.metadata
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import fedprox as fp
from fedprox import cli
from fedprox.deployment import conversation, joining
from fedprox.deployment.conversation import Conversation
from fedprox.deployment.coordinator import Coordinator, Ledger, require_same_clients
from fedprox.deployment.joining import (
    Joined,
    declared_in_words,
    description_of,
    join,
    labels_in_words,
)
from fedprox.deployment.network import Network, Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy
from fedprox.deployment.wire import Answer, Clients, Description, in_one_line, parcel_of
from fedprox.errors import InputError
from fedprox.experiment import parse
from fedprox.federation import Federation
from fedprox.report.directory import versions
from tests.deployment.conftest import Fresh
from tests.deployment.federations import bits, deployed, described, in_memory, table_of

TABLE = table_of({"name": "scaffold"}, rounds=2, evaluation={"every": 1})
ALL = TABLE | {"cohort": {"clients_per_round": 4}}
VERSION = fp.__version__


def data(
    *names: str, classes: int = 2, features: int = 3, validated: bool = False, low: int = 0
) -> Federation:
    """Clients with ten rows each."""
    rng, rows = np.random.default_rng(len(names)), 10
    clients = [
        (rng.normal(size=(rows, features)), low + np.arange(rows) % (classes - low)) for _ in names
    ]
    federation = fp.Federation.from_arrays(clients, names=list(names), classes=classes)
    return federation.hold_out(0.5) if validated else federation


def described_by(name: str, federation: Federation, **changes: Any) -> Callable[[Parcel], Parcel]:
    """A node that only describes itself."""

    def answer(parcel: Parcel) -> Parcel:
        description = description_of(name, VERSION, federation, ["loss"], sampled=False)
        changed = Description.model_validate(description.model_dump() | changes)
        return replied(parcel, description=changed)

    return answer


def replied(parcel: Parcel, **fields: Any) -> Parcel:
    """An answer to a request."""
    return parcel_of(Answer(id=json.loads(parcel.head)["id"], **fields))


def joined(
    *nodes: Callable[[Parcel], Parcel], count: int | None = None, patience: float = 0.1
) -> Joined:
    """The nodes that join."""
    return join(Conversation(in_memory(nodes), patience=patience), count or len(nodes))


def server_of(table: Any, joined: Joined) -> Coordinator:
    """The coordinator of an experiment on some nodes, which it does not ask."""
    return Coordinator(
        Conversation(in_memory([])), parse("test", table), joined, Ledger(run="run1")
    )


def refused(*nodes: Callable[[Parcel], Parcel], count: int | None = None) -> str:
    """Why no federation is formed."""
    with pytest.raises(InputError) as raised:
        server_of(TABLE, joined(*nodes, count=count))
    return str(raised.value)


AUGMENTED = dataclasses.replace(data("b"), augment=lambda _, rows: rows)
TARGETS = fp.Federation.from_arrays([(np.ones((2, 3)), np.full(2, 0.5))], names=["b"])
PLAIN = fp.Federation.from_arrays([(np.ones((2, 3)), np.full(2, 3))], names=["b"])


@pytest.mark.parametrize(
    ("second", "line"),
    [
        (data("b", "a"), "its client 'a' is on node 'm' too; names of clients must differ"),
        (
            data("b", features=4),
            "features: it has float32[4], and node 'm' has float32[3]; all nodes ne",
        ),
        (
            data("b", validated=True),
            "its clients have validation rows, and those of node 'm' have ",
        ),
        (TARGETS, "label type: it has float32, and node 'm' has int32; all nodes need data of one"),
        (dataclasses.replace(PLAIN, classes=0), "its labels are not classes, and those of node 'm"),
        (AUGMENTED, "augmented: it has True, and node 'm' has False; all nodes need data of one k"),
    ],
)
def test_a_node_that_does_not_fit_those_before_it_is_left_out(
    second: Federation, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One node, misconfigured or a liar, does not end the command of the others."""
    nodes = [described_by("m", data("a")), described_by("l", second), described_by("o", data("c"))]
    result = joined(*nodes, count=2, patience=5.0)
    assert [each.name for each in result.descriptions] == ["m", "o"]
    (logged,) = (record.getMessage() for record in caplog.records)
    assert logged.startswith(f"node 1: {line}")
    assert logged.endswith("; left out")
    small = {**TABLE, "cohort": {"clients_per_round": 2}}
    assert server_of(small, result).joined is result
    refusal = refused(*nodes[:2], count=2)
    assert refusal.startswith(f"deployment.nodes = 2: 1 joined within 0.1 s (m, 1: {line}")


def test_the_versions_are_those_of_the_running_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metadata may be of an earlier installation, as in an editable one."""
    read = importlib.metadata.version

    def stale(name: str) -> str:
        return "0.0.0" if name == "fedprox" else read(name)

    monkeypatch.setattr(importlib.metadata, "version", stale)
    node = Node("m", data("a"), tmp_path, Policy())
    (description,) = joined(node.answer).descriptions
    assert description.version == fp.__version__
    assert versions()["fedprox"] == fp.__version__
    with pytest.raises(typer.Exit):
        cli._print_version(wanted=True)
    assert capsys.readouterr().out == f"fedprox {fp.__version__}\n"


def test_a_gap_in_the_classes_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """By what nodes declare; which labels they have, and how many, stays with them."""
    low, high = data("a", classes=3), data("b", classes=8, low=5)
    result = joined(described_by("m", low), described_by("n", high))
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(
        "nodes differ in their number of classes: 3 on m; 8 on n. The run has 8, labels 0 to 7. "
    )
    assert [declared_in_words(each) for each in result.descriptions] == [
        "node m: 1 client, 10 training rows, 0 test rows, 3 classes, labels up to 2",
        "node n: 1 client, 10 training rows, 0 test rows, 8 classes, labels up to 7",
    ]
    assert labels_in_words(high) == (
        "labels of training rows: 5: 4, 6: 3, 7: 3; 5 of 8 classes have none: 0 to 4"
    )
    assert labels_in_words(low) == "labels of training rows: 0: 4, 1: 3, 2: 3"
    many = data("c", classes=200, low=190)
    assert labels_in_words(many).endswith("; 190 of 200 classes have none: 0 to 189")
    assert labels_in_words(TARGETS) == ""
    caplog.clear()
    joined(described_by("m", high), described_by("n", data("a", classes=8)))
    assert not caplog.records


def strange(**values: Any) -> Callable[[Parcel], Parcel]:
    """A node whose description has changed values."""

    def answer(parcel: Parcel) -> Parcel:
        description = described(**{"version": VERSION, "name": "strange", **values})
        head = {"id": json.loads(parcel.head)["id"], "description": description}
        return Parcel(json.dumps(head).encode())

    return answer


def of_arrays(*others: str, classes: int = 10, **changes: Any) -> Callable[[Parcel], Parcel]:
    """A node whose features are an array with changed values, and arrays of other names."""
    array = {"name": "", "shape": [60], "type": "float32", "greatest": 0} | changes
    arrays = [array, *(array | {"name": name} for name in others)]
    return strange(features=arrays, classes=classes)


DESCRIBED = "its answer is refused: answer: description."
ARRAY = f"{DESCRIBED}kind.features.0."
TWICE = {"names": ["a", "a"], "train": [3, 3], "test": [1, 1], "labels": [1, 1]}


@pytest.mark.parametrize(
    ("node", "line"),
    [
        (described_by("n", data("b")), "its name 'n' is that of node 0; names of nodes must"),
        (
            described_by("m", data("b"), version="0.0.1\n"),
            f"it has fedprox 0.0.1\\n; the coordinator has {VERSION}, and results are the same",
        ),
        (strange(train=[1, 2]), f"{DESCRIBED}clients: its lists have different lengths"),
        (strange(train=[0]), f"{DESCRIBED}clients.train.0: Input should be greater than or equal"),
        (strange(train=[2**40]), f"{DESCRIBED}clients.train.0: Input should be less than or equal"),
        (strange(test=[-1]), f"{DESCRIBED}clients.test.0: Input should be greater than or equal"),
        (strange(validation=[1, 2]), f"{DESCRIBED}clients: its lists have different lengths"),
        (strange(central_validation=-1), f"{DESCRIBED}central_validation: Input should be greater"),
        (of_arrays(shape=[-60]), f"{ARRAY}shape.0: Input should be greater than or"),
        (of_arrays(type="object"), f"{ARRAY}type: String should match"),
        (strange(label_type="\x1b[2J" * 999), f"{DESCRIBED}kind.label_type: String should match"),
        (strange(classes=10**9), f"{DESCRIBED}kind.classes: Input should be less than or"),
        (strange(classes=10**5 + 1), f"{DESCRIBED}kind.classes: Input should be less than or"),
        (of_arrays(greatest=10**6), f"{ARRAY}greatest: Input should be less"),
        (
            of_arrays(shape=[10**5, 10**5]),
            f"{ARRAY}shape: 10000000000 numbers; at most 10,000,000 are allowed",
        ),
        (of_arrays(shape=[1] * 9), f"{ARRAY}shape: List should have at most 8 items"),
        (of_arrays("a"), f"{DESCRIBED}kind: features: arrays named ['', 'a'], which form no tree"),
        (of_arrays("a.b", name="a"), f"{DESCRIBED}kind: features.a: arrays named ['', 'b'], which"),
        (of_arrays("1", name="2"), f"{DESCRIBED}kind: features: arrays named ['2', '1'], which fo"),
        (of_arrays("b c", name="a"), f"{DESCRIBED}kind: features: arrays named ['a', 'b c'], whi"),
        (of_arrays("a", name="b"), f"{DESCRIBED}kind: features: arrays named ['b', 'a'], not in t"),
        (of_arrays("a", name="a"), f"{DESCRIBED}kind: features: arrays named ['a', 'a'], not in t"),
        (
            of_arrays("b", name="a", shape=[10**7]),
            f"{DESCRIBED}kind: 20000000 numbers; at most 10,000,000 are allowed",
        ),
        (strange(features=[]), f"{DESCRIBED}kind.features: List should have at least 1 item"),
        (strange(label=[10**8]), f"{DESCRIBED}kind.label: 100000000 numbers; at most 10,000,000"),
        (
            of_arrays(shape=[10**6], classes=10**4),
            f"{DESCRIBED}kind: 1,000,000 numbers of an example and 10,000 classes; their product",
        ),
        (strange(names=[]), f"{DESCRIBED}clients.names: List should have at least 1 item"),
        (strange(names=["a", "a"]), f"{DESCRIBED}clients: its lists have different lengths"),
        (strange(**TWICE), f"{DESCRIBED}clients: a client appears twice"),
        (strange(names=["a\nb"]), f"{DESCRIBED}clients.names.0: 'a\\nb'; 1 to 200 printable char"),
        (strange(name="a\x1b[31m"), f"{DESCRIBED}name: 'a\\x1b[31m'; 1 to 200 printable"),
        (strange(name="x" * 10**4), f"{DESCRIBED}name: '{'x' * 299} ...; 1 to 200 printable"),
        (strange(reports=["rows"]), "it reports ['rows']; there are loss, accuracy, metrics,"),
        (replied, "it does not describe its"),
        (lambda parcel: replied(parcel, refused="no\n" * 10**4), "it refuses: no\\nno\\nno"),
        (lambda _: Parcel(b"x" * 10**6), "its answer is refused: 1,000,000 bytes; at most"),
        (lambda parcel: Parcel(parcel.head, b"x"), "its answer is refused: answer: "),
    ],
)  # fmt: skip
def test_a_node_that_cannot_join_is_left_out_and_the_others_go_on(
    node: Callable[[Parcel], Parcel],
    line: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversation, "MOST_DESCRIBED", 100_000)
    began, seen = time.monotonic(), list[Sequence[str]]()
    nodes = [described_by("n", data("a")), node, described_by("o", data("c"))]
    result = join(Conversation(in_memory(nodes), patience=5.0), 2, seen.append)
    assert [each.name for each in result.descriptions] == ["n", "o"]
    assert time.monotonic() - began < 4
    (logged,) = (record.getMessage() for record in caplog.records)
    assert logged.startswith(f"node 1: {line}")
    assert logged.endswith("; left out")
    assert logged.isprintable()
    assert len(logged) < 1_200


@pytest.mark.slow
def test_a_node_has_at_most_a_million_clients() -> None:
    line = "here: names: List should have at most 1000000 items"
    with pytest.raises(InputError, match=line), in_one_line("here"):
        Clients(names=["a"] * (10**6 + 1), train=[1], test=[1], labels=[1], validation=[])


@pytest.mark.slow
def test_a_node_that_was_left_out_may_join_later(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([described_by("n", data("b"), version="0.0.1")] * 3)

    def upgraded(parcel: Parcel) -> Parcel:
        return next(answers, described_by("n", data("b")))(parcel)

    result = joined(described_by("m", data("a")), upgraded, patience=2.0)
    assert [each.name for each in result.descriptions] == ["m", "n"]
    assert len(caplog.records) == 1


def test_why_a_node_was_left_out_is_told_though_it_is_silent_now() -> None:
    old = described_by("n", data("b"), version="0.0.1")
    network, sent = in_memory([described_by("m", data("a")), old]), itertools.count()

    def send(requests: Any) -> Any:
        if next(sent):
            return dict.fromkeys(requests, "lost")
        return network.send(requests)

    with pytest.raises(InputError) as raised:
        join(Conversation(network._replace(send=send), patience=0.1), 2)
    assert "(m, 1: it has fedprox 0.0.1; the coordinator has" in str(raised.value)


def test_only_the_nodes_of_a_list_join(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [described_by(name, data(f"client-{name}")) for name in ("stranger", "a", "b")]
    network = in_memory(nodes)

    def names(*listed: str, network: Network = network) -> list[str]:
        result = join(Conversation(network, patience=0.1), 1, names=listed)
        return [each.name for each in result.descriptions]

    assert names("b", "a") == ["a", "b"]
    assert [record.getMessage() for record in caplog.records] == [
        "node 0: its name 'stranger' is not one of b, a; left out"
    ]
    with pytest.raises(InputError) as raised:
        names("a", "c")
    assert str(raised.value) == (
        "deployment.names = ['a', 'c']: 1 joined within 0.1 s (a, c is missing, 0: its name "
        "'stranger' is not one of a, c, 2: its name 'b' is not one of a, c)"
    )
    with pytest.raises(InputError, match=r"^deployment.names: 'a' appears twice$"):
        names("a", "a")
    # a name is taken only with its key
    keyed = network._replace(may_be=lambda node, name: (node, name) == (2, "b"))
    assert names("b", network=keyed) == ["b"]
    caplog.clear()
    with pytest.raises(InputError, match="it has not the key of node 'a'"):
        names("a", network=keyed)


def second_is_silent() -> Network:
    """Two nodes, m and n, of which the second never answers."""
    network = in_memory([described_by("m", data("a")), described_by("n", data("b"))])

    def send(requests: Any) -> Any:
        numbers = network.send({node: each for node, each in requests.items() if node == 0})
        return {node: numbers.get(node, "lost") for node in requests}

    return network._replace(send=send)


@pytest.mark.slow
def test_a_silent_node_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "DESCRIBE_WAIT", 0.1)
    monkeypatch.setattr(joining, "DESCRIBE_EVERY", 0.1)
    looks, began = itertools.count(), time.monotonic()
    late = second_is_silent()._replace(nodes=lambda: [1] if next(looks) < 6 else [0, 1])
    result = join(Conversation(late, patience=60.0), 1)
    assert [each.name for each in result.descriptions] == ["m"]
    assert time.monotonic() - began < 5


def test_a_run_is_resumed_with_the_same_clients_in_their_order() -> None:
    before = {"a": {"1": 5, "2": 6}, "b": {"3": 7}}

    def line(now: dict[str, dict[str, int]]) -> str:
        with pytest.raises(InputError) as raised:
            require_same_clients("--resume r", before, now)
        return str(raised.value)

    require_same_clients("--resume r", before, before)
    assert line({"a": before["a"], "c": {"3": 7}}) == (
        "--resume r: number 2 of the nodes is 'c'; it was 'b' when the run began"
    )
    assert line({"a": {"2": 6, "1": 5}, "b": {"3": 7}}) == (
        "--resume r: node 'a': number 1 of the clients is '2'; it was '1' when the run began"
    )
    assert line({"a": {"1": 5}, "b": {"3": 7}}) == (
        "--resume r: node 'a': number 2 of the clients is not there; it was '2' when the run began"
    )
    assert line({"a": {"1": 5, "2": 7}, "b": {"3": 7}}) == (
        "--resume r: client '2' of node 'a' has 7 training rows; it had 6 when the run began"
    )


def test_too_few_nodes_are_named() -> None:
    a = described_by("m", data("a"))
    assert refused(a, count=2) == "deployment.nodes = 2: 1 joined within 0.1 s (m)"
    assert refused(count=1) == "deployment.nodes = 1: 0 joined within 0.1 s (none)"
    conversation = Conversation(second_is_silent(), patience=0.1)
    with pytest.raises(InputError) as raised:
        join(conversation, 2)
    assert str(raised.value) == "deployment.nodes = 2: 1 joined within 0.1 s (m, 1: no answer)"
    assert [each.name for each in join(conversation, 1).descriptions] == ["m"]


@pytest.mark.slow
def test_nodes_may_join_late_and_in_any_order() -> None:
    nodes = [described_by(name, data(f"{name}1", f"{name}2")) for name in "pqr"]
    orders = []
    for order in itertools.permutations(range(3)):
        network, looks = in_memory([nodes[i] for i in order]), itertools.count(1)
        growing = Network(
            lambda looks=looks: list(range(min(3, next(looks) // 4))),  # type: ignore[misc]
            network.send,
            network.receive,
        )
        waiting: list[list[str]] = []
        result = join(
            Conversation(growing, patience=0.5),
            3,
            lambda names, waiting=waiting: waiting.append(list(names)),  # type: ignore[misc]
        )
        assert waiting[0] == []
        # it is told when a node joined, and not at each look
        assert list(map(len, waiting)) == sorted(set(map(len, waiting)))
        assert sorted(waiting[-1]) == ["p", "q", "r"]
        resolved = server_of(TABLE, result).resolved
        orders.append(([each.name for each in result.descriptions], resolved.federation.names))
        assert [order[node] for node in result.nodes] == [0, 1, 2]
    assert all(each == orders[0] for each in orders)
    assert orders[0][1] == ("p1", "p2", "q1", "q2", "r1", "r2")


@pytest.mark.slow
def test_results_do_not_depend_on_the_order_of_nodes(fresh: Fresh, tmp_path: Path) -> None:
    one, two = fresh(tmp_path)
    runs = deployed(ALL, [one.answer, two.answer])
    assert bits(deployed(ALL, [two.answer, one.answer], ledger=Ledger(run="other"))) == bits(runs)


@pytest.mark.slow
def test_a_class_that_only_one_node_has(tmp_path: Path) -> None:
    parts = [data("a", "b", classes=2), data("c", "d", classes=4, low=2)]
    nodes = [Node(f"n{i}", part, tmp_path / f"n{i}", Policy()) for i, part in enumerate(parts)]
    table = table_of(
        {"name": "fedprox", "mu": [0.0, 1.0]},
        rounds=1,
        evaluation={"every": 1, "gradients": False},
        cohort={"clients_per_round": 4},
        seed=[1, 2],
    )
    runs = deployed(table, [node.answer for node in nodes])
    points = [(run.hparams["mu"], run.seed) for run in runs]
    assert points == [(0.0, 1), (1.0, 1), (0.0, 2), (1.0, 2)]
    for run in runs:
        assert run.params["dense"]["bias"].shape == (4,)
    assert (runs[0].params["dense"]["bias"] != runs[1].params["dense"]["bias"]).any()


PRIVACY = {"clip": 1.0, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"evaluation": {"clients": 2}}, "evaluation.clients = 2 does not go with a deployment"),
        ({"evaluation": {"by_client": True}}, "evaluation.by_client = True does not go with a dep"),
        ({"evaluation": {"client_records": True}}, "evaluation.client_records = True does not go"),
        ({"privacy": PRIVACY, "seed": [0, 1]}, "^2 runs: with \\[privacy\\] a deployment has one"),
        ({"attack": {"kind": "noise", "share": 0.5}}, "^attack does not go with a deployment, sin"),
        ({"privacy": PRIVACY, "method": [{"name": "fedprox", "mu": [0.0, 1.0]}]}, "^2 runs: "),
        ({"privacy": {"clip": math.inf, "noise_multiplier": 0.0}}, "^privacy.clip = inf; in a dep"),
        ({"privacy": PRIVACY, "population": {"step_seconds": 1.0}}, "^population does not go with"),
        ({"method": [{"name": "centralized"}]}, "centralized"),
        ({"method": [{"name": "scaffnew", "p": 0.5}]}, "^scaffnew: it needs every client in every"),
        ({"method": [{"name": "ifca", "k": 2}]}, "^ifca: its clients measure several models, so a"),
    ],
)
def test_settings_that_no_deployment_has(sections: Any, line: str) -> None:
    result = joined(described_by("m", data("a", "b", "c", "d")))
    with pytest.raises(InputError, match=line):
        server_of(table_of(*TABLE["method"], **sections), result)
