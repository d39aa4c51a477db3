"""The threat model and its page on requests name a test for each claim, and these tests exist."""

import re
from pathlib import Path

from fedprox.deployment.wire import NodeWork, Request, Setup

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/concepts/threat-model.md"
REQUESTS = ROOT / "docs/development/requests.md"
NAMED = re.compile(r"`((?:\w+/)+test_\w+\.py)::(test_\w+)`")


def test_every_test_that_the_pages_name_exists() -> None:
    for page in (PAGE, REQUESTS):
        named = NAMED.findall(page.read_text(encoding="utf-8"))
        assert len(named) > 20
        for path, function in named:
            text = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert f"\ndef {function}(" in text, f"{path}::{function}"


def test_every_claim_of_a_table_names_a_test() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (PAGE, REQUESTS))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    tables = [i for i, line in enumerate(rows) if line.endswith("| Test |")]
    assert len(tables) == 5
    for begin in tables:
        claims = rows[begin + 2 :]
        end = next((i for i, line in enumerate(claims) if line.startswith("|---")), len(claims) + 1)
        for claim in claims[: end - 1]:
            assert NAMED.search(claim) or "(#differential-privacy)" in claim, claim


def test_every_field_of_a_request_has_a_line() -> None:
    """Whoever adds a field says what two answers that differ in it alone show."""
    lines = REQUESTS.read_text(encoding="utf-8").splitlines()
    first = [line.split("|")[1] for line in lines if line.startswith("| `")]
    listed = [name for cell in first for name in re.findall(r"`([\w.]+)`", cell)]
    fields = set(Request.model_fields) - {"setup", "work"}
    fields |= {f"setup.{name}" for name in Setup.model_fields}
    fields |= {f"work.{name}" for name in NodeWork.model_fields}
    assert len(listed) == len(set(listed))
    assert set(listed) == fields
