"""Checkpoints: the state of a comparison, from which another process can continue it.

A resumed comparison has the same bits as an uninterrupted one. A checkpoint belongs to a seed run,
which is all sweep points of a method with one seed. It holds the server's state, client state,
adapted hyperparameters and all records. Everything else is a function of the seed, the round and
the client.

The checkpoint of a seed run after some rounds is a file `NUMBER-ROUNDS.state` (see `snapshot.py`).
With client state there is also a file `NUMBER-ROUNDS.clients-P` of each process P, written before
it. Client state may be larger than memory, so it is written and read block by block. Files are
written atomically. Of a seed run under way the last two checkpoints are kept, so that a valid one
exists whenever the process is killed; of one that has ended, the last. A seed run always continues
from its last checkpoint: one that has all its rounds is finished, and one that has those of a
shorter comparison is extended.
"""

import errno
import logging
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.filesize import decimal

from fedprox.devices.processes import allgather
from fedprox.errors import plural, require, require_whole
from fedprox.files.arrays import Damaged
from fedprox.files.whole import flush_folder, refuse_link
from fedprox.loop.snapshot import (
    Snapshot,
    check_file,
    read_file,
    read_state,
    require_format,
    restored,
    write_file,
    write_state,
)
from fedprox.protocol.method import Method
from fedprox.results.record import Record
from fedprox.results.run import Run
from fedprox.terminal import Stopped, answering

FIRST = "0-0.state"
"""The file with the comparison's settings, written before the first checkpoint."""


KEPT = 2
"""Number of checkpoints that are kept of a seed run under way."""


NAME = re.compile(r"(\d+)-(\d+)\.(state|clients-\d+)")
"""Names of the files: number of the seed run, number of its rounds, kind."""


@dataclass
class Checkpoints:
    """The folder of a comparison's checkpoints, and how often they are written.

    At the end of each seed run (all sweep points of a method with one seed) a checkpoint is always
    written. It stays, so that the comparison can continue with more rounds.

    Attributes:
        folder: A folder for checkpoints only. It is created when the first file is written.
        every: Rounds between checkpoints. None means the value of the checkpoint from which the
            comparison resumes, if there is one.
        interval: Seconds between checkpoints, which are written when a call of rounds ends. None
            means the value of the checkpoint from which the comparison resumes, if there is one.
        resume: Whether to continue from the last checkpoints, if there are any. The comparison may
            have more rounds than the one that wrote them.
        made: Number of checkpoints written so far.
        seconds: Seconds spent on writing them.
        size: Bytes of the last checkpoint.
        stopping: The signal that stops the comparison, with a checkpoint and `Stopped`, when the
            current call of rounds ends; None without a signal.
        under_way: Whether there are rounds that are running, or that ended after the last
            checkpoint.

    Raises:
        InputError: If `every` is not a whole number of at least 1.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Checkpoints(folder, every=10).made
        0
    """

    folder: Path
    every: int | None = None
    interval: float | None = None
    resume: bool = False
    made: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    size: int = field(default=0, init=False)
    stopping: signal.Signals | None = field(default=None, init=False)
    under_way: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.folder, self._replaces = Path(self.folder), not self.resume
        self._lock = threading.Lock()  # of `stopping` and `under_way`, which two threads set
        if self.every is not None:
            require_whole("checkpoint_every", self.every)
            self.every = int(self.every)  # written as JSON

    def begin(
        self,
        settings: Mapping[str, Any],
        methods: Sequence[Method],
        planned: Sequence[Sequence[Run]],
    ) -> None:
        """Begin a comparison.

        Raises:
            InputError: If the folder is a symbolic link, or has checkpoints of an older format.
        """
        refuse_link(self.folder)
        self._settings, self._methods, self._planned = settings, methods, planned
        self._replaces, self.under_way, self._last = not self.resume, False, time.perf_counter()
        if not self.resume:
            return
        for path in self._files():
            if re.fullmatch(r"state|\d+\.state", path.name):
                require_format(path, "1" if path.name == "state" else "2 to 4")
        if self.folder.is_dir() and not self.exist and jax.process_index() == 0:
            line = "%s: no checkpoint was made yet; the comparison begins anew"
            logging.getLogger(__name__).warning(line, self.folder)

    def before_first(self, on_record: Callable[[Record], None]) -> Callable[[Record], None]:
        """Wrap `on_record`, so that the settings are written before the first record.

        A comparison that ends before its first checkpoint can then resume with the same settings.
        Unless this comparison resumes, the files of an earlier one are removed.
        """
        begun = False

        def recorded(record: Record) -> None:
            nonlocal begun
            if not begun:
                if jax.process_index() == 0:
                    if self._replaces:
                        remove_folder(self.folder)
                    asked = self.every is not None or self.interval is not None
                    if asked and not any(path.suffix == ".state" for path in self._files()):
                        write_state(self.folder / FIRST, self._table, self._methods[0])
                allgather(0)  # no process writes before the first one has removed old files
                begun, self._replaces = True, False
            on_record(record)

        return recorded

    def last(self, number: int) -> Snapshot | None:
        """Read the last valid checkpoint of a seed run.

        Returns:
            A snapshot; None if there is none, or if this comparison does not resume.

        Raises:
            InputError: If the checkpoint belongs to another comparison, or to one with more rounds,
                or has another format.
        """
        if not self.resume:
            return None
        found = sorted(self._rounds(number))[-KEPT:]
        # all processes read the files that the first one sees
        common = [int(allgather(n)[0]) for n in (*found, *[-1] * (KEPT - len(found)))]
        damaged = list[tuple[int, str]]()
        snapshot = None
        for rounds in sorted(set(common) - {-1}, reverse=True):
            problem = ""
            try:
                snapshot = self._read(number, rounds)
            except Damaged as error:
                problem = str(error)
            if not allgather(bool(problem)).any():
                break
            damaged.append((rounds, problem or f"{self.folder}: another process's is damaged"))
            snapshot = None
        consequence = "the one before is used" if snapshot else "its rounds are computed again"
        for rounds, line in damaged:
            logging.getLogger(__name__).warning("%s; %s", line, consequence)
            if jax.process_index() == 0:
                self._state(number, rounds).unlink(missing_ok=True)
        return snapshot

    def _read(self, number: int, rounds: int) -> Snapshot | None:
        """Read a checkpoint; None if it has settings only."""
        path, method = self._state(number, rounds), self._methods[number]
        text, arrays = read_state(path)
        of_rounds = next(filter(None, (part.of_rounds for part in method.parts)), "")
        require(
            not of_rounds or text.rounds == method.protocol.rounds,
            f"{self.folder}: checkpoints with {of_rounds} for {plural(text.rounds, 'round')}; "
            "rounds = "
            f"{method.protocol.rounds} would have needed another from the start: begin anew",
        )
        for key in dict.fromkeys([*self._settings, *text.settings]):
            stored, here = text.settings.get(key), self._settings.get(key)
            require(
                stored == here,
                f"{self.folder}: checkpoints of another comparison: {key} = {stored}, here {here}",
            )
        require(
            text.rounds <= method.protocol.rounds,
            f"{self.folder}: checkpoints of a comparison of {plural(text.rounds, 'round')}; "
            f"rounds = {method.protocol.rounds} must not be fewer",
        )
        snapshot = None
        if rounds:
            snapshot = restored(path, text, arrays, method)
            planned = self._planned[number]
            if not (text.round == rounds and snapshot.is_of(planned)):
                raise Damaged(f"{path}: a file of another place")
            if text.clients is not None:
                clients = self._clients(number, rounds)
                if check_file(clients) not in text.clients[jax.process_index() :][:1]:
                    raise Damaged(f"{clients}: not the client state of {path}")
                snapshot = snapshot._replace(client_state=read_file(clients), file=clients)
        if self.every is None:
            self.every = text.every
        if self.interval is None:
            self.interval = text.interval
        return snapshot

    def begin_call(self) -> None:
        """Note that a call of rounds begins."""
        with self._lock:
            self.under_way = True

    def offer(
        self, number: int, name: str, done: int, snapshot: Callable[[], Snapshot], *, over: bool
    ) -> None:
        """Write a checkpoint if one is due, as always at the end of a seed run.

        Raises:
            Stopped: If the comparison was asked to stop.
        """
        # processes must agree: signals may reach only one of them or at other rounds, clocks differ
        asked = allgather(self.stopping or 0).max()
        due = over or (self.every is not None and done % self.every == 0)
        if self.interval is not None:
            due = due or bool(allgather(time.perf_counter() - self._last >= self.interval)[0])
        if done == self._methods[number].protocol.rounds and not over:
            due = False  # that at the end follows
        if not (due or asked):
            return
        try:
            self._save(number, snapshot(), 1 if over else KEPT)
        except OSError as error:
            if not over:
                raise
            line = "%s: %s: the last checkpoint of %s is missing, so it cannot be extended"
            logging.getLogger(__name__).warning(line, error.filename, error.strerror, name)
        self._last = time.perf_counter()
        with self._lock:
            self.under_way = False
            if jax.process_count() == 1:
                asked = self.stopping or 0  # a signal may have arrived meanwhile
        # after the last seed run, only the results are left to be written
        if asked and not (over and number == len(self._methods) - 1):
            where = f"after {name}" if over else f"after round {done} of {name}"
            raise Stopped(where, self.folder, signal.Signals(int(asked)))

    def ask_to_stop(self, number: signal.Signals) -> bool:
        """Let the comparison stop at its next offer; called in the thread that answers signals.

        Only the comparison's own thread writes checkpoints, so that no two writers meet in a file.

        Returns:
            Whether it will stop. If not, it has been asked before, or it has no rounds under way
            that would be lost by ending the process at once.
        """
        with self._lock:
            if self.stopping is not None or not self.under_way:
                return False
            self.stopping = number
            return True

    @property
    def exist(self) -> bool:
        """Whether the comparison can be resumed from a checkpoint."""
        names = {path.name for path in self._files() if path.suffix == ".state"}
        return not self._replaces and bool(names - {FIRST})

    def _save(self, number: int, snapshot: Snapshot, kept: int) -> None:
        """Write a checkpoint, and remove all but the last `kept` of its seed run."""
        begin, checksum, rounds = time.perf_counter(), None, snapshot.now.round
        with _together(self.folder):
            if snapshot.client_state is not None:
                checksum = write_file(self._clients(number, rounds), snapshot.client_state)
        checksums = _gathered(checksum)
        with _together(self.folder):
            if jax.process_index() == 0:
                state = self._state(number, rounds)
                write_state(state, self._table, self._methods[number], snapshot, checksums)
                self._prune(number, kept)
        self.size = sum(p.stat().st_size for p in self.folder.glob(f"{number}-{rounds}.*"))
        self.made += 1
        self.seconds += time.perf_counter() - begin

    @property
    def _table(self) -> dict[str, Any]:
        """The fields that all files of states have."""
        return {
            "settings": self._settings,
            "rounds": self._methods[0].protocol.rounds,
            "every": self.every,
            "interval": self.interval,
        }

    def _prune(self, number: int, kept: int) -> None:
        """Remove all but the last checkpoints of a seed run, and what killed processes left."""
        rounds = {str(n) for n in sorted(self._rounds(number))[-kept:]}
        # states first, since a checkpoint is invalid without its state
        for path in sorted(self._files(), key=lambda path: path.suffix != ".state"):
            name = NAME.fullmatch(path.name)
            old = name and int(name[1]) == number and name[2] not in rounds
            if old or re.fullmatch(r"\..+\.partial", path.name):
                path.unlink()

    def _files(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []

    def _rounds(self, number: int) -> list[int]:
        """The rounds after which there is a checkpoint of a seed run."""
        names = filter(None, (NAME.fullmatch(path.name) for path in self._files()))
        return [int(name[2]) for name in names if int(name[1]) == number and name[3] == "state"]

    def _state(self, number: int, rounds: int) -> Path:
        """The file of a checkpoint."""
        return self.folder / f"{number}-{rounds}.state"

    def _clients(self, number: int, rounds: int) -> Path:
        """The file of this process's client state."""
        return self.folder / f"{number}-{rounds}.clients-{jax.process_index()}"

    def __str__(self) -> str:
        """A summary for users, in one line."""
        return (
            f"{plural(self.made, 'checkpoint')}, {self.seconds:.1f} s in all, "
            f"the last of {decimal(self.size)}"
        )


@contextmanager
def stopping_on_signals(checkpoints: Checkpoints) -> Iterator[None]:
    """Let signals such as an interrupt stop a comparison without losing rounds.

    While rounds are under way or a checkpoint is written, the comparison stops at the end of the
    call, with a checkpoint. At other times, and on the second signal, the process ends at once.
    """

    def stop(number: signal.Signals) -> str | None:
        if not checkpoints.ask_to_stop(number):
            return None
        what = "finishing the rounds under way for a checkpoint; once more to end at once"
        return f"{number.name}: {what}"

    with answering(stop):
        yield
    if checkpoints.stopping:
        line = "%s: all rounds were done already; the results are written"
        logging.getLogger(__name__).warning(line, checkpoints.stopping.name)


def remove_folder(folder: Path) -> None:
    """Remove a folder of checkpoints atomically: it is renamed first."""
    if not folder.is_dir():
        return
    renamed = folder.with_name(f".{folder.name}.removed")
    if renamed.is_symlink():
        renamed.unlink()
    shutil.rmtree(renamed, ignore_errors=True)
    folder.rename(renamed)
    flush_folder(folder.parent)
    shutil.rmtree(renamed, ignore_errors=True)


@contextmanager
def _together(folder: Path) -> Iterator[None]:
    """Wait for all processes at the end, and raise in all of them what one of them raised."""
    problem = None
    try:
        yield
    except OSError as error:
        problem = error
    if allgather(problem is not None).any():
        raise problem or OSError(errno.EIO, "another process cannot write", str(folder))


def _gathered(checksum: str | None) -> Sequence[str] | None:
    """All processes' checksums; None without client state."""
    if checksum is None:
        return None
    parts = np.frombuffer(bytes.fromhex(checksum), np.int32)  # JAX cuts longer numbers
    everyones = np.stack([allgather(int(part)) for part in parts], axis=1)
    return [row.tobytes().hex() for row in everyones.astype(np.int32)]
