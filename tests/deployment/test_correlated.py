"""Correlated noise and cyclic cohorts in a deployment: what is drawn, kept, sent and counted."""

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedprox.deployment import remote
from fedprox.deployment.kept import NodeSpent
from fedprox.deployment.policy import PrivacyPolicy
from fedprox.deployment.wire import unpack_request
from fedprox.parts.privacy import setting
from fedprox.parts.privacy.accounting import Mechanism, as_one, epsilon_of, epsilon_together
from fedprox.parts.privacy.correlated import Strategy
from fedprox.protocol.cohort import group_of_round
from tests.deployment.conftest import Fresh
from tests.deployment.federations import EVERYTHING, deployed, unreliable
from tests.deployment.test_private import (
    CLIP,
    DELTA,
    SETTING,
    Z,
    answers,
    interrupted,
    private_table,
)
from tests.deployment.test_spending import asked, edited, recorded
from tests.parts.privacy.test_correlated import GIVEN, dense

CYCLIC = {"clients_per_round": 2, "sampling": "cyclic", "min_separation": 2}
ROUNDS = 4


def strategy(rounds: int = ROUNDS) -> Strategy:
    return GIVEN["banded"]._replace(separation=2, rounds=rounds, scale=(0.75, 0.5)[:rounds])


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy that takes no time."""
    monkeypatch.setattr(setting, "strategy_of", lambda _, __, rounds: strategy(rounds))


def table(**sections: Any) -> dict[str, Any]:
    """Two of four clients in a round."""
    privacy = SETTING | {"mechanism": "banded"}
    given: dict[str, Any] = {"cohort": CYCLIC, "privacy": privacy, "rounds": ROUNDS}
    return private_table(**(given | sections))


MECHANISM = Mechanism(4, 2, "cyclic", None, Z, 1, DELTA, "pld", strategy())


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_its_noise_and_groups(
    fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its third round: the noise of the first two is kept, that of the third is new."""
    drawn: list[np.ndarray] = []

    def system_normals(like: Any) -> Any:
        leaves, structure = jax.tree.flatten(like)
        drawn.append(np.arange(1.0, 5.0)[len(drawn) % 4] * 10.0 ** len(drawn))
        return jax.tree.unflatten(
            structure, [np.full(a.shape, drawn[-1], np.float32) for a in leaves]
        )

    monkeypatch.setattr(remote, "system_normals", system_normals)
    still = {"learning_rate": 1e-30, "batch_size": "all", "epochs": 1}
    frozen = table(solver=still, evaluation={"every": 1, "gradients": False})
    start = deployed(frozen | {"rounds": 1}, answers(fresh(tmp_path / "start")))[0]
    first = np.asarray(jax.tree.leaves(start.params)[0]).ravel()[0]
    noise_of_start = np.linalg.inv(dense(strategy(1))) @ np.array(drawn)
    first -= Z * CLIP / 2 * noise_of_start.sum()
    drawn.clear()
    (tmp_path / "run").mkdir()
    run, ledger = interrupted(frozen, fresh(tmp_path / "nodes"), tmp_path / "run")
    assert ledger.repeated == [(2, 3)]
    assert len(drawn) in (4, 5)
    # two rounds before the interruption, and two after it
    kept = np.array([*drawn[:2], *drawn[-2:]])
    noise = np.linalg.inv(dense(strategy())) @ kept
    last = np.asarray(jax.tree.leaves(run.params)[0]).ravel()[0]
    np.testing.assert_allclose(last, first + Z * CLIP / 2 * noise.sum(), rtol=1e-5)
    assert run.final.epsilon == epsilon_of(MECHANISM, ROUNDS + 1)
    assert run.final.epsilon > epsilon_of(MECHANISM, ROUNDS)


@pytest.mark.slow
def test_requests_have_a_group_of_the_seed_and_no_noise(fresh: Fresh, tmp_path: Path) -> None:
    nodes, clients, sent = fresh(tmp_path), dict[int, set[int]](), set[int]()

    def listen(node: int, number: int, head: dict[str, Any]) -> Any:
        del node, number
        if head["kind"] == "train":
            clients.setdefault(head["round"], set()).update(head["work"]["client"])
            sent.add(len(head["arrays"]))
        return ""

    deployed(table(), unreliable(nodes, listen))
    assert clients == {t: set(group_of_round(0, t, 4, 2).tolist()) for t in range(ROUNDS)}
    correlated, independent = sent, set[int]()

    def count(node: int, number: int, head: dict[str, Any]) -> Any:
        del node, number
        if head["kind"] == "train":
            independent.add(len(head["arrays"]))
        return ""

    plain = table(privacy=SETTING)
    deployed(plain, unreliable(fresh(tmp_path / "other"), count))
    assert correlated == independent


def test_a_node_counts_whole_runs_and_refuses_other_groups(fresh: Fresh, tmp_path: Path) -> None:
    sites = fresh(tmp_path)
    request = recorded(table(), sites)["train"]
    node = sites[0].moved(tmp_path / "again").node
    node.policy = EVERYTHING.model_copy(
        update={"privacy": PrivacyPolicy(epsilon=50.0, delta=DELTA)}
    )
    setup = unpack_request(request).setup
    assert setup is not None
    assert setup.privacy is not None
    assert setup.privacy.mechanism == MECHANISM
    t = unpack_request(request).round
    refused = asked(node, edited(request, round=t + 1)).refused
    assert refused.startswith(
        f"round {t + 2}: clients of another group, whose rounds are at least 2"
    )
    other = setup.privacy.mechanism._replace(strategy=strategy(3))
    wrong = edited(request, setup__privacy__mechanism=[*other[:-1], [*strategy(3)]])
    assert "a strategy that is not of 4 rounds" in asked(node, wrong).refused
    assert node.spent == NodeSpent()
    assert not asked(node, request).refused
    one, _ = as_one(MECHANISM, ROUNDS)
    assert node.spent.private == [(one, 1)]
    # a run that was interrupted counts once, with what is repeated
    assert not asked(node, edited(request, setup__privacy__rounds=ROUNDS + 1)).refused
    more, _ = as_one(MECHANISM, ROUNDS + 1)
    assert [(each, n) for each, n in node.spent.private if n] == [(more, 1)]
    # another run with the same mechanism counts as another
    assert not asked(node, edited(request, setup__run="another")).refused
    private = [(each, n) for each, n in node.spent.private if n]
    assert private == [(more, 1), (one, 1)]
    both = epsilon_together(tuple(private), DELTA)
    assert both > math.sqrt(2) * epsilon_of(MECHANISM, ROUNDS)
