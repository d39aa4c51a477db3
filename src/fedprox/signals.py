"""Signals that ask the process to end, answered at once whatever the main thread is doing.

Python runs signal handlers in the main thread between two bytecodes, and a compilation or a call of
a compiled program may take minutes between two. So a thread answers them, woken by
`signal.set_wakeup_fd`, and the handler itself only makes the main thread wait for the answer.
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
"""Seconds that the main thread waits for an answer: it may hold a lock that the answer needs."""

SHOW_CURSOR = b"\x1b[?25h"
"""What a terminal is sent in the end, as a progress bar hides the cursor."""

Answer = Callable[[signal.Signals], str | None]
"""What is done about a signal: end the process, or return a line to log and go on.

None leaves the signal to the answer that was in force before, which in the end is `end_now`.
"""

_tidying: list[Callable[[], object]] = []
"""What `end_now` calls; of the process, like the signals' handlers."""


class _Handler:
    """A handler of signals, which knows the answer given in the thread."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.answered = threading.Semaphore(0)

    def __call__(self, *_: object) -> None:
        self.answered.acquire(timeout=PATIENCE)


@contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """Answer SIGINT, SIGTERM and SIGHUP within `with`, but for those that are ignored (`nohup`).

    Args:
        answer: Called in a thread of its own with each signal.
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
    """Call a function if the process ends within `with` by `end_now`; it may raise OSError."""
    _tidying.append(tidy)
    try:
        yield
    finally:
        _tidying.remove(tidy)


def end_now(number: signal.Signals, message: str | None = None) -> NoReturn:
    """End the process from any thread, with the exit status of the signal and a line on stderr.

    Args:
        number: The signal.
        message: The line; what ended the process where left out.
    """
    for tidy in reversed(_tidying):
        with suppress(OSError):
            tidy()
    with suppress(OSError):  # not `print`: another thread may hold its lock
        if os.isatty(2):
            os.write(2, SHOW_CURSOR + b"\n")
        os.write(2, f"fedprox: {message or ended_by(number)}\n".encode(errors="backslashreplace"))
    os._exit(128 + number)


def ended_by(number: signal.Signals) -> str:
    """What ended a process, in words.

    >>> ended_by(signal.SIGINT), ended_by(signal.SIGTERM)
    ('interrupted', 'ended by SIGTERM')
    """
    return "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
