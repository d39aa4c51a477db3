"""What the host plans for a call of the compiled programs, beside the batch plan."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from fedprox.algorithms.base import ClientState
from fedprox.devices.mesh import replicate
from fedprox.engine.compiled.inexactness import Cohort
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.planning.batch_plan import BatchPlan
from fedprox.engine.planning.jobs import Jobs
from fedprox.engine.planning.reads import Exchange, plan_exchanges, plan_reading
from fedprox.engine.planning.round_work import RoundWork


def read_cohort(
    jobs: Jobs, plan: BatchPlan, index: int, client_state: ClientState, layout: Layout, mesh: Mesh
) -> Cohort:
    """Plan how to read all rows of a round's clients."""
    reading = plan_reading(
        jobs.device_row,
        jobs.device_row + jobs.size,
        layout.width,
        layout.reading_grid,
        owner=jobs.owner,
        ticks=layout.room.cohort_ticks,
        slots=layout.room.slots,
    )
    return Cohort(
        reading,
        jax.tree.map(lambda a: a[index], plan.jobs),
        replicate(mesh, client_state),
        plan.place[index],
        plan.rate[index],
        plan.participation[index],
    )


def clients_by_place(
    plan: BatchPlan, work: RoundWork, layout: Layout, index: int = 0
) -> NDArray[np.int64]:
    """The client at each place of a round, -1 for none, shape (devices * places,)."""
    clients = np.full(layout.shape.devices * layout.room.places, -1)
    if len(clients):
        clients[plan.place[index, : len(work.jobs.client)]] = work.jobs.client
    return clients


class Held(NamedTuple):
    """Whose state a call holds.

    Attributes:
        clients: The client at each place of `Server.client_state`, -1 for none.
        at: As `Inputs.held`.
    """

    clients: NDArray[np.int64]
    at: NDArray[np.int32] | None


def held_state(plan: BatchPlan, work: Sequence[RoundWork], layout: Layout) -> Held:
    """Whose state a call of a method with client state holds."""
    cohorts = [clients_by_place(plan, each, layout, r) for r, each in enumerate(work)]
    shape, places = layout.shape, layout.room.places
    if shape.rounds == 1:
        return Held(cohorts[0], None)
    clients = np.full(shape.devices * layout.held, -1)
    different = np.unique(np.concatenate([each.jobs.client for each in work]))
    clients[: len(different)] = different
    at = np.full((shape.rounds, shape.devices * places), len(clients), np.int32)
    for r, cohort in enumerate(cohorts):
        at[r, cohort >= 0] = np.searchsorted(different, cohort[cohort >= 0])
    return Held(clients, at.reshape(shape.rounds, shape.devices, places))


def exchanges(work: Sequence[RoundWork], layout: Layout) -> Exchange | None:
    """Plan how to read gradients before the work of some rounds; None if the method does not."""
    if not layout.room.exchange_ticks:
        return None
    jobs = [(each.jobs, each.exchange) for each in work]
    return plan_exchanges(jobs, layout.shape.rounds, layout.room, layout.width, layout.reading_grid)
