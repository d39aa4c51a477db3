"""A node that adds noise of its own before its message is masked."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedprox.deployment import own_noise
from fedprox.deployment.node import Node
from fedprox.deployment.policy import OwnPrivacy, PrivacyPolicy
from tests.deployment.federations import Site, deployed, vector
from tests.deployment.secure.conftest import ONE_ROUND, Fresh, answers


@pytest.mark.slow
def test_noise_of_a_node_is_in_the_sum_that_is_masked(
    fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum over nodes moves by z C w in each number if all normal numbers are 1."""
    table = ONE_ROUND | {"evaluation": {"every": 1}}

    def model(number: float) -> Any:
        def drawn(like: Any) -> Any:
            return jax.tree.map(lambda a: np.full(a.shape, number, np.float32), like)

        monkeypatch.setattr(own_noise, "system_normals", drawn)
        first, *others = fresh(tmp_path / f"{number}")
        old = first.node
        own = OwnPrivacy(epsilon=100.0, delta=0.01, clip=0.5)
        policy = old.policy.model_copy(update={"privacy": PrivacyPolicy(own=own)})
        node = Node(old.name, old.federation, old.folder, policy, old.identity)
        (run,) = deployed(table, answers([Site(node), *others]))
        assert node.own is not None
        assert len(node.own.spent.clients) == 1
        return vector(run.params), node.own.declared.multiplier(1, 1, 1)

    (silent, z), (noised, _) = model(0.0), model(1.0)
    np.testing.assert_allclose(noised - silent, z * 0.5 / 5, rtol=1e-3)  # one client of five
