"""Checkpoints: the state of a comparison, from which another process can continue it.

A resumed comparison has the same bits as an uninterrupted one. A checkpoint holds the server's
state, client state, adapted hyperparameters and all records. Everything else is a function of the
seed, the round and the client. The last two checkpoints are kept, so that a valid one exists
whenever the process is killed.

The checkpoint after step N is a file `N.state` and, for methods with client state, a file
`N.clients-P` of each process P, written before it. Client state may be larger than memory, so it is
written and read block by block. Files are written atomically. The last state of each seed run, from
which a longer comparison continues, is stored in another folder as `NUMBER-ROUNDS.state` and
`NUMBER-ROUNDS.clients-P`. The format is that of `fedprox.files.arrays`, after a line `fedprox
checkpoint FORMAT`. The position in the comparison is an array with JSON text. It names the runs and
the round, and holds the checksums of the files of client state, so that no file is used in the
place of another.

The meaning of the first line and of the last 32 bytes is the same in all formats.
"""

import json
import logging
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, require, require_whole
from fedprox.files.arrays import Damaged, malformed, read_arrays
from fedprox.files.whole import flush_folder, refuse_link
from fedprox.signals import answering
from fedprox.simulation.devices.processes import allgather
from fedprox.simulation.loop.checkpoint_contents import (
    ELSEWHERE,
    Position,
    check_arrays_of,
    check_runs,
    read_position,
)
from fedprox.simulation.loop.checkpoint_files import (
    FORMAT,
    OTHER_FORMAT,
    check,
    entry_of,
    files_in,
    flat,
    nested,
    write,
)
from fedprox.simulation.loop.snapshot import End, Fingerprint, Snapshot, _numbered, _unnumbered
from fedprox.simulation.results.record import Record

FIRST = "0.state"
"""The file with the comparison's settings, written before the first checkpoint."""


KEPT = 2
"""Number of checkpoints that are kept."""


class Stopped(Exception):  # noqa: N818 (it is no error)
    """A comparison was stopped by a signal, after it wrote a checkpoint.

    Attributes:
        where: The last round, as text for messages.
        folder: The folder of the checkpoint.
        signal: The signal.
    """

    def __init__(self, where: str, folder: Path, signal: signal.Signals) -> None:
        super().__init__(f"stopped {where}")
        self.where, self.folder, self.signal = where, folder, signal


@dataclass
class Checkpoints:
    """The folder of a comparison's checkpoints, and how often they are written.

    Attributes:
        folder: A folder for checkpoints only. It is created with the first record if `every` or
            `interval` is set, otherwise with the first checkpoint.
        every: Rounds between checkpoints. None means the value of the checkpoint from which the
            comparison resumes, if there is one.
        interval: Seconds between checkpoints, which are written when a call of rounds ends, and
            without `ends` also after each seed run. None means the value of the checkpoint from
            which the comparison resumes, if there is one.
        resume: Whether to continue from the last checkpoint, if there is one.
        ends: A folder for the last state of each seed run (all sweep points of a method with one
            seed), from which a longer comparison can continue. It takes the space of one checkpoint
            per seed run. None means that these states are not stored.
        made: Number of checkpoints written so far.
        seconds: Seconds spent on writing them.
        size: Bytes of the last checkpoint.
        stopping: The signal that stops the comparison, with a checkpoint and `Stopped`, when the
            current call of rounds ends; None without a signal.
        under_way: Whether the current seed run has rounds that are running, or that ended after the
            last checkpoint and the last stored end of a seed run.

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
    ends: Path | None = None
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

    def begin(self, comparison: Fingerprint) -> Snapshot:
        """Read the last valid checkpoint; an empty snapshot if there is none to resume from.

        Raises:
            InputError: If the checkpoints belong to another comparison or have another format, if
                none of them is valid, or if the folder is a symbolic link.
        """
        refuse_link(self.folder)
        if self.ends is not None:
            refuse_link(self.ends)
        self._comparison, self._last = comparison, time.perf_counter()
        self._replaces, self.under_way = not self.resume, False
        if not self.resume:
            return Snapshot(())
        old = self.folder / "state"
        require(
            not old.is_dir(),
            f"{old}: a checkpoint of format 1; this version reads {FORMAT}: {OTHER_FORMAT}",
        )
        steps = self._steps()
        common = _common(steps)
        require(
            common or not allgather(len(steps)).any(),
            f"{self.folder}: not all processes see the same checkpoints; the folder must be shared",
        )
        damaged = []
        for step in common:
            problem, snapshot = "", None
            try:
                snapshot = self._read(step)
            except Damaged as error:
                problem = str(error)
            if allgather(bool(problem)).any():
                damaged.append((step, problem or f"{self.folder}: another process's is damaged"))
                continue
            consequence = "the one before is used" if step else "the comparison begins anew"
            for later, line in damaged:
                logging.getLogger(__name__).warning("%s; %s", line, consequence)
                if jax.process_index() == 0:
                    self._state(later).unlink(missing_ok=True)
            if not (step or damaged or self._has_ends) and jax.process_index() == 0:
                line = "%s: no checkpoint was made yet; %s"
                logging.getLogger(__name__).warning(line, self.folder, consequence)
            assert snapshot is not None
            return snapshot
        if damaged:
            raise InputError(f"{damaged[0][1]}; no other is whole: begin anew, without resuming")
        if self.folder.is_dir() and not self._has_ends and jax.process_index() == 0:
            line = "%s: no whole checkpoint is there; the comparison begins anew"
            logging.getLogger(__name__).warning(line, self.folder)
        return Snapshot(())

    def before_first(
        self, on_record: Callable[[Record], None], begin: Snapshot
    ) -> Callable[[Record], None]:
        """Wrap `on_record`, so that the settings are written before the first record.

        A comparison that ends before its first checkpoint can then resume with the same settings.
        Unless this comparison resumes, the files of an earlier one are removed.

        Args:
            on_record: Called with each record.
            begin: The checkpoint from which the comparison begins.
        """
        unwritten = [begin]

        def recorded(record: Record) -> None:
            if unwritten:
                first = unwritten.pop()
                if jax.process_index() == 0:
                    if self._replaces:
                        _remove(self.folder)
                        if self.ends is not None:
                            _remove(self.ends)
                    if self.every is not None or self.interval is not None:
                        contents = self._contents(first, first.checksums)
                        write(self._state(self._step(first)), contents)
                allgather(0)  # no process writes before the first one has removed old files
                self._replaces = False
            on_record(record)

        return recorded

    def _steps(self) -> list[int]:
        names = (re.fullmatch(r"(\d+)\.state", path.name) for path in files_in(self.folder))
        return [int(name[1]) for name in names if name]

    def _read(self, step: int) -> Snapshot:
        state = self._state(step)
        position, arrays = self._open(state, self._comparison.rounds)
        snapshot = Snapshot(position.finished, position.under_way, position.round, arrays)
        require(
            self._step(snapshot) == step,
            f"{state}: a checkpoint of step {self._step(snapshot)}: {ELSEWHERE}",
        )
        if self.every is None:
            self.every = position.every
        if self.interval is None:
            self.interval = position.interval
        return self._with_clients(snapshot, position, state, self._clients(step))

    def _open(self, state: Path, rounds: int, first: int = 0) -> tuple[Position, dict[str, Any]]:
        """Read a state's position and arrays, after checks of its settings and contents.

        Args:
            state: The file.
            rounds: Number of rounds T of the file's comparison.
            first: Number of the first seed run in it.
        """
        check(state)
        try:
            arrays = nested(read_arrays(state))
        except ValueError:
            raise malformed(state, "its arrays are not named as they should be") from None
        position = read_position(state, arrays)
        settings = self._comparison.all_settings | {"rounds": rounds}
        for key in dict.fromkeys([*settings, *position.comparison]):
            _require_same(state.parent, position, key, settings.get(key))
        check_runs(state, position, self._comparison, first)
        check_arrays_of(state, position, arrays, self._comparison, first)
        structure = jax.tree.structure(self._comparison.protocol.model.shapes)
        for i, run in enumerate(position.finished):
            run.params = _unnumbered(structure, arrays["params"][str(i)])
        return position, arrays

    def _with_clients(
        self, snapshot: Snapshot, position: Position, state: Path, clients: Path
    ) -> Snapshot:
        """A snapshot with this process's client state, if there is any, from its file."""
        if position.clients is None:
            return snapshot
        require(
            check(clients) in position.clients[jax.process_index() :][:1],
            f"{clients}: not the client state of {state}: {ELSEWHERE}",
        )
        blocks = ((".".join(keys), block) for keys, block in read_arrays(clients))
        return snapshot._replace(client_state=blocks, file=clients, checksums=position.clients)

    def end(self, seed_run: int) -> End | None:
        """Read the last state of a seed run, from this comparison or a shorter one.

        Args:
            seed_run: Number of the seed run.

        Returns:
            The state; None if there is none, it is damaged, or this comparison does not resume.

        Raises:
            InputError: If the state is of another comparison, or of one with more rounds.
        """
        if self.ends is None or not self.resume:
            return None
        stored = [int(name[1]) for name in self._names(seed_run) if name[2] == "state"]
        last = allgather(max(stored, default=0))
        if not last.all():
            return None
        rounds = int(last[0])
        require(
            rounds <= self._comparison.rounds,
            f"{self.ends}: {rounds} rounds are done; rounds = {self._comparison.rounds} must not "
            "be fewer",
        )
        problem, snapshot = "", None
        try:
            state = self.ends / f"{seed_run}-{rounds}.state"
            clients = self._end_of_clients(seed_run, rounds)
            position, arrays = self._open(state, rounds, seed_run)
            snapshot = Snapshot((), position.under_way, position.round, arrays)
            snapshot = self._with_clients(snapshot, position, state, clients)
        except Damaged as error:
            problem = str(error)
        if allgather(bool(problem)).any():
            line = "%s; the rounds of its seed are computed again"
            logging.getLogger(__name__).warning(line, problem or f"{self.ends}: damaged elsewhere")
            return None
        assert snapshot is not None
        return End(rounds, snapshot)

    def write_end(self, seed_run: int, make_snapshot: Callable[[], Snapshot]) -> None:
        """Write the last state of a seed run; log a warning if it cannot be written.

        Args:
            seed_run: Number of the seed run.
            make_snapshot: Returns a snapshot with this seed run under way.
        """
        if self.ends is None:
            return
        snapshot = make_snapshot()._replace(finished=())
        rounds, problem, checksum = self._comparison.rounds, "", None
        state = self.ends / f"{seed_run}-{rounds}.state"
        clients = self._end_of_clients(seed_run, rounds)
        try:
            # an end is valid if its state exists, so an old state of this name is removed first
            if jax.process_index() == 0:
                state.unlink(missing_ok=True)
            allgather(0)
            if snapshot.client_state is not None:
                blocks = (((name,), block) for name, block in snapshot.client_state)
                checksum = write(clients, blocks)
        except OSError as error:
            problem = f"{clients}: {error.strerror}"
        failed = allgather(bool(problem)).any()
        checksums = None if failed else _gathered(checksum)
        if jax.process_index() == 0 and not failed:
            try:
                write(state, self._contents(snapshot, checksums))
            except OSError as error:
                problem = f"{state}: {error.strerror}"
        if allgather(bool(problem)).any():
            clients.unlink(missing_ok=True)
            line = "%s: the last state is not kept, so this run cannot be extended"
            if problem:
                logging.getLogger(__name__).warning(line, problem)
        elif jax.process_index() == 0:
            for name in self._names(seed_run):
                if int(name[1]) != rounds:
                    (self.ends / name[0]).unlink()

    def _names(self, seed_run: int) -> list[re.Match[str]]:
        """The names of the files of a seed run's last states, matched with rounds and kind."""
        assert self.ends is not None
        pattern = re.compile(rf"{seed_run}-(\d+)\.(state|clients-\d+)")
        names = (pattern.fullmatch(path.name) for path in files_in(self.ends))
        # states first, since an end is invalid without its state
        return sorted(filter(None, names), key=lambda name: name[2] != "state")

    def _end_of_clients(self, seed_run: int, rounds: int) -> Path:
        """The file of this process's client state at the end of a seed run."""
        assert self.ends is not None
        return self.ends / f"{seed_run}-{rounds}.clients-{jax.process_index()}"

    def offer(
        self, snapshot: Callable[[], Snapshot], seed_run: str, done: int | None = None
    ) -> None:
        """Write a checkpoint if one is due.

        Args:
            snapshot: Waits for all records, and returns a snapshot of the comparison.
            seed_run: Name of the seed run under way, for messages.
            done: Number of its rounds that are done; None at its end.

        Raises:
            Stopped: If the comparison was asked to stop.
        """
        # processes must agree: signals may reach only one of them or at other rounds, clocks differ
        asked = allgather(self.stopping or 0).max()
        due = self.every is not None and (done is None or done % self.every == 0)
        if self.interval is not None:
            due = due or bool(allgather(time.perf_counter() - self._last >= self.interval)[0])
        if done is None and self.ends is None:
            due = due or self.interval is not None  # a signal before the next call ends at once
        if done == self._comparison.rounds:
            due = False  # the checkpoint at the end of the seed run follows
        if due or asked:
            self._save(snapshot())
            self._last = time.perf_counter()
        if due or asked or done is None:
            with self._lock:
                self.under_way = False
                if jax.process_count() == 1:
                    asked = self.stopping or 0  # a signal may have arrived meanwhile
        if asked:
            allgather(0)  # no process ends before all have written their files
            where = f"after {seed_run}" if done is None else f"after round {done} of {seed_run}"
            raise Stopped(where, self.folder, signal.Signals(int(asked)))

    def begin_call(self) -> None:
        """Note that a call of rounds begins."""
        with self._lock:
            self.under_way = True

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
        """Whether the comparison can be resumed from a checkpoint or from the end of a seed run."""
        return not self._replaces and (any(self._steps()) or self._has_ends)

    @property
    def _has_ends(self) -> bool:
        return self.ends is not None and bool(files_in(self.ends))

    def _save(self, snapshot: Snapshot) -> None:
        begin, checksum = time.perf_counter(), None
        if snapshot.client_state is not None:
            blocks = (((name,), block) for name, block in snapshot.client_state)
            checksum = write(self._clients(self._step(snapshot)), blocks)
        checksums = _gathered(checksum)  # all processes have written their client state
        if jax.process_index() == 0:
            write(self._state(self._step(snapshot)), self._contents(snapshot, checksums))
            self._prune()
        allgather(0)  # the checkpoint is valid from here on
        self.size = sum(p.stat().st_size for p in self.folder.glob(f"{self._step(snapshot)}.*"))
        self.made += 1
        self.seconds += time.perf_counter() - begin

    def _step(self, snapshot: Snapshot) -> int:
        """The step of a checkpoint, which grows during the comparison."""
        return snapshot.seed_runs * (self._comparison.rounds + 1) + snapshot.round

    def _contents(
        self, snapshot: Snapshot, checksums: Sequence[str] | None
    ) -> Iterator[tuple[list[str], NDArray[Any]]]:
        """The arrays of a state's file, given the checksums of the files of its client state."""
        arrays = dict(snapshot.arrays)
        if snapshot.finished:
            arrays["params"] = {
                str(i): _numbered(run.params) for i, run in enumerate(snapshot.finished)
            }
        position = {
            "comparison": self._comparison.all_settings,
            "every": self.every,
            "interval": self.interval,
            "round": snapshot.round,
            "finished": [entry_of(run) for run in snapshot.finished],
            "under_way": [entry_of(run) for run in snapshot.under_way],
            "clients": checksums,
        }
        arrays["position"] = np.frombuffer(json.dumps(position).encode(), np.uint8)
        return flat(arrays)

    def _prune(self) -> None:
        """Remove all but the last checkpoints, and incomplete files of a killed process."""
        kept_steps = {str(step) for step in sorted(self._steps())[-KEPT:]}
        # states first, since a checkpoint is invalid without its state
        for path in sorted(files_in(self.folder), key=lambda path: path.suffix != ".state"):
            name = re.fullmatch(r"(\d+)\.(state|clients-\d+)|\..+\.partial", path.name)
            if name and name[1] not in kept_steps:
                path.unlink()

    def _state(self, step: int) -> Path:
        """The file of the server's state, the finished runs and all records."""
        return self.folder / f"{step}.state"

    def _clients(self, step: int) -> Path:
        """The file of this process's client state."""
        return self.folder / f"{step}.clients-{jax.process_index()}"

    def __str__(self) -> str:
        """A summary for users, in one line."""
        return (
            f"{self.made} checkpoint{'s' * (self.made != 1)}, {self.seconds:.1f} s in all, "
            f"the last of {self.size / 1e6:.1f} MB"
        )

    def remove(self) -> None:
        """Remove the folder, once the results are written."""
        allgather(0)  # no process needs it any more
        if jax.process_index() == 0:
            _remove(self.folder)
        allgather(0)


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


def _gathered(checksum: str | None) -> Sequence[str] | None:
    """All processes' checksums, once all of them have called this; None without client state."""
    if checksum is None:
        allgather(0)
        return None
    parts = np.frombuffer(bytes.fromhex(checksum), np.int32)  # JAX cuts longer numbers
    everyones = np.stack([allgather(int(part)) for part in parts], axis=1)
    return [row.tobytes().hex() for row in everyones.astype(np.int32)]


def _require_same(folder: Path, position: Position, key: str, value: Any) -> None:
    stored = position.comparison.get(key)
    require(
        stored == value,
        f"{folder}: checkpoints of another comparison: {key} = {stored}, here {value}",
    )


def _remove(folder: Path) -> None:
    """Remove a folder atomically: it is renamed first."""
    if not folder.is_dir():
        return
    renamed = folder.with_name(f".{folder.name}.removed")
    if renamed.is_symlink():
        renamed.unlink()
    shutil.rmtree(renamed, ignore_errors=True)
    folder.rename(renamed)
    flush_folder(folder.parent)
    shutil.rmtree(renamed, ignore_errors=True)


def _common(steps: Sequence[int]) -> Sequence[int]:
    """The steps that all processes see, in descending order."""
    last = sorted(steps, reverse=True)[:KEPT]
    if jax.process_count() == 1:
        return last
    seen = np.stack([allgather(step) for step in (*last, *[-1] * (KEPT - len(last)))])
    common = set.intersection(*(set(each.tolist()) for each in seen.T))
    return sorted(common - {-1}, reverse=True)
