"""No instruction installs the package by its name: it is on no index, where anyone may take it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FOLDERS = ("deploy", "docs", "src", "examples", "tests", "benchmarks")
NAMES = ("Dockerfile",)
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "pyproject.toml")

BY_NAME = re.compile(
    r"""fedprox\[\w                        # the name with an extra, as pip takes it
    |\b(pip3?|pipx|uv|poetry|conda|mamba)\b # or a command that installs or fetches
    [^\n]*\b(install|add|download)\b[^\n]*[ '"]fedprox(?![\w/.*-])""",  # the name, and no file
    re.VERBOSE,
)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('pip install "fedprox[flower]"', True),
        ("venv/bin/pip install --upgrade fedprox", True),
        ("uv add fedprox==1.0", True),
        ("needs fedprox[huggingface]", True),
        ('pip install ".[flower]"', False),
        ('pip install "$(echo fedprox-*.whl)[flower]"', False),
        ("pip install 'dist/fedprox-0.3.0-py3-none-any.whl[flower]'", False),
        ("/srv/fedprox/venv/bin/pip install .", False),
    ],
)
def test_what_counts_as_by_name(line: str, wrong: bool) -> None:
    assert bool(BY_NAME.search(line)) is wrong


def test_nothing_says_to_install_the_name_from_an_index() -> None:
    paths = [ROOT / name for name in FILES]
    for folder in FOLDERS:
        kinds = (".py", ".md", ".toml", ".sh", ".txt", ".ipynb", ".cfg", ".yml", ".yaml", ".jinja")
        found_there = (ROOT / folder).rglob("*")
        paths += [each for each in found_there if each.suffix in kinds or each.name in NAMES]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in paths
        if path != Path(__file__)
        for line in path.read_text(encoding="utf-8").splitlines()
        if BY_NAME.search(line)
    ]
    assert not found
