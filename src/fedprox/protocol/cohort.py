"""Cohorts: which clients take part in a round, and how their messages are weighted."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprox.errors import LARGEST, PositiveInt, Within, check_fields, plural, require
from fedprox.streams import Purpose, generator

Sampling = Literal["uniform", "proportional", "bernoulli", "cyclic"]
"""How a cohort is drawn."""


class Drawn(NamedTuple):
    """The clients of a cohort.

    Attributes:
        clients: Indices of the clients, all different, shape (m,).
        mass: Unnormalized weight of each client's message, shape (m,). The mean over the clients
            that take part divides by the sum of their masses.
    """

    clients: NDArray[np.int64]
    mass: NDArray[np.int64]


@dataclass(frozen=True)
class Cohort:
    """How a round's clients are sampled, and how their messages are weighted.

    Attributes:
        clients_per_round: Number of clients per round, K.
        sampling: "uniform": K clients uniformly without replacement, weights n_k / sum of the
            cohort's n_j (McMahan et al. 2017, Algorithm 1; Li et al. 2020, section 5.1).
            "proportional": K draws with replacement, client k with probability p_k = n_k / n, and
            the plain mean over the draws (Li et al. 2020, Algorithms 1 and 2). A client drawn
            twice works once and counts twice.
            "bernoulli": each client independently with probability K / N, weights n_k / sum of the
            cohort's n_j; an empty cohort is drawn again (Acar et al. 2021, the authors' code).
            "cyclic": clients are dealt once, at random, into `min_separation` groups, whose sizes
            differ by at most one. K clients of group t mod `min_separation`, uniformly without
            replacement, take part in round t, with weights as for "uniform". So one client takes
            part in at most one of `min_separation` consecutive rounds.
            Except with "proportional", methods that count each client once (`Algorithm.average`)
            use equal weights instead.
        over_selection: Factor by which more than K clients are drawn, from 1 to 10. The first K
            messages end the round, and the others do not count. Above 1 it needs "uniform" sampling
            and a :class:`fedprox.Population`, which says who is first.
        min_separation: With "cyclic" sampling, the least number of rounds from one participation of
            a client to its next, which is the number of groups. No group may have fewer than K
            clients. None with other sampling.

    Raises:
        InputError: If a setting is out of range or does not fit the others.

    Example:
        Seven clients in three groups, one of three and two of two:

        >>> cohort, offsets = Cohort(2, sampling="cyclic", min_separation=3), np.arange(8)
        >>> drawn = [set(cohort.draw(0, t, offsets).clients.tolist()) for t in range(6)]
        >>> len(drawn[0] | drawn[1] | drawn[2]), drawn[1] == drawn[4], drawn[2] == drawn[5]
        (6, True, True)
    """

    clients_per_round: PositiveInt
    sampling: Sampling = "uniform"
    over_selection: Annotated[float, Within(1, 10)] = 1.0
    min_separation: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields("cohort", self)
        require(
            (self.sampling == "cyclic") == (self.min_separation is not None),
            f'cohort.min_separation = {self.min_separation}; sampling = "cyclic" needs it, and no '
            "other has it",
        )
        require(
            self.over_selection == 1 or self.sampling == "uniform",
            f'cohort.over_selection = {self.over_selection}; with sampling = "{self.sampling}" '
            "there are no first K: it must be 1",
        )

    def check(self, clients: int) -> None:
        """Raise `InputError` if a federation, or a group of it, is smaller than a cohort."""
        count = self.clients_per_round
        require(
            self.sampling == "proportional" or count <= clients,
            f"cohort.clients_per_round = {count}; the federation has {plural(clients, 'client')}",
        )
        groups = self.min_separation or 1
        require(
            count <= clients // groups or self.sampling != "cyclic",
            f"cohort.clients_per_round = {count}; the federation has "
            f"{plural(clients, 'client')}, and "
            f"cohort.min_separation = {groups} makes groups of {clients // groups}",
        )

    @property
    def drawn(self) -> int:
        """How many clients are drawn with "uniform" sampling."""
        return math.ceil(self.clients_per_round * self.over_selection)

    @property
    def messages(self) -> int:
        """How many messages end a round at most."""
        return self.clients_per_round if self.over_selection > 1 else LARGEST

    def sizes(self, clients: int) -> range:
        """The possible sizes of a cohort that is drawn from `clients` clients."""
        fixed = self.sampling in ("uniform", "cyclic")
        least = min(self.drawn, clients) if fixed else 1
        most = clients if self.sampling == "bernoulli" else min(self.drawn, clients)
        return range(least, most + 1)

    def draw(
        self,
        seed: int,
        round_: int,
        offsets: NDArray[np.int64],
        purpose: Purpose = Purpose.COHORT,
        *,
        poisson: bool = False,
        capacity: int | None = None,
        candidates: NDArray[np.int64] | None = None,
    ) -> Drawn:
        """The cohort of a round.

        The cost hardly grows with the number of clients, of which "cyclic" sampling keeps the
        order in which they were dealt.

        Args:
            seed: Seed of the run.
            round_: Round t.
            offsets: Where each client's training rows begin, shape (clients + 1,).
            purpose: The random stream: cohorts of different purposes are independent.
            poisson: Whether an empty Bernoulli cohort stays empty, as privacy amplification by
                Poisson sampling requires.
            capacity: Most clients of a Bernoulli cohort; a larger one is cut to a uniform sample.
            candidates: The clients that can be drawn, at least one; None for all. A cohort is no
                larger, and their chances are those that they have among all clients.

        >>> drawn = Cohort(2).draw(0, 7, np.array([0, 5, 6, 16]))
        >>> len(drawn.clients), bool((drawn.mass == np.array([5, 1, 10])[drawn.clients]).all())
        (2, True)
        """
        stream, clients = generator(seed, purpose, round_), len(offsets) - 1
        if self.min_separation is not None:
            candidates = group_of_round(seed, round_, clients, self.min_separation)
        among = clients if candidates is None else len(candidates)
        if self.sampling == "proportional":
            # the owner of a row drawn uniformly is client k with probability n_k / n
            rows = stream.integers(offsets[-1], size=self.clients_per_round)
            owners = np.searchsorted(offsets, rows, side="right") - 1
            return Drawn(*np.unique(owners, return_counts=True))
        count = min(self.drawn, among)
        if self.sampling == "bernoulli":
            count = 0
            while not count:
                # given its size, a Bernoulli cohort is a uniform sample
                count = stream.binomial(among, self.clients_per_round / clients)
                if poisson:
                    break
            count = count if capacity is None else min(count, capacity)
        chosen = stream.choice(among, count, replace=False)
        if candidates is not None:
            chosen = candidates[chosen]
        return Drawn(chosen, offsets[chosen + 1] - offsets[chosen])


def group_of_round(seed: int, round_: int, clients: int, groups: int) -> NDArray[np.int64]:
    """The group of clients from which a round's cyclic cohort is drawn.

    >>> sorted(np.concatenate([group_of_round(0, t, 5, 2) for t in (6, 7)]).tolist())
    [0, 1, 2, 3, 4]
    """
    return _dealt(seed, clients)[round_ % groups :: groups]


@lru_cache(maxsize=4)
def _dealt(seed: int, clients: int) -> NDArray[np.int64]:
    """All clients in the order in which they are dealt into groups."""
    return generator(seed, Purpose.GROUPS).permutation(clients)


def weights(mass: NDArray[np.int64]) -> NDArray[np.float64]:
    """The weights mass_k / sum_j mass_j of the clients that took part.

    >>> weights(np.array([30, 10])).tolist()
    [0.75, 0.25]
    """
    return mass / max(int(mass.sum()), 1)
