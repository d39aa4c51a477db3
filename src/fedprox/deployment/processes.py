"""Child processes that end with the process that started them."""

import contextlib
import importlib
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# This file is also the script that every child runs. It imports no other module of the package, so
# that a child loads only what it needs.

GRACE = 10.0
"""Seconds from the request to end until a process is killed."""


class Child(NamedTuple):
    """A Python program to run in a process of its own.

    Attributes:
        entry: `module:function` as in an entry point, or `file.py:function`.
        arguments: The command line without the program's name.
        log: The file to which standard output and standard error are appended.
        environment: Environment variables besides those of this process.
    """

    entry: str
    arguments: Sequence[str]
    log: Path
    environment: Mapping[str, str] = {}


@contextlib.contextmanager
def running(programs: Sequence[Child]) -> Iterator[Sequence["subprocess.Popen[bytes]"]]:
    """Start programs, and end those that still run when the context ends.

    A program gets SIGTERM, and SIGKILL after `GRACE` seconds. It gets SIGTERM also when this
    process ends without leaving the context, for instance by SIGKILL. An interrupt at the terminal
    does not reach the programs: they end when this process leaves the context.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for program in programs:
            processes.append(_start(program))  # noqa: PERF401 - each is ended if the next fails
        yield processes
    finally:
        end(processes)


def _start(program: Child) -> "subprocess.Popen[bytes]":
    """Start a program through `main`."""
    command = [sys.executable, "-P", __file__, str(os.getpid()), program.entry, *program.arguments]
    with program.log.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **program.environment},
            process_group=0,
        )


def end(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End processes: SIGTERM to all, then SIGKILL to those that stay, also on an interrupt."""
    try:
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + GRACE
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def tail(log: Path, lines: int = 10) -> str:
    """The last lines of a log file."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 10_000))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def main() -> None:
    """Run the program that the command line names, until it or the parent ends."""
    parent, entry, *arguments = sys.argv[1:]
    threading.Thread(target=_follow, args=(int(parent),), daemon=True).start()
    origin, _, function = entry.rpartition(":")
    sys.argv = [function, *arguments]
    names = (
        runpy.run_path(origin) if origin.endswith(".py") else vars(importlib.import_module(origin))
    )
    sys.exit(names[function]())


def _follow(parent: int) -> None:
    """End this process when it has lost its parent."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


if __name__ == "__main__":
    main()
