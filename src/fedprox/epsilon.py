"""What the rounds of a method cost: its noise, and epsilon from round to round.

For clients both follow from the settings. For examples they follow from the local steps that each
client takes, and the cohorts of all seeds are drawn to count them.
"""

from collections.abc import Sequence
from functools import partial

from fedprox.engine.planning.round_work import LocalSteps, steps_of_run
from fedprox.parts.privacy.accounting import Releases, epsilon_of, worst_steps
from fedprox.protocol.method import Method, kept


@kept
def noise_of(method: Method) -> float | None:
    """The noise multiplier of a method, given or calibrated; None without privacy."""
    privacy = method.protocol.privacy
    if privacy is not None and method.protocol.hides_examples:
        return privacy.noise_of_steps(partial(steps_of_run, method))
    return None if method.mechanism is None else method.mechanism.noise_multiplier


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
            if mechanism is None:
                return None
            strategy = mechanism.strategy
            if strategy is not None and self.repeated and rounds:
                rounds = strategy.rounds  # a bound, since these rounds may be any of the run
            return epsilon_of(mechanism, rounds + self.repeated)
        return self.worst(rounds)[1]

    def worst(self, rounds: int) -> tuple[Releases | None, float]:
        """The steps with the largest epsilon after some rounds, and it; None for no steps."""
        privacy, noise = self.method.protocol.privacy, noise_of(self.method)
        assert privacy is not None
        assert noise is not None
        assert self.steps is not None
        taken = privacy.released(self.steps.after(rounds))
        if not taken:
            return None, 0.0
        worst = worst_steps(noise, taken)
        return worst, epsilon_of(*worst)
