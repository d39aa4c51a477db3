"""Options that commands share, and the command that resumes a run."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

ExperimentFile = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment.")]
Changes = Annotated[
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
DeviceCount = Annotated[
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


class Command(TyperCommand):
    """A command whose help shows "[required]" where typer 0.20 escapes the bracket for rich."""

    def get_help(self, ctx: Any) -> str:
        """The help, without these escapes."""
        return super().get_help(ctx).replace("\\[", "[")


MACHINE_OPTIONS = (
    "--data-dir",
    "--devices",
    "--coordinator",
    "--processes",
    "--process",
    "--local",
    "--superlink",
    "--allow",
    "--log",
)
"""Options that describe the machine or the output, not the experiment."""


def resume_command(directory: Path, arguments: list[str]) -> str:
    """The command that resumes a run with the same machine options.

    >>> arguments = ["run", "a.toml", "--devices=2", "--out", "b", "--data-dir", "c d"]
    >>> resume_command(Path("runs/a"), arguments)
    "fedprox run --resume runs/a --devices=2 --data-dir 'c d'"
    """
    command = ["fedprox", "run", "--resume", str(directory)]
    if arguments[:1] == ["deploy"]:
        command[1] = "deploy"
    for option, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, value = option.partition("=")
        if name in MACHINE_OPTIONS:
            command += [option] if value else [option, following]
    return shlex.join(command)
