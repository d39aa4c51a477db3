"""Bars of downloads and files: what a terminal is sent, and what a log is not."""

import os
import pty
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from fedprox import terminal as bar
from fedprox.terminal import Bar


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of a terminal that stderr writes to; reading does not wait."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    other, inner = pty.openpty()
    os.set_blocking(other, False)
    with os.fdopen(inner, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        yield other
        monkeypatch.undo()
    os.close(other)


def test_two_bars_stand_below_each_other_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as other:
        with Bar("loading the data"), Bar("train.gz", 200) as file:
            time.sleep(bar.BAR_REFRESH)
            file.update(50)
            time.sleep(5 * bar.BAR_REFRESH)
        assert bar._display is None
        text = os.read(other, 1 << 16).decode(errors="replace")
    assert "25%" in text
    assert text.index("loading the data") < text.index("train.gz")


def test_what_is_quick_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as other:
        with Bar("train.gz", 200, delay=60) as file:
            file.update(200)
        with pytest.raises(BlockingIOError):
            os.read(other, 1)


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
