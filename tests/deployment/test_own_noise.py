"""A site's own guarantee: what a node clips, noises and counts itself, whatever a run asks."""

import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dp_accounting
import jax
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprox.algorithms import fedavg
from fedprox.deployment import node as node_module
from fedprox.deployment import own_noise
from fedprox.deployment.conversation import Conversation
from fedprox.deployment.coordinator import Coordinator, Ledger, own_noise_in_words
from fedprox.deployment.joining import join
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.own_noise import SiteGuarantee, clipped
from fedprox.deployment.payload import RoundPart
from fedprox.deployment.policy import OwnPrivacy, Policy, PrivacyPolicy
from fedprox.deployment.wire import unpack_answer, unpack_arrays, unpack_request
from fedprox.engine.planning.jobs import Jobs, no_jobs
from fedprox.errors import InputError
from fedprox.experiment import parse, resolve
from tests.deployment.federations import (
    EVERYTHING,
    TABLE,
    Site,
    dealt,
    deployed,
    in_memory,
    overheard,
    table_of,
    vector,
)

ROUNDS, CLIP, EPSILON, DELTA = 2, 0.3, 8.0, 0.01
FEDAVG = {"name": "fedavg"}
ONCE = table_of(
    FEDAVG, rounds=ROUNDS, cohort={"clients_per_round": 4}, evaluation={"every": ROUNDS}
)
"""A run in which all four clients take part in each round."""


def guarded(**changes: Any) -> Policy:
    """The policy of a node with a guarantee of its own."""
    own = OwnPrivacy(**{"epsilon": EPSILON, "delta": DELTA, "clip": CLIP} | changes)
    return EVERYTHING.model_copy(update={"privacy": PrivacyPolicy(own=own)})


Made = Callable[..., list[Site]]


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[Any, Any]]:
    """The compiled programs of nodes, by part and norm, and the federation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_module, "METHODS_KEPT", 100)
        yield {"federation": resolve(parse("test", ONCE)).federation}


@pytest.fixture
def make(kept: dict[Any, Any], tmp_path: Path) -> Made:
    """Three sites, of two, one and one clients, of which the first has a guarantee of its own."""

    def made(policy: Policy | None = None, *others: Policy) -> list[Site]:
        policies = [policy or guarded(), *others, EVERYTHING, EVERYTHING][:3]
        sites = []
        for i, (part, each) in enumerate(zip(dealt(kept["federation"], 3), policies, strict=True)):
            node = Node(f"node-{i}", part, tmp_path / f"node-{i}", each)
            own = None if node.own is None else node.own.given.clip
            node._methods, node._data = kept.setdefault((i, own), (node._methods, node._data))
            sites.append(Site(node))
        return sites

    return made


def answers(sites: list[Site]) -> list[Callable[[Parcel], Parcel]]:
    return [site.answer for site in sites]


def heard(sites: list[Site], table: dict[str, Any], **given: Any) -> tuple[Any, list[list[Parcel]]]:
    """The run, and each request for training of the first node with its answer."""
    seen: list[list[Parcel]] = []

    def hear(asked: Parcel, answered: Parcel) -> None:
        trains = json.loads(asked.head)["kind"] in ("train", "gradients")
        if trains and not unpack_answer(answered).lacks:
            seen.append([asked, answered])

    first, *rest = answers(sites)

    def complete(parcel: Parcel) -> Parcel:
        sites[0].node.arrays = {}  # so that a request has all arrays that it needs
        return first(parcel)

    (run,) = deployed(table, [overheard(complete, hear), *rest], **given)
    return run, seen


def messages(parcel: Parcel) -> Any:
    """The numbers of a node's sum."""
    arrays = unpack_arrays(parcel.body)
    return vector({name: a for name, a in arrays.items() if name.startswith("message")})


def updates(federation: Any, tmp_path: Path) -> tuple[Any, Any]:
    """What each client sends in the first round, and its weight."""
    parts = dealt(federation, len(federation))
    nodes = [Node(f"n-{i}", each, tmp_path / f"n-{i}", EVERYTHING) for i, each in enumerate(parts)]
    found: dict[int, tuple[Any, float]] = {}

    def hear(i: int) -> Callable[[Parcel, Parcel], object]:
        def hearing(asked: Parcel, answered: Parcel) -> None:
            request = unpack_request(asked)
            if request.kind == "train" and not request.round and not unpack_answer(answered).lacks:
                assert request.work is not None
                (weight,) = request.work.weight
                found[i] = messages(answered) / weight, weight

        return hearing

    deployed(ONCE, [overheard(node.answer, hear(i)) for i, node in enumerate(nodes)])
    values = [found[i] for i in range(len(nodes))]
    return np.stack([update for update, _ in values]), np.array([w for _, w in values])


@pytest.mark.slow
@pytest.mark.parametrize("number", [0.0, 1.0])
def test_a_sum_is_of_clipped_messages_with_the_noise_that_is_declared(
    number: float,
    make: Made,
    kept: dict[Any, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(like: Any) -> Any:
        return jax.tree.map(lambda a: np.full(a.shape, number, np.float32), like)

    monkeypatch.setattr(own_noise, "system_normals", drawn)
    sent, weight = updates(kept["federation"], tmp_path)
    norms = np.linalg.norm(sent, axis=1)
    clip = float(norms[:2].mean())  # one of the two is clipped
    sites = make(guarded(clip=clip))
    _, seen = heard(sites, ONCE)
    assert sites[0].node.own is not None
    z = sites[0].node.own.declared.multiplier(ROUNDS, 1, 1)
    scale = weight * np.minimum(1, clip / norms)
    expected = scale[:2] @ sent[:2] + number * z * clip * weight[:2].max()
    np.testing.assert_allclose(messages(seen[0][1]), expected, rtol=1e-3, atol=1e-5)


def test_noise_has_the_standard_deviation_of_the_largest_weight(tmp_path: Path) -> None:
    """Within 4.5 of its own deviations, over 100,000 numbers."""
    own = guarded().privacy
    assert own is not None
    assert own.own is not None
    guarantee, many = SiteGuarantee(own.own, tmp_path, 4), 100_000
    nothing = np.zeros((1, 0))
    part = RoundPart({"w": np.zeros((1, many), np.float32)}, *[nothing] * 4)  # type: ignore[arg-type]
    jobs: Jobs = no_jobs()._replace(weight=np.array([0.1, 0.4]))
    noise = guarantee.noised(part, jobs, 3.0).message["w"] / (3.0 * CLIP * 0.4)
    assert abs(noise.std() - 1) < 4.5 / math.sqrt(2 * many)
    assert abs(noise.mean()) < 4.5 / math.sqrt(many)
    again = guarantee.noised(part, jobs, 3.0).message["w"] / (3.0 * CLIP * 0.4)
    assert abs((again * noise).mean()) < 4.5 / math.sqrt(many)


NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)
BOUNDED = clipped(fedavg(), CLIP)
SENT = jax.jit(BOUNDED.first.sent)


@given(st.lists(NUMBERS, min_size=4, max_size=4))
@settings(max_examples=100)
def test_one_client_moves_a_sum_by_at_most_the_norm(numbers: list[float]) -> None:
    gradient = {"a": np.float32(numbers[0]), "b": np.asarray(numbers[1:], np.float32)}
    moved = np.concatenate([np.ravel(np.asarray(a, float)) for a in SENT(gradient).values()])
    assert np.linalg.norm(moved) <= CLIP * (1 + 1e-5)  # also of what is not finite
    exact = np.asarray(numbers, np.float32).astype(float)
    if np.isfinite(exact).all() and 1e-15 < np.abs(exact).max() < 1e15:
        scaled = exact * min(1, CLIP / np.linalg.norm(exact))
        np.testing.assert_allclose(moved, scaled, rtol=1e-3, atol=1e-12)


@pytest.mark.slow
def test_an_update_that_is_not_finite_cannot_be_told_from_others(make: Made) -> None:
    sites = make()
    table = ONCE | {"solver": TABLE["solver"] | {"learning_rate": 1e38}}
    _, seen = heard(sites, table)
    arrays = unpack_arrays(seen[0][1].body)
    assert arrays["counts"].all()
    assert not arrays["faulty"].any()
    assert np.isfinite(messages(seen[0][1])).all()
    assert np.linalg.norm(messages(seen[0][1])) > 0


def composed(*noises: float) -> float:
    """Epsilon of Gaussian mechanisms, by dp-accounting."""
    accountant = pld.PLDAccountant()
    for noise in noises:
        accountant.compose(dp_accounting.GaussianDpEvent(noise))
    epsilon: float = accountant.get_epsilon(DELTA)
    return epsilon


@pytest.mark.slow
def test_epsilon_is_that_of_all_sums_of_a_client(tmp_path: Path) -> None:
    given = OwnPrivacy(epsilon=EPSILON, delta=DELTA, clip=CLIP)
    guarantee = SiteGuarantee(given, tmp_path, 4)
    one = guarantee.declared.noise_multiplier
    assert composed(one) == pytest.approx(EPSILON, rel=2e-3)
    assert guarantee.epsilon(["a"]) == 0
    noises = {"a": [9.0, 4.0, 4.0, 2.0], "b": [4.0, 4.0]}
    for name, each in noises.items():
        for noise in each:
            guarantee.pay([name], noise, 1)
    again = SiteGuarantee(given, tmp_path, 4)  # as after a restart
    for name, each in noises.items():
        assert again.epsilon([name]) == pytest.approx(composed(*each), rel=5e-3)
    assert again.epsilon(["a", "b"]) == again.epsilon(["a"])


@pytest.mark.parametrize(("points", "releases", "rounds"), [(1, 1, None), (3, 2, None), (2, 1, 40)])
def test_the_noise_of_a_run_uses_up_epsilon_in_its_rounds(
    points: int, releases: int, rounds: int | None, tmp_path: Path
) -> None:
    given = OwnPrivacy(epsilon=EPSILON, delta=DELTA, clip=CLIP, rounds=rounds)
    guarantee = SiteGuarantee(given, tmp_path, 4)
    z = guarantee.declared.multiplier(10, points, releases)
    count = (rounds or 10 * points) // points * releases
    for _ in range(count):
        guarantee.pay(["a"], z, points)
    assert guarantee.epsilon(["a"]) == pytest.approx(EPSILON, rel=1e-3)
    assert guarantee.epsilon(["a"]) <= EPSILON
    line = r"client 'a' has spent epsilon = (7.99\d|8.000) over all runs; .* above 8 with delta"
    with pytest.raises(InputError, match=line):
        guarantee.pay(["b", "a"], z, points)
    assert guarantee.epsilon(["b"]) == 0  # nothing is counted of what is refused


@pytest.mark.slow
def test_a_node_answers_no_more_than_its_epsilon_over_all_runs(make: Made) -> None:
    sites = make()
    own = sites[0].node.own
    deployed(ONCE, answers(sites))
    assert own is not None
    names = sites[0].node.federation.names
    assert own.spent.clients.keys() == {*names}
    assert 0.99 * EPSILON < own.epsilon(names) <= EPSILON
    sites[0].restart()  # it goes on with what is on disk
    line = "fedavg: node 'node-0': it refuses: policy.privacy.own: client '0' has spent epsilon = "
    with pytest.raises(InputError, match=line):
        deployed(ONCE, answers(sites), ledger=Ledger(run="run2"))
    audit = (sites[0].node.folder / "audit.jsonl").read_text()
    lines = [json.loads(each) for each in audit.splitlines()]
    costs = [each["own_epsilon"] for each in lines if "own_epsilon" in each]
    assert len(costs) == ROUNDS
    assert costs == sorted(costs)
    assert costs[-1] == own.epsilon(names)


@pytest.mark.slow
def test_several_runs_share_the_rounds_of_a_node(make: Made) -> None:
    sites = make(guarded(rounds=2 * ROUNDS))
    for number in range(2):
        deployed(ONCE, answers(sites), ledger=Ledger(run=f"run{number}"))
    own = sites[0].node.own
    assert own is not None
    assert own.epsilon(sites[0].node.federation.names) > 0.99 * EPSILON
    with pytest.raises(InputError, match=r"policy.privacy.own: client '0' has spent"):
        deployed(ONCE, answers(sites), ledger=Ledger(run="another"))


def test_a_repeated_request_has_the_same_answer_or_is_counted_again(make: Made) -> None:
    sites = make(guarded(rounds=10))
    _, seen = heard(sites, ONCE)
    asked, answered = seen[-1]
    node = sites[0].node
    assert node.own is not None
    before = node.own.spent
    assert node.answer(asked).body == answered.body
    assert node.own.spent == before
    sites[0].restart()
    node = sites[0].node
    assert node.own is not None
    assert node.own.spent == before
    again = node.answer(asked)
    assert again.body != answered.body
    cost = {name: spent - before.clients[name] for name, spent in node.own.spent.clients.items()}
    assert min(cost.values()) == pytest.approx(max(cost.values()))
    assert min(cost.values()) > 0


def test_a_damaged_count_is_named(make: Made) -> None:
    site = make()[0]
    (site.node.folder).mkdir(parents=True, exist_ok=True)
    (site.node.folder / "own.json").write_text('{"clients": {"a": -1}}')
    with pytest.raises(InputError, match=r"own.json: damaged; it counts what the node's own guar"):
        site.restart()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "privacy"),
    [
        ({"name": "feddane", "mu": 0.5}, None),
        ({"name": "scaffold"}, None),
        (FEDAVG, {"clip": 0.05, "noise_multiplier": 1.0, "delta": 0.01}),
        (FEDAVG, {"unit": "example", "clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-3}),
    ],
)
def test_it_goes_with_exchanges_states_and_the_privacy_of_a_run(
    method: dict[str, Any],
    privacy: dict[str, Any] | None,
    make: Made,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sites = make()
    more = {} if privacy is None else {"privacy": privacy, "evaluation": {"gradients": False}}
    cohort = {"clients_per_round": 4, "sampling": "bernoulli"}
    table = table_of(method, rounds=1, **{"cohort": cohort, "evaluation": {"every": 1}} | more)
    with caplog.at_level(logging.WARNING):
        run, seen = heard(sites, table)
    assert not [each for each in caplog.messages if "without its" in each]
    assert run.empty_rounds == 0
    own = sites[0].node.own
    assert own is not None
    assert len(seen) == (2 if method["name"] == "feddane" else 1)
    assert 0.99 * EPSILON < own.epsilon(sites[0].node.federation.names) <= EPSILON


def test_a_node_without_it_has_the_same_bits(make: Made) -> None:
    """The others' sums do not depend on a node that adds noise."""
    plain = {}
    for name, policy in (("own", guarded()), ("none", EVERYTHING)):
        sites = make(policy)
        heard_: list[Any] = []

        def hear(asked: Parcel, answered: Parcel, into: list[Any] = heard_) -> None:
            request = unpack_request(asked)
            if request.kind == "train" and not request.round and not unpack_answer(answered).lacks:
                into.append(messages(answered).tobytes())

        first, second, third = answers(sites)
        run = f"run{name}"
        deployed(ONCE, [first, overheard(second, hear), third], ledger=Ledger(run=run))
        plain[name] = heard_
    assert plain["own"] == plain["none"]


def test_the_operator_is_told_and_has_no_measures_of_the_node(make: Made) -> None:
    sites = make()
    network = in_memory(answers(sites))
    conversation = Conversation(network, patience=5.0)
    joined = join(conversation, 3)
    server = Coordinator(conversation, parse("test", ONCE), joined, Ledger(run="run1"))
    own = sites[0].node.own
    assert own is not None
    z = own.declared.multiplier(ROUNDS, 1, 1)
    assert server.resolved.table["data"]["own_noise"] == {
        "node-0": {"clip": CLIP, "noise_multiplier": [z]}
    }
    assert own_noise_in_words(joined, server.methods) == [
        f"node node-0 adds noise of its own to its sums: noise multiplier {z:.4g}, norm 0.3; it "
        "reports no measures"
    ]
    assert not joined.descriptions[0].reports
    assert [bool(each.own) for each in joined.descriptions] == [True, False, False]


def test_exact_measures_are_reported_if_the_node_says_so(make: Made) -> None:
    policy = guarded()
    assert policy.privacy is not None
    exact = policy.privacy.model_copy(update={"exact_measures": True})
    node = make(policy.model_copy(update={"privacy": exact}))[0].node
    assert node.reports == ["loss", "accuracy", "metrics"]


def test_noise_of_a_run_in_measures_is_not_the_nodes_guarantee() -> None:
    policy = guarded()
    assert policy.privacy is not None
    exact = policy.privacy.model_copy(update={"exact_measures": True})
    other = policy.privacy.model_copy(update={"own": None, "epsilon": 1.0, "delta": 1e-3})
    assert policy.reported_with_noise == []
    for privacy in (exact, other):
        told = policy.model_copy(update={"privacy": privacy}).reported_with_noise
        assert told == ["loss", "accuracy"]


OWN = "it refuses: policy.privacy.own is as"


@pytest.mark.parametrize(
    ("method", "sections", "line"),
    [
        ({"name": "fednova"}, {}, f"{OWN} .*a message holds the length of a client's work"),
        ({"name": "qffl", "q": 1.0}, {}, f"{OWN} .*a message holds a bound on the curvature"),
        (FEDAVG, {"compression": {"codec": "top-k", "share": 0.5}}, f"{OWN} .*compression"),
        (FEDAVG, {"evaluation": {"model": "cohort"}}, f"{OWN} .*no other model has noise"),
        (
            FEDAVG,
            {
                "cohort": {"clients_per_round": 4, "sampling": "bernoulli"},
                "privacy": {
                    "clip": 1.0,
                    "noise_multiplier": 1.0,
                    "delta": 0.01,
                    "adaptive_clip": {"quantile": 0.5},
                },
                "evaluation": {"gradients": False},
            },
            "it refuses: policy.privacy.own: privacy.adaptive_clip reads bits",
        ),
    ],
)
def test_what_does_not_go_with_noise_is_refused(
    method: dict[str, Any], sections: dict[str, Any], line: str, make: Made
) -> None:
    table = table_of(method, **{"rounds": ROUNDS} | sections)
    with pytest.raises(InputError, match=line):
        deployed(table, answers(make()))


@pytest.mark.parametrize(
    ("privacy", "line"),
    [
        ({}, "policy.privacy: give epsilon and delta, or own, or all of them"),
        ({"epsilon": 1.0}, "policy.privacy: give epsilon and delta, or none of both"),
        ({"own": {"delta": 0.6}}, "policy.privacy.own.delta = 0.6; with 2 clients of the node"),
        ({"own": {"clip": 0.0}}, "policy.privacy.own.clip = 0.0; it must be"),
        ({"own": {"clip": 1e10}}, "policy.privacy.own.clip = 10000000000.0; it must be from 1e-09"),
        ({"own": {"epsilon": -1.0}}, "policy.privacy.own.epsilon = -1.0; it must be"),
        ({"own": {"rounds": 0}}, "policy.privacy.own.rounds = 0; it must be"),
    ],
)
def test_a_policy_that_cannot_be(privacy: dict[str, Any], line: str, make: Made) -> None:
    if "own" in privacy:
        whole = {"epsilon": EPSILON, "delta": DELTA, "clip": CLIP} | privacy["own"]
        privacy = {"own": OwnPrivacy(**whole)}
    with pytest.raises(InputError) as refused:
        make(Policy(privacy=PrivacyPolicy(**privacy)))
    assert str(refused.value).startswith(line)
