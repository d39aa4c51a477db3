"""What the rounds of a method cost: its noise, and epsilon from round to round.

For clients both follow from the settings. For examples they follow from the local steps that each
client takes, and the cohorts of all seeds are drawn to count them.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedprox.engine.planning.round_work import RoundWork, drawn_works
from fedprox.parts.privacy.accounting import Releases, calibrated_steps, epsilon_of, worst_steps
from fedprox.protocol.method import Method


def noise_of(method: Method) -> float | None:
    """The noise multiplier of a method, given or calibrated; None without privacy."""
    if method.protocol.hides_examples:
        return _noise_of_steps(method)
    return None if method.mechanism is None else method.mechanism.noise_multiplier


@lru_cache(maxsize=64)
def _noise_of_steps(method: Method) -> float:
    """The noise multiplier of a step, for the client with the most to hide among all seeds."""
    protocol, privacy = method.protocol, method.protocol.privacy
    assert privacy is not None
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    taken = [LocalSteps(method, seed).after(protocol.rounds) for seed in protocol.seeds]
    assert privacy.epsilon is not None
    return calibrated_steps(privacy.epsilon, [steps for each in taken for steps in each])


class LocalSteps:
    """The local steps of the clients of a seed, counted from round to round.

    Args:
        method: The method.
        seed: The seed.
        repeated: Rounds that are done once more each time that they are here.
    """

    def __init__(self, method: Method, seed: int, repeated: Sequence[range] = ()) -> None:
        self.method, self.seed = method, seed
        self.again = sum((self._within(rounds) for rounds in repeated), start=self._no_steps())
        self._begin()

    def _begin(self) -> None:
        self.works, self.rounds, self.counts = self._works(), 0, self._no_steps()

    def _no_steps(self) -> NDArray[np.int64]:
        return np.zeros(len(self.method.protocol.federation), np.int64)

    def _works(self, first: int = 0) -> Iterator[RoundWork]:
        method = self.method
        return drawn_works(method.protocol, method.algorithm, method.solver, self.seed, first)

    def _within(self, rounds: range) -> NDArray[np.int64]:
        """The steps of each client in some rounds."""
        counts = self._no_steps()
        for work in islice(self._works(rounds.start), len(rounds)):
            counts[work.jobs.client] += work.jobs.steps
        return counts

    def counted(self, rounds: int) -> NDArray[np.int64]:
        """The steps of each client in the first rounds and the repeated ones."""
        if rounds < self.rounds:
            self._begin()
        while self.rounds < rounds:
            jobs = next(self.works).jobs
            self.counts[jobs.client] += jobs.steps
            self.rounds += 1
        return self.counts + self.again

    def after(self, rounds: int) -> list[Releases]:
        """As `counted`, for each client that took some, with what a step without noise releases."""
        protocol, batch_of = self.method.protocol, self.method.solver.batch_of
        assert protocol.privacy is not None
        sizes, of = protocol.federation.train.sizes, protocol.privacy.of_steps
        return [
            (of(size, batch_of(size)), count)
            for size, count in zip(sizes.tolist(), self.counted(rounds).tolist(), strict=True)
            if count
        ]


class Spent:
    """Epsilon of the rounds of a seed.

    Args:
        method: The method.
        seed: The seed.
        repeated: Rounds that were released before an interruption and are repeated.
    """

    def __init__(self, method: Method, seed: int, repeated: Sequence[range] = ()) -> None:
        self.method, self.repeated = method, sum(map(len, repeated))
        self.steps = LocalSteps(method, seed, repeated) if method.protocol.hides_examples else None

    def epsilon(self, rounds: int) -> float | None:
        """Epsilon after some rounds and the repeated ones; None without privacy."""
        if self.steps is None:
            mechanism = self.method.mechanism
            return None if mechanism is None else epsilon_of(mechanism, rounds + self.repeated)
        return self.worst(rounds)[1]

    def worst(self, rounds: int) -> tuple[Releases | None, float]:
        """The steps with the largest epsilon after some rounds, and it; None for no steps."""
        noise = noise_of(self.method)
        assert noise is not None
        assert self.steps is not None
        taken = self.steps.after(rounds)
        if not taken:
            return None, 0.0
        worst = worst_steps(noise, taken)
        return worst, epsilon_of(*worst)
