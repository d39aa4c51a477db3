"""The changes that `python -m tests.mutants` makes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import equivalents, mutants_of
from tests.mutants.changes import mutants


@pytest.mark.parametrize(
    ("source", "results"),
    [
        ("x = a < 1", ["x = a <= 1", "x = a >= 1", "x = a < 2"]),
        ("x = f(a, -b, c=d)", ["x = f(a, -b)", "x = f(-b, a, c=d)", "x = -b", "x = f(a, b, c=d)"]),
        ("x = min(a, b)", ["x = b", "x = max(a, b)"]),
        ("x = {'a': 0.0}", ["x = {}", "x = {'a': 1.0}", "x = {'aX': 0.0}"]),
        ("if a is None:\n    f()", ["if a is not None:\n    f()", "if a is None:\n    pass"]),
        ("require(a, f'{a} is wrong')", ["pass"]),
        ("assert a > 1\n__all__ = ['a']\nx = zip((), strict=True)\ny = 'for people'", ["x = ()"]),
        (
            "def f(a) -> bool:\n    a += 1\n    return a and b",
            [
                "def f(a) -> bool:\n    pass\n    return a and b",
                "def f(a) -> bool:\n    a += 2\n    return a and b",
                "def f(a) -> bool:\n    a += 1\n    return not (a and b)",
                "def f(a) -> bool:\n    a += 1\n    return a or b",
            ],
        ),
    ],
)
def test_a_mutant_has_one_change(source: str, results: list[str]) -> None:
    made = list(mutants("file.py", source))
    assert len({mutant.change for mutant in made}) == len(made)
    found = [mutant.source for mutant in made]
    if source.startswith("assert"):
        found = [text.split("\n")[2] for text in found]
    assert sorted(found) == sorted(results)


@pytest.mark.slow
def test_the_mutants_that_change_nothing_exist() -> None:
    known = equivalents()
    files = {file for file, _ in known}
    made = {(file, mutant.change) for file in files for mutant in mutants_of(file, texts=False)}
    assert known.keys() <= made


@pytest.mark.slow
def test_tests_that_cannot_be_collected_end_the_measurement(tmp_path: Path) -> None:
    tmp_path.joinpath("tests").mkdir()
    tmp_path.joinpath("tests/test_a.py").write_text("open('no such file')")
    code = f"""
from pathlib import Path
import tests.mutants.__main__ as campaign

campaign.ROOT = Path({str(tmp_path)!r})
campaign.reach_of(campaign.ROOT / "results")
"""
    tmp_path.joinpath("results").mkdir()
    root = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, env=root, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'no such file'" in ended.stderr
    assert not list(tmp_path.glob("results/reach/*"))
