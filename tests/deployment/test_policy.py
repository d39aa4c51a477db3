"""A node's policy: what it refuses, in one line that the operator sees, and what it reports."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pydantic import ValidationError

from fedprox.deployment.combine import Declared, Shapes, sums_of
from fedprox.deployment.conversation import Answered
from fedprox.deployment.messages import Answer, pack, unpack_answer, unpack_arrays
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy
from fedprox.errors import InputError
from fedprox.federation import Federation
from tests.deployment.conftest import Fresh
from tests.deployment.federations import deployed, table_of, vector

TABLE = table_of({"name": "scaffold"}, rounds=1, evaluation={"every": 1})
OWN = "tests.deployment.test_policy:own"


def own(federation: Federation) -> Any:
    """A function that no node may import unless its policy lists it."""
    raise AssertionError(federation)


def refusal(fresh: Fresh, folder: Path, policy: Policy, table: dict[str, Any]) -> str:
    """The error of a run of which the second node refuses a method."""
    one, two = fresh(folder)
    two.node.policy = policy
    with pytest.raises(InputError) as raised:
        deployed(table, [one.answer, two.answer])
    return str(raised.value)


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (Policy(methods=["fedavg", "fedprox"]), "method 'scaffold'; allowed: fedavg, fedprox"),
        (Policy(methods=[]), "method 'scaffold'; allowed: none"),
        (Policy(models=["mlp"]), "model 'logistic'; allowed: mlp"),
        (Policy(most_rounds=4), "5 rounds; at most 4 are allowed"),
    ],
)
def test_what_a_policy_does_not_allow_ends_the_run(
    policy: Policy, line: str, fresh: Fresh, tmp_path: Path
) -> None:
    refused = refusal(fresh, tmp_path, policy, TABLE | {"rounds": 5})
    assert refused == f"scaffold: node 'node-1': it refuses: {line}"


def test_too_many_epochs_are_refused_in_each_round(
    fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = fresh(tmp_path)
    two.node.policy = Policy(most_epochs=1.5)
    with caplog.at_level(logging.WARNING):
        (run,) = deployed(TABLE, [one.answer, two.answer])
    assert [record.getMessage() for record in caplog.records] == [
        "scaffold, seed 0: round 1: node 'node-1': it refuses: 2 epochs; at most 1.5 are allowed; "
        "without its 2 clients"
    ]
    assert run.final.dropped == 2


def prepared(node: Node, change: Callable[[dict[str, Any]], None]) -> str:
    """Why a node refuses a method whose setup is changed; empty if it does not."""
    seen: list[Parcel] = []

    def record(parcel: Parcel) -> Parcel:
        seen.append(parcel)
        if json.loads(parcel.head)["kind"] == "prepare":
            return pack(Answer(id=json.loads(parcel.head)["id"], refused="enough"))
        return node.answer(parcel)

    with pytest.raises(InputError, match="enough"):
        deployed(TABLE | {"cohort": {"clients_per_round": 2}}, [record])
    head = json.loads(seen[-1].head)
    change(head["setup"])
    return unpack_answer(node.answer(Parcel(json.dumps(head).encode()))).refused


def test_functions_of_users_are_refused_unless_listed(fresh: Fresh, tmp_path: Path) -> None:
    node = fresh(tmp_path)[0].node
    for key in ("method", "model"):
        line = prepared(node, lambda setup, key=key: setup[key].update(name=OWN))  # type: ignore[misc]
        assert line.startswith(f"{key} {OWN!r}; allowed: ")
    schedule = {"schedule": OWN}
    for section in ("solver", "method"):

        def change(setup: dict[str, Any], section: str = section) -> None:
            own = setup if section == "solver" else setup["method"]
            own["solver"] = {**own.get("solver", {}), "learning_rate": schedule}

        line = prepared(node, change)
        assert line == f"solver {OWN!r}; a node runs the solvers of its library"
    node.policy = Policy(models=["logistic", OWN])
    line = prepared(node, lambda setup: setup.update(model={"name": OWN}))
    assert line.startswith(f"{OWN} raised AssertionError: ")  # it was called


def test_policies_are_checked() -> None:
    for key, value in (
        ("most_rounds", "many"),
        ("report", ["losses"]),
        ("methods", "fedavg"),
        ("other", 1),
    ):
        with pytest.raises(ValidationError):
            Policy.model_validate({key: value})


def test_clients_with_few_rows_are_not_mentioned(fresh: Fresh, tmp_path: Path) -> None:
    node = fresh(tmp_path)[0].node
    sizes = node.federation.train.sizes
    some = Node("some", node.federation, tmp_path, Policy(fewest_rows=int(sizes.max())))
    assert some.federation.names == tuple(
        name for name, size in zip(node.federation.names, sizes, strict=True) if size == sizes.max()
    )
    with pytest.raises(InputError, match=r"^policy\.fewest_rows = 99: no client has so many"):
        Node("none", node.federation, tmp_path, Policy(fewest_rows=99))


GRADIENTS = table_of({"name": "fedavg"}, rounds=1, evaluation={"gradients": True, "every": 1})


def test_measures_are_those_of_the_nodes_that_report_them(fresh: Fresh, tmp_path: Path) -> None:
    def run(*reports: list[Any]) -> Any:
        sites = fresh(tmp_path)
        for site, report in zip(sites, reports, strict=True):
            site.node.policy = Policy(report=report)
        (run,) = deployed(GRADIENTS, [site.answer for site in sites])
        return run

    everything = ["loss", "accuracy", "metrics", "gradients"]
    whole = run(everything, everything)
    one, two = run(everything, ["accuracy"]), run(["accuracy"], everything)
    federation = [site.node.federation for site in fresh(tmp_path)]
    rows = np.array([len(each.train) for each in federation])
    share = rows / rows.sum()
    for record, a, b in zip(whole.history, one.history, two.history, strict=True):
        mean = share @ [a.train_loss, b.train_loss]
        assert record.train_loss == pytest.approx(mean, rel=1e-5)
        assert record.test_accuracy == pytest.approx(a.test_accuracy)
        # of the other node alone, not of both
        assert share @ [a.gradient_variance, b.gradient_variance] <= record.gradient_variance
    # losses of both nodes, gradients of one
    mixed = run(everything, ["loss"])
    assert mixed.final.train_loss == pytest.approx(whole.final.train_loss)
    assert mixed.final.gradient_variance == pytest.approx(one.final.gradient_variance, rel=1e-4)
    assert math.isnan(run(["loss"], ["loss"]).final.test_accuracy)
    nothing = run(["loss"], ["loss"]).final
    assert math.isnan(nothing.gradient_variance)
    assert nothing.train_loss == pytest.approx(whole.final.train_loss)
    assert (vector(mixed.params) == vector(whole.params)).all()


def test_a_node_sends_nothing_that_it_does_not_report(fresh: Fresh, tmp_path: Path) -> None:
    (site, other), sent = fresh(tmp_path), []

    def record(parcel: Parcel) -> Parcel:
        answer = site.answer(parcel)
        if json.loads(parcel.head)["kind"] == "evaluate":
            assert unpack_answer(answer).withheld == ["accuracy", "metrics", "gradients"]
            sent.append(set(unpack_arrays(answer.body)))
        return answer

    site.node.policy = Policy(report=["loss"])
    deployed(GRADIENTS, [record, other.answer])
    expected = {"loss", "weight", "unmeasured", "test/loss['sum']", "test/loss['rows']"}
    assert sent == [expected, expected]


def test_somebody_must_report_losses(fresh: Fresh, tmp_path: Path) -> None:
    sites = fresh(tmp_path)
    for site in sites:
        site.node.policy = Policy(report=["accuracy"])
    with pytest.raises(InputError, match=r"^no node reports losses, so a run that diverges"):
        deployed(TABLE, [site.answer for site in sites])


def test_a_metric_may_be_named_like_a_measure() -> None:
    """A node reports metrics, and no accuracies."""
    number = jax.ShapeDtypeStruct((1,), np.float32)
    like = {name: {"rows": number} for name in ("accuracy", "accuracy_of_two")}
    arrays = {"test/accuracy_of_two['rows']": np.ones(1, np.float32)}
    shapes = Shapes(1, {}, like, None, 0.0, has_accuracy=True)
    answered = Answered(Answer(id=""), arrays, 0, 0)
    read = sums_of(answered, shapes, Declared(1.0, 1, 1, 1, 0, 0, central=False))
    assert list(read.sums["test"]) == ["accuracy_of_two"]
