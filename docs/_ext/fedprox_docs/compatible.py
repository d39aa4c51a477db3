"""The tables of what does not go together, from what refuses it."""

import re
from itertools import groupby

from fedprox.algorithms import ALGORITHMS
from fedprox.algorithms.capabilities import Capability
from fedprox.parts.compatible import ROWS, Chosen, Row
from fedprox_docs.methods import example, fixed


def page() -> str:
    """Tables of what methods fix, of settings beside what methods need, and beside each other."""
    of_methods = [row for row in ROWS if isinstance(row.first, Capability)]
    of_settings = [row for row in ROWS if isinstance(row.first, Chosen)]
    parts = [fixed(), "", "## Methods and settings", "", *_methods(of_methods)]
    parts += ["", "## Settings and settings", "", *_table("Setting", of_settings)]
    return "\n".join(parts)


def _methods(rows: list[Row]) -> list[str]:
    """What methods need, which methods need it, and what does not go with it."""
    found = {name: example(make) for name, make in ALGORITHMS.items()}
    lines = _table("What a method needs", rows)
    lines += ["", "| What a method needs | Methods |", "|---|---|"]
    for need in dict.fromkeys(row.first for row in rows):
        assert isinstance(need, Capability)
        names = [f"{{func}}`~fedprox.{name}`" for name, each in found.items() if need.of(each)]
        lines.append(f"| {need.words} | {', '.join(names) or 'some variants alone'} |")
    return lines


def _table(header: str, rows: list[Row]) -> list[str]:
    """Rows with the same first thing and reason as one, in Markdown."""
    lines = [f"| {header} | Does not go with | Why | Instead |", "|---|---|---|---|"]
    for (first, why), group in groupby(rows, lambda row: (row.first, row.why)):
        seconds = [row.second for row in group]
        words = first.words if isinstance(first, Capability) else name_of(first)
        instead = "; ".join(dict.fromkeys(each.instead for each in seconds))
        cells = (words, ", ".join(map(name_of, seconds)), why, instead)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def name_of(setting: Chosen) -> str:
    """A setting without the values of a case; keys as code.

    >>> name_of(Chosen("privacy.unit", "client")), name_of(Chosen("", words="a run of {case.at}"))
    ('`privacy.unit = "client"`', 'a run of ...')
    """
    if setting.key and not setting.words:
        return f"`{setting.name}`"
    words = re.sub(r"\{[^}]*\}", "...", setting.name)
    return re.sub(r'[a-z_]+\.[a-z_]+( = "\w+")?', r"`\g<0>`", words)
