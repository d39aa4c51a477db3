"""One of five nodes lies, in any field of any stage: the others go on, and it alone is named."""

import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedprox.deployment.crypto import encoded
from fedprox.deployment.fixed_point import MEASURES_BOUND, FixedPoint
from fedprox.deployment.network import Network, Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.wire import Advert, Answer, pack_arrays, parcel_of, unpack_arrays
from fedprox.experiment import parse, resolve
from fedprox.results.run import Run
from tests.deployment.federations import deployed, in_memory, vector
from tests.deployment.secure.conftest import (
    NODES,
    OPERATOR,
    TABLE,
    THRESHOLD,
    Fresh,
    answers,
    operator_lines,
)
from tests.variants import mostly_slow

Lie = Callable[[dict[str, Any], dict[str, Any], Node], None]
"""Changes the head and the arrays of an answer of a node."""

Deployed = Callable[..., Run]


@pytest.fixture(autouse=True)
def keys_of_one_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes agree on keys in each round, so that each lie about them can be told."""
    for module in ("secure_sum", "sum_keys"):
        monkeypatch.setattr(f"fedprox.deployment.{module}.SUMS", 1)


@pytest.fixture
def run_with(fresh: Fresh, tmp_path: Path) -> Deployed:
    """(index of the liar, stage, lies) -> the run in which it tells lie t in the sums of round t.

    The first measures, before round 1, are those of the first lie too. Lies begin anew if there are
    more rounds. Each is told, unless the liar is left out.
    """

    def run(
        liar: int,
        stage: str,
        lies: Lie | Sequence[Lie],
        *,
        knows_keys: bool = True,
        table: dict[str, Any] = TABLE,
    ) -> Run:
        sites = fresh(tmp_path)
        nodes, now = answers(sites), Now()
        lies = [lies] if callable(lies) else lies
        nodes[liar] = lying(sites[liar].node, stage, lies, now)
        if stage == "confirm":  # which is asked only if a message is missing
            nodes[4 if liar < 4 else 3] = absent(nodes[4 if liar < 4 else 3])
        network = in_memory([now.watching(answer) for answer in nodes])
        if knows_keys:
            keys = [encoded(site.node.sums.identity.key.public_key()) for site in sites]  # type: ignore[union-attr]
            network = Network(network.nodes, network.send, network.receive, key_of=keys.__getitem__)
        (run,) = deployed(table, network, patience=0.2)
        return run

    return run


class Now:
    """The round of which nodes are asked, from 0 on; the last one in an evaluation."""

    def __init__(self) -> None:
        self.trained = -1
        self.round = 0

    def watching(self, answer: Callable[[Parcel], Parcel]) -> Callable[[Parcel], Parcel]:
        """A node, from whose requests the round is known."""

        def watched(parcel: Parcel) -> Parcel:
            asked = json.loads(parcel.head)
            if asked["kind"] in ("train", "evaluate"):
                self.trained = asked["round"] - (asked["kind"] == "evaluate")
            of = (asked["secret"] or {}).get("of")
            keys = asked["kind"] in ("advertise", "share", "accept")
            self.round = max(0, self.trained + (keys and of == "train"))
            return answer(parcel)

        return watched


ABSENT = "it is absent"


def absent(answer: Callable[[Parcel], Parcel]) -> Callable[[Parcel], Parcel]:
    """A node that does not train."""

    def silent(parcel: Parcel) -> Parcel:
        asked = json.loads(parcel.head)
        if asked["kind"] == "train":
            return parcel_of(Answer(id=asked["id"], refused=ABSENT))
        return answer(parcel)

    return silent


def lying(node: Node, stage: str, lies: Sequence[Lie], now: Now) -> Callable[[Parcel], Parcel]:
    """What a node answers that lies in one stage."""

    def answer(parcel: Parcel) -> Parcel:
        answered = node.answer(parcel)
        asked, head = json.loads(parcel.head), json.loads(answered.head)
        if asked["kind"] != stage or head["refused"] or head["lacks"]:
            return answered
        arrays = unpack_arrays(answered.body)
        lies[now.round % len(lies)](head, arrays, node)
        return Parcel(json.dumps(head).encode(), pack_arrays(arrays))

    return answer


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 0.9 * value + 0.05
    if value is None:
        return {}
    if isinstance(value, str):
        return f"{int(value[:1], 16) ^ 1:x}{value[1:]}" if re.match("[0-9a-f]", value) else "x"
    return [*value, "x"] if isinstance(value, list) else {**value, "x": ""}


def at(name: str) -> Lie:
    """A lie about a field of the head; of a dict, about each entry."""

    def lie(head: dict[str, Any], arrays: dict[str, Any], node: Node) -> None:
        del arrays, node
        value = head[name]
        entries = isinstance(value, dict) and value
        head[name] = {key: other(each) for key, each in value.items()} if entries else other(value)

    return lie


def about(first: int, count: int, field: str) -> Lie:
    """A lie about the entries of some other nodes."""

    def lie(head: dict[str, Any], arrays: dict[str, Any], node: Node) -> None:
        del arrays
        others = [f"node-{i}" for i in range(NODES) if f"node-{i}" != node.name]
        for each in others[first : first + count]:
            if field == "unusable":
                head[field].append(each)
            else:
                head[field][each] = other(head[field][each])

    return lie


def without(field: str) -> Lie:
    """A lie that leaves out the entry of the last node."""

    def lie(head: dict[str, Any], arrays: dict[str, Any], node: Node) -> None:
        del arrays, node
        del head[field][max(head[field])]

    return lie


def array(name: str, change: Callable[[Any], Any]) -> Lie:
    """A lie about an array."""

    def lie(head: dict[str, Any], arrays: dict[str, Any], node: Node) -> None:
        del head, node
        arrays[name] = change(arrays[name])

    return lie


def advertised(name: str, *, signed: bool = True, value: Any = None) -> Lie:
    """A lie about a field of the advertisement, which the node signs, or has signed otherwise."""

    def lie(head: dict[str, Any], arrays: dict[str, Any], node: Node) -> None:
        del arrays
        assert node.sums is not None
        assert node.sums.keys is not None
        table = head["advert"]
        table[name] = other(table[name]) if value is None else value
        if signed:
            advert = Advert.model_validate(head["advert"])
            signature = node.sums.identity.sign(advert.signed).hex()
            node.sums.keys.advert = advert.model_copy(update={"signature": signature})
            head["advert"]["signature"] = signature

    return lie


def a_key() -> str:
    """A public key whose owner is unknown."""
    return X25519PrivateKey.generate().public_key().public_bytes_raw().hex()


def random_words(words: Any) -> Any:
    """Words that nobody has masked."""
    return np.random.default_rng(7).integers(0, 2**63, len(words), np.uint64).astype(words.dtype)


def nothing_counts(head: dict[str, Any], arrays: dict[str, Any], node: Node) -> None:
    del head, node
    for name in ("counts", "counted"):
        arrays[name] = np.zeros_like(arrays[name])


def no_message(head: dict[str, Any], arrays: dict[str, Any], node: Node) -> None:
    del head, node
    del arrays["masked"]


def short(head: dict[str, Any], arrays: dict[str, Any], node: Node) -> None:
    del arrays, node
    head["shares"] = {name: share[2:] for name, share in head["shares"].items()}


OWN = {
    "advertise": ["advert"],
    "share": ["shares", "commitments"],
    "accept": ["unusable"],
    "train": [],
    "evaluate": [],
    "confirm": ["signature"],
    "reveal": ["shares"],
}
"""The fields of the answer to each stage; a node that is silent or refuses drops out."""

LIES: dict[str, tuple[str, Lie]] = {
    **{f"{stage}: {name}": (stage, at(name)) for stage, own in OWN.items() for name in own},
    **{
        f"advertise: {name}": ("advertise", advertised(name, signed=False))
        for name in Advert.model_fields
    },
    **{
        f"advertise: signed {name}": ("advertise", advertised(name))
        for name in ("node", "keys", "context")
    },
    **{
        f"advertise: {what}": ("advertise", advertised(name, value=value))
        for what, name, value in [
            ("losses without weights", "measures", ["loss"]),
            ("no seeds", "seeds", []),
            ("two keys", "masking", [a_key(), a_key()]),
            ("a key of order 1", "masking", ["00" * 32]),
            ("another's key", "pairing", a_key()),
        ]
    },
    "share: one share": ("share", about(1, 1, "shares")),
    "share: two digests": ("share", about(0, 2, "commitments")),
    "share: three shares": ("share", about(0, 3, "shares")),
    "share: too few": ("share", without("shares")),
    "share: too few digests": ("share", without("commitments")),
    **{f"accept: {n} of no use": ("accept", about(4 - n, n, "unusable")) for n in range(1, 5)},
    "train: counted": ("train", array("counted", lambda a: 2 * a)),
    "train: steps": ("train", array("steps", lambda a: a + 100)),
    "train: counts": ("train", array("counts", np.logical_not)),
    "train: nothing counts": ("train", nothing_counts),
    "train: faulty": ("train", array("faulty", np.logical_not)),
    "train: no message": ("train", no_message),
    "evaluate: no message": ("evaluate", no_message),
    "evaluate: a short one": ("evaluate", array("masked", lambda a: a[1:])),
    "reveal: one": ("reveal", about(1, 1, "shares")),
    "reveal: too few": ("reveal", without("shares")),
    "reveal: short": ("reveal", short),
}

MEASURED = re.compile("train|confirm|reveal|accept: [12]|share: one share|share: two digests")
"""The lies with which all nodes are in each sum of measures, which are summed over all or none."""

UNKNOWN: dict[str, tuple[str, Lie]] = {
    "random updates": ("train", array("masked", random_words)),
    "random measures": ("evaluate", array("masked", random_words)),
    "other masks": ("advertise", advertised("masking", value=[a_key()])),
}
"""Lies that cannot be seen under masks."""


def require_named(lines: Sequence[str], liar: str) -> None:
    """A line that names nodes names the liar, and no other unless one of two lies."""
    for line in [line for line in lines if ABSENT not in line]:
        named = set(re.findall(r"node-\d", line))
        assert named <= {liar} or (liar in named and "disagree" in line), line


EVERYWHERE = pytest.mark.parametrize("liar", mostly_slow([0, 2, 4], 2))
"""The first node, one in the middle, and the last."""


def require_done(run: Run, rounds: int) -> None:
    """The run has trained to its end, without the liar at most."""
    assert all(record.dropped <= 1 for record in run.history)
    assert run.diverged_at is None
    assert run.final.round == rounds
    assert run.params["dense"]["bias"].any()  # 0 in the initial model


def shifted(place: int | slice, by: float, step: float) -> Lie:
    """A lie that shifts a number of the sum, or some, whatever the masks are."""

    def shift(words: Any) -> Any:
        words = words.copy()
        words[place] += np.array(round(by / step), f"int{8 * words.itemsize}").view(words.dtype)
        return words

    return array("masked", shift)


SUMMED = [f"test/{name}['{of}']" for name in ("accuracy", "loss") for of in ("rows", "sum")]
PLACES = {name: i for i, name in enumerate(["loss", *SUMMED, "unmeasured"])} | {"weight": 10}
"""Places of the measures in a sum, whose names are sorted; four are of validation rows."""

IMPOSSIBLE = [
    ("loss", -10, "its training losses are"),
    ("loss", 3e10, "it has numbers of 3e+10, and they are at most 2.1477e+10"),
    ("weight", 1, "it measures weights"),
    ("weight", -2, "it measures weights"),
    ("unmeasured", 6, "it did not measure [6] clients; it has 5"),
    ("unmeasured", -1, "it did not measure [-1] clients; it has 5"),
    ("unmeasured", 3e9, "it has numbers of 3e+09, and they are at most 2.14748e+09"),
    (SUMMED[0], 1, "test labels"),
    (SUMMED[0], -500, "test labels"),
    (SUMMED[1], 500, "correct test labels"),
    (SUMMED[1], -500, "correct test labels"),
    (SUMMED[2], 1, "test rows"),
    (SUMMED[2], -500, "test rows"),
    (SUMMED[3], -5000, "its test losses are"),
]


UNTRAINED = TABLE | {"cohort": {"clients_per_round": THRESHOLD - 1}}
"""Rounds whose sums are given up before they begin."""


def test_a_measure_is_what_it_can_be(run_with: Deployed, caplog: pytest.LogCaptureFixture) -> None:
    step = FixedPoint(MEASURES_BOUND, 64, NODES).step
    lies = [shifted(PLACES[name], by, step) for name, by, _ in IMPOSSIBLE]
    with caplog.at_level(logging.WARNING, OPERATOR):
        run = run_with(2, "evaluate", lies, table=UNTRAINED | {"rounds": len(lies)})
    assert not any(record.measured for record in run.history)
    _, *lines = [line for line in operator_lines(caplog) if "evaluation after" in line]
    for said, (_, _, line) in zip(lines, IMPOSSIBLE, strict=True):
        assert "the sum cannot be: " in said
        assert line in said
        assert said.endswith("under masks it cannot be told which: not measured")


@EVERYWHERE
def test_a_secret_that_is_not_the_advertised_one_costs_a_round(
    liar: int, run_with: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    """It is needed, and so checked, when the nodes' messages have been confirmed."""

    lie = advertised("seeds", value=["00" * 32])
    with caplog.at_level(logging.WARNING, OPERATOR):
        run = run_with(liar, "advertise", lie)
    assert [record.dropped for record in run.history] == [0, NODES, 1]
    assert run.params["dense"]["bias"].any()
    why = f"node 'node-{liar}': its shares are not of the secret that it has advertised"
    lines = [line.removeprefix("fedprox mu=0.5, seed 0: ") for line in operator_lines(caplog)]
    left = [
        "4 of 5 nodes are left, and measures are summed over all: not measured",
        f"{why}; left out of secure sums from now on",
    ]
    assert lines == [
        f"round 1: {why}: without this round's updates",
        f"evaluation after round 1: {left[0]}",
        left[1],
        f"round 2: {left[1]}; without its 1 client",
        f"evaluation after round 2: {left[0]}",
        left[1],
    ]


CONDEMNED = re.compile(
    "advertise: another's key|share: (shares|commitments|three shares)|accept: [34] of no use"
)
"""The lies after which a node is left out of later sums, so that it tells no other."""

TOLD = {stage: [n for n in LIES if LIES[n][0] == stage and not CONDEMNED.match(n)] for stage in OWN}
TOLD |= {name: [name, name] for name in LIES if CONDEMNED.match(name)}


@EVERYWHERE
@pytest.mark.parametrize("told", TOLD)
def test_the_others_go_on(
    told: str, liar: int, run_with: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    names = TOLD[told]
    with caplog.at_level(logging.WARNING, OPERATOR):
        run = run_with(
            liar,
            LIES[names[0]][0],
            [LIES[name][1] for name in names],
            table=TABLE | {"rounds": len(names)},
        )
    lines = operator_lines(caplog)
    require_named(lines, f"node-{liar}")
    require_done(run, len(names))
    for t, (name, record) in enumerate(zip(names, run.history[1:], strict=True), 1):
        # the keys of the first round are agreed on for the measures before it
        own = [x for x in lines if f"round {t}: " in x or (t == 1 and "round 0: " in x)]
        assert own, name
        assert record.measured == bool(MEASURED.match(name)), name
        given_up = [line for line in own if "not measured" in line]
        assert bool(given_up) == (not record.measured), name
    assert not any("without this round's updates" in line for line in lines)
    assert ("left out of secure sums from now on" in "".join(lines)) == (told not in OWN)


@pytest.mark.parametrize("stage", mostly_slow(OWN, "share"))
def test_the_others_go_on_whatever_fields_an_answer_has(
    stage: str, run_with: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    left = [f for f in Answer.model_fields if f not in (*OWN[stage], "id", "refused", "lacks")]
    often = {"rounds": len(left), "evaluation": {"every": 1 if stage == "evaluate" else len(left)}}
    with caplog.at_level(logging.WARNING, OPERATOR):
        run = run_with(2, stage, [at(field) for field in left], table=TABLE | often)
    require_named(operator_lines(caplog), "node-2")
    require_done(run, len(left))
    if stage in ("train", "confirm", "reveal"):
        assert run.final.measured


@EVERYWHERE
@pytest.mark.parametrize("lie", UNKNOWN)
def test_what_nobody_can_see_costs_its_sums_alone(
    lie: str, liar: int, run_with: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, OPERATOR):
        run = run_with(liar, *UNKNOWN[lie])
    assert [record.round for record in run.history] == [0, 1, 2]
    lines = operator_lines(caplog)
    assert not any("node-" in line for line in lines)
    costs = [line for line in lines if "a node lies, and under masks it cannot be told" in line]
    assert costs == lines
    spoilt = [line.partition("seed 0: ")[2].partition(":")[0] for line in lines]
    rounds = ["round 1", "round 2"]
    measures = [f"evaluation after round {t}" for t in range(3)]
    assert (
        spoilt
        == {
            "random updates": rounds,
            "random measures": measures,
            "other masks": rounds,
        }[lie]
    )
    assert run.final.measured == (lie != "random measures")
    assert run.params["dense"]["bias"].any() == (lie == "random measures")


@pytest.mark.parametrize("lie", ["advertise: signature", "confirm: signature"])
def test_without_known_keys_a_wrong_signature_costs_its_sums_alone(
    lie: str, run_with: Deployed, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, OPERATOR):
        run = run_with(2, *LIES[lie], knows_keys=False)
    assert [record.round for record in run.history] == [0, 1, 2]
    refusals = [x for x in operator_lines(caplog) if "it refuses" in x and ABSENT not in x]
    honest = [line for line in refusals if "node 'node-2': " not in line]
    assert len(honest) >= NODES - 1
    assert all("not signed by the key of node 'node-2'" in line for line in honest)


NORM = TABLE | {"deployment": {"secure": {"threshold": THRESHOLD, "norm": 10.0}}}
FEDNOVA = {**TABLE, "method": [{"name": "fednova"}]}
LARGE = "it has numbers of 1"
CLIPPED = "clipped numbers, and at most 3,050 may be"


@pytest.mark.parametrize(
    ("table", "lies"),
    [
        (
            TABLE,
            [
                (3, 11.0, LARGE),
                (3, -11.0, LARGE),
                (-1, -7 * 10 / 2**28, f"it has -7 {CLIPPED}"),
                (-1, 5000 * 10 / 2**28, f"it has 5,000 {CLIPPED}"),
            ],
        ),
        (FEDNOVA, [(-2, -6.0, "its message is none that its clients can send")]),
        (NORM, [(3, 11.0, LARGE), (slice(3, 5), -8.0, "its norm is 11.3")]),
    ],
    ids=["numbers", "lengths", "norms"],
)
def test_an_update_is_what_it_can_be(
    table: dict[str, Any],
    lies: list[tuple[int | slice, float, str]],
    run_with: Deployed,
    caplog: pytest.LogCaptureFixture,
) -> None:
    step = FixedPoint(10.0, 32, NODES).step
    told = [shifted(place, by, step) for place, by, _ in lies]
    with caplog.at_level(logging.WARNING, OPERATOR):
        run = run_with(2, "train", told, table=table | {"rounds": len(lies)})
    assert all(record.dropped == NODES for record in run.history[1:])
    assert not run.params["dense"]["bias"].any()
    for said, (_, _, line) in zip(operator_lines(caplog), lies, strict=True):
        assert f"the sum cannot be: {line}" in said
        assert said.endswith("cannot be told which: without this round's updates")


def test_a_node_that_lies_has_the_room_of_all(
    run_with: Deployed, fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node of five with a fifth of the weight sends at most 2 if it clips as it should."""
    table = TABLE | {"rounds": 1}
    (honest,) = deployed(table, answers(fresh(tmp_path / "honest")))
    with caplog.at_level(logging.WARNING, OPERATOR):
        run = run_with(2, "train", shifted(3, 9.0, FixedPoint(10.0, 32, NODES).step), table=table)
    assert not operator_lines(caplog)
    moved = vector(run.params) - vector(honest.params)
    assert abs(moved[3] - 9.0) < 1e-4
    assert abs(np.delete(moved, 3)).max() < 1e-4


def test_a_node_that_lies_chooses_the_measures_of_all(
    run_with: Deployed, fresh: Fresh, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It makes the others' wrong predictions right, which no other measure contradicts."""
    table = TABLE | {"rounds": 1}
    (honest,) = deployed(table, answers(fresh(tmp_path / "honest")))
    rows, step = rows_of(table), FixedPoint(MEASURES_BOUND, 64, NODES).step
    wrong = rows * (1 - (honest.final.test_accuracy or 0))
    assert wrong > 1
    with caplog.at_level(logging.WARNING, OPERATOR):
        run = run_with(2, "evaluate", shifted(PLACES[SUMMED[1]], wrong, step), table=table)
    assert not operator_lines(caplog)
    assert run.final.test_accuracy == pytest.approx(1.0)
    assert run.final.test_loss == pytest.approx(honest.final.test_loss, rel=1e-5)


def rows_of(table: dict[str, Any]) -> int:
    """The test rows of all nodes."""
    test = resolve(parse("test", table)).federation.test
    assert test is not None
    return len(test)
