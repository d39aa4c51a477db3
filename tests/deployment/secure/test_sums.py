"""Secure sums are exact, whoever drops out, and attacks on nodes are refused."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedprox.deployment.crypto import SHARE_BYTES, Words, joined_secret, seal
from fedprox.deployment.payload import RoundPart
from fedprox.deployment.secure_sum import OperatorSum, Sums, claims_of, commitment_of
from fedprox.deployment.wire import Advert, Answer, Claims, Secret
from fedprox.engine.planning.jobs import no_jobs
from fedprox.errors import InputError
from tests.deployment.secure.sums import (
    Nodes,
    ask,
    begun,
    dealt_by,
    given_to,
    identities,
    operator_of,
    shared,
    some_messages,
    summed,
)

NAMES = ["a", "b", "c", "d", "e"]
STAGES = ["advertise", "share", "mask", "confirm", "reveal"]


@pytest.fixture(scope="module")
def known() -> Any:
    """Five nodes that know each other."""
    return identities(NAMES)


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(STAGES), max_size=2))
@settings(max_examples=30)
def test_the_sum_is_that_of_the_nodes_whose_messages_came(gone: dict[str, str]) -> None:
    messages = some_messages(NAMES)
    by_stage = {stage: [n for n, s in gone.items() if s == stage] for stage in STAGES}
    total = summed(KNOWN, 3, messages, by_stage)
    came = [n for n in NAMES if gone.get(n) not in ("advertise", "share", "mask")]
    assert (total == sum((messages[n] for n in came), np.zeros(50, np.uint32))).all()


KNOWN = identities(NAMES)
"""For tests by hypothesis, which share no fixtures between examples."""


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_there_is_no_sum(stage: str, known: Any) -> None:
    with pytest.raises(
        InputError, match=r"2 of 5 nodes are left, and a secure sum needs 3|a sum over 2"
    ):
        summed(known, 3, some_messages(NAMES), {stage: ["a", "c", "e"]})


def test_a_masked_message_is_uniform(known: Any) -> None:
    nodes = begun(known, 3)
    shared(nodes)
    vector = np.zeros(100_000, np.uint32)
    nodes.sums["b"].mask(vector)
    counts = np.bincount(vector >> 24, minlength=256)
    assert abs(((counts - counts.mean()) ** 2 / counts.mean()).sum() - 255) < 6 * np.sqrt(2 * 255)


def masked(nodes: Nodes) -> dict[str, Words]:
    """All masked messages of zeros."""
    shared(nodes)
    vectors = {name: np.zeros(3, np.uint32) for name in nodes.sums}
    for name, vector in vectors.items():
        nodes.sums[name].mask(vector)
    return vectors


def attempt(call: Any, *arguments: Any) -> Any:
    """What a call returns; None if the node refuses."""
    try:
        return call(*arguments)
    except InputError:
        return None


SUBSETS = [set(names) for size in range(1, 6) for names in itertools.combinations(NAMES, size)]


@pytest.mark.parametrize("threshold", [3, 4])
def test_no_node_reveals_both_secrets_of_a_peer(threshold: int, known: Any) -> None:
    for first, second in itertools.islice(itertools.product(SUBSETS, repeat=2), 0, None, 37):
        nodes = begun(known, threshold)
        masked(nodes)
        before = {name: dict(each.shares) for name, each in nodes.sums.items()}
        signatures: list[dict[str, str]] = []
        for included in (first, second):
            answers = {n: attempt(nodes.sums[n].confirm, included) for n in NAMES}
            signatures.append({n: each["signature"] for n, each in answers.items() if each})
        seen: dict[str, set[str]] = {}
        for name, given_ in itertools.product(NAMES, signatures):
            answer = attempt(nodes.sums[name].reveal, given_) or {"shares": {}}
            for peer, share in answer["shares"].items():
                seen.setdefault(f"{name} of {peer}", set()).add(share)
                assert share in (
                    before[name][peer][:SHARE_BYTES].hex(),
                    before[name][peer][SHARE_BYTES:].hex(),
                )
        assert all(len(each) == 1 for each in seen.values())
        # what was revealed unmasks one sum, of at least as many nodes as the threshold
        by_peer = {
            peer: {
                half
                for n in NAMES
                for half in (0, 1)
                if before[n][peer][half * SHARE_BYTES :][:SHARE_BYTES].hex()
                in seen.get(f"{n} of {peer}", ())
            }
            for peer in NAMES
        }
        assert all(len(kinds) <= 1 for kinds in by_peer.values())
        if seen:
            assert sum(kinds == {0} for kinds in by_peer.values()) >= threshold


def test_two_sums_are_not_both_confirmed(known: Any) -> None:
    nodes = begun(known, 3)
    masked(nodes)
    one = {n: nodes.sums[n].confirm("abc")["signature"] for n in "ab"}
    two = {n: nodes.sums[n].confirm("cde")["signature"] for n in "cde"}
    with pytest.raises(InputError, match="a sum over 2 nodes; at least 3 are needed"):
        nodes.sums["a"].reveal(one)
    with pytest.raises(InputError, match="signatures of nodes outside of the sum"):
        nodes.sums["a"].reveal(one | two)
    with pytest.raises(InputError, match="not signed by the key of node 'c'"):
        nodes.sums["a"].reveal({**one, "c": two["c"]})
    revealed = {n: nodes.sums[n].reveal(two)["shares"] for n in "cde"}
    assert joined_secret({i: bytes.fromhex(revealed[n]["c"]) for i, n in enumerate("cde", 3)})


def test_a_stage_is_passed_once(known: Any) -> None:
    nodes = begun(known, 3)
    with pytest.raises(InputError, match="the node has advertised already"):
        nodes.sums["a"].accept(dict.fromkeys("bc", ""), {})
    masked(nodes)
    node = nodes.sums["a"]
    with pytest.raises(InputError, match="the node has masked already"):
        node.share(nodes.roster)
    with pytest.raises(InputError, match="the node has masked already"):
        node.mask(np.zeros(3, np.uint32))
    signatures = {n: nodes.sums[n].confirm(NAMES)["signature"] for n in NAMES}
    with pytest.raises(InputError, match="the node has confirmed already"):
        node.confirm("abc")
    assert node.reveal(signatures)["shares"].keys() == set(NAMES)
    with pytest.raises(InputError, match="the node has revealed already"):
        node.reveal(signatures)


def changed(nodes: Nodes, name: str, **values: Any) -> list[Advert]:
    """A roster in which one advertisement is changed."""
    return [each.model_copy(update=values) if each.node == name else each for each in nodes.roster]


def test_an_operator_that_swaps_keys_is_refused(known: Any) -> None:
    nodes, others = begun(known, 3), begun(known, 3)
    for key in ("sharing", "masking", "seed"):
        value = getattr(others.sums["b"].advert, key)
        with pytest.raises(InputError, match="not signed by the key of node 'b'"):
            nodes.sums["a"].share(changed(nodes, "b", **{key: value}))
    # the operator signs as b with a key of its own
    forged = begun(identities(NAMES), 3).sums["b"]
    own = forged.advert.model_copy(update={"sum": nodes.roster[0].sum})
    signed = own.model_copy(update={"signature": forged.identity.sign(own.signed).hex()})
    with pytest.raises(InputError, match="not signed by the key of node 'b'"):
        nodes.sums["a"].share([signed if each.node == "b" else each for each in nodes.roster])


def test_a_roster_is_checked(known: Any) -> None:
    nodes, others = begun(known, 3), begun(known, 3)
    node = nodes.sums["a"]
    with pytest.raises(InputError, match="advertisement of node 'b': it is asked for something el"):
        node.share([nodes.roster[0], *others.roster[1:]])  # those of an earlier sum
    with pytest.raises(InputError, match="a sum over 2 nodes; at least 3 are needed"):
        node.share(nodes.roster[:2])
    with pytest.raises(InputError, match="not in order"):
        node.share([nodes.roster[0]] * 3)
    with pytest.raises(InputError, match="the node's own advertisement is not there"):
        node.share(nodes.roster[1:])
    strangers = begun(identities([*NAMES, "x"]), 4)
    with pytest.raises(InputError, match="advertisement of node 'x': it is not of this run"):
        node.share([*nodes.roster, strangers.roster[-1]])


def test_nodes_with_another_model_or_request_are_not_summed(known: Any) -> None:
    nodes = begun(known, 3, context=lambda name: "other" if name == "c" else "context")
    with pytest.raises(InputError, match="advertisement of node 'c': it is asked for something el"):
        nodes.sums["a"].share(nodes.roster)


def test_weights_do_not_single_out_a_node(known: Any) -> None:
    for one, others in (
        (Claims(by="rows", rate=0.9), Claims(by="rows", rate=1e-4)),
        (Claims(by="rows", rate=0.1), Claims(by="clients", rate=0.1)),
    ):
        nodes = begun(known, 3, work=lambda name: one if name == "a" else others)  # noqa: B023
        with pytest.raises(InputError, match="they must be equal or those of rows"):
            nodes.sums["a"].share(nodes.roster)


def test_measures_are_summed_over_all_nodes_or_none(known: Any) -> None:
    def work(name: str) -> Claims:
        return Claims(by="rows", rate=0.02, measures=["loss", *["test/loss"] * (name in "ab")])

    fewer = {name: each for name, each in known.items() if name != "d"}
    everyone, without = begun(known, 3, work=work), begun(fewer, 3, work=work)
    line = "measures without node d; they are summed over all of policy.secure.peers and this node"
    with pytest.raises(InputError, match=line):
        without.sums["a"].share(without.roster)
    dealt = dealt_by(everyone)
    with pytest.raises(InputError, match=line):
        everyone.sums["a"].accept(*given_to("a", {n: dealt[n] for n in "abce"}))
    for name, each in everyone.sums.items():
        assert each.measures == {"loss"}  # fewer than the threshold report the other
        assert each.accept(*given_to(name, dealt)) == {"unusable": []}
        each.mask(np.zeros(3, np.uint32))
    with pytest.raises(InputError, match=line):
        everyone.sums["a"].confirm([name for name in known if name != "d"])


@pytest.mark.parametrize("measures", [["loss"], ["loss", "weight"], ["unmeasured", "test/loss"]])
def test_losses_are_not_advertised_without_their_weights(measures: list[str], known: Any) -> None:
    def judged(more: list[str]) -> None:
        claims = Claims(by="rows", rate=0.02, measures=[*measures, *more])
        nodes = begun(known, 3, work=lambda name: claims)  # noqa: ARG005
        secret = Secret(sum=nodes.roster[0].sum, of="evaluate", by="rows", context="context")
        operator = OperatorSum(nodes.securing, secret, {"a": 0.02}, lambda name: b"")  # noqa: ARG005
        operator.check("advertise", "a", Answer(id="", advert=nodes.roster[0]))

    judged(["loss", "weight", "unmeasured"])
    with pytest.raises(InputError, match=r"it reports .*, a part of what losses need"):
        judged([])


def test_weights_within_a_node_are_of_one_kind() -> None:
    jobs = no_jobs()._replace(
        weight=np.array([0.1, 0.3]), size=np.array([10, 30]), steps=np.array([1, 2])
    )
    secret = Secret(sum="0" * 32, of="train", by="rows")
    assert claims_of(secret, jobs) == Claims(by="rows", rate=0.01)
    line = "weights [0.1, 0.3]; they must be equal or those of rows"
    with pytest.raises(InputError, match=re.escape(line)):
        claims_of(secret.model_copy(update={"by": "clients"}), jobs)
    for change in ({"weight": np.array([0.1, 0.0])}, {"steps": np.array([0, 1])}):
        with pytest.raises(InputError, match="a client without work"):
            claims_of(secret, jobs._replace(**change))  # type: ignore[arg-type]
    first = secret.model_copy(update={"of": "gradients"})  # which takes no steps
    assert claims_of(first, jobs._replace(steps=np.zeros(2, np.int64))).rate == 0.01


def test_a_node_without_an_update_is_not_in_a_sum(known: Any, tmp_path: Path) -> None:
    request: Any = None
    setup: Any = None
    counts = np.array([[True, False], [True, False]])
    part = RoundPart(None, np.ones(2, np.float32), np.ones((2, 2), np.int64), counts, ~counts)
    with pytest.raises(InputError, match="no update counts, and a sum without any hides less"):
        Sums(known["a"], tmp_path).masked(request, setup, part)


def test_shares_that_are_of_no_use_are_named(known: Any) -> None:
    nodes, others = begun(known, 3), begun(known, 3)
    dealt, old = dealt_by(nodes), dealt_by(others)
    good, stated = given_to("a", dealt)
    flipped = f"{int(good['b'][0], 16) ^ 1:x}" + good["b"][1:]
    longer = seal(nodes.sums["b"]._sealing("b", "a"), bytes(70)).hex()
    for share in (old["b"]["shares"]["a"], dealt["b"]["shares"]["c"], flipped, "", longer):
        told = {**stated, "b": commitment_of(bytes(70))} if share == longer else stated
        node = nodes.sums["a"]
        assert node.accept({**good, "b": share}, told) == {"unusable": ["b"]}
        node.stage, node.shares = "shared", {"a": node.shares["a"]}
    # a digest that is not of the share that was given
    assert node.accept(good, {**stated, "c": stated["b"]}) == {"unusable": ["c"]}
    node.stage, node.shares = "shared", {"a": node.shares["a"]}
    with pytest.raises(InputError, match="shares of nodes that are not in the sum"):
        node.accept({**good, "x": good["b"]}, stated)
    assert node.accept(good, stated) == {"unusable": []}


def test_a_roster_that_differs_between_nodes_gives_no_sum(known: Any) -> None:
    nodes = begun(known, 3)
    # a is told of everybody, and the others of one node less
    dealt = {"a": nodes.sums["a"].share(nodes.roster)}
    dealt |= {n: nodes.sums[n].share(nodes.roster[:-1]) for n in "bcd"}
    assert nodes.sums["a"].accept(*given_to("a", dealt)) == {"unusable": ["b", "c", "d"]}


def accepted(nodes: Nodes) -> OperatorSum:
    """The operator of nodes that have taken each other's shares."""
    operator = operator_of(nodes)
    ask(operator, nodes, "share", NAMES)
    ask(operator, nodes, "accept", NAMES)
    return operator


def reveal(operator: OperatorSum, nodes: Nodes, came: str) -> dict[str, dict[str, str]]:
    """Sum masked messages of zeros of some nodes; the shares that these reveal, to be changed."""
    operator.masked = {name: np.zeros(3, np.uint32) for name in came}
    for name, vector in operator.masked.items():
        nodes.sums[name].mask(vector)
    ask(operator, nodes, "confirm", came)
    ask(operator, nodes, "reveal", came)
    return {name: answer.shares for name, answer in operator.answers["reveal"].items()}


@pytest.mark.parametrize("liar", ["a", "b", "d"])
def test_a_share_that_is_revealed_wrongly_is_not_used(liar: str, known: Any) -> None:
    nodes = begun(known, 3)
    operator = accepted(nodes)
    revealed = reveal(operator, nodes, "abcd")  # e drops out, so its key is needed
    for name in NAMES:
        revealed[liar][name] = revealed["c"][name]
    assert not operator.unmasked().any()
    assert operator.liars == {liar: "it reveals another share than it was given"}


def test_two_wrong_shares_of_four_are_too_many(known: Any) -> None:
    nodes = begun(known, 3)
    operator = accepted(nodes)
    revealed = reveal(operator, nodes, "abcd")
    revealed["a"]["c"] = revealed["b"]["c"] = revealed["d"]["c"]
    with pytest.raises(InputError, match="2 right shares of a secret, and a secure sum needs 3"):
        operator.unmasked()
    assert operator.liars.keys() == {"a", "b"}
    assert not operator.dishonest


@pytest.mark.parametrize("gone", ["", "b"])
def test_a_node_that_shares_another_secret_is_named(gone: str, known: Any) -> None:
    nodes = begun(known, 3)
    liar = nodes.sums["b"]
    liar.seed, liar.masking = bytes(32), X25519PrivateKey.generate()
    operator = accepted(nodes)
    reveal(operator, nodes, "acde" if gone else "abcde")
    line = "^node 'b': its shares are not of the secret that it has advertised$"
    with pytest.raises(InputError, match=line):
        operator.unmasked()
    assert operator.dishonest.keys() == {"b"}


def test_shares_that_do_not_fit_the_others_are_left_out(known: Any) -> None:
    nodes = begun(known, 3)
    share = nodes.sums["b"].share

    def uneven(roster: Any) -> Any:
        dealt, wrong = share(roster), bytes(2 * SHARE_BYTES)
        dealt["shares"]["a"] = seal(nodes.sums["b"]._sealing("b", "a"), wrong).hex()
        dealt["commitments"]["a"] = commitment_of(wrong)
        return dealt

    nodes.sums["b"].share = uneven  # type: ignore[method-assign]
    operator = accepted(nodes)
    reveal(operator, nodes, "abcde")
    assert not operator.unmasked().any()
    assert not operator.liars


def test_who_disagrees_with_more_than_may_lie_lies(known: Any) -> None:
    def judged(unusable: dict[str, str], present: str = "abcde") -> OperatorSum:
        operator = operator_of(begun(known, 3))
        told = {name: [*unusable.get(name, "")] for name in present}
        operator.take("accept", {n: Answer(id="", unusable=each) for n, each in told.items()})
        return operator

    assert judged({}).dishonest == {}
    # it has given nobody a share, and says so of everybody
    assert judged(dict.fromkeys("acde", "b")).dishonest.keys() == {"b"}
    assert judged({"b": "acde"}).dishonest.keys() == {"b"}
    # two nodes of five may lie, so who disagrees with two may be honest
    assert judged({"b": "ac"}).dishonest == {}
    assert judged({"b": "ac"}).disagreements == [("a", "b"), ("b", "c")]
    # with one node lost, one of the others may
    assert judged({"b": "ac"}, "abcd").dishonest.keys() == {"b"}
    line = "nodes 'a' and 'b' disagree about a share, and no node is to spare: which of the two"
    with pytest.raises(InputError, match=line):
        judged({"b": "a"}, "abc")
