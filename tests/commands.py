"""The command in a process of its own, forked from a server that has imported everything."""

import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedprox.errors import page_of

IMPORTED = (
    *("pytest", "fedprox.cli", "fedprox.commands.run", "jinja2", "pooch", "scipy.special"),
    *("fedprox.model.batch_norm", "fedprox.model.flax_functions"),
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.figure"),
)
"""What a run imports; modules that are imported when they are needed, too.

No module of `tests`: the server begins in whatever folder a test is in, where that name is a
package that others have installed.
"""


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Spend no time on planning 256 rounds, or on waiting for the disk.

    The first takes most of a run's whose programs are kept, the second half of a short deployment.
    A process that is killed loses nothing that it has written.
    """
    patch.setattr("fedprox.engine.compiled.layout.SAMPLE_ROUNDS", (8, 32))
    patch.setattr(os, "fsync", lambda _: None)


def draw_nothing(patch: pytest.MonkeyPatch) -> None:
    """Have run directories hold an empty figure: drawing takes most of the time of a short run."""

    def empty(_: object) -> Any:
        from matplotlib.figure import Figure

        return Figure(figsize=(1, 1))

    patch.setattr("fedprox.report.directory.figure", empty)


def start(
    output: Path, arguments: list[str], before: Callable[..., None] | None = None, *given: Any
) -> Any:
    """A process that runs the command, with this process's cache and an empty figure.

    Args:
        output: File for what it prints and says.
        arguments: The command's.
        before: Called in the process first, a function of a module.
        given: What it is called with.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED])
    cache = os.environ["FEDPROX_CACHE"]
    process = context.Process(target=_run, args=(output, arguments, cache, before, given))
    process.start()
    return process


def end_after(records: int, by: signal.Signals) -> None:
    """Have this process get a signal after so many records."""
    from fedprox.report.directory import RunDirectory

    write, count = RunDirectory.record, itertools.count(1)

    def record(self: RunDirectory, *given: Any) -> None:
        write(self, *given)
        if next(count) == records:
            signal.raise_signal(by)

    pytest.MonkeyPatch().setattr(RunDirectory, "record", record)  # for good


def status(process: Any, seconds: float = 400) -> int:
    """Its exit status, negative after a signal."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode is not None, f"it has not ended after {seconds} seconds"
    return int(process.exitcode)


def _run(output: Path, arguments: list[str], cache: str, before: Any, given: Any) -> None:
    from fedprox.cli import main

    os.environ["FEDPROX_CACHE"] = cache
    patch = pytest.MonkeyPatch()  # for good
    shorten(patch)
    draw_nothing(patch)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["fedprox", *arguments]
    if before is not None:
        before(*given)
    main()


def line_of(error: str) -> str:
    """The one line that a command says of bad input; the page that explains it may follow."""
    line, *others = error.splitlines()
    assert line.startswith("fedprox: ")
    page = page_of(line)
    assert others == ([f"fedprox: {page}"] if page else [])
    return line
