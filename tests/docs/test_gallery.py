"""The examples of the gallery run, each with a figure, and are short."""

import ast
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from fedprox.report.notebook_figure import NotebookFigure
from fedprox_docs.gallery import ORDER
from tests.docs.notebooks import run

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    plt.close("all")  # of tutorials that ran before
    names = run(path)
    drawn = len(plt.get_fignums())
    drawn += sum(isinstance(value, NotebookFigure) for value in names.values())
    plt.close("all")
    assert drawn == 1
    assert not list(tmp_path.iterdir())


def test_examples_are_short_and_ask_one_question() -> None:
    assert sorted(ORDER) == [path.stem for path in EXAMPLES]
    for path in EXAMPLES:
        text = path.read_text()
        told = ast.get_docstring(ast.parse(text))
        assert told is not None, path
        title, underline, _, *about = told.splitlines()
        assert underline == "=" * len(title), path
        assert "?" in " ".join(about) or path.stem == "diagnose", path
        code = text.split('"""', 2)[2]
        assert len([line for line in code.splitlines() if line.strip()]) <= 45, path
