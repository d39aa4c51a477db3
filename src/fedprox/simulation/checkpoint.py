"""Checkpoints: where a comparison stands, so that another process can go on from there.

The comparison that goes on is the same, bit for bit: a checkpoint holds the server's state, what
clients keep, the numbers that adapt and all records, and everything else is a function of the seed,
the round and the client. It appears under its name whole or not at all (orbax writes it), and the
last two are kept, so that there is one whenever the process ends. What clients keep may be more
than the memory holds: it is written before, array by array, by the process that has these clients.
"""

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.adaptive import Trend
from fedprox.errors import InputError, reason, require, require_whole
from fedprox.model import Model
from fedprox.simulation.clients import KNOWN
from fedprox.simulation.history import Record, Run
from fedprox.simulation.lanes import replicate
from fedprox.simulation.processes import everyone
from fedprox.simulation.rounds import Standing
from fedprox.simulation.settle import all_faulty, no_updates

STATE = "state"
"""Of a folder of checkpoints the part with the server's state and the records."""

KEPT = 2
"""Checkpoints of a comparison that are kept."""

Arrays = Mapping[str, Any]


class Stopped(Exception):  # noqa: N818 (it is no error)
    """A comparison was asked to stop and has left a checkpoint.

    Attributes:
        where: Where it stands.
        folder: Where the checkpoint is.
        signal: What asked for it.
    """

    def __init__(self, where: str, folder: Path, signal: signal.Signals) -> None:
        super().__init__(f"stopped {where}")
        self.where, self.folder, self.signal = where, folder, signal


class Comparison(NamedTuple):
    """What tells a comparison from one that its checkpoints do not fit.

    Attributes:
        labels: The labels of its runs.
        seeds: Their seeds.
        rounds: Rounds T.
        settings: What else its result depends on, by name, see `Protocol.settings`.
        model: The model, of which the parameters are.
    """

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int
    settings: Mapping[str, Any]
    model: Model

    @property
    def known(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {
            "labels": list(self.labels),
            "seeds": list(self.seeds),
            "rounds": self.rounds,
            "processes": jax.process_count(),
            **self.settings,
        }


class Snapshot(NamedTuple):
    """What a checkpoint holds.

    A leg is all points of a method with one seed.

    Attributes:
        finished: The runs of all finished legs.
        under_way: The runs of the leg under way; none between two legs.
        round: Its rounds done.
        arrays: Its standing, see `arrays_of`.
        kept: What its clients keep, see `Store.held`, one array after another; None for nothing.
    """

    finished: Sequence[Run]
    under_way: Sequence[Run] = ()
    round: int = 0
    arrays: Arrays = MappingProxyType({})
    kept: Iterable[tuple[str, NDArray[Any]]] | None = None

    @property
    def legs(self) -> int:
        """Finished legs."""
        return sum(1 for _ in legs_of(self.finished))

    @property
    def records(self) -> Iterator[Record]:
        """All records so far, in the order in which they became known."""
        for runs in (*legs_of(self.finished), self.under_way):
            for together in zip(*(run.history for run in runs), strict=True):
                yield from together

    def standing(self, first: Standing, mesh: Mesh) -> Standing:
        """Where the leg under way stands, given where it began."""
        state = _unnumbered(jax.tree.structure(first.state), self.arrays["state"])
        trend = self.arrays.get("trend")
        faulty = self.arrays.get("faulty", no_updates())
        return Standing(
            self.round,
            replicate(mesh, state),
            replicate(mesh, dict(self.arrays["numbers"])),
            None if trend is None else Trend(**replicate(mesh, trend)),
            (self.arrays["taken"],),
            (lambda: faulty,),
        )


def legs_of(runs: Sequence[Run]) -> Iterator[Sequence[Run]]:
    """The runs of whole legs, leg by leg."""
    begin = 0
    while begin < len(runs):
        end = begin + runs[begin].sweep_points
        yield runs[begin:end]
        begin = end


def arrays_of(standing: Standing, points: int) -> Arrays:
    """A standing as arrays by name."""
    taken = sum((np.broadcast_to(n, points) for n in standing.taken), np.zeros(points, np.int64))
    found: dict[str, Any] = {
        "state": _numbered(standing.state),
        "numbers": jax.tree.map(np.asarray, dict(standing.numbers)),
        "taken": taken,
    }
    if standing.trend is not None:
        found["trend"] = jax.tree.map(np.asarray, standing.trend._asdict())
    faulty = all_faulty(standing.faulty)
    if len(faulty):
        found["faulty"] = faulty
    return found


def _numbered(tree: Any) -> dict[str, Any]:
    return {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def _unnumbered(structure: Any, numbered: Arrays) -> Any:
    return jax.tree.unflatten(structure, [numbered[str(i)] for i in range(len(numbered))])


@dataclass
class Checkpoints:
    """A folder for the checkpoints of a comparison, and when they are made.

    Attributes:
        folder: A folder for nothing else; it is made with the first checkpoint.
        every: Rounds between checkpoints. Where it is left out and the comparison goes on from
            another process's checkpoint, it is that one's.
        interval: Seconds after which another one is made, at the end of the call under way.
        resume: Go on from the last checkpoint, or begin where there is none.
        made: Checkpoints made so far.
        seconds: Time that this took.
        size: Bytes of the last one.
        stopping: The signal by which the comparison is to stop: at the end of the round, with a
            checkpoint and `Stopped`.

    Raises:
        InputError: `every` is not a whole number of at least 1.
    """

    folder: Path
    every: int | None = None
    interval: float | None = None
    resume: bool = False
    made: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    size: int = field(default=0, init=False)
    stopping: signal.Signals | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        if self.every is not None:
            require_whole("checkpoint_every", self.every)
            self.every = int(self.every)  # written as JSON

    def begin(self, comparison: Comparison) -> Snapshot:
        """Where to begin: at the last checkpoint that can be read, or at the beginning.

        Raises:
            InputError: The checkpoints are another comparison's, or none can be read.
        """
        self._comparison, self._last = comparison, time.perf_counter()
        self._replaces = not self.resume
        if not self.resume:
            return Snapshot(())
        steps = self._steps()
        common = _common([step for step in steps if (self._clients / str(step)).is_dir()])
        require(
            common or not everyone(len(steps)).any(),
            f"{self.folder}: not all processes have what their clients kept; go on with as many "
            "processes as before",
        )
        damaged = []
        for step in common:
            problem, snapshot = "", None
            try:
                snapshot = self._snapshot(step, *_read(self.folder / STATE, step))
            except InputError:
                raise
            except Exception as error:  # orbax and its storage raise all kinds
                problem = f"{self.folder / STATE / str(step)}: cannot be read: {reason(error)}"
            if everyone(bool(problem)).any():
                damaged.append((step, problem or f"{self.folder}: another process's is damaged"))
                continue
            for later, line in damaged:
                logging.getLogger(__name__).warning("%s; the one before is used", line)
                if jax.process_index() == 0:
                    shutil.rmtree(self.folder / STATE / str(later))
            assert snapshot is not None
            return snapshot
        require(not damaged, damaged[0][1] if damaged else "")
        if self.folder.is_dir() and jax.process_index() == 0:
            line = "%s: no whole checkpoint is there; the comparison begins anew"
            logging.getLogger(__name__).warning(line, self.folder)
        return Snapshot(())

    def _steps(self) -> list[int]:
        if not (self.folder / STATE).is_dir():
            return []
        with _manager(self.folder / STATE) as manager:
            return list(manager.all_steps())

    def _snapshot(self, step: int, position: dict[str, Any], arrays: Arrays) -> Snapshot:
        for key, value in self._comparison.known.items():
            found = position["comparison"].get(key)
            require(
                found == value,
                f"{self.folder}: checkpoints of another comparison: {key} = {found}, here {value}",
            )
        self.every = self.every or position["every"]
        structure = jax.tree.structure(self._comparison.model.shapes)
        finished, under_way = (
            [_run(entry) for entry in position[part]] for part in ("finished", "under_way")
        )
        for i, run in enumerate(finished):
            run.params = _unnumbered(structure, arrays["params"][str(i)])
        kept = None
        if position["kept"]:
            blocks = self._clients / str(step)
            for _ in _read_blocks(blocks):  # each is mapped once, and so known to be whole
                pass
            kept = _read_blocks(blocks)
        return Snapshot(finished, under_way, position["round"], arrays, kept)

    def offer(self, snapshot: Callable[[], Snapshot], leg: str, done: int | None = None) -> None:
        """Make a checkpoint if it is time for one.

        Args:
            snapshot: Waits until all is written down, and says where the comparison stands.
            leg: The leg under way, for people.
            done: Its rounds done; None at its end.

        Raises:
            Stopped: The comparison is to stop.
        """
        # a signal may come to one process alone, or to each in another round, and clocks differ
        asked = everyone(self.stopping or 0).max()
        due = self.every is not None and (done is None or done % self.every == 0)
        if self.interval is not None:
            due = due or bool(everyone(time.perf_counter() - self._last >= self.interval)[0])
        if done == self._comparison.rounds:
            due = False  # the end of the leg is next
        if due or asked:
            self._save(snapshot())
            self._last = time.perf_counter()
        if asked:
            everyone(0)  # all have theirs before any ends
            where = f"after {leg}" if done is None else f"after round {done} of {leg}"
            raise Stopped(where, self.folder, signal.Signals(int(asked)))

    def _save(self, snapshot: Snapshot) -> None:
        begin = time.perf_counter()
        if self._replaces:
            self.remove()  # those of an earlier comparison
        self._replaces = False
        step = snapshot.legs * (self._comparison.rounds + 1) + snapshot.round
        _write_blocks(self._clients / str(step), snapshot.kept or ())
        everyone(0)  # all processes have written theirs
        if jax.process_index() == 0:
            self._save_state(step, snapshot)
        everyone(0)  # the step counts from here on
        for path in self._clients.iterdir():
            if path.name != str(step) and not (self.folder / STATE / path.name).is_dir():
                shutil.rmtree(path)
        files = (self.folder / part / str(step) for part in (STATE, self._clients.name))
        sizes = (path.stat().st_size for part in files for path in part.rglob("*"))
        self.size = sum(sizes)
        self.made += 1
        self.seconds += time.perf_counter() - begin

    def _save_state(self, step: int, snapshot: Snapshot) -> None:
        import orbax.checkpoint as ocp

        arrays = dict(snapshot.arrays)
        if snapshot.finished:
            arrays["params"] = {
                str(i): _numbered(run.params) for i, run in enumerate(snapshot.finished)
            }
        position = {
            "comparison": self._comparison.known,
            "every": self.every,
            "round": snapshot.round,
            "finished": [_entry(run) for run in snapshot.finished],
            "under_way": [_entry(run) for run in snapshot.under_way],
            "kept": snapshot.kept is not None,
        }
        parts = ocp.args.Composite(
            position=ocp.args.JsonSave(position), arrays=ocp.args.PyTreeSave(arrays)
        )
        (self.folder / STATE).mkdir(parents=True, exist_ok=True)
        with _manager(self.folder / STATE, writes=True) as manager:
            manager.save(step, args=parts, force=True)

    @property
    def _clients(self) -> Path:
        """What this process's clients keep."""
        return self.folder / f"clients-{jax.process_index()}"

    def __str__(self) -> str:
        """What was made, as a line for people."""
        return (
            f"{self.made} checkpoint{'s' * (self.made != 1)}, {self.seconds:.1f} s in all, "
            f"the last of {self.size / 1e6:.1f} MB"
        )

    def remove(self) -> None:
        """Remove the folder, as once the results are written: all of it at once."""
        everyone(0)  # nobody needs it any more
        if jax.process_index() == 0 and self.folder.is_dir():
            gone = self.folder.with_name(f".{self.folder.name}.removed")
            shutil.rmtree(gone, ignore_errors=True)
            self.folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        everyone(0)


@contextmanager
def stopping_on_signals(checkpoints: Checkpoints) -> Iterator[None]:
    """Let an interrupt, or a request to end, stop a comparison at the end of its round.

    The next one ends it at once.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(number: int, _: object) -> None:
        put_back()
        checkpoints.stopping = signal.Signals(number)
        what = "finishing the round for a checkpoint; once more to end at once"
        logging.getLogger(__name__).warning("%s: %s", checkpoints.stopping.name, what)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        put_back()


def _manager(folder: Path, *, writes: bool = False) -> Any:
    """Orbax's manager of a folder; one that writes removes what a kill has left there first."""
    import orbax.checkpoint as ocp  # takes a quarter of a second

    alone: dict[str, Any] = {}
    if jax.process_count() > 1:  # or else orbax would wait for the others
        here = jax.process_index()
        alone["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
            primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process-{here}"
        )
    return ocp.CheckpointManager(
        folder.absolute(),
        options=ocp.CheckpointManagerOptions(
            max_to_keep=KEPT,
            enable_async_checkpointing=False,
            cleanup_tmp_directories=writes,
            create=False,
            **alone,
        ),
        item_handlers={
            "arrays": ocp.PyTreeCheckpointHandler(**alone),
            "position": ocp.JsonCheckpointHandler(**alone),
        },
    )


def _common(steps: Sequence[int]) -> Sequence[int]:
    """The steps that all processes have, the last first."""
    last = sorted(steps, reverse=True)[:KEPT]
    if jax.process_count() == 1:
        return last
    theirs = np.stack([everyone(step) for step in (*last, *[-1] * (KEPT - len(last)))])
    common = set.intersection(*(set(each.tolist()) for each in theirs.T))
    return sorted(common - {-1}, reverse=True)


def _read(folder: Path, step: int) -> tuple[dict[str, Any], Arrays]:
    import orbax.checkpoint as ocp

    args = ocp.args.Composite(arrays=ocp.args.PyTreeRestore(), position=ocp.args.JsonRestore())
    with _manager(folder) as manager:
        found = manager.restore(step, args=args)
    return found["position"], found["arrays"]


def _write_blocks(folder: Path, blocks: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Write arrays as files, one after another; the folder appears whole or not at all."""
    partial = folder.with_name(f".{folder.name}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, block in blocks:
        with (partial / f"{name}.npy").open("wb") as file:
            np.save(file, block.view(np.uint8))  # of whatever type
            file.flush()
            os.fsync(file.fileno())
    partial.rename(folder)


def _read_blocks(folder: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Read them back, what is known first."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.stem != KNOWN, path.stem)):
        yield path.stem, np.load(path, mmap_mode="r")


def _entry(run: Run) -> dict[str, Any]:
    """A run but for its parameters, as JSON would hold it."""
    entry = {f.name: getattr(run, f.name) for f in fields(run) if f.name != "params"}
    return entry | {"history": [record._asdict() for record in run.history]}


def _run(entry: dict[str, Any]) -> Run:
    return Run(**entry | {"history": [Record(**record) for record in entry["history"]]})
