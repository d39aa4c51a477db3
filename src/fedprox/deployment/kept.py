"""The folder of a node: client state, the costs of its answers, the sums that it has revealed.

**Client state** is one file for each client and round, written whole or not at all. An update
counts only once the coordinator has used it. The node does not know whether an answer arrived in
time, so it keeps the state after each round as a file of its own. Each request names the round
whose state the client continues from. A late or lost answer therefore changes neither side. Earlier
files are removed, unless they belong to a checkpoint of the coordinator. Later files are kept: the
request may be a repetition of an old one.

**The costs of answers** are counted in rounds of a method and seed. A paid round covers one answer
of each kind: a first cohort's gradients, training, and one evaluation. A request for round t pays
`max(1, t - s)` rounds, where s is the last round that was paid. The rounds in between, in which no
client of the node was drawn, are rounds too. A round that is repeated is paid again. An evaluation
beyond that of its round pays the next one, since measures of chosen models reveal as much as other
answers. A request that is repeated has the same answer and pays nothing.

The releases of a private run are counted likewise, from what is released alone: evaluations without
noise are outside the guarantee, and those with noise are counted one by one. Rounds after the last
request of a run are not known to the node, and so are not counted. Of a run with cyclic cohorts all
rounds are counted at its first, as one release, since the noise of each is correlated with that of
others. Private local steps are counted for each client. The same request has other rows and other
noise once it is computed anew, and so is paid anew.

An answer must not cost more the more a node has answered. So releases are counted by what they
release for the last `EXACTLY` different mechanisms alone; those before are composed to a bound.

**Sums**: a node reveals its shares of one sum of messages of each kind in each round of a run. From
two sums of the same messages, over all nodes and over all but one, the operator could compute the
one. A run that is resumed measures its last model again, so the last evaluation of a run may be
repeated, but with no other model. Secrets of a sum are in the node's memory alone: a node that was
restarted has none of earlier sums, and can reveal nothing.
"""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from fedprox.deployment.wire import Head, NotNegative, Request, RequestKind, RoundNumber, Setup
from fedprox.errors import InputError, require
from fedprox.files.arrays import Damaged, check_arrays, read_arrays, write_arrays
from fedprox.files.whole import write_whole
from fedprox.parts.privacy.accounting import Composed, Mechanism, alike, composed_with


class NodeMemory(Head):
    """A node's memory over all runs, in a file of its folder.

    Attributes:
        FILE: The file's name.
        DAMAGED: The file's purpose, and what to do if it is damaged.
    """

    FILE: ClassVar[str]
    DAMAGED: ClassVar[str]


K = TypeVar("K", bound=NodeMemory)


def read_kept(kind: type[K], folder: Path) -> K:
    """The content of a folder's file; an empty one if there is no file."""
    path = folder / kind.FILE
    try:
        return kind.model_validate_json(path.read_bytes()) if path.exists() else kind()
    except ValidationError:
        raise InputError(f"{path}: damaged; {kind.DAMAGED}") from None


def write_kept(folder: Path, content: NodeMemory) -> None:
    """Write what a node remembers, before it acts on it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(folder / content.FILE, content.model_dump_json(indent=1).encode())


FIRST_LINE = "fedprox client state 2"
"""Beginning of the first line of a file, before what the state belongs to."""

NEW = -1
"""The round of a client that has no state yet."""


class LostStateError(InputError):
    """Client state that a request names is not there, or not whole."""


class States:
    """The states of the clients of one run on a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, client: str, round_: int, like: Any) -> Any:
        """The state of a client after a round."""
        path = self._of(client) / f"{round_}.state"
        where = f"state of client {client!r} after round {round_ + 1}"
        try:
            head, _ = check_arrays(path)
            require(
                head == self._head(client, round_),
                f"{path} is not its file, but of another run, client or round",
            )
            arrays = [array for _, array in read_arrays(path)]
        except (Damaged, InputError) as error:
            raise LostStateError(f"{where}: {error}; begin the run anew") from None
        leaves, structure = jax.tree.flatten(like)
        have = [(a.shape, a.dtype) for a in arrays]
        if have != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            raise LostStateError(
                f"{where}: {path} holds arrays of other shapes; begin the run anew"
            )
        return jax.tree.unflatten(structure, arrays)

    def read_points(self, client: str, rounds: Sequence[int], like: Any, fresh: Any) -> Any:
        """The state of a client, at each sweep point after the round given there."""
        after = {r: fresh if r == NEW else self.read(client, r, like) for r in {*rounds}}
        if len(after) == 1:
            return after[rounds[0]]

        def at_points(*leaves: Any) -> NDArray[Any]:
            return np.stack([leaf[point] for point, leaf in enumerate(leaves)])

        return jax.tree.map(at_points, *(after[r] for r in rounds))

    def write(self, client: str, round_: int, state: Any) -> None:
        """Write the state of a client after a round."""
        leaves = jax.tree.leaves(state)
        path = self._of(client) / f"{round_}.state"
        head = self._head(client, round_)
        write_arrays(path, head, ((["state", str(i)], leaf) for i, leaf in enumerate(leaves)))

    def _head(self, client: str, round_: int) -> str:
        """The first line of a file: what it is, and which run, method, seed, client and round."""
        place = [self.folder.parent.name, self.folder.name, client, round_]
        return f"{FIRST_LINE} {json.dumps(place)}"

    def forget(self, client: str, used: Collection[int], kept: Collection[int]) -> None:
        """Remove the files of rounds before the last one of `used`, except these and `kept`."""
        for path in self._files(client):
            if int(path.stem) < max(used) and int(path.stem) not in {*used, *kept}:
                path.unlink(missing_ok=True)

    def rounds(self, client: str) -> list[int]:
        """The rounds of which the state of a client is stored, ascending."""
        return sorted(int(path.stem) for path in self._files(client))

    def _files(self, client: str) -> list[Path]:
        folder = self._of(client)
        files = folder.iterdir() if folder.is_dir() else ()
        return [path for path in files if re.fullmatch(r"\d+\.state", path.name)]

    def _of(self, client: str) -> Path:
        """The folder of a client. Its name may have characters that file names cannot."""
        readable = re.sub(r"[^A-Za-z0-9-]", "_", client)[:40]
        return self.folder / f"{readable}-{hashlib.sha256(client.encode()).hexdigest()[:12]}"


def keep_last_runs(folder: Path, run: str, keep: int) -> None:
    """Remove the states of all runs but the last `keep`, of which `run` is one.

    The time of a run is that of its folder, which is set to now for `run`.
    """
    (folder / run).mkdir(parents=True, exist_ok=True)
    (folder / run).touch()
    runs = sorted(
        (path for path in folder.iterdir() if path.is_dir()),
        key=lambda path: (path.name == run, path.stat().st_mtime_ns),
    )
    for path in runs[: max(0, len(runs) - keep)]:
        shutil.rmtree(path, ignore_errors=True)


EXACTLY = 32
"""Different mechanisms whose releases are counted one by one, for a tight composition."""

RUNS = 100
"""Runs whose last rounds are kept. A run that is forgotten pays its earlier rounds once more."""

NO_ROUND = -1


class RunSpent(Head):
    """The privacy and rounds that one seed of a method has spent.

    Attributes:
        round: The last round that is paid.
        answered: The kinds of requests that were answered in this round.
        released: The last round in which clients sent something.
        releases: Rounds of this mechanism that are counted.
        mechanism: The mechanism of a round; None without privacy.
        whole: The mechanism of all rounds together, if they are counted so.
        steps: Private local steps of each client.
        evaluations: Evaluations with noise.
        measured: The mechanism of such an evaluation; None without.
        request: Digest of the last request.
    """

    round: RoundNumber = NO_ROUND
    answered: list[RequestKind] = Field(default_factory=list)
    released: RoundNumber = NO_ROUND
    releases: NotNegative = 0
    mechanism: Mechanism | None = None
    whole: Mechanism | None = None
    steps: dict[str, NotNegative] = Field(default_factory=dict)
    evaluations: NotNegative = 0
    measured: Mechanism | None = None
    request: str = ""


Taken = list[tuple[Mechanism, NotNegative]]
"""Releases by what they release, the last ones at the end."""


class NodeSpent(NodeMemory):
    """The costs of a node's answers.

    Attributes:
        rounds: Rounds of all runs, counted once for each sweep point.
        private: Rounds of all private runs, by what they release.
        before: Private rounds before those; None if there are none.
        steps: Private local steps of each client in all runs, by what they release.
        steps_before: Private local steps of clients before those.
        runs: The spending of each of the last runs, the last one at the end.
    """

    FILE: ClassVar = "spent.json"
    DAMAGED: ClassVar = (
        "it counts what the node has answered with its data: restore it from a copy, or remove it "
        "to count from 0"
    )
    rounds: int = Field(default=0, ge=0)
    private: Taken = Field(default_factory=list)
    before: Composed | None = None
    steps: dict[str, Taken] = Field(default_factory=dict)
    steps_before: dict[str, Composed] = Field(default_factory=dict)
    runs: dict[str, RunSpent] = Field(default_factory=dict)

    def of(self, setup: Setup) -> RunSpent:
        """The spending of a run so far."""
        return self.runs.get(setup.name, RunSpent())

    def others(self, setup: Setup) -> Taken:
        """The private rounds of all other runs, but for those in `before`."""
        own = self.of(setup)
        counted = (own.mechanism, own.releases) if own.whole is None else (own.whole, 1)
        # never below 0, where rounds of this run are in `before`
        counts = Counter({counted[0]: counted[1]})
        counts[own.measured] += own.evaluations
        return [(each, max(0, n - counts[each])) for each, n in self.private]

    def with_steps(self, steps: Mapping[str, tuple[Mechanism, int]]) -> dict[str, Taken]:
        """The private steps of each of some clients, with some more that they take."""
        return {name: _with(self.steps.get(name, ()), *more) for name, more in steps.items()}

    def paid(
        self,
        request: Request,
        points: int,
        digest: str,
        steps: Mapping[str, tuple[Mechanism, int]] = MappingProxyType({}),
        of_rows: Collection[str] = (),
    ) -> "NodeSpent":
        """The spending after a request is answered; with noise, evaluations are of rows."""
        assert request.setup is not None
        own, hiding = self.of(request.setup), request.setup.privacy
        measures = request.setup.measures if request.kind == "evaluate" else None
        if own.request == digest and not steps and measures is None:
            return self
        kind, t, round_, answered = request.kind, request.round, own.round, own.answered
        more, released, releases = 0, own.released, 0
        if kind == "evaluate":
            more = int(round_ == NO_ROUND or kind in answered)
            first, round_ = round_ == NO_ROUND, round_ + more
            # that before the first round belongs to none
            answered = [] if first else [kind] if more else [*answered, kind]
        else:
            if t != round_ or kind in answered:
                more, round_, answered = max(1, t - round_), t, []
            answered = [*answered, kind]
            if more or t != released:  # else it belongs to the last release
                releases, released = max(1, t - released), t
        mechanism = None if hiding is None else hiding.mechanism
        whole = own.whole if hiding is None or not releases else hiding.whole
        after = RunSpent(
            round=round_,
            answered=answered,
            released=released,
            releases=releases + own.releases * (mechanism == own.mechanism),
            mechanism=mechanism,
            whole=whole,
            steps=own.steps | {name: own.steps.get(name, 0) + n for name, (_, n) in steps.items()},
            evaluations=own.evaluations + (measures is not None),
            measured=own.measured if measures is None else measures.mechanism,
            request=digest,
        )
        name = request.setup.name
        runs = {key: each for key, each in self.runs.items() if key != name} | {name: after}
        private = self.private
        if whole is not None and whole != own.whole:
            # in place of what was declared before, with fewer repeated rounds
            private = _with(self.others(request.setup), whole, 1)
        elif whole is None and mechanism is not None and releases:
            private = _with(private, mechanism, releases)
        if measures is not None and hiding is not None:
            private = _with(private, measures.mechanism, 1)
        private, before = _bounded(private, self.before)
        taken, steps_before = dict(self.steps), dict(self.steps_before)
        more_of = self.with_steps(steps)
        if measures is not None:
            evaluated = dict.fromkeys(of_rows, (measures.mechanism, 1))
            more_of |= self.with_steps(evaluated)
        for client, each in more_of.items():
            taken[client], composed = _bounded(each, self.steps_before.get(client), alike)
            if composed is not None:
                steps_before[client] = composed
        return NodeSpent(
            rounds=self.rounds + more * points,
            private=private,
            before=before,
            steps=taken,
            steps_before=steps_before,
            runs=dict(list(runs.items())[-RUNS:]),
        )


def _with(taken: Iterable[tuple[Mechanism, int]], mechanism: Mechanism, more: int) -> Taken:
    """Releases with some more, which become the last ones."""
    known = dict(taken)
    count = known.pop(mechanism, 0) + more
    return [*known.items(), (mechanism, count)]


def _bounded(
    taken: Taken,
    before: Composed | None,
    bounding: Callable[[Mechanism], Mechanism] = lambda mechanism: mechanism,
) -> tuple[Taken, Composed | None]:
    """The last releases, and the others composed, each taken for a mechanism that bounds it."""
    taken = [(mechanism, n) for mechanism, n in taken if n]
    old, last = taken[:-EXACTLY], taken[-EXACTLY:]
    if old:
        before = composed_with(before, [(bounding(each), n) for each, n in old])
    return last, before


SumPlace = tuple[str, int]
"""The run and kind of a sum, and its round."""


class Revealed(NodeMemory):
    """The sums for which a node has revealed its shares.

    Attributes:
        rounds: The last such round, by run and kind of sum. Earlier ones count as revealed.
        measured: The request of this round, by run, for sums of measures.
    """

    FILE: ClassVar = "sums.json"
    DAMAGED: ClassVar = (
        "it says which sums the node has helped to reveal: restore it from a copy, or remove it if "
        "the operator begins all runs anew"
    )
    rounds: dict[str, RoundNumber] = Field(default_factory=dict)
    measured: dict[str, str] = Field(default_factory=dict)

    def check(self, place: SumPlace, measured: str = "") -> None:
        """Raise `InputError` if the node has revealed this sum, or another in its place."""
        name, round_ = place
        last = self.rounds.get(name, NO_ROUND)
        again = round_ == last and bool(measured) and measured == self.measured.get(name)
        which = f"evaluation after round {round_}" if measured else f"round {round_ + 1}"
        require(
            round_ > last or again,
            f"{which}: this node has helped to reveal its sum, and does so once",
        )

    def after(self, place: SumPlace, measured: str = "") -> "Revealed":
        """The same and one more sum, of what was asked if it is one of measures."""
        name, round_ = place
        asked = {name: measured} if measured else {}
        return Revealed(rounds=self.rounds | {name: round_}, measured=self.measured | asked)
