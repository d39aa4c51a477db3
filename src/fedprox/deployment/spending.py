"""What a node has answered with its data, over all runs, in a file of its folder.

The unit is a round of a method and seed. A paid round covers one answer of each kind: a first
cohort's gradients, training, and one evaluation. A request for round t pays `max(1, t - s)` rounds,
where s is the last round that was paid: the rounds in between, in which no client of the node was
drawn, are rounds too, and a round that is repeated is paid again. An evaluation beyond that of its
round pays the next one, since measures of chosen models reveal as much as other answers. A request
that is repeated has the same answer and pays nothing.

The releases of a private run are counted likewise, from what is released alone: evaluations have no
noise, and are outside the guarantee. Rounds after the last request of a run are not known to the
node, and so are not counted.

Private local steps are counted for each client. The same request has other rows and other noise
once it is computed anew, and so is paid anew.

An answer must not cost more the more a node has answered. So releases are counted by what they
release for the last `EXACTLY` different mechanisms alone; those before are composed to a bound.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import Field

from fedprox.deployment.kept import read_kept, write_kept
from fedprox.deployment.messages import Count, Kind, Message, Request, Round, Setup
from fedprox.privacy.accounting import Composed, Mechanism, alike, composed_with

FILE = "spent.json"

EXACTLY = 32
"""Different mechanisms whose releases are counted one by one, for a tight composition."""

RUNS = 100
"""Runs whose last rounds are kept. A run that is forgotten pays its earlier rounds once more."""

NO_ROUND = -1


class RunSpent(Message):
    """What one seed of a method has spent.

    Attributes:
        round: The last round that is paid.
        answered: The kinds of requests that were answered in this round.
        released: The last round in which clients sent something.
        releases: Rounds of this mechanism that are counted.
        mechanism: What a round releases; None without privacy.
        steps: Private local steps of each client.
        request: Digest of the last request.
    """

    round: Round = NO_ROUND
    answered: list[Kind] = Field(default_factory=list)
    released: Round = NO_ROUND
    releases: Count = 0
    mechanism: Mechanism | None = None
    steps: dict[str, Count] = Field(default_factory=dict)
    request: str = ""


Taken = list[tuple[Mechanism, Count]]
"""Releases by what they release, the last ones at the end."""


class Spent(Message):
    """What a node has answered.

    Attributes:
        rounds: Rounds of all runs, counted once for each sweep point.
        private: Rounds of all private runs, by what they release.
        before: Private rounds before those; None if there are none.
        steps: Private local steps of each client in all runs, by what they release.
        steps_before: Private local steps of clients before those.
        runs: What each of the last runs has spent, the last one at the end.
    """

    rounds: int = Field(default=0, ge=0)
    private: Taken = Field(default_factory=list)
    before: Composed | None = None
    steps: dict[str, Taken] = Field(default_factory=dict)
    steps_before: dict[str, Composed] = Field(default_factory=dict)
    runs: dict[str, RunSpent] = Field(default_factory=dict)

    def of(self, setup: Setup) -> RunSpent:
        """What a run has spent so far."""
        return self.runs.get(_name(setup), RunSpent())

    def others(self, setup: Setup) -> Taken:
        """The private rounds of all other runs, but for those in `before`."""
        own = self.of(setup)
        # never below 0, where rounds of this run are in `before`
        return [
            (each, max(0, n - own.releases * (each == own.mechanism))) for each, n in self.private
        ]

    def with_steps(self, steps: Mapping[str, tuple[Mechanism, int]]) -> dict[str, Taken]:
        """The private steps of each of some clients, with some more that they take.

        Args:
            steps: By client, what each step releases, and their number.
        """
        return {name: _with(self.steps.get(name, ()), *more) for name, more in steps.items()}

    def paid(
        self,
        request: Request,
        points: int,
        digest: str,
        steps: Mapping[str, tuple[Mechanism, int]] = MappingProxyType({}),
    ) -> "Spent":
        """What is spent once a request is answered.

        Args:
            request: The request, for data, with its setup.
            points: Sweep points of the method.
            digest: Digest of the whole request.
            steps: The private local steps that it asks for, as for `with_steps`.
        """
        assert request.setup is not None
        own, hiding = self.of(request.setup), request.setup.privacy
        if own.request == digest and not steps:
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
        after = RunSpent(
            round=round_,
            answered=answered,
            released=released,
            releases=releases + own.releases * (mechanism == own.mechanism),
            mechanism=mechanism,
            steps=own.steps | {name: own.steps.get(name, 0) + n for name, (_, n) in steps.items()},
            request=digest,
        )
        name = _name(request.setup)
        runs = {key: each for key, each in self.runs.items() if key != name} | {name: after}
        private = self.private
        if mechanism is not None and releases:
            private = _with(private, mechanism, releases)
        private, before = _bounded(private, self.before)
        taken, steps_before = dict(self.steps), dict(self.steps_before)
        for client, each in self.with_steps(steps).items():
            taken[client], composed = _bounded(each, self.steps_before.get(client), alike)
            if composed is not None:
                steps_before[client] = composed
        return Spent(
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
    """The last releases, and the others composed.

    Args:
        taken: The releases.
        before: What is composed already.
        bounding: The mechanism that a composed one is taken for.
    """
    taken = [(mechanism, n) for mechanism, n in taken if n]
    old, last = taken[:-EXACTLY], taken[-EXACTLY:]
    if old:
        before = composed_with(before, [(bounding(each), n) for each, n in old])
    return last, before


def read_spent(folder: Path) -> Spent:
    """What the node of a folder has answered; nothing if the folder has no file.

    Raises:
        InputError: If the file is damaged.
    """
    return read_kept(
        folder / FILE,
        Spent(),
        "it counts what the node has answered with its data: restore it from a copy, or remove it "
        "to count from 0",
    )


def write_spent(folder: Path, spent: Spent) -> None:
    """Write the file, before anything of the answer leaves the node.

    Raises:
        OSError: If it cannot be written.
    """
    write_kept(folder / FILE, spent)


def _name(setup: Setup) -> str:
    """The name of a seed of a method in a run, as its folder of client state has it."""
    return f"{setup.run}/{setup.number}-{setup.seed}"
