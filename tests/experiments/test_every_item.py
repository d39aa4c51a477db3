"""The page of every item names what `python -m experiments` runs, and no cell of it is blank."""

import re
from pathlib import Path

import pytest

from experiments import ITEMS

PAGE = Path(__file__).parents[2] / "docs" / "papers" / "every-item.md"

NAME = re.compile(r"`((?:fedavg|feddyn|fedprox|fedprox-draft|models)/[a-z0-9-]+)`")


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the tables, without the headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "item" and row[0] != "---"]


def hours(row: list[str]) -> set[int]:
    """The hours that a row's verdict says an item takes."""
    return {int(n.replace(",", "")) for n in re.findall(r"\b([\d,]+) (?:h|hours)\b", row[-1])}


def estimates(row: list[str]) -> set[int]:
    """The hours of the items that a row names, at the paper's scale."""
    named = NAME.findall(" ".join(row))
    return {round(ITEMS[name].seconds["paper"] / 3600) for name in named}


def test_every_item_that_can_be_run_has_a_row_and_no_other_is_named() -> None:
    assert set(NAME.findall(PAGE.read_text(encoding="utf-8"))) == set(ITEMS)


def test_no_cell_is_blank() -> None:
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 300
    assert [row for row in found if len(row) != 5 or not all(row)] == []


def test_the_hours_are_those_of_the_items() -> None:
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert sum(bool(hours(row)) for row in found) > 50
    assert [row for row in found if not hours(row) <= estimates(row)] == []


@pytest.mark.parametrize(("more", "expected"), [(0, True), (1, False)])
def test_wrong_hours_are_found(more: int, expected: bool) -> None:
    right = round(ITEMS["feddyn/table-1"].seconds["paper"] / 3600)
    verdict = f"not run: {right + more} h"
    row = ["Table 1", "fewer models", "`feddyn/table-1`", "none", verdict]
    assert (hours(row) <= estimates(row)) == expected
