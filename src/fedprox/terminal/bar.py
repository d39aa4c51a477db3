"""Progress bars for the work before training: downloading and reading files."""

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from fedprox.terminal.output import safe_stream

REFRESH = 0.1
"""Seconds between updates of a bar."""

_display: Progress | None = None
"""The display of all current bars; None if there are none."""


class Bar:
    """A progress bar that disappears when it is closed. It is shown only on a terminal.

    pooch accepts it as a progress bar, with the amounts `done` and `total`, None or 0 if unknown.
    """

    def __init__(self, name: str, total: int | None = None, *, delay: float = 0.0) -> None:
        """Start a bar, which appears after `delay` seconds, so that quick work shows none."""
        self.done, self.total, self._name = 0, total, name
        self._next = time.monotonic() + delay
        self._task: TaskID | None = None
        self.update(0)

    def update(self, count: int) -> None:
        """Add `count` to the amount done."""
        self.done += count
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + REFRESH
        display = _displayed()
        if self._task is None:
            self._task = display.add_task(self._name, total=None)
        display.update(self._task, completed=self.done, total=self.total or None)

    def reset(self) -> None:
        """Count from 0 again."""
        self.done = 0

    def close(self) -> None:
        """Remove the bar from the terminal."""
        global _display
        if self._task is not None and _display is not None:
            _display.remove_task(self._task)
            self._task = None
            if not _display.tasks:
                _display.stop()
                _display = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _displayed() -> Progress:
    """The display on the terminal, started if there is none."""
    global _display
    if _display is None:
        stream = safe_stream(sys.stderr)
        console = Console(file=stream)
        _display = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            console=console,
            transient=True,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            disable=not stream.isatty() or console.is_dumb_terminal or console.is_jupyter,
        )
        _display.start()
    return _display
