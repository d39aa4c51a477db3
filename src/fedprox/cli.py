"""The command line: `fedprox run`, `deploy`, `node`, `diagnose`, `report` and other commands.

A command is a function of a module in `commands`, which is imported when the command is called.
Most import JAX, which takes a second, and help and `fedprox status` need none of it.
"""

import os
import re
import sys
import traceback
import warnings
from importlib import import_module
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

from fedprox import __version__
from fedprox.commands.options import Command, resume_command
from fedprox.errors import InputError, page_of
from fedprox.terminal import Stopped, answering, end_now, safe_streams, say

COMMAND_LINE_ERROR = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
"""ClickException, which has no public name that all versions of typer share: older ones import it
from click, newer ones have a copy of click."""


COMMANDS = {
    "run": ("run", "Train the methods of an experiment file."),
    "deploy": ("deployment", "Run an experiment on nodes that keep their own data."),
    "node": ("deployment", "Hold clients for deployments."),
    "certificates": ("federation", "Make the keys and certificates of a federation."),
    "superlink": ("federation", "Pass messages between the nodes and the operator."),
    "status": ("following", "Say how far a run or a study is."),
    "stop": ("following", "Let a run or a study stop with a checkpoint."),
    "predict": ("predict", "Predict the label of each row of a table."),
    "report": ("report", "Write the HTML report of run directories."),
    "export": ("export", "Export a trained model as StableHLO, for JAX alone."),
    "diagnose": ("diagnose", "Measure how clients differ, and suggest a mu."),
    "privacy": ("privacy", "Compute the privacy of an experiment."),
    "audit-privacy": ("privacy", "Audit the privacy of an experiment by canaries."),
    "examples": ("examples", "List example experiment files, or print one."),
    "keys": ("keys", "List the keys of experiment files."),
    "data": ("data", "List, fetch and describe data sets."),
}
"""The commands in the order of the help: the module of each, and what it does.

In its module a command is the function of its name.
"""


def command_of(name: str) -> Any:
    """A command, whose module is imported here."""
    module = import_module(f"fedprox.commands.{COMMANDS[name][0]}")
    function = getattr(module, name.replace("-", "_"))
    if isinstance(function, typer.Typer):
        return typer.main.get_command(function)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=Command, epilog=getattr(module, "MORE", None))(function)
    return typer.main.get_command(alone)


class _Commands(TyperGroup):
    """The program, which lists its commands without importing them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and command_of(name), rest


app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=_Commands,
    help="Federated optimization in heterogeneous networks.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedprox {__version__}")
        raise typer.Exit


@app.callback()
def _before_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


for _name, (_, _does) in COMMANDS.items():
    app.command(_name, help=_does)(lambda: None)  # `_Commands` calls another


SUM_FAILED = "gloo|nccl|coordination"
"""Pattern in the error of a failed sum over processes."""

LOST = (
    "process {}: another process has ended, or cannot be reached, and so the run ends ({}); "
    "continue from its last checkpoint with --resume"
)


def main(command: typer.Typer = app) -> None:
    """Entry point: bad input and files that cannot be written end in one line, status 2."""
    with safe_streams(), answering(end_now):
        try:
            _main(command)
        except Exception:
            if not _shared():
                raise
            traceback.print_exc()
            _leave(1)


def _main(command: typer.Typer) -> None:
    arguments = sys.argv[1:] or (["--help"] if command is app else [])
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            status = command(arguments, standalone_mode=False)
    except COMMAND_LINE_ERROR as error:
        # typer and click each add the hint "Did you mean 'run'?"
        _fail(re.sub(r"( Did you mean [^?]+\?)\1", r"\1", error.format_message()))
    except InputError as error:
        _fail(str(error))
    except Stopped as stopped:
        advice = "the same command continues from there"
        if sys.argv[1:2] in (["run"], ["deploy"]):
            advice = f"continue with: {resume_command(stopped.folder.parent, sys.argv[1:])}"
        _fail(f"{stopped}; {advice}", 128 + stopped.signal)
    except (RuntimeError, ValueError, MemoryError) as error:
        # the first is JAX's; a lost process raises one of the first two, as its sum is awaited
        if _shared() and re.search(SUM_FAILED, str(error), re.I):
            index = sys.modules["jax"].process_index()
            _fail(LOST.format(index, str(error).partition("\n")[0]), 1)
        if not isinstance(error, MemoryError) and "EXHAUSTED" not in str(error):
            raise
        _fail("out of memory: the data, the model or the cohort is too large for this machine")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")
    raise SystemExit(status or 0)


def _shared() -> bool:
    """Whether the run is shared with other processes; many a command has not imported JAX."""
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()


def _fail(message: str, status: int = 2) -> NoReturn:
    say(message)
    if page := page_of(message):
        say(page)
    _leave(status)


def _leave(status: int) -> NoReturn:
    if _shared():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # an orderly exit waits for the other processes, which wait for this one
    raise SystemExit(status)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    say(str(message))


if __name__ == "__main__":
    main()
