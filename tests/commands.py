"""The command in a process of its own, forked from a server that has imported everything."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def start(
    output: Path, arguments: list[str], before: Callable[..., None] | None = None, *given: Any
) -> Any:
    """A process that runs the command.

    Args:
        output: File for what it prints and says; the cache is beside it.
        arguments: The command's.
        before: Called in the process first, a function of a module.
        given: What it is called with.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedprox.cli", "fedprox.commands.run"])
    process = context.Process(target=_run, args=(output, arguments, before, given))
    process.start()
    return process


def status(process: Any, seconds: float = 400) -> int:
    """Its exit status, negative after a signal."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode is not None, f"it has not ended after {seconds} seconds"
    return int(process.exitcode)


def _run(output: Path, arguments: list[str], before: Any, given: Any) -> None:
    from fedprox.cli import main

    os.environ["FEDPROX_CACHE"] = str(output.parent / "cache")
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["fedprox", *arguments]
    if before is not None:
        before(*given)
    main()
