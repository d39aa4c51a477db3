"""Systems heterogeneity: which clients of a cohort cannot finish, and how far they get.

There are two models. In Li et al. 2020, section 5.2, a fraction of each cohort performs x epochs, x
uniform on {1, ..., E}, and the others perform E. Alternatively, each round has a deadline, and the
clients' devices say how far each gets (`population.py`). This is the "global clock" that the random
x represents.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import (
    InputError,
    PositiveFloat,
    UnitFloat,
    check_fields,
    require,
    require_whole,
    shown,
)
from fedprox.solver import Solver
from fedprox.streams import Purpose, Streams, generator
from fedprox.user_code import call


class Straggler(NamedTuple):
    """A client of a round's cohort that cannot finish its epochs.

    Attributes:
        seed: Seed of the run.
        round: Round t.
        cohort: The cohort's clients, in the order in which they were drawn.
        slot: The straggler's index in `cohort`.
        epochs: Epochs E of a client that finishes, at least 2.
    """

    seed: int
    round: int
    cohort: tuple[int, ...]
    slot: int
    epochs: int


StragglerEpochs = Callable[[Straggler], int]
"""A straggler -> the number of epochs that it performs, from 1 to E."""


class Work(NamedTuple):
    """The work of a cohort's clients in a round.

    Attributes:
        steps: Mini-batch steps of each client, shape (K,).
        stragglers: Whether each client is a straggler, shape (K,).
    """

    steps: NDArray[np.int64]
    stragglers: NDArray[np.bool_]


@dataclass(frozen=True)
class Systems:
    """Which clients are stragglers, and how much work they do.

    Stragglers are either a fraction of each cohort, or the clients that miss a deadline.

    Attributes:
        stragglers: Fraction s of each cohort that cannot finish, from 0 to 1. With privacy, each
            client is a straggler with probability s, independently of the others.
        deadline: Seconds after the begin of a round by which messages count. A client takes as many
            steps as it has time for, there and back included, and is a straggler if these are fewer
            than the solver's epochs or steps. In a simulation it needs a
            :class:`fedprox.Population`; in a deployment without one, it is that of a real clock.
            None means no deadline.
        straggler_epochs: A function that draws the epochs of a straggler, with a fraction of
            stragglers. None means uniform on {1, ..., E}. It must depend only on its argument. It
            is not called if the solver performs one epoch or counts steps.

    Raises:
        InputError: If a number is out of range, or if both a fraction and a deadline are set.

    Example:
        >>> Systems(deadline=60.0).deadline
        60.0
    """

    stragglers: UnitFloat = 0.0
    deadline: PositiveFloat | None = None
    straggler_epochs: StragglerEpochs | None = None

    def __post_init__(self) -> None:
        check_fields("systems", self)
        require(
            self.straggler_epochs is None or callable(self.straggler_epochs),
            f"systems.straggler_epochs = {shown(self.straggler_epochs)}; it must be a function",
        )
        require(
            self.straggler_epochs is None or self.deadline is None,
            "systems.straggler_epochs: leave it out with systems.deadline, which determines "
            "stragglers' work",
        )
        require(
            self.stragglers == 0 or self.deadline is None,
            f"systems: stragglers = {self.stragglers} and deadline = {shown(self.deadline)}; "
            "give either stragglers or a deadline, and not both",
        )

    def work(
        self,
        seed: int,
        round_: int,
        cohort: NDArray[np.int64],
        sizes: NDArray[np.int64],
        solver: Solver,
        *,
        in_time: NDArray[np.float64] | float = math.inf,
        independent: bool = False,
    ) -> Work:
        """The work of each client of a cohort.

        Of K clients, round(s K) are stragglers, chosen uniformly; or, if `independent`, each with
        probability s. Each straggler performs a number of epochs that is drawn independently, by
        `straggler_epochs` or uniform on {1, ..., E}. If the solver counts steps, or E = 1, the
        straggler performs a number of steps that is uniform on {1, ..., all steps}. With a
        deadline, a client performs the steps that it has time for, `in_time`, possibly none;
        infinity if nobody knows in advance.
        """
        steps = solver.steps_for(sizes)
        if self.deadline is not None:
            return Work(np.minimum(steps, in_time).astype(np.int64), in_time < steps)
        if self.stragglers == 0:
            return Work(steps, np.zeros(len(cohort), np.bool_))
        stragglers = self._stragglers(seed, round_, cohort, independent=independent)
        whole_epochs = (solver.epochs or 1) > 1
        unit = solver.steps_per_epoch(sizes) if whole_epochs else np.ones_like(steps)
        most, clients = (steps // unit).tolist(), cohort.tolist()
        streams = Streams(seed, Purpose.WORK)
        for slot in np.flatnonzero(stragglers).tolist():
            if whole_epochs and self.straggler_epochs:
                what = "systems.straggler_epochs(straggler)"
                straggler = Straggler(seed, round_, tuple(clients), slot, epochs=most[slot])
                amount = call(what, self.straggler_epochs, straggler)
                require_whole(what, amount, most=straggler.epochs)
            else:
                amount = streams.at(round_, clients[slot]).integers(1, most[slot], endpoint=True)
            steps[slot] = unit[slot] * amount
        return Work(steps, stragglers)

    def _stragglers(
        self, seed: int, round_: int, cohort: NDArray[np.int64], *, independent: bool
    ) -> NDArray[np.bool_]:
        """Whether each client of a cohort is a straggler, shape (K,), without a deadline."""
        if independent:
            streams = Streams(seed, Purpose.STRAGGLERS)
            drawn = [streams.at(round_, client).random() for client in cohort.tolist()]
            return np.array(drawn) < self.stragglers
        stragglers = np.zeros(len(cohort), np.bool_)
        chosen = generator(seed, Purpose.STRAGGLERS, round_).permutation(len(cohort))
        stragglers[chosen[: round(self.stragglers * len(cohort))]] = True
        return stragglers

    def check_participation(
        self,
        sizes: NDArray[np.int64],
        solver: Solver,
        cohorts: range,
        *,
        whole: bool,
        in_time: NDArray[np.float64] | float,
        independent: bool = False,
    ) -> None:
        """Raise `InputError` if no client can ever take part in a round.

        Sizes and `in_time` are as in `work`, of all clients. Cohorts have one of some sizes; with
        `whole`, only clients that finish take part.
        """
        if self.deadline is not None:
            enough = in_time >= (solver.steps_for(sizes) if whole else 1)
            require(
                np.any(enough),
                f"systems.deadline = {self.deadline:g}: no client has time for "
                f"{'all of its steps, and stragglers are dropped' if whole else 'a single step'}; "
                "no client would ever train",
            )
        elif whole:
            counts = np.arange(cohorts.start, cohorts.stop)
            some = (counts > np.round(self.stragglers * counts)).any()
            if not (self.stragglers < 1 if independent else some):
                size, clients = cohorts[-1], len(sizes)
                raise InputError(
                    f"systems.stragglers = {self.stragglers:g}: all clients of every cohort of "
                    f"{size} are stragglers, who are dropped; no client would ever train; "
                    + ("give less than 1" if independent else _leaving_one(self, size, clients))
                )


def _leaving_one(systems: Systems, size: int, clients: int) -> str:
    """The fraction of stragglers, and the cohorts, that leave a client who is none."""
    most = math.floor(100 * (1 - 0.5 / size)) / 100
    if round(most * size) == size:
        most -= 0.01
    line = f"with cohorts of {size} give at most {most:.2g}"
    larger = range(size + 1, clients + 1 if systems.stragglers < 1 else 0)
    enough = next((each for each in larger if round(systems.stragglers * each) < each), None)
    return line + f", or cohorts of at least {enough}" * (enough is not None)
