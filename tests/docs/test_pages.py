"""Pages agree with the library: their files in TOML parse, their tables name everything."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedprox.algorithms import ALGORITHMS
from fedprox.datasets import DATASETS
from fedprox.deployment.node_file import NodeFile, SuperLinkFile
from fedprox.deployment.policy import Policy
from fedprox.experiment import DEPLOYED, keys_of, parse
from fedprox.models import MODELS

ROOT = Path(__file__).parents[2]

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

BASE: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "synthetic"},
    "cohort": {"clients_per_round": 2},
    "solver": {"learning_rate": 0.1, "batch_size": 10, "epochs": 1},
    "method": [{"name": "fedavg"}],
}
"""What a snippet with some sections is put into."""

CATALOGUES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "data": DATASETS,
    "model": MODELS,
    "method": ALGORITHMS,
}

BESIDES = {
    *("name", "frozen", "lora", "loss", "mixed_precision", "skew"),
    *("solver", "optimizer", "optimizer_options"),
    *("server", "stragglers", "average", "model_state"),
}
"""Keys of a section that are no arguments of the function that it names."""


def snippets() -> list[Any]:
    """Each block of TOML on a page, by where it is."""
    blocks = []
    for page in PAGES:
        if "_build" in page.parts:
            continue
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, found.start()) + 1
            blocks.append(pytest.param(found[1], id=f"{page.relative_to(ROOT)}:{line}"))
    return blocks


def unknown_keys(kind: str, section: Mapping[str, Any]) -> list[str]:
    """Keys that the function that a section names does not have."""
    name = section.get("name", "table")  # which a section with a table needs not
    if ":" in name or name == DEPLOYED:  # a function of the reader's own, or data on nodes
        return []
    return sorted(section.keys() - BESIDES - keys_of(CATALOGUES[kind][name]).keys())


def test_one_sentence_says_what_the_library_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for page in ("README.md", "docs/index.md"):
        title, sentence, _ = (ROOT / page).read_text(encoding="utf-8").split("\n\n", 2)
        assert title == "# fedprox"
        assert " ".join(sentence.split()) == project["description"]


@pytest.mark.parametrize("text", snippets())
def test_snippets_parse(text: str) -> None:
    table = tomllib.loads(text)
    if "key" in table:
        node = NodeFile.model_validate(table)
        assert unknown_keys("data", node.data) == []
        return
    if "policy" in table:
        Policy.model_validate(table["policy"])
        return
    if "secret" in table:
        SuperLinkFile.model_validate(table)
        return
    whole = BASE.keys() <= table.keys()
    experiment = parse("snippet", table if whole else BASE | table)
    sections = [("data", experiment.data), ("model", experiment.model)]
    for kind, section in [*sections, *(("method", method) for method in experiment.method)]:
        assert unknown_keys(kind, section) == []


def test_a_wrong_key_is_found() -> None:
    assert unknown_keys("data", {"name": "synthetic", "alhpa": 1.0}) == ["alhpa"]
    assert unknown_keys("method", {"name": "fedprox", "mu": 1.0, "solver": {}}) == []


def test_pages_have_snippets() -> None:
    assert len(snippets()) > 15


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/howto/data.md", DATASETS),
        ("docs/howto/models.md", MODELS),
    ],
)
def test_tables_name_everything_that_files_can_name(page: str, names: Iterable[str]) -> None:
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
    cells = " ".join(row.split("|")[1] for row in rows)
    named = {name.rpartition(".")[2] for name in re.findall(r"`~?([\w.-]+)`", cells)}
    assert set(names) <= named
