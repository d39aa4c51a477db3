"""Checkpoints: where a comparison stands, so that another process can go on from there.

The comparison that goes on is the same, bit for bit: a checkpoint holds the server's state, what
clients keep, the numbers that adapt and all records, and everything else is a function of the seed,
the round and the client. It appears under its name whole or not at all (orbax writes it), and the
last two are kept, so that there is one whenever the process ends.
"""

import logging
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.adaptive import Trend
from fedprox.errors import require, require_whole
from fedprox.model import Model
from fedprox.simulation.history import Record, Run
from fedprox.simulation.lanes import replicate
from fedprox.simulation.rounds import Standing
from fedprox.simulation.settle import no_updates

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
        clients: Clients of the federation.
        model: The model, of which the parameters are.
    """

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int
    clients: int
    model: Model

    @property
    def known(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        return {
            "labels": list(self.labels),
            "seeds": list(self.seeds),
            "rounds": self.rounds,
            "clients": self.clients,
        }


class Snapshot(NamedTuple):
    """What a checkpoint holds.

    A leg is all points of a method with one seed.

    Attributes:
        finished: The runs of all finished legs.
        under_way: The runs of the leg under way; none between two legs.
        round: Its rounds done.
        arrays: Its standing, see `arrays_of`.
        kept: What its clients keep, see `Store.held`, one array after another.
    """

    finished: Sequence[Run]
    under_way: Sequence[Run] = ()
    round: int = 0
    arrays: Arrays = MappingProxyType({})
    kept: Iterable[tuple[str, NDArray[Any]]] = ()

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
    faulty = np.concatenate([no_updates(), *(find() for find in standing.faulty)])
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
        folder: The folder; it is made with the first checkpoint.
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
        if self.every is not None:
            require_whole("checkpoint_every", self.every)

    def begin(self, comparison: Comparison) -> Snapshot:
        """Where to begin: at the last checkpoint that can be read, or at the beginning.

        Raises:
            InputError: The checkpoints are another comparison's, or none can be read.
        """
        self._comparison, self._last = comparison, time.perf_counter()
        if not self.resume or not self.folder.is_dir():
            return Snapshot(())
        damaged = []
        with _manager(self.folder) as manager:
            for step in sorted(manager.all_steps(), reverse=True):
                try:
                    position, arrays = _read(manager, step)
                except Exception as error:  # orbax and its storage raise all kinds
                    reason = str(error).partition("\n")[0]
                    damaged.append(f"{self.folder / str(step)}: cannot be read: {reason}")
                    continue
                snapshot = self._snapshot(step, position, arrays)
                for line in damaged:
                    logging.getLogger(__name__).warning("%s; the one before is used", line)
                for later in manager.all_steps():
                    if later > step:
                        manager.delete(later)
                return snapshot
        require(not damaged, damaged[0] if damaged else "")
        return Snapshot(())

    def _snapshot(self, step: int, position: dict[str, Any], arrays: Arrays) -> Snapshot:
        for key, value in self._comparison.known.items():
            found = position["comparison"][key]
            require(
                found == value,
                f"{self.folder}: checkpoints of another comparison: {key} = {found}, here {value}",
            )
        self.every = self.every or position["every"]
        model = jax.eval_shape(self._comparison.model.init, jax.random.key(0))
        structure = jax.tree.structure(model)
        finished, under_way = (
            [_run(entry) for entry in position[part]] for part in ("finished", "under_way")
        )
        for i, run in enumerate(finished):
            run.params = _unnumbered(structure, arrays["params"][str(i)])
        kept = self._kept(step, position["kept"])
        return Snapshot(finished, under_way, position["round"], arrays, kept)

    def _kept(self, step: int, names: Sequence[str]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Read one array after another, since they may be larger together than the memory."""
        import orbax.checkpoint as ocp

        for name in names:
            one = ocp.args.PyTreeRestore(
                item={name: 0},
                restore_args={name: ocp.RestoreArgs(restore_type=np.ndarray)},
                partial_restore=True,
            )
            with _manager(self.folder) as manager:
                yield name, manager.restore(step, args=ocp.args.Composite(kept=one))["kept"][name]

    def offer(self, snapshot: Callable[[], Snapshot], leg: str, done: int | None = None) -> None:
        """Make a checkpoint if it is time for one.

        Args:
            snapshot: Waits until all is written down, and says where the comparison stands.
            leg: The leg under way, for people.
            done: Its rounds done; None at its end.

        Raises:
            Stopped: The comparison is to stop.
        """
        waited = time.perf_counter() - self._last
        if (
            (self.every is not None and (done is None or done % self.every == 0))
            or (self.interval is not None and waited >= self.interval)
            or self.stopping is not None
        ):
            self._save(snapshot())
            self._last = time.perf_counter()
        if self.stopping is not None:
            where = f"after {leg}" if done is None else f"after round {done} of {leg}"
            raise Stopped(where, self.folder, self.stopping)

    def _save(self, snapshot: Snapshot) -> None:
        import orbax.checkpoint as ocp

        begin = time.perf_counter()
        if not self.made and not self.resume:
            self.remove()  # those of an earlier comparison
        arrays, kept = dict(snapshot.arrays), dict(snapshot.kept)
        position = {
            "comparison": self._comparison.known,
            "every": self.every,
            "round": snapshot.round,
            "finished": [_entry(run) for run in snapshot.finished],
            "under_way": [_entry(run) for run in snapshot.under_way],
            "kept": list(kept),
        }
        if snapshot.finished:
            arrays["params"] = {
                str(i): _numbered(run.params) for i, run in enumerate(snapshot.finished)
            }
        step = snapshot.legs * (self._comparison.rounds + 1) + snapshot.round
        parts = {
            "position": ocp.args.JsonSave(position),
            "arrays": ocp.args.PyTreeSave(arrays or {"none": np.zeros(1)}),
            **({"kept": ocp.args.PyTreeSave(kept)} if kept else {}),
        }
        with _manager(self.folder, writes=True) as manager:
            manager.save(step, args=ocp.args.Composite(**parts), force=True)
        files = (self.folder / str(step)).rglob("*")
        self.size = sum(path.stat().st_size for path in files if path.is_file())
        self.made += 1
        self.seconds += time.perf_counter() - begin

    def __str__(self) -> str:
        """What was made, as a line for people."""
        return (
            f"{self.made} checkpoint{'s' * (self.made != 1)}, {self.seconds:.1f} s in all, "
            f"the last of {self.size / 1e6:.1f} MB"
        )

    def remove(self) -> None:
        """Remove all checkpoints, as once the results are written."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            if path.name.partition(".")[0].isdigit():  # whole ones, and what a kill has left
                shutil.rmtree(path)
        with suppress(OSError):  # it holds other files
            self.folder.rmdir()


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

    options = ocp.CheckpointManagerOptions(
        max_to_keep=KEPT, enable_async_checkpointing=False, cleanup_tmp_directories=writes
    )
    return ocp.CheckpointManager(folder.absolute(), options=options)


def _read(manager: Any, step: int) -> tuple[dict[str, Any], Arrays]:
    import orbax.checkpoint as ocp

    args = ocp.args.Composite(arrays=ocp.args.PyTreeRestore(), position=ocp.args.JsonRestore())
    found = manager.restore(step, args=args)
    return found["position"], found["arrays"]


def _entry(run: Run) -> dict[str, Any]:
    """A run but for its parameters, as JSON would hold it."""
    entry = {f.name: getattr(run, f.name) for f in fields(run) if f.name != "params"}
    return entry | {"history": [record._asdict() for record in run.history]}


def _run(entry: dict[str, Any]) -> Run:
    return Run(**entry | {"history": [Record(**record) for record in entry["history"]]})
