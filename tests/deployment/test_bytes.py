"""How many bytes a round takes, against the size of the model."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fedprox.algorithms.base import ClientState
from fedprox.algorithms.check import message_shape
from fedprox.deployment.node_method import NodeMethod
from fedprox.deployment.payload import RoundPart
from fedprox.engine.compiled.evaluation import EvaluationSums
from fedprox.engine.planning.jobs import Jobs
from tests.deployment.federations import deployed, nodes_of, table_of

MODEL = {"name": "mlp", "hidden": [285]}
PARAMETERS = 60 * 285 + 285 + 285 * 10 + 10
MEGABYTE = 4 * PARAMETERS
"""Bytes of the model."""

CASES: list[tuple[dict[str, Any], float, float]] = [
    ({"name": "scaffold"}, 2, 2),
    ({"name": "feddyn", "alpha": 0.1}, 1, 1),
    ({"name": "fedopt", "optimizer": "adam", "server_learning_rate": 0.1}, 1, 1),
]


def untrained(parts: NodeMethod, jobs: Jobs, *_: Any) -> tuple[RoundPart, ClientState]:
    """What a node sends, without training."""

    rng = np.random.default_rng(len(parts.setup.method))

    def drawn(tree: Any, *axes: int) -> Any:
        return jax.tree.map(lambda a: rng.normal(size=(*axes, *a.shape)).astype(a.dtype), tree)

    ones = np.ones((len(jobs.client), 1), bool)
    part = RoundPart(
        drawn(message_shape(parts.algorithm, parts.model.shapes), 1),
        np.float32(jobs.weight.sum()) * np.ones(1, np.float32),
        jobs.steps[:, None],
        ones,
        ~ones,
    )
    return part, drawn(parts.client_state, len(ones))


def unmeasured(parts: NodeMethod, params: Any) -> EvaluationSums:
    """What a node answers to an evaluation, without reading rows."""
    del parts, params
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    test: Any = {"loss": {"sum": zero, "rows": one}, "accuracy": {"sum": zero, "rows": one}}
    count: Any = np.zeros(1, np.int32)
    return EvaluationSums(one, one, count, None, {}, test)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "down", "up"), CASES)
def test_a_round_sends_only_what_is_needed(
    method: dict[str, Any], down: float, up: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation sends the model that the next round begins with."""
    monkeypatch.setattr(NodeMethod, "train", untrained)
    monkeypatch.setattr(NodeMethod, "evaluate", unmeasured)
    table = table_of(
        method,
        model=MODEL,
        rounds=2,
        cohort={"clients_per_round": 4},
        evaluation={"every": 1, "gradients": False},
    )
    (node,) = nodes_of(table, tmp_path, nodes=1)
    (run,) = deployed(table, [node.answer])
    for record in run.history[1:]:
        assert record.bytes_down is not None
        assert record.bytes_up is not None
        assert down <= record.bytes_down / MEGABYTE < down + 0.15
        assert up <= record.bytes_up / MEGABYTE < up + 0.15
