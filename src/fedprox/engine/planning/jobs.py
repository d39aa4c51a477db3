"""Jobs: the work of each client in a round, and what compiled programs know of it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.devices.processes import Ownership
from fedprox.engine.planning.packing import Array
from fedprox.federation import Rows
from fedprox.precision import real_type


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
        columns: Other numbers by name, of the parts of a run, see `Part.columns`; "ticks" of jobs
            that sample rows.
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
    columns: Mapping[str, NDArray[Any]] = {}

    def take(self, chosen: Any) -> "Jobs":
        """Some of these jobs."""
        return jax.tree.map(lambda array: array[chosen], self)

    def with_columns(self, **columns: NDArray[Any]) -> "Jobs":
        """The same jobs with other columns."""
        return self._replace(columns={**self.columns, **columns})

    def started(self, t: int) -> NDArray[np.int64]:
        """The rounds in which the clients of round t started."""
        return np.asarray(t - self.columns.get("age", np.zeros_like(self.client)))


def no_jobs() -> Jobs:
    """The jobs of a round in which no client trains."""
    real = {"weight", "gamma", "participation", "relative_size"}
    kinds = (np.float64 if name in real else np.int64 for name in Jobs._fields[:-1])
    return Jobs(*(np.zeros(0, kind) for kind in kinds))  # type: ignore[arg-type]


def jobs_of(train: Rows, ownership: Ownership, client: NDArray[np.int64], **columns: Any) -> Jobs:
    """The jobs of clients on all of their training rows, given the fields that do not follow."""
    first = train.offsets[client]
    return Jobs(
        client=client,
        first_row=first,
        size=train.offsets[client + 1] - first,
        owner=ownership.of(client),
        device_row=first,
        **columns,
    )


EMPTY = {"size": 1, "relative_size": 1}
"""What an empty slot has of the numbers that divide; 0 of all others."""


class Slots(NamedTuple):
    """What compiled programs know of the jobs of R rounds, arrays of shape (R, slots).

    Attributes:
        size: As in `Jobs`, int32, like the others in 32 bits.
        steps: As in `Jobs`.
        weight: As in `Jobs`.
        gamma: As in `Jobs`.
        relative_size: As in `Jobs`.
        columns: As in `Jobs`, those that the parts of a run have.
    """

    size: Array
    steps: Array
    weight: Array
    gamma: Array
    relative_size: Array
    columns: Mapping[str, Array] = {}

    def numbers(self, slot: Any) -> dict[str, Any]:
        """The columns of the jobs in some slots."""
        return {name: column[slot] for name, column in self.columns.items()}


def in_slots(
    rounds: Sequence[Jobs], count: int, slots: int, columns: Mapping[str, NDArray[Any]]
) -> Slots:
    """The jobs of some rounds, with room for `count` rounds of `slots` jobs."""

    def column(name: str, like: NDArray[Any], of_jobs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        kind = np.int32 if np.issubdtype(like.dtype, np.integer) else real_type()
        array = np.full((count, slots), EMPTY.get(name, 0), kind)
        for row, values in zip(array, of_jobs, strict=False):
            row[: len(values)] = values
        return array

    none = no_jobs()
    return Slots(
        **{n: column(n, getattr(none, n), [getattr(each, n) for each in rounds]) for n in FIELDS},
        columns={
            name: column(name, like, [each.columns.get(name, like) for each in rounds])
            for name, like in columns.items()
        },
    )


FIELDS = Slots._fields[:-1]
"""The fields of `Slots` that all jobs have."""
