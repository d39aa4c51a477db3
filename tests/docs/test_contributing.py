"""CONTRIBUTING's example of a new method is done as the page says, in a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

TREE = ("src", "tests", "docs", "experiments", "benchmarks", "examples")
"""The folders that the tests of a new method read."""

CLOSED_FORMS = "tests/algorithms/test_closed_forms.py"

OF_A_METHOD = (
    "src/fedprox/algorithms/momentum.py",
    "tests/algorithms/test_momentum.py",
    f"{CLOSED_FORMS}::test_every_method_has_a_variant_for_the_tests_of_all_methods",
    f"{CLOSED_FORMS}::test_a_label_is_the_name_the_variant_and_the_numbers",
    "tests/experiment/test_named.py",
    "tests/project/test_docstrings.py",
    "tests/project/test_house.py",
    "tests/docs/test_reference.py",
)
"""The new files, and tests of those that step 6 names which depend on the methods."""


def block(language: str, first: str) -> str:
    """The code block of the page that begins with some words, without its indentation."""
    pattern = rf"^( *)```{language}\n(\1{re.escape(first)}.*?)^\1```"
    found = re.search(pattern, PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return re.sub(rf"^{found[1]}", "", found[2], flags=re.MULTILINE)


def enter(file: Path, before: str, line: str) -> None:
    """Enter a line before each one that another line begins with; there is at least one."""
    text = file.read_text(encoding="utf-8")
    entered, count = re.subn(rf"^(?={re.escape(before)})", f"{line}\n", text, flags=re.MULTILINE)
    assert count, f"{file}: no line begins with {before!r}"
    file.write_text(entered, encoding="utf-8")


def python(tree: Path, *command: str) -> None:
    """Run a module of Python in a tree, whose own package it imports; it succeeds."""
    path = os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": path, "MYPYPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


@pytest.mark.slow
def test_the_new_method_in_contributing_passes_the_tests_that_the_page_names(
    tmp_path: Path,
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)
    for name in TREE:
        ignored = shutil.ignore_patterns("__pycache__", "_build", ".*_cache")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    package, algorithms = tree / "src/fedprox", tree / "src/fedprox/algorithms"

    (algorithms / "momentum.py").write_text(block("python", '"""FedAvg with momentum'))
    enter(
        algorithms / "__init__.py",
        "from fedprox.algorithms.moon ",
        "from fedprox.algorithms.momentum import momentum",
    )
    enter(algorithms / "__init__.py", '    "centralised": ', '    "momentum": momentum,')
    enter(algorithms / "__init__.py", '    "moon",', '    "momentum",')
    enter(package / "__init__.pyi", "    moon,", "    momentum,")
    enter(package / "__init__.pyi", '    "moon",', '    "momentum",')
    (tree / "tests/algorithms/test_momentum.py").write_text(block("", '"""Momentum on the server'))
    enter(
        tree / "tests/catalogue.py",
        '    "centralised": ',
        '    "momentum": Variant("momentum beta=0.9", "momentum"),',
    )

    new = [
        algorithms,
        package / "__init__.pyi",
        tree / "tests/algorithms",
        tree / "tests/catalogue.py",
    ]
    python(tree, "ruff", "check", "--no-cache", *map(str, new))
    python(tree, "ruff", "format", "--check", "--no-cache", *map(str, new))
    python(tree, "pytest", "-n", "0", "-q", "-m", "not slow", *OF_A_METHOD)
    if (ROOT / ".mypy_cache").exists():  # of `make lint`, from which only the new files differ
        shutil.copytree(ROOT / ".mypy_cache", tree / ".mypy_cache")
    python(tree, "mypy", *OF_A_METHOD[:2])
    assert not (ROOT / "src/fedprox/algorithms/momentum.py").exists()
