"""Jobs: the work of each client in a round, and what compiled programs know of it."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.federation import Rows
from fedprox.precision import real_type
from fedprox.simulation.devices.processes import Ownership
from fedprox.simulation.planning.packing import Array


class Jobs(NamedTuple):
    """The work of a round: one job for each client that trains, arrays of shape (jobs,).

    Attributes:
        client: Index of the client, which determines the random stream of its mini-batches.
        first_row: The client's first row among all training rows.
        size: Rows of the client.
        steps: Mini-batch steps to take.
        weight: Weight of the client's message in the server's mean.
        gamma: Inexactness at which the local solver may stop; 0 if it has no stop rule.
        participation: The client's share of the weight of all clients, such as n_k / n.
        relative_size: n_k divided by the mean n of all clients.
        owner: The process that owns the client.
        device_row: The client's first row in the arrays on the devices. It equals `first_row` until
            `TrainingRows.of` sets it.
        staleness: Steps of the server since the client started; 0 but in asynchronous rounds.
        rate: The client's learning rate, relative to the round's; 1 but in asynchronous rounds.
        attacks: Whether the client attacks, 1 or 0.
        rank: Rank of the client's adapters; 0 unless clients have different ones.
        ticks: Ticks of the client's Poisson mini-batches; 0 but with privacy of examples.
    """

    client: NDArray[np.int64]
    first_row: NDArray[np.int64]
    size: NDArray[np.int64]
    steps: NDArray[np.int64]
    weight: NDArray[np.float64]
    gamma: NDArray[np.float64]
    participation: NDArray[np.float64]
    relative_size: NDArray[np.float64]
    owner: NDArray[np.int64]
    device_row: NDArray[np.int64]
    staleness: NDArray[np.int64]
    rate: NDArray[np.float64]
    attacks: NDArray[np.int64]
    rank: NDArray[np.int64]
    ticks: NDArray[np.int64]

    def take(self, chosen: Any) -> "Jobs":
        """Some of these jobs."""
        return jax.tree.map(lambda array: array[chosen], self)


def no_jobs() -> Jobs:
    """The jobs of a round in which no client trains."""
    real = {"weight", "gamma", "participation", "relative_size", "rate"}
    kinds: list[Any] = [np.float64 if name in real else np.int64 for name in Jobs._fields]
    return Jobs(*(np.zeros(0, kind) for kind in kinds))


def jobs_with(client: NDArray[np.int64], **columns: NDArray[Any]) -> Jobs:
    """Jobs of clients.

    Args:
        client: Indices of the clients, shape (jobs,).
        columns: The other fields of `Jobs`; those of asynchronous rounds, attacks, adapters and
            Poisson mini-batches may be left out.
    """
    usual = {
        "staleness": np.zeros_like(client),
        "rate": np.ones(len(client)),
        "attacks": np.zeros_like(client),
        "rank": np.zeros_like(client),
        "ticks": np.zeros_like(client),
    }
    return Jobs(client=client, **usual | columns)


def jobs_of(
    train: Rows, ownership: Ownership, client: NDArray[np.int64], **columns: NDArray[Any]
) -> Jobs:
    """The jobs of clients on all of their training rows.

    Args:
        train: The training rows of all clients.
        ownership: Which process owns which clients.
        client: Indices of the clients, shape (jobs,).
        columns: As in `jobs_with`, but those that say where rows are.
    """
    first = train.offsets[client]
    return jobs_with(
        client,
        first_row=first,
        size=train.offsets[client + 1] - first,
        owner=ownership.of(client),
        device_row=first,
        **columns,
    )


DIVISORS = ("size", "relative_size")
"""The fields of `Slots` that are 1 in an empty slot, since they divide; others are 0."""


class Slots(NamedTuple):
    """What compiled programs know of the jobs of R rounds, arrays of shape (R, slots).

    Attributes:
        size: As in `Jobs`, int32, like the others in 32 bits.
        steps: As in `Jobs`.
        weight: As in `Jobs`.
        gamma: As in `Jobs`.
        relative_size: As in `Jobs`.
        staleness: As in `Jobs`; None but in asynchronous rounds.
        rate: As in `Jobs`; None likewise.
        attacks: As in `Jobs`; None unless some clients change their messages.
        rank: As in `Jobs`; None unless clients have different ones.
        client: As in `Jobs`; None unless clients need random keys for their messages.
    """

    size: Array
    steps: Array
    weight: Array
    gamma: Array
    relative_size: Array
    staleness: Array | None = None
    rate: Array | None = None
    attacks: Array | None = None
    rank: Array | None = None
    client: Array | None = None


def in_slots(
    rounds: Sequence[Jobs], count: int, slots: int, optional: Collection[str] = ()
) -> Slots:
    """The jobs of some rounds, with room for `count` rounds of `slots` jobs.

    Args:
        rounds: The jobs of each round.
        count: Most rounds.
        slots: Most jobs of a round.
        optional: Those of the fields that may be None and are not.
    """

    def column(name: str) -> NDArray[Any]:
        whole = np.issubdtype(getattr(no_jobs(), name).dtype, np.integer)
        fill = 1 if name in DIVISORS else 0
        array = np.full((count, slots), fill, np.int32 if whole else real_type())
        for r, jobs in enumerate(rounds):
            array[r, : len(jobs.client)] = getattr(jobs, name)
        return array

    always = Slots._fields[: -len(Slots._field_defaults)]
    return Slots(**{name: column(name) for name in (*always, *optional)})
