"""What is said of other frameworks names its version and its file, and the README agrees."""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PAGE = (ROOT / "docs/concepts/comparison.md").read_text(encoding="utf-8")

README = (ROOT / "README.md").read_text(encoding="utf-8")


def tables() -> list[dict[str, str]]:
    """The page's tables whose rows are frameworks: the rest of each row, by its first cell."""
    found = re.findall(r"^\| \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [
        {cells[1].strip(" []").partition("]")[0]: cells[2] for cells in rows}
        for rows in ([line.split("|", 2) for line in table.splitlines()] for table in found)
    ]


def test_each_row_names_a_version_and_each_claim_a_file_or_page() -> None:
    read, *claims = tables()
    assert len(read) == 8
    for name, row in read.items():
        assert re.search(r"\d{4}", row), name
        assert re.search(r"package|README", row), name
    assert len(claims) == 2
    for table in claims:
        assert [name for name in table if name != "fedprox"] == list(read)
        for name, row in table.items():
            assert re.search(r"\]\(|`[\w/.*-]+/[\w/.*-]+`|README|none found", row), name


def test_the_readme_has_the_pages_versions() -> None:
    read = tables()[0]
    header = next(line for line in README.splitlines() if line.startswith("| | fedprox |"))
    named = dict(re.findall(r"\[([\w-]+)\]\([^)]*\) ([\d.]+)", header))
    assert named.keys() >= {"Flower", "pfl-research", "FedJAX"}
    for name, version in named.items():
        assert re.search(rf" {re.escape(version)}[., ]", read[name]), name
    assert "longer comparison](docs/concepts/comparison.md)" in README


def test_flowers_row_is_of_the_version_that_the_lock_has() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    (version,) = re.findall(r"^flwr==(\S+)", lock, re.MULTILINE)
    assert f"flwr {version}," in tables()[0]["Flower"]
    package = importlib.util.find_spec("flwr")
    if package is None or package.origin is None or importlib.metadata.version("flwr") != version:
        pytest.skip(f"flwr {version} is not installed")
    folder = Path(package.origin).parents[1]
    paths = set(re.findall(r"`(flwr/[\w/.*]+)`", PAGE))
    assert len(paths) > 5
    assert not [path for path in sorted(paths) if not list(folder.glob(path))]
    for new in ("flwr/serverapp", "flwr/clientapp"):  # secure sums are said to be elsewhere alone
        code = "".join(p.read_text(encoding="utf-8") for p in (folder / new).rglob("*.py"))
        assert "secagg" not in code.lower()
