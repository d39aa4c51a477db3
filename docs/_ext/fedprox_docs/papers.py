"""The papers' results: comments in the pages of `docs/papers` stand for what results files say.

| Comment | Stands for |
|---|---|
| `<!-- results: NAME -->` | where a results file comes from, and all of its tables |
| `<!-- results: NAME 0-2 -->` | its blocks 0 to 2 alone |
| `<!-- figure: NAME -->` | its figure, which a build draws from its curves |
| `<!-- origin: NAME -->` | where it comes from |
| `<!-- cell: NAME 0; ROW; COLUMN -->` | a cell of block 0: a row by its first cell, and a header |
| `<!-- factors: NAME -->` | our counts divided by the paper's, from least to greatest |
| `<!-- factors: NAME lower -->` | the same, for each row's lower target |
| `<!-- verdicts: PAPER PAPER -->` | how many comparisons hold, are within noise, and do not hold |
| `<!-- by chance: PAPER PAPER -->` | how many verdicts are expected by chance |
| `<!-- does not hold: PAPER PAPER -->` | a table of the comparisons that do not hold |
| `<!-- races: PAPER PAPER -->` | a table of how far counts are from the paper's, by item |
| `<!-- other order: PAPER -->` | a table of the rows in which another method is the first |
| `<!-- items: PAPER -->` | a table of a paper's items: where they are, and what our results say |
| `<!-- machines: all -->` | when, on what and with what results were made |
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from experiments import ITEMS
from experiments.engine.figure import figure as of_item
from experiments.engine.figure import from_results
from experiments.engine.item import AXES, MEASURES, Item
from experiments.engine.results import FOLDER, read_results
from experiments.engine.table import judged_in, markdown
from experiments.engine.verdicts import LEVEL
from experiments.printed import PRINTED

PICTURES = "figures"
"""The folder for figures, beside the pages."""

MARK = re.compile(r"<!-- ([a-z ]+):\s([^<>]*?)\s-->")
COUNT = re.compile(r"\b(paper|ours) ([\d.]+)(\+?)")


class Cell(NamedTuple):
    """A cell of a table of counts: the paper's and ours, infinite if it did not reach the target.

    `lower` says that the row before has the same title, and so the higher of two targets.
    """

    row: str
    target: str
    lower: bool
    column: str
    paper: float | None
    ours: float | None
    far: bool


def names(papers: str = "") -> list[str]:
    """The items with results of some papers, or of all."""
    every = (path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.json"))
    return sorted(name for name in every if not papers or name.split("/")[0] in papers.split())


def filled(source: str) -> str:
    """A page with what its comments stand for.

    Raises:
        ValueError: A comment is unknown, or names what results files do not have.
    """

    def one(found: re.Match[str]) -> str:
        kind, arguments = found[1], " ".join(found[2].split())
        if kind not in MARKS:
            raise ValueError(f"no comment {kind!r}; there are {', '.join(MARKS)}")
        return MARKS[kind](arguments)

    return MARK.sub(one, source)


def results(arguments: str) -> str:
    """Tables of a results file: all after where it comes from, or some blocks."""
    name, _, blocks = arguments.partition(" ")
    if not blocks:
        return "\n\n".join([origin(name), *map(str.rstrip, _blocks(name))])
    first, _, last = blocks.partition("-")
    return "\n\n".join(map(str.rstrip, _blocks(name)[int(first) : int(last or first) + 1]))


def figure(name: str) -> str:
    """An item's figure."""
    panel = ITEMS[name].panels[0][0]
    said = f"{ITEMS[name].title}: {MEASURES[panel.measure]} by {AXES[panel.x]}"
    return f"![{said}]({PICTURES}/{_picture(name)})"


def draw_figures(pages: Path) -> None:
    """Draw the figures that the pages of a folder show."""
    (pages / PICTURES).mkdir(exist_ok=True)
    for page in sorted(pages.glob("*.md")):
        for kind, name in MARK.findall(page.read_text(encoding="utf-8")):
            if kind == "figure":
                drawn = of_item(ITEMS[name], from_results(read_results(name)["curves"]))
                drawn.savefig(pages / PICTURES / _picture(name), dpi=200)


def origin(name: str) -> str:
    """Where a results file comes from: the items, their commands, the seeds and the date."""
    stored = read_results(name)
    keys = [key for key in stored.get("items", [name]) if key in ITEMS]
    sources = "; ".join(dict.fromkeys(ITEMS[key].source for key in keys))
    commands = [f"`python -m experiments {key} --scale {stored['scale']}`" for key in keys]
    seeds, made = stored["seeds"], stored["made"]
    many = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    said = ", ".join([*commands, made.get("took", many), made["date"]])
    return f"{sources}: {said}." if sources else f"{said[0].upper()}{said[1:]}."


def cell(arguments: str) -> str:
    """A cell of a table, without bold marks.

    Args:
        arguments: "NAME BLOCK; ROW; COLUMN". A row's name is in its first column.

    Returns:
        The cell's text.

    Raises:
        ValueError: There is not exactly one such row.
    """
    where, row, column = (part.strip() for part in arguments.split(";"))
    name, _, block = where.rpartition(" ")
    rows = _rows(_blocks(name)[int(block)])
    found = [cells[column] for cells in rows if next(iter(cells.values())) == row]
    if len(found) != 1:
        raise ValueError(f"{arguments}: {len(found)} rows, not one")
    return found[0].strip("*")


def factors(arguments: str) -> str:
    """Our counts divided by the paper's, such as "0.21 to 0.57"; those of lower targets if asked.

    >>> factors("fedavg/table-4")
    '0.21 to 0.57'
    """
    name, _, lower = arguments.partition(" ")
    return _range(one for one in counts_of(name) if one.lower or not lower)


def counted(papers: str) -> Counter[str]:
    """How often the comparisons of some papers have each verdict.

    >>> sorted(counted("fedavg"))
    ['holds']
    """
    return sum((Counter(_judged(name)) for name in names(papers)), Counter())


def verdicts(papers: str) -> str:
    """How many comparisons of some papers have each verdict, in words."""
    counts = counted(papers)
    hold, noise, not_hold = (counts[one] for one in ("holds", "within noise", "does not hold"))
    said = f"{hold} hold, {noise} are within noise and {not_hold} do not hold"
    return f"of {sum(counts.values())} comparisons {said}"


def by_chance(papers: str) -> str:
    """How many verdicts of some papers are expected by chance, in words."""
    count = sum(bool(_judged(name)) for name in names(papers))
    return f"{count} items with verdicts, of which about {round(LEVEL * count)} has one by chance"


def does_not_hold(papers: str) -> str:
    """A table of the comparisons that do not hold."""
    header = ["item", "the paper's claim", "data", "larger, says the paper", "smaller"]
    rows = []
    for name in names(papers):
        for block, text in zip(read_results(name)["blocks"], _blocks(name), strict=True):
            for cells in _rows(text) if "claim" in block else ():
                where, *sides, difference, p, verdict, _ = cells.values()
                if verdict == "**does not hold**":
                    without_range = difference.partition(" [")[0]
                    rows.append([f"`{name}`", block["claim"], where, *sides, without_range, p])
    return _grid([*header, "difference", "p"], rows)


def races(papers: str) -> str:
    """A table of how far counts are from the paper's, by item."""
    rows = []
    for name in names(papers):
        both = [one for one in counts_of(name) if one.paper and one.ours]
        if both:
            far = sum(one.far for one in both)
            rows.append([f"`{name}`", str(len(both)), str(far), _range(both)])
    header = ["item", "cells with the paper's number", "more than 1.5 times off"]
    return _grid([*header, "ours / the paper's, where both get there"], rows)


def other_order(papers: str) -> str:
    """A table of the rows in which another method is the first to reach the target."""
    rows = []
    for name in names(papers):
        for (row, target), group in groupby(counts_of(name), lambda one: (one.row, one.target)):
            each = list(group)
            both = [
                _in_order({one.column: one.paper for one in each}),
                _in_order({one.column: one.ours for one in each}),
            ]
            first = [{column for column, n in order if n == order[0][1]} for order in both]
            if all(first) and not first[0] & first[1]:
                said = [", ".join(f"{column} {n:g}" for column, n in order) for order in both]
                rows.append([f"`{name}`", row, target, *said])
    return _grid(["item", "row", "target", "the paper", "ours"], rows)


def items(paper: str) -> str:
    """A table of a paper's items: what and where they are, and what our results say."""
    shown = {key: name for name in names() for key in read_results(name).get("items", [name])}
    rows = []
    for key, item in (ITEMS | PRINTED).items():
        if key.partition("/")[0] == paper:
            where, state = item.title, "the paper's numbers, and an experiment"
            if isinstance(item, Item):
                where, state = item.source, _hours(item.seconds["paper"])
            rows.append(
                [f"`{key}`", item.title, where, _state(shown[key]) if key in shown else state]
            )
    return _grid(["item", "what", "where", "our results"], rows)


def machines(_: str) -> str:
    """When, on what and with what results were made."""
    return "; ".join(dict.fromkeys(_made(read_results(name)["made"]) for name in names()))


def counts_of(name: str) -> list[Cell]:
    """The cells of an item's first table of counts, row by row."""
    blocks = read_results(name)["blocks"]
    block: dict[str, Any] = next(
        (one for one in blocks if one.get("header", [])[1:2] == ["target"]), {}
    )
    found: list[Cell] = []
    for row in block.get("rows", ()):
        lower = bool(found) and found[-1].row == row[0]
        far = re.findall(r"\*\*([^*]+?): [^*:]+\*\*", row[-2])
        for column, text in list(zip(block["header"], row, strict=True))[2:-2]:
            each = {
                side: math.inf if more else float(number)
                for side, number, more in COUNT.findall(text)
            }
            both = each.get("paper"), each.get("ours")
            found.append(Cell(row[0], row[1], lower, column, *both, column in far))
    return found


def _picture(name: str) -> str:
    return f"{name.replace('/', '-')}.png"


def _in_order(counts: Mapping[str, float | None]) -> list[tuple[str, float]]:
    """The methods that reach a target, the first one first."""
    there = [(column, n) for column, n in counts.items() if n and math.isfinite(n)]
    return sorted(there, key=lambda pair: pair[1])


def _range(each: Iterable[Cell]) -> str:
    pairs = [(one.ours, one.paper) for one in each if one.ours and one.paper]
    ratios = [ours / paper for ours, paper in pairs if max(ours, paper) < math.inf]
    return f"{min(ratios):.2g} to {max(ratios):.2g}" if ratios else "none gets there"


def _state(name: str) -> str:
    """What an item's results say."""
    plural = {"holds": "hold", "does not hold": "do not hold"}
    words = [
        f"{count} {verdict if count == 1 else plural.get(verdict, verdict)}"
        for verdict, count in Counter(_judged(name)).items()
    ]
    reduced = ", reduced" if read_results(name)["scale"] == "short" else ""
    return (", ".join(words) or "run") + reduced


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"not run: {hours:,.0f} h" if hours >= 10 else f"not run: {max(hours, 0.1):.1f} h"


def _judged(name: str) -> list[str]:
    return [one for group in judged_in(read_results(name)["blocks"]) for one in group]


def _made(made: dict[str, Any]) -> str:
    versions = ", ".join(f"{what} {number}" for what, number in made["versions"].items())
    return f"{made['cpu']}, {versions}, {made['date']}"


@cache
def _blocks(name: str) -> list[str]:
    return markdown(read_results(name)["blocks"])


def _rows(text: str) -> list[dict[str, str]]:
    """The rows of a block's table in Markdown, by the header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    header, _, *body = ([one.strip() for one in line[1:-1].split(" | ")] for line in lines)
    return [dict(zip(header, row, strict=True)) for row in body]


def _grid(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


MARKS: dict[str, Callable[[str], str]] = {
    "results": results,
    "figure": figure,
    "origin": origin,
    "cell": cell,
    "factors": factors,
    "verdicts": verdicts,
    "by chance": by_chance,
    "does not hold": does_not_hold,
    "races": races,
    "other order": other_order,
    "items": items,
    "machines": machines,
}
"""By a comment's first words, what makes Markdown of the rest."""
