"""Which nodes form a federation, and in which order."""

import dataclasses
import importlib.metadata
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprox as fp
from fedprox.deployment.conversation import Conversation
from fedprox.deployment.joining import Joined, join
from fedprox.deployment.memory import in_memory
from fedprox.deployment.messages import Answer, Description, pack
from fedprox.deployment.network import Network, Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy
from fedprox.deployment.run_file import Ledger
from fedprox.deployment.server import resolve_deployment
from fedprox.deployment.stand_in import describe
from fedprox.errors import InputError
from fedprox.experiment import parse
from fedprox.federation import Federation
from tests.deployment.conftest import Fresh
from tests.deployment.federations import bits, deployed, table_of

TABLE = table_of({"name": "scaffold"}, rounds=2, evaluation={"every": 1})
VERSION = importlib.metadata.version("fedprox")


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
        description = describe(name, VERSION, federation, ["loss"])
        head = json.loads(parcel.head)
        changed = Description.model_validate(description.model_dump() | changes)
        return pack(Answer(id=head["id"], description=changed))

    return answer


def joined(*nodes: Callable[[Parcel], Parcel], count: int | None = None) -> Joined:
    """The nodes that join."""
    return join(Conversation(in_memory(nodes), patience=0.1), count or len(nodes))


def refused(*nodes: Callable[[Parcel], Parcel], count: int | None = None) -> str:
    """Why no federation is formed."""
    with pytest.raises(InputError) as raised:
        resolve_deployment(parse("test", TABLE), joined(*nodes, count=count), Ledger(run="run1"))
    return str(raised.value)


def test_nodes_that_do_not_fit_are_refused_in_one_line() -> None:
    a, b = data("a"), data("b")
    assert refused(described_by("n", a), described_by("n", b)) == (
        "two nodes are named 'n'; names of nodes must differ"
    )
    assert refused(described_by("m", a), described_by("n", data("b", "a"))) == (
        "client 'a' is on node 'm' and on node 'n'; names of clients must differ"
    )
    assert refused(described_by("m", a), described_by("n", data("b", features=4))) == (
        "nodes 'm' and 'n' differ in features: [3] and [4]; all nodes need data of one kind"
    )
    assert refused(described_by("m", a), described_by("n", b, version="0.0.1")) == (
        f"node 'n' has fedprox 0.0.1; the coordinator has {VERSION}, and results are the same only "
        "with the same version"
    )
    assert refused(described_by("m", a), described_by("n", data("b", validated=True))) == (
        "clients of node 'n' have validation rows, those of node 'm' have none; all nodes or none "
        "must have them"
    )
    targets = fp.Federation.from_arrays([(np.ones((2, 3)), np.ones(2))], names=["b"])
    line = refused(described_by("m", a), described_by("n", targets))
    assert line.startswith("nodes 'm' and 'n' ")
    augmented = dataclasses.replace(b, augment=lambda _, rows: rows)
    assert refused(described_by("m", a), described_by("n", augmented)) == (
        "nodes 'm' and 'n' differ in augmented: False and True; all nodes need data of one kind"
    )


def test_too_few_nodes_are_named() -> None:
    a = described_by("m", data("a"))
    assert refused(a, count=2) == "deployment.nodes = 2: 1 joined within 0.1 s (m)"
    assert refused(count=1) == "deployment.nodes = 1: 0 joined within 0.1 s (none)"


def test_a_node_that_does_not_answer_does_not_join() -> None:
    network = in_memory([described_by("m", data("a")), described_by("n", data("b"))])

    def send(requests: Any) -> Any:
        numbers = network.send({node: each for node, each in requests.items() if node == 0})
        return {node: numbers.get(node, "lost") for node in requests}

    silent = network._replace(send=send)
    with pytest.raises(InputError) as raised:
        join(Conversation(silent, patience=0.1), 2)
    assert str(raised.value) == ("deployment.nodes = 2: 1 joined within 0.1 s (m, 1: no answer)")
    assert [each.name for each in join(Conversation(silent, patience=0.1), 1).descriptions] == ["m"]


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
        assert sorted(waiting[-1]) == ["p", "q", "r"]
        resolved = resolve_deployment(parse("test", TABLE), result, Ledger(run="run1")).resolved
        orders.append(([each.name for each in result.descriptions], resolved.federation.names))
        assert [order[node] for node in result.nodes] == [0, 1, 2]
    assert all(each == orders[0] for each in orders)
    assert orders[0][1] == ("p1", "p2", "q1", "q2", "r1", "r2")


def test_results_do_not_depend_on_the_order_of_nodes(fresh: Fresh, tmp_path: Path) -> None:
    one, two = fresh(tmp_path)
    runs = deployed(TABLE, [one.answer, two.answer])
    assert bits(deployed(TABLE, [two.answer, one.answer], ledger=Ledger(run="other"))) == bits(runs)


def test_a_class_that_only_one_node_has(tmp_path: Path) -> None:
    parts = [data("a", "b", classes=2), data("c", classes=4, low=2)]
    nodes = [Node(f"n{i}", part, tmp_path / f"n{i}", Policy()) for i, part in enumerate(parts)]
    table = table_of(
        {"name": "fedprox", "mu": [0.0, 1.0]}, rounds=1, evaluation={"every": 1}, seed=[1, 2]
    )
    runs = deployed(table, [node.answer for node in nodes])
    assert [(run.hparams["mu"], run.seed) for run in runs] == [
        (0.0, 1),
        (1.0, 1),
        (0.0, 2),
        (1.0, 2),
    ]
    for run in runs:
        assert run.params["dense"]["bias"].shape == (4,)
    assert (runs[0].params["dense"]["bias"] != runs[1].params["dense"]["bias"]).any()


PRIVACY = {"clip": 1.0, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"evaluation": {"clients": 2}}, "evaluation.clients: leave it out in a deployment, where"),
        ({"evaluation": {"by_client": True}}, "evaluation.by_client: leave it out in a deployment"),
        (
            {"evaluation": {"client_records": True}},
            "evaluation.client_records: leave it out in a deployment, where nodes return sums over",
        ),
        (
            {"privacy": PRIVACY, "seed": [0, 1]},
            r"^2 runs: with \[privacy\] a deployment has one method, one value",
        ),
        ({"privacy": PRIVACY, "method": [{"name": "fedprox", "mu": [0.0, 1.0]}]}, "^2 runs: "),
        (
            {"privacy": {"clip": math.inf, "noise_multiplier": 0.0}},
            "^privacy.clip = inf; in a deployment it must be finite$",
        ),
        ({"method": [{"name": "centralized"}]}, "centralized"),
        (
            {"method": [{"name": "scaffnew", "p": 0.5}]},
            "^scaffnew needs every client in every round; leave it out in a deployment, where",
        ),
    ],
)
def test_settings_that_no_deployment_has(sections: Any, line: str) -> None:
    result = joined(described_by("m", data("a", "b", "c", "d")))
    with pytest.raises(InputError, match=line):
        resolve_deployment(
            parse("test", table_of(*TABLE["method"], **sections)), result, Ledger(run="run1")
        )
