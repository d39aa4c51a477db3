"""`fedprox report`."""

from pathlib import Path
from typing import Annotated

import typer

from fedprox.errors import printable
from fedprox.report.page import write_report


def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Directories that `run` wrote.")
    ],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
) -> None:
    """Write the HTML report of run directories.

    One HTML page has figures with the runs of all directories, and a section for each directory. A
    section has settings, results, interactive figures, accuracies by client and, if there is one,
    the diagnosis. The page opens offline and needs no other file. An interrupted run is shown up to
    its last evaluation.
    """
    write_report(directories, out)
    print(printable(out))
