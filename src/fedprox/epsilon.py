"""The cost of a method's rounds: its noise, and epsilon from round to round.

For clients both follow from the settings. For examples they follow from the local steps that each
client takes, and the cohorts of all seeds are drawn to count them.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from fedprox.engine.planning.round_work import LocalSteps, steps_of_run
from fedprox.parts.privacy.accounting import Releases, epsilon_beside, epsilon_of, worst_steps
from fedprox.parts.privacy.measures import evaluations_of
from fedprox.protocol.method import Method, kept


@kept
def noise_of(method: Method) -> float | None:
    """The noise multiplier of a method, given or calibrated; None without privacy."""
    privacy = method.protocol.privacy
    if privacy is not None and method.protocol.hides_examples:
        taken = partial(steps_of_run, method)
        return privacy.noise_of_steps(taken, method.protocol.evaluations)
    return None if method.mechanism is None else method.mechanism.noise_multiplier


class GivenUp(NamedTuple):
    """Rounds and evaluations that were counted and then given up before data were asked for.

    Attributes:
        rounds: Rounds, each as often as it was given up.
        evaluations: How many evaluations with noise.
    """

    rounds: Sequence[int] = ()
    evaluations: int = 0


NOTHING = GivenUp()


class Spent:
    """Epsilon of the rounds of a seed.

    Args:
        method: The private method.
        seed: Seed of the run.
        repeated: Rounds that were released before an interruption and are repeated.
        measured: Evaluations likewise.
    """

    def __init__(
        self, method: Method, seed: int, repeated: Sequence[range] = (), measured: int = 0
    ) -> None:
        self.method, self.repeated, self.measured = method, sum(map(len, repeated)), measured
        self.steps = LocalSteps(method, seed, repeated) if method.protocol.hides_examples else None

    def epsilon(self, rounds: int, given_up: GivenUp = NOTHING) -> float | None:
        """Epsilon after some rounds and the repeated ones; None without privacy."""
        if self.steps is None:
            mechanism = self.method.mechanism
            if mechanism is None:
                return None
            strategy, done = mechanism.strategy, rounds
            if strategy is not None and self.repeated and rounds:
                rounds = strategy.rounds  # a bound, since these rounds may be any of the run
            released = rounds + self.repeated - (0 if strategy else len(given_up.rounds))
            return epsilon_beside(mechanism, released, self.evaluated(done, given_up))
        return self.worst(rounds, given_up)[1]

    def evaluated(self, rounds: int, given_up: GivenUp = NOTHING) -> Releases | None:
        """The releases of the evaluations up to a round; None if they have no noise."""
        protocol = self.method.protocol
        privacy = protocol.privacy
        planned = None if privacy is None else privacy.of_measures(protocol.evaluations)
        if planned is None:
            return None
        done = evaluations_of(protocol.rounds, protocol.evaluation.every, rounds)
        return planned[0], done + self.measured - given_up.evaluations

    def worst(self, rounds: int, given_up: GivenUp = NOTHING) -> tuple[Releases | None, float]:
        """The steps with the largest epsilon after some rounds, and it; None for no steps."""
        privacy, noise = self.method.protocol.privacy, noise_of(self.method)
        assert privacy is not None
        assert noise is not None
        assert self.steps is not None
        taken = privacy.released(self.steps.after(rounds, given_up.rounds))
        beside = self.evaluated(rounds, given_up)
        if not taken:
            return None, 0.0 if beside is None else epsilon_of(*beside)
        worst = worst_steps(noise, taken, beside)
        return worst, epsilon_beside(*worst, beside)
