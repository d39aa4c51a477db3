"""The list of what does not hold has everything that the papers' tables say does not."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAPERS = Path(__file__).parents[2] / "docs" / "papers"
LIST = "what-does-not-hold"


def cells(page: str) -> Iterator[list[str]]:
    """The cells of each row of each table of a page."""
    for line in (PAPERS / f"{page}.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def verdict(row: list[str]) -> str:
    found = {cell.strip("*") for cell in row} & {"within noise", "does not hold"}
    return found.pop() if found else ""


@pytest.mark.parametrize("page", [p.stem for p in sorted(PAPERS.glob("*.md")) if p.stem != LIST])
def test_every_verdict_and_every_number_that_is_far_off_is_listed(page: str) -> None:
    listed = list(cells(LIST))
    for row in cells(page):
        if verdict(row):
            difference = row[-3].partition(" [")[0]
            same = [one for one in listed if verdict(one) == verdict(row)]
            assert any(difference in " ".join(one) for one in same), f"{page}: {' | '.join(row)}"
        offs = re.findall(r"\*\*[^*:]+: ([^*]+ times)\*\*", " ".join(row))
        if offs and page == "feddyn":
            same = [one for one in listed if row[0] in one and row[1] in one]
            shown = " ".join(" ".join(one) for one in same)
            assert all(f"({factor})" in shown for factor in offs), f"{page}: {' | '.join(row)}"


def test_as_many_are_listed_as_there_are() -> None:
    verdicts = [verdict(row) for page in ("fedprox", "fedprox-draft") for row in cells(page)]
    listed = [verdict(row) for row in cells(LIST)]
    for one, count in (("does not hold", 15), ("within noise", 30)):
        assert verdicts.count(one) == listed.count(one) == count
