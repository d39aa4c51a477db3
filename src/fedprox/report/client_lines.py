"""`clients.jsonl`: the measures of each client at each evaluation, written while rounds run."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from fedprox.errors import InputError, require
from fedprox.files.whole import append, flush_folder, naming, open_no_link
from fedprox.simulation.results.clients import ClientRecord, checksum_of, client_columns
from fedprox.simulation.results.record import Record

LINES = "clients.jsonl"
"""Name of the file."""

BEFORE = "clients-before.jsonl"
"""Name of the file of the shorter run, while a run is extended."""


BETWEEN = b", "
"""Between the run and round of a line and its columns."""


class ClientLines:
    """The file `clients.jsonl` of a run directory, to which lines are added.

    Checkpoints do not hold the measures of clients, which may be large. The records of a checkpoint
    come again without them when a run resumes, and their lines are taken from the file. These are
    its first lines, unless the run is extended: then new lines come between those of the shorter
    run, whose file stays beside the new one until the end.

    Every line is on disk before `add` returns, and so before the next checkpoint.

    Args:
        folder: The run directory.
        resumed: Whether the run resumes, so that the file may have lines to keep.
        extended: Whether the run extends a finished one.
    """

    def __init__(self, folder: Path, *, resumed: bool, extended: bool) -> None:
        self.path, before = folder / LINES, folder / BEFORE
        if not resumed:
            remove_lines(folder)
        elif extended and self.path.exists():
            self.path.replace(before)
        self._open = ExitStack()
        opened = open_no_link(self.path, os.O_RDWR | os.O_CREAT)
        self._file = self._open.enter_context(os.fdopen(opened, "r+b", buffering=0))
        self._old: BinaryIO | None = self._open.enter_context(self.path.open("rb"))
        self._before = self._open.enter_context(before.open("rb")) if before.exists() else None
        flush_folder(folder)

    def add(self, record: Record) -> None:
        """Add the line of a record, or keep it if it is there from before.

        Raises:
            InputError: If the record has no measures of clients, and the line from before is gone
                or was changed.
        """
        if record.by_client is not None:
            self._append(client_line(record, record.by_client))
        elif not self._keep(record):
            self._append(self._line_before(record))

    def _keep(self, record: Record) -> bool:
        """Whether the next line of the file is that of a record."""
        if self._old is None:
            return False
        line = self._old.readline()
        if not self._is_line_of(record, line, self.path):
            return False
        self._file.seek(len(line), os.SEEK_CUR)
        return True

    def _is_line_of(self, record: Record, line: bytes, path: Path) -> bool:
        """Whether a line is that of a record.

        Raises:
            InputError: If it is, and its measures are not those that the record was made with.
        """
        head = _head(record) + BETWEEN
        if not (line.startswith(head) and line.endswith(b"\n")):
            return False
        columns = b"{" + line.removeprefix(head)[:-1]
        require(
            checksum_of(columns) == record.by_client_checksum,
            f"{path}: the line of {record.label!r}, seed {record.seed}, round {record.round} is "
            "not the one that the run wrote; run the experiment anew, without --resume",
        )
        return True

    def _line_before(self, record: Record) -> bytes:
        """The line of a record in the file of the shorter run."""
        for line in self._before or ():
            if self._is_line_of(record, line, self.path.parent / BEFORE):
                return line
        raise InputError(
            f"{self.path}: the line of {record.label!r}, seed {record.seed}, round {record.round} "
            "is gone; run the experiment anew, without --resume"
        )

    def _append(self, line: bytes) -> None:
        """Append a line after those that are kept, and flush it to disk."""
        if self._old is not None:
            self._old.close()
            self._old = None
            self._file.truncate(self._file.tell())
        append(self._file, self.path, line)
        with naming(self.path):
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Remove lines after the last one, and the file of the shorter run."""
        self._file.truncate(self._file.tell())
        (self.path.parent / BEFORE).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files."""
        self._open.close()


def remove_lines(folder: Path) -> None:
    """Remove the files of an earlier run."""
    for name in (LINES, BEFORE):
        (folder / name).unlink(missing_ok=True)


def client_line(record: Record, clients: ClientRecord) -> bytes:
    """A line of `clients.jsonl`: the run, the round, and the measures of clients as columns."""
    return _head(record) + BETWEEN + client_columns(clients)[1:] + b"\n"


def _head(record: Record) -> bytes:
    """The beginning of a record's line."""
    run = {"label": record.label, "seed": record.seed, "round": record.round}
    return json.dumps(run).encode()[:-1]
