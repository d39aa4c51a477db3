"""The papers' figures about their data sets agree with themselves."""

import pytest

from fedprox.datasets import PAPERS

GIVEN = {
    f"{name} {partition}, {paper.source}": (paper.clients, paper.samples, paper.mean)
    for (name, partition), papers in PAPERS.items()
    for paper in papers
    if None not in (paper.clients, paper.samples, paper.mean)
}


@pytest.mark.parametrize(("clients", "samples", "mean"), GIVEN.values(), ids=GIVEN.keys())
def test_samples_are_clients_times_the_mean(clients: int, samples: int, mean: float) -> None:
    # means are printed without decimals
    assert abs(samples / clients - mean) <= 1
