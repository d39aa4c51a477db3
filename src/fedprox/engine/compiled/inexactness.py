"""Inexactness: how accurately the local problems of a round were solved, gamma_k of each client."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Wrapped

from fedprox.algorithms.base import ClientContext, ClientState, HParams, State
from fedprox.devices.mesh import PER_DEVICE, REPLICATED, spread
from fedprox.engine.compiled.client_step import Broadcast, contexts_of, round_hparams
from fedprox.engine.compiled.gradients import (
    LocalLoss,
    my_part,
    per_lane,
    reader,
    summed_losses,
)
from fedprox.engine.compiled.lanes import over, run_segments, total, where_lanes
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.planning.jobs import Slots
from fedprox.engine.planning.packing import Array
from fedprox.engine.planning.reads import Reading
from fedprox.engine.storage.training_data import DeviceRows
from fedprox.model import Params, with_base
from fedprox.protocol.method import Method
from fedprox.subproblem import inexactness


class Cohort(NamedTuple):
    """The clients of a round, and how all of their rows are read.

    Attributes:
        reading: Which rows each lane reads; its jobs are the clients.
        jobs: The jobs, arrays (slots,).
        client_state: Client state before the round, leaves (places, points, ...) on each device;
            None for a method without client state.
        places: Each client's place in `client_state`, int32 (slots,).
        rate: Factor of the learning rate in this round.
        participation: Share of the weight of all clients that took part.
    """

    reading: Reading
    jobs: Slots
    client_state: ClientState
    places: Array
    rate: Array
    participation: Array


def inexactness_program(
    method: Method, layout: Layout, mesh: Mesh, rows: tuple[Any, ...]
) -> Wrapped:
    """Compile-once program for gamma_k = ||grad h_k(w_k)|| / ||grad h_k(s_k)|| of a cohort.

    Li et al. 2020, Definition 2; both gradients are over all of the client's training rows.
    """
    algorithm, read_train = method.algorithm, reader(layout.width)

    def gamma(broadcast: Broadcast, params: Params, sums: Any, context: ClientContext) -> jax.Array:
        end, begin = sums
        context = algorithm.begun(broadcast.state, context)
        problem = algorithm.subproblem(*broadcast, context)
        first = problem.gradient(problem.start, begin.gradient)
        return inexactness(problem.gradient(params, end.gradient), first)

    gamma_all = over(over(gamma, (0, 0, 0, 0)), (None, 0, 0, 0))

    def program(
        base: Any, state: State, hparams: HParams, local: Params, rows: DeviceRows, cohort: Cohort
    ) -> jax.Array:
        model = with_base(method.protocol.model, base)
        at_end = summed_losses(model, shared=False)
        at_start = summed_losses(model, shared=True, value=algorithm.first.loss)
        reading = my_part(cohort.reading)
        hparams = round_hparams(hparams, cohort.rate, cohort.participation)
        broadcast = Broadcast(state, hparams)
        start = jax.vmap(algorithm.server.params)(state)
        slots, points = jax.tree.leaves(local)[0].shape[:2]

        def tick(i: jax.Array, carry: Any) -> Any:
            (end, begin), gammas = carry
            batch = read_train(*rows, reading, i)
            params = jax.tree.map(lambda a: a[reading.job[i]], local)
            end = jax.tree.map(jnp.add, end, at_end(params, *batch))
            begin = jax.tree.map(jnp.add, begin, at_start(start, *batch))
            return (end, begin), gammas

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            sums, gammas = carry
            ended = slot >= 0
            losses = per_lane(sums, cohort.jobs.size[slot])
            params = jax.tree.map(lambda a: a[slot], local)
            gradient = losses[1].gradient if algorithm.first.gradient else None
            state = jax.tree.map(lambda a: a[cohort.places[slot]], cohort.client_state)
            own = LocalLoss(gradient, losses[1].value)
            context = contexts_of(method.parts, cohort.jobs, slot, own, state, points)
            new = gamma_all(broadcast, params, losses, context)
            gammas = gammas.at[jnp.where(ended, slot, slots)].set(new, mode="drop")
            return where_lanes(ended, jax.tree.map(jnp.zeros_like, sums), sums), gammas

        lanes = layout.lanes
        begin = LocalLoss(start, jnp.zeros(points) if algorithm.first.loss else None)
        like = LocalLoss(start, None), begin
        zero = jax.tree.map(lambda a: jnp.zeros((lanes, *a.shape), a.dtype), like)
        carry = (zero, jnp.zeros((slots, points)))
        return total(run_segments(reading.ends, tick, end_jobs, carry)[1])

    same: Any = REPLICATED
    split: Any = PER_DEVICE
    cohort = Cohort(split, same, same, same, same, same)
    return spread(mesh, program, (same, same, same, same, rows, cohort))
