"""The file of a deployment's run: its identifier, its clients, and what was released."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedprox.errors import InputError, require
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
        released: Round up to which the rounds have been released.
        repeated: Rounds that were released, and after an interruption once more, each time.
        clients: The training rows of each client, by node and client, in their order.
    """

    folder: Path | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    released: int = 0
    repeated: list[range] = field(default_factory=list)
    clients: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def begin(self, first: int) -> None:
        """Begin or go on with a round; what was released from it on is repeated."""
        if first < self.released:
            self.repeated.append(range(first, self.released))
            self.released = first
            self.write()

    def release(self) -> None:
        """Count a round, on disk."""
        self.released += 1
        self.write()

    def write(self) -> None:
        """Write the file."""
        if self.folder is not None:
            content = {
                "run": self.run,
                "released": self.released,
                "repeated": [[rounds.start, rounds.stop] for rounds in self.repeated],
                "clients": self.clients,
            }
            write_whole(self.folder / DEPLOYMENT, json.dumps(content).encode())


def read_ledger(folder: Path) -> Ledger:
    """The ledger of the run in a run directory.

    Raises:
        InputError: If its file is missing or damaged.
    """
    path = folder / DEPLOYMENT
    try:
        content = json.loads(path.read_bytes())
        clients = {
            node: {client: int(rows) for client, rows in each.items()}
            for node, each in content["clients"].items()
        }
        repeated = [range(int(first), int(end)) for first, end in content["repeated"]]
        return Ledger(folder, str(content["run"]), int(content["released"]), repeated, clients)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: missing or damaged; this run cannot be resumed") from None


def require_same_clients(where: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `InputError` unless a run goes on with the nodes and clients that it began with.

    The order of clients numbers them, and so draws cohorts and mini-batches.

    Args:
        where: Begins the message.
        before: The training rows of each client, by node and client, when the run began.
        now: The same now.
    """
    _require_same(where, "nodes", list(before), list(now))
    for node, clients in before.items():
        _require_same(f"{where}: node {node!r}", "clients", list(clients), list(now[node]))
        for client, rows in clients.items():
            have = now[node][client]
            require(
                rows == have,
                f"{where}: client {client!r} of node {node!r} has {have} training rows; it had "
                f"{rows} when the run began",
            )


def _require_same(where: str, what: str, before: Sequence[str], now: Sequence[str]) -> None:
    """Raise `InputError` unless two lists of names are the same; the message names a difference."""
    pairs = enumerate(zip_longest(before, now), start=1)
    for i, (had, have) in pairs:
        require(
            had == have,
            f"{where}: number {i} of the {what} is {_quoted(have)}; it was {_quoted(had)} when the "
            "run began",
        )


def _quoted(name: str | None) -> str:
    return "not there" if name is None else repr(name)
