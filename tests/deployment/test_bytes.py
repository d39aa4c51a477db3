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
from tests.variants import mostly_slow

MODEL = {"name": "mlp", "hidden": [285]}
PARAMETERS = 60 * 285 + 285 + 285 * 10 + 10
MEGABYTE = 4 * PARAMETERS
"""Bytes of the model."""

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "scaffold": ({}, 2),
    "feddyn": ({"alpha": 0.1}, 1),
    "fedopt": ({"optimizer": "adam", "server_learning_rate": 0.1}, 1),
}
"""Options of methods, and how many models they send each way."""


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


@pytest.mark.parametrize("name", mostly_slow(CASES, "scaffold"))
def test_a_round_sends_only_what_is_needed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation sends the model that the next round begins with."""
    monkeypatch.setattr(NodeMethod, "train", untrained)
    monkeypatch.setattr(NodeMethod, "evaluate", unmeasured)
    options, models = CASES[name]
    table = table_of(
        {"name": name, **options},
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
        assert models <= record.bytes_down / MEGABYTE < models + 0.15
        assert models <= record.bytes_up / MEGABYTE < models + 0.15
