"""Tables of benchmarks: printed, and written into benchmarks/README.md between their markers.

A script calls `show` with its tables. `python -m benchmarks` runs it, takes the tables from a file
that `BENCHMARK_TABLES` names, and writes them below a line with the date, machine and versions.
"""

import datetime
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.engine.machine import cpu, today, versions

README = Path(__file__).with_name("README.md")

TABLES = "BENCHMARK_TABLES"
"""The environment variable that names the file for tables in Markdown."""

BUSY = 0.3
"""The share of the cores that other processes use at the start, above which a table says "busy"."""

PIPE = r"\|"

MARKED = re.compile(r"<!-- table: (.+?) -->\n(.*?)<!-- end -->", re.DOTALL)
DATE = re.compile(r"^\d{4}-\d\d-\d\d\b", re.MULTILINE)


def table(*headers: str, title: str | None = None, left: int = 1) -> Table:
    """A table without rows, whose first `left` columns are aligned to the left."""
    made = Table(title=title, box=None, pad_edge=False, header_style="bold")
    for i, header in enumerate(headers):
        made.add_column(header, justify="left" if i < left else "right")
    return made


def add(made: Table, *cells: str) -> None:
    """Add a row, and print it at once: a long script shows what it has, also if it is stopped."""
    made.add_row(*cells)
    print(*cells, sep="  ", flush=True)


def show(*tables: Table) -> None:
    """Print the tables of a script, and hand them to `python -m benchmarks` if it runs it."""
    console = Console(width=200)
    for each in tables:
        console.print(each)
    if file := os.environ.get(TABLES):
        Path(file).write_text("\n".join(map(markdown, tables)), encoding="utf-8")


def leave_out(what: str, error: Exception) -> None:
    """Say that data are missing; the end if the tables are for the README, which has all rows."""
    if TABLES in os.environ:
        raise SystemExit(f"{what}: {error}")
    print(f"{what} is left out: {error}", file=sys.stderr)


def markdown(shown: Table) -> str:
    """A table in Markdown, with its title and caption above it."""
    headers = [str(column.header) for column in shown.columns]
    sides = ["---" if column.justify == "left" else "---:" for column in shown.columns]
    cells = zip(*(map(str, column.cells) for column in shown.columns), strict=True)
    words = "; ".join(str(each) for each in (shown.title, shown.caption) if each)
    above = f"{words[0].upper()}{words[1:]}:\n\n" if words else ""
    rows = [_line(headers), f"|{'|'.join(sides)}|\n", *map(_line, cells)]
    return above + "".join(rows)


def _line(cells: Iterable[str]) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(cell.replace('|', PIPE) for cell in cells)} |\n"


def write(command: str, tables: str, packages: tuple[str, ...], load: float) -> None:
    """Replace the tables of a command in the README.

    Raises:
        SystemExit: If the README has no marker of this command.
    """
    text = README.read_text(encoding="utf-8")
    known = ", ".join(f"{name} {v}" for name, v in versions("jax", "jaxlib", *packages).items())
    busy = f", busy (other processes used {load:.0%} of the cores)" if load > BUSY else ""
    made = f"{today()}, {cpu()}, {known}{busy}. `python -m benchmarks.{command}`"
    for found in MARKED.finditer(text):
        if found[1] == command:
            changed = f"{text[: found.start(2)]}\n{made}\n\n{tables}\n{text[found.end(2) :]}"
            README.write_text(changed, encoding="utf-8")
            return
    raise SystemExit(f"{README} lacks the line <!-- table: {command} -->, or <!-- end --> below it")


def load(seconds: float = 2.0) -> float:
    """The share of the cores that is in use now; the load average where /proc is missing."""
    try:
        before = _ticks()
        time.sleep(seconds)
        after = _ticks()
    except OSError:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    return 1 - (after[0] - before[0]) / max(1, after[1] - before[1])


def _ticks() -> tuple[int, int]:
    """Ticks of all cores without work, and all their ticks."""
    first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    spent = [int(each) for each in first.split()[1:9]]
    return spent[3] + spent[4], sum(spent)


def old(text: str, day: datetime.date) -> list[str]:
    """The sections with a table that is more than a year old on a day, or has no date."""
    found = []
    for section in text.split("\n## ")[1:]:
        dates = [datetime.date.fromisoformat(each) for each in DATE.findall(section)]
        tables = len(MARKED.findall(section)) or "\n|" in section
        if len(dates) < tables or any((day - each).days > 365 for each in dates):
            found.append(section.partition("\n")[0])
    return found
