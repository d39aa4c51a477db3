"""The file of a deployment's run: its identifier, and how many of its rounds have been released."""

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from fedprox.errors import InputError
from fedprox.files.whole import write_whole
from fedprox.report.directory import DEPLOYMENT


@dataclass
class Ledger:
    """What must be known of a run whatever happens to its checkpoints.

    A round that is repeated after an interruption is released once more, with other noise. Privacy
    counts both, so a round is counted here before anything of it leaves the coordinator.

    Attributes:
        folder: The run directory; None to keep nothing.
        run: Identifier of the run, under which nodes store client state.
        released: Rounds that have been released.
    """

    folder: Path | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    released: int = 0

    def release(self) -> None:
        """Count a round, on disk."""
        self.released += 1
        self.write()

    def write(self) -> None:
        """Write the file."""
        if self.folder is not None:
            content = {"run": self.run, "released": self.released}
            write_whole(self.folder / DEPLOYMENT, json.dumps(content).encode())


def read_ledger(folder: Path) -> Ledger:
    """The ledger of the run in a run directory.

    Raises:
        InputError: If its file is missing or damaged.
    """
    path = folder / DEPLOYMENT
    try:
        content = json.loads(path.read_bytes())
        return Ledger(folder, str(content["run"]), int(content["released"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path}: missing or damaged; this run cannot be resumed") from None
