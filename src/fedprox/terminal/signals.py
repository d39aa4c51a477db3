"""Handling of signals that ask the process to end, at once, whatever the main thread is doing.

Python runs signal handlers in the main thread between two bytecodes. A compilation, or a call of a
compiled program, is a single bytecode and may take minutes. So a thread, woken by
`signal.set_wakeup_fd`, handles the signals; Python's handler only makes the main thread wait for
that thread.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""The signals that ask a process to end; Windows has no SIGHUP."""

PATIENCE = 1.0
"""Seconds that the main thread waits at most: the answer may need a lock that it holds."""

SHOW_CURSOR = b"\x1b[?25h"
"""Sent to a terminal before the process ends, because a progress bar hides the cursor."""

OnSignal = Callable[[signal.Signals], str | None]
"""Answers a signal: ends the process, or returns a line to log and lets the process continue.

If it returns None, the enclosing answer is called; the outermost is `end_now`.
"""

_tidying: list[Callable[[], object]] = []
"""Functions that `end_now` calls; global, as signal handlers are."""


class _Handler:
    """A signal handler that waits until the thread has answered the signal."""

    def __init__(self, answer: OnSignal) -> None:
        self.answer = answer
        self.answered = threading.Semaphore(0)

    def __call__(self, *_: object) -> None:
        self.answered.acquire(timeout=PATIENCE)


@contextmanager
def answering(answer: OnSignal) -> Iterator[None]:
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
