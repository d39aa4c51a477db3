"""Snapshots: the contents of a checkpoint as values."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.simulation.config.method import Method
from fedprox.simulation.config.protocol import Protocol
from fedprox.simulation.devices.mesh import replicate
from fedprox.simulation.loop.execution import RunState
from fedprox.simulation.loop.participation import Participation, participation
from fedprox.simulation.loop.records import all_faulty, no_updates
from fedprox.simulation.planning.batch_plan import Capacity
from fedprox.simulation.results.record import Record
from fedprox.simulation.results.run import Run

Arrays = Mapping[str, Any]


class Fingerprint(NamedTuple):
    """The settings of a comparison that its checkpoints must match.

    Attributes:
        labels: Labels of the runs.
        seeds: Seeds of the runs.
        rounds: Number of rounds T.
        settings: All other settings that results depend on, by name, see `Protocol.settings`.
        protocol: The protocol.
        methods: The method of each seed run.
        runs: The runs of each seed run, before their first round.
    """

    labels: tuple[str, ...]
    seeds: tuple[int, ...]
    rounds: int
    settings: Mapping[str, Any]
    protocol: Protocol
    methods: Sequence[Method]
    runs: Sequence[Sequence[Run]]

    @property
    def all_settings(self) -> dict[str, Any]:
        """All of these settings by name, as a checkpoint stores them."""
        return {
            "labels": list(self.labels),
            "seeds": list(self.seeds),
            "rounds": self.rounds,
            "processes": jax.process_count(),
            **self.settings,
        }


class Snapshot(NamedTuple):
    """The contents of a checkpoint.

    A seed run is all sweep points of a method with one seed.

    Attributes:
        finished: The runs of all finished seed runs.
        under_way: The runs of the seed run under way; empty between two seed runs.
        round: Number of rounds done of the seed run under way.
        arrays: State of the seed run under way, see `arrays_of`.
        client_state: Client state of the seed run under way, as in `Store.contents`; None without
            client state.
        file: The file that it was read from; None if it was not.
        checksums: Checksums of all processes' files of this client state, if it was read.
    """

    finished: Sequence[Run]
    under_way: Sequence[Run] = ()
    round: int = 0
    arrays: Arrays = MappingProxyType({})
    client_state: Iterable[tuple[str, NDArray[Any]]] | None = None
    file: Path | None = None
    checksums: Sequence[str] | None = None

    @property
    def seed_runs(self) -> int:
        """Number of finished seed runs."""
        return sum(1 for _ in seed_runs_of(self.finished))

    @property
    def records(self) -> Iterator[Record]:
        """All records so far, in the order of their evaluations."""
        for runs in (*seed_runs_of(self.finished), self.under_way):
            for evaluation in zip(*(run.history for run in runs), strict=True):
                yield from evaluation

    def state(self, structure: Any) -> Any:
        """The server's state of the seed run under way, as a tree of the given structure."""
        return _unnumbered(structure, self.arrays.get("state", {}))

    def best(self, structure: Any) -> Any:
        """The best models of the seed run under way, as a tree of the given structure.

        None if only the last model is kept.
        """
        return _unnumbered(structure, self.arrays["best"]) if "best" in self.arrays else None

    @property
    def capacity(self) -> Capacity | None:
        """Capacity of the last call; None if no seed run is under way."""
        if "capacity" not in self.arrays:
            return None
        return Capacity(*map(int, self.arrays["capacity"]))

    def run_state(self, first: RunState, mesh: Mesh) -> RunState:
        """The state of the seed run under way.

        Args:
            first: A state of the same structure, such as that before round 0.
            mesh: The devices.
        """
        state = _unnumbered(jax.tree.structure(first.state), self.arrays.get("state", {}))
        memory = _unnumbered(jax.tree.structure(first.memory), self.arrays.get("memory", {}))
        faulty = self.arrays.get("faulty", no_updates())
        return RunState(
            self.round,
            replicate(mesh, state),
            replicate(mesh, dict(self.arrays["hparams"])),
            replicate(mesh, memory),
            (self.arrays["taken"],),
            (lambda: faulty,),
            int(self.arrays["empty"]),
            self.capacity,
            replicate(mesh, self.best(jax.tree.structure(first.best))),
            trained=(Participation(**self.arrays["trained"]).again(),)
            if "trained" in self.arrays
            else (),
        )


class End(NamedTuple):
    """The last state of a seed run.

    Attributes:
        rounds: Number of rounds T of its comparison. A seed run that ended early did fewer.
        snapshot: A snapshot with this seed run under way.
    """

    rounds: int
    snapshot: Snapshot


def seed_runs_of(runs: Sequence[Run]) -> Iterator[Sequence[Run]]:
    """Group runs by seed run."""
    begin = 0
    while begin < len(runs):
        end = begin + runs[begin].sweep_points
        yield runs[begin:end]
        begin = end


def arrays_of(now: RunState, points: int, clients: int) -> Arrays:
    """A run state as arrays by name.

    Args:
        now: The run state.
        points: Number of sweep points.
        clients: Number of clients of the federation.
    """
    taken = sum((np.broadcast_to(n, points) for n in now.taken), np.zeros(points, np.int64))
    arrays: dict[str, Any] = {
        "state": _numbered(now.state),
        "hparams": jax.tree.map(np.asarray, dict(now.hparams)),
        "taken": taken,
        "empty": np.int64(now.empty),
    }
    if now.capacity is not None:
        arrays["capacity"] = np.array(now.capacity, np.int64)
    if now.best is not None:
        arrays["best"] = _numbered(now.best)
    if now.memory is not None:
        arrays["memory"] = _numbered(now.memory)
    if now.trained:
        arrays["trained"] = participation(now.trained, clients, points)._asdict()
    faulty = all_faulty(now.faulty)
    if len(faulty):
        arrays["faulty"] = faulty
    return arrays


def numbered_shapes(tree: Any) -> dict[str, Any]:
    """The leaves of a tree of shapes by their numbers, as checkpoints have those of a tree."""
    return {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(tree))}


def _numbered(tree: Any) -> dict[str, Any]:
    return {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def _unnumbered(structure: Any, numbered: Arrays) -> Any:
    return jax.tree.unflatten(structure, [numbered[str(i)] for i in range(len(numbered))])
