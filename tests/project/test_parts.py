"""The engine knows no part by name, and a part's numbers reach the clients."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import fedprox as fp
from fedprox.algorithms.base import Algorithm, ClientContext, Solution
from fedprox.parts.part import Columns, Part, Setting
from fedprox.protocol.protocol import Protocol
from tests.quadratics import one_run, quadratic_federation, quadratic_model

ENGINE = Path(fp.__file__).parent / "engine"

STEMS = (
    *("asynchron", "attack", "codec", "compress", "coding", "dishonest", "fault", "hidden"),
    *("hide", "hiding", "noised", "population", "priva", "robust", "stale"),
)
NAMES = {"adapter", "adapters", "dropout", "lies", "product", "products", "rank", "ranks", "ranked"}


def words_of_parts(text: str) -> list[str]:
    """The words of a text that begin as those of parts, also within names of the code."""
    words = re.findall(r"[a-z]+", text.lower())
    return [word for word in words if word.startswith(STEMS) or word in NAMES]


def test_words_are_found_within_names() -> None:
    text = "is_private, Attack(hides_clients), MOST_STALENESS of `ranks`, by default"
    assert words_of_parts(text) == ["private", "attack", "hides", "staleness", "ranks"]


def test_the_engine_names_no_part() -> None:
    for path in ENGINE.rglob("*.py"):
        assert not words_of_parts(path.read_text()), path


class Numbered(Part):
    """Clients know their number, and send it."""

    def columns(self, clients: NDArray[Any], count: int) -> Columns:
        return {"share": clients / count}

    def known(self, numbers: Mapping[str, Any], key: Any) -> Mapping[str, Any]:
        del key
        return {"share": numbers["share"]}

    def wrap(self, method: Algorithm, setting: Setting) -> Algorithm:
        del setting

        def message(state: Any, hparams: Any, context: ClientContext, solution: Solution) -> Any:
            del state, hparams
            share = context.columns["share"]
            return jax.tree.map(lambda a: jnp.full_like(a, share), solution.params), context.state

        return method._replace(client=method.client._replace(message=message))


def test_a_number_of_a_part_reaches_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Protocol.__dict__["parts"].func
    monkeypatch.setattr(Protocol, "parts", property(lambda self: (*parts(self), Numbered())))
    federation = quadratic_federation([np.eye(2)] * 4, list(np.ones((4, 2))), [1, 2, 3, 4])
    run = one_run(
        federation,
        quadratic_model(np.zeros(2)),
        fp.fedavg(average="clients"),
        fp.Solver(0.1, 1, steps=1),
        rounds=2,
    )
    np.testing.assert_allclose(run.params, 2 * np.mean([0, 1, 2, 3]) / 4, rtol=1e-6)
