"""The tutorials as Python: the code cells of MyST notebooks."""

import re
from pathlib import Path

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"

CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(path: Path) -> list[tuple[int, str]]:
    """The line above each code cell, and its code."""
    text = path.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in CELL.finditer(text)]


def run(path: Path) -> dict[str, object]:
    """Run the cells of a notebook from top to bottom, and return its names."""
    names: dict[str, object] = {"__name__": "__main__"}
    for line, code in cells(path):
        exec(compile("\n" * line + code, str(path), "exec"), names)
    return names
