"""The identifier of a deployment's run, under which nodes store client state."""

import json
import secrets
from pathlib import Path

from fedprox.errors import InputError
from fedprox.files.whole import write_whole
from fedprox.report.directory import DEPLOYMENT


def run_of(folder: Path, *, new: bool) -> str:
    """The identifier of the run in a run directory.

    Args:
        folder: The run directory.
        new: Whether the run begins anew, with a new identifier.

    Raises:
        InputError: If the run is not new, and its file is missing or damaged.
    """
    path = folder / DEPLOYMENT
    if new:
        run = secrets.token_hex(8)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"run": run}).encode())
        return run
    try:
        return str(json.loads(path.read_bytes())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: missing or damaged; this run cannot be resumed") from None
