"""What a node counts of its answers, over all runs, and what it refuses beyond."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprox.deployment import node as node_module
from fedprox.deployment.coordinator import Ledger
from fedprox.deployment.kept import EXACTLY, RUNS, NodeSpent, read_kept, write_kept
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.node_method import NodeMethod
from fedprox.deployment.policy import Policy, PrivacyPolicy, check_clip
from fedprox.deployment.wire import (
    VERSION,
    Answer,
    PrivateRounds,
    Request,
    RequestKind,
    digest_of,
    pack_arrays,
    unpack_answer,
    unpack_arrays,
    unpack_request,
)
from fedprox.errors import InputError
from fedprox.parts.privacy import AdaptiveClip, accounting
from fedprox.parts.privacy.accounting import Mechanism, composed_with, epsilon_together
from tests.deployment.conftest import Fresh
from tests.deployment.federations import EVERYTHING, Site, deployed, table_of
from tests.deployment.test_private import DELTA, private_table

TABLE = table_of({"name": "scaffold"}, rounds=2, evaluation={"every": 1})
ALL = TABLE | {"cohort": {"clients_per_round": 4}}

Requests = dict[str, Parcel]


def recorded(table: dict[str, Any], sites: list[Site]) -> Requests:
    """The first request of each kind to the first of two nodes, with all arrays that it needs."""
    one, two = sites
    seen: Requests = {}

    def record(parcel: Parcel) -> Parcel:
        one.node.arrays = {}
        answer = one.answer(parcel)
        if not unpack_answer(answer).lacks:
            seen.setdefault(json.loads(parcel.head)["kind"], parcel)
        return answer

    deployed(table, [record, two.answer], patience=600.0)
    return seen


@pytest.fixture(scope="module")
def requests(
    first_sites: list[Site], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Parcel]:
    """Requests of a run of SCAFFOLD."""
    folder = tmp_path_factory.mktemp("recorded")
    return recorded(ALL, [site.moved(folder) for site in first_sites])


IDS = itertools.count()


def edited(parcel: Parcel, **changes: Any) -> Parcel:
    """A new request that differs in some values; `work__weight` is a value of `work`."""
    head = json.loads(parcel.head)
    for name, value in ({"id": f"edited {next(IDS)}"} | changes).items():
        *path, last = name.split("__")
        part = head
        for key in path:
            part = part[key]
        part[last] = value
    return parcel._replace(head=json.dumps(head).encode())


def asked(node: Node, parcel: Parcel) -> Answer:
    """The head of a node's answer."""
    return unpack_answer(node.answer(parcel))


@pytest.mark.parametrize(
    ("sequence", "rounds", "releases"),
    [
        # a run of two rounds with an evaluation before and after each
        ("e t0 e t1 e", 2, 2),
        # two exchanges a round
        ("g0 t0 g1 t1", 2, 2),
        ("e g0 t0 e g1 t1 e", 2, 2),
        # no client was drawn in the rounds between, of which some were evaluated
        ("t0 t5", 6, 6),
        ("e t0 e e e t3 e", 4, 4),
        ("e e e t2 e", 3, 3),
        # repeated rounds, also by another way round
        ("t0 t0 t0", 3, 3),
        ("t7 t2 t7", 8 + 1 + 5, 8 + 1 + 5),
        ("g0 g0 t0 t0", 3, 3),
        ("t0 e e t0 e e t0", 5, 3),
        ("g4 t4 e e g4 t4", 7, 6),
        # evaluations alone: one before the first round, and one after each that is paid
        ("e e e e e", 4, 0),
        # a coordinator that was killed evaluates again, which pays a round and releases nothing
        ("e e t0 e t1 e", 3, 2),
    ],
)
def test_rounds_that_requests_pay(
    sequence: str, rounds: int, releases: int, private: tuple[list[Site], Requests]
) -> None:
    setup = unpack_request(private[1]["train"]).setup
    assert setup is not None
    kinds: dict[str, RequestKind] = {"e": "evaluate", "t": "train", "g": "gradients"}
    spent = NodeSpent()
    for number, word in enumerate(sequence.split()):
        kind, t = kinds[word[0]], int(word[1:] or 0)
        request = Request(version=VERSION, id="1", kind=kind, setup=setup, round=t)
        for _ in range(2):  # a repeated request pays once
            spent = spent.paid(request, 1, f"digest {number}")
    assert spent.rounds == rounds
    assert spent.of(setup).releases == sum(count for _, count in spent.private) == releases
    assert not sum(count for _, count in spent.others(setup))


def test_each_sweep_point_is_paid(requests: Requests) -> None:
    request = unpack_request(requests["train"])
    assert NodeSpent().paid(request, 3, "digest").rounds == 3


def test_an_undisturbed_run_pays_its_rounds(fresh: Fresh, tmp_path: Path) -> None:
    sites = fresh(tmp_path)
    for site in sites:
        site.node.policy = Policy(most_rounds=5)
    for number, rounds in enumerate((3, 2)):
        table = ALL | {"rounds": rounds}
        deployed(table, [site.answer for site in sites], ledger=Ledger(run=f"run{number}"))
    assert [site.node.spent.rounds for site in sites] == [5, 5]
    with pytest.raises(InputError) as raised:
        deployed(ALL, [site.answer for site in sites], ledger=Ledger(run="run2"))
    assert "2 more rounds; the node has answered 5, and at most 5 are allowed over all runs" in (
        str(raised.value)
    )


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_no_way_around_the_number_of_rounds(
    kind: str, requests: Requests, fresh: Fresh, tmp_path: Path
) -> None:
    site = fresh(tmp_path)[0]
    site.node.policy = Policy(most_rounds=4)
    ways: list[dict[str, Any]] = [
        {},
        {"setup__run": "other"},
        {"setup__number": 3},
        {"setup__seed": 2},
        {"setup__rounds": 1},
        {"round": 1},
    ]
    answered = 0
    for changes in ways * 2:
        answer = asked(site.node, edited(requests[kind], **changes))
        answered += not answer.refused
        site.restart()
    # each of four runs has one evaluation beyond its rounds
    assert answered == (4 if kind == "train" else 8)
    assert site.node.spent.rounds == 4
    assert "more rounds; the node has answered 4, and at most 4" in answer.refused


def test_a_repeated_request_has_the_same_answer_and_pays_nothing(
    requests: Requests, fresh: Fresh, tmp_path: Path
) -> None:
    site = fresh(tmp_path)[0]
    site.node.policy = Policy(most_rounds=1)
    first = site.answer(requests["train"])
    assert site.answer(requests["train"]) == first
    site.restart()
    again = site.answer(requests["train"])
    assert again.body == first.body
    assert site.node.spent.rounds == 1


def test_it_is_on_disk_before_anything_is_computed(
    requests: Requests, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = fresh(tmp_path)[0].node

    def killed(*_: Any) -> Any:
        assert read_kept(NodeSpent, node.folder).rounds == 1
        raise InputError("it got so far")

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device", "spent.json")

    monkeypatch.setattr(NodeMethod, "train", killed)
    assert asked(node, requests["train"]).refused == "it got so far"
    monkeypatch.setattr(node_module, "write_kept", full)
    refused = asked(node, edited(requests["train"])).refused
    assert refused == "spent.json: No space left on device"
    assert node.spent.rounds == 1


def test_a_damaged_file_ends_the_node_in_one_line(fresh: Fresh, tmp_path: Path) -> None:
    node = fresh(tmp_path)[0].node
    node.folder.mkdir(parents=True, exist_ok=True)
    for content in ("", "{}}", '{"rounds": -1}', '{"runs": {"a": {"round": 1.5}}}'):
        (node.folder / NodeSpent.FILE).write_text(content)
        with pytest.raises(
            InputError, match=rf"{NodeSpent.FILE}: damaged; it counts what the node has"
        ):
            Node(node.name, node.federation, node.folder, node.policy)


@pytest.fixture(scope="module")
def private(fresh: Fresh, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Site], Requests]:
    """Two nodes, and requests of a private run."""
    sites = fresh(tmp_path_factory.mktemp("private"))
    return sites, recorded(private_table(rounds=1), sites)


def test_epsilon_is_that_of_all_runs(private: tuple[list[Site], Requests], tmp_path: Path) -> None:
    sites = [site.moved(tmp_path) for site in private[0]]
    for site in sites:  # the three rounds of one run cost 2.63
        site.node.policy = Policy(privacy=PrivacyPolicy(epsilon=3.0, delta=DELTA))
    answers = [site.answer for site in sites]
    deployed(private_table(rounds=2), answers, ledger=Ledger(run="run1"))
    sites[0].restart()
    deployed(private_table(rounds=1), answers, ledger=Ledger(run="run2"))
    other = private_table(rounds=2, privacy={"noise_multiplier": 3.0})
    with pytest.raises(InputError) as raised:
        deployed(other, answers, ledger=Ledger(run="run3"))
    assert str(raised.value).startswith(
        "fedavg: node 'node-0': it refuses: privacy: epsilon = 3.085 "
    )
    assert str(raised.value).endswith(
        "with delta = 0.001 for this run and all before it together; at most epsilon = 3 is allowed"
    )


@pytest.mark.slow
def test_an_answer_costs_the_same_after_any_number_of_runs(
    private: tuple[list[Site], Requests], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator may declare other noise in each run."""
    setup = unpack_request(private[1]["train"]).setup
    assert setup is not None
    assert setup.privacy is not None
    policy, declared = Policy(privacy=PrivacyPolicy(epsilon=1e6, delta=DELTA)), setup.privacy
    everybody, computed = declared.mechanism._replace(capacity=None), []
    event = accounting._event

    def counted(mechanism: Mechanism) -> Any:
        computed.append(mechanism)
        return event(mechanism)

    monkeypatch.setattr(accounting, "_event", counted)

    def answered(spent: NodeSpent, run: int, t: int) -> NodeSpent:
        """Check and pay a round of a private run, and steps of a client."""
        mechanism = everybody._replace(noise_multiplier=20 + run)
        assert mechanism.everybody
        hiding = declared.model_copy(update={"mechanism": mechanism})
        own = setup.model_copy(update={"run": f"run{run}", "privacy": hiding})
        policy.check_privacy(hiding, spent.others(own), spent.before)
        request = Request(version=VERSION, id="1", kind="train", setup=own, round=t)
        after = spent.paid(request, 1, f"{run} {t}", {"a": (mechanism, 3)})
        policy.check_steps({"a": after.steps["a"]}, after.steps_before)
        return after

    costs, sizes, spent, exact = [], [], NodeSpent(), [(everybody, 0)]
    for run in range(RUNS + EXACTLY):
        spent = answered(spent, run, 0)
        exact.append((everybody._replace(noise_multiplier=20.0 + run), 1))
        if run in (RUNS + 1, RUNS + EXACTLY - 1):
            computed.clear()
            spent = answered(spent, run, 1)
            exact.append((exact[-1][0], 1))
            costs.append(len(computed))
            write_kept(tmp_path, spent)
            sizes.append((tmp_path / NodeSpent.FILE).stat().st_size)
            assert read_kept(NodeSpent, tmp_path) == spent
    assert costs == [0, 0]
    assert sizes[1] < 1.01 * sizes[0]
    # nothing is forgotten
    bound = epsilon_together(tuple(spent.private), DELTA, spent.before)
    assert 1 <= bound / epsilon_together(tuple(exact), DELTA) < 1.25
    steps = epsilon_together(tuple(spent.steps["a"]), DELTA, spent.steps_before["a"])
    assert steps > bound  # three steps a round


@pytest.mark.slow
def test_a_run_that_goes_on_after_many_others_is_counted_in_full(
    private: tuple[list[Site], Requests],
) -> None:
    """Whatever of it is composed already."""
    setup = unpack_request(private[1]["train"]).setup
    assert setup is not None
    assert setup.privacy is not None
    spent, paid = NodeSpent(), Counter[Mechanism]()
    order = [*range(EXACTLY), 0, 0, *range(EXACTLY, 2 * EXACTLY), 0, 1, 1]
    for t, run in enumerate(order):
        mechanism = setup.privacy.mechanism._replace(noise_multiplier=20.0 + run, capacity=None)
        hiding = setup.privacy.model_copy(update={"mechanism": mechanism, "rounds": 99})
        own = setup.model_copy(update={"run": f"run{run}", "privacy": hiding})
        request = Request(version=VERSION, id="1", kind="train", setup=own, round=t)
        before = spent.of(own).released
        spent = spent.paid(request, 1, str(t))
        paid[mechanism] += max(1, t - before)
        whole = composed_with(spent.before, spent.private)
        exact = composed_with(None, paid.items())
        assert whole.divergences == pytest.approx(exact.divergences)
        # the run counts as a whole, and all others as they are
        assert all(count >= 0 for _, count in spent.others(own))
        others = composed_with(spent.before, [*spent.others(own), (mechanism, hiding.rounds)])
        rest = [(each, n) for each, n in paid.items() if each != mechanism]
        least = composed_with(None, [*rest, (mechanism, hiding.rounds)])
        assert all(
            a >= b * (1 - 1e-9) for a, b in zip(others.divergences, least.divergences, strict=True)
        )


DECLARED: list[tuple[str, dict[str, Any], str]] = [
    ("train", {"work__weight": [1.0, 0.25]}, "weight = [1.0, 0.25]; in this private run it is"),
    ("train", {"work__weight": [0.0, 0.25]}, "weight = [0.0, 0.25]; in this private run it is"),
    ("train", {"work__relative_size": [1.0, 2.0]}, "relative_size = [1.0, 2.0]; in this private"),
    ("train", {"participation": 0.5}, "participation = [0.5]; in this private run it is 1"),
    ("train", {"setup__clients": 400}, "cohorts of (400, 4) clients; privacy is for (4, 4)"),
    ("train", {"setup__rounds": 9}, "9 rounds; privacy is declared for 1"),
    ("train", {"round": 1}, "round 2; the run has 1 round"),
    ("train", {"setup__evaluated": "cohort"}, 'evaluation.model = "cohort" does not go with pri'),
    ("train", {"setup__privacy__clip": 1e8}, "clip = [0.05"),
    ("train", {"setup__method": {"name": "fedprox", "mu": [0, 1]}}, "2 sweep points; a private"),
    ("train", {"setup__method": {"name": "feddane", "mu": 1}}, "privacy.mechanism.releases = 1; a"),
    ("train", {"setup__method": {"name": "qffl", "q": 1.0}}, "qffl: a message holds a bound on"),
    ("train", {"setup__privacy": None}, "a run without [privacy]; at most epsilon = 50 with"),
    ("gradients", {}, "gradients: the method has no first exchange"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "line"), DECLARED)
def test_a_private_request_keeps_to_the_declaration(
    kind: str,
    changes: dict[str, Any],
    line: str,
    private: tuple[list[Site], Requests],
    tmp_path: Path,
) -> None:
    sites, requests = private
    node = sites[0].moved(tmp_path).node
    node.policy = EVERYTHING.model_copy(
        update={"privacy": PrivacyPolicy(epsilon=50.0, delta=DELTA)}
    )
    answer = asked(node, edited(requests["train"], kind=kind, **changes))
    assert answer.refused.startswith(line)
    assert node.spent == NodeSpent()


def test_no_more_private_rounds_than_declared(
    private: tuple[list[Site], Requests], tmp_path: Path
) -> None:
    sites, requests = private
    node = sites[0].moved(tmp_path).node
    assert not asked(node, edited(requests["train"])).refused
    refused = asked(node, edited(requests["train"])).refused
    assert refused == "2 private rounds; the run has declared 1"
    more = edited(requests["train"], setup__privacy__rounds=2)
    assert not asked(node, more).refused  # a run that was interrupted


def with_clip(parcel: Parcel, clip: float) -> Parcel:
    """A private request with another clipping norm."""
    head, arrays = json.loads(parcel.head), unpack_arrays(parcel.body)
    (old,) = (name for name, array in arrays.items() if array.tolist() == [float(np.float32(0.05))])
    array = np.array([clip], np.float32)
    arrays = {digest_of(each): each for each in (*arrays.values(), array)}
    names = [digest_of(array) if name == old else name for name in head["arrays"]]
    return edited(Parcel(parcel.head, pack_arrays(arrays)), arrays=names)


@pytest.mark.parametrize("clip", [1e20, 0.050001, -0.05, 0.0, float("nan"), float("inf")])
def test_the_clipping_norm_is_the_declared_one(
    clip: float, private: tuple[list[Site], Requests], tmp_path: Path
) -> None:
    sites, requests = private
    node = sites[0].moved(tmp_path).node
    refused = asked(node, with_clip(requests["train"], clip)).refused
    assert refused.startswith("clip = [")
    assert refused.endswith("]; 0.05 is declared")


def test_an_adaptive_norm_moves_slowly(private: tuple[list[Site], Requests]) -> None:
    setup = unpack_request(private[1]["train"]).setup
    assert setup is not None
    assert setup.privacy is not None
    hiding: PrivateRounds = setup.privacy.model_copy(
        update={"adaptive_clip": AdaptiveClip(0.5, rate=0.2, count_noise=0.1)}
    )
    # a factor of at most exp(0.2 * (4/8 + 1/2 + 10 * 0.1/4)) = 1.28 a round

    def check(round_: int, clip: float) -> Callable[[], None]:
        return lambda: check_clip(setup, hiding, round_, np.array([clip], np.float32))

    for round_, clip in ((0, 0.05), (1, 0.064), (1, 0.0393), (3, 0.1)):
        check(round_, clip)()
    for round_, clip in (
        *((0, 0.0501), (1, 0.0645), (1, 0.038), (3, 1e20), (3, 0.0), (3, -0.05)),
        *((3, float("nan")), (9, float("inf"))),
    ):
        with pytest.raises(InputError, match="it cannot be so far from 0"):
            check(round_, clip)()
