"""Measures are releases: what an operator cannot learn from a node's exact answers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.policy import Policy, PrivacyPolicy
from fedprox.deployment.wire import (
    READS,
    VERSION,
    Array,
    Request,
    Setup,
    digest_of,
    pack_arrays,
    unpack_answer,
    unpack_arrays,
    unpack_request,
)
from fedprox.errors import InputError
from fedprox.federation import Federation, Rows
from tests.deployment.conftest import Fresh
from tests.deployment.federations import EVERYTHING, Site, deployed, nodes_of, table_of
from tests.deployment.test_private_steps import steps_table
from tests.deployment.test_spending import Requests, edited, recorded

FEATURES, CLASSES = 60, 10
PRIVATE = PrivacyPolicy(unit="example", epsilon=50.0, delta=1e-3)
PRIVATE_RUN = steps_table(rounds=1, cohort={"clients_per_round": 4})


class Asked(dict[str, Array]):
    """The arrays of an answer.

    Args:
        answered: The answer.
    """

    def __init__(self, answered: Parcel) -> None:
        head = unpack_answer(answered)
        super().__init__(unpack_arrays(answered.body) if not head.refused else {})
        self.refused, self.withheld = head.refused, head.withheld


def measured(node: Node, request: Parcel, arrays: Sequence[Array], **changes: Any) -> Asked:
    """A node's answer to an evaluation of a model of the operator's choice."""
    named = {digest_of(each): each for each in arrays}
    changed = edited(request, arrays=[digest_of(each) for each in arrays], **changes)
    return Asked(node.answer(changed._replace(body=pack_arrays(named))))


def model(bias: Mapping[int, float], weight: Mapping[tuple[int, int], float]) -> list[Array]:
    """A logistic model with a few numbers that are not 0, as the leaves of its parameters."""
    b, w = np.zeros((1, CLASSES), np.float32), np.zeros((1, CLASSES, FEATURES), np.float32)
    for label, value in bias.items():
        b[0, label] = value
    for place, value in weight.items():
        w[0, *place[::-1]] = value
    return [b, w]


Recorded = tuple[Node, Requests]
"""The first of two nodes, and requests that it was sent."""


@pytest.fixture(scope="module")
def private_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Site], Requests]:
    """Two nodes, and requests of a run whose local steps hide rows."""
    folder = tmp_path_factory.mktemp("private")
    sites = [Site(each) for each in nodes_of(PRIVATE_RUN, folder)]
    return sites, recorded(PRIVATE_RUN, sites)


@pytest.fixture
def private(private_run: tuple[list[Site], Requests], tmp_path: Path) -> Recorded:
    """Of a run whose local steps hide rows."""
    sites, requests = private_run
    return sites[0].moved(tmp_path).node, requests


@pytest.fixture(scope="module")
def plain_requests(first_sites: list[Site], tmp_path_factory: pytest.TempPathFactory) -> Requests:
    """Of a run without privacy whose records have gradients."""
    table = table_of(
        {"name": "fedavg"},
        rounds=1,
        evaluation={"gradients": True},
        cohort={"clients_per_round": 4},
    )
    folder = tmp_path_factory.mktemp("plain")
    return recorded(table, [site.moved(folder) for site in first_sites])


@pytest.fixture
def plain(plain_requests: Requests, fresh: Fresh, tmp_path: Path) -> Recorded:
    """Of a run without privacy whose records have gradients."""
    return fresh(tmp_path)[0].node, plain_requests


def stolen(node: Node, request: Parcel, **changes: Any) -> tuple[int, Array] | None:
    """The first training row of a node and its label, from 71 evaluations; None without losses.

    With weights of 0 and one bias of 1 the loss says whether the label is that one; with one weight
    of 0.01 beside the label it is a function of one feature.
    """
    losses = [
        measured(node, request, model({label: 1.0}, {}), **changes).get("loss")
        for label in range(CLASSES)
    ]
    zero = measured(node, request, model({}, {}), **changes).get("loss")
    known = [float(loss[0]) for loss in losses if loss is not None]
    if zero is None or len(known) < CLASSES:
        return None
    label = int(np.argmin(known))
    row = np.zeros(FEATURES)
    for j in range(FEATURES):
        loss = measured(node, request, model({}, {(j, label): 0.01}), **changes)["loss"]
        # log(9 + exp(s)) - s = log(1 + 9 exp(-s)) of the score s
        row[j] = -np.log(np.expm1(float(loss[0])) / (CLASSES - 1)) / 0.01
    return label, row


@pytest.mark.parametrize("changes", [{}, pytest.param({"setup__rows": 1}, marks=pytest.mark.slow)])
def test_seventy_one_evaluations_do_not_give_a_row(
    changes: dict[str, Any], private: Recorded
) -> None:
    node, requests = private
    node.policy = Policy(privacy=PRIVATE, report=["loss", "accuracy"], fewest_rows=40)
    assert stolen(node, requests["evaluate"], **changes) is None
    assert node.reports == []
    answer = measured(node, requests["evaluate"], model({}, {}), **changes)
    assert not answer
    assert not node.spent.rounds  # nothing was computed from data


def test_seventy_one_losses_of_a_row_are_the_row(private: Recorded) -> None:
    """What `exact_measures` gives away of a node whose one row is measured."""
    node, requests = private
    one = alone(node.federation)
    exact = PRIVATE.model_copy(update={"exact_measures": True})
    node = Node("alone", one, node.folder, Policy(privacy=exact))
    found = stolen(node, requests["evaluate"])
    assert found is not None
    label, row = found
    assert label == one.train.y[0]
    assert np.abs(row - one.train.x[0]).max() < 1e-3


@pytest.mark.slow
def test_exact_measures_are_answered_if_the_policy_says_so(private: Recorded) -> None:
    node, requests = private
    exact = PRIVATE.model_copy(update={"exact_measures": True})
    node.policy = EVERYTHING.model_copy(update={"privacy": exact, "fewest_rows": 40})
    answer = measured(node, requests["evaluate"], model({}, {}))
    assert answer["loss"] == pytest.approx(np.log(CLASSES), rel=1e-6)
    assert answer.withheld == ["gradients"]
    refused = measured(node, requests["evaluate"], model({}, {}), setup__rows=1).refused
    assert refused == "request: setup.rows: Extra inputs are not permitted"


def test_a_private_run_goes_on_without_measures(
    private_run: tuple[list[Site], Requests], tmp_path: Path
) -> None:
    sites = [site.moved(tmp_path) for site in private_run[0]]
    for site in sites:
        site.node.policy = Policy(privacy=PRIVATE)
    (run,) = deployed(PRIVATE_RUN, [site.answer for site in sites])
    assert [record.measured for record in run.history] == [False, False]
    assert run.final.dropped == 0
    assert run.final.epsilon is not None


@pytest.mark.slow
def test_no_gradient_gives_a_row_by_default(plain: Recorded) -> None:
    node, requests = plain
    one = alone(node.federation)
    node = Node("alone", one, node.folder, Policy())
    for policy, given in ((Policy(), False), (EVERYTHING, True)):
        node.policy = policy
        answer = measured(node, requests["evaluate"], model({}, {}))
        gradient = [each for name, each in answer.items() if each.shape == (1, CLASSES, FEATURES)]
        assert bool(gradient) == given
        if given:  # what the policy has to name: the gradient of one row is the row
            label = int(one.train.y[0])
            row = gradient[0][0, label] / (1 / CLASSES - 1)
            assert np.abs(row - one.train.x[0]).max() < 1e-6
    assert "gradients" in answer.withheld or given


def alone(federation: Federation) -> Federation:
    """The first row of the first client."""
    first = federation.of_clients(np.array([0]))
    train, test = (
        Rows(rows.x[:1], rows.y[:1], np.array([0, 1])) for rows in (first.train, first.test)
    )
    return Federation(train, test, first.classes, first.names)


def test_no_measure_is_of_fewer_rows(plain: Recorded) -> None:
    whole, requests = plain
    federation = whole.federation
    tested = len(federation.test)
    assert tested < federation.train.sizes.min()
    for fewest, shown in ((tested, True), (tested + 1, False)):
        policy = EVERYTHING.model_copy(update={"fewest_rows": fewest})
        node = Node("node-0", federation, whole.folder / str(fewest), policy)
        answer = measured(node, requests["evaluate"], model({}, {}))
        assert "loss" in answer
        assert any(name.startswith("test/") for name in answer) == shown
    policy = Policy(fewest_rows=10, measured_rows=9)
    with pytest.raises(InputError, match=r"^policy\.measured_rows = 9; it must be .*at least 10"):
        Node("node-0", federation, whole.folder / "few", policy)


@pytest.mark.parametrize("bound", [{"fewest_rows": 2}, {"fewest_clients": 2}])
def test_the_model_does_not_choose_whose_losses_are_summed(
    bound: dict[str, int], plain: Recorded
) -> None:
    """A model of which some clients' losses are infinite shows the others' alone."""
    node, requests = plain

    def answer(weight: float) -> Asked:
        return measured(node, requests["evaluate"], model({}, {(0, 0): weight, (0, 1): -weight}))

    chosen = next(
        weight
        for weight in np.geomspace(1e18, 1e20, 60).tolist()
        if answer(weight)["unmeasured"].tolist() == [1]
    )
    node.policy = EVERYTHING.model_copy(update=bound)
    assert set(answer(chosen)) == {"test/accuracy['sum']", "test/accuracy['rows']"}


METHODS: list[tuple[dict[str, Any], str]] = [
    ({"name": "ifca", "k": 2}, "ifca: its clients measure several models"),
    ({"name": "centralised"}, "centralised: it has all rows in one place"),
]


@pytest.mark.parametrize(("method", "line"), METHODS)
@pytest.mark.parametrize("kind", ["prepare", "train", "evaluate"])
def test_a_node_runs_no_method_that_no_deployment_has(
    method: dict[str, Any], line: str, kind: str, plain: Recorded
) -> None:
    """An operator whose program does not refuse it, too."""
    node, requests = plain
    refused = Asked(node.answer(edited(requests[kind], setup__method=method))).refused
    assert line in refused


UNREAD: dict[str, Any] = {
    "participation": 1e-9,
    "planned": {"0": 1},
    "initial": True,
    "seconds": 1.0,
    "left_out": "why",
}
"""Values of fields that an evaluation does not read, but for the work."""


def test_a_request_has_nothing_that_its_kind_does_not_read(plain: Recorded) -> None:
    node, requests = plain
    work = json.loads(requests["train"].head)["work"]
    given = {**UNREAD, "work": work, "round": 1, "arrays": ["0" * 32]}
    for kind, reads in READS.items():
        fields = given.keys() - reads
        assert fields
        for name in fields:
            head = {"version": VERSION, "id": "x", "kind": kind, name: given[name]}
            line = f"request: {kind} does not read {name}: leave it out"
            assert Asked(node.answer(Parcel(json.dumps(head).encode()))).refused == line
    for name in UNREAD:
        refused = Asked(node.answer(edited(requests["evaluate"], **{name: given[name]}))).refused
        assert refused == f"request: evaluate does not read {name}: leave it out"


def test_a_stage_of_a_sum_has_nothing_that_it_does_not_read() -> None:
    advert = {"node": "a", "keys": "", "context": "", "measures": []}
    given: dict[str, Any] = {"roster": [advert], "included": ["a"], "asked": ["a"]}
    given |= {"number": 1, "by": "clients", "rate": 0.5}
    given |= {name: {"a": ""} for name in ("shares", "commitments", "signatures")}
    for kind, reads in READS.items():
        for name in [name for name in given if "secret" in reads and f"secret.{name}" not in reads]:
            secret = {"keys": "0" * 32, "of": "train", name: given[name]}
            head = {"version": VERSION, "id": "x", "kind": kind, "secret": secret}
            line = f"request: {kind} does not read secret.{name}: leave it out"
            with pytest.raises(InputError, match=line):
                unpack_request(Parcel(json.dumps(head).encode()))


SAME, FEWER, REFUSED = "the same answer", "fewer measures", "refused"

ALONE: dict[str, tuple[Any, str]] = {
    "id": ("another", SAME),
    "version": (VERSION + 1, REFUSED),
    "kind": ("gradients", REFUSED),
    "round": (1, SAME),
    "work": ({}, REFUSED),
    "secret": ({"keys": "0" * 32, "of": "evaluate"}, SAME),
    **{name: (value, REFUSED) for name, value in UNREAD.items()},
    "setup__run": ("another", SAME),
    "setup__number": (3, SAME),
    "setup__seed": (7, SAME),
    "setup__rounds": (9, SAME),
    "setup__clients": (400, SAME),
    "setup__clients_per_round": (1, SAME),
    "setup__data__classes": (11, REFUSED),
    "setup__mean": ([1.0], REFUSED),
    "setup__scale": ([1.0], REFUSED),
    "setup__parameters": ("", REFUSED),
    "setup__model": ({"name": "mlp"}, REFUSED),
    "setup__base": ("0" * 64, SAME),
    "setup__solver__learning_rate": (1e-9, SAME),
    "setup__method": ({"name": "fedprox", "mu": 1.0}, SAME),
    "setup__evaluated": ("cohort", SAME),
    "setup__gradients": (False, FEWER),
    "setup__deadline": (1e-3, SAME),
    "setup__privacy": ({}, REFUSED),
    "setup__private_steps": (
        {"clip": 1.0, "epsilon": None}
        | {"noise_multiplier": 0.0, "delta": 0.1, "accountant": "pld"},
        SAME,
    ),
    "setup__measures": (
        {"loss_bound": 8.0, "share": None, "only": None}
        | {"noise_multiplier": 1.0, "delta": 0.1, "evaluations": 9},
        REFUSED,
    ),
    "setup__secure": (
        {"threshold": 3, "bound": 1.0, "bits": 32, "honest": 1, "nodes": []},
        REFUSED,
    ),
    "setup__compression": ({"codec": "sign"}, SAME),
    "setup__products": (True, REFUSED),
}
"""What an evaluation that differs in one field alone is answered."""


def test_evaluations_that_differ_in_one_field(plain: Recorded) -> None:
    """No field but the model says what is measured."""
    node, requests = plain
    node.arrays = {}
    request = requests["evaluate"]
    first = Asked(node.answer(edited(request)))
    assert "loss" in first
    fields = set(Request.model_fields) - {"setup", "arrays"} | {
        f"setup__{n}" for n in Setup.model_fields
    }
    assert fields == {"__".join(name.split("__")[:2]) for name in ALONE}
    for name, (value, expected) in ALONE.items():
        answer = Asked(node.answer(edited(request, **{name: value})))
        if expected == REFUSED:
            assert answer.refused, name
            continue
        assert not answer.refused, name
        assert answer.keys() == first.keys() if expected == SAME else answer.keys() < first.keys()
        for array, own in answer.items():
            assert own.tobytes() == first[array].tobytes(), name
