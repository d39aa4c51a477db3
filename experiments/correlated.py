"""When correlated noise pays: how much of it a model has, by the accounting alone.

`python -m experiments.correlated` prints the table of docs/howto/privacy.md. Nothing is trained.

A model has the sum of the noise of all rounds so far. Noise is compared by the root mean square of
that sum over rounds, at the same epsilon and delta, the same clients in a round and the same
clipping norm: correlated noise with cyclic cohorts, against independent noise with the same
cohorts, and against independent noise with Poisson samples, whose amplification holds only if who
takes part stays secret.
"""

from typing import NamedTuple

from fedprox.parts.privacy.accounting import Mechanism, calibrated_mechanism
from fedprox.parts.privacy.correlated import Correlation, Strategy, error, strategy_of

DELTA = 1e-5


class Plan(NamedTuple):
    """A run.

    Attributes:
        rounds: Rounds, T.
        separation: Rounds from one of a client to its next, b.
        clients: Clients, N.
        per_round: Clients of a round, K.
    """

    rounds: int
    separation: int
    clients: int
    per_round: int


EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
PLANS = (
    Plan(100, 5, 836, 167),
    Plan(200, 10, 1000, 100),
    Plan(500, 50, 5000, 100),
    Plan(1000, 100, 10_000, 100),
    Plan(200, 10, 10_000, 100),
)
"""The last has groups of ten times the clients of a round."""


class Gain(NamedTuple):
    """By what factor correlated noise is smaller.

    Attributes:
        cyclic: Than independent noise with cyclic cohorts.
        poisson: Than independent noise with Poisson samples, which are amplified.
    """

    cyclic: float
    poisson: float


def noise(mechanism: Mechanism, rounds: int, epsilon: float) -> float:
    """The noise that a model has for an epsilon, in clipping norms over the clients of a round."""
    found = calibrated_mechanism(mechanism._replace(noise_multiplier=0.0), epsilon, rounds)
    strategy = mechanism.strategy or Strategy("independent", 1, rounds)
    return found.noise_multiplier * error(strategy)


def cyclic(plan: Plan, kind: Correlation, epsilon: float) -> float:
    """The noise of a model with cyclic cohorts."""
    strategy = strategy_of(kind, plan.separation, plan.rounds)
    given = (plan.clients, plan.per_round, "cyclic", None, 0.0, 1, DELTA)
    return noise(Mechanism(*given, "pld", strategy), plan.rounds, epsilon)


def poisson(plan: Plan, epsilon: float) -> float:
    """The noise of a model with Poisson samples."""
    given = (plan.clients, plan.per_round, "bernoulli", None, 0.0, 1, DELTA)
    return noise(Mechanism(*given, "pld"), plan.rounds, epsilon)


def gain(plan: Plan, kind: Correlation, epsilon: float) -> Gain:
    """By what factor correlated noise is smaller than both others."""
    own = cyclic(plan, kind, epsilon)
    others = cyclic(plan, "independent", epsilon), poisson(plan, epsilon)
    return Gain(*(other / own for other in others))


def row(plan: Plan) -> str:
    """A row of the table: the gains for both kinds of strategies."""
    of_cyclic = [gain(plan, kind, 4.0).cyclic for kind in ("banded", "blt")]
    of_poisson = [gain(plan, "banded", epsilon).poisson for epsilon in EPSILONS]
    cells = [f"{number:,}" for number in plan]
    cells += [f"{ratio:.2f}" for ratio in (*of_cyclic, *of_poisson)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    for plan in PLANS:
        print(row(plan), flush=True)


if __name__ == "__main__":
    main()
