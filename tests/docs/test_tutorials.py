"""The tutorials run from top to bottom."""

from pathlib import Path

import pytest

from tests.docs.notebooks import TUTORIALS, cells, run

NOTEBOOKS = sorted(path for path in TUTORIALS.glob("*.md") if path.stem != "index")
NEEDS = {"pre-trained": "tokenizers"}
"""Optional extras without which a tutorial is skipped."""


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem], reason="an optional extra")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    run(path)


def test_every_tutorial_has_code_and_is_in_the_index() -> None:
    index = (TUTORIALS / "index.md").read_text()
    assert len(NOTEBOOKS) >= 4
    for path in NOTEBOOKS:
        assert cells(path), path
        assert f"({path.name})" in index
        assert f"\n{path.stem}\n" in index
        # a fence that the pattern of cells does not know would not run
        assert path.read_text().count("{code-cell}") == len(cells(path)), path


def test_an_error_names_the_notebook_and_its_line(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# A\n\n```{code-cell} python\nx = 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as error:
        run(page)
    last = error.traceback[-1]
    assert (last.path, last.lineno + 1) == (page, 5)
