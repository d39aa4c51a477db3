"""Sweep points of a deployed method do not change one another."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedprox as fp
from fedprox.algorithms.base import HParams
from fedprox.algorithms.feddane import State
from fedprox.deployment.network import Parcel
from fedprox.deployment.policy import REPORTS, Policy
from tests.deployment.conftest import Fresh
from tests.deployment.federations import changed, deployed, overheard, table_of, vector

SCALED = f"{__name__}:scaled"


def nan_at(points: list[int], arrays: dict[str, Any]) -> None:
    """Let a message be NaN at some sweep points."""
    for name in [name for name in arrays if name.startswith("message")]:
        arrays[name] = arrays[name].copy()
        arrays[name][points] = np.nan


@pytest.mark.slow
def test_client_state_continues_from_the_last_round_that_counted_at_its_point(
    fresh: Fresh, tmp_path: Path
) -> None:
    """The message of the second node does not count in round 1, at one point, both or none."""
    table = table_of(
        {"name": "feddyn", "alpha": [0.1, 1.0]}, rounds=2, cohort={"clients_per_round": 4}
    )

    def models(*points: int) -> list[bytes]:
        first = iter([True])

        def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
            del head
            nan_at([*points] if next(first, False) else [], arrays)

        one, two = fresh(tmp_path / str(points))
        runs = deployed(table, [one.answer, changed(two.answer, "train", change)])
        return [vector(run.params).tobytes() for run in runs]

    mixed, neither, both = models(1), models(0, 1), models()
    assert mixed == [both[0], neither[1]]
    assert both[1] != neither[1]


@pytest.mark.slow
def test_a_point_at_which_no_message_counts_keeps_its_state(fresh: Fresh, tmp_path: Path) -> None:
    method = {"name": "feddyn", "alpha": [0.1, 1.0]}

    def models(rounds: int, *points: int) -> list[Any]:
        answers = []
        for site in fresh(tmp_path / f"{rounds}-{points}"):
            in_round = iter([[], [*points]])

            def change(head: Any, arrays: dict[str, Any], in_round: Any = in_round) -> None:
                del head
                nan_at(next(in_round), arrays)

            answers.append(changed(site.answer, "train", change))
        table = table_of(method, rounds=rounds, cohort={"clients_per_round": 4})
        return [vector(run.params) for run in deployed(table, answers)]

    first, found, whole = models(1), models(2, 1), models(2)
    np.testing.assert_array_equal(found, [whole[0], first[1]])
    assert np.abs(whole[1] - first[1]).max() > 1e-3


@pytest.mark.slow
def test_a_point_without_a_mean_gradient_keeps_its_state(fresh: Fresh, tmp_path: Path) -> None:
    """In a simulation too, a round without a valid g^t changes nothing."""
    method = {"name": "feddane", "mu": [0.5, 1.0]}
    table = table_of(method, cohort={"clients_per_round": 4}, rounds=1, evaluation={"every": 1})

    def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
        del head
        nan_at([1], arrays)

    answers = [changed(site.answer, "gradients", change) for site in fresh(tmp_path)]
    first, second = deployed(table, answers)
    assert first.final.train_loss != first.history[0].train_loss
    assert second.final.train_loss == second.history[0].train_loss
    assert second.final.empty_rounds == first.final.empty_rounds


def scaled(share: float | None = None) -> fp.Algorithm:
    """FedDANE whose g^t is scaled by the share of clients that take part, or a given one."""

    def exchange(state: State, gradient: Any, hparams: HParams) -> State:
        factor = hparams["participation"] if share is None else np.float32(share)
        return state._replace(gradient=jax.tree.map(lambda g: factor * g, gradient))

    first = fp.feddane(mu=1.0).first._replace(exchange=exchange)
    return fp.feddane(mu=1.0)._replace(name="scaled", first=first)


@pytest.mark.slow
def test_an_exchange_reads_the_participation_of_the_cohort_that_trains(
    fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of all rows that its clients have."""
    site, names = fresh(tmp_path)[0], list[str]()
    site.node.policy = Policy(methods=[SCALED], report=list(REPORTS))

    def hear(request: Parcel, _: Parcel) -> None:
        head = json.loads(request.head)
        names.extend(head["work"]["names"] if head["kind"] == "train" else [])

    def model() -> Any:
        table = table_of({"name": SCALED}, rounds=1, cohort={"clients_per_round": 1})
        table["evaluation"] = {"gradients": False}
        (run,) = deployed(table, [overheard(site.answer, hear)])
        return vector(run.params)

    whole, ours, federation = scaled, model(), site.node.federation
    (name,) = names
    share = federation.train.sizes[federation.names.index(name)] / len(federation.train)
    monkeypatch.setitem(globals(), "scaled", lambda: whole(share))
    assert share < 0.9
    assert np.abs(model() - ours).max() < 1e-6
