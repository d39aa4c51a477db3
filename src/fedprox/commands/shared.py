"""What commands share: options, and what they print."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedprox.errors import printable

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key, such as solver.epochs=1 or method.0.mu=[0,1]. Repeatable.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with data files, in place of FEDPROX_DATA or a download."),
]
Devices = Annotated[
    int | None,
    typer.Option(metavar="N", help="Devices that share a round. [default: all; CPUs: cores]"),
]
OptionalFile = Annotated[Path | None, typer.Argument(metavar="FILE.toml", help="The experiment.")]
Out = Annotated[Path | None, typer.Option(help="Run directory. [default: runs/NAME-OF-FILE]")]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Continue the run in DIR; in place of FILE.toml."),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace another experiment's results in the run directory."),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Write the records also for tensorboard, mlflow or wandb, below the run directory. "
        "Repeatable.",
    ),
]


def standard_console() -> Console:
    """A console on stdout, 120 columns wide unless it is a terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, markup=False)


def say(message: str) -> None:
    """Print a message in one line to stderr."""
    print(f"fedprox: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
