"""The process and its terminal: output, progress bars, signals.

Python runs signal handlers in the main thread between two bytecodes. A compilation, or a call of a
compiled program, is a single bytecode and may take minutes. So a thread, woken by
`signal.set_wakeup_fd`, handles the signals; Python's handler only makes the main thread wait for
that thread.
"""

import io
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from fedprox.errors import printable


def standard_console() -> Console:
    """A console on stdout, 120 columns wide unless it is a terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, markup=False)


def say(message: str) -> None:
    """Print a message in one line to stderr."""
    print(f"fedprox: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


class _SafeFile(io.FileIO):
    """A file that drops what it cannot write instead of raising OSError."""

    def __init__(self, number: int, lost: Callable[[OSError], None]) -> None:
        super().__init__(number, "w", closefd=False)
        self.lost: Callable[[OSError], None] | None = lost

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or len(content)
        except OSError as error:
            lost, self.lost = self.lost, None  # reported once
            if lost is not None:
                lost(error)
            return len(content)


def safe_stream(stream: TextIO | None, lost: Callable[[OSError], None] = lambda _: None) -> TextIO:
    """A stream that writes to the file of another and drops what cannot be written.

    Characters that the encoding lacks are written as escapes. The stream is flushed after each
    line.

    Without a stream (None) output is discarded; one without a file is returned unchanged. `lost` is
    called with the first error.
    """
    if stream is None:
        return io.StringIO()  # discards the output
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return stream
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_SafeFile(number, lost)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )


@contextmanager
def safe_streams() -> Iterator[None]:
    """Replace stdout and stderr by safe streams; report the loss of stdout on stderr."""
    before = sys.stdout, sys.stderr

    def report(error: OSError) -> None:
        line = f"fedprox: stdout: {error.strerror}; the command continues without it"
        print(line, file=sys.stderr)

    sys.stdout, sys.stderr = safe_stream(sys.stdout, report), safe_stream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


BAR_REFRESH = 0.1
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
        self._next = time.monotonic() + BAR_REFRESH
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


ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""The signals that ask a process to end; Windows has no SIGHUP."""

LONGEST_WAIT = 1.0
"""Seconds that the main thread waits at most: the answer may need a lock that it holds."""

SHOW_CURSOR = b"\x1b[?25h"
"""Sent to a terminal before the process ends, because a progress bar hides the cursor."""

SignalAnswer = Callable[[signal.Signals], str | None]
"""Answers a signal: ends the process, or returns a line to log and lets the process continue.

If it returns None, the enclosing answer is called; the outermost is `end_now`.
"""

_tidying: list[Callable[[], object]] = []
"""Functions that `end_now` calls; global, as signal handlers are."""


class _Handler:
    """A signal handler that waits until the thread has answered the signal."""

    def __init__(self, answer: SignalAnswer) -> None:
        self.answer = answer
        self.answered = threading.Semaphore(0)

    def __call__(self, *_: object) -> None:
        self.answered.acquire(timeout=LONGEST_WAIT)


def setting_once(event: threading.Event, what: str) -> SignalAnswer:
    """An answer that sets an event and says what follows; the next signal is passed on."""

    def answer(number: signal.Signals) -> str | None:
        if event.is_set():
            return None
        event.set()
        return f"{number.name}: {what}"

    return answer


@contextmanager
def answering(answer: SignalAnswer) -> Iterator[None]:
    """Answer SIGINT, SIGTERM and SIGHUP within `with`, except those that are ignored (`nohup`).

    `answer` is called in a separate thread.
    """
    before = {number: signal.getsignal(number) for number in ENDING}
    before = {number: old for number, old in before.items() if old is not signal.SIG_IGN}

    def answer_or_pass_on(number: signal.Signals) -> str | None:
        line = answer(number)
        if line is None:
            old = before[number]
            return old.answer(number) if isinstance(old, _Handler) else end_now(number)
        return line

    handler = _Handler(answer_or_pass_on)
    woken, waking = socket.socketpair()
    waking.setblocking(False)

    def watch() -> None:
        while number := woken.recv(1):
            if number[0] in before:
                try:
                    line = answer_or_pass_on(signal.Signals(number[0]))
                except Exception as error:  # with this thread, all later signals would be lost
                    ended = signal.Signals(number[0])
                    end_now(ended, f"{ended_by(ended)}; {' '.join(str(error).split())}")
                finally:
                    handler.answered.release()
                if line:
                    logging.getLogger(__name__).warning("%s", line)

    watching = threading.Thread(target=watch, name="signals", daemon=True)
    watching.start()
    other = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        signal.set_wakeup_fd(other)
        waking.close()
        watching.join()
        woken.close()


@contextmanager
def tidied(tidy: Callable[[], object]) -> Iterator[None]:
    """Call `tidy`, which may raise OSError, if `end_now` ends the process within `with`."""
    _tidying.append(tidy)
    try:
        yield
    finally:
        _tidying.remove(tidy)


def end_now(number: signal.Signals, message: str | None = None) -> NoReturn:
    """End the process from any thread, with the exit status of the signal and a line on stderr."""
    for tidy in reversed(_tidying):
        with suppress(OSError):
            tidy()
    with suppress(OSError):  # not `print`: another thread may hold its lock
        if os.isatty(2):
            os.write(2, SHOW_CURSOR + b"\n")
        os.write(2, f"fedprox: {message or ended_by(number)}\n".encode(errors="backslashreplace"))
    os._exit(128 + number)


def ended_by(number: signal.Signals) -> str:
    """The signal that ended the process, in words.

    >>> ended_by(signal.SIGINT), ended_by(signal.SIGTERM)
    ('interrupted', 'ended by SIGTERM')
    """
    return "interrupted" if number == signal.SIGINT else f"ended by {number.name}"


class Stopped(Exception):  # noqa: N818 (it is no error)
    """A comparison was stopped by a signal, after it wrote a checkpoint.

    Attributes:
        where: The last round, as text for messages.
        folder: The folder of the checkpoint.
        signal: The signal that the process received.
    """

    def __init__(self, where: str, folder: Path, signal: signal.Signals) -> None:
        super().__init__(f"stopped {where}")
        self.where, self.folder, self.signal = where, folder, signal
