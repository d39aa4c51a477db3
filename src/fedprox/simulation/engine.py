"""The engine: some rounds as one compiled program.

Inside the program a round is a loop over segments of a loop over ticks (`lanes.run_segments`);
every tick is one mini-batch step of every lane, for all points of the sweep at once. Where a job
ends, its message is added to the server's mean with its weight and the lane starts afresh. One sum
over the devices and the algorithm's update end the round.

Axes of the arrays inside: lanes, then points of the sweep, then the parameter's own.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Wrapped

from fedprox.algorithms.base import Algorithm, Scalars, State
from fedprox.model import Model, Params, weighted_loss
from fedprox.simulation.lanes import (
    PER_ROUND_AND_DEVICE,
    REPLICATED,
    over_lanes,
    read_rows,
    run_segments,
    spread,
    total,
    where_ended,
)
from fedprox.simulation.schedule import Plan, Segments, Shape
from fedprox.solver import Solver


class Worker(NamedTuple):
    """A client at work: its parameters, its optimizer's state, its gradient so far.

    The gradient is kept only where a mini-batch takes several ticks.
    """

    params: Params
    optimizer: Any
    gradient: Params | None


def rounds_program(
    model: Model,
    algorithm: Algorithm,
    solver: Solver,
    mesh: Mesh,
    shape: Shape,
    *,
    accumulate: bool,
) -> Wrapped:
    """Compile-once program for up to `shape.rounds` rounds.

    Args:
        model: The model.
        algorithm: The method.
        solver: The local solver, already the algorithm's own.
        mesh: The devices.
        shape: Fixed shape of the plans.
        accumulate: Whether a mini-batch can take several ticks.

    Returns:
        (state, numbers, x, y, plan, rounds) -> (state, state before the last round, its local
        models): states and numbers have a leading axis of sweep points, local models are (slots,
        points, ...). Local models of idle slots are zero.
    """

    def start(state: State, numbers: Scalars) -> Worker:
        params = algorithm.subproblem(state, numbers).start
        return Worker(
            params,
            solver.init(params, numbers["learning_rate"]),
            jax.tree.map(jnp.zeros_like, params) if accumulate else None,
        )

    def work(
        worker: Worker,
        state: State,
        numbers: Scalars,
        x: jax.Array,
        y: jax.Array,
        weights: jax.Array,
        last: jax.Array,
    ) -> Worker:
        gradient = jax.grad(weighted_loss, argnums=1)(model, worker.params, x, y, weights)
        if accumulate:
            gradient = jax.tree.map(jnp.add, worker.gradient, gradient)
        problem = algorithm.subproblem(state, numbers)
        params, optimizer = solver.step(
            problem, worker.params, worker.optimizer, gradient, numbers["learning_rate"]
        )
        if not accumulate:
            return Worker(params, optimizer, None)
        stepped = Worker(params, optimizer, jax.tree.map(jnp.zeros_like, gradient))
        waiting = worker._replace(gradient=gradient)
        return jax.tree.map(lambda a, b: jnp.where(last, a, b), stepped, waiting)

    def message(worker: Worker, state: State, numbers: Scalars) -> Any:
        return algorithm.message(algorithm.subproblem(state, numbers), worker.params)

    points = jax.vmap(work, in_axes=(0, 0, 0, None, None, None, None))
    work_all = over_lanes(points, shape.lanes, (0, None, None, 0, 0, 0, 0))
    message_all = over_lanes(jax.vmap(message), shape.lanes, (0, None, None))
    read_all = over_lanes(read_rows, shape.lanes, (None, 0))

    def no_models(params: Params) -> Params:
        return jax.tree.map(lambda a: jnp.zeros((shape.slots, *a.shape), a.dtype), params)

    def one_round(state: State, numbers: Scalars, x: jax.Array, y: jax.Array, plan: Plan) -> Any:
        fresh = jax.vmap(start)(state, numbers)
        workers = jax.tree.map(lambda a: jnp.broadcast_to(a, (shape.lanes, *a.shape)), fresh)
        mean = jax.tree.map(
            jnp.zeros_like, jax.eval_shape(jax.vmap(message), fresh, state, numbers)
        )
        local = no_models(fresh.params)

        def tick(i: jax.Array, carry: Any) -> Any:
            workers, mean, local = carry
            rows = plan.rows[i]
            real = rows >= 0
            rows = jnp.where(real, rows, ~rows)
            weights = real / plan.size[i][:, None].astype(jnp.float32)
            workers = work_all(
                workers,
                state,
                numbers,
                read_all(x, rows),
                read_all(y, rows),
                weights,
                plan.last[i],
            )
            return workers, mean, local

        def end_jobs(slot: jax.Array, carry: Any) -> Any:
            workers, mean, local = carry
            ended = slot >= 0
            weight = jnp.where(ended, plan.weight[slot], 0.0)
            messages = message_all(workers, state, numbers)
            messages = where_ended(ended, messages, jax.tree.map(jnp.zeros_like, messages))
            mean = jax.tree.map(
                lambda m, a: m + jnp.tensordot(weight, a, 1, precision="highest"), mean, messages
            )
            target = jnp.where(ended, slot, shape.slots)
            local = jax.tree.map(
                lambda c, a: c.at[target].set(a, mode="drop"), local, workers.params
            )
            refreshed = jax.tree.map(lambda a: jnp.broadcast_to(a, (shape.lanes, *a.shape)), fresh)
            return where_ended(ended, refreshed, workers), mean, local

        carry = (workers, mean, local)
        _, mean, local = run_segments(plan.ends, tick, end_jobs, carry)
        return jax.vmap(algorithm.update)(state, total(mean), numbers), local

    def rounds(
        state: State, numbers: Scalars, x: jax.Array, y: jax.Array, plan: Plan, count: jax.Array
    ) -> tuple[State, State, Params]:
        def body(r: jax.Array, carry: Any) -> Any:
            state = carry[0]
            mine = Plan(
                rows=plan.rows[r, 0],
                size=plan.size[r, 0],
                last=plan.last[r, 0],
                ends=Segments(*(a[r, 0] for a in plan.ends)),
                weight=plan.weight[r],
            )
            after, local = one_round(state, numbers, x, y, mine)
            return after, state, local

        carry = (state, state, no_models(jax.vmap(start)(state, numbers).params))
        state, before, local = jax.lax.fori_loop(0, count, body, carry)
        return state, before, total(local)

    plan_spec = Plan(
        rows=PER_ROUND_AND_DEVICE,
        size=PER_ROUND_AND_DEVICE,
        last=PER_ROUND_AND_DEVICE,
        ends=Segments(PER_ROUND_AND_DEVICE, PER_ROUND_AND_DEVICE, PER_ROUND_AND_DEVICE),
        weight=REPLICATED,
    )
    specs = (REPLICATED, REPLICATED, REPLICATED, REPLICATED, plan_spec, REPLICATED)
    return spread(mesh, rounds, specs)
