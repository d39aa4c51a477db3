"""`fedprox status` and `fedprox stop`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fedprox.errors import printable
from fedprox.report.status import ask_to_stop, status_lines

Directory = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="Where the run or the study writes.")
]


def status(directory: Directory) -> None:
    """Say how far a run or a study is, of a deployment also what its nodes did.

    The run's process writes the same to `status.json`, and for the textfile collector of
    Prometheus' node_exporter to `metrics.prom`, in its directory. Once a minute a run writes the
    report anew.
    """
    for line in status_lines(directory, time.time()):
        print(printable(line))


def stop(directory: Directory) -> None:
    """Let a run or a study stop after its current rounds, with a checkpoint, as Ctrl-C does.

    A run continues with --resume RUN_DIR, a study with the same command.
    """
    print(f"{printable(directory)}: {ask_to_stop(directory)} stops after its current rounds")
