"""Tables of benchmarks are written into their README, and nothing else in it changes."""

import datetime
import re
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.__main__ import ALL, run
from experiments.engine.machine import today

FOLDER = Path(page.__file__).parent

TEXT = page.README.read_text(encoding="utf-8")

PAGE = """# Speed

## One

<!-- table: one -->

2026-01-02, a machine. `python -m benchmarks.one`

| old |
|---|
| 1 |

<!-- end -->

* A bullet.

## Two

<!-- table: two --flag -->
<!-- end -->
"""


@pytest.fixture
def readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "README.md"
    file.write_text(PAGE)
    monkeypatch.setattr(page, "README", file)
    return file


def test_a_table_is_written_between_its_markers_and_nothing_else_changes(readme: Path) -> None:
    page.write("two --flag", "| new |\n|---|\n| 2 |\n", ("numpy", "no-such-package"), 0.1)
    before, _, after = PAGE.partition("<!-- table: two --flag -->\n")
    written = readme.read_text()
    assert written.startswith(before)
    assert written.endswith(
        "`python -m benchmarks.two --flag`\n\n| new |\n|---|\n| 2 |\n\n" + after
    )
    made = re.search(r"^(\d{4}-\d\d-\d\d), .*, python \d.*, jax \d.*, numpy \d.*", written, re.M)
    assert made is not None
    assert made[1] == today()
    assert "busy" not in written
    assert "no-such-package" not in written


def test_writing_again_replaces_the_table_and_says_that_the_machine_was_busy(readme: Path) -> None:
    page.write("one", "| a |\n|---|\n", (), 0.0)
    once = readme.read_text()
    page.write("one", "| a |\n|---|\n", (), 0.0)
    assert readme.read_text() == once
    assert "| old |" not in once
    page.write("one", "| a |\n|---|\n", (), 0.5)
    assert "busy (other processes used 50% of the cores)" in readme.read_text()


def test_a_missing_marker_is_one_clear_line(readme: Path) -> None:
    with pytest.raises(SystemExit, match=r"README.md lacks the line <!-- table: three -->"):
        page.write("three", "", (), 0.0)
    assert readme.read_text() == PAGE


def test_markdown_has_title_caption_sides_and_escaped_cells() -> None:
    shown = page.table("name", "a|b", title="milliseconds")
    shown.add_row("x | y", "1.5")
    shown.caption = "idle"
    assert page.markdown(shown) == (
        "Milliseconds; idle:\n\n| name | a\\|b |\n|---|---:|\n| x \\| y | 1.5 |\n"
    )


def test_tables_are_printed_and_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = page.table("n", left=0)
    page.add(shown, "7")
    assert capsys.readouterr().out == "7\n"
    page.show(shown)
    assert capsys.readouterr().out.split() == ["n", "7"]
    monkeypatch.setenv(page.TABLES, str(tmp_path / "tables.md"))
    page.show(shown, shown)
    assert (tmp_path / "tables.md").read_text() == "\n".join([page.markdown(shown)] * 2)


def test_missing_data_end_a_script_only_if_its_tables_are_for_the_readme(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(page.TABLES, raising=False)
    page.leave_out("MNIST", ValueError("no files"))
    assert capsys.readouterr().err == "MNIST is left out: no files\n"
    monkeypatch.setenv(page.TABLES, "tables.md")
    with pytest.raises(SystemExit, match="MNIST: no files"):
        page.leave_out("MNIST", ValueError("no files"))


def test_a_script_that_fails_leaves_its_old_table(
    readme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALL, "one", ALL["clients"])  # there is no such script
    monkeypatch.setattr("benchmarks.__main__.load", lambda: 0.0)
    assert not run("one")
    assert readme.read_text() == PAGE


def test_sections_whose_table_is_old_or_has_no_date_are_listed() -> None:
    assert page.old(PAGE, datetime.date(2027, 1, 2)) == ["Two"]
    assert page.old(PAGE, datetime.date(2027, 1, 3)) == ["One", "Two"]


def test_every_command_has_its_script_and_its_marker() -> None:
    assert {name.split()[0] for name in ALL} <= {file.stem for file in FOLDER.glob("*.py")}
    assert sorted(found[1] for found in page.MARKED.finditer(TEXT)) == sorted(ALL)
    assert TEXT.count("<!-- ") == 2 * len(ALL)


def test_every_script_that_shows_tables_is_in_the_list() -> None:
    showing = {
        file.stem
        for file in FOLDER.glob("*.py")
        if re.search(r"^    +show\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert showing == {name.split()[0] for name in ALL}
