"""Systems heterogeneity: which clients of a cohort cannot finish, and how far they get.

There are two models. In Li et al. 2020, section 5.2, a fraction of each cohort performs x epochs, x
uniform on {1, ..., E}, and the others perform E. Alternatively, each round has a deadline, and the
clients' devices say how far each gets (`population.py`). This is the "global clock" that the random
x represents.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import require, require_number, require_whole, shown
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

    stragglers: float = 0.0
    deadline: float | None = None
    straggler_epochs: StragglerEpochs | None = None

    def __post_init__(self) -> None:
        require_number("systems.stragglers", self.stragglers, most=1)
        if self.straggler_epochs is not None:
            require(
                callable(self.straggler_epochs),
                f"systems.straggler_epochs = {shown(self.straggler_epochs)}; it must be a function",
            )
            require(
                self.deadline is None,
                "systems.straggler_epochs: leave it out with systems.deadline, which determines "
                "stragglers' work",
            )
        if self.deadline is not None:
            require(
                self.stragglers == 0,
                f"systems: stragglers = {self.stragglers} and deadline = {shown(self.deadline)}; "
                "give either stragglers or a deadline, and not both",
            )
            require_number("systems.deadline", self.deadline, positive=True)

    def work(
        self,
        seed: int,
        round_: int,
        cohort: NDArray[np.int64],
        sizes: NDArray[np.int64],
        solver: Solver,
        *,
        in_time: NDArray[np.float64] | float = np.inf,
        independent: bool = False,
    ) -> Work:
        """The work of each client of a cohort.

        Of K clients, round(s K) are stragglers, chosen uniformly; or, if `independent`, each with
        probability s. Each straggler performs a number of epochs that is drawn independently, by
        `straggler_epochs` or uniform on {1, ..., E}. If the solver counts steps, or E = 1, the
        straggler performs a number of steps that is uniform on {1, ..., all steps}. With a
        deadline, a client performs the steps that it has time for, possibly none.

        Args:
            seed: Seed of the run.
            round_: Round t.
            cohort: Indices of the clients, shape (K,).
            sizes: Their training rows n_k, shape (K,).
            solver: Defines the work of a client that finishes.
            in_time: Steps that each client has time for by the deadline, shape (K,), as far as this
                is known in advance.
            independent: Whether a client's work is a function of (seed, round, client) alone, as
                privacy requires.
        """
        steps = solver.steps_for(sizes)
        if self.deadline is not None:
            return Work(np.minimum(steps, in_time).astype(np.int64), in_time < steps)
        stragglers = self._stragglers(seed, round_, cohort, independent=independent)
        whole_epochs = solver.epochs is not None and solver.epochs > 1
        unit = solver.steps_per_epoch(sizes) if whole_epochs else np.ones_like(steps)
        most, clients = (steps // unit).tolist(), cohort.tolist()
        streams = Streams(seed, Purpose.WORK)
        for slot in np.flatnonzero(stragglers).tolist():
            if whole_epochs and self.straggler_epochs is not None:
                amount = self._draw_epochs(
                    Straggler(seed, round_, tuple(clients), slot, epochs=most[slot])
                )
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

    def _draw_epochs(self, straggler: Straggler) -> int:
        """The epochs that the user's function returns."""
        assert self.straggler_epochs is not None
        what = "systems.straggler_epochs(straggler)"
        epochs = call(what, self.straggler_epochs, straggler)
        require_whole(what, epochs, most=straggler.epochs)
        return epochs

    def check_participation(
        self,
        sizes: NDArray[np.int64],
        solver: Solver,
        cohorts: range,
        *,
        whole: bool,
        in_time: NDArray[np.float64],
        independent: bool = False,
    ) -> None:
        """Raise `InputError` if no client can ever take part in a round.

        Args:
            sizes: Training rows n_k of all clients, shape (clients,).
            solver: Defines the work of a client that finishes.
            cohorts: The possible sizes of a cohort.
            whole: Whether stragglers are dropped, so that only clients that finish take part.
            in_time: Steps that each client has time for by the deadline, shape (clients,), as far
                as this is known in advance.
            independent: Whether each client is a straggler independently of the others.
        """
        if self.deadline is not None:
            enough = in_time >= (solver.steps_for(sizes) if whole else 1)
            require(
                enough.any(),
                f"systems.deadline = {self.deadline:g}: no client has time for "
                f"{'all of its steps, and stragglers are dropped' if whole else 'a single step'}",
            )
        else:
            counts = np.arange(cohorts.start, cohorts.stop)
            some = (counts > np.round(self.stragglers * counts)).any()
            require(
                not whole or (self.stragglers < 1 if independent else some),
                f"systems.stragglers = {self.stragglers:g}: all clients of every cohort of "
                f"{cohorts[-1]} are stragglers, who are dropped",
            )
