"""Noised measures in a deployment: who adds noise, how much, what nodes count and refuse."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedprox.deployment import noised
from fedprox.deployment.approval import asked_of, digest_of_run
from fedprox.deployment.describing import runs_asked
from fedprox.deployment.network import Parcel
from fedprox.deployment.policy import Policy, PrivacyPolicy
from fedprox.deployment.wire import unpack_request
from fedprox.errors import InputError
from fedprox.experiment import parse
from fedprox.parts.privacy.accounting import Mechanism, epsilon_beside
from fedprox.parts.privacy.measures import gaussian
from tests.deployment.conftest import Fresh
from tests.deployment.federations import Site, deployed, simulated, table_of
from tests.deployment.test_private import interrupted
from tests.deployment.test_same_results import METHODS

BOUND, Z, DELTA = 2.0, 3.0, 1e-3
NAMES = ("train_loss", "test_loss", "test_accuracy")
EVERYBODY = {"clients_per_round": 4, "sampling": "bernoulli"}


def noised_table(unit: str = "client", noise: float = Z, **privacy: Any) -> dict[str, Any]:
    measures = {"loss_bound": BOUND, "noise_multiplier": noise}
    given = {"unit": unit, "clip": 0.05, "noise_multiplier": 2.0, "delta": DELTA}
    return table_of(
        METHODS["fedavg"],
        cohort=EVERYBODY,
        evaluation={"gradients": False},
        privacy=given | {"measures": measures} | privacy,
    )


@pytest.fixture
def nodes(fresh: Fresh, tmp_path: Path) -> list[Site]:
    """Two nodes with a policy that asks for privacy, and answers no exact measures."""
    return fresh(tmp_path)


def answers(nodes: list[Site], unit: Any, epsilon: float = 1e4) -> list[Callable[..., Parcel]]:
    """What nodes with such a policy answer."""
    for site in nodes:
        limit = PrivacyPolicy(unit=unit, epsilon=epsilon, delta=DELTA)
        site.node.policy = Policy(privacy=limit)
    return [site.answer for site in nodes]


def measured(run: Any) -> NDArray[np.float64]:
    return np.array([[record.value(name) for name in NAMES] for record in run.history])


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "example"])
def test_without_noise_measures_are_those_of_the_simulation(unit: str, nodes: list[Site]) -> None:
    quiet = noised_table(unit, noise=0.0, noise_multiplier=0.0)
    (ours,), (theirs,) = deployed(quiet, [site.answer for site in nodes]), simulated(quiet)
    rounds = slice(None) if unit == "client" else slice(1)  # rows of steps are random
    np.testing.assert_allclose(measured(ours)[rounds], measured(theirs)[rounds], rtol=1e-5)
    assert ours.final.epsilon == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "example"])
def test_noise_is_in_units_of_what_one_moves(
    unit: str, nodes: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ones in place of normal numbers, each source adds its standard deviation once."""
    monkeypatch.setattr(noised, "normals", np.ones)
    (ours,) = deployed(noised_table(unit), answers(nodes, unit))
    (theirs,) = simulated(noised_table(unit, noise=0.0))
    added = (measured(ours) - measured(theirs))[0]
    units = np.array([BOUND, BOUND, 1.0])
    if unit == "client":
        expected = Z * math.sqrt(3) / 4 * units
    else:
        train, test = (
            sum(len(getattr(site.node.federation, part)) for site in nodes)
            for part in ("train", "test")
        )
        expected = Z * 4 * np.sqrt([1, 2, 2]) / np.array([train, test, test]) * units
    np.testing.assert_allclose(added, expected, rtol=1e-4)
    mechanism = Mechanism(4, 4, "bernoulli", None, 2.0, 1, DELTA, "pld")
    if unit == "client":
        spent = [record.value("epsilon") for record in ours.history]
        beside = gaussian(Z, DELTA)
        assert spent == [
            epsilon_beside(mechanism, t, (beside, n)) for n, t in ((1, 0), (2, 2), (3, 3))
        ]


@pytest.mark.slow
def test_noise_is_never_the_same(nodes: list[Site], tmp_path: Path) -> None:
    table = noised_table() | {"rounds": 1}
    others = [site.moved(tmp_path / "others") for site in nodes]
    one, two = (deployed(table, answers(sites, "client"))[0] for sites in (nodes, others))
    assert not np.isin(measured(one), measured(two)).any()


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "example"])
def test_a_node_counts_evaluations_and_answers_no_more_than_planned(
    unit: str, nodes: list[Site]
) -> None:
    last = list[Parcel]()

    def overheard(parcel: Parcel) -> Parcel:
        if json.loads(parcel.head)["kind"] == "evaluate":
            last.append(parcel)
        return answer(parcel)

    answer, *others = answers(nodes, unit)
    deployed(noised_table(unit), [overheard, *others])
    node, spent = nodes[0].node, nodes[0].node.spent
    one = gaussian(Z, DELTA)
    assert len(last) == 3
    if unit == "client":
        assert dict(spent.private)[one] == 3
    else:
        assert [dict(taken)[one] for taken in spent.steps.values()] == [3, 3]
    head = json.loads(last[-1].head)
    again = Parcel(json.dumps(head | {"id": "again"}).encode(), last[-1].body)
    refused = json.loads(node.answer(again).head)["refused"]
    assert refused == "4 evaluations with noise; the run has declared 3"
    assert node.spent == spent
    lines = [json.loads(line) for line in (node.folder / "audit.jsonl").read_text().splitlines()]
    costs = [line["epsilon"] for line in lines if line.get("epsilon") is not None]
    assert 0 < costs[0] < costs[-1]
    assert costs == sorted(costs)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "example"])
def test_evaluations_count_for_the_limit_of_a_node(unit: str, nodes: list[Site]) -> None:
    """A limit that rounds alone would meet is exceeded with evaluations."""
    table = noised_table(unit)
    (run,) = simulated(table | {"privacy": table["privacy"] | {"measures": None}})
    limit = 1.05 * run.final.value("epsilon")
    with pytest.raises(InputError, match=r"at most epsilon = .* is allowed"):
        deployed(table, answers(nodes, unit, limit))
    with pytest.raises(InputError, match=r"epsilon = inf .* is allowed"):
        deployed(noised_table(unit, noise=0.0), answers(nodes, unit))


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "example"])
def test_a_digest_says_how_measures_get_noise(unit: str, nodes: list[Site], tmp_path: Path) -> None:
    heads, sites = list[Parcel](), nodes

    def overheard(parcel: Parcel) -> Parcel:
        heads.append(parcel)
        return sites[0].answer(parcel)

    share = {"loss_bound": BOUND, "share": 0.25}
    calibrated: dict[str, Any] = {"epsilon": 20.0, "noise_multiplier": None, "measures": share}
    digests = set[str]()
    for changes in ({}, calibrated):
        table = noised_table(unit, **changes) | {"rounds": 1}
        table["privacy"] = {k: v for k, v in table["privacy"].items() if v is not None}
        sites = [site.moved(tmp_path / str(len(digests))) for site in nodes]
        deployed(table, [overheard, sites[1].answer])
        setup = unpack_request(heads[-1]).setup
        assert setup is not None
        (asked,) = runs_asked(parse("test", table))
        assert digest_of_run(asked_of(setup)) == asked.digest
        digests.add(asked.digest)
        measures = share | {"loss_bound": 1.0} if changes else {"noise_multiplier": 2 * Z}
        other = table["privacy"] | {"measures": {"loss_bound": BOUND} | measures}
        (another,) = runs_asked(parse("test", table | {"privacy": other}))
        digests.add(another.digest)
    assert len(digests) == 4


@pytest.mark.slow
def test_evaluations_of_a_resumed_run_are_those_that_nodes_have_counted(
    nodes: list[Site], tmp_path: Path
) -> None:
    """Killed in its third round, which is then trained again; measures until then stay."""
    table = noised_table() | {"rounds": 4}
    answers(nodes, "client")
    (tmp_path / "run").mkdir()
    run, ledger = interrupted(table, nodes, tmp_path / "run")
    assert ledger.repeated == [(2, 3)]
    one = gaussian(Z, DELTA)
    counted = [dict(site.node.spent.private)[one] for site in nodes]
    assert counted == [len(run.history)] * 2 == [ledger.measured] * 2
    mechanism = Mechanism(4, 4, "bernoulli", None, 2.0, 1, DELTA, "pld")
    assert run.final.epsilon == epsilon_beside(mechanism, 5, (one, counted[0]))
    assert np.isfinite(measured(run)).all()
