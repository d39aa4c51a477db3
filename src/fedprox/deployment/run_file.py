"""The identifier of a deployment's run, under which nodes store client state."""

import json
import secrets
from pathlib import Path

from fedprox.errors import InputError
from fedprox.files.whole import write_whole
from fedprox.report.directory import DEPLOYMENT


def new_run() -> str:
    """A new identifier."""
    return secrets.token_hex(8)


def write_run(folder: Path, run: str) -> None:
    """Write the identifier of the run in a run directory."""
    write_whole(folder / DEPLOYMENT, json.dumps({"run": run}).encode())


def read_run(folder: Path) -> str:
    """The identifier of the run in a run directory.

    Raises:
        InputError: If its file is missing or damaged.
    """
    path = folder / DEPLOYMENT
    try:
        return str(json.loads(path.read_bytes())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: missing or damaged; this run cannot be resumed") from None
