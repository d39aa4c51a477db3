"""The summary: a Markdown page made from the figures of all parts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.part import FIGURES, short

Line = Mapping[str, Any]

MACHINE = "machine"
"""The name under which the machine is recorded, beside the parts."""


def latest(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """The lines of each part since it last began."""
    parts: dict[str, list[Line]] = {}
    for line in lines:
        if "began" in line:
            parts[line["part"]] = []
        parts.setdefault(line["part"], []).append(line)
    return parts


def markdown_table(rows: Sequence[Line]) -> list[str]:
    """Rows as a Markdown table; its columns are the keys of all rows."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[short(row.get(column)) for column in columns] for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def markdown(lines: Iterable[Line]) -> str:
    """The page.

    >>> line = {"part": "checks", "table": "Steps", "model": "2NN", "error": 0.25}
    >>> print(markdown([{"part": "checks", "began": "now"}, line]))
    # GPU benchmark
    <BLANKLINE>
    ## checks
    <BLANKLINE>
    not finished
    <BLANKLINE>
    ### Steps
    <BLANKLINE>
    | model | error |
    | --- | --- |
    | 2NN | 0.25 |
    <BLANKLINE>
    """
    page = ["# GPU benchmark", ""]
    for name, own in latest(lines).items():
        page += [f"## {name}", ""]
        ends = [f"{end['ended']} after {short(end['seconds'])} s" for end in own if "ended" in end]
        if name != MACHINE and "began" in own[0]:
            page += [ends[-1] if ends else "not finished", ""]
        tables: dict[str, list[Line]] = {}
        for line in own:
            if "table" in line:
                figures = {k: v for k, v in line.items() if k not in ("part", "table")}
                tables.setdefault(line["table"], []).append(figures)
        for title, rows in tables.items():
            page += [f"### {title}", "", *markdown_table(rows), ""]
    return "\n".join(page)


def figures(out: Path) -> list[Line]:
    """The figures of all parts in a folder."""
    text = (out / FIGURES).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def write_summary(out: Path) -> str:
    """Write `summary.md` from the figures, and return it."""
    page = markdown(figures(out))
    (out / "summary.md").write_text(page, encoding="utf-8")
    return page
