"""A node's policy: what it refuses, in one line that the operator sees, and what it reports."""

import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp
from fedprox.deployment.combine import Declared, sums_of
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.node_method import NodeMethod
from fedprox.deployment.policy import REPORTS, Policy, PrivacyPolicy
from fedprox.deployment.wire import Answer, parcel_of, unpack_answer, unpack_arrays
from fedprox.errors import InputError
from fedprox.experiment.schema import Section
from fedprox.federation import Federation
from fedprox.results.run import Run
from tests.deployment.conftest import Fresh
from tests.deployment.federations import (
    EVERYTHING,
    Site,
    changed,
    deployed,
    overheard,
    table_of,
    vector,
)

ALL = table_of(
    {"name": "scaffold"}, rounds=1, evaluation={"every": 1}, cohort={"clients_per_round": 4}
)
OWN = "tests.deployment.test_policy:own"
SEARCHED = {"learning_rate": 0.05, "batch_size": "all", "epochs": 2, "gamma": 0.5}


def own(federation: Federation) -> Any:
    """A function that no node may import unless its policy lists it."""
    raise AssertionError(federation)


def run_of(sites: Sequence[Site], table: dict[str, Any], *policies: Policy) -> Run:
    """The run of nodes with these policies."""
    for site, policy in zip(sites, policies, strict=True):
        site.node.policy = policy
    (run,) = deployed(table, [site.answer for site in sites])
    return run


@pytest.mark.parametrize(
    ("policy", "change", "line"),
    [
        (Policy(methods=["fedavg", "fedprox"]), {}, "method 'scaffold'; allowed: fedavg, fedprox"),
        (Policy(report=["loss"]), {"solver": SEARCHED}, "solver.gamma: steps show when"),
    ],
)
def test_what_a_policy_does_not_allow_ends_the_run(
    policy: Policy, change: dict[str, Any], line: str, fresh: Fresh, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"^scaffold: node 'node-1': it refuses: {line}"):
        run_of(fresh(tmp_path), ALL | change, EVERYTHING, policy)


def preparing(node: Node) -> Parcel:
    """The request that asks a node whether it takes part in a run."""
    seen: list[Parcel] = []

    def record(parcel: Parcel) -> Parcel:
        seen.append(parcel)
        if json.loads(parcel.head)["kind"] == "prepare":
            return parcel_of(Answer(id=json.loads(parcel.head)["id"], refused="enough"))
        return node.answer(parcel)

    with pytest.raises(InputError, match="enough"):
        deployed(ALL | {"cohort": {"clients_per_round": 2}}, [record])
    return seen[-1]


def refused_by(
    node: Node, request: Parcel, change: Callable[[dict[str, Any]], None] = lambda _: None
) -> str:
    """Why a node refuses a request whose setup is changed; empty if it does not."""
    head = json.loads(request.head)
    change(head["setup"])
    node.last = {}
    return unpack_answer(node.answer(Parcel(json.dumps(head).encode()))).refused


HIDING = {
    "clip": 1.0,
    "epsilon": None,
    "adaptive_clip": None,
    "mechanism": [2, 2, "bernoulli", None, 1.0, 1, 0.1, "rdp"],
    "rounds": 1,
}
SECURING = {"threshold": 3, "bound": 1.0, "bits": 32, "honest": 2, "nodes": list("abcd")}
SHORT = {"learning_rate": 0.05, "batch_size": 10, "epochs": 2}
PRIVATE_RUN = {"privacy": HIDING, "method": {"name": "fedavg"}}

Changes = dict[str, Any]

REFUSED_BEFOREHAND: dict[str, tuple[Changes, Changes, str]] = {
    "methods": ({"methods": ["fedavg"]}, {}, "method 'scaffold'; allowed: fedavg"),
    "models": ({"models": ["cnn"]}, {}, "model 'logistic'; allowed: cnn"),
    "runs": ({"runs": ["0" * 64]}, {}, "run "),
    "base": ({}, {"model": {"name": "logistic", "frozen": ["dense"]}}, "model: the run freezes va"),
    "most_rounds": ({"most_rounds": 4}, {"rounds": 5}, "5 more rounds; the node has answered 0"),
    "most_epochs": ({"most_epochs": 1.5}, {}, "2 epochs; at most 1.5 are allowed"),
    "report": ({"report": ["loss"]}, {"method": {"name": "mime"}}, "mime: its clients send what t"),
    "fewest_clients": (
        {"fewest_clients": 3, "report": list(REPORTS)},
        {"method": {"name": "mime"}},
        "mime: its clients send what they measure, and gradients and losses of fewer than 3 "
        "clients are not sent; the node has 2",
    ),
    "privacy.unit": (
        {"privacy": {"unit": "example", "epsilon": 99.0, "delta": 1e-3}},
        PRIVATE_RUN,
        'a run whose privacy.unit is not "example"; at most epsilon = 99 with delta = 0.001',
    ),
    "privacy.epsilon": (
        {"privacy": {"epsilon": 1.0, "delta": 1e-3}},
        PRIVATE_RUN,
        "privacy: epsilon = ",
    ),
    "privacy.delta": (
        {"privacy": {"epsilon": 4.0, "delta": 1e-12}},
        PRIVATE_RUN,
        "privacy: epsilon = ",
    ),
    "secure.threshold": (
        {"secure": {"threshold": 4, "peers": {}}},
        {"secure": SECURING},
        "deployment.secure.threshold = 3; at least 4 is allowed",
    ),
    "secure.honest": (
        {"secure": {"threshold": 3, "peers": {}}},
        {"secure": SECURING},
        "deployment.secure.honest = 2; at most 1 is allowed",
    ),
}
"""By bound of a policy: the policy, a run that it does not allow, and the line."""

ELSEWHERE = {
    # clients with fewer rows are no part of the node
    "fewest_rows": "test_policy.py::test_clients_with_few_rows_are_not_mentioned",
    # what a node does not report, a run does without
    "measured_rows": "test_measures.py::test_seventy_one_evaluations_do_not_give_a_row",
    "privacy.exact_measures": "test_measures.py::test_a_private_run_goes_on_without_measures",
    # a node does these itself, and refuses a run whose first round would exceed its epsilon
    "privacy.own.clip": "test_own_noise.py::test_a_sum_is_of_clipped_messages_with_the_noise_that_"
    "is_declared",
    "privacy.own.epsilon": "test_own_noise.py::test_a_node_answers_no_more_than_its_epsilon_over_"
    "all_runs",
    "privacy.own.delta": "test_own_noise.py::test_epsilon_is_that_of_all_sums_of_a_client",
    "privacy.own.rounds": "test_own_noise.py::test_several_runs_share_the_rounds_of_a_node",
    "secure.peers": "secure/test_rounds.py::test_a_node_that_is_not_known_is_not_summed_with",
}


def bounds(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The keys of a policy, with those of its sections."""
    for name, field in section.model_fields.items():
        parts = [each for each in get_args(field.annotation) or () if isinstance(each, type)]
        inner = [each for each in parts if issubclass(each, Section)]
        if inner:
            yield from bounds(inner[0], f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_bound_of_a_policy_is_checked_when_a_run_is_prepared(
    fresh: Fresh, tmp_path: Path
) -> None:
    """A bound that is known beforehand ends the command, and not each of its rounds."""
    assert {*REFUSED_BEFOREHAND, *ELSEWHERE} == set(bounds(Policy))
    for place in ELSEWHERE.values():
        file, _, function = place.partition("::")
        assert f"def {function}(" in (Path(__file__).parent / file).read_text()
    node = fresh(tmp_path)[0].node
    request = preparing(node)
    for name, (policy, run, line) in REFUSED_BEFOREHAND.items():

        def change(setup: dict[str, Any], run: Changes = run) -> None:
            setup.update({"solver": SHORT} | run)

        node.policy = Policy(report=list(REPORTS))
        if name.partition(".")[0] not in ("base", "secure"):  # without the bound it is allowed
            assert refused_by(node, request, change) == "", name
        node.policy = Policy.model_validate(policy)
        refused = refused_by(node, request, change)
        assert refused.startswith(line), (name, refused)


def test_what_was_prepared_otherwise_is_refused_in_its_round(
    fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator need not prepare a run."""
    one, two = fresh(tmp_path)

    def stricter(parcel: Parcel) -> Parcel:
        trains = json.loads(parcel.head)["kind"] == "train"
        two.node.policy = Policy(most_epochs=1.5) if trains else Policy()
        return two.answer(parcel)

    with caplog.at_level(logging.WARNING):
        (run,) = deployed(ALL, [one.answer, stricter])
    node, operator = (record.getMessage() for record in caplog.records)
    line = "2 epochs; at most 1.5 are allowed"
    assert node == (
        f"train, run run1, scaffold, seed 0, round 1, 2 clients, 22 steps: refused: {line}"
    )
    assert operator == (
        f"scaffold, seed 0: round 1: node 'node-1': it refuses: {line}; without its 2 clients"
    )
    assert run.final.dropped == 2


def test_functions_of_users_are_called_if_they_are_listed(fresh: Fresh, tmp_path: Path) -> None:
    node = fresh(tmp_path)[0].node
    node.policy = Policy(models=["logistic", OWN])
    change = {"model": {"name": OWN}}
    line = refused_by(node, preparing(node), lambda setup: setup.update(change))
    assert line.startswith(f"{OWN} raised AssertionError: ")


def test_clients_with_few_rows_are_not_mentioned(fresh: Fresh, tmp_path: Path) -> None:
    node = fresh(tmp_path)[0].node
    sizes = node.federation.train.sizes
    some = Node("some", node.federation, tmp_path, Policy(fewest_rows=int(sizes.max())))
    assert some.federation.names == tuple(
        name for name, size in zip(node.federation.names, sizes, strict=True) if size == sizes.max()
    )
    with pytest.raises(InputError, match=r"^policy\.fewest_rows = 99: no client has so many"):
        Node("none", node.federation, tmp_path, Policy(fewest_rows=99))


GRADIENTS = table_of(
    {"name": "fedavg"}, rounds=1, evaluation={"gradients": True}, cohort={"clients_per_round": 4}
)


def test_measures_are_those_of_the_nodes_that_report_them(fresh: Fresh, tmp_path: Path) -> None:
    def run(*reports: list[Any]) -> Any:
        return run_of(fresh(tmp_path), GRADIENTS, *(Policy(report=each) for each in reports))

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
    nothing = run(["loss"], ["loss"]).final
    assert math.isnan(nothing.test_accuracy)
    assert math.isnan(nothing.gradient_variance)
    assert nothing.train_loss == pytest.approx(whole.final.train_loss)
    assert (vector(mixed.params) == vector(whole.params)).all()


def test_a_node_sends_nothing_that_it_does_not_report(fresh: Fresh, tmp_path: Path) -> None:
    (site, other), sent = fresh(tmp_path), []

    def hear(request: Parcel, answer: Parcel) -> None:
        if json.loads(request.head)["kind"] == "evaluate":
            assert unpack_answer(answer).withheld == ["accuracy", "metrics", "gradients"]
            sent.append(set(unpack_arrays(answer.body)))

    site.node.policy = Policy(report=["loss"])
    deployed(GRADIENTS, [overheard(site.answer, hear), other.answer])
    expected = {"loss", "weight", "unmeasured", "test/loss['sum']", "test/loss['rows']"}
    assert sent == [expected, expected]


def test_a_run_without_losses_goes_on_without_measures(
    fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(folder: str, report: list[Any]) -> Any:
        policy = Policy(report=report)
        return run_of(fresh(tmp_path / folder), ALL | {"rounds": 2}, policy, policy)

    whole = run("whole", ["loss", "accuracy"])
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        accuracy, nothing = run("accuracy", ["accuracy"]), run("nothing", [])
    line = (
        "no node reports losses: a run that diverges cannot be told from one that learns (node-0, "
        'node-1: policy.report has no "loss")'
    )
    assert [record.getMessage() for record in caplog.records] == [line, line]
    for blind in (accuracy, nothing):
        assert vector(blind.params).tobytes() == vector(whole.params).tobytes()
        assert [record.round for record in blind.history] == [0, 1, 2]
        assert [record.measured for record in blind.history] == [False] * 3
        assert blind.diverged_at is None
        assert math.isnan(blind.final.train_loss)
    assert accuracy.final.test_accuracy == whole.final.test_accuracy
    assert math.isnan(nothing.final.test_accuracy)
    assert [record.measured for record in whole.history] == [True] * 3


ADAPTIVE = {"method": [{"name": "fedprox", "mu": 1.0, "adapt": True}]}
BEST = {"selection": {"keep": "best", "measure": "test_loss"}}


@pytest.mark.parametrize(
    ("report", "change", "line"),
    [
        ("accuracy", {"target_loss": 0.1}, 'target_loss needs train_loss, and no node reports "l'),
        ("loss", {"target_accuracy": 0.9}, "target_accuracy needs test_accuracy, and no node re"),
        ("accuracy", ADAPTIVE, 'fedprox: an adaptive mu needs train_loss, and no node reports "l'),
        ("accuracy", BEST, 'selection needs test_loss, and no node reports "loss"'),
    ],
)
def test_a_run_that_needs_measures_is_refused_without_them(
    report: Any, change: dict[str, Any], line: str, fresh: Fresh, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"^{line}"):
        run_of(fresh(tmp_path), ALL | change, *[Policy(report=[report])] * 2)


def test_what_follows_measures_stays_where_nothing_is_measured(
    fresh: Fresh, tmp_path: Path
) -> None:
    """An adaptive mu and patience, in a run whose nodes stop to report."""
    kept = set[int]()

    def silent(node: int) -> Callable[[dict[str, Any], dict[str, Any]], None]:
        def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
            if node in kept:
                arrays.clear()
            elif not head["lacks"]:
                kept.add(node)

        return change

    table = ALL | ADAPTIVE | {"rounds": 3, "selection": {"measure": "test_loss", "patience": 1}}
    sites = fresh(tmp_path)
    nodes = [changed(site.answer, "evaluate", silent(i)) for i, site in enumerate(sites)]
    (run,) = deployed(table, nodes)
    assert [record.measured for record in run.history] == [True, False, False, False]
    assert [record.hparams["mu"] for record in run.history] == [1.0] * 4


def test_a_metric_may_be_named_like_a_measure() -> None:
    """A node reports metrics, and no accuracies."""
    number = jax.ShapeDtypeStruct((1,), np.float32)
    like = {name: {"rows": number} for name in ("test/accuracy", "test/accuracy_of_two")}
    arrays = {"test/accuracy_of_two['rows']": np.ones(1, np.float32)}
    declared = Declared(1.0, 1, {"test/accuracy": 1}, False, 0.0, True)
    read = sums_of(arrays, like, declared)
    assert list(read) == ["test/accuracy_of_two"]


@pytest.mark.parametrize(
    ("method", "report", "line"),
    [
        (fp.mime(), ["loss"], 'mime: .* policy.report does not have "gradients"'),
        (fp.mime(lite=True), ["loss"], "mime: its clients send what they measure"),
        (fp.feddane(mu=1.0), ["loss"], "feddane: its clients send what they measure"),
        (fp.scaffold(option=1), ["loss"], "scaffold: its clients send what they measure"),
        (fp.qffl(q=1.0), ["accuracy"], 'qffl: .* policy.report does not have "loss"'),
    ],
)
def test_methods_whose_clients_send_what_is_not_reported_are_refused(
    method: fp.Algorithm, report: list[Any], line: str
) -> None:
    solver = fp.Solver(0.1, 10, epochs=1)
    with pytest.raises(InputError, match=line):
        Policy(report=report).check_measures(method, solver)
    Policy(report=list(REPORTS)).check_measures(method, solver)


@pytest.mark.parametrize(
    ("method", "kinds"),
    [
        ({"name": "mime"}, {"gradients"}),
        pytest.param({"name": "qffl", "q": 1.0}, {"train"}, marks=pytest.mark.slow),
        ({"name": "fedavg"}, set()),
    ],
)
def test_no_sum_of_gradients_or_losses_is_of_fewer_clients(
    method: dict[str, Any],
    kinds: set[str],
    fresh: Fresh,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node with too few clients in a round sits it out, and the run goes on."""
    one, two = fresh(tmp_path)
    one.node.policy = two.node.policy = Policy(report=["loss", "gradients"], fewest_clients=2)
    answered: dict[tuple[str, int], list[bool]] = {}

    def hear(request: Parcel, answer: Parcel) -> None:
        head = json.loads(request.head)
        if head["work"] is not None and not unpack_answer(answer).lacks:
            case = head["kind"], len(head["work"]["names"])
            answered.setdefault(case, []).append(bool(answer.body))

    table = table_of(method, rounds=4, cohort={"clients_per_round": 2})
    with caplog.at_level(logging.WARNING):
        (run,) = deployed(table, [overheard(one.answer, hear), two.answer])
    assert {kind for kind, clients in answered if clients == 1} >= kinds
    for (kind, clients), sent in answered.items():
        assert all(sent) == (clients > 1 or kind not in kinds), (kind, clients)
        assert any(sent) == all(sent)
    assert not run.final.faulty
    assert np.isfinite(run.final.train_loss)
    warnings = [each.getMessage() for each in caplog.records if "coordinator" not in each.name]
    assert bool(kinds) == any("the node sits out this round" in line for line in warnings)


def test_clients_that_are_left_out_do_not_count(
    fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With screening, an evaluation leaves out clients whose losses are not finite."""
    one, two = fresh(tmp_path)
    one.node.policy = Policy(fewest_clients=2)
    evaluate, left_out = NodeMethod.evaluate, 0

    def some(parts: NodeMethod, params: Any) -> Any:
        return evaluate(parts, params)._replace(unmeasured=jnp.array([left_out]))

    monkeypatch.setattr(NodeMethod, "evaluate", some)
    sent: list[set[str]] = []

    def hear(request: Parcel, answer: Parcel) -> None:
        nonlocal left_out
        if json.loads(request.head)["kind"] == "evaluate":
            sent.append(set(unpack_arrays(answer.body)))
            left_out = 1

    deployed(ALL, [overheard(one.answer, hear), two.answer])
    assert "loss" in sent[0]
    assert sent[-1] == {"test/accuracy['sum']", "test/accuracy['rows']"}


def test_a_node_that_asks_for_privacy_reports_no_gradients(fresh: Fresh, tmp_path: Path) -> None:
    node = fresh(tmp_path)[0].node
    assert "gradients" in node.reports
    asked = PrivacyPolicy(epsilon=1.0, delta=1e-5, exact_measures=True)
    node.policy = EVERYTHING.model_copy(update={"privacy": asked})
    assert node.reports == ["loss", "accuracy", "metrics"]
    for epsilon, delta in ((0.0, 0.1), (1.0, 2.0)):
        policy = Policy(privacy=PrivacyPolicy(epsilon=epsilon, delta=delta))
        with pytest.raises(InputError, match=r"^policy\.privacy\.\w+ = .*; it must be "):
            Node(node.name, node.federation, node.folder, policy)


def test_each_request_is_a_line_of_the_log(
    fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = fresh(tmp_path)
    seen: list[Parcel] = []

    def record(parcel: Parcel) -> Parcel:
        seen.append(parcel)
        return one.answer(parcel)

    with caplog.at_level(logging.INFO, "fedprox.deployment.node"):
        deployed(ALL, [record, two.answer])
        caplog.clear()
        for parcel in seen:
            one.node.last = {}
            one.answer(parcel)
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == len(seen)
    numbers = r"\d\.\d{3} s, [\d,]+ bytes in, [\d,]+ bytes out"
    method = "run run1, scaffold, seed 0"
    for kind, line in (
        ("describe", f"describe: {numbers}"),
        ("prepare", f"prepare, {method}: {numbers}"),
        ("train", f"train, {method}, round 1, 2 clients, 20 steps: {numbers}"),
        ("evaluate", f"evaluate, {method}: {numbers}"),
    ):
        assert [each for each in lines if re.fullmatch(line, each)], (kind, lines)
    # what is refused, with foreign text escaped
    head = json.loads(seen[-1].head)
    head["setup"]["method"]["name"] = "evil\n\x1b[31mfedprox: all is well"
    caplog.clear()
    one.answer(Parcel(json.dumps(head | {"id": "evil"}).encode()))
    one.answer(Parcel(json.dumps(head | {"kind": "\n\x1b[31m"}).encode()))
    method_line, kind_line = caplog.records
    assert method_line.levelno == kind_line.levelno == logging.WARNING
    assert method_line.getMessage().startswith(
        r"evaluate, run run1, evil\n\x1b[31mfedprox: all is well, seed 0: refused: method 'evil"
    )
    assert kind_line.getMessage().startswith("refused: request: kind: Input should be")
    assert all(each.getMessage().isprintable() for each in caplog.records)
