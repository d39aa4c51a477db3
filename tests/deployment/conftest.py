"""Nodes whose compiled programs the tests of deployments share, and a log that each has anew."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedprox.deployment import node
from tests.deployment.federations import TABLE, Site, nodes_of

Fresh = Callable[[Path], list[Site]]


@pytest.fixture(scope="session")
def first_sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Site]]:
    """Sites whose programs other sites share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "METHODS_KEPT", 100)
        folder = tmp_path_factory.mktemp("first")
        yield [Site(each) for each in nodes_of(TABLE | {"method": [{"name": "fedavg"}]}, folder)]


@pytest.fixture(scope="session")
def fresh(first_sites: list[Site]) -> Fresh:
    """Sites without client state."""
    return lambda folder: [site.moved(folder) for site in first_sites]


@pytest.fixture(autouse=True)
def _own_log_level() -> Iterator[None]:
    """The command `node` logs more, which the tests after it do not inherit."""
    log = logging.getLogger("fedprox")
    level = log.level
    yield
    log.setLevel(level)
