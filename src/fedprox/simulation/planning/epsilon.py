"""What the rounds of a method cost: its noise, and epsilon from round to round.

For clients both follow from the settings. For examples they follow from the local steps that each
client takes, and the cohorts of all seeds are drawn to count them.
"""

from functools import lru_cache

import numpy as np

from fedprox.privacy.accounting import (
    Steps,
    calibrated_steps,
    epsilon_of,
    worst_steps,
)
from fedprox.simulation.config.method import Method
from fedprox.simulation.planning.round_work import drawn_works


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
    return calibrated_steps(privacy, [steps for each in taken for steps in each])


class LocalSteps:
    """The local steps of the clients of a seed, counted from round to round.

    Args:
        method: The method.
        seed: The seed.
    """

    def __init__(self, method: Method, seed: int) -> None:
        self.method, self.seed = method, seed
        self._begin()

    def _begin(self) -> None:
        protocol, algorithm, solver = (
            self.method.protocol,
            self.method.algorithm,
            self.method.solver,
        )
        self.works = drawn_works(protocol, algorithm, solver, self.seed)
        self.rounds, self.counts = 0, np.zeros(len(protocol.federation), np.int64)

    def after(self, rounds: int) -> list[Steps]:
        """The steps of each client that took some in the first rounds."""
        if rounds < self.rounds:
            self._begin()
        while self.rounds < rounds:
            jobs = next(self.works).jobs
            self.counts[jobs.client] += jobs.steps
            self.rounds += 1
        sizes = self.method.protocol.federation.train.sizes
        return [
            Steps(size, self.method.solver.batch_of(size), count)
            for size, count in zip(sizes.tolist(), self.counts.tolist(), strict=True)
            if count
        ]


class Spent:
    """Epsilon of the rounds of a seed.

    Args:
        method: The method.
        seed: The seed.
    """

    def __init__(self, method: Method, seed: int) -> None:
        self.method, self.steps = method, LocalSteps(method, seed)

    def epsilon(self, rounds: int) -> float | None:
        """Epsilon after some rounds; None without privacy."""
        if not self.method.protocol.hides_examples:
            mechanism = self.method.mechanism
            return None if mechanism is None else epsilon_of(mechanism, rounds)
        return self.worst(rounds)[1]

    def worst(self, rounds: int) -> tuple[Steps | None, float]:
        """The steps with the largest epsilon after some rounds, and it; None for no steps."""
        privacy, noise = self.method.protocol.privacy, noise_of(self.method)
        assert privacy is not None
        assert noise is not None
        taken = self.steps.after(rounds)
        if not taken:
            return None, 0.0
        worst = worst_steps(privacy, noise, taken)
        return worst, epsilon_of(worst.mechanism(privacy, noise), worst.taken)
