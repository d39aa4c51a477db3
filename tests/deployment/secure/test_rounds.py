"""Rounds whose messages are summed in secret, in deployments in memory."""

import contextlib
import functools
import json
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import ec

from fedprox.deployment.audit import checked_lines
from fedprox.deployment.coordinator import Coordinator, Ledger, read_ledger
from fedprox.deployment.crypto import Words
from fedprox.deployment.fixed_point import MEASURES_BOUND, FixedPoint
from fedprox.deployment.kept import Revealed, read_kept
from fedprox.deployment.network import Network, Parcel
from fedprox.deployment.node_method import NodeMethod
from fedprox.deployment.policy import OwnPrivacy, Policy, PrivacyPolicy
from fedprox.deployment.secure_sum import SecureSum
from fedprox.deployment.sum_keys import require_enough
from fedprox.deployment.wire import (
    Answer,
    Request,
    RequestKind,
    Setup,
    SumStage,
    parcel_of,
    unpack_answer,
    unpack_arrays,
    unpack_request,
)
from fedprox.errors import InputError
from fedprox.loop.checkpoint import Checkpoints
from fedprox.parts.part import mean_of
from fedprox.parts.privacy.accounting import (
    Mechanism,
    epsilon_beside,
    epsilon_of,
    epsilon_together,
)
from fedprox.parts.privacy.measures import gaussian
from fedprox.results.run import Run
from tests.deployment.federations import (
    FEDPROX,
    STATEFUL,
    WITH_STATE,
    Killed,
    Site,
    apart,
    deployed,
    in_memory,
    overheard,
    simulated,
    table_of,
    unreliable,
    vector,
)
from tests.deployment.secure.conftest import (
    NODES,
    ONE_ROUND,
    PLAIN,
    SECURE,
    SIZES,
    TABLE,
    Fresh,
    answers,
    operator_lines,
)
from tests.variants import mostly_slow

Operated = Callable[..., tuple[Run, list[str]]]


@pytest.fixture
def sites(fresh: Fresh, tmp_path: Path) -> list[Site]:
    """Five sites without a past."""
    return fresh(tmp_path)


@pytest.fixture
def operated(caplog: pytest.LogCaptureFixture) -> Operated:
    """A deployment's run, and what the operator has logged."""

    def operated(table: dict[str, Any], nodes: Any, **options: Any) -> tuple[Run, list[str]]:
        with caplog.at_level(logging.WARNING):
            (run,) = deployed(table, nodes, **options)
        return run, operator_lines(caplog)

    return operated


METHODS = {"fedprox": FEDPROX, **{each["name"]: each for each in STATEFUL}}


@pytest.mark.parametrize("name", mostly_slow(METHODS, "feddane"))
def test_it_is_the_run_without_it_but_for_rounding(name: str, fresh: Fresh, tmp_path: Path) -> None:
    table = PLAIN | {"method": [METHODS[name]]}
    (plain,) = deployed(table, answers(fresh(tmp_path / "plain", secure=False)))
    (secure,) = deployed(
        table | {"deployment": SECURE}, answers(fresh(tmp_path / "secure")), patience=60.0
    )
    difference = np.abs(vector(plain.params) - vector(secure.params))
    assert 0 < difference.max() < 1e-5
    assert secure.final.train_loss == pytest.approx(plain.final.train_loss, rel=1e-4)
    assert secure.final.total_steps == plain.final.total_steps


def test_each_stage_of_a_sum_is_a_line_of_the_audit(sites: list[Site]) -> None:
    seen = list[Request]()
    first = overheard(sites[0].answer, lambda parcel, _: seen.append(unpack_request(parcel)))
    # a message is missing, so that there is something to confirm
    nodes = [first, gone(sites[1], "train"), *answers(sites[2:])]
    deployed(ONE_ROUND | {"rounds": 2}, nodes)
    lines = [each.line for each in checked_lines(sites[0].node.folder)]
    assert [line["kind"] for line in lines] == [request.kind for request in seen]
    assert {*get_args(SumStage)} < {line["kind"] for line in lines}
    sums = [request.secret.of for request in seen if request.secret is not None]
    assert [line["sum_of"] for line in lines if "sum_of" in line] == sums
    rounds = [line["round"] for line in lines if line["kind"] == "train"]
    assert rounds == [1, 2]  # keys and what is revealed name no round


@pytest.mark.slow
def test_a_models_state_is_summed_in_secret_too(fresh: Fresh, tmp_path: Path) -> None:
    table = PLAIN | {"model": {"name": WITH_STATE}, "rounds": 1}
    (secure,) = deployed(table | {"deployment": SECURE}, answers(fresh(tmp_path)))
    (expected,) = simulated(table)
    moved = vector(expected.params.state)
    np.testing.assert_allclose(vector(secure.params.state), moved, rtol=1e-5, atol=1e-5)
    assert np.abs(moved - 1).max() > 1  # the steps are counted
    assert apart(secure.params, expected.params) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, [0.0, 1.0]], ids=["one", "points"])
def test_sweep_points_and_64_bits(mu: Any, fresh: Fresh, tmp_path: Path) -> None:
    table = PLAIN | {"method": [{"name": "fedprox", "mu": mu}]}
    plain = deployed(table, answers(fresh(tmp_path / "plain", secure=False)))
    bits = {"secure": {"threshold": 3, "bound": 1e6, "bits": 64}}
    secure = deployed(table | {"deployment": bits}, answers(fresh(tmp_path / "secure")))
    for one, two in zip(plain, secure, strict=True):
        assert apart(one.params, two.params) < 1e-6


Heard = list[tuple[Parcel, Parcel]]


def heard(site: Site, seen: Heard) -> Callable[[Parcel], Parcel]:
    """What the site answers, which is kept with what it was asked."""
    return overheard(site.answer, lambda *both: seen.append(both))


def test_bytes_are_those_of_all_stages(sites: list[Site]) -> None:
    seen: Heard = []
    (run,) = deployed(TABLE, [heard(site, seen) for site in sites])
    stages = [
        pair for pair in seen if json.loads(pair[0].head)["kind"] not in ("describe", "prepare")
    ]
    down, up = (
        sum(len(each.head + each.body) for each in way) for way in zip(*stages, strict=True)
    )
    assert sum(record.bytes_down or 0 for record in run.history) == down
    assert sum(record.bytes_up or 0 for record in run.history) == up


class Watched:
    """What nodes make whole numbers of, and the operator numbers, but for measures."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.messages: list[Any] = []
        self.whole: list[Words] = []
        self.counted: list[Any] = []
        self.totals: list[Words] = []
        quantized, values = FixedPoint.quantized, FixedPoint.values

        def watch_node(fixed: FixedPoint, message: Any, counted: Any) -> Words:
            made = quantized(fixed, message, counted)
            if fixed.bound == MEASURES_BOUND:
                return made
            self.messages.append(message)
            self.counted.append(counted)
            self.whole.append(made.copy())
            return made

        def watch_operator(fixed: FixedPoint, total: Words, message: Any) -> Any:
            if fixed.bound != MEASURES_BOUND:
                self.totals.append(total.copy())
            return values(fixed, total, message)

        patch.setattr(FixedPoint, "quantized", watch_node)
        patch.setattr(FixedPoint, "values", watch_operator)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """The whole numbers of a run."""
    return Watched(monkeypatch)


def test_the_operator_has_the_sum_bit_for_bit_and_no_message(
    watched: Watched, sites: list[Site]
) -> None:
    seen: Heard = []
    deployed(TABLE, [heard(site, seen) for site in sites])
    assert len(watched.totals) == 2
    for i, total in enumerate(watched.totals):
        whole = watched.whole[NODES * i : NODES * (i + 1)]
        assert (total == sum(whole[1:], whole[0])).all()
    received = b"".join(each.head + each.body for pair in seen for each in pair)
    assert len(watched.messages) == 2 * NODES
    for message, quantized in zip(watched.messages, watched.whole, strict=True):
        for leaf in jax.tree.leaves(message):
            assert np.any(leaf)
            assert np.asarray(leaf).tobytes()[:64] not in received
        # nor a part of the whole numbers, at any place
        assert quantized.tobytes()[:64] not in received
        assert quantized.tobytes()[-64:] not in received
    # the same search finds what does travel
    sent = [unpack_answer(answer) for _, answer in seen if b'"advert":{' in answer.head]
    assert any(answer.advert and answer.advert.pairing.encode() in received for answer in sent)


def gone(site: Site, kind: str, of: str = "train") -> Callable[[Parcel], Parcel]:
    """A node that refuses from the first request of a kind on, in sums of one thing.

    The stages in which nodes agree on keys are of what is summed first, here measures: a node that
    refuses one of them in sums of messages refuses it in all.
    """
    stages = ["advertise", "share", "accept", of, "confirm", "reveal"]
    refused = stages[stages.index(kind) :]

    def answer(parcel: Parcel) -> Parcel:
        head = json.loads(parcel.head)
        always = of == "train" and head["kind"] in stages[:3]
        if head["kind"] in refused and (always or head["secret"]["of"] == of):
            return parcel_of(Answer(id=head["id"], refused="it is gone"))
        return site.answer(parcel)

    return answer


STAGES = ["advertise", "share", "accept", "train", "confirm", "reveal"]


@pytest.fixture(scope="module")
def start(fresh: Fresh, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A round without any node, after which the model is the initial one."""
    sites = fresh(tmp_path_factory.mktemp("start"))
    (run,) = deployed(ONE_ROUND, [gone(site, "advertise") for site in sites])
    return run


@pytest.fixture(scope="module")
def whole(fresh: Fresh, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A round with all nodes."""
    (run,) = deployed(ONE_ROUND, answers(fresh(tmp_path_factory.mktemp("whole"))))
    return run


@pytest.mark.parametrize("stage", STAGES)
def test_nodes_that_drop_out_lose_their_own_updates_alone(
    stage: str, start: Run, watched: Watched, sites: list[Site]
) -> None:
    nodes = [gone(site, stage) if i in (1, 3) else site.answer for i, site in enumerate(sites)]
    if stage == "confirm":  # which is asked only if a message is missing
        nodes[1] = gone(sites[1], "train")
    (run,) = deployed(ONE_ROUND, nodes)
    (total,) = watched.totals
    # the model follows from the plain sum of whole numbers, to the last bit
    fixed = FixedPoint(SECURE["secure"]["bound"], 32, NODES)
    summed, _ = fixed.values(
        sum(watched.whole[1:], watched.whole[0]), jax.tree.map(lambda a: a[None], run.params)
    )
    counted = sum(watched.counted[1:], watched.counted[0])
    mean = mean_of(summed, jnp.asarray(counted))
    expected = jax.tree.map(lambda a, b: a + b[0], start.params, mean)
    assert vector(expected).tobytes() == vector(run.params).tobytes()
    came = {"reveal": NODES, "confirm": NODES - 1}.get(stage, NODES - 2)
    assert run.final.dropped == NODES - came
    assert (total == sum(watched.whole[1:], watched.whole[0])).all()
    assert len(watched.whole) == came


@pytest.mark.parametrize("stage", mostly_slow(STAGES, "share", "reveal"))
def test_below_the_threshold_a_round_is_given_up_in_one_line(
    stage: str, sites: list[Site], operated: Operated
) -> None:
    nodes = [
        gone(site, stage) if i != 1 and i != 3 else site.answer for i, site in enumerate(sites)
    ]
    run, lines = operated(ONE_ROUND, nodes)
    given_up = [line for line in lines if "without this round's updates" in line]
    (line,) = given_up
    assert line.startswith(
        "fedprox mu=0.5, seed 0: round 1: 2 of 5 nodes are left, and a secure su"
    )
    assert run.final.dropped == NODES
    assert not run.params["dense"]["bias"].any()  # those of the initial model


def test_a_restarted_node_drops_out_of_its_sum(
    watched: Watched, sites: list[Site], operated: Operated
) -> None:

    def fault(node: int, number: int, head: dict[str, Any]) -> Any:
        del number
        reveals = head["kind"] == "reveal" and head["secret"]["of"] == "train"
        return "restart" if node == 2 and reveals else ""

    run, lines = operated(TABLE, unreliable(sites, fault))
    assert run.final.dropped == 0
    (line, _) = lines
    assert line.endswith(
        "round 1: node 'node-2': reveal: it refuses: keys that are replaced, or from before the "
        "node was restarted"
    )
    for i, total in enumerate(watched.totals):
        whole = watched.whole[NODES * i : NODES * (i + 1)]
        assert (total == sum(whole[1:], whole[0])).all()


def test_repeated_and_lost_messages_change_nothing(
    watched: Watched, sites: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedprox.deployment.conversation.REPEAT", 0.1)

    def fault(node: int, number: int, head: dict[str, Any]) -> Any:
        del head
        return ["", "lost answer", "twice", "", "lost request", "late"][(3 * node + number) % 6]

    (run,) = deployed(TABLE, unreliable(sites, fault), patience=60.0)
    assert run.final.dropped == 0
    assert len(watched.whole) == 2 * NODES
    assert len(watched.totals) == 2


def test_a_round_is_revealed_once(sites: list[Site], operated: Operated) -> None:
    (first,) = deployed(ONE_ROUND, answers(sites))
    for site in sites:
        site.restart()
    again, lines = operated(TABLE, answers(sites))
    once = "it refuses: round 1: this node has helped to reveal its sum, and does so once; without"
    assert sum(once in line for line in lines) == NODES
    assert [record.dropped for record in again.history[1:]] == [NODES, 0]
    assert first.params["dense"]["bias"].any()


def test_a_round_is_revealed_once_whatever_later_requests_say(sites: list[Site]) -> None:
    def disguised(head: dict[str, Any]) -> None:
        head["setup"]["run"] = "run7"

    nodes = answers(sites)
    for kind in ("share", "accept", "reveal"):
        nodes = [asking(SimpleNamespace(answer=answer), kind, disguised) for answer in nodes]
    (run,) = deployed(ONE_ROUND, nodes)
    assert run.final.dropped == 0
    assert {read_kept(Revealed, site.node.folder).rounds["run1/0-0/train"] for site in sites} == {0}
    # keys that are for another run do not help
    nodes = [asking(site, "advertise", disguised) for site in sites]
    (run,) = deployed(ONE_ROUND, nodes)
    assert run.final.dropped == NODES


def counting_stages(sites: list[Site], seen: list[str]) -> list[Callable[[Parcel], Parcel]]:
    """The sites, the first of which notes the kinds of requests of sums."""

    def note(asked: Parcel, _: Parcel) -> None:
        head = json.loads(asked.head)
        seen.extend([head["kind"]] * bool(head["secret"]))

    return [overheard(sites[0].answer, note), *answers(sites[1:])]


def test_keys_are_agreed_on_once_and_again_if_they_are_used_up_or_a_node_lost_them(
    sites: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is two exchanges, three if a message is missing, and an evaluation is one."""
    for module in ("secure_sum", "sum_keys"):
        monkeypatch.setattr(f"fedprox.deployment.{module}.SUMS", 3)
    seen: list[str] = []
    nodes = counting_stages(sites, seen)

    def restarted(parcel: Parcel) -> Parcel:
        head = json.loads(parcel.head)
        if head["kind"] == "train" and head["round"] == 4:
            sites[4].restart()
        return sites[4].answer(parcel)

    (run,) = deployed(TABLE | {"rounds": 6}, [*nodes[:4], restarted])
    keys, training, measuring = ["advertise", "share", "accept"], ["train", "reveal"], ["evaluate"]
    both = training + measuring
    assert seen == [
        *(keys + measuring + 3 * both),
        *(keys + both),
        *["train", "confirm", "reveal"],
        *(keys + measuring + both),
    ]
    assert [record.dropped for record in run.history[1:]] == [0, 0, 0, 0, 1, 0]
    assert all(record.measured for record in run.history)


def test_a_node_that_is_not_connected_costs_no_new_keys(sites: list[Site]) -> None:
    seen: list[str] = []
    nodes = counting_stages(sites, seen)
    away = False

    def leaving(parcel: Parcel) -> Parcel:
        nonlocal away
        if json.loads(parcel.head)["kind"] == "train":
            away = True
            raise NotConnected
        return sites[4].answer(parcel)

    class NotConnected(Exception):
        pass

    network = in_memory([*nodes[:4], leaving])

    def send(parcels: Mapping[int, Parcel]) -> Mapping[int, str]:
        sent: dict[int, str] = {}
        for node, parcel in parcels.items():
            with contextlib.suppress(NotConnected):
                sent |= network.send({node: parcel})
        return sent

    def connected() -> Sequence[int]:
        return range(NODES - away)

    lossy = Network(connected, send, network.receive)
    (run,) = deployed(TABLE | {"rounds": 3}, lossy, patience=0.1)
    training = ["train", "reveal"]
    assert seen == [
        *["advertise", "share", "accept", "evaluate"],
        *["train", "confirm", "reveal"],
        *(2 * training),
    ]
    assert [record.dropped for record in run.history[1:]] == [1, 1, 1]
    assert [record.measured for record in run.history] == [True, False, False, False]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_node_that_leaves_out_what_is_summed_drops_out(
    kind: str, sites: list[Site], operated: Operated
) -> None:

    def without(parcel: Parcel) -> Parcel:
        answered = sites[1].answer(parcel)
        if json.loads(parcel.head)["kind"] != kind:
            return answered
        arrays = unpack_arrays(answered.body)
        arrays.pop("masked")
        return parcel_of(unpack_answer(answered), arrays)

    nodes = [without if i == 1 else site.answer for i, site in enumerate(sites)]
    run, lines = operated(ONE_ROUND, nodes)
    assert lines
    refused = "node 'node-1': its answer is refused: the array 'masked' is missing"
    assert all(refused in line or "measures are summed over all" in line for line in lines)
    assert run.final.dropped == int(kind == "train")


def test_clipped_numbers_are_counted(
    watched: Watched, sites: list[Site], operated: Operated
) -> None:
    table = ONE_ROUND | {"deployment": {"secure": {"threshold": 3, "bound": 1e-3}}}
    run, lines = operated(table, answers(sites))
    counted = sum(int(whole[-1]) for whole in watched.whole)
    (line,) = lines
    assert line.endswith(
        f"round 1: {counted:,} numbers beyond deployment.secure.bound = 0.001 were clipped"
    )
    assert 0 < np.abs(run.params["dense"]["bias"]).max() <= 1e-3 * (1 + 1e-6)


def test_a_norm_beyond_all_messages_changes_nothing(fresh: Fresh, tmp_path: Path) -> None:
    (plain,) = deployed(PLAIN | {"rounds": 1}, answers(fresh(tmp_path / "plain", secure=False)))
    long = ONE_ROUND | {"deployment": {"secure": {"threshold": 3, "norm": 10.0}}}
    (whole,) = deployed(long, answers(fresh(tmp_path / "long")))
    assert apart(plain.params, whole.params) < 1e-6


def test_longer_messages_are_scaled_to_the_norm(sites: list[Site], operated: Operated) -> None:
    table = ONE_ROUND | {"deployment": {"secure": {"threshold": 3, "norm": 1e-3}}}
    run, lines = operated(table, answers(sites))
    (line,) = lines
    assert line.endswith(
        "round 1: 5 messages of nodes longer than deployment.secure.norm = 0.001 were scaled to it"
    )
    # which is 0 in the initial model
    assert 0 < np.linalg.norm(run.params["dense"]["bias"]) <= 1e-3 * (1 + 1e-4)


Change = Callable[[dict[str, Any]], None]


def asking(site: Any, kind: str, change: Change) -> Callable[[Parcel], Parcel]:
    """A node whose requests of a kind an operator has changed."""

    def answer(parcel: Parcel) -> Parcel:
        head = json.loads(parcel.head)
        if head["kind"] == kind:
            change(head)
        return site.answer(parcel._replace(head=json.dumps(head).encode()))

    return answer


def put(**values: Any) -> Change:
    """A change of some values of a head; `work__steps` is a value of `work`."""

    def change(head: dict[str, Any]) -> None:
        for name, value in values.items():
            *path, last = name.split("__")
            functools.reduce(operator.getitem, path, head)[last] = value

    return change


def fewer_nodes(head: dict[str, Any]) -> None:
    del head["setup"]["secure"]["nodes"][2:]


UNSIGNED: list[tuple[Change, str]] = [
    (put(setup__run="run2"), "train: the node's keys are for another run"),
    (put(setup__secure__bound=1e6), "train: the node's keys are for another run"),
    (put(work__steps=[0]), "a client without work, whose part of a sum is known"),
    (put(work__weight=[0.9]), "weights [0.9]; they must be "),
    (put(secret__asked=["node-0", "node-1"]), "a sum over 2 nodes; at least 3 are needed"),
    (
        put(secret__number=99),
        "sum 99: the node has begun it or a later one, or its keys are not fo",
    ),
    (put(secret=None), "train: messages are summed in secret only"),
    (
        put(setup__secure=None, secret=None),
        "a run without deployment.secure; the node's messages are summed in secret o",
    ),
    (fewer_nodes, "deployment.secure: 2 nodes; a secure sum is over 3 to 100"),
]


def test_a_node_answers_only_what_it_has_signed(sites: list[Site], operated: Operated) -> None:
    """An operator asks it for something else in each round."""
    rounds = len(UNSIGNED)

    def other(head: dict[str, Any]) -> None:
        UNSIGNED[head["round"]][0](head)

    nodes = [asking(sites[0], "train", other), *answers(sites[1:])]
    run, lines = operated(TABLE | {"rounds": rounds, "evaluation": {"every": rounds}}, nodes)
    for t, (logged, (_, line)) in enumerate(zip(lines, UNSIGNED, strict=True), 1):
        assert f"round {t}: node 'node-0': it refuses: {line}" in logged
    assert run.final.dropped == 1


OTHERWISE: dict[str, Change] = {
    "participation": put(participation=0.5),
    "nodes": put(secret__asked=["node-0", "node-1", "node-2", "node-3"]),
    "rate": lambda head: put(secret__rate=head["secret"]["rate"] * (1 + 1e-9))(head),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_who_is_asked_for_something_else_is_in_no_sum_with_others(
    what: str, sites: list[Site], operated: Operated
) -> None:
    """Its masks do not cancel theirs, so all that an operator has is noise."""
    nodes = [asking(sites[0], "train", OTHERWISE[what]), *answers(sites[1:])]
    run, lines = operated(ONE_ROUND, nodes)
    assert any("round 1: the sum cannot be: " in line for line in lines)
    assert run.final.dropped == NODES
    assert not run.params["dense"]["bias"].any()


def secure(**settings: Any) -> dict[str, Any]:
    """The section of a deployment."""
    return {"deployment": {"secure": {"threshold": 3, "bound": 1.0} | settings}}


FITS_NOT: dict[str, Any] = {
    "faults": {"norm": 5.0},
    "evaluation": {"gradients": True},
    "aggregation": {"rule": "median"},
    "cohort": {"clients_per_round": 3, "sampling": "proportional"},
}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (secure(threshold=2), "deployment.secure.threshold = 2; with 5 nodes it must be from 3 to"),
    (secure(threshold=6), "deployment.secure.threshold = 6; with 5 nodes it must be from 3 to"),
    (secure(bound=0.0), "deployment.secure.bound = 0.0; it must be"),
    (secure(norm=1.0), "deployment.secure: bound = 1.0, norm = 1.0; one of them is needed without"),
    (secure(bound=None), "deployment.secure: bound = None, norm = None; one of them is needed"),
    (secure(bound=None, norm=-1.0), "deployment.secure.norm = -1.0; it must be"),
    (
        secure(bound=None, norm=1.0) | {"method": [{"name": "fednova"}]},
        "fednova: deployment.secure.norm does not go with a method whose clients send a number "
        "beside their update, since nodes scale what is sent as a whole; give deployment.secure."
        "bound",
    ),
    (secure(bits=16), "deployment.secure.bits = 16; it must be one of 32, 64"),
    (secure(honest=2), "deployment.secure.honest = 2; it is for [privacy]: leave it out"),
    (
        FITS_NOT,
        "faults.norm = 5.0 does not go with deployment.secure, since the operator sees no node's "
        "message alone; it must be inf",
    ),
]


@pytest.mark.parametrize(("change", "line"), REFUSED)
def test_settings_that_do_not_fit(change: dict[str, Any], line: str, sites: list[Site]) -> None:
    assert refusal(lambda: deployed(TABLE | change, answers(sites))).startswith(line)


def test_two_nodes_are_refused(sites: list[Site]) -> None:
    with pytest.raises(InputError, match="2 nodes; a secure sum is over 3 to 100"):
        deployed(TABLE, answers(sites)[:2])


def test_a_round_with_clients_of_too_few_nodes_is_given_up(
    sites: list[Site], operated: Operated
) -> None:
    table = ONE_ROUND | {"cohort": {"clients_per_round": 2}}
    run, lines = operated(table, answers(sites))
    assert run.final.dropped == 2
    (line,) = lines
    assert "round 1: 2 of 5 nodes are left, and a secure sum needs 3: without this round" in line


def refusal(run: Callable[[], list[Run]]) -> str:
    """The line in which a run is refused."""
    with pytest.raises(InputError) as caught:
        run()
    return str(caught.value)


def test_policies(fresh: Fresh, tmp_path: Path) -> None:
    without = answers(fresh(tmp_path / "without", secure=False))
    line = refusal(lambda: deployed(TABLE, without))
    assert line.endswith("it refuses: deployment.secure: the node has no policy.secure")
    line = refusal(lambda: deployed(PLAIN, answers(fresh(tmp_path / "secure"))))
    assert "it refuses: a run without deployment.secure; the node's messages are summed" in line
    line = refusal(lambda: deployed(TABLE, answers(fresh(tmp_path / "four", threshold=4))))
    assert line.endswith("it refuses: deployment.secure.threshold = 3; at least 4 is allowed")


def test_a_node_that_is_not_known_is_not_summed_with(sites: list[Site]) -> None:
    sums = sites[0].node.sums
    assert sums is not None
    peers = {name: key for name, key in sums.identity.peers.items() if name != "node-3"}
    sums.identity = sums.identity._replace(peers=peers)
    line = refusal(lambda: deployed(ONE_ROUND, answers(sites)))
    assert line.endswith("node 'node-0': it refuses: nodes node-3: not in policy.secure.peers")


def test_a_renewed_key_that_others_do_not_have_ends_the_run_before_its_first_round(
    sites: list[Site], caplog: pytest.LogCaptureFixture
) -> None:
    """As after `fedprox certificates --renew node-1`, of which only one other node was told."""
    sums, told = sites[1].node.sums, sites[4].node.sums
    assert sums is not None
    assert told is not None
    key = ec.generate_private_key(ec.SECP256R1())
    sums.identity = sums.identity._replace(key=key)
    peers = {**told.identity.peers, "node-1": key.public_key()}
    told.identity = told.identity._replace(peers=peers)
    line = refusal(lambda: deployed(ONE_ROUND, answers(sites)))
    assert line == (
        "deployment.secure: node 'node-1' has another key than the file of it among "
        "policy.secure.peers on 'node-0', 'node-2', 'node-3'; put its new .pub there, and start "
        "these nodes again"
    )
    assert not operator_lines(caplog)


def test_who_withholds_losses_from_a_secure_sum_is_told_with_the_reason(
    sites: list[Site], caplog: pytest.LogCaptureFixture
) -> None:
    for site in sites[:3]:
        bound = PrivacyPolicy(own=OwnPrivacy(epsilon=5.0, delta=1e-5, clip=1.0))
        site.node.policy = site.node.policy.model_copy(update={"privacy": bound})
    sites[3].node.policy = sites[3].node.policy.model_copy(update={"report": ["accuracy"]})
    (run,) = deployed(ONE_ROUND, answers(sites))
    assert not run.final.measured
    assert caplog.messages[0] == (
        "1 of 5 nodes report losses, and a secure sum needs those of 3: a run that diverges cannot "
        "be told from one that learns (node-0, node-1, node-2: [policy.privacy] without "
        'exact_measures; node-3: policy.report has no "loss")'
    )


def test_a_node_with_secure_sums_reports_no_gradients(sites: list[Site]) -> None:
    assert sites[0].node.reports == ["loss", "accuracy", "metrics"]


def test_measures_are_those_without_it(fresh: Fresh, tmp_path: Path) -> None:
    table = PLAIN | {"rounds": 1}
    (plain,) = deployed(table, answers(fresh(tmp_path / "plain", secure=False)))
    seen: Heard = []
    sites = [heard(site, seen) for site in fresh(tmp_path / "secure")]
    (secure,) = deployed(table | {"deployment": SECURE}, sites)
    for one, two in zip(plain.history, secure.history, strict=True):
        for name in ("train_loss", "test_loss", "test_accuracy"):
            assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-5), name
    # no array of a node's but masked words and what says which updates count
    bodies = [answer.body for _, answer in seen if answer.body]
    names = {name for body in bodies for name in unpack_arrays(body)}
    assert names == {"masked", "counted", "steps", "counts", "faulty"}


@pytest.mark.parametrize(
    "stage", mostly_slow(["advertise", "share", "accept", "evaluate"], "share", "evaluate")
)
def test_without_a_node_nothing_is_measured_and_the_run_goes_on(
    stage: str, whole: Run, sites: list[Site], operated: Operated
) -> None:
    nodes = [*answers(sites[:4]), gone(sites[4], stage, "evaluate")]
    run, lines = operated(ONE_ROUND, nodes)
    for round_, record in enumerate(run.history):
        line = (
            f"fedprox mu=0.5, seed 0: evaluation after round {round_}: 4 of 5 nodes are left, and "
            "measures are summed over all: not measured"
        )
        assert line in lines
        assert not record.measured
    assert "fedprox mu=0.5, seed 0: node 'node-4': it refuses: it is gone" in lines
    assert run.diverged_at is None
    assert run.final.dropped == 0
    # a sum of all is that without masks but for rounding, whatever happened to the measures
    assert np.abs(vector(run.params) - vector(whole.params)).max() < 1e-6


def test_a_measure_of_too_few_nodes_is_not_in_the_sum(fresh: Fresh, tmp_path: Path) -> None:
    def first(few: int) -> Any:
        sites = fresh(tmp_path / str(few))
        for site in sites[:few]:
            site.node.policy = site.node.policy.model_copy(update={"report": ["loss"]})
        (run,) = deployed(ONE_ROUND, answers(sites))
        return run.history[0]

    assert 0 < first(2).test_accuracy < 1  # of three nodes
    record = first(3)
    assert np.isnan(record.test_accuracy)
    assert record.train_loss > 0


def test_a_run_that_was_killed_measures_its_last_model_again(sites: list[Site]) -> None:
    class KilledError(Exception):
        pass

    def killed(parcel: Parcel) -> Parcel:
        head = json.loads(parcel.head)
        if head["kind"] == "train":
            raise KilledError
        return sites[0].answer(parcel)

    with pytest.raises(KilledError):
        deployed(ONE_ROUND, [killed, *answers(sites[1:])])
    for site in sites:
        assert read_kept(Revealed, site.node.folder).rounds == {"run1/0-0/evaluate": 0}
        site.restart()
    (again,) = deployed(ONE_ROUND, answers(sites))
    assert [record.measured for record in again.history] == [True, True]


@pytest.mark.parametrize(
    ("change", "joins"),
    [
        (put(participation=1e-9), True),
        (put(round=5, setup__rounds=9), False),
        (put(setup__run="run2"), True),
        (put(setup__seed=7), False),
    ],
)
def test_no_two_sums_of_measures_differ_by_a_node(
    change: Change, joins: bool, sites: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator measures the same model again without a node, to subtract."""
    (whole,) = deployed(ONE_ROUND, answers(sites))
    assert whole.history[0].measured
    request, setup_of = Coordinator.request, Coordinator.setup

    def other(server: Coordinator, *of: Any) -> Setup:
        head = {"setup": json.loads(setup_of(server, *of).model_dump_json())}
        change(head)
        return Setup.model_validate_json(json.dumps(head["setup"]))

    def changed(server: Coordinator, kind: RequestKind, setup: Setup, **others: Any) -> Request:
        made = request(server, kind, setup, **others)
        if kind == "evaluate":
            head = json.loads(made.model_dump_json())
            change(head)
            made = Request.model_validate_json(json.dumps(head))
        return made

    monkeypatch.setattr(Coordinator, "setup", other)
    monkeypatch.setattr(Coordinator, "request", changed)
    nodes = answers(sites[:4])
    if joins:
        nodes.append(gone(sites[4], "advertise", "evaluate"))
    # an operator that needs no more than the threshold
    monkeypatch.setattr(
        SecureSum, "_require_messages", lambda own, nodes: require_enough(own.securing, nodes)
    )
    (less,) = deployed(ONE_ROUND | {"cohort": {"clients_per_round": len(nodes)}}, nodes)
    assert [record.measured for record in less.history] == [False, False]


def test_a_model_is_not_measured_again_with_a_little_more(
    sites: list[Site], operated: Operated
) -> None:
    """One answer for each round of a run, not for each model."""
    deployed(TABLE | {"rounds": 2}, answers(sites))
    for site in sites:
        site.restart()
    again, lines = operated(TABLE | {"rounds": 2}, answers(sites))
    # the rounds' sums are not revealed again, so the last model is another one
    assert [record.measured for record in again.history] == [False] * 3
    once = "evaluation after round 2: this node has helped to reveal its sum, and does so once"
    assert sum(once in line for line in lines) == NODES


def test_a_model_with_infinite_measures_gives_no_sum(
    sites: list[Site], operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever chooses the model would choose whose measures are left out."""
    evaluate, infinite = NodeMethod.evaluate, [0]

    def some(parts: NodeMethod, params: Any) -> Any:
        sums = evaluate(parts, params)
        infinite[0] += 1
        if infinite[0] == 1:
            return sums._replace(unmeasured=jnp.array([1]), weight=jnp.array([0.5]))
        if infinite[0] == 1 + NODES:
            loss = {**sums.test["loss"], "sum": np.array([np.inf], np.float32)}  # type: ignore[index]
            return sums._replace(test={**sums.test, "loss": loss})  # type: ignore[dict-item]
        return sums

    monkeypatch.setattr(NodeMethod, "evaluate", some)
    run, lines = operated(ONE_ROUND, answers(sites))
    assert [record.measured for record in run.history] == [False, False]
    for line in ("some of its losses are not finite", "its test/loss is not finite"):
        assert sum(f"node 'node-0': it refuses: evaluate: {line}" in each for each in lines) == 1


PRIVATE = {"clip": 0.5, "noise_multiplier": 1.0, "delta": 1e-3}
HIDDEN = table_of(
    {"name": "fedavg"},
    **SIZES,
    rounds=1,
    evaluation={"every": 1, "gradients": False},
    privacy=PRIVATE,
)
SHARED = {"secure": {"threshold": 3, "honest": 3}}


def trusting(sites: list[Site], honest: int = 3) -> list[Site]:
    """Sites that let a run count on so many honest nodes."""
    for site in sites:
        own = site.node.policy.secure
        assert own is not None
        site.node.policy = Policy(secure=own.model_copy(update={"honest": honest}))
    return sites


QUIET = HIDDEN | {"privacy": PRIVATE | {"noise_multiplier": 0.0}}


def test_noise_of_the_nodes_hides_clients_from_the_operator(
    watched: Watched, fresh: Fresh, tmp_path: Path
) -> None:
    table = HIDDEN | {"deployment": SHARED}
    one, two = (
        deployed(table, answers(trusting(fresh(tmp_path / name))))[0] for name in ("one", "two")
    )
    difference = (vector(one.params) - vector(two.params)).astype(np.float64)
    # all five have added the part of one of three
    added = 1.01 * PRIVATE["clip"] / NODES * np.sqrt(NODES / 3)
    assert abs(difference.std() / (np.sqrt(2) * added) - 1) < 5 / np.sqrt(2 * difference.size)
    everybody = Mechanism(NODES, NODES, "uniform", None, 1.0, 1, 1e-3, "pld")
    assert one.final.epsilon == pytest.approx(epsilon_of(everybody, 1))
    # nor is what a node sends its message but for masks
    assert len(watched.whole) == 2 * NODES
    fixed = FixedPoint(1.0, 32, NODES)
    for message, words in zip(watched.messages, watched.whole, strict=True):
        assert abs(np.corrcoef(vector(message), words[:-1].view(fixed.signed))[0, 1]) < 0.9


@pytest.mark.slow  # what is special is proven with noise, and without privacy
def test_private_sums_without_noise_are_those_of_a_trusted_operator(
    fresh: Fresh, tmp_path: Path
) -> None:
    (plain,) = deployed(QUIET, answers(fresh(tmp_path / "plain", secure=False)))
    secure = {"deployment": {"secure": {"threshold": 3}}}
    (quiet,) = deployed(QUIET | secure, answers(fresh(tmp_path / "quiet")))
    assert np.abs(vector(quiet.params) - vector(plain.params)).max() < 1e-6


def test_a_private_round_without_a_sum_changes_nothing(sites: list[Site]) -> None:
    sites = trusting(sites)
    nodes = [gone(site, "train") if i < 3 else site.answer for i, site in enumerate(sites)]
    (run,) = deployed(HIDDEN | {"deployment": SHARED}, nodes)
    assert not run.params["dense"]["bias"].any()
    assert run.final.epsilon is not None


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "example"])
def test_a_round_that_no_node_was_asked_to_train_costs_no_epsilon(
    unit: str, sites: list[Site], tmp_path: Path
) -> None:
    """Keys are not agreed on in the first round, nor for what is measured before and after it."""
    sites, asked = trusting(sites), 0
    privacy = PRIVATE | {"unit": unit, "measures": {"loss_bound": 4.0, "noise_multiplier": 5.0}}
    secured = {"threshold": 3} | ({"honest": 3} if unit == "client" else {"bound": 9.0})
    table = HIDDEN | {"rounds": 2, "privacy": privacy, "deployment": {"secure": secured}}

    def without_keys(site: Site) -> Callable[[Parcel], Parcel]:
        def answer(parcel: Parcel) -> Parcel:
            nonlocal asked
            asked += json.loads(parcel.head)["kind"] == "advertise"
            return site.answer(parcel) if asked > 3 * NODES else gone(site, "advertise")(parcel)

        return answer

    (tmp_path / "run").mkdir()
    ledger = Ledger(tmp_path / "run")
    (run,) = deployed(table, [without_keys(site) for site in sites], ledger=ledger)
    spent = [record.epsilon for record in run.history]
    assert spent[:2] == [0, 0]
    assert spent[2] > 0
    again = read_ledger(tmp_path / "run")
    assert (again.released, again.given_up, again.unmeasured) == (2, [0], [0, 1])
    if unit == "client":
        everybody = Mechanism(NODES, NODES, "uniform", None, 1.0, 1, 1e-3, "pld")
        assert spent[2] == pytest.approx(epsilon_beside(everybody, 1, (gaussian(5.0, 1e-3), 1)))
        return
    costs = [
        epsilon_together(tuple(taken), 1e-3)
        for site in sites
        for taken in site.node.spent.steps.values()
    ]
    assert spent[2] == pytest.approx(max(costs))


def test_a_resumed_run_counts_no_round_that_was_given_up_before(
    sites: list[Site], tmp_path: Path
) -> None:
    """The first of three rounds has no keys, and the last one is killed and repeated."""
    sites, trained, advertised = trusting(sites), 0, 0
    off = {"every": 3, "gradients": False}
    table = HIDDEN | {"rounds": 3, "deployment": SHARED, "evaluation": off}

    def failing(site: Site) -> Callable[[Parcel], Parcel]:
        def answer(parcel: Parcel) -> Parcel:
            nonlocal trained, advertised
            kind = json.loads(parcel.head)["kind"]
            trained, advertised = trained + (kind == "train"), advertised + (kind == "advertise")
            if kind == "advertise" and advertised <= 2 * NODES:  # the first evaluation's too
                return gone(site, "advertise")(parcel)
            if trained > NODES:
                raise Killed
            return site.answer(parcel)

        return answer

    (tmp_path / "run").mkdir()
    ledger = Ledger(tmp_path / "run")
    kept = functools.partial(Checkpoints, tmp_path / "checkpoint", 1)
    with pytest.raises(Killed):
        deployed(table, [failing(each) for each in sites], kept(resume=False), ledger=ledger)
    ledger = read_ledger(tmp_path / "run")
    assert (ledger.released, ledger.given_up) == (3, [0])
    (run,) = deployed(table, answers(sites), kept(resume=True), ledger=ledger)
    assert ledger.repeated == [(2, 3)]
    everybody = Mechanism(NODES, NODES, "uniform", None, 1.0, 1, 1e-3, "pld")
    assert run.final.epsilon == pytest.approx(epsilon_of(everybody, 3))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (secure(), "deployment.secure: bound = 1.0, norm = None; one of them is needed without"),
        (secure(bound=None, norm=1.0), "deployment.secure: bound = None, norm = 1.0; one of them"),
        (
            {"deployment": {"secure": {"threshold": 3, "honest": 4}}},
            "deployment.secure.honest = 4; it must be a whole number from 1 to 3",
        ),
        (
            {"cohort": {"clients_per_round": 3, "sampling": "bernoulli"}},
            "cohort.clients_per_round = 3; with [privacy] and deployment.secure it must be 5",
        ),
        (
            {"privacy": PRIVATE | {"adaptive_clip": {}}},
            "privacy.adaptive_clip does not go with deployment.secure",
        ),
    ],
)
def test_private_settings_that_do_not_fit(
    change: dict[str, Any], line: str, sites: list[Site]
) -> None:
    table = HIDDEN | {"deployment": SHARED} | change
    assert line in refusal(lambda: deployed(table, answers(trusting(sites))))


def test_a_node_says_on_how_many_a_run_may_count(sites: list[Site]) -> None:
    table = HIDDEN | {"deployment": SHARED}
    sites = trusting(sites, honest=2)
    line = refusal(lambda: deployed(table, answers(sites)))
    assert line.endswith("it refuses: deployment.secure.honest = 3; at most 2 is allowed")


@pytest.mark.slow  # the pair compiles rounds of its own
def test_with_privacy_of_rows_the_sum_is_as_without(fresh: Fresh, tmp_path: Path) -> None:
    rows = {"unit": "example", "clip": 1.0, "noise_multiplier": 0.0, "delta": 1e-3}
    whole = {"solver": PLAIN["solver"] | {"batch_size": "all"}}  # of which none is left to chance
    table = TABLE | whole | {"privacy": rows, "rounds": 1}
    (ours,) = deployed(table, answers(fresh(tmp_path)))
    plain = PLAIN | whole | {"privacy": rows, "rounds": 1}
    (theirs,) = deployed(plain, answers(fresh(tmp_path / "plain", secure=False)))
    assert apart(theirs.params, ours.params) < 1e-5
    noisy = TABLE | {"privacy": rows | {"noise_multiplier": 1.0}}
    sites = fresh(tmp_path / "noisy")
    (run,) = deployed(noisy, answers(sites))
    costs = [
        epsilon_together(tuple(taken), 1e-3)
        for site in sites
        for taken in site.node.spent.steps.values()
    ]
    assert len(costs) == NODES
    assert max(costs) == pytest.approx(run.final.epsilon)


def sampled(head: dict[str, Any]) -> None:
    put(setup__clients_per_round=3)(head)
    head["setup"]["privacy"]["mechanism"][1:3] = [3, "bernoulli"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (sampled, "deployment.secure with privacy: all clients take part, clipped to one norm"),
        (
            put(setup__secure__bound=1.0),
            "deployment.secure.bound follows from privacy.clip or deployment.secure.norm, and is",
        ),
        (
            put(setup__secure__norm=1.0),
            "deployment.secure.bound follows from privacy.clip or deployment.secure.norm, and is",
        ),
    ],
)
def test_a_node_accepts_no_other_noise(change: Change, line: str, sites: list[Site]) -> None:
    sites = trusting(sites)
    nodes = [asking(sites[0], "prepare", change), *answers(sites[1:])]
    table = HIDDEN | {"deployment": SHARED}
    assert line in refusal(lambda: deployed(table, nodes))
