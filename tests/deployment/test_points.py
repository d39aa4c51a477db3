"""Sweep points of a deployed method do not change one another."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedprox as fp
from fedprox.algorithms.base import HParams
from fedprox.algorithms.feddane import State
from fedprox.deployment.policy import REPORTS, Policy
from tests.deployment.federations import apart, changed, deployed, nodes_of, simulated, table_of

ALL = {"clients_per_round": 4}
SCALED = f"{__name__}:scaled"


def nan_at(point: int, arrays: dict[str, Any]) -> None:
    """Let a message be NaN at a sweep point."""
    for name in [name for name in arrays if name.startswith("message")]:
        arrays[name] = arrays[name].copy()
        arrays[name][point] = np.nan


def test_client_state_continues_from_the_last_round_that_counted_at_its_point(
    tmp_path: Path,
) -> None:
    """The message of the second client's node does not count at the last point in round 1."""

    def last_of(alpha: float | list[float]) -> Any:
        method = {"name": "feddyn", "alpha": alpha}
        table = table_of(method, cohort={"clients_per_round": 2}, rounds=2, solver={"epochs": 1})
        table["data"] = {**table["data"], "clients": 2}
        asked = 0

        def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
            del head
            nonlocal asked
            asked += 1
            if asked == 1:
                nan_at(-1, arrays)

        first, second = nodes_of(table, tmp_path / str(alpha))
        *_, run = deployed(table, [first.answer, changed(second.answer, "train", change)])
        return run.params

    assert apart(last_of(1.0), last_of([0.1, 1.0])) < 1e-5


def test_a_point_without_a_mean_gradient_keeps_its_state(tmp_path: Path) -> None:
    """In a simulation too, a round without a valid g^t changes nothing."""
    method = {"name": "feddane", "mu": [0.5, 1.0]}
    table = table_of(method, cohort=ALL, rounds=1, evaluation={"every": 1})

    def change(head: dict[str, Any], arrays: dict[str, Any]) -> None:
        del head
        nan_at(1, arrays)

    answers = [changed(node.answer, "gradients", change) for node in nodes_of(table, tmp_path)]
    first, second = deployed(table, answers)
    assert first.final.train_loss != first.history[0].train_loss
    assert second.final.train_loss == second.history[0].train_loss
    assert second.final.empty_rounds == first.final.empty_rounds


def scaled() -> fp.Algorithm:
    """FedDANE whose g^t is scaled by the share of clients that take part."""

    def exchange(state: State, gradient: Any, hparams: HParams) -> State:
        share = hparams["participation"]
        return state._replace(gradient=jax.tree.map(lambda g: share * g, gradient))

    return fp.feddane(mu=1.0)._replace(
        name="scaled", first=fp.feddane(mu=1.0).first._replace(exchange=exchange)
    )


def test_an_exchange_reads_the_participation_of_a_simulation(tmp_path: Path) -> None:
    table = table_of({"name": SCALED}, rounds=1, evaluation={"every": 1})
    nodes = nodes_of(table, tmp_path, policy=Policy(methods=[SCALED], report=list(REPORTS)))
    (ours,), (theirs,) = deployed(table, [node.answer for node in nodes]), simulated(table)
    assert apart(theirs.params, ours.params) < 1e-5
