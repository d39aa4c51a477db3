"""A seed run after some of its rounds: as a checkpoint's file holds it, and in the hands of a user.

The file has the form of `fedprox.files.arrays`, after a line `fedprox checkpoint FORMAT`. Its first
array is JSON text: the settings of the comparison, the records, and the counts since the last of
them. The server's state, the hyperparameters and what belongs to them follow. The checksums in the
text tie the files of client state to it.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedprox.algorithms.base import State
from fedprox.engine.compiled.compile import evaluated
from fedprox.engine.planning.batch_plan import Capacity
from fedprox.errors import plural, require, require_number
from fedprox.files.arrays import check_arrays, malformed, read_arrays, write_arrays
from fedprox.loop.execution import Done, RunState
from fedprox.model import Params
from fedprox.precision import real_type
from fedprox.protocol.method import Method
from fedprox.protocol.protocol import Protocol
from fedprox.results.record import Record
from fedprox.results.run import Run

FORMAT = 6
"""The format of checkpoints. The meaning of the first line and of the last 32 bytes, the checksum,
is the same in formats 2 to 6. Format 1 was written by orbax, in fedprox 0.1."""


HEAD = "fedprox checkpoint "
"""Beginning of the first line of a file, before the number of the format."""


class Snapshot(NamedTuple):
    """A seed run, all sweep points of a method with one seed, after some of its rounds.

    Attributes:
        runs: Its runs, with their records.
        now: Its state.
        early: Whether it ended before its last round.
        client_state: Its client state, as in `Store.contents`; None without client state.
        file: The file of the client state; None if the snapshot was not read from files.
    """

    runs: Sequence[Run]
    now: RunState
    early: bool = False
    client_state: Iterable[tuple[str, NDArray[Any]]] | None = None
    file: Path | None = None

    @property
    def records(self) -> Iterator[Record]:
        """Its records, in the order of their evaluations."""
        for evaluation in zip(*(run.history for run in self.runs), strict=True):
            yield from evaluation

    def is_over(self, protocol: Protocol) -> bool:
        """Whether no rounds are left."""
        return self.early or self.now.round == protocol.rounds

    def fit_to(self, protocol: Protocol) -> None:
        """Remove a last record that only a comparison with fewer rounds has.

        A comparison always evaluates its last model. The counts of a state are those since the
        record before, as if this one had never been made.
        """
        for run in () if self.is_over(protocol) else self.runs:
            if run.history and run.final.round % protocol.evaluation.every:
                run.history.pop()
                run.client_steps = run.final.total_steps

    def is_of(self, planned: Sequence[Run]) -> bool:
        """Whether it is of these runs, with records that they can have after its rounds."""
        if [(run.label, run.seed) for run in self.runs] != [(r.label, r.seed) for r in planned]:
            return False
        histories = {tuple(record.round for record in run.history) for run in self.runs}
        rounds = list(histories.pop())
        return not histories and rounds == sorted({0, *rounds}) and rounds[-1] <= self.now.round

    def require_of(self, planned: Sequence[Run], method: Method) -> None:
        """Raise `InputError` unless rounds of a method can begin from it."""
        ours, theirs = (
            (each.label, each.seed, each.hparams, each.learning_rate)
            for each in (self.runs[0], planned[0])
        )
        rounds, shapes = method.protocol.rounds, _named(_shapes_of(method))
        require(
            ours == theirs,
            f"start: a stage of {ours[0]}, seed {ours[1]}, learning rate {ours[3]:g}; here "
            f"{theirs[0]}, seed {theirs[1]}, learning rate {theirs[3]:g}",
        )
        require(
            [(name, np.shape(a)) for name, a in _named(_arrays_of(self.now, method))]
            == [(name, a.shape) for name, a in shapes],
            "start: its arrays are not those of this model, method and evaluation",
        )
        require(
            self.now.round <= rounds,
            f"start: it has {plural(self.now.round, 'round')}; rounds = {rounds} must not be fewer",
        )


Natural = Annotated[int, Field(ge=0, lt=2**63)]


class Text(BaseModel):
    """The content of a checkpoint beside arrays, as JSON.

    Attributes:
        settings: The settings of the comparison.
        rounds: Its number of rounds T.
        every: Rounds between checkpoints.
        interval: Seconds between checkpoints.
        round: Number of rounds done; 0 in a file with settings only.
        early: Whether the seed run ended before its last round.
        runs: Its runs, without parameters.
        taken: Steps since the last evaluation, as in `RunState`; likewise the next four.
        empty: Rounds without clients.
        messages: Messages of clients.
        faulty: Faulty updates, as (round, point, client).
        capacity: Capacity of the last call.
        clients: Checksum of each process's file of client state; None without client state.
    """

    model_config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)

    settings: dict[str, Any]
    rounds: Natural
    every: Annotated[int, Field(ge=1)] | None
    interval: Annotated[float, Field(ge=0)] | None
    round: Natural = 0
    early: bool = False
    runs: list[Run] = []
    taken: list[Natural] = []
    empty: Natural = 0
    messages: Natural = 0
    faulty: list[tuple[Natural, Natural, Natural]] = []
    capacity: Capacity | None = None
    clients: list[str] | None = None


def write_state(
    path: Path,
    table: Mapping[str, Any],
    method: Method,
    snapshot: Snapshot | None = None,
    checksums: Sequence[str] | None = None,
) -> None:
    """Write the file of a checkpoint."""
    table, tree = dict(table), None
    if snapshot is not None:
        now, points = snapshot.now, len(snapshot.runs)
        tree = _arrays_of(now, method)
        table |= {
            "round": now.round,
            "early": snapshot.early,
            "runs": [_without_params(run) for run in snapshot.runs],
            "taken": now.since.steps_at(points).tolist(),
            "empty": now.since.empty,
            "messages": now.since.messages,
            "faulty": now.since.all_faulty().tolist(),
            "capacity": now.capacity,
            "clients": checksums,
        }
    text = np.frombuffer(json.dumps(table).encode(), np.uint8)
    arrays = ((name, np.asarray(leaf)) for name, leaf in _named(tree))
    write_file(path, itertools.chain([("text", text)], arrays))


def write_file(path: Path, arrays: Iterable[tuple[str, NDArray[Any]]]) -> str:
    """Write a file of named arrays, and return its checksum."""
    return write_arrays(path, f"{HEAD}{FORMAT}", (([name], array) for name, array in arrays))


def check_file(path: Path) -> str:
    """Check a file's checksum and format, and return the checksum."""
    head, checksum = check_arrays(path)
    require_format(path, head.removeprefix(HEAD))
    return checksum


def require_format(path: Path, written: str) -> None:
    """Raise `InputError` if a file of format `written` cannot be read."""
    require(
        written == str(FORMAT),
        f"{path}: a checkpoint of format {written}; this version reads {FORMAT}: go on with the "
        "version that wrote it, or begin anew",
    )


def read_file(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the names and arrays of a file that has been checked."""
    for keys, array in read_arrays(path):
        yield ".".join(keys), array


def read_state(path: Path) -> tuple[Text, list[tuple[str, NDArray[Any]]]]:
    """Read the text and the arrays of a checkpoint's file."""
    check_file(path)
    try:
        (_, text), *arrays = read_file(path)
        return Text.model_validate_json(text.tobytes()), arrays
    except (ValueError, RecursionError):
        raise malformed(path, "its text is not as it should be") from None


def restored(
    path: Path, text: Text, arrays: Sequence[tuple[str, NDArray[Any]]], method: Method
) -> Snapshot:
    """The snapshot in a checkpoint's file, with arrays of NumPy and without client state."""
    shapes = _shapes_of(method)
    expected = [(name, leaf.shape, np.dtype(leaf.dtype)) for name, leaf in _named(shapes)]
    points = len(method.points)
    if [(name, a.shape, a.dtype) for name, a in arrays] != expected or len(text.taken) != points:
        raise malformed(path, "its arrays are not those of this method")
    tree = jax.tree.unflatten(jax.tree.structure(shapes), [array for _, array in arrays])
    state, hparams, memory, best, clients = tree
    faulty = np.array(text.faulty, np.int64).reshape(-1, 3)
    since = Done(
        empty=text.empty,
        messages=text.messages,
        steps=(np.array(text.taken),),
        faulty=(lambda: faulty,),
        clients=() if clients is None else ((np.arange(len(clients[0])), *clients),),
    )
    now = RunState(text.round, state, hparams, memory, since, text.capacity, best)
    columns = method.protocol.federation.columns
    return Snapshot([replace(run, columns=columns) for run in text.runs], now, text.early)


def _without_params(run: Run) -> dict[str, Any]:
    """A run as JSON has it, without what comes from elsewhere."""
    names = [f.name for f in fields(run) if f.name not in ("params", "columns")]
    table = {name: getattr(run, name) for name in names}
    return table | {"history": [record.as_dict() for record in run.history]}


def _arrays_of(now: RunState, method: Method) -> Any:
    """The arrays of a state that a checkpoint holds."""
    protocol, clients = method.protocol, None
    if protocol.evaluation.client_records:
        clients = now.since.by_client(len(protocol.federation), len(method.points))
    return now.state, dict(now.hparams), now.memory, now.best, clients


def _named(arrays: Any) -> list[tuple[str, Any]]:
    """The arrays of `_arrays_of` with their names in files."""
    names = {"[4][0]": "[4].rounds", "[4][1]": "[4].steps"}
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    named = ((jax.tree_util.keystr(key), leaf) for key, leaf in leaves)
    return [(names.get(name, name), leaf) for name, leaf in named]


def _shapes_of(method: Method) -> Any:
    """The shapes of `_arrays_of` for a method."""
    algorithm, protocol, points = method.algorithm, method.protocol, len(method.points)

    def shape(*shape: int, dtype: Any = None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, np.dtype(dtype or real_type()))

    at_one = algorithm.state_like(protocol.model.shapes)
    state = jax.tree.map(lambda a: shape(points, *a.shape, dtype=a.dtype), at_one)
    hparams = {name: shape(*a.shape, dtype=a.dtype) for name, a in method.values.items()}
    memory, best, by_client = None, None, None
    if algorithm.adapt is not None:
        memory = jax.eval_shape(algorithm.adapt.init, hparams, shape(points))
    if protocol.selection.keep == "best":
        best = jax.eval_shape(partial(evaluated, algorithm), state)
    if protocol.evaluation.client_records:
        clients = len(protocol.federation)
        by_client = shape(clients, dtype=int), shape(clients, points, dtype=int)
    return state, hparams, memory, best, by_client


ClientArrays = list[tuple[str, NDArray[Any]]]


class Stage:
    """A run after some of its rounds, as :func:`fedprox.rounds` yields it.

    Args:
        method: The method that is trained.
        run: The run so far.
        now: Its state; the arrays belong to this stage.
        done: The work of its rounds since the record before.
        set_rate: Gives the rounds that follow another learning rate.
        client_state: () -> a copy of the client state.

    Attributes:
        run: The run with its records so far. Its parameters are set when the loop ends or is left.
        record: The record of this round.

    Example:
        >>> import fedprox as fp
        >>> federation = fp.datasets.synthetic(clients=4)
        >>> for stage in fp.rounds(
        ...     federation,
        ...     fp.models.logistic(federation),
        ...     fp.fedavg(),
        ...     solver=fp.Solver(learning_rate=0.1, batch_size=10, steps=5),
        ...     cohort=fp.Cohort(clients_per_round=2),
        ...     rounds=10,
        ... ):
        ...     if stage.record.round == 3:
        ...         break
        >>> sorted(stage.clients.values()), len(stage.run.history)
        ([5, 5], 4)
    """

    run: Run
    record: Record

    def __init__(
        self,
        method: Method,
        run: Run,
        now: RunState,
        done: Done,
        set_rate: Callable[[float], None],
        client_state: Callable[[], ClientArrays | None],
    ) -> None:
        self.run, self.record = run, run.final
        self._method, self._now, self._done = method, now, done
        self._set_rate, self._client_state, self._left = set_rate, client_state, False
        self._run = replace(run, history=list(run.history))
        self._rate = self.record.learning_rate

    def __repr__(self) -> str:
        return f"Stage({self.record!r})"

    @cached_property
    def params(self) -> Params:
        """The model's parameters, as NumPy arrays."""
        whole = evaluated(self._method.algorithm, self._now.state)
        return jax.tree.map(lambda a: np.asarray(a[0]), whole)

    @property
    def state(self) -> State:
        """The server's state, such as SCAFFOLD's model and control variate."""
        return jax.tree.map(lambda a: a[0], self._now.state)

    @property
    def clients(self) -> Mapping[str, int]:
        """Mini-batch steps of each client that trained in the last round, by its name."""
        names, jobs = self._method.protocol.federation.names, self._done.work.jobs
        taken = self._done.taken
        steps = jobs.steps if taken is None else np.asarray(taken)[: len(jobs.steps), 0]
        counts = dict[str, int]()
        for k, count in zip(jobs.client.tolist(), steps.tolist(), strict=True):
            counts[names[k]] = counts.get(names[k], 0) + count
        return counts

    @property
    def learning_rate(self) -> float:
        """Learning rate of the last round; set it for the rounds that follow.

        Raises:
            InputError: If it is set to a number that is not above 0, or after the loop went on or
                was left. Also for a solver with a schedule or a decay, and in rounds without a
                barrier.
        """
        return self._rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        solver = self._method.solver
        require_number("learning_rate", rate, positive=True, single=True)
        require(
            not self._left,
            f"learning_rate: the loop has left round {self.record.round}; set it on the last "
            "stage, while the loop is there",
        )
        require(
            solver.schedule is None and solver.learning_rate_decay == 1,
            "learning_rate: solver.learning_rate is a function, or decays; give one number",
        )
        require(
            not self._method.several_starts,
            "learning_rate: without a barrier, clients of several rounds train at once; it must "
            "stay as it is",
        )
        self._set_rate(float(rate))
        self._rate = float(rate)

    def leave(self, clients: ClientArrays | None) -> None:
        """Note that the loop goes on, or ends with this client state."""
        self._left, self._client_state = True, lambda: clients

    def snapshot(self) -> Snapshot:
        """A copy of this state, from which rounds can begin.

        Raises:
            InputError: If the loop went on, and the method has client state.
        """
        clients = self._client_state()
        require(
            clients is not None or self._method.algorithm.client.state is None,
            f"start: the loop went on after round {self.record.round}, and the clients' state with "
            "it; give the last stage, or use checkpoints",
        )
        # NumPy's arrays, since rounds reuse the memory of the state
        state = jax.tree.map(np.array, self._now.state)
        run = replace(self._run, history=list(self._run.history))
        return Snapshot([run], self._now._replace(state=state), client_state=clients)
