"""Systems heterogeneity: which clients of a cohort cannot finish, and how far they get.

Li et al. 2020, section 5.2: in every round a fraction of the cohort performs x epochs, x uniform
on {1, ..., E}, where the others perform E. Or by the clock: every client has a speed of its own and
a round has a deadline, which is what that draw stands for ("a global clock").
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import InputError, require, require_number, require_whole, shown
from fedprox.solver import Solver, as_values
from fedprox.streams import Purpose, Streams, generator
from fedprox.user_code import call

CLIENTS_TOGETHER = 1000
"""Clients whose speeds are looked at together, in search of one that can take part."""


class Straggler(NamedTuple):
    """A client of a round's cohort that cannot finish its epochs.

    Attributes:
        seed: Seed of the run.
        round: Round t.
        cohort: The cohort's clients, in the order in which they were drawn.
        slot: The straggler's place in the cohort.
        epochs: Epochs E that a client performs if it finishes, at least 2.
    """

    seed: int
    round: int
    cohort: tuple[int, ...]
    slot: int
    epochs: int


StragglerEpochs = Callable[[Straggler], int]
"""A straggler -> the epochs that it performs, from 1 to E."""


class Work(NamedTuple):
    """A round's work: `steps` (K,) mini-batches of each client, `stragglers` (K,) booleans."""

    steps: NDArray[np.int64]
    stragglers: NDArray[np.bool_]


@dataclass(frozen=True)
class Systems:
    """How clients differ in the work they can do.

    Attributes:
        stragglers: Fraction of every cohort that cannot finish, from 0 to 1; or else
        deadline: seconds that a round lasts. A client takes as many steps as it has time for, and
            is a straggler where these are fewer than the solver's epochs or steps.
        step_seconds: With a deadline: seconds of a mini-batch step, the median over the clients;
            or each client's own, shape (clients,).
        spread: With a median: client k needs step_seconds exp(spread z_k), z_k ~ N(0, 1), the same
            in every round. At most 10.
        straggler_epochs: With a fraction, a function that draws a straggler's epochs; None for
            uniform on {1, ..., E}. It must depend on its argument alone. It is not called if the
            solver performs one epoch or counts steps.

    Raises:
        InputError: A number out of range, or a deadline beside a fraction or without speeds.

    >>> Systems(deadline=60.0, step_seconds=0.1, spread=1.0).deadline
    60.0
    """

    stragglers: float = 0.0
    deadline: float | None = None
    step_seconds: float | Sequence[float] | None = None
    spread: float = 0.0
    straggler_epochs: StragglerEpochs | None = None

    def __post_init__(self) -> None:
        require_number("systems.stragglers", self.stragglers, most=1)
        require_number("systems.spread", self.spread, most=10)
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
        require(
            self.deadline is None or self.step_seconds is not None,
            f"systems.deadline = {shown(self.deadline)}; give systems.step_seconds beside it",
        )
        require(
            self.step_seconds is None or self.deadline is not None,
            "systems.step_seconds is given; give systems.deadline beside it",
        )
        if self.deadline is None or self.step_seconds is None:
            require(
                self.spread == 0,
                f"systems.spread = {self.spread}; it needs a deadline and step_seconds",
            )
            return
        require(
            self.stragglers == 0,
            f"systems: stragglers = {self.stragglers} and deadline = {shown(self.deadline)}; give "
            "either stragglers or a deadline, and not both",
        )
        require_number("systems.deadline", self.deadline, positive=True)
        for value in as_values("systems.step_seconds", self.step_seconds):
            require_number("systems.step_seconds", value, positive=True)
        require(
            self.spread == 0 or self.speeds is None,
            f"systems.spread = {self.spread}; it must be 0, since each client's step_seconds is "
            "given",
        )

    @cached_property
    def speeds(self) -> tuple[float, ...] | None:
        """Each client's own seconds of a step, if they are given."""
        if self.step_seconds is None or np.ndim(self.step_seconds) == 0:
            return None
        return as_values("systems.step_seconds", self.step_seconds)

    def check(self, clients: int) -> None:
        """Raise `InputError` where speeds are given, and not one for each client."""
        require(
            self.speeds is None or len(self.speeds) == clients,
            f"systems.step_seconds: {len(self.speeds or ())} numbers; the federation has "
            f"{clients} clients",
        )

    def of_clients(self, clients: NDArray[np.int64]) -> "Systems":
        """The same for some clients alone, in their order."""
        if self.speeds is None:
            return self
        return replace(self, step_seconds=[self.speeds[k] for k in clients.tolist()])

    def work(
        self,
        seed: int,
        round_: int,
        cohort: NDArray[np.int64],
        sizes: NDArray[np.int64],
        solver: Solver,
    ) -> Work:
        """The work of each client of a cohort.

        Of K different clients, round(s K) are stragglers, whichever they are. A straggler does a
        whole number of epochs, uniform on {1, ..., E} unless `straggler_epochs` draws it,
        independent of every other client; where the solver counts steps, or E = 1, a number of
        steps, uniform on {1, ..., all of them}. With a deadline, a client's steps are those it has
        time for, none at the least.

        Args:
            seed: Seed of the run.
            round_: Round t.
            cohort: The clients' indices, shape (K,).
            sizes: Their training rows n_k, shape (K,).
            solver: What a client that finishes would do.
        """
        steps = solver.steps_for(sizes)
        if self.deadline is not None:
            in_time = self._steps_in_time(seed, cohort)
            return Work(np.minimum(steps, in_time).astype(np.int64), in_time < steps)
        stragglers = np.zeros(len(cohort), np.bool_)
        chosen = generator(seed, Purpose.STRAGGLERS, round_).permutation(len(cohort))
        stragglers[chosen[: round(self.stragglers * len(cohort))]] = True
        whole_epochs = solver.epochs is not None and solver.epochs > 1
        unit = solver.steps_per_epoch(sizes) if whole_epochs else np.ones_like(steps)
        most, clients = (steps // unit).tolist(), cohort.tolist()
        streams = Streams(seed, Purpose.WORK)
        for slot in np.flatnonzero(stragglers).tolist():
            if whole_epochs and self.straggler_epochs is not None:
                amount = self._drawn(
                    Straggler(seed, round_, tuple(clients), slot, epochs=most[slot])
                )
            else:
                amount = streams.at(round_, clients[slot]).integers(1, most[slot], endpoint=True)
            steps[slot] = unit[slot] * amount
        return Work(steps, stragglers)

    def _drawn(self, straggler: Straggler) -> int:
        """The epochs that the user's function gives."""
        assert self.straggler_epochs is not None
        what = "systems.straggler_epochs(straggler)"
        epochs = call(what, self.straggler_epochs, straggler)
        require_whole(what, epochs, most=straggler.epochs)
        return epochs

    def check_participation(
        self, seed: int, sizes: NDArray[np.int64], solver: Solver, cohorts: range, *, whole: bool
    ) -> None:
        """Raise `InputError` where no client can ever take part in a round.

        Args:
            seed: Seed of the run.
            sizes: Training rows n_k of all clients, shape (clients,).
            solver: What a client that finishes would do.
            cohorts: The possible sizes of a cohort.
            whole: Whether only clients count that do all of it.
        """
        if self.deadline is None:
            counts = np.arange(cohorts.start, cohorts.stop)
            require(
                not whole or (counts > np.round(self.stragglers * counts)).any(),
                f"systems.stragglers = {self.stragglers:g}: all clients of every cohort of "
                f"{cohorts[-1]} are stragglers, who are dropped",
            )
            return
        steps = solver.steps_for(sizes)
        for first in range(0, len(sizes), CLIENTS_TOGETHER):
            some = np.arange(first, min(first + CLIENTS_TOGETHER, len(sizes)))
            in_time = self._steps_in_time(seed, some)
            if (in_time >= (steps[some] if whole else 1)).any():
                return
        raise InputError(
            f"systems.deadline = {self.deadline:g}: no client has time for "
            f"{'all of its steps, and stragglers are dropped' if whole else 'a single step'}"
        )

    def _steps_in_time(self, seed: int, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """How many steps each client has time for, shape (K,)."""
        assert self.deadline is not None
        with np.errstate(over="ignore"):
            # 0.3 / 0.1 is three steps
            return np.floor(self.deadline / self._step_seconds(seed, clients) * (1 + 1e-9))

    def _step_seconds(self, seed: int, cohort: NDArray[np.int64]) -> NDArray[np.float64]:
        """Each client's seconds of a step, shape (K,)."""
        if self.speeds is not None:
            return np.array([self.speeds[k] for k in cohort.tolist()])
        assert self.step_seconds is not None  # there is a deadline
        streams = Streams(seed, Purpose.SPEED)
        (median,) = as_values("systems.step_seconds", self.step_seconds)
        z = [streams.at(0, k).standard_normal() for k in cohort.tolist()]
        return np.array([median * math.exp(self.spread * each) for each in z])
