"""How inexactly a round's local problems were solved: gamma_k of every client of the cohort."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Wrapped

from fedprox.algorithms.base import Algorithm, ClientContext, ClientState, HParams, State
from fedprox.features import Features
from fedprox.model import Model, Params
from fedprox.simulation.compiled.client_step import of_the_round
from fedprox.simulation.compiled.gradients import my_part, per_lane, reader, summed_gradients
from fedprox.simulation.compiled.lanes import over, run_segments, total, where_lanes
from fedprox.simulation.devices.mesh import PER_DEVICE, REPLICATED, spread
from fedprox.simulation.planning.reads import Reading
from fedprox.subproblem import inexactness


def inexactness_program(
    model: Model,
    algorithm: Algorithm,
    mesh: Mesh,
    *,
    lanes: int,
    width: int,
    rows: Sequence[Any],
) -> Wrapped:
    """Compile-once program for gamma_k = ||grad h_k(w_k)|| / ||grad h_k(s_k)|| of a cohort.

    Li et al. 2020, Definition 2; both gradients are over all of the client's training rows.

    Args:
        model: The model.
        algorithm: The method, which poses h_k.
        mesh: The devices.
        lanes: Lanes per device.
        width: Rows of a slice.
        rows: How x and y are spread over the devices.

    Returns:
        (state, hparams, local models, x, y, reading, sizes, shares, client_state, places, rate,
        participation) -> gamma (slots, points): state before the round, local models (slots,
        points, ...), sizes and shares (slots,) of the cohort's clients, what they kept before it,
        with its places (slots,), and the round's rate and participation.
    """
    read_train = reader(width)
    at_end = summed_gradients(model, shared=False)
    at_start = summed_gradients(model, shared=True)

    def program(
        state: State,
        hparams: HParams,
        local: Params,
        x: Features,
        y: jax.Array,
        reading: Reading,
        sizes: jax.Array,
        shares: jax.Array,
        client_state: ClientState,
        places: jax.Array,
        rate: jax.Array,
        participation: jax.Array,
    ) -> jax.Array:
        reading, hparams = my_part(reading), of_the_round(hparams, rate, participation)
        start = jax.vmap(algorithm.params)(state)
        zero = jax.tree.map(lambda a: jnp.zeros((lanes, *a.shape), a.dtype), (start, start))
        slots, points = jax.tree.leaves(local)[0].shape[:2]

        def gamma(
            state: State,
            hparams: HParams,
            params: Params,
            end: Params,
            begin: Params,
            client_state: ClientState,
            share: jax.Array,
        ) -> jax.Array:
            context = ClientContext(begin if algorithm.own_gradient else None, client_state, share)
            problem = algorithm.subproblem(state, hparams, context)
            return inexactness(
                problem.gradient(params, end), problem.gradient(problem.start, begin)
            )

        gamma_all = over(over(gamma, (0, 0, 0, 0, 0, 0, None)), (None, None, *[0] * 5))

        def tick(i: jax.Array, carry: Any) -> Any:
            (end, begin), gammas = carry
            batch = read_train(x, y, reading, i)
            params = jax.tree.map(lambda a: a[reading.job[i]], local)
            end = jax.tree.map(jnp.add, end, at_end(params, *batch))
            begin = jax.tree.map(jnp.add, begin, at_start(start, *batch))
            return (end, begin), gammas

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            sums, gammas = carry
            ended, size = slot >= 0, sizes[slot]
            end, begin = per_lane(sums, size)
            params = jax.tree.map(lambda a: a[slot], local)
            context = jax.tree.map(lambda a: a[places[slot]], client_state)
            found = gamma_all(state, hparams, params, end, begin, context, shares[slot])
            gammas = gammas.at[jnp.where(ended, slot, slots)].set(found, mode="drop")
            return where_lanes(ended, jax.tree.map(jnp.zeros_like, sums), sums), gammas

        carry = (zero, jnp.zeros((slots, points)))
        return total(run_segments(reading.ends, tick, end_jobs, carry)[1])

    specs = (*[REPLICATED] * 3, *rows, PER_DEVICE, *[REPLICATED] * 6)
    return spread(mesh, program, specs)
