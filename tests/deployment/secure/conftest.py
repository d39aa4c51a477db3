"""Five nodes whose messages are summed in secret, and whose compiled programs tests share."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedprox.deployment import node as node_module
from fedprox.deployment.network import Parcel
from fedprox.deployment.node import Node
from fedprox.deployment.policy import SecurePolicy
from tests.deployment.federations import (
    EVERYTHING,
    FEDPROX,
    Site,
    deployed,
    nodes_of,
    table_of,
)
from tests.deployment.secure.sums import identities

NODES, THRESHOLD = 5, 3
SECURE = {"secure": {"threshold": THRESHOLD, "bound": 10.0}}
SIZES: dict[str, Any] = {
    "client_rows": 20,  # of every client, so that nodes share compiled programs
    "data": {"clients": NODES},
    "cohort": {"clients_per_round": NODES},
}
PLAIN = table_of(FEDPROX, **SIZES, rounds=2, evaluation={"every": 1})
TABLE = PLAIN | {"deployment": SECURE}
ONE_ROUND = TABLE | {"rounds": 1}
OPERATOR = "fedprox.deployment.remote"
"""Who logs what becomes of a sum."""

Fresh = Callable[..., list[Site]]


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    """Five sites without a past, with a policy of secure sums unless told otherwise.

    Their programs are compiled here, so that no test takes longer for coming first.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_module, "METHODS_KEPT", 100)
        first = nodes_of(PLAIN, tmp_path_factory.mktemp("first"), NODES)
        known = identities([node.name for node in first])

        def sites(folder: Path, *, secure: bool = True, threshold: int = THRESHOLD) -> list[Site]:
            own = {"secure": SecurePolicy(threshold=threshold, peers={})}
            policy = EVERYTHING.model_copy(update=own) if secure else EVERYTHING
            made = []
            for old in first:
                identity = known[old.name] if secure else None
                new = Node(old.name, old.federation, folder / old.name, policy, identity)
                new._methods, new._data = old._methods, old._data
                made.append(Site(new))
            return made

        deployed(PLAIN, answers(sites(tmp_path_factory.mktemp("warm"), secure=False)))
        yield sites


def answers(sites: Sequence[Site]) -> list[Callable[[Parcel], Parcel]]:
    """What the sites answer."""
    return [site.answer for site in sites]


def operator_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the operator has logged."""
    return [record.getMessage() for record in caplog.records if record.name == OPERATOR]
