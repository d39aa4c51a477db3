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
from fedprox.deployment.secure_sum import (
    NodeSum,
    OperatorSum,
    Sums,
    check_weights,
    context_of,
    mask_by_all,
    share_of,
)
from fedprox.deployment.sum_keys import BOTH, OperatorKeys, commitments_of
from fedprox.deployment.wire import SUMS, Advert, Answer, Request, Secret, Setup
from fedprox.engine.planning.jobs import no_jobs
from fedprox.errors import InputError
from tests.deployment.secure.sums import (
    Nodes,
    agreed,
    ask,
    begun,
    dealt_by,
    given_to,
    identities,
    operator_of,
    shared,
    some_messages,
    sum_of,
    summed,
)

NAMES = ["a", "b", "c", "d", "e"]
STAGES = ["mask", "confirm", "reveal"]


@pytest.fixture(scope="module")
def known() -> Any:
    """Five nodes that know each other."""
    return identities(NAMES)


KNOWN = identities(NAMES)
"""For tests by hypothesis, which share no fixtures between examples."""

GONE = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(STAGES), max_size=2)


def by_stage(gone: dict[str, str]) -> dict[str, list[str]]:
    """The nodes that drop out, by stage."""
    return {stage: [n for n, s in gone.items() if s == stage] for stage in STAGES}


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["share", "accept"]), max_size=2),
    st.lists(st.tuples(st.sets(st.sampled_from(NAMES), min_size=3), GONE), min_size=1, max_size=4),
)
@settings(max_examples=25)
def test_each_sum_of_the_same_keys_is_that_of_the_nodes_whose_messages_came(
    without: dict[str, str], rounds: list[tuple[set[str], dict[str, str]]]
) -> None:
    """Some nodes are not there when keys are made, and others drop out of each sum and are back."""
    nodes = begun(KNOWN, 3)
    sharing = [n for n in NAMES if without.get(n) != "share"]
    operator = agreed(nodes, sharing, [n for n in NAMES if n not in without])
    for t, (cohort, gone) in enumerate(rounds):
        messages = some_messages(operator.members & cohort, seed=t)
        came = [n for n in messages if gone.get(n) != "mask"]
        lost = {n for n in messages if n in gone}
        if len(messages) - len(lost) < 3:  # too few to reveal it
            continue
        total = summed(operator, nodes, messages, by_stage(gone))
        assert (total == sum((messages[n] for n in came), np.zeros(50, np.uint32))).all()


def test_keys_are_for_so_many_sums(known: Any) -> None:
    nodes = begun(known, 3)
    operator = agreed(nodes)
    for t in range(SUMS):
        messages = some_messages(NAMES, seed=t)
        total = summed(operator, nodes, messages, {"mask": NAMES[t % 5]})
        assert (total == sum(v for n, v in messages.items() if n != NAMES[t % 5])).all()
    for each in nodes.keys.values():
        with pytest.raises(InputError, match="its keys are not for so many"):
            each.require_next(SUMS, NAMES, everyone=False)


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_there_is_no_sum(stage: str, known: Any) -> None:
    nodes = begun(known, 3)
    gone = {stage: ["a", "c", "e"]}
    if stage == "confirm":  # which is asked only if a message is missing
        gone = {"mask": ["a"], stage: ["c", "e"]}
    with pytest.raises(InputError, match=r"2 of 5 nodes are left, and a secure sum needs 3"):
        summed(agreed(nodes), nodes, some_messages(NAMES), gone)


def test_if_all_messages_come_there_is_nothing_to_confirm(known: Any) -> None:
    nodes = begun(known, 3)
    operator = agreed(nodes)
    messages = some_messages(NAMES)
    assert sum_of(operator, nodes, messages, NAMES)[0].stages == ("reveal",)
    assert sum_of(operator, nodes, messages, "abcd")[0].stages == ("confirm", "reveal")


def test_a_masked_message_is_uniform(known: Any) -> None:
    nodes = begun(known, 3)
    shared(nodes)
    vector = np.zeros(100_000, np.uint32)
    NodeSum(nodes.keys["b"], 0, "context", NAMES).mask(vector)
    counts = np.bincount(vector >> 24, minlength=256)
    assert abs(((counts - counts.mean()) ** 2 / counts.mean()).sum() - 255) < 6 * np.sqrt(2 * 255)


ZEROS = np.zeros(3, np.uint32)


def masked(nodes: Nodes, number: int = 0) -> dict[str, NodeSum]:
    """The parts of nodes that have sent zeros under masks."""
    sums = {name: NodeSum(keys, number, "context", NAMES) for name, keys in nodes.keys.items()}
    for each in sums.values():
        each.mask(ZEROS.copy())
    return sums


def attempt(call: Any, *arguments: Any) -> Any:
    """What a call returns; None if the node refuses."""
    try:
        return call(*arguments)
    except InputError:
        return None


SUBSETS = [set(names) for size in range(1, 6) for names in itertools.combinations(NAMES, size)]


class Halves:
    """What nodes have revealed of the shares of each other's secrets in one sum."""

    def __init__(self, sums: dict[str, NodeSum]) -> None:
        self.before = {name: dict(each.shares) for name, each in sums.items()}
        self.seen: dict[tuple[str, str], set[int]] = {}

    def add(self, name: str, shares: dict[str, str]) -> None:
        """Add what a node has revealed, which must be one half of shares that it has."""
        for peer, share in shares.items():
            own = self.before[name][peer]
            halves = [own[:SHARE_BYTES].hex(), own[SHARE_BYTES:].hex()]
            self.seen.setdefault((name, peer), set()).add(halves.index(share))

    def holders(self, peer: str, half: int) -> set[str]:
        """The nodes that have revealed a half of a peer."""
        return {name for (name, of), seen in self.seen.items() if of == peer and half in seen}


@pytest.mark.parametrize("threshold", [3, 4])
def test_no_secrets_of_two_sets_are_revealed(threshold: int, known: Any) -> None:
    """An operator asks nodes to confirm two sets, and to reveal those and all."""
    generator = np.random.default_rng(3)
    nodes = begun(known, threshold)
    pairs = [*itertools.islice(itertools.product(SUBSETS, repeat=2), 0, None, 37)]
    for t, (first, second) in enumerate(pairs):
        if t % SUMS == 0:
            nodes = begun(known, threshold)
            shared(nodes)
        sums, signatures = masked(nodes, t % SUMS), [dict[str, str](), {}]
        halves = Halves(sums)
        for name in NAMES:
            told: list[tuple[str, Any]] = [
                ("confirm", (first, 0)),
                ("confirm", (second, 1)),
                ("reveal", None),
            ]
            generator.shuffle(told)
            for stage, of in told[: generator.integers(1, 4)]:
                if stage == "confirm":
                    answer = attempt(sums[name].confirm, t % SUMS, of[0])
                    signatures[of[1]] |= {name: answer["signature"]} if answer else {}
                else:
                    answer = attempt(sums[name].reveal, t % SUMS, NAMES, {})
                    halves.add(name, answer["shares"] if answer else {})
        for name, (of, given_) in itertools.product(
            NAMES, zip((first, second), signatures, strict=True)
        ):
            answer = attempt(sums[name].reveal, t % SUMS, of, given_)
            halves.add(name, answer["shares"] if answer else {})
        assert all(len(seen) == 1 for seen in halves.seen.values())
        seeds = {p for p in NAMES if len(halves.holders(p, 0)) >= threshold}
        keys = {p for p in NAMES if halves.holders(p, 1)}
        enough = {p for p in NAMES if len(halves.holders(p, 1)) >= threshold}
        assert not seeds & enough
        # one sum at most is unmasked: that of all, or that of a set without those whose keys are
        # known, which has as many nodes as the threshold
        assert not enough or len(set(NAMES) - enough) >= threshold
        assert not keys or seeds <= set(NAMES) - keys


def test_two_sums_are_not_both_confirmed(known: Any) -> None:
    nodes = begun(known, 3)
    shared(nodes)
    sums = masked(nodes)
    one = {n: sums[n].confirm(0, "abc")["signature"] for n in "ab"}
    two = {n: sums[n].confirm(0, "cde")["signature"] for n in "cde"}
    with pytest.raises(InputError, match="a sum over 2 nodes; at least 3 are needed"):
        sums["a"].reveal(0, "abc", one)
    with pytest.raises(InputError, match="signatures of nodes outside of the sum"):
        sums["a"].reveal(0, "abc", one | two)
    with pytest.raises(InputError, match="not signed by the key of node 'c'"):
        sums["a"].reveal(0, "abc", {**one, "c": two["c"]})
    for included in (NAMES, "cde"):
        with pytest.raises(InputError, match="another sum than the node has confirmed"):
            sums["a"].reveal(0, included, two)
    revealed = {n: sums[n].reveal(0, "cde", two)["shares"] for n in "cde"}
    assert joined_secret({i: bytes.fromhex(revealed[n]["c"]) for i, n in enumerate("cde", 3)})


def test_a_signature_of_another_sum_of_the_keys_does_not_count(known: Any) -> None:
    nodes = begun(known, 3)
    shared(nodes)
    signed = {
        n: each.confirm(0, "abc")["signature"] for n, each in masked(nodes).items() if n < "d"
    }
    later = masked(nodes, 1)
    later["a"].confirm(1, "abc")
    with pytest.raises(InputError, match="not signed by the key of node"):
        later["a"].reveal(1, "abc", signed)


def test_a_stage_is_passed_once(known: Any) -> None:
    nodes = begun(known, 3)
    keys = nodes.keys["a"]
    with pytest.raises(InputError, match="the node's keys are advertised already"):
        keys.accept(dict.fromkeys("bc", ""), {})
    with pytest.raises(InputError, match="the node's keys are advertised, and not accepted"):
        keys.require_next(0, NAMES, everyone=False)
    shared(nodes)
    with pytest.raises(InputError, match="the node's keys are accepted already"):
        keys.share(nodes.roster)
    sums = masked(nodes, 2)
    node = sums["a"]
    for number in (0, 1, 2):
        with pytest.raises(InputError, match=f"sum {number}: the node has begun it or a later one"):
            keys.require_next(number, NAMES, everyone=False)
    assert min(keys.secrets) == min(keys.shares) == 3  # those before are forgotten
    with pytest.raises(InputError, match="the node has masked its message already"):
        node.mask(ZEROS.copy())
    with pytest.raises(InputError, match="without some nodes' messages, which the node has not co"):
        node.reveal(2, "abcd", {})
    with pytest.raises(InputError, match="a sum that is over, or was not begun"):
        node.confirm(1, "abcd")
    signatures = {n: each.confirm(2, "abcd")["signature"] for n, each in sums.items() if n != "e"}
    with pytest.raises(InputError, match="the node has confirmed already"):
        node.confirm(2, "abc")
    assert node.reveal(2, "abcd", signatures)["shares"].keys() == set(NAMES)
    for call in (lambda: node.reveal(2, "abcd", signatures), lambda: node.confirm(2, "abcd")):
        with pytest.raises(InputError, match="the node has revealed already"):
            call()


def test_nodes_that_are_asked_different_things_have_masks_that_do_not_cancel(known: Any) -> None:
    nodes = begun(known, 3)
    operator = agreed(nodes)
    for t, (context, asked) in enumerate(
        [("context", NAMES), ("other", NAMES), ("context", "acde")]
    ):
        secret = Secret(keys=operator.name, of="train", number=t, asked=NAMES)
        one = OperatorSum(operator, secret, "context")
        sums = {
            name: NodeSum(each, t, *((context, asked) if name == "a" else ("context", NAMES)))
            for name, each in nodes.keys.items()
        }
        for name, each in sums.items():
            one.masked[name] = np.zeros(1000, np.uint32)
            each.mask(one.masked[name])
        for name in "bcde":  # a refuses to reveal another sum than it was asked for
            one.answers["reveal"] = {
                **one.answers.get("reveal", {}),
                name: Answer(id="", **sums[name].reveal(t, NAMES, {})),
            }
        assert (one.unmasked() == 0).mean() == (1.0 if t == 0 else pytest.approx(0, abs=0.01))


SUMMED = Request(
    version=13,
    id="1",
    kind="train",
    arrays=["a", "b"],
    secret=Secret(keys="0" * 32, of="train", rate=0.1, asked=NAMES),
)


@pytest.mark.parametrize(
    "other",
    [
        {"version": 14},
        {"kind": "gradients"},
        {"round": 1},
        {"participation": 0.5},
        {"initial": True},
        {"arrays": ["b", "a"]},
        {"setup": Setup.model_construct(run="other")},
        *({"secret": {name: value}} for name, value in {"by": "clients", "rate": 0.2}.items()),
        {"secret": {"asked": NAMES[1:]}},
    ],
    ids=str,
)
def test_masks_are_those_of_all_that_nodes_are_asked_alike(other: dict[str, Any]) -> None:
    assert context_of(SUMMED.model_copy(update={"id": "2", "seconds": 1.0})) == context_of(SUMMED)
    if "secret" in other:
        assert SUMMED.secret is not None
        other = {"secret": SUMMED.secret.model_copy(update=other["secret"])}
    assert context_of(SUMMED.model_copy(update=other)) != context_of(SUMMED)


def test_a_sum_over_all_is_there_with_all_messages_alone(known: Any) -> None:
    nodes = begun(known, 3)
    operator, messages = agreed(nodes), some_messages(NAMES, 1000)
    secret = Secret(keys=operator.name, of="evaluate", asked=NAMES)
    one = OperatorSum(operator, secret, "context")
    for name in NAMES:
        one.masked[name] = messages[name].copy()
        mask_by_all(nodes.keys[name], secret, "context", one.masked[name])
    assert one.stages == ()
    again = messages["a"].copy()
    mask_by_all(nodes.keys["a"], secret.model_copy(update={"number": 1}), "context", again)
    assert (again == one.masked["a"]).mean() < 0.01  # no mask is used twice
    before = {name: vector.copy() for name, vector in one.masked.items()}
    assert (one.unmasked() == sum(messages.values())).all()
    for name in NAMES:
        fewer = sum(v for n, v in before.items() if n != name)
        apart = fewer - sum(v for n, v in messages.items() if n != name)
        assert np.unique(apart).size > 990  # the masks of the one that is missing
        with pytest.raises(InputError, match="sum 0: the node has begun it or a later one"):
            nodes.keys[name].require_next(0, NAMES, everyone=True)


def changed(nodes: Nodes, name: str, **values: Any) -> list[Advert]:
    """A roster in which one advertisement is changed."""
    return [each.model_copy(update=values) if each.node == name else each for each in nodes.roster]


def test_an_operator_that_swaps_keys_is_refused(known: Any) -> None:
    nodes, others = begun(known, 3), begun(known, 3)
    for key in ("pairing", "masking", "seeds", "measures"):
        value = ["loss"] if key == "measures" else getattr(others.keys["b"].advert, key)
        with pytest.raises(InputError, match="not signed by the key of node 'b'"):
            nodes.keys["a"].share(changed(nodes, "b", **{key: value}))
    # the operator signs as b with a key of its own
    forged = begun(identities(NAMES), 3).keys["b"]
    own = forged.advert.model_copy(update={"keys": nodes.roster[0].keys})
    signed = own.model_copy(update={"signature": forged.identity.sign(own.signed).hex()})
    with pytest.raises(InputError, match="not signed by the key of node 'b'"):
        nodes.keys["a"].share([signed if each.node == "b" else each for each in nodes.roster])


def test_shares_of_fewer_nodes_than_the_threshold_are_not_accepted(known: Any) -> None:
    nodes = begun(known, 3)
    shares, commitments = given_to("a", dealt_by(nodes))
    with pytest.raises(InputError, match="a sum over 2 nodes; at least 3 are needed"):
        nodes.keys["a"].accept({"b": shares["b"]}, commitments)
    few = {name: shares[name] for name in "bc"}
    assert nodes.keys["a"].accept(few, commitments) == {"unusable": []}


def test_a_roster_is_checked(known: Any) -> None:
    nodes, others = begun(known, 3), begun(known, 3)
    node = nodes.keys["a"]
    with pytest.raises(InputError, match="advertisement of node 'b': it is asked for something el"):
        node.share([nodes.roster[0], *others.roster[1:]])  # those of an earlier sum
    with pytest.raises(InputError, match="a sum over 2 nodes; at least 3 are needed"):
        node.share(nodes.roster[:2])
    with pytest.raises(InputError, match="not in order"):
        node.share([nodes.roster[0]] * 3)
    with pytest.raises(InputError, match="the node's own advertisement is not there"):
        node.share(nodes.roster[1:])
    with pytest.raises(InputError, match="advertisement of node 'b': it is not for 16 sums"):
        node.share(changed(nodes, "b", seeds=nodes.roster[1].seeds[1:]))
    strangers = begun(identities([*NAMES, "x"]), 4)
    with pytest.raises(InputError, match="advertisement of node 'x': it is not of this run"):
        node.share([*nodes.roster, strangers.roster[-1]])


def test_nodes_of_another_run_are_not_summed(known: Any) -> None:
    nodes = begun(known, 3, context=lambda name: "other" if name == "c" else "context")
    with pytest.raises(InputError, match="advertisement of node 'c': it is asked for something el"):
        nodes.keys["a"].share(nodes.roster)


def test_measures_are_summed_over_all_nodes_or_none(known: Any) -> None:
    def measures(name: str) -> list[str]:
        return ["loss", *["test/loss"] * (name in "ab")]

    fewer = {name: each for name, each in known.items() if name != "d"}
    everyone, without = begun(known, 3, measures=measures), begun(fewer, 3, measures=measures)
    line = "measures without node d; they are summed over all of policy.secure.peers and this node"
    shared(without)
    names = sorted(fewer)
    without.keys["a"].require_next(0, names, everyone=False)
    with pytest.raises(InputError, match=line):
        without.keys["a"].require_next(0, names, everyone=True)
    with pytest.raises(InputError, match="nodes d: the node was not given their shares"):
        without.keys["a"].require_next(0, NAMES, everyone=True)
    shared(everyone)
    for each in everyone.keys.values():
        assert each.measures == {"loss"}  # fewer than the threshold report the other
        each.require_next(0, NAMES, everyone=True)
    for asked in (NAMES[::-1], [*NAMES, "e"], NAMES[1:]):
        with pytest.raises(InputError, match="not in order, or this one is not among them"):
            everyone.keys["a"].require_next(0, asked, everyone=False)


@pytest.mark.parametrize("measures", [["loss"], ["loss", "weight"], ["unmeasured", "test/loss"]])
def test_losses_are_not_advertised_without_their_weights(measures: list[str], known: Any) -> None:
    def judged(more: list[str]) -> None:
        nodes = begun(known, 3, measures=lambda name: [*measures, *more])  # noqa: ARG005
        operator_of(nodes).check("advertise", "a", Answer(id="", advert=nodes.roster[0]))

    judged(["loss", "weight", "unmeasured"])
    with pytest.raises(InputError, match=r"it reports .*, a part of what losses need"):
        judged([])


def test_the_clients_of_a_node_weigh_as_those_of_all() -> None:
    jobs = no_jobs()._replace(
        weight=np.array([0.1, 0.3]), size=np.array([10, 30]), steps=np.array([1, 2])
    )
    secret = Secret(keys="0" * 32, of="train", rate=0.01)
    check_weights(secret, jobs)
    by_clients = secret.model_copy(update={"by": "clients", "rate": 0.1})
    check_weights(by_clients, jobs._replace(weight=np.array([0.1, 0.1])))
    changes: list[dict[str, Any]] = [{"by": "clients"}, {"by": "clients", "rate": 0.1}]
    changes += [{"rate": rate} for rate in (0.011, 0, -0.01, np.nan)]
    for change in changes:
        with pytest.raises(InputError, match=re.escape("weights [0.1, 0.3]; they must be ")):
            check_weights(secret.model_copy(update=change), jobs)
    for worked in ({"weight": np.array([0.1, 0.0])}, {"steps": np.array([0, 1])}):
        with pytest.raises(InputError, match="a client without work"):
            check_weights(secret, jobs._replace(**worked))  # type: ignore[arg-type]
    first = secret.model_copy(update={"of": "gradients"})  # which takes no steps
    check_weights(first, jobs._replace(steps=np.zeros(2, np.int64)))
    assert share_of(secret, 40) == pytest.approx(0.4)
    for rows in (0, 101):
        with pytest.raises(InputError, match=f"rate = 0.01 with {rows} rows"):
            share_of(secret, rows)


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
    longer = seal(nodes.keys["b"]._sealing("b", "a"), bytes(BOTH * SUMS + 1)).hex()
    node = nodes.keys["a"]
    for share in (old["b"]["shares"]["a"], dealt["b"]["shares"]["c"], flipped, "", longer):
        told = (
            {**stated, "b": commitments_of(bytes(BOTH * SUMS + 1))} if share == longer else stated
        )
        assert node.accept({**good, "b": share}, told) == {"unusable": ["b"]}
        assert "b" not in node.shares[0]
        node.stage = "shared"
        for each in node.shares.values():
            each.clear()
    # a digest that is not of the share that was given
    assert node.accept(good, {**stated, "c": stated["b"]}) == {"unusable": ["c"]}
    node.stage = "shared"
    with pytest.raises(InputError, match="shares of nodes that advertised none"):
        node.accept({**good, "x": good["b"]}, stated)
    assert node.accept(good, stated) == {"unusable": []}


def test_a_roster_that_differs_between_nodes_gives_no_sum(known: Any) -> None:
    nodes = begun(known, 3)
    # a is told of everybody, and the others of one node less
    dealt = {"a": nodes.keys["a"].share(nodes.roster)}
    dealt |= {n: nodes.keys[n].share(nodes.roster[:-1]) for n in "bcd"}
    assert nodes.keys["a"].accept(*given_to("a", dealt)) == {"unusable": ["b", "c", "d"]}


def reveal(
    operator: OperatorKeys, nodes: Nodes, came: str
) -> tuple[OperatorSum, dict[str, dict[str, str]]]:
    """Sum zeros of some nodes; the shares that these reveal, to be changed."""
    messages: dict[str, Words] = dict.fromkeys(NAMES, ZEROS)
    one, sums = sum_of(operator, nodes, messages, came)
    for stage in one.stages:
        ask(one, sums, stage, came)
    return one, {name: answer.shares for name, answer in one.answers["reveal"].items()}


@pytest.mark.parametrize("liar", ["a", "b", "d"])
@pytest.mark.parametrize("came", ["abcd", "abcde"])
def test_a_share_that_is_revealed_wrongly_is_not_used(liar: str, came: str, known: Any) -> None:
    nodes = begun(known, 3)
    operator = agreed(nodes)
    for _ in range(2):  # it is told in two sums of the same keys
        one, revealed = reveal(operator, nodes, came)
        for name in NAMES:
            revealed[liar][name] = revealed["c"][name]
        assert not one.unmasked().any()
        assert one.liars == {liar: "it reveals another share than it was given"}


def test_two_wrong_shares_of_four_are_too_many(known: Any) -> None:
    nodes = begun(known, 3)
    one, revealed = reveal(agreed(nodes), nodes, "abcd")
    revealed["a"]["c"] = revealed["b"]["c"] = revealed["d"]["c"]
    with pytest.raises(InputError, match="2 right shares of a secret, and a secure sum needs 3"):
        one.unmasked()
    assert one.liars.keys() == {"a", "b"}
    assert not one.dishonest


@pytest.mark.parametrize("came", ["abcde", "acde"])
def test_a_node_that_shares_another_secret_is_named(came: str, known: Any) -> None:
    """It is so for the second sum of its keys, and the first is right."""
    nodes = begun(known, 3)
    nodes.keys["b"].secrets[1] = bytes(32), X25519PrivateKey.generate()
    operator = agreed(nodes)
    assert not reveal(operator, nodes, came)[0].unmasked().any()
    one, _ = reveal(operator, nodes, came)
    line = "^node 'b': its shares are not of the secret that it has advertised$"
    with pytest.raises(InputError, match=line):
        one.unmasked()
    assert one.dishonest.keys() == {"b"}


def test_shares_that_do_not_fit_the_others_are_left_out(known: Any) -> None:
    nodes = begun(known, 3)
    share = nodes.keys["b"].share

    def uneven(roster: Any) -> Any:
        dealt, wrong = share(roster), bytes(BOTH * SUMS)
        dealt["shares"]["a"] = seal(nodes.keys["b"]._sealing("b", "a"), wrong).hex()
        dealt["commitments"]["a"] = commitments_of(wrong)
        return dealt

    nodes.keys["b"].share = uneven  # type: ignore[method-assign]
    one, _ = reveal(agreed(nodes), nodes, "abcde")
    assert not one.unmasked().any()
    assert not one.liars


def test_who_disagrees_with_more_than_may_lie_lies(known: Any) -> None:
    def judged(unusable: dict[str, str], present: str = "abcde") -> OperatorKeys:
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
