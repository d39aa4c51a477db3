"""The papers' figures for their data sets: clients, samples, sizes and classes, as printed."""

import csv
from pathlib import Path
from typing import Any, Literal, NamedTuple

DRAFT = "Li et al., draft of 2018"
FEDPROX = "Li et al. 2020"


class Paper(NamedTuple):
    """A paper's figures for a partition of a data set; None for what the paper does not give.

    Attributes:
        clients: Number of clients.
        samples: Number of examples, of all clients together.
        mean: Mean examples per client.
        deviation: Their standard deviation.
        classes_per_client: Classes that a client holds (most clients, for shards).
        source: The paper and its table or section.
        rows: Which examples `samples`, `mean` and `deviation` count: training and test rows, or
            training rows alone.
        note: What a reader must know to compare; empty if nothing.
    """

    clients: int | None
    samples: int | None
    mean: float | None
    deviation: float | None
    classes_per_client: int | None
    source: str
    rows: Literal["all", "train"]
    note: str


def _read(table: str) -> dict[tuple[str, str], list[Paper]]:
    """The figures of `papers.csv` by data set and partition, the final paper before its draft."""
    papers: dict[tuple[str, str], list[Paper]] = {}
    _, *lines = csv.reader(table.splitlines())
    for name, partition, *figures, source, rows, note in lines:
        numbers = [int(figure) if figure else None for figure in figures]
        paper: Any = (*numbers, source, rows, note)
        papers.setdefault((name, partition), []).append(Paper(*paper))
    return papers


PAPERS = _read(Path(__file__).with_name("papers.csv").read_text())
