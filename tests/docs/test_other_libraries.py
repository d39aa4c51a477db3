"""Networks of Haiku and Equinox with a state, as the page on models shows them."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedprox as fp

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "models.md"


@pytest.mark.slow
@pytest.mark.parametrize("library", ["haiku", "equinox"])
def test_the_pages_network_trains_and_its_state_moves(library: str) -> None:
    pytest.importorskip(library)
    (code,) = re.findall(rf"```python\n(import {library} .*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "fp": fp}
    exec(code, names)
    (run,) = fp.simulate(
        fp.datasets.synthetic(clients=4),
        names["model"],
        fp.silobn(),
        solver=fp.Solver(0.1, 10, epochs=1),
        cohort=fp.Cohort(4),
        rounds=3,
        evaluation=fp.Evaluation(gradients=False),
        progress=False,
    )
    assert run.final.train_loss < run.history[0].train_loss
    first = names["model"].init(jax.random.key(0)).state
    moved = [
        bool(np.any(np.asarray(a) != np.asarray(b)))
        for a, b in zip(*map(jax.tree.leaves, (first, run.params.state)), strict=True)
    ]
    assert all(moved)
