"""The threat model names a test for each claim, and these tests exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/concepts/threat-model.md"
NAMED = re.compile(r"`((?:\w+/)+test_\w+\.py)::(test_\w+)`")


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 20
    for path, function in named:
        parsed = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
        functions = {node.name for node in parsed.body if isinstance(node, ast.FunctionDef)}
        assert function in functions, f"{path}::{function}"


def test_every_claim_of_a_table_names_a_test() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    tables = [i for i, line in enumerate(rows) if line.endswith("| Test |")]
    assert len(tables) == 3
    for begin in tables:
        claims = rows[begin + 2 :]
        end = next((i for i, line in enumerate(claims) if line.startswith("|---")), len(claims) + 1)
        for claim in claims[: end - 1]:
            assert NAMED.search(claim) or "(#differential-privacy)" in claim, claim
