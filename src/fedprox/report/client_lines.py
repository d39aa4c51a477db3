"""`clients.jsonl`: the measures of each client at each evaluation, written while rounds run."""

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from fedprox.errors import InputError
from fedprox.files.whole import append, flush_folder, naming, open_no_link, refuse_link
from fedprox.results.record import ClientRecord, Record, checksum_of, client_columns

LINES = "clients.jsonl"
"""Name of the file."""

BEFORE = "clients-before.jsonl"
"""Name of the file with the lines from before, while a run that was resumed goes on."""

CLIENTS_KEY = b'"clients": '
"""The text after the run and the round in a line."""


class ClientLines:
    """The file `clients.jsonl` of a run directory, to which lines are added.

    Checkpoints do not hold the measures of clients, which may be large. The records of a checkpoint
    come again without them when a run resumes. Their lines are taken from the file from before,
    which stays beside the new one until the end.

    Every new line is on disk before `add` returns, and so before the next checkpoint.
    """

    def __init__(self, folder: Path, *, resumed: bool) -> None:
        self.path, self._before = folder / LINES, folder / BEFORE
        self._places: dict[tuple[bytes, str | None], int] = {}
        refuse_link(self.path)
        with ExitStack() as self._open:
            if resumed:
                self._keep_lines()
            else:
                remove_lines(folder)
            opened = open_no_link(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            self._file = self._open.enter_context(os.fdopen(opened, "wb", buffering=0))
            self._open = self._open.pop_all()
        flush_folder(folder)

    def _keep_lines(self) -> None:
        """Move the lines to the file from before, and note the place of each by its checksum."""
        opened = open_no_link(self._before, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._old = self._open.enter_context(os.fdopen(opened, "a+b"))
        if self.path.exists():
            with naming(self._before), self.path.open("rb") as lines:
                shutil.copyfileobj(lines, self._old)
                self._old.write(b"\n")  # ends a line that was being written
                self._old.flush()
                os.fsync(opened)
        self._old.seek(0)
        at = 0
        for line in self._old:
            head, _, columns = line.removesuffix(b"\n").partition(b", " + CLIENTS_KEY)
            self._places[head, checksum_of(b"{" + CLIENTS_KEY + columns)] = at
            at += len(line)

    def add(self, record: Record) -> None:
        """Add the line of a record; that from before if the record has no measures of clients."""
        if record.by_client:
            append(self._file, self.path, client_line(record, record.by_client))
            self._flush()
            return
        place = self._places.get((_head(record), record.by_client_checksum))
        if place is None:
            raise InputError(
                f"{self.path}: the line of {record.label!r}, seed {record.seed}, round "
                f"{record.round} is gone or was changed; run the experiment anew, without --resume"
            )
        self._old.seek(place)
        append(self._file, self.path, self._old.readline())

    def _flush(self) -> None:
        with naming(self.path):
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Remove the lines from before."""
        self._flush()
        self._before.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files."""
        self._open.close()


def remove_lines(folder: Path) -> None:
    """Remove the files of an earlier run."""
    for name in (LINES, BEFORE):
        (folder / name).unlink(missing_ok=True)


def client_line(record: Record, clients: ClientRecord) -> bytes:
    """A line of `clients.jsonl`: the run, the round, and the measures of clients as columns."""
    return _head(record) + b", " + client_columns(clients)[1:] + b"\n"


def _head(record: Record) -> bytes:
    """The beginning of a record's line."""
    run = {"label": record.label, "seed": record.seed, "round": record.round}
    return json.dumps(run).encode()[:-1]
