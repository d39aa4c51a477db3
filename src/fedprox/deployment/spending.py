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
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pydantic import Field

from fedprox.deployment.kept import read_kept, write_kept
from fedprox.deployment.messages import Count, Kind, Message, Request, Round, Setup
from fedprox.privacy.accounting import Mechanism

FILE = "spent.json"

RUNS = 1000
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
"""Private local steps of a client, by what they release."""


class Spent(Message):
    """What a node has answered.

    Attributes:
        rounds: Rounds of all runs, counted once for each sweep point.
        private: Rounds of all private runs, by what they release.
        steps: Private local steps of each client in all runs, by what they release.
        runs: What each of the last runs has spent, the last one at the end.
    """

    rounds: int = Field(default=0, ge=0)
    private: list[tuple[Mechanism, Count]] = Field(default_factory=list)
    steps: dict[str, Taken] = Field(default_factory=dict)
    runs: dict[str, RunSpent] = Field(default_factory=dict)

    def of(self, setup: Setup) -> RunSpent:
        """What a run has spent so far."""
        return self.runs.get(_name(setup), RunSpent())

    def others(self, setup: Setup) -> list[tuple[Mechanism, int]]:
        """The private rounds of all other runs."""
        own = self.of(setup)
        return [(each, n - own.releases * (each == own.mechanism)) for each, n in self.private]

    def with_steps(self, steps: Mapping[str, tuple[Mechanism, int]]) -> dict[str, Taken]:
        """The private steps of each of some clients, with some more that they take.

        Args:
            steps: By client, what each step releases, and their number.
        """
        after = {}
        for name, (mechanism, more) in steps.items():
            taken = Counter(dict(self.steps.get(name, [])))
            taken[mechanism] += more
            after[name] = list(taken.items())
        return after

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
        private = Counter(dict(self.private))
        if mechanism is not None:
            private[mechanism] += releases
        return Spent(
            rounds=self.rounds + more * points,
            private=list(private.items()),
            steps=self.steps | self.with_steps(steps),
            runs=dict(list(runs.items())[-RUNS:]),
        )


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
