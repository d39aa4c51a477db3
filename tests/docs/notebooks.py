"""The code of tutorials, which are MyST notebooks, and of the gallery's examples."""

import re
from pathlib import Path

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"

CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def cells(path: Path) -> list[tuple[int, str]]:
    """The line above each code cell, and its code; the whole file if it is Python."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [(0, text)]
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in CELL.finditer(text)]


def shortened(code: str) -> str:
    """With a tenth of the rounds, of one epoch each: that code runs needs no long training."""
    code = re.sub(r"\bepochs=\d+", "epochs=1", code)
    return re.sub(
        r"\b(rounds=|every=|history\[)(\d+)",
        lambda found: f"{found[1]}{-(-int(found[2]) // 10)}",
        code,
    )


def run(path: Path) -> dict[str, object]:
    """Run the cells of a page from top to bottom, shortened, and return its names."""
    names: dict[str, object] = {"__name__": "__main__"}
    for line, code in cells(path):
        exec(compile("\n" * line + shortened(code), str(path), "exec"), names)
    return names
