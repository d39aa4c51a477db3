"""Answers and requests that cannot be used are refused in one line, and the others go on."""

import copy
import itertools
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox.deployment.kept import States
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.node_method import NodeMethod
from fedprox.deployment.policy import Policy, PrivacyPolicy
from fedprox.deployment.wire import Answer, Setup, pack_arrays, unpack_answer, unpack_arrays
from fedprox.errors import InputError
from fedprox.results.run import Run
from tests.deployment.conftest import Fresh
from tests.deployment.federations import Site, changed, deployed, table_of, unreliable, vector

TABLE = table_of({"name": "scaffold"}, rounds=2, evaluation={"every": 1})
ALL = TABLE | {"cohort": {"clients_per_round": 4}}
"""All clients take part, so that each node compiles fewer programs."""

CHANGE = Callable[[dict[str, Any], dict[str, Any]], None]


def setting(name: str, value: Callable[[Any], Any]) -> CHANGE:
    """Change an array, or add one."""

    def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
        del head
        arrays[name] = np.asarray(value(arrays.get(name)))

    return change


def without(name: str) -> CHANGE:
    """Leave out an array."""

    def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
        del head, arrays[name]

    return change


def heading(**values: Any) -> CHANGE:
    """Change the head."""

    def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
        del arrays
        head.update(values)

    return change


Altered = Callable[..., tuple[Run, list[str]]]


@pytest.fixture
def altered(fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Altered:
    """A run in which each answer of the second node to a kind of request meets the next change.

    It returns the warnings as well, without the run and the node.
    """

    def run_with(
        kind: str, changes: Iterable[CHANGE], table: dict[str, Any] = ALL, **sections: Any
    ) -> tuple[Run, list[str]]:
        one, two = fresh(tmp_path / str(len(list(tmp_path.iterdir()))))
        left = iter(changes)

        def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
            for each in itertools.islice(left, 1):
                each(head, arrays)

        caplog.clear()
        with caplog.at_level(logging.WARNING):
            nodes = [one.answer, changed(two.answer, kind, change)]
            (run,) = deployed(table | sections, nodes)
        said = [record.getMessage().split(": node 'node-1': ") for record in caplog.records]
        assert all(len(parts) == 2 for parts in said)
        return run, [": ".join(parts) for parts in said]

    return run_with


WEIGHT = "message[0]['dense']['weight']"

TRAINED: list[tuple[CHANGE, str]] = [
    (without(WEIGHT), f'the array "{WEIGHT}" is missing'),
    (setting(WEIGHT, np.float64), f'the array "{WEIGHT}" is float64[1, 10, 60]; it must be'),
    (setting("counted", lambda a: a * 5), "it counts weights ["),
    (setting("counted", lambda a: a * np.float32("nan")), "it counts weights [nan]"),
    (setting("counts", np.zeros_like), "it counts weights ["),
    (setting("steps", lambda a: a + 1), "it says that clients took more steps than"),
    (heading(other=1), "answer: other: Extra inputs are not permitted"),
    (heading(seconds="long"), "answer: seconds: Input should be a valid number"),
    (setting("other", lambda _: np.zeros(3)), "an array 'other' that was not asked for"),
]


def test_a_part_of_a_round_is_checked(altered: Altered) -> None:
    changes, lines = zip(*TRAINED, strict=True)
    run, warnings = altered("train", changes, rounds=len(TRAINED))
    for t, (line, said) in enumerate(zip(lines, warnings, strict=True)):
        start = f"scaffold, seed 0: round {t + 1}: its answer is refused: {line}"
        assert said.startswith(start), said
        assert said.endswith("; without its 2 clients")
    assert [record.dropped for record in run.history] == [0] + [2] * len(TRAINED)
    assert np.isfinite(vector(run.params)).all()


MEASURED: list[tuple[CHANGE, str]] = [
    (setting("loss", lambda a: a[:0]), "the array 'loss' is float32[0]"),
    (setting("weight", lambda a: a * 3), "it measures weights [3.0]"),
    (setting("test/accuracy['sum']", lambda a: a + np.float32(2**30)), "it counts [1073"),
    (without("test/loss['sum']"), "the array \"test/loss['sum']\" is missing"),
    (heading(lacks="no"), "answer: lacks: Input should be a valid boolean"),
]


def test_an_evaluation_is_checked(altered: Altered) -> None:
    changes, lines = zip(*MEASURED, strict=True)
    run, warnings = altered("evaluate", changes, rounds=len(MEASURED) - 1)
    for line, said in zip(lines, warnings, strict=True):
        assert said.startswith(f"scaffold, seed 0: its answer is refused: {line}"), said
        assert said.endswith("; evaluated without it")
    assert all(np.isfinite(record.train_loss) for record in run.history)


NO_ANSWERS = [
    (Parcel(b"<html>"), "its answer is refused: answer: : Invalid JSON"),
    (Parcel(b"\xff"), "its answer is refused: answer: : Invalid JSON"),
    (Parcel(b"[" * 10_000), "its answer is refused: answer: : Invalid JSON"),
    (Parcel(b'{"id": "x"}', b"no arrays"), "its last answer is to another request"),
]


def test_what_is_no_answer_is_refused(
    fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = fresh(tmp_path)

    def wrong(parcel: Parcel) -> Parcel:
        head = json.loads(parcel.head)
        return NO_ANSWERS[head["round"]][0] if head["kind"] == "train" else two.answer(parcel)

    table = ALL | {"rounds": len(NO_ANSWERS)}
    with caplog.at_level(logging.WARNING):
        (run,) = deployed(table, [one.answer, wrong], patience=0.1)
    for t, (record, (_, line)) in enumerate(zip(caplog.records, NO_ANSWERS, strict=True)):
        logged = record.getMessage()
        assert logged.startswith(f"scaffold, seed 0: round {t + 1}: node 'node-1': {line}")
        assert "\n" not in logged
    assert [record.dropped for record in run.history] == [0] + [2] * len(NO_ANSWERS)


def test_a_node_that_says_that_state_is_lost_ends_no_run_that_needs_none(altered: Altered) -> None:
    lost = heading(lost=True, refused="begin\nanew\x1b[2J")
    line = "it refuses: begin\\nanew\\x1b[2J; without its 2 clients"
    # scaffold's first round, before clients have state
    run, said = altered("train", [lost])
    assert said == [f"scaffold, seed 0: round 1: {line}"]
    assert [record.dropped for record in run.history] == [0, 2, 0]
    run, said = altered("train", [lost, lost], method=[{"name": "fedavg"}])
    assert said == [f"fedavg, seed 0: round {t}: {line}" for t in (1, 2)]
    assert run.final.round == 2


def test_a_method_begins_without_a_node_whose_answer_makes_no_sense(altered: Altered) -> None:
    run, said = altered("prepare", [heading(other=1)], rounds=1)
    assert said == [
        "scaffold: its answer is refused: answer: other: Extra inputs are not permitted; it may "
        "take part later"
    ]
    assert run.final.dropped == 0


def enlarged(factor: float) -> CHANGE:
    """Multiply the message."""

    def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
        del head
        for name in arrays:
            if name.startswith("message"):
                arrays[name] = arrays[name] * np.float32(factor)

    return change


def test_a_node_with_a_faulty_message_is_left_out(
    altered: Altered, fresh: Fresh, tmp_path: Path
) -> None:
    table = ALL | {"rounds": 3, "faults": {"policy": "drop", "norm": 10.0}}
    changes = [enlarged(factor) for factor in (np.nan, np.inf, 1e6)]
    run, warnings = altered("train", changes, table)
    for t, said in enumerate(warnings):
        assert said.startswith(f"scaffold, seed 0: round {t + 1}: faulty update of ")
    assert [record.faulty for record in run.history] == [0, 2, 2, 2]
    assert len(warnings) == 3
    one, two = fresh(tmp_path / "other")
    assert set(run.final.faulty_clients or []) == set(two.node.federation.names)
    # client state of what was left out is not used either

    def lost(node: int, number: int, head: dict[str, Any]) -> Any:
        del number
        return "lost request" if node == 1 and head["kind"] == "train" else ""

    (expected,) = deployed(table, unreliable([one, two], lost), patience=0.1)
    assert vector(run.params).tobytes() == vector(expected.params).tobytes()
    # without a section [faults] as well
    run, (said,) = altered("train", changes[:1], rounds=1)
    assert said.startswith("scaffold, seed 0: round 1: faulty update of ")
    assert np.isfinite(run.final.train_loss)
    assert run.final.faulty == 2
    with pytest.raises(InputError, match=r"^scaffold, seed 0: round 1: faulty update of client "):
        altered("train", changes[2:], faults={"policy": "fail", "norm": 10.0})


def test_clipping_is_refused_where_nodes_store_state(tmp_path: Path, fresh: Fresh) -> None:
    """The coordinator would scale a message whose client state is already stored."""
    clip = {"faults": {"policy": "clip", "norm": 10.0}}
    with pytest.raises(InputError) as raised:
        deployed(ALL | clip, [site.answer for site in fresh(tmp_path)])
    assert str(raised.value) == (
        'scaffold: its clients keep a state, so faults.policy = "clip" with a deployment does not '
        'fit, since nodes store it before messages are compared; it must be "drop" or "fail"'
    )


def test_losses_that_are_not_finite_are_refused_with_screening(altered: Altered) -> None:
    changes = [setting("loss", lambda a: a + np.float32("nan")), without("unmeasured")]
    faults = {"policy": "drop", "norm": 10.0}
    run, warnings = altered("evaluate", changes, rounds=1, faults=faults)
    assert all(np.isfinite(record.train_loss) for record in run.history)
    assert len(warnings) == 2


@pytest.fixture(scope="module")
def requests(
    first_sites: list[Site], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Parcel]:
    """A request of each kind, with all arrays that it needs."""
    one, two = (site.moved(tmp_path_factory.mktemp("recorded")) for site in first_sites)
    seen: dict[str, Parcel] = {}

    def record(parcel: Parcel) -> Parcel:
        seen[json.loads(parcel.head)["kind"]] = parcel
        one.node.arrays = {}
        return one.answer(parcel)

    deployed(TABLE | {"seed": 1}, [record, two.answer])
    return seen


class Guarded(Node):
    """A node that runs no program."""

    def _method_of(self, setup: Setup) -> NodeMethod:
        parts: Any = super()._method_of(setup)
        parts._compiled = parts.evaluate = _no_program
        return parts


def _no_traceback(*asked: Any) -> None:
    raise AssertionError(asked)


def _no_program(*_: Any) -> Any:
    raise InputError("no program is run")


@pytest.fixture(scope="module")
def guarded(first_sites: list[Site], tmp_path_factory: pytest.TempPathFactory) -> tuple[Node, Path]:
    """A node that runs no program, and the folder in which its own folder is."""
    folder, node = tmp_path_factory.mktemp("guarded"), first_sites[0].node
    policy = Policy(most_epochs=4.0)
    return Guarded(node.name, node.federation, folder / node.name, policy), folder


def check_answer(guarded: tuple[Node, Path], parcel: Parcel) -> Answer:
    """The answer to a request, which does nothing outside the node's folder and fails nowhere."""
    node, folder = guarded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("fedprox.deployment.node"), "exception", _no_traceback)
        head = unpack_answer(node.answer(parcel))
    assert head.refused.isprintable()
    assert {path.name for path in folder.iterdir()} <= {node.folder.name}
    for path in node.runs.iterdir() if node.runs.exists() else ():
        assert path.name.isalnum()
        assert path.is_dir()
    return head


STRANGE: list[Any] = [
    None, True, -1, 0, 1.5, 1e308, float("nan"), float("inf"), 2**31, 2**63, 2**70, "", "../evil",
    "os:system", "x" * 200, [], [1, 2], [[]], {}, {"name": "os:system"}, {"a": {"b": 1}},
]  # fmt: skip
"""Values that a request does not have where they are put."""


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a JSON document."""
    items: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)
    return [path] * bool(path) + [p for k, v in items for p in places_in(v, (*path, k))]


HIDING: dict[str, Any] = {
    "clip": 1.0,
    "adaptive_clip": {"quantile": 0.5, "rate": 0.2, "count_noise": 6.0},
    "mechanism": [4, 4, "bernoulli", None, 2.0, 1, 1e-3, "pld"],
    "rounds": 2,
}
"""What a private run declares."""


@given(data=st.data())
@settings(max_examples=80)
def test_requests_with_strange_values_get_an_answer(
    data: st.DataObject, requests: dict[str, Parcel], guarded: tuple[Node, Path]
) -> None:
    parcel = requests[data.draw(st.sampled_from(sorted(requests)))]
    head = json.loads(parcel.head)
    private = PrivacyPolicy(epsilon=100.0, delta=1e-3) if data.draw(st.booleans()) else None
    if head["setup"] is not None and data.draw(st.booleans()):
        head["setup"]["privacy"] = json.loads(json.dumps(HIDING))
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from(places_in(head)))
        part = head
        for key in path:
            part = part[key]
        if data.draw(st.booleans()):
            # a copy, which a second change may reach into
            part[last] = copy.deepcopy(data.draw(st.sampled_from(STRANGE)))
        else:
            del part[last]
    with pytest.MonkeyPatch.context() as patch:
        policy = guarded[0].policy.model_copy(update={"privacy": private})
        patch.setattr(guarded[0], "policy", policy)
        check_answer(guarded, Parcel(json.dumps(head).encode(), parcel.body))


@given(data=st.data())
@settings(max_examples=80)
def test_requests_with_other_bytes_get_an_answer(
    data: st.DataObject, requests: dict[str, Parcel], guarded: tuple[Node, Path]
) -> None:
    parcel = requests[data.draw(st.sampled_from(["train", "evaluate"]))]
    parts = [parcel.head, parcel.body]
    which = data.draw(st.integers(0, 1))
    changed = bytearray(parts[which])
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    parts[which] = bytes(changed)
    check_answer(guarded, Parcel(parts[0], parts[1]))


def edited(parcel: Parcel, change: Callable[[dict[str, Any]], None]) -> Parcel:
    """A request with another head."""
    head = json.loads(parcel.head)
    change(head)
    return Parcel(json.dumps(head).encode(), parcel.body)


def timed(deadline: float | None, seconds: float | None) -> Callable[[dict[str, Any]], None]:
    """Change the time of a request, for clients without state."""

    def change(head: dict[str, Any]) -> None:
        head["setup"].update(deadline=deadline)
        head["work"].update(state=[[-1], [-1]])
        head.update(seconds=seconds)

    return change


def data_of(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Data of the run that are not those of the node."""
    return lambda head: head["setup"]["data"].update(changes)


def arrays_of(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """Features of the run that are not those of the node."""
    return lambda head: head["setup"]["data"]["features"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda head: head["work"].update(steps=[1]), "request: work: its lists have diff"),
        (lambda head: head["work"].update(names=["a", "b"]), "client 'a' is not on this node"),
        (
            lambda head: head["work"].update(names=head["work"]["names"][:1] * 2),
            "request: work: a client appears twice",
        ),
        (lambda head: head["work"].update(steps=[2**40] * 2), "request: work.steps.0: Input sho"),
        (lambda head: head["work"].update(rows=[1, 1]), "client '1' has "),
        (lambda head: head["work"].update(steps=[99] * 2), "client '1': 99 steps; the solver take"),
        (lambda head: head["work"].update(weight=[-1.0, 1.0]), "request: work.weight.0: Input sho"),
        (lambda head: head.update(work=None), "train: the work is missing"),
        (lambda head: head.update(setup=None), "train: the setup is missing"),
        (lambda head: head.update(arrays=head["arrays"][:2]), "2 arrays; the method needs"),
        (lambda head: head.update(kind="run"), "request: kind: Input should be 'describe'"),
        (lambda head: head.update(code="1"), "request: code: Extra inputs are not permitted"),
        (lambda head: head["setup"].update(run="../evil"), "request: setup.run: String should mat"),
        (lambda head: head["setup"].update(clients=0), "request: setup.clients: Input should be"),
        (lambda head: head.update(round=-5), "request: round: Input should be greater than or"),
        (lambda head: head.update(round=2), "round 3; the run has 2 rounds"),
        (lambda head: head["setup"].update(parameters="['a']"), "model 'logistic' has the"),
        (data_of(classes=9), "data.classes = 9; the node's data have 10"),
        (data_of(label=[2]), "data.label = [2]; the node's data have []"),
        (data_of(augmented=True), "data.augmented = True; the node's data have False"),
        (
            arrays_of(name="a"),
            "data.features = {'features.a': 'float32[60]'}; the node's data have",
        ),
        (
            arrays_of(shape=[59]),
            "data.features = {'features': 'float32[59]'}; the node's data have",
        ),
        (lambda head: head["work"].update(state=[[3], [3]]), "state of client '1' after round 4: "),
        (lambda head: head["work"].update(state=[[0], [0, 0]]), "work: each client's state has on"),
        (timed(None, 1.0), "seconds = 1.0; the method has no deadline"),
        (timed(0.0, 0.0), "request: setup.deadline: Input should be greater than 0"),
        (
            lambda head: head["setup"].update(privacy=HIDING | {"epsilon": 0.0}),
            "request: setup.privacy.epsilon: Input should be greater than 0",
        ),
        (timed(1.0, None), "seconds = None; they must be from 0 to the deadline, 1.0"),
        (timed(1.0, 2.0), "seconds = 2.0; they must be from 0 to the deadline, 1.0"),
    ],
)
def test_requests_are_checked(
    change: Callable[[dict[str, Any]], None],
    line: str,
    requests: dict[str, Parcel],
    guarded: tuple[Node, Path],
) -> None:
    train = requests["train"]
    if len(json.loads(train.head)["work"]["names"]) != 2:
        pytest.fail("the last round must have both clients")
    head = check_answer(guarded, edited(train, change))
    assert head.refused.startswith(line)
    assert head.id == json.loads(train.head)["id"]


def test_arrays_that_were_changed_on_their_way_are_refused(
    requests: dict[str, Parcel], guarded: tuple[Node, Path]
) -> None:
    arrays = unpack_arrays(requests["train"].body)
    name = next(iter(arrays))
    body = pack_arrays(arrays | {name: arrays[name] + 1})
    head = check_answer(guarded, requests["train"]._replace(body=body))
    assert head.refused == f"the array {name!r} was changed on its way"


def test_errors_in_the_node_are_reported_in_one_line(
    requests: dict[str, Parcel],
    fresh: Fresh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("out of\nmemory")

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device", "0.state")

    monkeypatch.setattr(NodeMethod, "evaluate", fail)
    monkeypatch.setattr(States, "write", full)
    node = fresh(tmp_path)[0].node
    train = edited(requests["train"], lambda head: head["work"].update(state=[[-1], [-1]]))
    assert unpack_answer(node.answer(train)).refused == "0.state: No space left on device"
    assert "Traceback" not in caplog.text
    head = unpack_answer(node.answer(requests["evaluate"]))
    assert head.refused == "error in the node: RuntimeError: out of memory"
    assert "Traceback" in caplog.text
    asked = "evaluate, run run1, scaffold, seed 1"
    assert caplog.messages[-2:] == [asked, f"{asked}: refused: {head.refused}"]


def test_a_node_asks_for_arrays_that_it_lacks(
    requests: dict[str, Parcel], fresh: Fresh, tmp_path: Path
) -> None:
    node = fresh(tmp_path)[0].node
    evaluate = requests["evaluate"]
    assert unpack_answer(node.answer(evaluate._replace(body=b""))).lacks
    assert not unpack_answer(node.answer(evaluate)).lacks
    node.last = {}
    assert not unpack_answer(node.answer(evaluate._replace(body=b""))).lacks
