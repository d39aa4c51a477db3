"""What is printed: streams that break, encodings that lack characters, progress, and bars."""

import io
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import pytest
from rich.console import Console

from fedprox import terminal as bar
from fedprox.errors import printable
from fedprox.loop import following
from fedprox.loop.following import Progress, showing
from fedprox.report.table import table
from fedprox.terminal import Bar, safe_stream
from tests.report.test_report import make_run

ENTRY = [sys.executable, "-c", "from _fedprox import main; main()"]


@pytest.mark.slow
def test_hostile_streams_cost_neither_the_status_nor_a_traceback(tmp_path: Path) -> None:
    """A full disk behind stdout, then ASCII; stderr is closed, so that nothing can be said."""
    command = [*ENTRY, "report", "nothing"]
    plain = os.environ | {"PYTHONUTF8": "0", "LC_ALL": "C"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*ENTRY, "examples"], stdout=full, stderr=subprocess.PIPE, text=True, env=plain
        )
    assert done.returncode == 0
    assert done.stderr == (
        "fedprox: stdout: No space left on device; the command continues without it\n"
    )
    shell = f"exec {' '.join(map(repr, command))} >&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], check=False, cwd=tmp_path).returncode == 2
    assert not list(tmp_path.iterdir())


def test_a_stream_escapes_what_its_encoding_lacks_and_says_a_loss_once() -> None:
    reader, writer = os.pipe()
    errors: list[OSError] = []
    with os.fdopen(writer, "w", encoding="ascii") as pipe:
        stream = safe_stream(pipe, errors.append)
        print("0.7 ± 0.1", file=stream)
        assert os.read(reader, 100) == b"0.7 \\xb1 0.1\n"
        os.close(reader)
        for _ in range(3):
            print("lost", file=stream)
        assert [type(error) for error in errors] == [BrokenPipeError]
    safe_stream(None).write("nowhere")
    memory = io.StringIO()
    assert safe_stream(memory) is memory


def test_names_cannot_control_the_terminal() -> None:
    assert printable(Path("runs/\x1b[31m\nx ±")) == r"runs/\x1b[31m\nx ±"


def test_a_table_for_forty_columns_has_every_digit() -> None:
    shown = io.StringIO()
    Console(file=shown, width=40).print(table([make_run("fedprox mu=0.001 epochs=20")]))
    columns = shown.getvalue()
    assert "…" not in columns
    assert max(map(len, columns.splitlines())) <= 40


NOW = Progress("fedprox mu=1", 0, 0, 10)


def until(condition: Callable[[], object]) -> None:
    begin = time.perf_counter()
    while not condition():
        assert time.perf_counter() - begin < 20
        time.sleep(0.01)


def test_a_log_gets_lines_and_a_short_run_none(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with showing(True) as report:
        report(NOW)
    assert log.getvalue() == ""
    monkeypatch.setattr(following, "FIRST_LINE", 0.01)
    monkeypatch.setattr(following, "NEXT_LINE", 0.01)
    with showing(True) as report:
        report(NOW._replace(phase="compiling"))
        until(lambda: "fedprox mu=1, seed 0: compiling\n" in log.getvalue())
        report(NOW)
        report(NOW._replace(round=5, loss=0.25))
        until(lambda: "seed 0: round 5 of 10, loss 0.2500, 0 s left\n" in log.getvalue())
        log.close()
        report(NOW)


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> Iterator[io.FileIO]:
    """The other end of a terminal that stderr writes to."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    other, inner = pty.openpty()
    with io.FileIO(other) as end, os.fdopen(inner, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield end
        monkeypatch.undo()


@pytest.mark.parametrize("columns", [120, 40])
def test_a_terminal_gets_bars(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its other end goes before the end."""
    text = ""
    with terminal(monkeypatch, columns) as other, showing(True) as report:
        report(NOW)
        report(NOW._replace(round=10, loss=0.25))
        while "10/10" not in text:
            text += other.read(4096).decode(errors="replace")
        other.close()
    assert "seed 0" in text
    assert "loss 0.2500" in text
    assert "diverged" not in text


def test_a_notebook_gets_one_output_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Output:
        shown: list[Any] = []  # noqa: RUF012

        def update(self, bars: Any) -> None:
            self.shown.append(bars)

    module: Any = ModuleType("IPython.display")
    module.display = lambda *_, **__: Output()
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with showing(True) as report:
        report(NOW)
        report(NOW._replace(round=10, loss=0.25))
    text = io.StringIO()
    Console(file=text, width=120, force_jupyter=False).print(Output.shown[-1])
    assert "10/10" in text.getvalue()
    assert "loss 0.2500" in text.getvalue()
    assert "text/plain" in Output.shown[-1]._repr_mimebundle_([], [])


def test_two_bars_stand_below_each_other_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as other:
        with Bar("loading the data"), Bar("train.gz", 200) as file:
            time.sleep(bar.BAR_REFRESH)
            file.update(50)
            time.sleep(5 * bar.BAR_REFRESH)
        assert bar._display is None
        text = other.read(1 << 16).decode(errors="replace")
    assert "25%" in text
    assert text.index("loading the data") < text.index("train.gz")


def test_what_is_quick_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as other:
        with Bar("train.gz", 200, delay=60) as file:
            file.update(200)
        os.set_blocking(other.fileno(), False)
        assert other.read(1) is None


@pytest.mark.parametrize("closed", [False, True])
def test_without_a_terminal_nothing_is_shown(
    closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "log").open("w") as log:
        stream: TextIO | None = None if closed else log
        monkeypatch.setattr(sys, "stderr", stream)
        with Bar("train.gz", 10) as file:
            file.update(10)
        monkeypatch.undo()
    assert (tmp_path / "log").read_text() == ""
