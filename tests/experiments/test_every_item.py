"""The page of every item lists what `python -m experiments` runs, and no cell of it is blank."""

import re
from pathlib import Path

from experiments import ITEMS
from experiments.printed import PRINTED
from fedprox_docs import papers

PAGE = Path(__file__).parents[2] / "docs" / "papers" / "every-item.md"
NAME = re.compile(r"^\| `((?:fedavg|feddyn|fedprox|fedprox-draft|models)/[a-z0-9-]+)`")


def rows() -> list[str]:
    text = papers.filled(PAGE.read_text(encoding="utf-8"))
    return [line for line in text.splitlines() if line.startswith("|")]


def test_every_item_has_a_row() -> None:
    found = [name[1] for row in rows() if (name := NAME.match(row))]
    assert sorted(found) == sorted(ITEMS | PRINTED)


def test_no_cell_is_blank() -> None:
    assert len(rows()) > 200
    assert [row for row in rows() if not all(c.strip() for c in row.strip("|").split("|"))] == []


def test_items_say_what_was_run() -> None:
    found = {name[1]: row for row in rows() if (name := NAME.match(row))}
    assert found["fedavg/figure-1"].endswith("| 3 holds |")
    assert found["fedavg/table-2-whole"].endswith(
        "| not run: the paper's numbers and an experiment |"
    )
    assert found["fedavg/figure-9"].endswith("| run, reduced |")
    assert found["feddyn/table-6"].endswith("| run |")
