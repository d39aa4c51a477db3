"""The compiled programs of a node: its part of a round, and of a first exchange."""

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Wrapped

from fedprox.algorithms.base import ClientState
from fedprox.devices.mesh import AXIS, PER_DEVICE, REPLICATED, spread
from fedprox.engine.compiled.gradients import Measured, exchange_gradients
from fedprox.engine.compiled.lanes import Clock, Until
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.compiled.round import (
    Inputs,
    Local,
    Round,
    RoundsProgram,
    Server,
    exchange_of_round,
    inputs_points,
    inputs_spec,
    plan_of_round,
    point_by_point,
)
from fedprox.engine.planning.reads import Exchange
from fedprox.features import Features
from fedprox.model import Params, with_base
from fedprox.parts.part import Screened, mean_if_screened, times
from fedprox.protocol.method import Method


class PartialRound(NamedTuple):
    """A node's part of one round, before the server's update.

    Attributes:
        message: The messages that count, times their weights, summed, leaves (points, ...). If they
            travel apart, what each client sends, leaves (points, slots, ...).
        counted: Sum of the weights of those that count, (points,).
        local: The clients after the round. Their steps are never None if there is a clock.
        client_state: State of the clients, as in `Server`.
        flagged: Which updates screening flagged, bool (points, slots); None without screening.
    """

    message: Any
    counted: jax.Array
    local: Local
    client_state: ClientState
    flagged: jax.Array | None


def part_program(
    method: Method, layout: Layout, mesh: Mesh, rows: tuple[Any, ...], clock: Clock | None = None
) -> Wrapped:
    """Compile-once program for a node's part of one round, after a first exchange, if any."""

    def part(base: Any, server: Server, inputs: Inputs) -> PartialRound:
        run = partial(_part, RoundsProgram(method, base, layout, clock, apart=method.apart))
        done: PartialRound = (run if layout.batched else point_by_point(run))(server, inputs)
        return done

    same: Any = REPLICATED
    specs = PartialRound(same, same, same, client_state=PER_DEVICE, flagged=same)
    inputs = inputs_spec(rows, exchange=method.algorithm.first.reads, clock=clock is not None)
    return spread(mesh, part, (same, Server(same, PER_DEVICE), inputs), out_specs=specs)


def gradients_program(
    method: Method, layout: Layout, mesh: Mesh, rows: tuple[Any, ...], clock: Clock | None = None
) -> Wrapped:
    """Compile-once program for a node's part of a first exchange.

    It returns the gradients that count, times their weights, summed, leaves (points, ...); the sum
    of these weights (points,); which gradients count, and which of them screening flagged, bool
    (jobs, points).
    """

    def part(
        base: Any,
        params: Params,
        x: Features,
        y: jax.Array,
        exchange: Exchange,
        until: Until | None,
    ) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
        model = with_base(method.protocol.model, base)
        gradients = exchange_gradients(
            method, model, layout, Measured(), method.reduction.screen, clock
        )
        now = exchange_of_round(exchange, jnp.int32(0))
        read = gradients(params, x, y, now, until)
        screened = cast("Screened", read.screened)  # a node always screens
        # `counted` is exactly 1 if no gradient is left out, whatever the sum of weights
        scale, weight = screened.scale, now.jobs.weight[layout.room.slots :, None]
        counted = jnp.where(scale > 0, weight, 0.0).sum(axis=0)
        return read.sums, counted, scale > 0, screened.flagged

    inputs = inputs_spec(rows, exchange=True, clock=clock is not None)
    specs = (REPLICATED, REPLICATED, inputs.x, inputs.y, inputs.exchange, inputs.until)
    return spread(mesh, part, specs)


def _part(program: RoundsProgram, server: Server, inputs: Inputs) -> PartialRound:
    """The first round of the plan, without the server's update."""
    plan, exchange = plan_of_round(inputs, jnp.int32(0))
    result, local = Round(program, server, inputs, plan, exchange).aggregate()
    local = jax.tree.map(lambda a: jax.lax.psum(a, AXIS), local)
    weight = plan.jobs.weight
    counts = jnp.broadcast_to(weight[:, None], (len(weight), inputs_points(inputs)))
    flagged = result.screened and result.screened.flagged.T
    if result.screened is not None:
        counts = jnp.where(result.screened.flagged, 0.0, counts)
    if program.timed:
        taken = cast("jax.Array", local.steps)
        counts = jnp.where(program.is_late(taken, plan.jobs.steps[:, None]), 0.0, counts)
    counted, sums = counts.sum(axis=0), result.sums
    if program.reduction.rule is not None:  # it makes a mean, which is here times `counted`
        sums = times(counted, mean_if_screened(sums, result.screened))
    return PartialRound(sums, counted, local, result.client_state, flagged)
