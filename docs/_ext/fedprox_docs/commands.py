"""The reference of the command line: what `--help` prints, for every command."""

from collections.abc import Iterator
from typing import Any

import typer

from fedprox.cli import COMMANDS, app, command_of

WIDTH = 98


def commands(command: Any = None, name: str = "fedprox") -> Iterator[tuple[str, str]]:
    """Each command's full name and what its `--help` prints, the whole program's first.

    >>> [name for name, _ in commands()][:2]
    ['fedprox', 'fedprox run']
    """
    command = command or typer.main.get_command(app)
    context = command.context_class(
        command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield name, command.get_help(context)
    for key, child in getattr(command, "commands", {}).items():
        yield from commands(command_of(key) if key in COMMANDS else child, f"{name} {key}")


def page() -> str:
    """The sections of the page, in Markdown."""
    return "\n".join(
        f"## `{name}`\n\n```{{code-block}} text\n{text.rstrip()}\n```\n"
        for name, text in commands()
    )
